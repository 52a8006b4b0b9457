"""The data source `penstock` as Spark sees it: batch reads, streams, and the door to the sink.

    spark.read.format("penstock").option("nameserver", ...).option("topic", ...).load()
    spark.read.format("penstock").load("path/to/store")
    spark.readStream.format("penstock")...

Rules: a batch read is resolved once, when `load()` makes the source, and travels with it (`batch`). Wrong options are
raised by `load()`. What the cluster says (no such topic, nobody there) is raised by the first action: a stream that
goes on from its checkpoint must be able to start while a broker is away. Columns that the user's schema does not
name are neither decoded nor moved.

Made and planned in Python processes of Spark's driver; docs/spark/source.md is for users.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.errors import ClientError, OptionError, PenstockError
from penstock.spark.batch import (
    BatchReader,
    LiveReader,
    Snapshot,
    StoreReader,
    snapshot,
)
from penstock.spark.options import ReadOptions
from penstock.spark.packs import check_pack_schema, pack_schema
from penstock.spark.schema import check_schema, message_schema
from penstock.spark.settling import settle

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

# Spark writes these among the options of CREATE TABLE ... USING, and hands over none at all when the table is read.
_OF_A_TABLE = frozenset({"provider", "owner"})
_NO_TABLES = (
    "a table of the catalog cannot be a penstock source: Spark hands none of its options to a source in Python",
    "write CREATE TEMPORARY VIEW name USING penstock OPTIONS (...)",
)
# The process that makes a source for a batch write.
_WRITING = "pyspark.sql.worker.write_into_data_source"


class PenstockDataSource(DataSource):
    """`format("penstock")`. Pickled with its snapshot after it was made."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._read_options: ReadOptions | None = None
        self._snapshot: Snapshot | None = None
        # What is wrong with the options, as (message, hint): raised when it turns out that somebody wants to read.
        # The same class is made for writing, with options that a read does not have.
        self._mistake: tuple[str, str] | None = None
        # Why there is no snapshot, for batch reads.
        self._problem: tuple[str, str] | None = None
        if not _runs_in(_WRITING):
            self._resolve()

    def _resolve(self) -> None:
        if self.options.keys() >= _OF_A_TABLE:
            self._mistake = _NO_TABLES
            return
        try:
            self._read_options = ReadOptions.parse(self.options)
        except OptionError as error:
            self._mistake = (error.message, error.hint)
            return
        try:
            self._snapshot = snapshot(self._read_options)
        except PenstockError as error:
            self._problem = (error.message, error.hint)
        settle()

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @property
    def _reading(self) -> ReadOptions:
        if self._mistake is not None:
            raise OptionError(*self._mistake)
        assert self._read_options is not None
        return self._read_options

    def schema(self) -> StructType:
        options = self._reading
        return pack_schema(options.columns) if options.packed else message_schema(options.columns)

    # -- reading ---------------------------------------------------------------------------------------------

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._reading
        if self._problem is not None:
            raise ClientError(*self._problem)
        assert self._snapshot is not None
        # Neither has `pushFilters`: Spark 4.3 reuses the plan of one filter for later scans of the same DataFrame,
        # so a DataFrame that is used twice would have wrong rows.
        kind: type[BatchReader] = StoreReader if options.is_offline else LiveReader
        selection = check_pack_schema(schema, options.columns) if options.packed else check_schema(schema)
        return kind(options, selection, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.stream import PenstockStreamReader

        options = self._reading
        if options.is_offline:
            raise OptionError(
                "a store directory cannot be read as a stream",
                "use spark.read for it, or name the nameserver of its broker and a topic",
            )
        if options.packed:
            raise OptionError("a stream cannot be read in packs", "leave out the option packed")
        if "endingposition" in {name.lower() for name in self.options}:
            raise OptionError(
                "a stream has no endingPosition", "use the trigger availableNow to stop at what is there now"
            )
        return PenstockStreamReader(options, check_schema(schema))

    # -- writing ---------------------------------------------------------------------------------------------

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _runs_in(worker: str) -> bool:
    """Whether this process is one of Spark's for a certain purpose."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return worker in sys.modules or getattr(main, "name", "") == worker
