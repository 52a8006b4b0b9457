"""Pipelines as processes that get SIGINT and SIGTERM: they end well, and the next run goes on where they were."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from penstock.spark import archive, run_pipeline
from tests.effort import LONG, by_length
from tests.spark.processes import listening_sockets, processes_of, quick_start
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 1_000
Row = tuple[int, int, bytes]


class Command:
    """`penstock pipeline ...` with its JVM, a process group of its own, as under a terminal."""

    def __init__(self, log: Path, *arguments: str) -> None:
        line = [sys.executable, "-m", "penstock.cli.main", "pipeline", *arguments]
        line += ["--json", "--master", "local[2]", *quick_start()]
        # What Spark says goes to a temporary file: it has to be gone after a good end.
        self.temporary = log.with_name("tmp")
        self.temporary.mkdir(exist_ok=True)
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                line,
                stdout=subprocess.PIPE,
                stderr=out,
                cwd=ROOT,
                text=True,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )

    def events(self) -> Iterator[dict]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def run_batches(self, count: int) -> int:
        """Until so many batches with rows are done; their rows."""
        rows = 0
        for event in self.events():
            if event["event"] == "batch" and event["rows"]:
                rows += event["rows"]
                count -= 1
            if not count:
                return rows
        raise AssertionError(f"it ended: {self.log.read_text()}")

    def end(self, code: int) -> list[dict]:
        """Wait for the end; what it still said."""
        said = list(self.events())
        told = self.log.read_text()
        assert self.process.wait(120) == code, told
        # Not even that of Spark's own server for accumulators, whose JVM may end in the middle of an update.
        for noise in ("Traceback", "Error", "org.apache"):
            assert noise not in told, told
        assert list(self.temporary.glob("penstock-spark-*")) == []
        return said


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[Command]:
    made = Command(folder / "command.log", *arguments)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGKILL)
        made.process.communicate()


def interrupt(made: Command) -> None:
    """As Ctrl-C does: to the command, its JVM and whatever else belongs to them."""
    os.killpg(made.process.pid, signal.SIGINT)


def terminate(made: Command) -> None:
    """As `kill` and supervisors do: to the command alone."""
    made.process.send_signal(signal.SIGTERM)


def sent(node, topic: str, first: int) -> list[Row]:
    """Numbered messages round the queues; the rows that have to come of them."""
    bodies = [b"%d" % number for number in range(first, first + MESSAGES)]
    results = node.send(topic, [{"body": body, "keys": "k" + body.decode()} for body in bodies])
    return [
        (result.queue.queue_id, result.queue_offset, body)
        for result, body in zip(results, bodies, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.invariant("I15")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_archive_that_is_interrupted_and_terminated_has_each_message_once(
    spark, node, tmp_path: Path
) -> None:
    """The short variant interrupts; test_archive_broker_kill terminates. The last run is in the shared session. A run
    that would have ended by itself says with its exit status that it has not."""
    topic, root = node.topic("orders", 3), tmp_path / "archive"
    line = ["archive", "--topic", topic, "--to", str(root), "--nameserver", node.address]
    bounded = [*line, "--once", "--max-rows", str(by_length(40, 100))]
    rows = sent(node, topic, 0)
    done = 0
    for stop in (interrupt, terminate) if LONG else (interrupt,):
        with command(tmp_path, *bounded) as running:
            begun = running.run_batches(2)
            stop(running)
            *batches, last = running.end(130)
        begun += sum(event["rows"] for event in batches)
        assert (last["event"], last["stopped"], last["rows"]) == ("done", True, begun)
        done += begun
        assert len(archived(root)) == done < len(rows), "it stopped on the way, after whole batches"
        rows += sent(node, topic, len(rows))
    last = archive(topic, str(root), spark=spark, nameserver=node.address, once=True)
    assert (last.stopped, last.rows) == (False, len(rows) - done)
    assert archived(root) == sorted(rows)
    assert not list((root / "_staging").glob("*")), "what a stopped run left there is removed by the next one"
    progress = node.admin.describe_group("penstock-archive").progress
    assert [item.lag for item in progress if item.queue.topic == topic] == [0, 0, 0]


# How far a driver is: its JVM is there, the JVM listens for the driver, the context listens for executors.
JVM, GATEWAY, CONTEXT = range(3)


def has_reached(moment: int, group: int) -> bool:
    for process in processes_of(group):
        if "SparkSubmit" in process.line:
            return len(listening_sockets(process.pid)) >= moment
    return False


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stop", "moment"), [(interrupt, JVM), (terminate, CONTEXT)])
def test_a_pipeline_that_is_stopped_while_spark_starts_leaves_nothing(
    node, tmp_path: Path, stop: Callable[[Command], None], moment: int
) -> None:
    """Neither a JVM, which nobody would ever end, nor files. The long variant stops at every moment."""
    topic = node.topic("orders", 1)
    line = ["archive", "--topic", topic, "--to", str(tmp_path / "archive"), "--nameserver", node.address]
    for at in (JVM, GATEWAY, CONTEXT) if LONG else (moment,):
        with command(tmp_path, *line) as starting:
            group = starting.process.pid
            try:
                wait_until(lambda at=at, group=group: has_reached(at, group), "a JVM starts")
                stop(starting)
                code = starting.process.wait(120)
                # On a busy machine the start may have been over by then: a stop is no failure.
                assert code == 130 or is_stopped(starting), (code, starting.log.read_text())
                wait_until(lambda group=group: not processes_of(group), "its JVM ends")
            finally:
                if processes_of(group):
                    os.killpg(group, signal.SIGKILL)
            assert "Traceback" not in starting.log.read_text()
            assert list(starting.temporary.glob("penstock-spark-*")) == []


def is_stopped(ended: Command) -> bool:
    """Whether it says that it was stopped in time, having started."""
    events = list(ended.events())
    return ended.process.returncode == 0 and bool(events) and events[-1].get("stopped") is True


def archived(root: Path) -> list[Row]:
    """As any reader finds them."""
    hive = pyarrow.dataset.partitioning(
        pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive"
    )
    table = pyarrow.dataset.dataset(root, format="parquet", partitioning=hive).to_table(
        ["queue_id", "queue_offset", "body"]
    )
    return sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in table.to_pylist())


FILE = """\
nameserver = "{nameserver}"
checkpoint = "state"
[sources.numbers]
topic = "{source}"
max_rows = {max_rows}
[steps.named]
sql = "select body, keys, cast(queue_id as string) as tags from numbers"
[sinks.copies]
from = "named"
topic = "{target}"
"""


def copies(node, topic: str) -> list[tuple[bytes, list[str], str]]:
    found = []
    for status in node.admin.describe_topic(topic).queues:
        offset = status.min_offset
        while offset < status.max_offset:
            messages = node.admin.read_messages(status.queue, offset)
            found += [(message.body, message.keys, message.tag) for message in messages]
            offset = messages[-1].queue_offset + 1
    return sorted(found)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.invariant("I15")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_pipeline_that_is_interrupted_and_terminated_writes_each_row_once(
    spark, node, tmp_path: Path
) -> None:
    """The short variant terminates; the one of the archive interrupts. The last run is in the shared session."""
    source, target = node.topic("numbers", 3), node.topic("copies", 2)
    file = tmp_path / "p.toml"
    where = {"nameserver": node.address, "source": source, "target": target}
    file.write_text(FILE.format(**where, max_rows=by_length(40, 100)))
    rows = sent(node, source, 0)
    done = written = 0
    for stop in (interrupt, terminate) if LONG else (terminate,):
        with command(tmp_path, "stream", "run", str(file)) as running:
            begun = running.run_batches(2)
            stop(running)
            *batches, last = running.end(0)
        begun += sum(event["rows"] for event in batches)
        assert (last["event"], last["query"], last["rows_read"]) == ("stopped", "copies", begun)
        assert last["restarts"] == 0
        # A batch that was published when the query was stopped, and not committed, is in no report. It counts all the
        # same; the next run begins with it, and the broker answers that it is there.
        done += begun
        written += last["rows"]
        stored = len(copies(node, target))
        assert done <= written == stored < len(rows), "it stopped on the way"
        assert not (tmp_path / "state" / "running").exists()
        rows += sent(node, source, len(rows))
    file.write_text(FILE.format(**where, max_rows=MESSAGES))
    assert len(rows) - stored <= run_pipeline(file, spark=spark, once=True).rows <= len(rows) - done
    assert copies(node, target) == sorted(
        (body, ["k" + body.decode()], str(queue_id)) for queue_id, _, body in rows
    )
