"""A standalone cluster of Spark, as docs/spark/README.md starts one: a master and workers, real processes.

Everything listens on loopback, on ports that the processes choose. Workers are told nothing of Penstock, nor which
Python has it: that must come from the driver. The session of the other tests is in this process, so what has another
master runs in one of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyspark
import pytest

from tests.effort import LONG, by_length
from tests.spark.processes import QUICK_SETTINGS, quick_java

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
QUEUES, ROWS, EXECUTORS = 4, 400, 2
WORKERS = by_length(1, 2)
START_S, RUN_S = 300.0, 400.0
QUICK = quick_java()
CONF = QUICK_SETTINGS | {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # No task before every executor is there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
# Would tell workers and drivers where Python and Penstock are; on other machines nothing does.
NOT_INHERITED = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR", "VIRTUAL_ENV")
PROGRAM = """
    import json, sys
    import penstock.spark

    master, address, topic, target, folder, conf, *command = sys.argv[1:]
    spark = penstock.spark.session("standalone", master, log=f"{folder}/spark.log", **json.loads(conf))
    where = {"nameserver": address, "minPartitions": "4"}

    def messages(name):
        frame = spark.read.format("penstock").options(**where, topic=name).load()
        rows = frame.orderBy("queue_id", "queue_offset").collect()
        return frame.rdd.getNumPartitions(), [
            [r.queue_id, r.queue_offset, r.body.hex(), r.keys, r.tags, r.properties.get("n")] for r in rows
        ]

    partitions, read = messages(topic)
    rows = [(f"row {number}", f"key-{number}", "EO"[number % 2]) for number in range(300)]
    made = spark.createDataFrame(rows, "body string, keys string, tags string").repartition(3)
    made.write.format("penstock").mode("append").options(nameserver=address, topic=target).save()
    _, written = messages(target)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    with open(f"{folder}/result.json", "w") as file:
        json.dump({"partitions": partitions, "read": read, "written": written, "executors": executors}, file)
    if command:
        from penstock.cli.main import root
        root.main(command, prog_name="penstock", standalone_mode=False)
    spark.stop()
