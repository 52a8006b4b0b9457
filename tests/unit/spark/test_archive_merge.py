"""Small files become large ones: which, and that nobody ever reads a message twice or misses one meanwhile."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import StoreFormatError, StoreLockedError
from penstock.runtime import Runtime, SystemDisk
from penstock.spark.pipelines.archive_commit import commit_batch, files_of
from penstock.spark.pipelines.archive_files import FileSettings, StagedFiles
from penstock.spark.pipelines.archive_names import ArchivedFile
from penstock.spark.pipelines.archive_reading import ArchiveSnapshot, archived_ranges
from penstock.spark.pipelines.compaction import (
    MERGING,
    Merge,
    Written,
    _publish,
    link_or_copy,
    merge_files,
    plan_merges,
    staged_name,
    write_merged,
)
from penstock.spark.pipelines.manifest import Entry, Manifest
from penstock.spark.pipelines.parquet_tree import ParquetTree
from penstock.spark.schema import MAY_BE_NULL
from penstock.testing import FaultyDisk, PowerLostError
from tests.support.archive_rows import SCHEMA, batch_of, places, read_plain


def small(first: int, last: int, size: int = 10, queue_id: int = 0, day: str = "2025-01-31") -> ArchivedFile:
    return ArchivedFile("t", day, "a", queue_id, first, last, last - first + 1, size, first, last)


def spans(merges: list[Merge]) -> list[list[tuple[int, int]]]:
    return [[(part.first, part.last) for part in merge.parts] for merge in merges]


def test_neighbours_of_one_queue_and_day_are_merged_up_to_the_target() -> None:
    files = [small(0, 9, 40), small(10, 19, 40), small(20, 29, 40), small(30, 39, 10)]
    assert spans(plan_merges(files, 100)) == [[(0, 9), (10, 19)], [(20, 29), (30, 39)]]


def test_holes_other_days_other_queues_and_large_files_end_a_run() -> None:
    files = [
        small(0, 4),
        small(6, 9),
        small(10, 14, day="2025-02-01"),
        small(15, 19, day="2025-02-01"),
        small(0, 4, queue_id=1),
        small(20, 29, 90, day="2025-02-01"),
        small(30, 39, day="2025-02-01"),
    ]
    assert spans(plan_merges(files, 100)) == [[(10, 14), (15, 19)]]


def test_few_files_may_be_left_alone() -> None:
    files = [small(number, number) for number in range(7)]
    assert plan_merges(files, 1000, least=8) == []
    assert len(plan_merges(files, 1000, least=7)) == 1


def test_the_result_says_what_its_parts_said() -> None:
    merge = Merge((small(0, 4), small(5, 9)))
    assert merge.result == replace(small(0, 9), size=0)


class Inline:
    """Runs what Spark would run in its tasks, here."""

    @property
    def sparkContext(self) -> "Inline":
        return self

    def parallelize(self, items: list[object], count: int) -> "Inline":
        self._items = items
        return self

    def map(self, function: object) -> "Inline":
        self._items = [function(item) for item in self._items]
        return self

    def collect(self) -> list[object]:
        return self._items


class Twice(Inline):
    """A second attempt of each task begins when the first has ended, and is killed in the middle of its file."""

    def map(self, function: object) -> "Inline":
        items = self._items
        super().map(function)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.spark.pipelines.archive_files.write_group", _killed)
            for item in items:
                with pytest.raises(InterruptedError):
                    function(item)
        return self


def _killed(*_: object) -> None:
    raise InterruptedError


def archive_of(root: Path, batches: int, rows: int = 4) -> None:
    for number in range(batches):
        files = StagedFiles(root, f"task{number}", FileSettings(), SCHEMA)
        for queue in range(2):
            files.write(batch_of(places(queue, range(number * rows, (number + 1) * rows))))
        commit_batch(root, files.finish(), "q", number)


def test_merged_files_hold_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive_of(root, 5)
    before, ranges = read_plain(root), archived_ranges(root)
    done = merge_files(Inline(), root)
    assert (done.files_before, done.files_after, done.rows, done.folders) == (10, 2, 40, 1)
    assert read_plain(root) == before
    assert archived_ranges(root) == ranges
    files = sorted(root.rglob("*.parquet"))
    assert len(files) == 2
    assert pq.read_table(files[0]).column("queue_offset").to_pylist() == list(range(20))
    assert merge_files(Inline(), root).files_before == 0
    archive_of_more = StagedFiles(root, "more", FileSettings(), SCHEMA)
    archive_of_more.write(batch_of(places(0, range(20, 24))))
    commit_batch(root, archive_of_more.finish(), "q", 5)
    assert len(read_plain(root)) == 44


@pytest.mark.fault("F1")
def test_an_archive_is_read_whole_though_a_crash_cut_a_merge_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are swapped and the manifest does not say so yet: those that it names are gone."""
    root = tmp_path / "archive"
    archive_of(root, 5)
    ranges = archived_ranges(root)

    def crash(manifest: Manifest, entry: Entry) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "settle", crash)
        with pytest.raises(KeyboardInterrupt):
            merge_files(Inline(), root)
    assert ParquetTree(root).manifest.pending() is not None
    found = ArchiveSnapshot.open(root)
    assert len(found.files) == 2
    assert all((root / file.path).is_file() for file in found.files)
    assert found.ranges() == ranges


