"""Messages as DataFrames and back: the Spark side of Penstock, and its one public door.

    spark = penstock.spark.session()
    orders = spark.read.format("penstock").option("nameserver", "127.0.0.1:9876").option("topic", "orders").load()

Rules: a name is imported when it is first used (PEP 562), so this package can be imported where PySpark is not
installed; what needs it then says which extra to install. Everything here is a client of a running cluster or
reads store directories; nothing in this room is imported by a server. docs/spark/README.md is where to begin.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, install_hint

if TYPE_CHECKING:
    from penstock.client.access import Access
    from penstock.spark.packs import messages
    from penstock.spark.pipelines.archive import archive
    from penstock.spark.pipelines.archive_reading import archived_ranges, read_archive
    from penstock.spark.pipelines.audit import audit
    from penstock.spark.pipelines.latest_by_key import compact
    from penstock.spark.pipelines.replay import replay
    from penstock.spark.pipelines.sql import sql
    from penstock.spark.pipelines.stream_run import run_pipeline
    from penstock.spark.progress import listener
    from penstock.spark.session import session

__all__ = [
    "Access",
    "archive",
    "archived_ranges",
    "audit",
    "compact",
    "listener",
    "messages",
    "read_archive",
    "replay",
    "run_pipeline",
    "session",
    "sql",
]

_HOMES = {
    "Access": "penstock.client.access",
    "archive": "penstock.spark.pipelines.archive",
    "archived_ranges": "penstock.spark.pipelines.archive_reading",
    "audit": "penstock.spark.pipelines.audit",
    "compact": "penstock.spark.pipelines.latest_by_key",
    "listener": "penstock.spark.progress",
    "messages": "penstock.spark.packs",
    "read_archive": "penstock.spark.pipelines.archive_reading",
    "replay": "penstock.spark.pipelines.replay",
    "run_pipeline": "penstock.spark.pipelines.stream_run",
    "session": "penstock.spark.session",
    "sql": "penstock.spark.pipelines.sql",
}
# What the extra installs; the absence of anything else is an error of its own.
_EXTRA = frozenset(("numpy", "pandas", "py4j", "pyarrow", "pyspark"))


def __getattr__(name: str) -> Any:
    """PEP 562: import a public name when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise needs_extra(error) from error
    globals()[name] = value
    return value


def needs_extra(error: ModuleNotFoundError) -> Exception:
    """The error to raise for a module that is missing: what to install where it is part of the extra."""
    if (error.name or "").partition(".")[0] not in _EXTRA:
        return error
    return PenstockError(f"{error.name} is not installed", install_hint("spark"))


def require_extra() -> None:
    """Raise if PySpark is not installed, without importing it: that takes a while."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise needs_extra(ModuleNotFoundError(name=name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Door(ModuleType):
    """The import system binds a submodule in its package. `session` is both a module and the function in it, and
    whoever asks the door means the function, whichever of the two was imported first."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
