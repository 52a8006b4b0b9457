"""Many small files of an archive become few large ones, without a moment at which a reader sees both.

Files are merged that follow one another: one queue, one day, no offset missing between them. Executors write the
merged files, in the order of offsets; then, under the tree's lock, a copy of each day's folder is made of hard links
to the files that stay and of the merged ones, and the two folders are swapped in one step (`parquet_tree`). The swap
is an entry of the manifest like any other, so a crash leaves either the old files or the new.

Who reads meanwhile: a listing has the old files or the new ones, never some of each. Whoever listed the old ones and
opens them after the swap gets an error that the file is not there, never wrong rows; reading again helps.

The driver plans and commits; the bytes go through Spark's tasks. Only one merge runs on an archive at a time; the
archiver may run beside it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import StoreFormatError
from penstock.runtime import Disk, Runtime
from penstock.runtime.disk import SwappingDisk
from penstock.spark.pipelines.archive_commit import files_of
from penstock.spark.pipelines.archive_names import ArchivedFile, folder_of
from penstock.spark.pipelines.manifest import Entry, Move
from penstock.spark.pipelines.parquet_tree import BESIDE, ParquetTree, TreeChange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.archive_files import FileSettings

MERGING = f"{BESIDE}/merging"
MERGE_LOCK = "merge.lock"
# A file this near to the target is large enough, in percent.
LARGE_PERCENT = 75
MERGE_BATCH_ROWS = 65_536
COPY_BYTES = 1 << 20
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one. `result` is right but for its size, which is known when it is written."""

    parts: tuple[ArchivedFile, ...]

    @property
    def result(self) -> ArchivedFile:
        first, last = self.parts[0], self.parts[-1]
        return replace(
            first,
            last=last.last,
            rows=sum(part.rows for part in self.parts),
            size=0,
            min_time=min(part.min_time for part in self.parts),
            max_time=max(part.max_time for part in self.parts),
        )

    @property
    def folder(self) -> str:
        return folder_of(self.parts[0].topic, self.parts[0].day)


@dataclass(frozen=True, slots=True)
class Written:
    """What the attempt that counts has written: a file in the merge's folder."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge of small files did."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    folders: int = 0


def plan_merges(files: Iterable[ArchivedFile], target_bytes: int, least: int = 2) -> list[Merge]:
    """Runs of at least `least` neighbours that together come to about the target."""
    merges: list[Merge] = []
    run: list[ArchivedFile] = []
    large = target_bytes * LARGE_PERCENT // 100

    def close() -> None:
        if len(run) >= max(least, 2):
            merges.append(Merge(tuple(run)))
        run.clear()

    for file in sorted(
        files, key=lambda file: (file.topic, file.day, file.broker, file.queue_id, file.first)
    ):
        follows = bool(run) and _place(run[-1]) == _place(file) and run[-1].last + 1 == file.first
        if not follows or file.size >= large or sum(part.size for part in run) + file.size > target_bytes:
            close()
        if file.size < large:
            run.append(file)
    close()
    return merges


def _place(file: ArchivedFile) -> tuple[str, str, str, int]:
    return file.topic, file.day, file.broker, file.queue_id


def merge_files(
    spark: SparkSession,
    path: str | Path,
    settings: FileSettings | None = None,
    *,
    least: int = 2,
    runtime: Runtime | None = None,
) -> Merged:
    """Merge the small files of an archive; what there was to do, and what was done."""
    from penstock.spark.pipelines.archive_files import FileSettings

    settings = settings or FileSettings()
    tree = ParquetTree(Path(path).absolute(), runtime)
    lock = tree.own(MERGE_LOCK, "merging files in")
    try:
        with tree.changing() as change:
            # What an earlier merge left unfinished; with the lock held nobody else is at it.
            change.sweep(MERGING)
            change.sweep_parked()
            merges = plan_merges(files_of(change.state), settings.target_bytes, least)
        if not merges:
            return Merged()
        token = tree.runtime.entropy.bytes(6).hex()
        tree.make_beside()
        tree.runtime.disk.make_dirs(tree.resolve(f"{MERGING}/{token}"))
        written = _write_all(spark, tree, token, merges, settings)
        return _publish(tree, token, merges, written)
    finally:
        lock.release()


# -- on executors ------------------------------------------------------------------------------------------------


def _write_all(
    spark: SparkSession, tree: ParquetTree, token: str, merges: Sequence[Merge], settings: FileSettings
) -> list[Written]:
    """One task for each result; the files in the order of the merges."""
    root, folder = str(tree.root), str(tree.resolve(f"{MERGING}/{token}"))

    def write(item: tuple[int, Merge]) -> tuple[int, Written]:
        name = staged_name(item[0])
        return item[0], Written(name, write_merged(Path(root), Path(folder) / name, item[1], settings))

    jobs = list(enumerate(merges))
    found = dict(spark.sparkContext.parallelize(jobs, len(jobs)).map(write).collect())
    return [found[number] for number in range(len(merges))]


def staged_name(number: int) -> str:
    """Another one for each attempt: Spark may run a task twice at once, or again while the first still writes, and
    the file of the attempt that counts must not be opened by another."""
    return f"{number:06d}-{Runtime.system().entropy.bytes(6).hex()}.tmp"


def write_merged(root: Path, target: Path, merge: Merge, settings: FileSettings) -> int:
    """Copy the rows of the parts, in their order, to one synced file; its size."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from penstock.spark.pipelines.archive_files import loose_schema, open_writer, sync_file, write_group

    schema = loose_schema(pq.read_schema(root / merge.parts[0].path))
    rows = 0
    with pa.OSFile(str(target), "wb") as sink, open_writer(sink, schema, settings) as writer:
        waiting: list[pa.RecordBatch] = []
        size = 0
        for part in merge.parts:
            with pq.ParquetFile(root / part.path) as source:
                for batch in source.iter_batches(MERGE_BATCH_ROWS):
                    waiting.append(batch)
                    size += batch.nbytes
                    rows += batch.num_rows
                    if size >= settings.row_group_bytes:
                        write_group(writer, waiting)
                        waiting, size = [], 0
        write_group(writer, waiting)
    if rows != merge.result.rows:
        raise StoreFormatError(
            f"{merge.parts[0].path} and those after it hold {rows} rows, and the manifest says {merge.result.rows}",
            "leave the archive as it is and compare its files with the manifest",
        )
    return sync_file(target, Runtime.system().disk)


