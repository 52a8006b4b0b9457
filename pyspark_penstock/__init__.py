"""Where Spark looks for the format `penstock`: `spark.read.format("penstock")` needs no registration.

Spark imports every top-level package whose name begins with `pyspark_` and takes its `DefaultSource`, on the
driver, for whatever Python source it is looking for. So this must import quickly and must not fail: where a part
of the extra is missing, the source is there all the same and says what to install when it is used.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from penstock.errors import install_hint

try:
    from penstock.spark.source import PenstockDataSource as DefaultSource
except ModuleNotFoundError as error:
    _missing = error.name

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for the source where something that it needs is not installed."""

        def __init__(self, options: dict[str, str]) -> None:
            raise ModuleNotFoundError(f"{_missing} is not installed: {install_hint('spark')}")

        @classmethod
        def name(cls) -> str:
            return "penstock"

        def schema(self) -> Any:
            raise NotImplementedError


__all__ = ["DefaultSource"]
