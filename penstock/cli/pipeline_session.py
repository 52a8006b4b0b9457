"""A Spark session for one command: started, stopped at its end, and its noise kept in a file.

What is kept from the terminal: the JVM's standard error, and what the Python side of Spark logs (Py4J's tracebacks of
an interrupt, PySpark's JSON lines about a wrong query, the traces of its accumulator server). An error of Spark's
becomes one line that names the file.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.signals import sigterm_interrupts
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)
# PySpark's, which write JSON to standard error.
_JSON_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextmanager
def spark_session(
    app: str, master: str | None, conf: Mapping[str, str], log: Path | None = None
) -> Iterator[SparkSession]:
    """`log` keeps what Spark says; without it a temporary file does, which is left behind only by an error that
    names it."""
    from penstock.spark import needs_extra

    path = log or _temporary_log()
    is_named = False
    try:
        try:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException
        except ModuleNotFoundError as error:
            raise needs_extra(error) from error
        try:
            with sigterm_interrupts(), logging_to(path), _started(app, master, conf, path) as session:
                yield session
        except (PySparkException, Py4JError) as error:
            is_named = True
            raise told(error, path) from error
        except PenstockError as error:
            # A query that could not be kept up; options and names, which have classes of their own, say all there is.
            if type(error) is not PenstockError or not isinstance(error.__cause__, PySparkException):
                raise
            is_named = True
            raise PenstockError(error.message, f"{error.hint}; {_where(path)}") from error
    finally:
        if log is None and not is_named:
            path.unlink(missing_ok=True)


@contextmanager
def _started(app: str, master: str | None, conf: Mapping[str, str], log: Path) -> Iterator[SparkSession]:
    """A session that runs already, as in a notebook, is used and left running."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    from penstock.spark.session import session

    is_own = SparkContext._active_spark_context is None
    # Spark makes a directory for tables, which no command has; else it would be left wherever one was called.
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as tables:
        settings: dict[str, object] = {"spark.log.level": "WARN", **conf}
        if is_own:
            settings.setdefault("spark.sql.warehouse.dir", tables)
        with _interrupts_as_they_are():
            made = session(f"penstock {app}", master, log=log, **settings)
        if is_own:
            _keep_accumulators_quiet(made)
        try:
            yield made
        finally:
            if is_own:
                with suppress(Py4JError, OSError):  # after an error of its own it may be gone
                    made.stop()


@contextmanager
def _interrupts_as_they_are() -> Iterator[None]:
    """A new SparkContext takes SIGINT for itself. A command that handles it keeps its handler."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and callable(before) and before is not signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """What libraries log while the block runs goes to the file instead of standard error."""
    from pyspark.logger import PySparkLogger

    handler = logging.FileHandler(path, delay=True, encoding="utf-8")
    root = logging.getLogger()
    root.addHandler(handler)
    quiet = [PySparkLogger.getLogger(name) for name in _JSON_LOGGERS]
    before = [logger.disabled for logger in quiet]
    for logger in quiet:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(quiet, before, strict=True):
            logger.disabled = was
        root.removeHandler(handler)
        handler.close()


def _keep_accumulators_quiet(session: SparkSession) -> None:
    """Its server prints a trace when the JVM ends in the middle of an update, which an interrupt makes likely."""
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: _logger.warning(
            "an update of accumulators broke off: %s", sys.exception()
        )


def told(error: BaseException, log: Path | None) -> PenstockError:
    """Spark's error in a line, with where to read the rest."""
    from penstock.spark.reasons import reason_of

    return PenstockError(reason_of(error), _where(log) if log is not None else "")


def _where(log: Path) -> str:
    return f"what Spark said is in {log}"


def _temporary_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="penstock-spark-", suffix=".log")
    os.close(descriptor)
    return Path(name)
