"""Staged messages: a client's items checked when they come, and copied into records when they are published.

    item      total size i32 | target i32 | delay level i32 | flag i32 | body size i32 | body
              | properties size i16 | properties

`check` is the only judge of items: what passed it is stored, under the checksum of a record, and copied later
without a second look at anything but its lengths. `build` puts copies into the store's builder: fresh queue
offsets, the log position of the publication as prepared offset, the broker's properties behind the client's.
`count_copies` finds how many copies of a publication a log has. Trusts no length.

Owned by the event loop, `build` under the store's append lock; after a crash by the thread that opens the broker.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import (
        copy_bytes,
        find_byte,
        get_i16,
        get_i32,
        get_i64,
        get_u8,
        put_i32,
        same_bytes,
    )
    from penstock._hot.checks import check_record
    from penstock._hot.layout import (
        DELAY_ROOM,
        I_LENGTHS,
        I_LEVEL,
        I_NO_KEY,
        I_PAIR,
        I_RESERVED,
        I_TARGET,
        I_TOO_LONG,
        ITEM_SIZE_MIN,
    )
    from penstock._hot.mapped import MappedBytes
    from penstock._hot.queues import QueueState
    from penstock._hot.records import AppendRequest, RecordBuilder
    from penstock._hot.text import put_decimal


@cython.cfunc
@cython.exceptval(check=False)
def is_reserved(p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    """Whether a property's name is a broker's to set, or asks for what staged messages cannot have. By its first
    letter: most names have another one."""
    first: cython.int = get_u8(p, at) if size else 0
    if first == 0x44:  # D
        return _is(p, at, size, b"DELAY", 5)
    if first == 0x52:  # R
        return _is(p, at, size, b"REAL_TOPIC", 10) or _is(p, at, size, b"REAL_QID", 8)
    if first == 0x4D:  # M
        return _is(p, at, size, b"MSG_REGION", 10)
    if first == 0x43:  # C
        return _is(p, at, size, b"CLUSTER", 7)
    if first == 0x57:  # W
        return _is(p, at, size, b"WAIT", 4)
    if first == 0x50:  # P
        return (
            _is(p, at, size, b"POP_CK", 6)
            or _is(p, at, size, b"PENSTOCK_PRODUCER", 17)
            or _is(p, at, size, b"PENSTOCK_SEQUENCE", 17)
        )
    if first == 0x5F:  # _
        return _is(p, at, size, b"__CRC32#", 8) or (
            size >= 16 and same_bytes(p, at, b"__RMQ.TRANSIENT.", 0, 16)
        )
    if first == 0x54:  # T
        return (
            _is(p, at, size, b"TRACE_ON", 8)
            or _is(p, at, size, b"TRAN_MSG", 8)
            or _is(p, at, size, b"TIMER_DELAY_SEC", 15)
            or _is(p, at, size, b"TIMER_DELAY_MS", 14)
            or _is(p, at, size, b"TIMER_DELIVER_MS", 16)
        )
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    name: cython.p_const_uchar,
    name_size: cython.Py_ssize_t,
) -> cython.bint:
    return size == name_size and same_bytes(p, at, name, 0, name_size)


@cython.cfunc
@cython.exceptval(check=False)
def _check_properties(p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """0 if these are whole pairs, one of them a unique key and none reserved; else why not."""
    stop: cython.Py_ssize_t
    middle: cython.Py_ssize_t
    has_key: cython.bint = False
    while at < end:
        stop = find_byte(p, at, end, 2)
        if stop < 0:
            return I_PAIR
        middle = find_byte(p, at, stop, 1)
        if middle <= at or middle + 1 >= stop or find_byte(p, middle + 1, stop, 1) >= 0:
            return I_PAIR
        if middle - at == 8 and same_bytes(p, at, b"UNIQ_KEY", 0, 8):
            has_key = True
        elif is_reserved(p, at, middle - at):
            return I_RESERVED
        at = stop + 1
    return 0 if has_key else I_NO_KEY


@cython.cclass
class CopyTargets:
    """Where copies go. By target: its queue (None: its topic is gone, and so are its messages), the system flag of
    its messages, and the properties that lead a delayed message back to it. By delay level: its queue."""

    def __init__(
        self,
        queues: Sequence[QueueState | None],
        flags: Sequence[int],
        places: Sequence[bytes],
        levels: Sequence[QueueState | None],
        suffix: bytes,
        prepared: int,
    ) -> None:
        self.queues = list(queues)
        self.flags = list(flags)
        self.places = list(places)
        self.levels = list(levels)
        # Behind the properties of every copy.
        self.suffix = suffix
        self.scratch = bytearray(40_000)
        # The log position of the publication: the prepared offset of every copy.
        self.prepared = prepared
        if not len(self.queues) == len(self.flags) == len(self.places):
            raise ValueError("each target has a queue, a flag and a place")


@cython.cclass
class StagedItems:
    """The items in content[start:end], and how far they are copied."""

    def __init__(self, content: MappedBytes, start: int, end: int) -> None:
        if start < 0 or end > content.size or start > end:
            raise IndexError("items outside their content")
        self.content = content
        self.start = self.pos = self.marked_pos = start
        self.end = end
        # Number of the next item to copy; after a failed `check`, of the item that is wrong.
        self.row = self.marked_row = 0
        # After `check`: items in all, and in `counts` as i32 for each target; the most bytes of body and properties;
        # a bit for each delay level in use, the highest for that and all above it.
        self.count = 0
        self.counts = bytearray()
        self.largest = 0
        self.levels = 0
        # Copies that no record can hold. Staging refuses them, so there are none unless a limit was lowered since.
        self.refused = 0
        self.targets = CopyTargets((), (), (), (), b"", 0)
        self.born_timestamp = 0
        self.born_host = b""
        self.bytes_max = 0
        self.count_max = 0

    # -- checking --------------------------------------------------------------------------------------------

    def check(self, targets: int, properties_max: int) -> int:
        """0 if every item may be published; else why the one in `row` may not."""
        p: cython.p_const_uchar = self.content.base
        pos: cython.Py_ssize_t = self.start
        size: cython.longlong
        body_size: cython.longlong
        text_size: cython.longlong
        target: cython.longlong
        level: cython.longlong
        one: cython.longlong = 1
        why: cython.int = 0
        most: cython.longlong = targets
        room: cython.longlong = properties_max
        if self.end > self.content.size:
            raise IndexError("the content of these items was released")
        self.counts = bytearray(4 * targets)
        counts: cython.p_uchar = self.counts
        self.count = 0
        self.largest = 0
        self.levels = 0
        while pos < self.end:
            why = I_LENGTHS
            if self.end - pos < ITEM_SIZE_MIN:
                break
            size = get_i32(p, pos)
            body_size = get_i32(p, pos + 16)
            if size < ITEM_SIZE_MIN or size > self.end - pos or body_size < 0:
                break
            if body_size > size - ITEM_SIZE_MIN:
                break
            text_size = get_i16(p, pos + 20 + body_size)
            if text_size < 0 or size != ITEM_SIZE_MIN + body_size + text_size:
                break
            target = get_i32(p, pos + 4)
            why = I_TARGET
            if target < 0 or target >= most:
                break
            why = I_LEVEL
            level = get_i32(p, pos + 8)
            if level < 0:
                break
            why = I_TOO_LONG
            if text_size > room:
                break
            why = _check_properties(p, pos + 22 + body_size, pos + size)
            if why:
                break
            put_i32(counts, target * 4, get_i32(counts, target * 4) + 1)
            if level:
                self.levels |= one << min(level, 62)
            if body_size + text_size > self.largest:
                self.largest = body_size + text_size
            self.count += 1
            pos += size
        self.row = self.count if why else 0
        return why

    def used(self) -> list[tuple[int, int]]:
        """The targets that items go to, lowest first, with how many do."""
        p: cython.p_uchar = self.counts
        target: cython.Py_ssize_t
        count: cython.int
        found: list = []
        for target in range(len(self.counts) // 4):
            count = get_i32(p, target * 4)
            if count:
                found.append((target, count))
        return found

    # -- copying ---------------------------------------------------------------------------------------------

    def begin(
        self, targets: CopyTargets, born_timestamp: int, born_host: bytes, bytes_max: int, count_max: int
    ) -> None:
        """What `build` needs besides the items: at most so many bytes and messages go into one run."""
        self.targets = targets
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.bytes_max = bytes_max
        self.count_max = count_max

    @property
    def is_done(self) -> bool:
        """Whether every item is copied."""
        return self.pos >= self.end

    def skip(self, count: int) -> int:
        """Pass over items that are copied already; how many there were to pass."""
        passed: cython.Py_ssize_t = 0
        while passed < count and self.pos < self.end:
            self._item()
            self._step()
            passed += 1
        return passed

    def properties(self) -> bytes:
        """Those of the next item to copy, as they were staged."""
        p: cython.p_const_uchar = self.content.base
        body_size: cython.Py_ssize_t = self._item()
        return bytes(p[self.pos + 22 + body_size : self.pos + get_i32(p, self.pos)])

    def restart(self) -> None:
        """Nothing is copied."""
        self.pos, self.row = self.start, 0

    def rewind(self) -> None:
        """The run that `build` began last was not written: its items are to be copied again."""
        self.pos, self.row = self.marked_pos, self.marked_row

    def build(self, builder: RecordBuilder) -> int:
        """Copies of the next items, as far as they fit the run; how many."""
        p: cython.p_const_uchar = self.content.base
        host: cython.p_uchar = self.born_host
        scratch: cython.p_uchar = self.targets.scratch
        host_size: cython.Py_ssize_t = len(self.born_host)
        limit: cython.longlong = builder.used + self.bytes_max
        made: cython.Py_ssize_t = 0
        text_size: cython.Py_ssize_t
        body_size: cython.Py_ssize_t
        size: cython.longlong
        queue: QueueState | None
        self.marked_pos, self.marked_row = self.pos, self.row
        while self.pos < self.end and made < self.count_max and builder.used < limit:
            body_size = self._item()
            queue = self._queue()
            if queue is None:
                self._step()
                continue
            text_size = self._properties(body_size)
            size = builder.put(
                queue,
                p,
                self.pos + 20,
                body_size,
                scratch,
                0,
                text_size,
                get_i32(p, self.pos + 12),
                self.targets.flags[get_i32(p, self.pos + 4)],
                self.born_timestamp,
                host,
                host_size,
                0,
                self.targets.prepared,
            )
            if size == 0:
                break
            if size > 0:
                builder.given.append(queue)
                made += 1
            else:
                self.refused += 1
            self._step()
        return made

    def request(self) -> AppendRequest | None:
        """The next item's copy as a request of its own, for where a segment ends; None if its topic is gone."""
        p: cython.p_const_uchar = self.content.base
        body_size: cython.Py_ssize_t = self._item()
        queue: QueueState | None = self._queue()
        self.marked_pos, self.marked_row = self.pos, self.row
        at: cython.Py_ssize_t = self.pos + 20
        flag: cython.int = get_i32(p, self.pos + 12)
        target: cython.Py_ssize_t = get_i32(p, self.pos + 4)
        text_size: cython.Py_ssize_t = self._properties(body_size) if queue is not None else 0
        self._step()
        if queue is None:
            return None
        return AppendRequest(
            queue,
            bytes(p[at : at + body_size]),
            bytes(self.targets.scratch[:text_size]),
            self.born_timestamp,
            self.born_host,
            flag,
            self.targets.flags[target],
            0,
            self.targets.prepared,
        )

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _item(self) -> cython.Py_ssize_t:
        """The body size of the next item, all of which lies inside the content. Called before anything of it is read:
        items come back from the log, and a map may have been released since."""
        p: cython.p_const_uchar = self.content.base
        left: cython.Py_ssize_t = min(self.end, self.content.size) - self.pos
        if self.pos >= self.end:
            raise IndexError("every item is copied")
        if left < ITEM_SIZE_MIN:
            raise IndexError("an item that was checked does not add up")
        size: cython.longlong = get_i32(p, self.pos)
        body_size: cython.longlong = get_i32(p, self.pos + 16)
        if size < ITEM_SIZE_MIN or size > left or body_size < 0 or body_size > size - ITEM_SIZE_MIN:
            raise IndexError("an item that was checked does not add up")
        if size != ITEM_SIZE_MIN + body_size + get_i16(p, self.pos + 20 + body_size):
            raise IndexError("an item that was checked does not add up")
        return body_size

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _step(self) -> cython.int:
        """Pass over an item that `_item` has checked."""
        self.pos += get_i32(self.content.base, self.pos)
        self.row += 1
        return 0

    @cython.cfunc
    def _queue(self) -> QueueState | None:
        """Where the next item's copy goes: its target's queue, or for a while that of its delay level."""
        p: cython.p_const_uchar = self.content.base
        target: cython.Py_ssize_t = get_i32(p, self.pos + 4)
        level: cython.Py_ssize_t = get_i32(p, self.pos + 8)
        levels: cython.Py_ssize_t = len(self.targets.levels)
        if target < 0 or target >= len(self.targets.queues):
            raise IndexError("an item that was checked has no target")
        if self.targets.queues[target] is None or level <= 0 or levels == 0:
            return self.targets.queues[target]
        return self.targets.levels[min(level, levels) - 1]

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _properties(self, body_size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """The copy's properties, put together in the scratch buffer; their size."""
        p: cython.p_const_uchar = self.content.base
        at: cython.Py_ssize_t = self.pos + 22 + body_size
        size: cython.Py_ssize_t = get_i16(p, at - 2)
        level: cython.Py_ssize_t = get_i32(p, self.pos + 8)
        levels: cython.Py_ssize_t = len(self.targets.levels)
        suffix: cython.p_const_uchar = self.targets.suffix
        suffix_size: cython.Py_ssize_t = len(self.targets.suffix)
        scratch: cython.p_uchar = self.targets.scratch
        place: bytes
        source: cython.p_const_uchar
        to: cython.Py_ssize_t = 0
        place = self.targets.places[get_i32(p, self.pos + 4)]
        if len(place) + DELAY_ROOM + size + suffix_size > len(self.targets.scratch):
            raise IndexError("properties that were checked are too long")
        if level > 0 and levels > 0:
            copy_bytes(scratch, 0, b"DELAY\x01", 0, 6)
            to = put_decimal(scratch, 6, min(level, levels))
            copy_bytes(scratch, to, b"\x02", 0, 1)
            source = place
            copy_bytes(scratch, to + 1, source, 0, len(place))
            to += 1 + len(place)
        copy_bytes(scratch, to, p, at, size)
        copy_bytes(scratch, to + size, suffix, 0, suffix_size)
        return to + size + suffix_size


def count_copies(
    data: MappedBytes, start: int, end: int, base: int, prepared: int
) -> tuple[int, int, int, int]:
    """Records of data[start:end] that say they were prepared at a log position, without the interpreter lock.

    (where it stopped, why, how many, where the last of them is or -1); why is 0 at the end of the range, else
    what `check_record` said.
    """
    if start < 0 or end > data.size:
        raise IndexError("search outside the map")
    hold = data.view  # as long as this is held the map stays, whoever releases it meanwhile
    p: cython.p_const_uchar = data.base
    pos: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = end
    origin: cython.longlong = base
    wanted: cython.longlong = prepared
    count: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = -1
    at: cython.Py_ssize_t
    size: cython.longlong = 0
    with cython.nogil:
        while pos < stop:
            size = check_record(p, pos, stop, origin + pos, 0)
            if size < 0:
                break
            at = pos + 76
            if get_u8(p, pos + 39) & 0x10:
                at += 12
            if get_u8(p, pos + 39) & 0x20:
                at += 12
            if get_i64(p, at) == wanted:
                count += 1
                last = pos
            pos += size
    del hold
    return pos, size if size < 0 else 0, count, last
