"""One Spark for all tests of this folder, and a real broker for each module.

    spark      the session: local[2], a task is tried twice; made once, never stopped by a test
    node       a broker for the module: `node.address`, `node.topic(...)`, `node.send(topic, messages)`

A test may change the session's settings and make views and tables: it finds the session as the first one did, because
`session_as_it_was` puts all that back. A stream that a test leaves running fails it.

Never sleep: run a stream with `trigger(availableNow=True)` and `awaitTermination()`. Py4J and the JVM keep threads
and sockets of their own, so of leaks only ours are judged here: threads named penstock-*, and open files.
"""

import gc
import importlib.util
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.testing import broker
from tests.effort import LONG
from tests.spark.processes import FEW_ROWS
from tests.waiting import PATIENT_SENDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []

# Costs time only where something is left.
LEAK_GRACE_S = 60.0
# Directories of brokers in this process: they open files when messages come, and close them when they stop.
BROKERS: list[str] = []
SETTINGS = {
    # The quick compiler with room for all of its code, the plain collector with room for what dies young; one shuffle
    # partition, no maintenance thread.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn256m"
    ),
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
    "spark.log.level": "ERROR",
}
if not LONG:
    SETTINGS |= FEW_ROWS


@pytest.fixture(scope="session")
def java_classes_remembered() -> Iterator[None]:
    """PySpark asks the JVM for a class by its name each time it needs one, thousands of times in a run. The JVM looks
    through three hundred jars for it, which took a tenth of its time. Here each view of the JVM asks once."""
    from py4j.java_gateway import JavaClass, JVMView

    ask = JVMView.__getattr__

    def remember(view: JVMView, name: str) -> Any:
        found = ask(view, name)
        if isinstance(found, JavaClass):
            vars(view)[name] = found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JVMView, "__getattr__", remember)
        yield


@pytest.fixture(scope="session", autouse=True)
def spark(
    tmp_path_factory: pytest.TempPathFactory, java_classes_remembered: None
) -> "Iterator[SparkSession]":
    """Autouse, so that it is there before the first module looks for leaks."""
    from penstock.errors import PenstockError
    from penstock.spark.java import find_java
    from penstock.spark.session import session

    try:
        find_java()
    except PenstockError as error:
        pytest.skip(f"SPARK TESTS DID NOT RUN: {error}")
    folder = tmp_path_factory.mktemp("spark")
    warehouse = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    made = session("tests", "local[2,2]", log=folder / "spark.log", **SETTINGS, **warehouse)
    yield made
    made.stop()


def ours_open() -> tuple[set[threading.Thread], set[tuple[int, str]]]:
    """Threads and files of ours: not those that Py4J, pytest or the JVM's pipes keep."""
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}
    files = set()
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if stat.S_ISREG(os.fstat(int(name)).st_mode) and not target.startswith(tuple(BROKERS)):
                files.add((int(name), target))
        except OSError:
            continue
    return threads, files


def fail_on_leaks(where: str, before: tuple[set[threading.Thread], set[tuple[int, str]]]) -> None:
    """Whatever ends by itself within the grace is no leak."""
    deadline = time.monotonic() + LEAK_GRACE_S
    while any(leaked := [now - then for now, then in zip(ours_open(), before, strict=True)]):
        if time.monotonic() > deadline:
            pytest.fail(f"{where} left behind: {leaked}. Close what it opens.", pytrace=False)
        gc.collect()
        time.sleep(0.01)


@pytest.fixture(scope="module", autouse=True)
def no_leaks_from_module(spark: "SparkSession") -> Iterator[None]:
    before = ours_open()
    yield
    fail_on_leaks("the module", before)


@pytest.fixture(autouse=True)
def no_leaks_from_test() -> Iterator[None]:
    before = ours_open()
    yield
    fail_on_leaks("the test", before)


@pytest.fixture(scope="session")
def session_settings(spark: "SparkSession") -> dict[str, str]:
    """What the shared session is set to before the first test."""
    return dict(spark.conf.getAll)


@pytest.fixture(autouse=True)
def session_as_it_was(spark: "SparkSession", session_settings: dict[str, str]) -> Iterator[None]:
    """No test finds settings, views, tables or running streams of another one in the shared session."""
    session = spark._jsparkSession
    settings, catalog = session.conf(), session.sessionState().catalog()
    streams = session.sharedState().activeStreamingQueries()
    before = settings.getAll().toString()
    yield
    if settings.getAll().toString() != before:
        now = dict(spark.conf.getAll)
        for name in now.keys() - session_settings.keys():
            spark.conf.unset(name)
        for name, value in session_settings.items():
            if now.get(name) != value:
                spark.conf.set(name, value)
    if not catalog.listLocalTempViews("*").isEmpty() or not catalog.listTables("default").isEmpty():
        for table in spark.sql("show tables").collect():
            spark.sql(f"drop {'view' if table.isTemporary else 'table'} `{table.tableName}`")
    # One that has just ended is still in the table for a moment.
    if running := [query for query in streams.values() if query.isActive()]:
        for query in running:
            query.stop()
        pytest.fail(f"the test left {len(running)} streams running. Stop what it starts.", pytrace=False)


class Node:
    """A broker and its name server in this process, with a producer at hand."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        # Of the broker: what `.load(path)` opens is the store in it.
        self.directory = directory
        self.producer = penstock.Producer(address, group="spark-tests", batch_size=512, **PATIENT_SENDS)
        self.admin = penstock.Admin(address)
        # Now, so that their thread is not the leak of the first test that uses them.
        self.producer.start()
        self.admin.start()
        self._numbers = itertools.count(1)

    def topic(self, name: str = "t", queues: int = 4) -> str:
        """A new topic with a name of its own."""
        unique = f"{name}-{next(self._numbers)}"
        self.admin.create_topic(unique, queues)
        return unique

    def send(
        self,
        topic: str,
        messages: Iterable[penstock.Message | bytes | str | Mapping[str, Any]],
        *,
        queue_id: int | None = None,
    ) -> list[penstock.SendResult]:
        """Send bodies, messages, or mappings with `body` and what `Producer.send` takes (`keys`, `tag`,
        `properties`, `queue_key`, ...). With `queue_id` all go to that queue, in order; else round the queues."""
        queue = None if queue_id is None else self._queue(topic, queue_id)
        futures = []
        for item in messages:
            if isinstance(item, penstock.Message):
                futures.append(self.producer.send_async(item, queue=queue))
                continue
            parts = dict(item) if isinstance(item, Mapping) else {"body": item}
            body = parts.pop("body")
            data = body.encode() if isinstance(body, str) else body
            futures.append(self.producer.send_async(topic, data, queue=queue, **parts))
        return [future.result(120) for future in futures]

    def _queue(self, topic: str, queue_id: int) -> penstock.MessageQueue:
        return next(queue for queue in self.admin.queues(topic) if queue.queue_id == queue_id)

    def close(self) -> None:
        self.producer.close()
        self.admin.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("node")
    BROKERS.append(str(directory))
    with broker(directory) as address:
        made = Node(address, directory)
        try:
            yield made
        finally:
            made.close()
