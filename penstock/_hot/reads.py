"""Reading: choosing queue entries, gathering their records in one copy, walking and searching the log.

Choosing looks only at the 20-byte entries; no record is decoded. Gathering checks each record before it
copies it (size, position, place in its queue, checksum), so damage is left out and named, never handed on.
Nothing here reads outside the maps it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import (
        all_zero,
        copy_bytes,
        find_byte,
        get_i16,
        get_i32,
        get_i64,
        get_u8,
        new_buffer,
        prefetch_at,
        put_i32,
        put_i64,
        same_bytes,
    )
    from penstock._hot.checks import check_record
    from penstock._hot.layout import (
        AHEAD,
        ENTRY_SIZE,
        FILLER_SIZE,
        MAGIC_V1,
        MAGIC_V2,
        POSITION_MAX,
        RECORD_SIZE_MIN,
    )
    from penstock._hot.mapped import MappedBytes

# Reserved for an answer before its records are checked.
GATHER_BYTES = 4 << 20


@cython.cclass
class EntrySelection:
    """Entries chosen for one read, under limits on count and bytes; the first match is always taken.

    Chosen entries are kept as 20 bytes each: log position i64, record size i32, queue offset i64.
    """

    def __init__(self, max_count: int, max_bytes: int, tags: frozenset[int] | None) -> None:
        self.chosen = bytearray(32 * ENTRY_SIZE)
        self.count = 0
        self.total_bytes = 0
        self.scanned_to = -1
        self.full = False
        self.tags = tags
        self.max_count = max_count
        self.max_bytes = max_bytes

    def position(self, i: int) -> int:
        """Log position of the record of chosen entry `i`."""
        return self._field(i, 0)

    def size(self, i: int) -> int:
        """Its size."""
        return self._field(i, 8) >> 32

    def offset(self, i: int) -> int:
        """Its queue offset."""
        return self._field(i, 12)

    def entries(self) -> bytes:
        """All of them as they are kept."""
        return bytes(self.chosen[: self.count * ENTRY_SIZE])

    def _field(self, i: int, at: int) -> int:
        if i < 0 or i >= self.count:
            raise IndexError("no such entry")
        p: cython.p_uchar = self.chosen
        return get_i64(p, i * ENTRY_SIZE + at)

    def scan_bytes(self, data: bytes, first: int) -> None:
        """Look at entries held in memory; `first` is the queue offset of the first."""
        p: cython.p_uchar = data
        self._scan(p, len(data) // ENTRY_SIZE, first)

    def scan_mapped(self, data: MappedBytes, start: int, count: int, first: int) -> None:
        """Look at `count` entries of a queue file from byte `start` on."""
        if start < 0 or start + count * ENTRY_SIZE > data.size:
            raise IndexError("entries outside the map")
        at: cython.Py_ssize_t = start
        if cython.compiled:
            self._scan(data.base + at, count, first)
        else:
            self._scan(data.base[at:], count, first)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _scan(self, p: cython.p_const_uchar, count: cython.Py_ssize_t, first: cython.longlong) -> cython.int:
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.int
        taken: cython.int
        code: cython.int
        target: cython.p_uchar
        for i in range(count):
            size = get_i32(p, i * ENTRY_SIZE + 8)
            if self.tags is not None:
                # Only 32 bits: the code is a sign-extended hash, and the expression's tags are hashed alike.
                code = get_i32(p, i * ENTRY_SIZE + 16)
                if code not in self.tags:
                    self.scanned_to = first + i + 1
                    continue
            # An offset without a record takes no bytes of the answer, nor does an entry that makes no sense.
            taken = 0 if size == FILLER_SIZE or size < 0 else size
            if self.count and (self.count >= self.max_count or self.total_bytes + taken > self.max_bytes):
                self.full = True
                return 0
            at = self.count * ENTRY_SIZE
            if at + ENTRY_SIZE > len(self.chosen):
                self.chosen.extend(bytes(len(self.chosen)))
            target = self.chosen
            put_i64(target, at, get_i64(p, i * ENTRY_SIZE))
            put_i32(target, at + 8, size)
            put_i64(target, at + 12, first + i)
            self.count += 1
            self.total_bytes += taken
            self.scanned_to = first + i + 1
        return 0


def gather(
    selection: EntrySelection,
    maps: Sequence[MappedBytes | None],
    first_base: int,
    segment_size: int,
    topic: bytes,
    queue_id: int,
    verify: bool,
) -> tuple[bytearray, list[int], list[int]]:
    """One copy of every chosen record that is sound: (bytes, indexes of damaged ones, of missing ones)."""
    # Each record is copied right after its check, while it is near. An entry's size may lie, so no more than
    # GATHER_BYTES are reserved on its word; what goes beyond grows with records that were checked.
    count: cython.Py_ssize_t = selection.count
    damaged: list = []
    missing: list = []
    used: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    number: cython.longlong
    current: cython.longlong = -1
    pos: cython.Py_ssize_t
    phy: cython.longlong
    ahead: cython.longlong
    size: cython.longlong
    maps_count: cython.Py_ssize_t = len(maps)
    low: cython.longlong = first_base
    segment: cython.longlong = segment_size
    wanted_id: cython.int = queue_id
    check_sum: cython.int = verify
    chosen: cython.p_uchar = selection.chosen
    name: cython.p_uchar = topic
    name_size: cython.Py_ssize_t = len(topic)
    if low < 0 or segment < 1:
        raise ValueError("a log begins at 0 or later, and its segments have a size")
    data: MappedBytes
    has_data: cython.bint = False
    most: cython.Py_ssize_t = GATHER_BYTES
    room: cython.Py_ssize_t = selection.total_bytes
    if room > most:
        room = most
    out: bytearray = new_buffer(room)
    grown: bytearray
    target: cython.p_uchar = out
    source: cython.p_uchar
    for i in range(count):
        phy = get_i64(chosen, i * ENTRY_SIZE)
        number = -1 if phy < low else (phy - low) // segment
        if number != current:
            current = number
            has_data = number >= 0 and number < maps_count and maps[number] is not None
            if has_data:
                data = maps[number]
        # Records of one queue lie apart, where no processor looks ahead by itself.
        if has_data and i + AHEAD < count:
            ahead = get_i64(chosen, (i + AHEAD) * ENTRY_SIZE)
            size = get_i32(chosen, (i + AHEAD) * ENTRY_SIZE + 8)
            if size > 0 and ahead >= low and ahead - low - number * segment <= data.size - size:
                pos = ahead - low - number * segment
                if pos >= 0:
                    prefetch_at(data.base, pos, size)
        size = get_i32(chosen, i * ENTRY_SIZE + 8)
        # A map without bytes: retention took the segment between choosing and copying.
        if size == FILLER_SIZE or not has_data or data.size == 0:
            missing.append(i)
            continue
        pos = phy - low - number * segment
        if (
            size < RECORD_SIZE_MIN
            or pos + size > data.size
            or check_record(data.base, pos, pos + size, phy, check_sum) != size
            or get_i64(data.base, pos + 20) != get_i64(chosen, i * ENTRY_SIZE + 12)
            or get_i32(data.base, pos + 12) != wanted_id
            or not _is_of_topic(data.base, pos, name, name_size)
        ):
            damaged.append(i)
            continue
        if used + size > room:
            room = used + size if used + size > 2 * room else 2 * room
            grown = new_buffer(room)
            source = out
            target = grown
            copy_bytes(target, 0, source, 0, used)
            out = grown
        copy_bytes(target, used, data.base, pos, size)
        used += size
    if used < room:
        del out[used:]
    return out, damaged, missing


@cython.cfunc
@cython.exceptval(check=False)
def _is_of_topic(
    p: cython.p_const_uchar, pos: cython.Py_ssize_t, name: cython.p_uchar, size: cython.Py_ssize_t
) -> cython.bint:
    """Whether a checked record belongs to a topic: an entry that leads elsewhere must not serve it (A26)."""
    at: cython.Py_ssize_t = pos + 84
    found: cython.Py_ssize_t
    if get_u8(p, pos + 39) & 0x10:
        at += 12
    if get_u8(p, pos + 39) & 0x20:
        at += 12
    at += 4 + get_i32(p, at)
    if get_i32(p, pos + 4) == MAGIC_V2:
        found = get_i16(p, at)
        at += 2
    else:
        found = get_u8(p, at)
        at += 1
    return found == size and same_bytes(p, at, name, 0, size)


def walk(data: MappedBytes, start: int, end: int, base: int, verify: int) -> tuple[int, int, int, int]:
    """Step from record to record while they are valid, without the interpreter lock.

    Returns (position where it stopped, why, records passed, position of the last record or -1); why is 0 at
    the end of the range, else what `check_record` said.
    """
    if start < 0 or end > data.size or base < 0 or base > POSITION_MAX:
        raise IndexError("walk outside the map")
    hold = data.view  # as long as this is held the map stays, whoever releases it meanwhile
    p: cython.p_const_uchar = data.base
    pos: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = end
    limit: cython.Py_ssize_t = data.size
    origin: cython.longlong = base
    check_sum: cython.int = verify
    count: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = -1
    size: cython.longlong = 0
    with cython.nogil:
        while pos < stop:
            size = check_record(p, pos, limit, origin + pos, check_sum)
            if size < 0:
                break
            last = pos
            count += 1
            pos += size
    del hold
    return pos, size if size < 0 else 0, count, last


def find_record(data: MappedBytes, start: int, end: int, base: int) -> int:
    """Position of the first valid record (or blank record) at or after `start`, or -1.

    A record counts only if it names its own position, so bytes that merely look like one do not.
    """
    if start < 0 or end > data.size or base < 0 or base > POSITION_MAX:
        raise IndexError("search outside the map")
    hold = data.view  # as long as this is held the map stays, whoever releases it meanwhile
    p: cython.p_const_uchar = data.base
    at: cython.Py_ssize_t = start + 4
    stop: cython.Py_ssize_t = end
    origin: cython.longlong = base
    found: cython.Py_ssize_t = -1
    magic: cython.int
    with cython.nogil:
        while True:
            at = find_byte(p, at, stop - 3, 0xDA)
            if at < 0:
                break
            magic = get_i32(p, at)
            if (magic == MAGIC_V1 or magic == MAGIC_V2) and check_record(
                p, at - 4, stop, origin + at - 4, True
            ) > 0:
                found = at - 4
                break
            at += 1
    del hold
    return found


def is_zero(data: MappedBytes, start: int, end: int) -> bool:
    """True if a part of the map holds nothing but zeros."""
    if start < 0 or end > data.size:
        raise IndexError("test outside the map")
    return bool(all_zero(data.base, start, end))


def read_i64(data: MappedBytes, at: int) -> int:
    """A 64-bit field of a record or an entry."""
    if at < 0 or at + 8 > data.size:
        raise IndexError("field outside the map")
    return get_i64(data.base, at)


def store_timestamp(data: MappedBytes, at: int) -> int:
    """Store time of the record at `at`, which the caller knows to be one."""
    if at < 0 or at + 91 > data.size:
        raise IndexError("record outside the map")
    return get_i64(data.base, at + (68 if get_u8(data.base, at + 39) & 0x10 else 56))
