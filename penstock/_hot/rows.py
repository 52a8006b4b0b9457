"""Choosing rows: stored records that are sound, in range and wanted, remembered by where their parts are.

Records come one after the other, as a pull answers them, or through 20-byte queue entries that lead into a
mapped segment. Each is checked before anything of it counts (lengths, checksum, its place in queue and log); what
fails is noted with its queue offset and left out. A row that is chosen takes a few slots, no object; `columns.py`
turns a block of them into columns while their bytes are still near.

Nothing here reads outside the bytes it is given. An instance belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import (
        find_byte,
        get_i16,
        get_i32,
        get_i64,
        get_u8,
        is_utf8,
        java_hash,
        prefetch_at,
        put_i64,
        same_bytes,
    )
    from penstock._hot.checks import check_record
    from penstock._hot.layout import (
        AHEAD,
        BAD_CHECKSUM,
        BAD_SIZE,
        BLOCK_BYTES,
        BLOCK_ROWS,
        ELSEWHERE,
        ENTRY_SIZE,
        FILLER_SIZE,
        MAGIC_V2,
        NO_RECORD,
        NOT_PACKED,
        R_BODY,
        R_BODY_SIZE,
        R_ID,
        R_ID_SIZE,
        R_KEYS,
        R_KEYS_SIZE,
        R_PLAIN,
        R_RECORD,
        R_REST,
        R_TAGS,
        R_TAGS_SIZE,
        R_TEXT,
        R_TEXT_SIZE,
        R_TOPIC,
        R_TOPIC_SIZE,
        RECORD_SIZE_MIN,
        ROW_SIZE,
    )
    from penstock._hot.mapped import MappedBytes


@cython.cclass
class RowScan:
    """The rows of one batch, block by block. A subclass says in `_fill` what becomes of a block."""

    def __init__(
        self,
        rows_max: int,
        size_max: int,
        tags: Sequence[bytes],
        key: bytes,
        verify: bool,
        find_names: bool,
        reads_text: bool,
        unpack: Callable[[bytes, int], Any] | None,
    ) -> None:
        self.slots = bytearray(BLOCK_ROWS * ROW_SIZE)
        self.rows_max = rows_max
        self.size_max = size_max
        self.tags = list(tags)
        self.key = key
        self.verify = verify
        self.find_names = bool(find_names or tags or key)
        self.reads_text = bool(find_names or reads_text)
        # Gives the body of a packed record, None where it cannot; without it bodies are not looked at.
        self.unpack = unpack
        # What queue entries hold for these tags, 4 bytes each.
        self.codes = b"".join(
            [java_hash(tag, 0, len(tag), 0).to_bytes(4, "big", signed=True) for tag in self.tags]
        )
        self.rows = 0
        self.taken_bytes = 0
        self.full = False
        self.next_offset = 0
        self.cut_short = False
        self.damaged: list[list[int]] = []
        self._clear_block()

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _clear_block(self) -> cython.int:
        self.count = 0
        self.block_bytes = 0
        self.body_bytes = 0
        self.topic_bytes = 0
        self.text_bytes = 0
        self.unpacked = []
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill(self, p: cython.p_const_uchar) -> cython.int:
        """Turn the block's rows into columns; `p` is where their positions count from."""
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _end_block(self, p: cython.p_const_uchar) -> cython.int:
        if self.count:
            self._fill(p)
            self.rows += self.count
            self._clear_block()
        return 0

    def note(self, first: int, last: int, reason: int) -> None:
        """Count offsets as damaged that whoever feeds this found nothing for."""
        self._note(first, last, reason)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _note(self, first: cython.longlong, last: cython.longlong, reason: cython.int) -> cython.int:
        """Remember queue offsets without a row: [first, last, why], and neighbours as one."""
        newest: list
        if self.damaged:
            newest = self.damaged[len(self.damaged) - 1]
            if newest[2] == reason and newest[1] == first - 1:
                newest[1] = last
                return 0
        self.damaged.append([first, last, reason])
        return 0

    def take_run(
        self,
        data: MappedBytes,
        start: int,
        first: int,
        end: int,
        topic: bytes,
        queue_id: int,
        complete: bool,
    ) -> int:
        """Take records one after the other from byte `start` on; the byte to go on at, once the batch is taken.

        Only queue offsets in [first, end) count, and each once: they ascend. With a topic, or a queue id that is
        not negative, a record of any other place is damage (A26); `complete`: an offset that is left out is too.
        Behind a record whose lengths make no sense nothing can be found, so the rest is given up.
        """
        if start < 0 or start > data.size:
            raise IndexError("no such place in the run")
        hold = data.view  # the bytes stay as long as this is held
        p: cython.p_const_uchar = data.base
        if self.count:
            raise RuntimeError("the block before failed: its rows lie in other bytes")
        pos: cython.Py_ssize_t = start
        stop: cython.Py_ssize_t = data.size
        low: cython.longlong = first
        high: cython.longlong = end
        offset: cython.longlong
        size: cython.longlong
        found: cython.int
        wanted_id: cython.int = queue_id
        name: cython.p_const_uchar = topic
        name_size: cython.Py_ssize_t = len(topic)
        verify: cython.int = self.verify
        whole: cython.bint = complete
        self.next_offset = low
        self.cut_short = False
        while pos < stop:
            size = check_record(p, pos, stop, -1, verify)
            if size < 0 and size != BAD_CHECKSUM:
                self._note(self.next_offset, self.next_offset, size)
                self.next_offset += 1
                self.cut_short = True
                pos = stop
                break
            found = 1
            if size < 0:
                found = BAD_CHECKSUM
                size = get_i32(p, pos)
            offset = get_i64(p, pos + 20)
            if offset >= high:
                pos = stop
                break
            if offset < self.next_offset:
                pos += size
                continue
            if self._is_full(size):
                break
            if whole and offset > self.next_offset:
                self._note(self.next_offset, offset - 1, NO_RECORD)
            if found == 1:
                if not _is_of_queue(p, pos, wanted_id, name, name_size):
                    found = ELSEWHERE
                else:
                    found = self._place(p, pos, size)
            if found < 0:
                self._note(offset, offset, found)
            self.next_offset = offset + 1
            pos += size
            if self.count == BLOCK_ROWS or self.block_bytes >= BLOCK_BYTES:
                self._end_block(p)
        self._end_block(p)
        del hold
        return pos

    def take_entries(
        self,
        data: MappedBytes,
        base: int,
        entries: bytes,
        start: int,
        first: int,
        topic: bytes,
        queue_id: int,
        by_code: bool,
    ) -> int:
        """Take the records that entries lead to, from entry `start` on; the number of the entry to go on at.

        It stops once the batch is full, and at a record outside `data`, the segment that begins at log position
        `base`. `first` is the queue offset of entry 0. `by_code`: the entries hold the hashes of tags.
        """
        if start < 0 or base < 0:
            raise IndexError("no such entry, or no such segment")
        hold = data.view
        p: cython.p_const_uchar = data.base
        limit: cython.Py_ssize_t = data.size
        low: cython.longlong = base
        origin: cython.longlong = first
        e: cython.p_const_uchar = entries
        count: cython.Py_ssize_t = len(entries) // ENTRY_SIZE
        i: cython.Py_ssize_t = start
        if self.count:
            raise RuntimeError("the block before failed: its rows lie in other bytes")
        pos: cython.Py_ssize_t
        phy: cython.longlong
        offset: cython.longlong
        size: cython.longlong
        found: cython.longlong
        wanted_id: cython.int = queue_id
        name: cython.p_const_uchar = topic
        name_size: cython.Py_ssize_t = len(topic)
        verify: cython.int = self.verify
        codes: cython.p_const_uchar = self.codes
        codes_size: cython.Py_ssize_t = len(self.codes)
        coded: cython.bint = by_code and codes_size > 0
        while i < count:
            # Records of one queue lie apart, where no processor looks ahead by itself.
            if i + AHEAD < count:
                phy = get_i64(e, (i + AHEAD) * ENTRY_SIZE)
                size = get_i32(e, (i + AHEAD) * ENTRY_SIZE + 8)
                if size > 0 and phy >= low and phy - low <= limit - size:
                    prefetch_at(p, phy - low, size)
            phy = get_i64(e, i * ENTRY_SIZE)
            size = get_i32(e, i * ENTRY_SIZE + 8)
            offset = origin + i
            if size == FILLER_SIZE or size == 0:
                self._note(offset, offset, NO_RECORD)
                i += 1
                continue
            if coded and not _has_code(codes, codes_size, get_i32(e, i * ENTRY_SIZE + 16)):
                i += 1
                continue
            if phy < low or phy - low >= limit:
                break
            if self._is_full(size):
                break
            pos = phy - low
            if size < RECORD_SIZE_MIN or pos + size > limit:
                found = BAD_SIZE
            else:
                found = check_record(p, pos, pos + size, phy, verify)
                if found >= 0 and found != size:
                    found = BAD_SIZE
            if found > 0:
                if get_i64(p, pos + 20) != offset or not _is_of_queue(p, pos, wanted_id, name, name_size):
                    found = ELSEWHERE
                else:
                    found = self._place(p, pos, size)
            if found < 0:
                self._note(offset, offset, found)
            i += 1
            if self.count == BLOCK_ROWS or self.block_bytes >= BLOCK_BYTES:
                self._end_block(p)
        self._end_block(p)
        self.next_offset = origin + i
        del hold
        return i

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_full(self, size: cython.longlong) -> cython.bint:
        """Whether one more record of this size belongs to the next batch."""
        rows: cython.Py_ssize_t = self.rows + self.count
        self.full = rows >= self.rows_max or (rows > 0 and self.taken_bytes + size > self.size_max)
        return self.full

    @cython.cfunc
    @cython.exceptval(-20, check=True)
    def _place(self, p: cython.p_const_uchar, pos: cython.Py_ssize_t, size: cython.longlong) -> cython.int:
        """Note where the parts of a checked record are: 1 if it is a row, 0 if no filter lets it through."""
        s: cython.p_uchar = self.slots
        at: cython.Py_ssize_t = self.count * ROW_SIZE
        flags: cython.int = get_i32(p, pos + 36)
        body: cython.Py_ssize_t = pos + 88
        if flags & 0x10:
            body += 12
        if flags & 0x20:
            body += 12
        length: cython.Py_ssize_t = get_i32(p, body - 4)
        topic: cython.Py_ssize_t = body + length
        topic_size: cython.Py_ssize_t
        if get_i32(p, pos + 4) == MAGIC_V2:
            topic_size = get_i16(p, topic)
            topic += 2
        else:
            topic_size = get_u8(p, topic)
            topic += 1
        text: cython.Py_ssize_t = topic + topic_size + 2
        if self.find_names:
            self._find_names(p, text, pos + size)
            if (self.tags or self.key) and not self._is_wanted(p):
                return 0
        put_i64(s, at + R_RECORD, pos)
        put_i64(s, at + R_REST, body - 16)
        put_i64(s, at + R_TOPIC, topic)
        put_i64(s, at + R_TOPIC_SIZE, topic_size)
        put_i64(s, at + R_TEXT, text)
        put_i64(s, at + R_TEXT_SIZE, pos + size - text)
        # Marks between properties are ASCII: if the whole is UTF-8, so is each part.
        put_i64(s, at + R_PLAIN, self.reads_text and is_utf8(p, text, pos + size - text))
        if flags & 1 and self.unpack is not None:
            content: bytes = self.unpack(bytes(p[body : body + length]), flags)
            if content is None:
                return NOT_PACKED
            self.unpacked.append(content)
            body = -len(self.unpacked)
            length = len(content)
            self.taken_bytes += length
        put_i64(s, at + R_BODY, body)
        put_i64(s, at + R_BODY_SIZE, length)
        self.body_bytes += length
        self.topic_bytes += topic_size
        self.text_bytes += pos + size - text
        self.block_bytes += size
        self.taken_bytes += size
        self.count += 1
        return 1

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _find_names(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Where the values of KEYS, TAGS and UNIQ_KEY are: the last of equal names, size -1 where there is none."""
        s: cython.p_uchar = self.slots
        row: cython.Py_ssize_t = self.count * ROW_SIZE
        stop: cython.Py_ssize_t
        name_end: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        put_i64(s, row + R_KEYS_SIZE, -1)
        put_i64(s, row + R_TAGS_SIZE, -1)
        put_i64(s, row + R_ID_SIZE, -1)
        while at < end:
            stop = find_byte(p, at, end, 2)
            if stop < 0:
                stop = end
            slot = -1
            name_end = at
            if stop - at > 5 and get_u8(p, at + 4) == 1:
                if get_i32(p, at) == 0x4B455953:  # KEYS
                    slot = R_KEYS
                elif get_i32(p, at) == 0x54414753:  # TAGS
                    slot = R_TAGS
                name_end = at + 4
            elif stop - at > 9 and get_u8(p, at + 8) == 1:
                if get_i32(p, at) == 0x554E4951 and get_i32(p, at + 4) == 0x5F4B4559:  # UNIQ_KEY
                    slot = R_ID
                name_end = at + 8
            if slot >= 0:
                put_i64(s, row + slot, name_end + 1)
                put_i64(s, row + slot + 8, stop - name_end - 1)
            at = stop + 1
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_wanted(self, p: cython.p_const_uchar) -> cython.bint:
        """Whether the row in hand has one of the tags, and the key."""
        s: cython.p_uchar = self.slots
        row: cython.Py_ssize_t = self.count * ROW_SIZE
        at: cython.Py_ssize_t = get_i64(s, row + R_TAGS)
        size: cython.Py_ssize_t = get_i64(s, row + R_TAGS_SIZE)
        stop: cython.Py_ssize_t
        end: cython.Py_ssize_t
        tag: bytes
        if self.tags:
            for tag in self.tags:
                if _is_text(p, at, size, tag):
                    break
            else:
                return False
        if not self.key:
            return True
        if _is_text(p, get_i64(s, row + R_ID), get_i64(s, row + R_ID_SIZE), self.key):
            return True
        at = get_i64(s, row + R_KEYS)
        size = get_i64(s, row + R_KEYS_SIZE)
        end = at + size
        while size > 0 and at < end:
            stop = find_byte(p, at, end, 32)
            if stop < 0:
                stop = end
            if _is_text(p, at, stop - at, self.key):
                return True
            at = stop + 1
        return False


@cython.cfunc
@cython.exceptval(check=False)
def _has_code(codes: cython.p_const_uchar, codes_size: cython.Py_ssize_t, code: cython.int) -> cython.bint:
    at: cython.Py_ssize_t = 0
    while at < codes_size:
        if get_i32(codes, at) == code:
            return True
        at += 4
    return False


@cython.cfunc
@cython.exceptval(check=False)
def _is_text(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, wanted: bytes
) -> cython.bint:
    w: cython.p_const_uchar = wanted
    return size == len(wanted) and same_bytes(p, at, w, 0, size)


@cython.cfunc
@cython.exceptval(check=False)
def _is_of_queue(
    p: cython.p_const_uchar,
    pos: cython.Py_ssize_t,
    queue_id: cython.int,
    name: cython.p_const_uchar,
    size: cython.Py_ssize_t,
) -> cython.bint:
    """Whether a checked record is of a queue; a negative id and an empty name stand for any."""
    at: cython.Py_ssize_t = pos + 84
    found: cython.Py_ssize_t
    if queue_id >= 0 and get_i32(p, pos + 12) != queue_id:
        return False
    if size == 0:
        return True
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
