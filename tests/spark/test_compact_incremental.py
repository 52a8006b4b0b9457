"""A table of latest messages from run to run: only what has news is written anew, and a kill costs nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from penstock.spark import compact
from penstock.spark.pipelines.latest_by_key import STAGED, LatestTable, read_latest
from penstock.spark.pipelines.manifest import Entry, Manifest
from penstock.spark.pipelines.parquet_tree import ParquetTree
from tests.effort import LONG
from tests.spark.processes import quick_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Node

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0
KEYS = 20
MESSAGES = 400


def message(number: int, key: int | None = None) -> dict[str, Any]:
    """Large enough for a batch to have few of them."""
    return {"body": f"{number:04d}" * 75, "keys": f"k{number % KEYS if key is None else key}"}


def run(spark: SparkSession, node: Node, topic: str, root: Path, **settings: Any) -> Any:
    return compact(topic, str(root), spark=spark, nameserver=node.address, once=True, **settings)


def table_of(root: Path) -> dict[str, tuple[int, str]]:
    """Offset and number of each key's message, as the files have them; a key that is there twice is a failure."""
    found: dict[str, tuple[int, str]] = {}
    for path in root.glob("bucket=*/*.parquet"):
        for row in pq.ParquetFile(path).read(["key", "queue_offset", "body"]).to_pylist():
            assert row["key"] not in found
            found[row["key"]] = (row["queue_offset"], row["body"][:4].decode())
    return found


def latest_of(messages: list[dict[str, Any]]) -> dict[str, tuple[int, str]]:
    return {item["keys"]: (offset, item["body"][:4]) for offset, item in enumerate(messages)}


def identities(root: Path) -> dict[Path, tuple[int, int, int]]:
    """The files, and what changes when one is written."""
    found = {path: path.stat() for path in root.glob("bucket=*/*.parquet")}
    return {path: (stat.st_ino, stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def keys_in(path: Path) -> set[str]:
    return set(pq.ParquetFile(path).read(["key"]).column("key").to_pylist())


def test_a_run_writes_only_the_buckets_whose_keys_it_has(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("prices", 1), tmp_path / "latest"
    messages = [message(number) for number in range(KEYS)]
    node.send(topic, messages, queue_id=0)
    run(spark, node, topic, root, buckets=8)
    before = identities(root)
    assert len(before) >= 4
    homes = {key: path for path in before for key in keys_in(path)}
    assert len(homes) == KEYS

    news = [message(100, key=3), message(101, key=3), message(102, key=7)]
    node.send(topic, news, queue_id=0)
    assert run(spark, node, topic, root).rows == 3
    after = identities(root)
    touched = {homes["k3"].parent, homes["k7"].parent}
    assert {path: was for path, was in before.items() if path.parent not in touched} == {
        path: now for path, now in after.items() if path.parent not in touched
    }
    # The others have a new name, and the keys that they had.
    assert {path.parent for path in after if path not in before} == touched
    assert not [path for path in before if path.parent in touched and path in after]
    assert table_of(root) == latest_of(messages + news)

    # A key that is new changes one bucket, nothing new changes none.
    newer = [message(103, key=999)]
    node.send(topic, newer, queue_id=0)
    run(spark, node, topic, root)
    once_more = identities(root)
    assert len({path.parent for path in once_more if path not in after}) == 1
    assert table_of(root) == latest_of(messages + news + newer)
    assert run(spark, node, topic, root).rows == 0
    assert identities(root) == once_more


@pytest.mark.fault("F1")
def test_a_table_is_read_whole_though_a_crash_cut_its_last_commit_short(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All buckets are swapped and the manifest does not say so yet: the files that it names are gone."""
    topic, root = node.topic("prices", 1), tmp_path / "latest"
    messages = [message(number) for number in range(KEYS)]
    node.send(topic, messages, queue_id=0)
    run(spark, node, topic, root, buckets=4)
    messages += [message(number) for number in range(100, 100 + KEYS)]
    node.send(topic, messages[KEYS:], queue_id=0)

    def crash(manifest: Manifest, entry: Entry) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "settle", crash)
        rows = spark.read.format("penstock").options(nameserver=node.address, topic=topic).load()
        table = LatestTable(root, "keys")
        table.prepare()
        with pytest.raises(KeyboardInterrupt):
            table.take(rows, 1)
    assert ParquetTree(root).manifest.pending() is not None
    found = {row.key: (row.queue_offset, row.body[:4].decode()) for row in read_latest(spark, root).collect()}
    assert found == latest_of(messages) == table_of(root)


def batches_told(log: Path) -> list[int]:
    """The rows of each batch that the command has told of; its last line may be unfinished."""
    told = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    events = [json.loads(line) for line in told if line.startswith("{")]
    return [event["rows"] for event in events if event["event"] == "batch"]


def kill_when(node: Node, topic: str, root: Path, log: Path, is_time: Callable[[], bool]) -> None:
    """The command as a process of its own; driver and JVM get a kill -9 at once when it is time."""
    line = [
        sys.executable,
        "-m",
        "penstock.cli.main",
        "pipeline",
        "compact",
        "--topic",
        topic,
        "--to",
        str(root),
    ]
    line += ["--nameserver", node.address, "--once", "--buckets", "4", "--max-bytes", "8K", "--json"]
    line += ["--master", "local[1]", *quick_start()]
    deadline = time.monotonic() + LIMIT_S
    with open(log, "ab") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
    try:
        while not is_time():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.002)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I15")
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_leaves_a_table_that_is_right_before_and_after_the_next_run(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    topic, root = node.topic("prices", 1), tmp_path / "latest"
    messages = [message(number) for number in range(MESSAGES)]
    node.send(topic, messages, queue_id=0)
    staged, done = ParquetTree(root).resolve(STAGED), 0
    moments: list[Callable[[Path], bool]] = [
        # After some batches, wherever it is then; and while the folders of a commit are made or swapped.
        lambda log: len(batches_told(log)) >= 2,
        lambda log: len(batches_told(log)) >= 1 and any(staged.glob("*/tree/*")),
    ]
    for number, is_time in enumerate(moments if LONG else moments[1:]):
        log = tmp_path / f"life-{number}.log"
        kill_when(node, topic, root, log, partial(is_time, log))
        done += sum(batches_told(log))
        found = table_of(root)
        # Each key once, with a message that it had, and none that is older than what was told to be done.
        assert found.keys() >= latest_of(messages[:done]).keys()
        for key, (offset, body) in found.items():
            assert (messages[offset]["keys"], messages[offset]["body"][:4]) == (key, body)
        assert all(found[key] >= least for key, least in latest_of(messages[:done]).items())
        assert 0 < done < MESSAGES
        assert found != latest_of(messages)
    rest = run(spark, node, topic, root)
    assert 0 < rest.rows <= MESSAGES - done
    assert (rest.keys, table_of(root)) == (KEYS, latest_of(messages))
    assert {row.key: row.queue_offset for row in read_latest(spark, root).collect()} == {
        key: offset for key, (offset, _) in latest_of(messages).items()
    }
    # What the dead left behind is gone.
    assert list(staged.iterdir()) == []
