"""Gathering: records chosen by their entries, checked and copied into one answer."""

import random
import struct

import pytest

from penstock._hot import reads
from penstock._hot.mapped import MappedBytes
from penstock._hot.reads import EntrySelection, gather
from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

TOPIC = b"orders"
ENTRY = struct.Struct(">qiq")


@pytest.fixture
def log(tmp_path):
    """A log of two queues in turn, with bodies of all sizes, and the entries of the first."""
    chooser = random.Random(7)
    options = StoreOptions(segment_size_bytes=32 << 20, index_enabled=False)
    with MessageStore.open(tmp_path, options) as store:
        for number in range(600):
            body = chooser.randbytes(chooser.choice([0, 1, 100, 300, 5_000, 60_000]))
            store.append(Message("orders", body, {"KEYS": f"k{number}"}), number % 2)
        end = store.log.max_offset
        data = bytes(store.log.slice(0, end))
        found = store.reader.entries("orders", 0, 0, 300)
        return data, [(entry.position, entry.size) for entry in found]


def select(entries, max_bytes=1 << 40) -> EntrySelection:
    selection = EntrySelection(1 << 20, max_bytes, None)
    selection.scan_bytes(b"".join(ENTRY.pack(*entry, 0) for entry in entries), 0)
    return selection


def whole(data, entries) -> bytes:
    return b"".join(data[position : position + size] for position, size in entries)


@pytest.mark.parametrize("reserved", [1, 100, 4_096, 100_000, 1 << 30])
def test_the_answer_grows_with_what_was_checked(log, reserved, monkeypatch):
    monkeypatch.setattr(reads, "GATHER_BYTES", reserved)
    data, entries = log
    out, damaged, missing = gather(select(entries), [MappedBytes(data)], 0, len(data), TOPIC, 0, True)
    assert (bytes(out), damaged, missing) == (whole(data, entries), [], [])


def test_an_entry_whose_size_lies_reserves_nothing_and_gives_nothing(log):
    data, entries = log
    for size in (0x7FFFFFFE, len(data), entries[0][1] + 1, entries[0][1] - 1, 1, 0, -5):
        lied = [(entries[0][0], size), *entries[1:]]
        out, damaged, missing = gather(select(lied), [MappedBytes(data)], 0, len(data), TOPIC, 0, True)
        assert bytes(out) == whole(data, entries[1:])
        assert damaged == [0]
        assert missing == []


@pytest.mark.parametrize("size", [-1, -5, -(2**31)])
def test_entries_with_negative_sizes_hide_nobody(log, size):
    data, entries = log
    for before in (0, 1, 4):
        lied = [*entries[:before], (entries[before][0], size), *entries[before + 1 : before + 3]]
        selection = select(lied)
        assert selection.total_bytes == sum(length for _, length in lied if length > 0)
        out, damaged, missing = gather(selection, [MappedBytes(data)], 0, len(data), TOPIC, 0, True)
        kept = [entry for number, entry in enumerate(lied) if number != before]
        assert (bytes(out), damaged, missing) == (whole(data, kept), [before], [])
    alone = select([(entries[0][0], size)])
    assert gather(alone, [MappedBytes(data)], 0, len(data), TOPIC, 0, True) == (b"", [0], [])


def test_damaged_and_missing_ones_are_named_and_left_out(log):
    data, entries = log
    spoilt = bytearray(data)
    spoilt[entries[3][0] + 4] ^= 1
    spoilt[entries[4][0] + 9] ^= 1
    moved = list(entries)
    moved[7] = (len(data) + 5, moved[7][1])  # in a segment that is not there
    moved[8] = (-1, moved[8][1])
    moved[9] = (entries[10][0], entries[10][1])  # another one's record
    moved[11] = (entries[11][0], 0x7FFFFFFF)  # a filler
    out, damaged, missing = gather(select(moved), [MappedBytes(bytes(spoilt))], 0, len(data), TOPIC, 0, True)
    kept = [entry for number, entry in enumerate(entries) if number not in (3, 4, 7, 8, 9, 11)]
    assert bytes(out) == whole(data, kept)
    assert damaged == [3, 4, 9]
    assert missing == [7, 8, 11]


def test_records_of_several_segments(log):
    """Segments that end where records do, one of them taken by retention and one never there."""
    data, entries = log
    size = entries[100][0]
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    inside = [
        (position, length)
        for position, length in entries
        if position // size == (position + length - 1) // size
    ]
    selection = EntrySelection(1 << 20, 1 << 30, None)
    for position, length in inside:
        number = entries.index((position, length))
        selection.scan_bytes(ENTRY.pack(position, length, 0), number)
    maps: list[MappedBytes | None] = [MappedBytes(part) for part in parts]
    assert len(maps) > 2
    out, damaged, missing = gather(selection, maps, 0, size, TOPIC, 0, True)
    # Records of later segments name their place in the log, which is where they are.
    assert (bytes(out), damaged, missing) == (whole(data, inside), [], [])
    taken = maps[1]
    assert taken is not None
    taken.release()
    maps[2] = None
    out, damaged, missing = gather(selection, maps, 0, size, TOPIC, 0, True)
    assert bytes(out) == whole(data, [entry for entry in inside if entry[0] // size not in (1, 2)])
    assert damaged == []
    assert missing == [n for n, entry in enumerate(inside) if entry[0] // size in (1, 2)]
