"""A pipeline from topic to topic is killed, its driver and its broker; every message arrives once all the same."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock.spark import run_pipeline
from penstock.spark.pipelines.stream_status import pipeline_status
from tests.effort import LONG, by_length, chosen_seed
from tests.spark.processes import processes_of, quick_start
from tests.support.server_processes import ServerProcess, cluster, wait_known
from tests.waiting import PATIENT_SENDS

ROOT = Path(__file__).resolve().parents[2]
JVM_END_S = 120.0
MESSAGES = by_length(1_500, 6_000)
# Small batches for drivers that are killed: they are in the middle of it, however slowly this process looks on.
KILLED_ROWS, LAST_ROWS = by_length(60, 300), 600
FILE = """\
nameserver = "{nameserver}"
checkpoint = "state"
[sources.numbers]
topic = "numbers"
max_rows = {max_rows}
[steps.odd]
sql = "select body, keys from numbers where cast(cast(body as string) as int) % 2 = 1"
[sinks.out]
from = "odd"
topic = "odd"
"""


class Driver:
    """`penstock pipeline stream run`, a process group of its own with its JVM."""

    def __init__(self, file: Path, *arguments: str) -> None:
        line = [sys.executable, "-m", "penstock.cli.main", "pipeline", "stream", "run", str(file), "--json"]
        line += ["--master", "local[2]", *quick_start(), *arguments]
        self.log = file.with_name("driver.log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, text=True, start_new_session=True
            )

    def events(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def run_batches(self, count: int) -> None:
        """Until so many batches are done."""
        for number, _ in enumerate((event for event in self.events() if event["event"] == "batch"), 1):
            if number >= count:
                return
        raise AssertionError(f"the driver ended: {self.said()}")

    def said(self) -> str:
        """What it said, and the end of what Spark said where that was kept."""
        text = self.log.read_text()
        kept = [Path(name) for name in re.findall(r"what Spark said is in (\S+)", text)]
        return "\n".join([text, *(path.read_text(errors="replace")[-10_000:] for path in kept)])

    def kill(self, *, with_jvm: bool) -> None:
        """SIGKILL. Without its driver the JVM ends by itself, after whatever it is doing."""
        if with_jvm:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.close()

    def wait_for_jvm(self) -> None:
        """Until the JVM has ended as well."""
        deadline = time.monotonic() + JVM_END_S
        while processes_of(self.process.pid):
            assert time.monotonic() < deadline, processes_of(self.process.pid)
            time.sleep(0.05)

    def close(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(120)


def numbers_in(address: str, topic: str) -> list[int]:
    """Bodies of a topic, in the order of its queues."""
    found = []
    with penstock.Admin(address) as admin:
        for status in admin.describe_topic(topic).queues:
            offset = status.min_offset
            while offset < status.max_offset:
                messages = admin.read_messages(status.queue, offset)
                found += [int(message.body) for message in messages]
                offset = messages[-1].queue_offset + 1
    return found


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault("F1")
@pytest.mark.invariant("I15")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_message_arrives_once_though_driver_and_broker_are_killed(spark, tmp_path: Path) -> None:
    """The last run is one of the shared session; the long variant kills another driver, with its JVM, first."""
    seed = chosen_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    file = tmp_path / "p.toml"
    with cluster(tmp_path / "cluster") as (names, broker):
        file.write_text(FILE.format(nameserver=names.address, max_rows=KILLED_ROWS))
        send_numbers(names.address)
        if LONG:
            driver = Driver(file)
            driver.run_batches(chance.randint(2, 4))
            driver.kill(with_jvm=True)

        driver = Driver(file)
        driver.run_batches(chance.randint(1, by_length(2, 3)))
        restart(names, broker)
        driver.run_batches(by_length(1, 2))
        driver.kill(with_jvm=False)
        driver.wait_for_jvm()

        assert pipeline_status(file).sinks[0].lag, "it was in the middle of it"
        file.write_text(FILE.format(nameserver=names.address, max_rows=LAST_ROWS))
        done = run_pipeline(file, spark=spark, once=True)
        assert (list(done.sinks), done.sinks["out"].restarts) == (["out"], 0)
        assert sorted(numbers_in(names.address, "odd")) == [n for n in range(MESSAGES) if n % 2]
        status = pipeline_status(file)
        assert (status.sinks[0].lag, status.sinks[0].is_batch_open) == (0, False)
        assert sum(status.sinks[0].offsets.values()) == MESSAGES


def send_numbers(address: str) -> None:
    with penstock.Admin(address) as admin:
        admin.create_topic("numbers", 4)
        admin.create_topic("odd", 4)
    with penstock.Producer(address, batch_size=256, **PATIENT_SENDS) as producer:
        futures = [producer.send_async("numbers", str(n).encode(), keys=f"k{n}") for n in range(MESSAGES)]
        for future in futures:
            future.result(60)


def restart(names: ServerProcess, broker: ServerProcess) -> None:
    broker.kill()
    broker.start()
    wait_known(names.address)