"""


class Cluster:
    """A master and its workers, each a process group of its own with the executors it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        plain = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self._environment = {
            **plain,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
        }

    def start(self) -> None:
        log = self._launch("master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._said(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        port = self._said(log, r"Bound MasterWebUI to \S+, and started at http://\S+:(\d+)")
        self._page = f"http://127.0.0.1:{port}/json/"
        for number in range(WORKERS):
            self._launch(
                f"worker-{number}",
                *(
                    "--host",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--webui-port",
                    "0",
                    "--cores",
                    str(EXECUTORS // WORKERS),
                    "--memory",
                    f"{600 * EXECUTORS // WORKERS}m",
                ),
                *("--work-dir", str(self.folder / f"work-{number}"), self.master),
            )
        deadline = time.monotonic() + START_S
        while len([worker for worker in self.state()["workers"] if worker["state"] == "ALIVE"]) < WORKERS:
            self._judge(deadline)
            time.sleep(0.1)

    def state(self) -> dict:
        """What the master's page says, for programs."""
        with urllib.request.urlopen(self._page, timeout=30) as answer:
            return json.load(answer)

    def executor_folders(self) -> list[Path]:
        """In which executors ran, of all applications: each has one below its worker's."""
        return [path.parent for path in self.folder.glob("work-*/app-*/*/stderr")]

    def stop(self) -> None:
        """Workers first, with their executors; whatever does not end is killed with its group."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def _launch(self, name: str, *arguments: str) -> Path:
        kind = name.partition("-")[0]
        log = self.folder / f"{name}.log"
        main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + START_S
        while (found := re.search(pattern, log.read_text())) is None:
            self._judge(deadline)
            time.sleep(0.05)
        return found[1]

    def _judge(self, deadline: float) -> None:
        logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
        assert all(process.poll() is None for process in self._processes), logs
        assert time.monotonic() < deadline, logs


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("standalone"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def sent(node) -> tuple[str, list[list]]:
    """A topic, and its messages as a read has to have them: queue, offset, body, keys, tag, a property."""
    topic = node.topic("orders", QUEUES)
    messages = [
        {"body": bytes([number % 256]) * (number % 50), "keys": f"k{number}", "tag": "AB"[number % 2]}
        for number in range(ROWS)
    ]
    for number, message in enumerate(messages):
        message["properties"] = {"n": str(number)}
    results = node.send(topic, messages)
    rows = [
        [result.queue.queue_id, result.queue_offset, one["body"].hex(), one["keys"], one["tag"], str(number)]
        for number, (result, one) in enumerate(zip(results, messages, strict=True))
    ]
    return topic, sorted(rows)


def run(line: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A driver: on loopback, and with nothing in its environment that says where Python or Penstock are."""
    plain = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    process = subprocess.Popen(
        [sys.executable, *line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**plain, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=RUN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, out[-3000:] + err[-6000:]
    return subprocess.CompletedProcess(line, process.returncode, out, err)


pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.java,
    pytest.mark.long,
    pytest.mark.timeout(900),
]


@dataclass
class Driven:
    """What a driver did: the program below, and in the short variant the archive in the same session."""

    folder: Path
    target: str
    stdout: str
    executors: int

    @property
    def archive(self) -> Path:
        return self.folder / "archive"


def archive_line(standalone: Cluster, node, topic: str, to: Path) -> list[str]:
    """The line of docs/spark/README.md, with addresses of this cluster."""
    line = ["pipeline", "archive", "--topic", topic, "--to", str(to), "--nameserver", node.address]
    line += ["--master", standalone.master, "--once", "--json", "--max-rows", "150"]
    for name, value in CONF.items():
        line += ["--conf", f"{name}={value}"]
    return line


@pytest.fixture(scope="module")
def driven(standalone, node, sent, tmp_path_factory) -> Driven:
    topic, _ = sent
    folder, target = tmp_path_factory.mktemp("driver"), node.topic("written", 3)
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    before = len(standalone.executor_folders())
    line = [str(program), standalone.master, node.address, topic, target, str(folder), json.dumps(CONF)]
    if not LONG:
        line += archive_line(standalone, node, topic, folder / "archive")
    done = run(line, folder)
    return Driven(folder, target, done.stdout, len(standalone.executor_folders()) - before)


def test_messages_are_read_and_rows_written_by_executors_of_other_processes(node, sent, driven) -> None:
    _, expected = sent
    result = json.loads((driven.folder / "result.json").read_text())
    assert result["executors"] == EXECUTORS
    assert driven.executors >= EXECUTORS
    assert result["partitions"] >= QUEUES
    assert result["read"] == expected
    rows = [[f"row {n}".encode().hex(), f"key-{n}", "EO"[n % 2], None] for n in range(300)]
    assert sorted(row[2:] for row in result["written"]) == sorted(rows)
    # And the broker says the same as Spark.
    stored = []
    for queue in node.admin.queues(driven.target):
        offset = 0
        while page := node.admin.read_messages(queue, offset, limit=1_000):
            stored += [message.body.decode() for message in page]
            offset = page[-1].queue_offset + 1
    assert sorted(stored) == sorted(f"row {n}" for n in range(300))


@pytest.mark.invariant("I15")
def test_the_archive_has_every_message_once(standalone, node, sent, driven) -> None:
    """The long variant archives with a driver of its own."""
    topic, expected = sent
    said, executors = driven.stdout, driven.executors
    if LONG:
        before = len(standalone.executor_folders())
        line = archive_line(standalone, node, topic, driven.archive)
        said = run(["-m", "penstock.cli.main", *line], driven.folder).stdout
        executors = len(standalone.executor_folders()) - before
    events = [json.loads(text) for text in said.splitlines()]
    batches = [event for event in events if event.get("event") == "batch"]
    assert sum(event["rows"] for event in batches) == ROWS
    assert len(batches) >= 3
    assert executors >= EXECUTORS
    hive = ds.partitioning(pa.schema([("topic", pa.string()), ("date", pa.string())]), flavor="hive")
    table = ds.dataset(driven.archive, format="parquet", partitioning=hive).to_table()
    assert set(table.column("topic").to_pylist()) == {topic}
    found = [
        [
            row["queue_id"],
            row["queue_offset"],
            row["body"].hex(),
            row["keys"],
            row["tags"],
            dict(row["properties"])["n"],
        ]
        for row in table.to_pylist()
    ]
    assert sorted(found) == expected