def test_an_attempt_that_comes_late_does_not_touch_the_file_that_counts(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive_of(root, 3)
    before = read_plain(root)
    merge_files(Twice(), root)
    assert len(list(root.rglob("*.parquet"))) == 2
    assert read_plain(root) == before
    assert not SystemDisk().list(ParquetTree(root).resolve(MERGING)), "its file is swept with the rest"


@pytest.mark.parametrize("harm", ["gone", "cut off", "of other rows"])
def test_a_merged_file_that_is_not_as_its_task_told_replaces_nothing(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "archive"
    archive_of(root, 3)
    before = read_plain(root)

    class Harmed(Inline):
        def collect(self) -> list[object]:
            path = next(ParquetTree(root).resolve(MERGING).rglob("*.tmp"))
            size = path.stat().st_size
            path.unlink()
            if harm == "cut off":
                path.write_bytes(bytes(size))
            elif harm == "of other rows":
                pq.write_table(pa.table({"x": [1]}), path)
            return super().collect()

    with pytest.raises(StoreFormatError, match="is not whole"):
        merge_files(Harmed(), root)
    assert read_plain(root) == before
    assert merge_files(Inline(), root).files_after == 2
    assert read_plain(root) == before


def test_files_that_stay_are_the_same_files(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive_of(root, 2)
    stranger = next(root.rglob("*.parquet")).parent / "notes.txt"
    stranger.write_text("mine")
    before = {path.name: path.stat().st_ino for path in root.rglob("*.parquet")}
    merges = [
        merge for merge in plan_merges(files_of(ParquetTree(root).load()), 1 << 20) if merge.parts[0].queue_id
    ]
    _write_and_publish(root, merges)
    after = {path.name: path.stat().st_ino for path in root.rglob("*.parquet")}
    assert {name: inode for name, inode in after.items() if name in before} == {
        name: inode for name, inode in before.items() if "-a-0-" in name
    }
    assert stranger.read_text() == "mine"


def test_parts_that_promise_different_things_of_their_columns_are_merged(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    root.mkdir()
    archive_of(root, 2, rows=2)
    before = read_plain(root)
    (merge, *_) = plan_merges(files_of(ParquetTree(root).load()), 1 << 20)
    strict = root / merge.parts[1].path
    rows = pq.read_table(strict, partitioning=None)
    must = pa.schema([field.with_nullable(field.name in MAY_BE_NULL) for field in rows.schema])
    pq.write_table(rows.cast(must), strict)
    _write_and_publish(root, [merge])
    assert read_plain(root) == before


def _write_and_publish(root: Path, merges: list[Merge], runtime: Runtime | None = None) -> None:
    tree = ParquetTree(root, runtime)
    tree.make_beside()
    folder = tree.resolve(f"{MERGING}/x")
    SystemDisk().make_dirs(folder)
    names = [staged_name(number) for number in range(len(merges))]
    written = [
        Written(name, write_merged(root, folder / name, merge, FileSettings()))
        for name, merge in zip(names, merges, strict=True)
    ]
    _publish(tree, "x", merges, written)


@pytest.mark.fault("F1")
@pytest.mark.fault("F5")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_a_merge_cut_off_at_any_step_loses_and_repeats_nothing(tmp_path: Path, power: bool) -> None:
    sizes = set()
    # A power loss is tried everywhere; a kill leaves what one of its neighbours leaves.
    for step in range(0, 200, 1 if power else 3):
        root = tmp_path / str(step) / "archive"
        root.mkdir(parents=True)
        archive_of(root, 2, rows=2)
        before = read_plain(root)
        merges = plan_merges(files_of(ParquetTree(root).load()), 1 << 20)
        disk = FaultyDisk(root.parent, lose_directory_entries=power)
        disk.stop_after(step)
        try:
            _write_and_publish(root, merges, Runtime(disk=disk))
            done = True
        except PowerLostError:
            done = False
        disk.crash() if power else disk.kill()
        seen = read_plain(root)
        assert len(set(seen)) == len(seen), step
        merge_files(Inline(), root, least=100)
        assert read_plain(root) == before, step
        sizes.add(len(list(root.rglob("*.parquet"))))
        assert merge_files(Inline(), root).folders in (0, 1)
        assert read_plain(root) == before
        assert len(list(root.rglob("*.parquet"))) == 2
        if done:
            break
    assert done
    assert sizes == {2, 4}


def test_whoever_lists_meanwhile_finds_every_message_once(tmp_path: Path) -> None:
    """Every listing is the old one or the new one; opening what is gone is an error, not a hole."""
    root = tmp_path / "archive"
    archive_of(root, 6)
    folder = next(root.rglob("*.parquet")).parent
    listings: list[frozenset[str]] = []
    stop = threading.Event()

    def look() -> None:
        disk = SystemDisk()
        while not stop.is_set():
            listings.append(frozenset(disk.list(folder)))

    reader = threading.Thread(target=look, name="penstock-test-reader")
    old = frozenset(path.name for path in folder.iterdir())
    reader.start()
    try:
        merge_files(Inline(), root)
    finally:
        stop.set()
        reader.join()
    new = frozenset(path.name for path in folder.iterdir())
    assert len(new) == 2
    assert set(listings) <= {old, new}


def test_one_merge_at_a_time(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive_of(root, 1)
    lock = ParquetTree(root).own("merge.lock", "merging files in")
    with pytest.raises(StoreLockedError, match="merging files"):
        merge_files(Inline(), root)
    lock.release()


def test_a_file_that_does_not_hold_what_the_manifest_says_is_not_merged(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    archive_of(root, 2)
    before = read_plain(root)
    merges = plan_merges(files_of(ParquetTree(root).load()), 1 << 20)
    wrong = Merge((replace(merges[0].parts[0], rows=99), *merges[0].parts[1:]))
    with pytest.raises(StoreFormatError, match="the manifest says"):
        write_merged(root, tmp_path / "x.tmp", wrong, FileSettings())
    assert read_plain(root) == before


def test_without_hard_links_files_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(bytes(range(256)) * 9000)
    link_or_copy(FaultyDisk(tmp_path), source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_ino != source.stat().st_ino
