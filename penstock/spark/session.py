"""A Spark session with the settings that matter to Penstock's source, measured in docs/spark/README.md.

    spark = penstock.spark.session()
    spark = penstock.spark.session("audit", "spark://host:7077", **{"spark.executor.memory": "4g"})

Rules: what the caller gives wins over everything here, and what a cluster's own configuration says is left alone
where it is a matter of the cluster (memory, partitions, web pages). Local masters stay on the loopback interface.
The environment that Spark's processes need is set while they start and put back after. A session that is running
is used as it is: only settings that can change at run time are applied to it.

Runs on the driver. Never starts a second JVM in a process, never stops a session.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import site
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError, PenstockError
from penstock.spark import needs_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)
WORKER_SITE = Path(__file__).with_name("worker_site")
LOOPBACK = "127.0.0.1"
TASK_ATTEMPTS = 4
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")

# Every master. Batches cross to Python and back through a socket: a unix-domain one saves 25 to 50 ms per task.
EVERYWHERE = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
# What Spark puts into the environment of a Python source whenever a stream of it starts, with its own values.
OF_A_STREAM = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
# A master inside this machine: nothing listens for others, and 200 shuffle partitions would be 200 tiny tasks.
ON_THIS_MACHINE = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
}


def session(
    app: str = "penstock",
    master: str | None = None,
    *,
    log: str | os.PathLike[str] | None = None,
    **conf: object,
) -> SparkSession:
    """A session for `master`: by default the one that spark-submit was given, else `local[*]`.

    `conf` are Spark's own settings by their full names. With `log`, what the JVM and its workers would say on
    standard error goes to that file.
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error

    wanted = _texts(conf)
    if SparkContext._active_spark_context is not None:
        return let_streams_start(_reuse(SparkSession.builder.getOrCreate(), master, wanted))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    settings = {"spark.app.name": app}
    if master is not None:
        settings["spark.master"] = with_attempts(master)
    settings |= settings_for(master, wanted)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    if not submitted:
        from penstock.spark.java import find_java

        find_java()
    with _environment(_variables(is_local(master), submitted)):
        if SparkContext._gateway is None:
            with _interrupts_wait(), _writing_to(log) as output:
                gateway = launch_gateway(SparkConf().setAll(list(settings.items())), output)
                SparkContext._ensure_initialized(gateway=gateway)
        return let_streams_start(builder.getOrCreate())


def let_streams_start(spark: SparkSession) -> SparkSession:
    """Make it safe to start streams at the same moment.

    Spark 4.3 has one map of environment variables for a source, for all sessions of a JVM and with no lock. Streams
    add the same names to it as they start, and two that do so at once can leave it counting a name twice: then it
    cannot be serialized, and every query of the JVM fails with "Task not serializable" until the JVM ends. Names
    that are there already only get their values again.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        environment = sources.lookupDataSource("penstock").dataSourceCls().envVars()
        for name, value in OF_A_STREAM.items():
            environment.putIfAbsent(name, value)
    except (Py4JError, PySparkException, AttributeError) as error:
        # Another Spark, or Spark Connect: two streams that start at once may fail there, and nothing else.
        logger.debug("the environment of streams is left as it is: %s", error)
    return spark


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make this the active session of the thread. Spark looks for Python sources and sinks in the active one, and
    a thread that did not make the session has none: a stream that is started there would find no `penstock`."""
    from pyspark.sql import SparkSession

    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def messages_reader(spark: SparkSession, *, stream: bool = False) -> Any:
    """A reader of `penstock` that knows how many tasks this session runs at once. The source plans in a process of
    its own, which sees the driver's machine and nothing of a cluster."""
    if stream:
        let_streams_start(spark)  # the session may be the caller's own
    reader: Any = (spark.readStream if stream else spark.read).format("penstock")
    try:
        at_once = spark.sparkContext.defaultParallelism
    except (AttributeError, NotImplementedError):  # Spark Connect
        return reader
    return reader.option("cores", str(at_once))


# -- settings ----------------------------------------------------------------------------------------------------


def is_local(master: str | None) -> bool:
    """Whether the executors are on this machine."""
    return master is not None and bool(_LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master))


