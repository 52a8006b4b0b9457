"""Reading an archive: one moment of it, as a DataFrame or as ranges of offsets.

    frame = read_archive(spark, "archive", topics=["orders"])
    archived_ranges("archive")          {"orders/broker-a/0": [(0, 119_999)], ...}

Rule: what is read is what the manifest says, file by file: rows that were archived after the manifest was read are
not in the frame, and the ranges that go with it are exact. Runs on the driver; takes no lock and writes nothing, but
for a merge that a crash cut short: that is finished first, if the reader may write. Whoever
wants no Penstock in between reads the directory with whatever reads Parquet (docs/spark/archive.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import OptionError
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive_commit import files_of, ranges_of
from penstock.spark.pipelines.archive_names import ArchivedFile
from penstock.spark.pipelines.manifest import FOLDER
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.spark.pipelines.seam import Range
from penstock.spark.schema import COLUMNS, check_columns, message_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Hole(NamedTuple):
    """Offsets first to last (inclusive) of a queue, of which an archive lacks `rows`, between two that it has."""

    queue: str
    first: int
    last: int
    rows: int

    def __str__(self) -> str:
        among = f"{self.rows} of " if self.rows <= self.last - self.first else ""
        return f"{self.queue} {among}{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """An archive as it was when it was opened."""

    root: Path
    files: tuple[ArchivedFile, ...]

    @staticmethod
    def open(path: str | Path, runtime: Runtime | None = None) -> ArchiveSnapshot:
        """Raises OptionError if there is no archive."""
        runtime = runtime or Runtime.system()
        root = Path(path).absolute()
        if not runtime.disk.is_dir(root / FOLDER):
            raise OptionError(
                f"{path} is no archive: it has no folder {FOLDER}",
                "name the directory that was given to `penstock pipeline archive --to`",
            )
        state = ParquetTree(root, runtime).load_settled()
        return ArchiveSnapshot(root, tuple(sorted(files_of(state), key=lambda file: file.path)))

    @property
    def topics(self) -> list[str]:
        return sorted({file.topic for file in self.files})

    def ranges(self, topics: Collection[str] | None = None) -> dict[str, list[Range]]:
        """Archived offsets (first and last, inclusive) by queue."""
        return ranges_of(file for file in self.files if topics is None or file.topic in topics)

    def holes(
        self, topics: Collection[str] | None = None, start_ms: int | None = None, end_ms: int | None = None
    ) -> list[Hole]:
        """What is missing between a queue's first and last message; with times, what may have been stored in them."""
        found: list[Hole] = []
        queues: dict[str, list[ArchivedFile]] = {}
        for file in self.files:
            if topics is None or file.topic in topics:
                queues.setdefault(file.key, []).append(file)
        for key, files in sorted(queues.items()):
            for hole, low_ms, high_ms in _holes_of(key, sorted(files, key=lambda file: file.first)):
                if (end_ms is None or low_ms < end_ms) and (start_ms is None or high_ms >= start_ms):
                    found.append(hole)
        return found

    def only(self, topics: Collection[str] | None = None, until_ms: int | None = None) -> ArchiveSnapshot:
        """The files that can have messages of these topics, stored until then."""
        chosen = [
            file
            for file in self.files
            if (topics is None or file.topic in topics) and (until_ms is None or file.min_time <= until_ms)
        ]
        return ArchiveSnapshot(self.root, tuple(chosen))

    def frame(self, spark: SparkSession, columns: Iterable[str] = ()) -> DataFrame:
        """The messages, with all columns or with these."""
        from pyspark.sql import types

        names = check_columns(columns) or tuple(COLUMNS)
        if not self.files:
            return spark.createDataFrame([], message_schema(names))
        inside = [name for name in names if name != "topic"]
        schema = message_schema(inside) if inside else types.StructType()
        # Said, not guessed: a topic may be named 2024, and a guess would make it a number.
        schema = types.StructType(
            [
                *schema.fields,
                types.StructField("topic", types.StringType()),
                types.StructField("date", types.DateType()),
            ]
        )
        paths = [f"{self.root}/{file.path}" for file in self.files]
        frame = spark.read.schema(schema).option("basePath", str(self.root)).parquet(*paths)
        return frame.select(*names)


def _holes_of(key: str, files: Sequence[ArchivedFile]) -> Iterator[tuple[Hole, int, int]]:
    """The holes of a queue, each with the time before and the time after it."""
    for number, file in enumerate(files):
        before = files[number - 1] if number else file
        if before.last + 1 < file.first:
            lost = Hole(key, before.last + 1, file.first - 1, file.first - before.last - 1)
            yield lost, before.max_time, file.min_time
        if file.rows < file.last - file.first + 1:
            lost = Hole(key, file.first, file.last, file.last - file.first + 1 - file.rows)
            yield lost, file.min_time, file.max_time


def read_archive(
    spark: SparkSession, path: str | Path, topics: Collection[str] | None = None, columns: Iterable[str] = ()
) -> DataFrame:
    """The messages of an archive, of all topics or of these."""
    return ArchiveSnapshot.open(path).only(topics).frame(spark, columns)


def archived_ranges(path: str | Path, topics: Collection[str] | None = None) -> dict[str, list[Range]]:
    """Which offsets are archived, by queue (`topic/broker/queue`): ascending ranges, both ends inclusive."""
    return ArchiveSnapshot.open(path).ranges(topics)