# -- on the driver -----------------------------------------------------------------------------------------------


def _publish(tree: ParquetTree, token: str, merges: Sequence[Merge], written: Sequence[Written]) -> Merged:
    """Swap the folders one by one, each in a commit of its own: the archiver waits for one at most."""
    by_folder: dict[str, list[int]] = {}
    for number, merge in enumerate(merges):
        by_folder.setdefault(merge.folder, []).append(number)
    for folder, numbers in sorted(by_folder.items()):
        with tree.changing() as change:
            results = {
                written[number].name: replace(merges[number].result, size=written[number].size)
                for number in numbers
            }
            dropped = [part.path for number in numbers for part in merges[number].parts]
            _swap(change, token, folder, results, dropped)
    with tree.changing() as change:
        change.sweep(MERGING)
    parts = [part for merge in merges for part in merge.parts]
    return Merged(
        len(parts),
        len(merges),
        sum(part.rows for part in parts),
        sum(part.size for part in parts),
        sum(file.size for file in written),
        len(by_folder),
    )


def _swap(
    change: TreeChange, token: str, folder: str, results: dict[str, ArchivedFile], dropped: Sequence[str]
) -> None:
    """Prepare the folder's successor, of what stays and the results by their staged names, and commit the swap."""
    tree, disk = change.tree, change.tree.runtime.disk
    staged, work = f"{MERGING}/{token}/{folder}", tree.resolve(f"{MERGING}/{token}")
    place, successor = tree.resolve(folder), tree.resolve(staged)
    for name, file in results.items():
        _require_whole(work / name, file)
    disk.make_dirs(successor)
    gone = {Path(path).name for path in dropped}
    for name in disk.list(place):
        if name not in gone:
            link_or_copy(disk, place / name, successor / name)
    for name, file in results.items():
        disk.rename(work / name, successor / Path(file.path).name)
    disk.sync_dir(successor)
    holds = Path(next(iter(results.values())).path).name
    change.commit(
        Entry(
            add=tuple(file.record() for file in results.values()),
            drop=tuple(dropped),
            moves=(Move(staged, folder, change.park_name(folder), holds),),
        )
    )


def _require_whole(path: Path, file: ArchivedFile) -> None:
    """The originals go when the swap is done: the file must be the one that its task told of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size, rows = path.stat().st_size, pq.read_metadata(path).num_rows
        if (size, rows) == (file.size, file.rows):
            return
        found = f"it has {size} bytes and {rows} rows"
    except (OSError, pa.ArrowException) as error:
        found = str(error)
    raise StoreFormatError(
        f"{path}, which should become {file.path} with {file.size} bytes and {file.rows} rows, is not whole: {found}",
        "nothing was replaced; see that driver and executors share the directory, and merge again",
    )


def link_or_copy(disk: Disk, source: Path, target: Path) -> None:
    """The same file under a second name; where the file system has no such thing, its bytes."""
    if isinstance(disk, SwappingDisk):
        try:
            disk.link(source, target)
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
    old = disk.open(source, write=False)
    try:
        new = disk.open(target, create=True)
        try:
            for at in range(0, old.size(), COPY_BYTES):
                new.pwrite(old.pread(COPY_BYTES, at), at)
            new.sync()
        finally:
            new.close()
    finally:
        old.close()
