"""Arrow batches in, staged Parquet files out: one file for each run of offsets of a queue and day.

A task writes into a folder of its own below `_staging`, under names that no reader takes for data. A file ends where
its queue, its day or the row of offsets breaks off, or when it is large enough; then it is closed and synced. Where
it belongs is decided by `archive_commit`, on the driver, after every task has finished.

Runs on executors. Rows are never looked at one by one: runs are found by comparing columns with themselves, shifted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import OptionError
from penstock.runtime import Disk, Runtime
from penstock.spark.pipelines.archive_names import ArchivedFile, StagedFile, require_names
from penstock.spark.pipelines.parquet_tree import STAGING
from penstock.spark.schema import COLUMNS

COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
# Few values in many rows; a dictionary of bodies or ids would only be built to be given up.
_FEW_VALUES = ["broker", "queue_id", "tags", "born_host", "reconsume_times", "properties.key_value.key"]
# Numbers that grow by little from row to row.
_GROWING = ["queue_offset", "physical_offset", "store_time", "born_time", "size"]
_NO_STATISTICS = frozenset(("body", "properties"))
ROW_GROUP_ROWS = 1 << 20
# Queues and days whose files one task keeps open; a source reads queue after queue, so one would nearly do.
OPEN_MAX = 8
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How the files are written. Sizes are of the files on disk and of row groups in memory."""

    target_bytes: int = 128 << 20
    row_group_bytes: int = 32 << 20
    compression: str = "zstd"

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise OptionError(f"compression is {self.compression!r}", f"use {', '.join(COMPRESSIONS)}")
        if min(self.target_bytes, self.row_group_bytes) < 1:
            raise OptionError("a file or row group cannot be empty", "use a size of at least 1 byte")


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one queue and day whose offsets follow one another."""

    topic: str
    broker: str
    queue_id: int
    day: int
    first: int
    rows: pa.RecordBatch

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.topic, self.broker, self.queue_id, self.day


def cut(batch: pa.RecordBatch) -> Iterator[Run]:
    """The runs of a batch, in its order."""
    count = batch.num_rows
    if not count:
        return
    topic, broker = batch.column("topic"), batch.column("broker")
    queues = batch.column("queue_id").to_numpy(zero_copy_only=False)
    offsets = batch.column("queue_offset").to_numpy(zero_copy_only=False)
    days = _microseconds(batch.column("store_time")) // _DAY_US
    breaks = (np.diff(queues) != 0) | (np.diff(offsets) != 1) | (np.diff(days) != 0)
    for names in (topic, broker):
        breaks |= pc.not_equal(names.slice(1), names.slice(0, count - 1)).to_numpy(zero_copy_only=False)
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), count]
    start = 0
    for end in ends:
        yield Run(
            topic[start].as_py(),
            broker[start].as_py(),
            int(queues[start]),
            int(days[start]),
            int(offsets[start]),
            batch.slice(start, end - start),
        )
        start = end


def portions(run: Run, size: int) -> Iterator[Run]:
    """A run in parts of about so many bytes: large messages make large batches."""
    rows = run.rows.num_rows
    count = max(rows * size // max(run.rows.nbytes, 1), 1)
    for start in range(0, rows, count):
        yield replace(run, first=run.first + start, rows=run.rows.slice(start, count))


def _microseconds(column: pa.Array) -> np.ndarray:
    """Store times as numbers; one that no calendar has counts as the first day of 1970."""
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)


def day_text(day: int) -> str:
    return str(np.datetime64(day, "D"))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """What is in a file: every column but the topic, which is in its path."""
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise OptionError(
            f"an archive needs all columns; these are missing: {', '.join(missing)}",
            "read the topic without a schema of your own",
        )
    return loose_schema(pa.schema([schema.field(name) for name in COLUMNS if name != "topic"]))


def loose_schema(schema: pa.Schema) -> pa.Schema:
    """The same with nulls allowed everywhere. All files of an archive have one schema, whatever the frame that was
    archived promised of its columns; readers and merges need not compare."""
    fields = []
    for column in schema:
        kind = column.type
        if pa.types.is_map(kind):
            kind = pa.map_(kind.key_type, kind.item_type)
        fields.append(pa.field(column.name, kind))
    return pa.schema(fields)


def open_writer(sink: pa.NativeFile, schema: pa.Schema, settings: FileSettings) -> pq.ParquetWriter:
    """A writer with the settings of all archive files; merged ones are like those that were staged."""
    return pq.ParquetWriter(
        sink,
        schema,
        compression=settings.compression,
        compression_level=1 if settings.compression == "zstd" else None,
        use_dictionary=_FEW_VALUES,
        column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in schema.names if name not in _NO_STATISTICS],
    )


def write_group(writer: pq.ParquetWriter, batches: Sequence[pa.RecordBatch]) -> None:
    """These batches as one row group."""
    if batches:
        schema = writer.schema
        table = pa.Table.from_batches(
            [batch if batch.schema.equals(schema) else batch.cast(schema) for batch in batches], schema
        )
        writer.write_table(table, row_group_size=table.num_rows)


@dataclass(slots=True)
class _OpenFile:
    """A file that rows are being added to."""

    run: Run
    path: Path
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    next_offset: int
    rows: int = 0
    min_time: int = 1 << 62
    max_time: int = -(1 << 62)
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0


class StagedFiles:
    """The files of one task. `write` its batches, then `finish`; after an error `abandon`."""

    def __init__(
        self,
        root: Path,
        folder: str,
        settings: FileSettings,
        schema: pa.Schema,
        runtime: Runtime | None = None,
    ) -> None:
        self._root = root
        self._folder = f"{STAGING}/{folder}"
        self._settings = settings
        # A file is looked at after each row group: one that is to be small has small ones.
        self._group_bytes = min(settings.row_group_bytes, settings.target_bytes)
        self._schema = file_schema(schema)
        self._disk = (runtime or Runtime.system()).disk
        self._open: dict[tuple[str, str, int, int], _OpenFile] = {}
        self._staged: list[StagedFile] = []
        self._made = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for run in cut(batch):
            for part in portions(run, self._group_bytes):
                self._add(part)

    def _add(self, run: Run) -> None:
        file = self._open.get(run.place)
        if file is not None and file.next_offset != run.first:
            self._close(run.place)
            file = None
        if file is None:
            file = self._begin(run)
        self._take(file, run)
        if file.waiting_bytes >= self._group_bytes or file.waiting_rows >= ROW_GROUP_ROWS:
            self._write_group(file)
            if file.sink.tell() >= self._settings.target_bytes:
                self._close(run.place)

    def _begin(self, run: Run) -> _OpenFile:
        require_names(run.topic, run.broker)
        if len(self._open) >= OPEN_MAX:
            self._close(next(iter(self._open)))
        if not self._made:
            self._disk.make_dirs(self._root / self._folder)
        path = self._root / self._folder / f"{self._made:06d}.tmp"
        self._made += 1
        sink = pa.OSFile(str(path), "wb")
        try:
            writer = open_writer(sink, self._schema, self._settings)
        except BaseException:
            sink.close()
            raise
        file = self._open[run.place] = _OpenFile(run, path, sink, writer, run.first)
        return file

    def _take(self, file: _OpenFile, run: Run) -> None:
        rows = run.rows.select(self._schema.names)
        times = _microseconds(rows.column("store_time"))
        file.min_time = min(file.min_time, int(times.min()) // 1000)
        file.max_time = max(file.max_time, int(times.max()) // 1000)
        file.next_offset = run.first + rows.num_rows
        file.rows += rows.num_rows
        file.waiting.append(rows)
        file.waiting_bytes += rows.nbytes
        file.waiting_rows += rows.num_rows

    def _write_group(self, file: _OpenFile) -> None:
        write_group(file.writer, file.waiting)
        file.waiting, file.waiting_bytes, file.waiting_rows = [], 0, 0

    def _close(self, place: tuple[str, str, int, int]) -> None:
        file = self._open[place]
        self._write_group(file)
        file.writer.close()
        file.sink.close()
        del self._open[place]
        size = sync_file(file.path, self._disk)
        topic, broker, queue_id, day = place
        archived = ArchivedFile(
            topic,
            day_text(day),
            broker,
            queue_id,
            file.run.first,
            file.next_offset - 1,
            file.rows,
            size,
            file.min_time,
            file.max_time,
        )
        self._staged.append(StagedFile(f"{self._folder}/{file.path.name}", archived))

    def finish(self) -> list[StagedFile]:
        """Close and sync what is open; everything that was staged."""
        for place in list(self._open):
            self._close(place)
        return self._staged

    def abandon(self) -> None:
        """Leave nothing behind: nobody will ask for these files."""
        for file in self._open.values():
            try:
                file.writer.close()
            except (OSError, pa.ArrowException):
                pass  # the file goes anyway
            file.sink.close()
        self._open = {}
        self._disk.remove_tree(self._root / self._folder)


def sync_file(path: Path, disk: Disk) -> int:
    """Have the disk hold a finished file; its size."""
    file = disk.open(path)
    try:
        file.sync()
        return file.size()
    finally:
        file.close()