def with_attempts(master: str) -> str:
    """`local[n]` gives up at the first failed task, unlike every cluster; so local masters get retries, too."""
    local = _LOCAL.fullmatch(master)
    if local is None or local[2]:
        return master
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]"


def cores_of(master: str) -> int:
    """How many tasks run at once on a local master."""
    if cluster := _LOCAL_CLUSTER.fullmatch(master):
        return int(cluster[1]) * int(cluster[2])
    local = _LOCAL.fullmatch(master)
    if local is not None and local[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(local[1] or 1) if local is not None else 1


def settings_for(master: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a master: these defaults, and what the caller gave."""
    if master is not None and master.startswith("sc://"):
        raise OptionError(
            f"{master} is a Spark Connect address", "give the cluster's own master, as in spark://host:7077"
        )
    settings = dict(EVERYWHERE)
    if master is not None and is_local(master):
        settings |= ON_THIS_MACHINE
        settings["spark.sql.shuffle.partitions"] = str(max(2, min(cores_of(master), 16)))
        settings["spark.pyspark.python"] = sys.executable
    settings |= given
    if master is not None and (options := _archive_options(settings.get(JAVA_OPTIONS, ""))):
        settings[JAVA_OPTIONS] = options
    return settings


def _archive_options(given: str) -> str:
    """The driver's Java options with the archive of classes, where there is one and none is chosen already."""
    if "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return given
    from penstock.spark.java import existing_archive

    archive = existing_archive()
    if not archive or " " in str(archive):
        return given
    # One that does not fit (any more) is left alone without a word: the start is slower, and nothing else.
    return f"{given} -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off".strip()


def _texts(conf: Mapping[str, object]) -> dict[str, str]:
    wrong = sorted(name for name in conf if not name.startswith("spark."))
    if wrong:
        raise OptionError(
            f"{', '.join(wrong)}: no setting of Spark",
            'settings have their full names: session(**{"spark.sql.shuffle.partitions": "8"})',
        )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()
    }


def _reuse(running: SparkSession, master: str | None, wanted: Mapping[str, str]) -> SparkSession:
    """The session that there is; settings that can change while it runs are changed."""
    has = running.sparkContext.master
    if master is not None and with_attempts(master) != has and master != has:
        raise PenstockError(
            f"a Spark session with master {has} is running in this process, not {master}",
            "stop it first (`spark.stop()`), or leave the master out",
        )
    for name, value in wanted.items():
        if running.conf.isModifiable(name):
            running.conf.set(name, value)
    return running


# -- the processes that start -------------------------------------------------------------------------------------


def _variables(local: bool, submitted: bool = False) -> dict[str, str]:
    """What the JVM and through it the Python workers must find in their environment."""
    found = {"PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable}
    if local:
        found["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or LOOPBACK
        found["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    elif not submitted:
        # Spark runs sources that it finds with the driver's interpreter, but those that are registered, as the
        # archive's sink, and functions with this one, else with whatever `python3` is there. Both are to be the same.
        found["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or found["PYSPARK_DRIVER_PYTHON"]
    paths = [str(WORKER_SITE), *_source_tree(), os.environ.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return found


def _source_tree() -> list[str]:
    """Where this package was imported from, unless it is installed: workers have to find it, too."""
    home = str(Path(__file__).resolve().parents[2])
    installed = {str(Path(path).resolve()) for path in (*site.getsitepackages(), site.getusersitepackages())}
    return [] if home in installed else [home]


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables while a process starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back while the JVM starts; a second one goes through. An interrupted PySpark deletes the folder in
    which the JVM is about to say where it listens, and the JVM, which cannot, then waits there for good."""
    ours: dict[int, Callable[[int, FrameType | None], Any]] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # What the system does with a signal by itself is left to it: a process that is gone closes its pipe.
        ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            ours[number](number, frame)
        asked.append(number)

    for number in ours:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    if asked:
        signal.raise_signal(asked[0])


@contextmanager
def _writing_to(path: str | os.PathLike[str] | None) -> Iterator[dict[str, Any]]:
    """How to start a process that writes to this file what it would write to standard error: it alone, because this
    process has something to show meanwhile."""
    if path is None:
        yield {}
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        yield {"stderr": file}
