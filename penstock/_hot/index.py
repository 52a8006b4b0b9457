"""The key index's hash table: slots in memory, entries handed to the file.

File: header 40 bytes, `slots` x i32 (newest entry of the chain, 0 = none), then entries of 20 bytes:

      0 key hash i32   4 physical offset i64   12 seconds since the file's first entry i32   16 previous entry i32

Entry numbers start at 1. The slots are a function of the entries, so after a crash they are rebuilt from
them and never trusted. Used by one thread at a time, without the interpreter lock while it enters keys.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import get_i32, get_i64, put_i32, put_i64, put_u8
    from penstock._hot.layout import ENTRY_SIZE, INDEX_HEADER_SIZE, POSITION_MAX
    from penstock._hot.mapped import MappedBytes

PAGE = 4096
# Entries are numbered in 31 bits, and no more slots than entries are of use.
SLOTS_MAX = 0x7FFFFFFF


def key_hash_of(java_hash: int) -> int:
    """The non-negative hash that the index keeps; the one number with no positive twin becomes 0."""
    return 0 if java_hash == -0x80000000 else abs(java_hash)


@cython.cclass
class SlotTable:
    """The table of the file being written: `memory` is a writable buffer of slots * 4 bytes."""

    def __init__(self, memory: Any, slots: int, capacity: int) -> None:
        if slots < 1 or slots > SLOTS_MAX or len(memory) < slots * 4:
            raise ValueError("the slots do not fit their memory")
        self.memory = memory
        if cython.compiled:
            self.view = memory
            self.base = cython.address(self.view[0])
        else:
            self.view = self.base = memoryview(memory)
        self.slots = slots
        self.capacity = capacity
        self.dirty = bytearray((slots * 4 + PAGE - 1) // PAGE)
        self.next_entry = 1
        self.used_slots = 0
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_phy = 0
        self.end_phy = 0

    def release(self) -> None:
        """Give the slots' memory back."""
        if cython.compiled:
            self.view = bytearray(4)
            self.base = cython.address(self.view[0])
        else:
            self.view = self.base = memoryview(bytearray(4))
        # Not closed by hand: an exception under way may still hold a view of it. It goes with its last user.
        self.memory = None
        self.slots = 1
        self.capacity = 0

    def put_keys(self, keys: bytearray, first: int, count: int) -> bytearray:
        """Enter pending keys (hash i32, physical offset i64, store time i64) until the table is full.

        Returns the new entries as the file will hold them; their number says how many keys were taken.
        """
        room: cython.Py_ssize_t = self.capacity - self.next_entry
        taken: cython.Py_ssize_t = min(count, max(room, 0))
        out: bytearray = bytearray(taken * ENTRY_SIZE)
        start: cython.Py_ssize_t = first
        source: cython.p_uchar = keys
        target: cython.p_uchar = out
        dirty: cython.p_uchar = self.dirty
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        if first < 0 or (first + count) * ENTRY_SIZE > len(keys):
            raise IndexError("keys outside the buffer")
        with cython.nogil:
            for i in range(taken):
                at = (start + i) * ENTRY_SIZE
                self._put(
                    target,
                    i * ENTRY_SIZE,
                    dirty,
                    get_i32(source, at),
                    get_i64(source, at + 4),
                    get_i64(source, at + 12),
                )
        return out

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.nogil
    def _put(
        self,
        entry: cython.p_uchar,
        at: cython.Py_ssize_t,
        dirty: cython.p_uchar,
        key_hash: cython.int,
        phy: cython.longlong,
        timestamp: cython.longlong,
    ) -> cython.void:
        seconds: cython.longlong
        value: cython.longlong = key_hash
        slot_at: cython.Py_ssize_t
        previous: cython.longlong
        if value < 0:
            value = 0 if value == -0x80000000 else -value
        slot_at = value % self.slots * 4
        previous = get_i32(self.base, slot_at)
        if previous <= 0 or previous > self.next_entry:
            previous = 0
        if self.next_entry <= 1:
            self.begin_phy = phy
            self.begin_timestamp = timestamp
        seconds = 0
        if self.begin_timestamp > 0 and timestamp > self.begin_timestamp:
            seconds = (timestamp - self.begin_timestamp) // 1000
            if seconds > 0x7FFFFFFF:
                seconds = 0x7FFFFFFF
        put_i32(entry, at, value)
        put_i64(entry, at + 4, phy)
        put_i32(entry, at + 12, seconds)
        put_i32(entry, at + 16, previous)
        put_i32(self.base, slot_at, self.next_entry)
        put_u8(dirty, slot_at // 4096, 1)
        if previous == 0:
            self.used_slots += 1
        self.next_entry += 1
        self.end_phy = phy
        self.end_timestamp = timestamp

    def rebuild(self, file: MappedBytes) -> None:
        """Fill the empty slots from the entries 1 .. next_entry - 1 of the file."""
        at: cython.Py_ssize_t = INDEX_HEADER_SIZE + self.slots * 4 + ENTRY_SIZE
        slot_at: cython.Py_ssize_t
        value: cython.longlong
        i: cython.Py_ssize_t
        used: cython.Py_ssize_t = 0
        page: cython.Py_ssize_t
        if at > file.size or self.next_entry - 1 > (file.size - at) // ENTRY_SIZE:
            raise IndexError("entries outside the map")
        for i in range(1, self.next_entry):
            value = get_i32(file.base, at)
            slot_at = (value if value > 0 else 0) % self.slots * 4
            if get_i32(self.base, slot_at) == 0:
                used += 1
            put_i32(self.base, slot_at, i)
            page = slot_at // PAGE
            self.dirty[page] = 1
            at += ENTRY_SIZE
        self.used_slots = used


def find_key(
    file: MappedBytes,
    table: SlotTable | None,
    slots: int,
    next_entry: int,
    begin_timestamp: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    limit: int,
) -> list[int]:
    """Physical offsets, newest first, of entries with this hash and a time in [begin_ms, end_ms].

    While a file is being written its slots are in `table`, and `next_entry` and `begin_timestamp` are newer than
    its header. Every number read from the file is checked before it is used as a position.
    """
    if slots < 1 or slots > SLOTS_MAX or key_hash < 0 or next_entry > SLOTS_MAX:
        return []
    p: cython.p_const_uchar = file.base
    size: cython.Py_ssize_t = file.size
    entries_at: cython.Py_ssize_t = INDEX_HEADER_SIZE + slots * 4
    entries_end: cython.longlong = next_entry
    begin: cython.longlong = min(max(begin_timestamp, -POSITION_MAX), POSITION_MAX)
    wanted: cython.longlong = key_hash
    from_ms: cython.longlong = begin_ms
    to_ms: cython.longlong = end_ms
    number: cython.longlong
    slot: cython.Py_ssize_t = key_hash % slots
    at: cython.Py_ssize_t
    previous: cython.longlong
    found: list = []
    if entries_end <= 1 or entries_at + entries_end * ENTRY_SIZE > size:
        return found
    if table is not None and slot < table.slots:
        number = get_i32(table.base, slot * 4)
    else:
        number = get_i32(p, INDEX_HEADER_SIZE + slot * 4)
    while number > 0 and len(found) < limit:
        # Without the interpreter lock: producers choose keys, and a whole file may be one chain.
        with cython.nogil:
            number = _next_match(p, size, entries_at, entries_end, number, begin, wanted, from_ms, to_ms)
        if number <= 0:
            break
        at = entries_at + number * ENTRY_SIZE
        found.append(get_i64(p, at + 4))
        previous = get_i32(p, at + 16)
        if previous >= number:  # a chain only goes back; anything else is damage and would not end
            break
        number = previous
    return found


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _next_match(
    p: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    entries_at: cython.Py_ssize_t,
    entries_end: cython.longlong,
    number: cython.longlong,
    begin: cython.longlong,
    wanted: cython.longlong,
    from_ms: cython.longlong,
    to_ms: cython.longlong,
) -> cython.longlong:
    """The first entry of a chain, from this one on, with this hash and a time in the range; 0 if there is none."""
    at: cython.Py_ssize_t
    seconds: cython.longlong
    time_ms: cython.longlong
    previous: cython.longlong
    while number > 0:
        at = entries_at + number * ENTRY_SIZE
        if at + ENTRY_SIZE > size:
            break
        previous = get_i32(p, at + 16)
        # An entry behind the end is not counted yet, or never will be: it only leads to older ones.
        if number < entries_end:
            seconds = get_i32(p, at + 12)
            time_ms = begin + seconds * 1000
            # The entry keeps whole seconds: a record of the last part of `from_ms`'s second must still match.
            if seconds < 0 or time_ms + 999 < from_ms:
                break
            if get_i32(p, at) == wanted and time_ms <= to_ms:
                return number
        if previous >= number:  # a chain only goes back; anything else is damage and would not end
            break
        number = previous
    return 0
