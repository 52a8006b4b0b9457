"""One queue's files and memory: rolling, cutting, starting late, holes, and that nothing is lost on failure."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock._hot.reads import EntrySelection
from penstock.runtime import Disk, SystemDisk
from penstock.store.consume_queue import FILLER, ConsumeQueue, Entry
from penstock.store.findings import Findings
from penstock.store.layout import StorePaths
from penstock.testing import keep_unsynced
from tests.support.store_checks import faulty

PER_FILE = 4
SIZE = PER_FILE * 20
RECORD = 100


class Bench:
    """A queue of tiny files; entry n is of the record at 100 n."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "consumequeue" / "t" / "0"
        self.paths = StorePaths(folder)
        self.findings = Findings()
        self.disk = faulty(folder)
        self.queue = self.make()

    def make(self, disk: Disk | None = None, **changes: Any) -> ConsumeQueue:
        return ConsumeQueue(disk or self.disk, self.paths, "t", 0, PER_FILE, self.findings, **changes)

    def add(self, count: int) -> None:
        for _ in range(count):
            offset = self.queue.max_offset
            self.queue.state.add_entry(offset * RECORD, RECORD, offset * 7)

    def reload(self, **changes: Any) -> ConsumeQueue:
        self.queue.close()
        self.queue = self.make(**changes)
        self.queue.load()
        return self.queue

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.queue.close()


def names(*numbers: int) -> list[str]:
    return [f"{number * SIZE:020d}" for number in numbers]


