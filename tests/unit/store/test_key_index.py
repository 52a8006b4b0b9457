"""The key index: rolling to a second file, the order of a chain, queries over files, and keys that had to wait."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._hot.index import key_hash_of
from penstock.message.hashing import java_string_hash
from penstock.runtime import Runtime
from penstock.store.findings import Findings
from penstock.store.key_index import QUERY_MAX, IndexHeader, KeyIndex
from penstock.store.layout import StorePaths
from penstock.testing import ManualClock
from tests.support.store_checks import faulty, small_options

SLOTS, ENTRIES = 10, 6  # five keys a file: entry 0 is never used
START = 1_700_000_000_000
FOREVER = 1 << 62


class Bench:
    """An index of tiny files; the key `k` of topic `t`, record n at position 100 n, one second apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "index"
        self.disk, self.clock, self.findings = faulty(folder), ManualClock(), Findings()
        self.paths = StorePaths(folder)
        self.index = self.make()
        self.count = 0

    def make(self, *, read_only: bool = False) -> KeyIndex:
        options = small_options(index_slots=SLOTS, index_entries=ENTRIES)
        runtime = Runtime(clock=self.clock, disk=self.disk)
        return KeyIndex(runtime, self.paths, options, self.findings, read_only=read_only)

    def put(self, *keys: str) -> None:
        """Enter one key for each of the next records."""
        data = bytearray()
        for key in keys:
            at = self.count
            data += struct.pack(">iqq", java_string_hash(f"t#{key}"), at * 100, START + at * 1000)
            self.count += 1
        self.index.put(data, len(keys))

    def find(self, key: str, begin: int = 0, end: int = FOREVER, limit: int = QUERY_MAX) -> list[int]:
        return [at // 100 for at in self.index.find("t", key, limit, begin, end)]

    def save(self) -> None:
        self.index.write_slots()
        self.index.sync()

    def reload(self, *, unclean: bool = False, read_only: bool = False) -> None:
        self.index.close()
        self.index = self.make(read_only=read_only)
        self.index.load(unclean=unclean)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.index.close()


def test_keys_entered_while_the_slots_are_on_their_way_are_counted_next_time(bench: Bench) -> None:
    """A header that counts an entry whose slot is not in the file would hide it from a clean start."""
    bench.put("a")
    bench.index.write_slots()
    bench.put("b")
    assert bench.index.sync() == 0
    assert bench.index.end_phy == 100
    bench.save()
    bench.reload()
    assert (bench.find("a"), bench.find("b"), bench.index.end_phy) == ([0], [1], 100)


def test_newest_first_along_a_chain(bench: Bench) -> None:
    bench.put("a", "b", "a", "a")
    assert bench.find("a") == [3, 2, 0]
    assert bench.find("b") == [1]
    assert bench.find("absent") == []


def test_a_chain_links_all_keys_of_a_slot(bench: Bench) -> None:
    """Keys that share a slot share a chain; only those of the same hash are given."""
    hashes = {f"k{i}": key_hash_of(java_string_hash(f"t#k{i}")) for i in range(100)}
    same_slot = [key for key in hashes if hashes[key] % SLOTS == 3][:3]
    assert len(same_slot) == 3
    bench.put(same_slot[0], same_slot[1], same_slot[0], same_slot[2])
    assert [bench.find(key) for key in same_slot] == [[2, 0], [1], [3]]
    bench.save()
    data = (bench.folder / bench.names[0]).read_bytes()
    assert struct.unpack_from(">i", data, 40 + 3 * 4) == (4,)
    entries_at = 40 + SLOTS * 4
    previous = [struct.unpack_from(">i", data, entries_at + n * 20 + 16)[0] for n in range(1, 5)]
    assert previous == [0, 1, 2, 3]
    assert data[entries_at : entries_at + 20] == bytes(20)  # entry 0


@pytest.mark.parametrize(("count", "files"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 3), (23, 5)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_full_file_is_followed_by_another(bench: Bench, count: int, files: int, at_once: bool) -> None:
    keys = [f"k{i}" for i in range(count)]
    for chunk in [keys] if at_once else [[key] for key in keys]:
        bench.put(*chunk)
    assert (bench.index.file_count, len(bench.names), bench.index.entries) == (files, files, count)
    assert bench.index.names() == bench.names
    assert bench.index.end_phy == (count - 1) * 100
    for i in range(count):
        assert bench.find(f"k{i}") == [i]


def test_names_are_times_and_never_the_same_nor_going_back(bench: Bench) -> None:
    bench.put(*(f"k{i}" for i in range(6)))
    first, second = bench.names
    assert first == "20231114221320000"
    assert second == "20231114221320001"  # the same millisecond
    bench.clock.jump(-3_600_000)
    bench.put(*(f"k{i}" for i in range(5)))
    assert bench.names[-1] == "20231114221320002"
    bench.clock.jump(7_200_000)
    bench.put(*(f"k{i}" for i in range(5)))
    assert bench.names[-1] == "20231114231320000"


def test_a_query_runs_over_files_newest_first(bench: Bench) -> None:
    bench.put(*["a", "b"] * 8)
    assert bench.index.file_count == 4
    assert bench.find("a") == [14, 12, 10, 8, 6, 4, 2, 0]
    assert bench.find("a", limit=3) == [14, 12, 10]
    assert bench.find("b", limit=6) == [15, 13, 11, 9, 7, 5]


@pytest.mark.parametrize("low", range(0, 16, 3))
@pytest.mark.parametrize("high", range(0, 16, 3))
def test_a_query_in_a_range_of_times(bench: Bench, low: int, high: int) -> None:
    bench.put(*["a"] * 16)
    found = bench.find("a", START + low * 1000, START + high * 1000)
    assert found == list(range(high, low - 1, -1))


def test_times_inside_a_second_are_not_lost(bench: Bench) -> None:
    """Entries hold whole seconds: a record of the last part of the first second must be found."""
    data = bytearray()
    for at, time_ms in enumerate((START, START + 999, START + 1999)):
        data += struct.pack(">iqq", java_string_hash("t#a"), at * 100, time_ms)
    bench.index.put(data, 3)
    assert 1 in bench.find("a", START + 999, START + 999)
    assert 2 in bench.find("a", START + 1999, START + 1999)


@pytest.mark.parametrize("unclean", [True, False])
@pytest.mark.parametrize("count", [1, 5, 6, 13])
def test_loading(bench: Bench, unclean: bool, count: int) -> None:
    bench.put(*(f"k{i % 3}" for i in range(count)))
    bench.save()
    before = [bench.find(f"k{i}") for i in range(3)]
    bench.reload(unclean=unclean)
    assert [bench.find(f"k{i}") for i in range(3)] == before
    assert bench.index.entries == count
    bench.put("k0")
    assert bench.find("k0")[0] == count
    assert bench.findings.all() == []


@pytest.mark.fault("F5")
def test_entries_that_the_header_does_not_count_are_not_there(bench: Bench) -> None:
    bench.put("a", "b")
    bench.save()
    bench.put("a", "b")  # written, not counted
    bench.reload(unclean=True)
    assert (bench.find("a"), bench.find("b"), bench.index.end_phy) == ([0], [1], 100)
    bench.count = 2
    bench.put("b", "b")
    assert bench.find("b") == [3, 2, 1]


def test_the_header_is_written_after_what_it_counts_is_synced(bench: Bench) -> None:
    bench.put("a", "b", "c")
    bench.disk.log.clear()
    bench.save()
    steps = [(entry.op, entry.offset, entry.size) for entry in bench.disk.log]
    assert steps == [("pwrite", 40, SLOTS * 4), ("sync", 0, 0), ("pwrite", 0, 40), ("sync", 0, 0)]
    header = IndexHeader.decode((bench.folder / bench.names[0]).read_bytes())
    assert (header.next_entry, header.begin_phy, header.end_phy) == (4, 0, 200)
    assert (header.begin_timestamp, header.end_timestamp) == (START, START + 2000)
    bench.disk.log.clear()
    bench.save()
    assert not bench.disk.log


@pytest.mark.fault("F4")
@pytest.mark.parametrize("op", ["make_dirs", "open", "truncate", "pwrite"])
@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("partial", [0, 17])
def test_keys_that_cannot_be_written_wait_and_keep_their_order(
    bench: Bench, op: str, after: int, partial: int
) -> None:
    if op == "make_dirs" and after:
        after = 0
    bench.disk.fail_next(op, errno.ENOSPC, after=after, partial_bytes=partial)
    with pytest.raises(OSError, match="No space"):
        bench.put(*["a", "b"] * 8)
    found = bench.find("a")
    assert found == sorted(found, reverse=True)
    bench.disk.clear_faults()
    bench.put("b", "a")
    assert bench.find("a") == [17, 14, 12, 10, 8, 6, 4, 2, 0]
    assert bench.find("b") == [16, 15, 13, 11, 9, 7, 5, 3, 1]
    assert bench.index.entries == 18
    bench.save()
    bench.reload(unclean=True)
    assert bench.find("a") == [17, 14, 12, 10, 8, 6, 4, 2, 0]


@pytest.mark.fault("F4")
def test_keys_wait_through_many_failures(bench: Bench) -> None:
    bench.disk.fail_next("pwrite", errno.ENOSPC, times=None)
    for i in range(4):
        with pytest.raises(OSError, match="No space"):
            bench.put("a", f"b{i}")
    assert bench.find("a") == []
    bench.disk.clear_faults()
    bench.put("a")
    assert bench.find("a") == [8, 6, 4, 2, 0]
    assert bench.find("b2") == [5]


@pytest.mark.parametrize(("kept_from", "left"), [(0, 4), (4, 4), (5, 3), (9, 3), (10, 2), (15, 1), (99, 1)])
def test_files_follow_the_log_and_the_last_stays(bench: Bench, kept_from: int, left: int) -> None:
    bench.put(*["a"] * 16)
    assert bench.index.delete_before(kept_from * 100) == 4 - left
    assert len(bench.names) == left
    assert bench.find("a")[-1] == (4 - left) * 5


def test_cutting_drops_files_that_reach_beyond(bench: Bench) -> None:
    bench.put(*["a"] * 12)
    bench.save()
    bench.index.cut(1000)  # the records 10 and 11, of the third file
    assert (bench.index.file_count, bench.find("a")[0]) == (2, 9)
    bench.index.cut(900)
    assert (bench.index.file_count, bench.find("a")[0]) == (1, 4)
    assert [finding.kind for finding in bench.findings.all()] == ["index file dropped"] * 2


@pytest.mark.fault("F7")
@pytest.mark.parametrize(
    ("at", "value", "dropped"),
    [(36, 0, False), (36, -5, False), (36, 7, True), (36, 2**31 - 1, True), (24, -1, True)],
)
def test_a_header_that_makes_no_sense(bench: Bench, at: int, value: int, dropped: bool) -> None:
    bench.put("a")
    bench.save()
    path = bench.folder / bench.names[0]
    bench.index.close()
    data = bytearray(path.read_bytes())
    data[at : at + 4] = value.to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    bench.reload()
    assert (bench.index.file_count, path.exists()) == ((0, False) if dropped else (1, True))
    assert len(bench.findings.all()) == int(dropped)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("previous", [-1, 1, 3, 4, 2**31 - 1])
def test_a_chain_that_leads_nowhere_or_to_itself_ends(bench: Bench, previous: int) -> None:
    bench.put("a", "b", "a")
    bench.save()
    path = bench.folder / bench.names[0]
    bench.index.close()
    data = bytearray(path.read_bytes())
    at = 40 + SLOTS * 4 + 3 * 20 + 16
    data[at : at + 4] = previous.to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    bench.reload()
    assert bench.find("a") in ([2], [2, 0])


@pytest.mark.fault("F7")
@pytest.mark.parametrize("size", [0, 40, 10_000])
def test_a_file_of_another_size_is_dropped(bench: Bench, size: int) -> None:
    bench.put("a")
    bench.save()
    path = bench.folder / bench.names[0]
    bench.index.close()
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    (bench.folder / "notes.txt").write_bytes(b"")
    bench.reload(read_only=True)
    assert path.exists()
    bench.reload()
    assert (bench.names, bench.index.file_count) == (["notes.txt"], 0)


def test_files_that_are_missing_are_named(bench: Bench) -> None:
    bench.put(*["a"] * 12)
    expected = bench.index.names()
    bench.save()
    (bench.folder / expected[1]).unlink()
    bench.reload()
    assert bench.index.lost_files(expected) == [expected[1]]


def test_the_time_of_the_checkpoint_is_that_of_full_files(bench: Bench) -> None:
    bench.put(*["a"] * 4)
    assert bench.index.full_timestamp == 0
    bench.put(*["a"] * 8)
    assert bench.index.full_timestamp == START + 9000


def test_cutting_passes_over_an_empty_file(bench: Bench) -> None:
    """The newest file was made and has nothing yet: the one before it is the one that reaches beyond."""
    bench.put(*"abcde")
    bench.save()
    bench.index._roll()
    bench.index.cut(300)
    assert (bench.names, bench.index.end_phy) == ([], -1)


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("unclean", [False, True])
@pytest.mark.parametrize("kept", range(13))
def test_entries_behind_a_cut_are_gone_and_the_others_stay(bench: Bench, kept: int, unclean: bool) -> None:
    """In the first, second and third file, at every entry; in memory, after a restart, and with new keys after it."""
    keys = [f"k{number % 4}" for number in range(12)]
    bench.put(*keys)
    bench.save()
    if kept < 12:
        end = bench.index.cut_entries(kept * 100, lambda position: START + position * 10)
        assert end == bench.index.end_phy == (kept - 1) * 100 if kept else end == -1
    for _ in range(2):
        for key in sorted(set(keys)):
            assert bench.find(key) == [n for n in reversed(range(kept)) if keys[n] == key]
            assert bench.find(key, begin=START + 11_001) == []
        bench.reload(unclean=unclean)
    assert len(bench.names) == -(-kept // 5)
    bench.count = kept
    bench.put("k1", "new")
    assert bench.find("new") == [kept + 1]
    assert bench.find("k1") == [kept, *(n for n in reversed(range(kept)) if keys[n] == "k1")]
