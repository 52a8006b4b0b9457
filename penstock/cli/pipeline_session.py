"""A Spark session for one command: started with a word on the terminal, stopped at its end, its noise in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from penstock.cli.signals import sigterm_interrupts
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    app: str, master: str | None, conf: Mapping[str, str], log: Path | None = None
) -> Iterator[SparkSession]:
    """`log` keeps what Spark says; without it a temporary file does, which is left behind only by a failure."""
    from penstock.spark import needs_extra

    path = log or _temporary_log()
    try:
        try:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException
        except ModuleNotFoundError as error:
            raise needs_extra(error) from error
        try:
            with sigterm_interrupts(), _started(app, master, conf, path) as session:
                yield session
        except (PySparkException, Py4JError) as error:
            raise told(error, path) from error
        except PenstockError as error:
            # A query that could not be kept up; options and names, which have classes of their own, say all there is.
            if type(error) is not PenstockError or not isinstance(error.__cause__, PySparkException):
                raise
            raise PenstockError(error.message, f"{error.hint}; {_where(path)}") from error
    except PenstockError:
        if log is None and not path.stat().st_size:
            path.unlink()
        raise
    except KeyboardInterrupt:  # nobody asks why
        if log is None:
            path.unlink(missing_ok=True)
        raise
    if log is None:
        path.unlink(missing_ok=True)


@contextmanager
def _started(app: str, master: str | None, conf: Mapping[str, str], log: Path) -> Iterator[SparkSession]:
    """A session that runs already, as in a notebook, is used and left running."""
    from pyspark import SparkContext

    from penstock.spark.session import session

    is_own = SparkContext._active_spark_context is None
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    # Spark makes a directory for tables, which no command has; else it would be left wherever one was called.
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as tables:
        settings: dict[str, object] = {"spark.log.level": "WARN", **conf}
        if is_own:
            settings.setdefault("spark.sql.warehouse.dir", tables)
        with console.status("starting Spark") if console.is_terminal and is_own else nullcontext():
            made = session(f"penstock {app}", master, log=log, **settings)
        try:
            yield made
        finally:
            if is_own:
                made.stop()


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
