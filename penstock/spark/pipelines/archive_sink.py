"""Spark's side of the archive: a sink that stages on executors and commits on the driver.

    frame.writeStream.format("penstock_archive").option("path", "archive").start()

Spark calls `write` once for each task, anywhere, and `commit` once or more for each batch, in a process of its own on
the driver's machine. Nothing is shared between the two but the directory and the commit messages. Tasks that are
tried again or killed leave folders in `_staging`, which the next start removes.

Rules: options are `path`, `targetBytes`, `rowGroupBytes`, `compression`; what is staged is in `archive_files`, what
is archived in `archive_commit`. A batch write is committed as one batch without a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import OptionError
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive_commit import commit_batch
from penstock.spark.pipelines.archive_files import FileSettings, StagedFiles
from penstock.spark.pipelines.archive_names import StagedFile
from penstock.spark.pipelines.manifest import NO_BATCH
from penstock.spark.pipelines.parquet_tree import STAGING
from penstock.spark.schema import COLUMNS

FORMAT = "penstock_archive"


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged, and for which query."""

    query: str
    folder: str
    files: list[StagedFile]


class ArchiveSink(DataSource):
    """Register it with `spark.dataSource.register(ArchiveSink)`; `archive` does."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> ArchiveBatchWriter:
        return ArchiveBatchWriter(*self._parse(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ArchiveStreamWriter:  # noqa: N802
        return ArchiveStreamWriter(*self._parse(schema, overwrite))

    def _parse(self, schema: StructType, overwrite: bool) -> tuple[str, FileSettings]:
        if overwrite:
            raise OptionError("an archive is only ever added to", 'use .mode("append")')
        missing = [name for name in COLUMNS if name not in schema.names]
        if missing:
            raise OptionError(
                f"an archive needs all columns; these are missing: {', '.join(missing)}",
                "read the topic without a schema of your own",
            )
        options = {name.lower(): value for name, value in self.options.items()}
        if not options.get("path"):
            raise OptionError("no path is given", 'write .option("path", "directory")')
        return options["path"], settings_of(options)


def settings_of(options: Mapping[str, str]) -> FileSettings:
    """From option texts with lower-case names."""
    made = FileSettings()
    try:
        return FileSettings(
            int(options.get("targetbytes", made.target_bytes)),
            int(options.get("rowgroupbytes", made.row_group_bytes)),
            options.get("compression", made.compression),
        )
    except ValueError as error:
        raise OptionError(f"a size is no number: {error}", "write sizes in bytes, as in 134217728") from error


class _Staging:
    """`write` of both writers."""

    def __init__(self, path: str, settings: FileSettings) -> None:
        self.path = path
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = (context and context.getLocalProperty("sql.streaming.queryId")) or ""
        batch = (context and context.getLocalProperty("streaming.sql.batchId")) or "0"
        part = f"{context.partitionId()}-{context.attemptNumber()}" if context else "0-0"
        # No two attempts ever share a folder, not even those of a driver that is dead and one that is new.
        folder = f"{query or 'batch'}-{batch}-{part}-{Runtime.system().entropy.bytes(6).hex()}"
        return Staged(query, folder, stage(Path(self.path), folder, self.settings, iterator))


def stage(
    root: Path, folder: str, settings: FileSettings, batches: Iterator[pa.RecordBatch]
) -> list[StagedFile]:
    """Stage batches, all or nothing."""
    files: StagedFiles | None = None
    try:
        for batch in batches:
            if files is None:
                files = StagedFiles(root, folder, settings, batch.schema)
            files.write(batch)
        return files.finish() if files is not None else []
    except BaseException:
        if files is not None:
            files.abandon()
        raise


def _drop(path: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """A batch that Spark gave up: its folders are of no use to anybody."""
    disk = Runtime.system().disk
    for message in messages:
        if isinstance(message, Staged) and message.files:
            disk.remove_tree(Path(path) / STAGING / message.folder)


def _files(messages: Sequence[WriterCommitMessage | None]) -> tuple[str, list[StagedFile]]:
    staged = [message for message in messages if isinstance(message, Staged)]
    query = next((message.query for message in staged if message.query), "")
    return query, [file for message in staged for file in message.files]


class ArchiveStreamWriter(_Staging, DataSourceStreamArrowWriter):
    """A streaming query into an archive."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query, files = _files(messages)
        commit_batch(self.path, files, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _drop(self.path, messages)


class ArchiveBatchWriter(_Staging, DataSourceArrowWriter):
    """A batch job into an archive: what is there already is refused."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_batch(self.path, _files(messages)[1], "", NO_BATCH)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _drop(self.path, messages)