def offsets_of(queue: ConsumeQueue) -> list[int]:
    found = [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)]
    return [-1 if entry is None else -2 if entry.is_filler else entry.position // RECORD for entry in found]


def entry(offset: int) -> Entry:
    return Entry(offset * RECORD, RECORD, offset * 7)


# -- files ---------------------------------------------------------------------------------------------------


def test_a_new_queue_has_no_files_until_its_first_entries_are_written(bench: Bench) -> None:
    bench.add(3)
    assert (bench.files, bench.queue.has_files, bench.queue.max_offset) == ([], False, 3)
    assert bench.queue.drain() == 3
    assert (bench.files, bench.queue.has_files, bench.queue.max_offset) == (names(0), True, 3)
    assert bench.queue.drain() == 0


@pytest.mark.seed("S4-43")
@pytest.mark.parametrize(("count", "files"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_files_roll_when_full(bench: Bench, count: int, files: int) -> None:
    bench.add(count)
    bench.queue.drain()
    assert bench.files == names(*range(files))
    assert all((bench.folder / name).stat().st_size == SIZE for name in bench.files)
    content = b"".join((bench.folder / name).read_bytes() for name in bench.files)
    expected = b"".join(
        (n * RECORD).to_bytes(8, "big") + RECORD.to_bytes(4, "big") + (n * 7).to_bytes(8, "big")
        for n in range(count)
    )
    assert content == expected.ljust(files * SIZE, b"\0")


@pytest.mark.parametrize("drained", range(0, 12, 3))
def test_entries_are_the_same_in_memory_and_in_files(bench: Bench, drained: int) -> None:
    bench.add(drained)
    bench.queue.drain()
    bench.add(11 - drained)
    assert [bench.queue.entry(n) for n in range(11)] == [entry(n) for n in range(11)]
    assert bench.queue.entry(-1) is None
    assert bench.queue.entry(11) is None
    for first in range(11):
        for last in range(first, 12):
            whole = bench.queue.entry_bytes(first, min(last, 11))
            decoded = [Entry.decode(whole[i : i + 20]) for i in range(0, len(whole), 20)]
            assert decoded == [entry(n) for n in range(first, min(last, 11))]


@pytest.mark.parametrize("drained", [0, 3, 4, 9, 11])
@pytest.mark.parametrize("scan_max", [1, 4, 100])
def test_choosing_runs_over_files_into_memory(bench: Bench, drained: int, scan_max: int) -> None:
    bench.add(drained)
    bench.queue.drain()
    bench.add(11 - drained)
    for offset in range(11):
        selection = EntrySelection(100, 1 << 20, None)
        bench.queue.select(selection, offset, scan_max)
        chosen = [selection.offset(i) for i in range(selection.count)]
        assert chosen == list(range(offset, min(11, offset + scan_max)))
        assert [selection.position(i) for i in range(selection.count)] == [n * RECORD for n in chosen]


@pytest.mark.parametrize("count", range(14))
def test_loading_finds_the_end(bench: Bench, count: int) -> None:
    bench.add(count)
    bench.queue.drain()
    queue = bench.reload()
    assert (queue.min_offset, queue.max_offset) == (0, count)
    assert offsets_of(queue) == list(range(count))


@pytest.mark.parametrize(("count", "lost"), [(1, 0), (5, 0), (8, 0), (6, 3)])
def test_loading_finds_where_the_newest_record_ends(bench: Bench, count: int, lost: int) -> None:
    bench.add(count)
    bench.queue.fill(lost)
    bench.queue.drain()
    assert bench.reload().state.max_phy == count * RECORD


def test_loading_read_only_changes_nothing(bench: Bench) -> None:
    bench.add(6)
    bench.queue.drain()
    (bench.folder / names(5)[0]).write_bytes(bytes(SIZE))  # not the next one
    (bench.folder / names(2)[0]).write_bytes(bytes(7))  # too short
    before = bench.files
    bench.disk.log.clear()
    queue = bench.reload(read_only=True)
    assert queue.max_offset == 6
    assert bench.files == before
    assert not bench.disk.log


@pytest.mark.fault("F7")
def test_loading_drops_what_cannot_belong_and_says_so(bench: Bench) -> None:
    bench.add(10)
    bench.queue.drain()
    (bench.folder / names(1)[0]).write_bytes(bytes(SIZE - 1))
    (bench.folder / "stray").write_bytes(b"")
    (bench.folder / f"{SIZE + 20:020d}").write_bytes(bytes(SIZE))
    queue = bench.reload()
    assert (queue.max_offset, offsets_of(queue)) == (4, [0, 1, 2, 3])
    assert bench.files == sorted([*names(0), f"{SIZE + 20:020d}", "stray"])
    kinds = sorted(finding.kind for finding in bench.findings.all())
    assert kinds == ["queue file dropped", "queue file dropped", "stray file", "stray file"]


# -- cutting -------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("drained", [0, 5, 10])
@pytest.mark.parametrize("end", range(12))
def test_cut(bench: Bench, drained: int, end: int) -> None:
    """Entries at or after a log position go, from memory and from files, and do not come back."""
    bench.add(drained)
    bench.queue.drain()
    bench.add(10 - drained)
    bench.queue.cut(end * RECORD)
    kept = min(end, 10)
    assert offsets_of(bench.queue) == list(range(kept))
    assert bench.queue.state.max_phy == (kept * RECORD if kept else -1)
    bench.queue.drain()
    assert offsets_of(bench.reload()) == list(range(kept))


def test_a_cut_inside_a_record_takes_only_what_begins_after_it(bench: Bench) -> None:
    bench.add(5)
    bench.queue.drain()
    bench.queue.cut(3 * RECORD - 1)
    assert offsets_of(bench.queue) == [0, 1, 2]


@pytest.mark.parametrize("end", range(12))
def test_after_a_cut_the_same_offsets_are_written_again(bench: Bench, end: int) -> None:
    bench.add(11)
    bench.queue.drain()
    bench.queue.cut(end * RECORD)
    bench.add(11 - min(end, 11))
    bench.queue.drain()
    assert offsets_of(bench.reload()) == list(range(11))


@pytest.mark.fault("F1")
@pytest.mark.invariant("I3")
@pytest.mark.parametrize("end", [3, 300, 700])
def test_a_cut_that_is_killed_leaves_entries_without_a_hole(tmp_path: Path, end: int) -> None:
    """Files of several pages, the process killed before each change: the queue gets shorter from its end, and the
    same cut once more makes it right."""
    changes, lengths, finished = 0, [], False
    while not finished:
        folder = tmp_path / str(changes)
        queue = ConsumeQueue(SystemDisk(), StorePaths(folder), "t", 0, 600, Findings())
        for offset in range(1_700):
            queue.state.add_entry(offset * RECORD, RECORD, 0)
        queue.drain()
        queue.close()
        disk = faulty(folder)
        disk.stop_after(changes)
        queue = ConsumeQueue(disk, StorePaths(folder), "t", 0, 600, Findings())
        queue.load()
        with contextlib.suppress(OSError):
            queue.cut(end * RECORD)
        finished = disk.has_power
        disk.crash(keep_unsynced)
        queue = ConsumeQueue(SystemDisk(), StorePaths(folder), "t", 0, 600, Findings())
        queue.load()
        lengths.append(queue.max_offset)
        assert offsets_of(queue) == list(range(lengths[-1]))
        queue.cut(end * RECORD)
        assert offsets_of(queue) == list(range(end))
        queue.close()
        changes += 1
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 1_700
    assert len(set(lengths)) >= 4


@pytest.mark.fault("F5")
@pytest.mark.parametrize("cleared", [(3, 6), (3, 4), (4, 9), (3, 9), (5, 8)])
def test_what_an_interrupted_cut_cleared_is_behind_the_next(bench: Bench, cleared: tuple[int, int]) -> None:
    """As a power loss may leave it: the middle of what was to go is cleared, and the rest is there."""
    bench.add(11)
    bench.queue.drain()
    for offset in range(*cleared):
        bench.queue.replace(offset, bytes(20))
    bench.reload()
    bench.queue.cut(3 * RECORD)
    assert offsets_of(bench.queue) == [0, 1, 2]
    assert offsets_of(bench.reload()) == [0, 1, 2]


def test_clear(bench: Bench) -> None:
    bench.add(9)
    bench.queue.drain()
    bench.queue.clear()
    assert (bench.files, bench.queue.max_offset, bench.queue.state.max_phy) == ([], 0, -1)


# -- holes and late starts -----------------------------------------------------------------------------------


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("start", [1, 3, 4, 6, 400, 2**40])
def test_a_queue_that_starts_late_has_its_entries_at_their_places(bench: Bench, start: int) -> None:
    bench.queue.start_at(start)
    assert (bench.queue.min_offset, bench.queue.max_offset) == (start, start)
    bench.add(6)
    bench.queue.drain()
    first = start - start % PER_FILE
    assert bench.files[0] == f"{first * 20:020d}"
    content = (bench.folder / bench.files[0]).read_bytes()
    assert content[: (start - first) * 20] == FILLER * (start - first)
    assert offsets_of(bench.queue) == list(range(start, start + 6))
    queue = bench.reload()
    assert queue.max_offset == start + 6
    queue.correct_min(0)
    assert queue.min_offset == start


@pytest.mark.invariant("I4")
def test_lost_offsets_keep_their_numbers(bench: Bench) -> None:
    bench.add(2)
    end = bench.queue.state.max_phy
    bench.queue.fill(3)
    assert bench.queue.state.max_phy == end
    bench.add(2)
    assert offsets_of(bench.queue) == [0, 1, -2, -2, -2, 5, 6]
    bench.queue.drain()
    queue = bench.reload()
    assert offsets_of(queue) == [0, 1, -2, -2, -2, 5, 6]


def test_a_filler_has_no_end_and_is_no_record() -> None:
    filler = Entry.decode(FILLER)
    assert (filler.is_filler, filler.is_valid, filler.end) == (True, True, -1)
    nothing = Entry.decode(bytes(20))
    assert (nothing.is_filler, nothing.is_valid) == (False, False)
    assert entry(3).end == 4 * RECORD


@pytest.mark.parametrize("cut", [2, 4, 5, 6])
def test_cutting_around_lost_offsets(bench: Bench, cut: int) -> None:
    bench.add(2)
    bench.queue.fill(3)
    bench.add(2)
    bench.queue.drain()
    bench.queue.cut(cut * RECORD)
    left = offsets_of(bench.queue)
    assert left[:2] == [0, 1]
    assert [n for n in left if n >= cut] == []
    assert len(left) <= {2: 5, 4: 5, 5: 5, 6: 6}[cut]


def test_replacing_an_entry_in_its_file(bench: Bench) -> None:
    bench.add(6)
    bench.queue.drain()
    bench.queue.replace(5, FILLER)
    assert offsets_of(bench.queue) == [0, 1, 2, 3, 4, -2]
    bench.queue.replace(99, FILLER)
    assert offsets_of(bench.reload()) == [0, 1, 2, 3, 4, -2]


# -- retention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept_from", range(14))
def test_files_follow_the_log(bench: Bench, kept_from: int) -> None:
    bench.add(11)
    bench.queue.drain()
    bench.add(2)
    bench.queue.delete_before(kept_from * RECORD)
    low = min(kept_from, 13)
    assert (bench.queue.min_offset, bench.queue.max_offset) == (low, 13)
    assert bench.files == names(*range(min(low // PER_FILE, 2), 3))
    assert offsets_of(bench.queue) == list(range(low, 13))


def test_the_last_file_is_never_deleted(bench: Bench) -> None:
    bench.add(8)
    bench.queue.drain()
    assert bench.queue.delete_before(10**9) == 1
    assert bench.files == names(1)
    assert (bench.queue.min_offset, bench.queue.max_offset) == (8, 8)


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.fault("F4")
@pytest.mark.parametrize("op", ["make_dirs", "open", "truncate", "pwrite"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_entries_that_cannot_be_written_stay_and_go_later(bench: Bench, op: str, after: int) -> None:
    bench.add(11)
    bench.disk.fail_next(op, errno.ENOSPC, after=after)
    if op == "make_dirs" and after:
        bench.disk.clear_faults()
    else:
        with pytest.raises(OSError, match="No space"):
            bench.queue.drain()
    assert offsets_of(bench.queue) == list(range(11))
    bench.queue.drain()
    assert bench.queue.state.tail_count == 0
    assert offsets_of(bench.reload()) == list(range(11))


@pytest.mark.fault("F4")
def test_a_short_write_of_entries_is_written_again(bench: Bench) -> None:
    bench.add(3)
    bench.disk.fail_next("pwrite", errno.ENOSPC, partial_bytes=33)
    with pytest.raises(OSError, match="No space"):
        bench.queue.drain()
    bench.queue.drain()
    assert offsets_of(bench.reload()) == [0, 1, 2]


@pytest.mark.fault("F8")
def test_a_file_whose_sync_failed_stays_dirty(bench: Bench) -> None:
    bench.add(6)
    bench.queue.drain()
    bench.disk.fail_next("sync", errno.EIO, path_contains=names(1)[0])
    with pytest.raises(OSError, match="Input/output"):
        bench.queue.sync()
    bench.disk.log.clear()
    bench.queue.sync()
    assert [e.path.rsplit("/", 1)[1] for e in bench.disk.log if e.op == "sync"] == names(1)


def test_a_sync_covers_dirty_files_and_the_names_of_new_ones(bench: Bench) -> None:
    bench.add(6)
    bench.queue.drain()
    bench.disk.log.clear()
    bench.queue.sync()
    synced = [(e.op, e.path) for e in bench.disk.log]
    folder = "consumequeue/t/0"
    assert synced[:2] == [("sync", f"{folder}/{name}") for name in names(0, 1)]
    assert {path for op, path in synced if op == "sync_dir"} >= {folder, "consumequeue/t", "consumequeue"}
    bench.disk.log.clear()
    bench.queue.sync()
    assert not bench.disk.log
    bench.add(1)
    bench.queue.drain()
    bench.disk.log.clear()
    bench.queue.sync()
    assert [e.path for e in bench.disk.log if e.op == "sync"] == [f"{folder}/{names(1)[0]}"]


def test_destroy(bench: Bench) -> None:
    bench.add(6)
    bench.queue.drain()
    bench.queue.destroy()
    assert not bench.folder.exists()


def test_records_of_a_deleted_topic_of_the_same_name_are_not_its_own(bench: Bench) -> None:
    queue = bench.make(SystemDisk(), born_at=500)
    assert queue.state.max_phy == 500
    queue.clear()
    assert queue.state.max_phy == 500
