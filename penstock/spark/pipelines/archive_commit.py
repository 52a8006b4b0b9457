"""The moment at which a batch is archived, and what may not be archived again.

A batch is decided once: its first commit, for good. Spark calls again after a crash between this commit and its own
note of it; then the same rows lie staged a second time, and are dropped. Offsets that are archived already under
another batch are refused, because only one of two things can have happened: the checkpoint is not the one that
belongs to this archive, or the topic was deleted and made anew, and the same offsets are other messages.

Runs in the process in which Spark commits a batch, on the driver's machine. Spark is not needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StoreFormatError
from penstock.runtime import Runtime
from penstock.spark.pipelines.archive_names import ArchivedFile, StagedFile
from penstock.spark.pipelines.manifest import NO_BATCH, Entry, Move, TreeState
from penstock.spark.pipelines.parquet_tree import STAGING, ParquetTree, TreeChange
from penstock.spark.pipelines.seam import Range, covers, merged, overlaps


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did; `repeated` if it was there already."""

    rows: int
    files: int
    repeated: bool = False


def files_of(state: TreeState) -> list[ArchivedFile]:
    return [ArchivedFile.of(record) for record in state.files.values()]


def ranges_of(files: Iterable[ArchivedFile]) -> dict[str, list[Range]]:
    """Archived offsets by queue, in as few ranges as possible."""
    ranges: dict[str, list[Range]] = {}
    for file in files:
        ranges.setdefault(file.key, []).append((file.first, file.last))
    return {key: merged(parts) for key, parts in sorted(ranges.items())}


def commit_batch(
    root: str | Path,
    staged: Sequence[StagedFile],
    query: str = "",
    batch: int = NO_BATCH,
    runtime: Runtime | None = None,
) -> Committed:
    """Archive what the tasks of one batch staged: all of it, once."""
    tree = ParquetTree(root, runtime)
    if not staged:
        return Committed(0, 0)
    with tree.changing() as change:
        repeated = bool(query) and batch <= change.state.batches.get(query, NO_BATCH)
        archived = ranges_of(files_of(change.state))
        if repeated:
            _require_same(archived, staged, batch, root)
        else:
            _require_new(archived, staged, root)
            change.commit(_entry(staged, query, batch))
        _remove_folders(change, staged)
        change.sweep_parked()
    return Committed(sum(part.file.rows for part in staged), len(staged), repeated)


def _entry(staged: Sequence[StagedFile], query: str, batch: int) -> Entry:
    """In the order of the names: whoever looks in the middle of it sees each queue up to some offset."""
    ordered = sorted(staged, key=lambda part: part.file.path)
    return Entry(
        add=tuple(part.file.record() for part in ordered),
        moves=tuple(Move(part.staged, part.file.path) for part in ordered),
        query=query,
        batch=batch,
    )


def _require_same(
    archived: Mapping[str, Sequence[Range]], staged: Sequence[StagedFile], batch: int, root: str | Path
) -> None:
    for part in staged:
        file = part.file
        if not covers(archived.get(file.key, ()), (file.first, file.last)):
            raise StoreFormatError(
                f"batch {batch} was archived to {root} before, without offsets {file.first} to {file.last} of "
                f"{file.key}: the checkpoint is older than the archive",
                "delete the checkpoint; the archive then goes on after what its manifest has",
            )


def _require_new(
    archived: Mapping[str, Sequence[Range]], staged: Sequence[StagedFile], root: str | Path
) -> None:
    coming: dict[str, list[Range]] = {}
    for part in staged:
        coming.setdefault(part.file.key, []).append((part.file.first, part.file.last))
    for key, ranges in coming.items():
        for before, after in overlaps([*ranges, *archived.get(key, ())]):
            low, high = after[0], min(before[1], after[1])
            raise StoreFormatError(
                f"offsets {low} to {high} of {key} are in {root} already",
                "use the checkpoint that belongs to this archive, or none at all, to go on after what is there; "
                "if the topic was deleted and made again, archive it to another directory",
            )


def _remove_folders(change: TreeChange, staged: Sequence[StagedFile]) -> None:
    """Staging folders of this batch: empty now, or full of what was there already."""
    done = {part.staged.removeprefix(f"{STAGING}/").partition("/")[0] for part in staged}
    disk = change.tree.runtime.disk
    for name in sorted(done):
        disk.remove_tree(change.tree.root / STAGING / name)


def sweep(root: str | Path, runtime: Runtime | None = None) -> int:
    """At the start of the only archiver: finish what was promised, remove what was not; how much was removed."""
    with ParquetTree(root, runtime).changing() as change:
        return change.sweep(STAGING) + change.sweep_parked()
