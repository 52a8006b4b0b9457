"""The archive's driver and the broker are killed while messages come in; every message is archived, once.

The driver is `penstock pipeline archive` with its JVM; a kill leaves the JVM alive for a second or two, in which the
next driver is started on the same directory. Readers look at the files all the while.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.dataset as ds

import penstock
from penstock.errors import PenstockError
from penstock.runtime import SeededEntropy, SystemDisk
from penstock.spark.pipelines.archive_reading import archived_ranges
from penstock.spark.pipelines.manifest import Manifest
from tests.effort import by_length
from tests.fault.seeded import seeded
from tests.support.archive_rows import stored_rows
from tests.support.server_processes import ROOT, cluster

TOPIC, QUEUES = "orders", 3
# The first kills the driver and the broker, the second only the driver, and so on.
ROUNDS = by_length(1, 12)
PACE_S = 0.01
START_S = 180.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
Row = tuple[int, int, bytes]


class Sender:
    """Sends numbered messages until it is stopped; what was acknowledged is known."""

    def __init__(self, address: str) -> None:
        self.acknowledged: set[bytes] = set()
        self._stop = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run, name="penstock-test-sender")

    def _run(self) -> None:
        number = 0
        with penstock.Producer(
            self._address, group="archive-test", retries=0, send_timeout_ms=1_000
        ) as producer:
            while not self._stop.is_set():
                body = b"message %d" % number
                number += 1
                try:
                    producer.send(TOPIC, body, keys=str(number))
                    self.acknowledged.add(body)
                except PenstockError:
                    pass  # the broker is away: it may be stored or not
                time.sleep(PACE_S)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Driver:
    """One life of the archiver."""

    def __init__(self, address: str, to: Path, log: Path, *arguments: str) -> None:
        line = [sys.executable, "-m", "penstock.cli.main", "pipeline", "archive", "--topic", TOPIC]
        line += ["--to", str(to), "--nameserver", address, "--master", "local[2]"]
        line += [
            "--conf",
            f"spark.driver.extraJavaOptions={QUICK}",
            "--conf",
            "spark.driver.memory=512m",
            *arguments,
        ]
        with open(log, "ab") as out:
            self.process = subprocess.Popen(line, stdout=out, stderr=out, cwd=ROOT)
        self.log = log

    def wait(self) -> None:
        try:
            code = self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert code == 0, self.log.read_text()[-4000:]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def entries(root: Path) -> int:
    manifest = Manifest(root, SystemDisk())
    return max([0, *manifest.sequences("json"), *manifest.sequences("snapshot")])


def wait_for_batches(root: Path, driver: Driver, more: int) -> None:
    before, deadline = entries(root), time.monotonic() + START_S
    while entries(root) < before + more:
        assert driver.process.poll() is None, driver.log.read_text()[-4000:]
        assert time.monotonic() < deadline, driver.log.read_text()[-4000:]
        time.sleep(0.02)


def plain_rows(root: Path) -> list[Row]:
    """As any reader finds them."""
    if not any(root.glob("topic=*/date=*/*.parquet")):
        return []
    hive = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    names = ["queue_id", "queue_offset", "body"]
    table = ds.dataset(root, format="parquet", partitioning=hive).to_table(columns=names)
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


@contextmanager
def watching(root: Path) -> Iterator[list[str]]:
    """Somebody who reads all the while: never a message twice, never a file that cannot be read, never fewer."""
    stop, wrong, looks = threading.Event(), list[str](), [0]

    def look() -> None:
        most = 0
        while not stop.is_set():
            try:
                rows = plain_rows(root)
            except FileNotFoundError:
                continue  # listed before a merge and opened after it
            twice = [place for place, count in Counter(row[:2] for row in rows).items() if count > 1]
            if twice or len(rows) < most:
                wrong.append(f"twice: {twice[:5]}; {len(rows)} rows after {most}")
            most = max(most, len(rows))
            looks[0] += 1
            time.sleep(0.05)

    thread = threading.Thread(target=look, name="penstock-test-reader")
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join()
    assert looks[0] > 3


@pytest.mark.fault("F1")
@pytest.mark.invariant("I15")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kills_of_driver_and_broker_lose_and_repeat_nothing(tmp_path: Path) -> None:
    root, log, left = tmp_path / "archive", tmp_path / "driver.log", 0
    root.mkdir()
    with seeded() as seed:
        entropy = SeededEntropy(seed)
        with cluster(tmp_path / "nodes") as (names, node):
            with penstock.Admin(names.address) as admin:
                admin.create_topic(TOPIC, QUEUES)
            with watching(root) as wrong:
                with Sender(names.address) as sender:
                    for number in range(ROUNDS):
                        driver = Driver(names.address, root, log, "--every", "0s", "--max-rows", "60")
                        try:
                            wait_for_batches(root, driver, 2)
                            time.sleep(entropy.fraction())
                            if number % 2 == 0:
                                node.kill()
                                time.sleep(entropy.fraction() * 0.5)
                        finally:
                            driver.kill()
                        if not node.is_running:
                            node.start()
                        left += len(list((root / "_staging").glob("*")))
                Driver(names.address, root, log, "--once").wait()
            assert wrong == []
            stored, archived = stored_rows(names.address), plain_rows(root)
    assert archived == stored
    assert sender.acknowledged <= {body for _, _, body in archived}
    ends = Counter(queue for queue, _, _ in stored)
    assert archived_ranges(root) == {
        f"{TOPIC}/broker-a/{queue}": [(0, ends[queue] - 1)] for queue in sorted(ends)
    }
    assert not list((root / "_staging").iterdir())
    assert not Manifest(root, SystemDisk()).sequences("intent")
    assert os.path.isdir(root / "_checkpoint")
    print(f"\n[kill -9 of the archive's driver, {ROUNDS} rounds, every other with the broker, seed {seed}]")
    print(f"  {len(archived)} messages, each once; {left} staged folders swept; {entries(root)} commits")
