"""From the log to the queues: each visible record becomes a 20-byte queue entry and its keys index entries.

The dispatcher walks a run of records, wherever the bytes are (the buffer just written, or a map), and stops
with a reason when it needs its owner: at a queue it does not know, at a hole in a queue's offsets, at a blank
record, at damage. It runs again from `position` afterwards. Running over the same records twice changes
nothing, which is what recovery relies on.

Owned by whoever holds the store's append lock. Never reads outside the run, never touches a file.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        java_hash,
        prefetch,
        put_i32,
        put_i64,
        same_bytes,
    )
    from penstock._hot.checks import check_record
    from penstock._hot.layout import (
        BLANK,
        DAMAGED,
        DONE,
        END_OF_SEGMENT,
        ENTRY_SIZE,
        GAP,
        MAGIC_BLANK,
        MAGIC_V2,
        NEW_QUEUE,
        NOTHING,
        POSITION_MAX,
    )
    from penstock._hot.mapped import MappedBytes
    from penstock._hot.queues import QueueState
    from penstock._hot.records import AppendRequest, RecordBuilder

# Pending keys there is room for before the buffer grows; memory that is never touched costs nothing.
KEYS_ROOM = 1 << 18


@cython.cclass
class Dispatcher:
    """Queues by identity, keys on their way to the index, and how far the last run came."""

    def __init__(self, delays_ms: Sequence[int], index_keys: bool, tail_max: int = 0) -> None:
        self.queues: dict[tuple[bytes, int], QueueState] = {}
        self.cache: list[QueueState | None] = [None] * 256
        self.delays_ms = list(delays_ms)
        self.index_keys = index_keys
        self.touched = []
        # Queues whose tail has reached `tail_max` entries: time to write them.
        self.heavy = []
        self.tail_max = tail_max
        self.round = 1
        self.keys = self._room_for_keys()
        self.spare_keys: bytearray | None = None
        self.key_count = 0
        self.indexed_to = -1
        self.position = 0
        self.count = 0
        self.last_timestamp = 0
        # The log is visible up to `offset`, and may be up to `limit`; with `direct` an append shows its own messages.
        self.offset = 0
        self.limit = 0
        self.direct = False

    def add_queue(self, queue: QueueState) -> None:
        """From now on records of this queue go to it."""
        self.queues[(queue.topic, queue.queue_id)] = queue
        self.cache = [None] * 256

    def remove_queue(self, queue: QueueState) -> None:
        """The queue was deleted."""
        self.queues.pop((queue.topic, queue.queue_id), None)
        self.cache = [None] * 256

    def next_round(self) -> None:
        """Start collecting anew which queues got entries."""
        self.round += 1
        self.touched = []

    def take_heavy(self) -> list[QueueState]:
        """Queues that have gathered enough entries since the last call."""
        heavy = self.heavy
        self.heavy = []
        return heavy

    def take_keys(self) -> tuple[bytearray, int]:
        """Hand over the pending keys, to be entered elsewhere while new ones come in; give the memory back after."""
        keys, count = self.keys, self.key_count
        self.keys, self.spare_keys = self.spare_keys or self._room_for_keys(), None
        self.key_count = 0
        return keys, count

    @cython.cfunc
    def _room_for_keys(self) -> bytearray:
        """Megabytes, which a store without an index (a directory that Spark plans to read) does not pay for."""
        return bytearray(KEYS_ROOM * ENTRY_SIZE if self.index_keys else 0)

    def drop_keys(self) -> None:
        """The pending keys are not wanted any more."""
        self.key_count = 0

    def give_back(self, keys: bytearray) -> None:
        """The taken keys are in the index; their memory serves again, unless one burst made it large."""
        if len(keys) <= 4 * KEYS_ROOM * ENTRY_SIZE:
            self.spare_keys = keys

    def run_built(self, builder: RecordBuilder) -> int:
        """Dispatch the records that a builder has just made. Their lengths need no second look: only a builder has
        bytes for which that is true."""
        p: cython.p_uchar = builder.buffer
        return self._run(p, 0, builder.used, builder.base, True)

    def append(
        self,
        builder: RecordBuilder,
        requests: Sequence[AppendRequest],
        base: int,
        room: int,
        now: int,
        fd: int,
        position: int,
    ) -> int:
        """Build a run of all requests, write it at `position` of the file and `show` it; its size.

        -1 if they do not all fit: nothing is given out. A failed write gives -2 with the reason in the builder's
        `error`: what was given out has to be taken back. One call, because between three of them the interpreter
        would cost as much as dispatching does.
        """
        used: cython.Py_ssize_t = builder._build(requests, base, room, now)
        if used < 0:
            return -1
        builder.error = builder._write(fd, position)
        if builder.error:
            return -2
        self._show(requests, base, base + used)
        return used

    def show(self, requests: Sequence[AppendRequest], base: int, end: int) -> None:
        """Dispatch messages just written at `base`, if that is wanted and nothing before them is waiting."""
        self._show(requests, base, end)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _show(
        self, requests: Sequence[AppendRequest], base: cython.longlong, end: cython.longlong
    ) -> cython.int:
        if self.direct and base == self.offset and end <= self.limit and self._run_requests(requests) == DONE:
            self.offset = end
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _run_requests(self, requests: Sequence[AppendRequest]) -> cython.int:
        """From the requests that still hold all that is needed: the same outcome as reading their records back from
        the log, at half the price."""
        i: cython.Py_ssize_t
        total: cython.Py_ssize_t = len(requests)
        kind: cython.int
        size: cython.longlong
        phy: cython.longlong
        p: cython.p_uchar
        request: AppendRequest
        queue: QueueState
        for i in range(total):
            if i + 6 < total:
                prefetch(requests[i + 6])
            if i + 3 < total:
                request = requests[i + 3]
                prefetch(request.properties)
            request = requests[i]
            size = request.size
            if size <= 0:
                continue
            phy = request.physical_offset
            queue = request.queue
            p = request.properties
            kind = request.sys_flag & 0xC
            self._find_properties(p, 0, len(request.properties))
            if (kind == 0 or kind == 8) and phy + size > queue.max_phy:
                if request.queue_offset != queue.tail_first + queue.tail_count:
                    return GAP
                queue.add(phy, size, self._tags_code(queue, p, request.store_timestamp))
                if queue.tail_count == self.tail_max:
                    self.heavy.append(queue)
                if queue.round != self.round:
                    queue.round = self.round
                    self.touched.append(queue)
            if self.index_keys and kind != 0xC and phy > self.indexed_to:
                self._add_keys(queue, p, phy, request.store_timestamp)
                self.indexed_to = phy
            self.last_timestamp = request.store_timestamp
            self.count += 1
        return DONE

    def run_mapped(self, data: MappedBytes, pos: int, end: int, base: int) -> int:
        """The same over a map."""
        if pos < 0 or end > data.size or base < 0 or base > POSITION_MAX:
            raise IndexError("run outside the map")
        hold = data.view  # as long as this is held the map stays, whoever releases it meanwhile
        status: cython.int = self._run(data.base, pos, end, base, False)
        del hold
        return status

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _run(
        self,
        p: cython.p_const_uchar,
        pos: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        base: cython.longlong,
        built: cython.bint,
    ) -> cython.int:
        size: cython.longlong
        at: cython.Py_ssize_t
        queue_id: cython.int
        sys_flag: cython.int
        kind: cython.int
        phy: cython.longlong
        queue_offset: cython.longlong
        timestamp: cython.longlong
        topic_size: cython.Py_ssize_t
        queue: QueueState | None
        while pos < end:
            phy = base + pos
            if built and get_i32(p, pos + 4) != MAGIC_BLANK:
                size = get_i32(p, pos)
            else:
                size = check_record(p, pos, end, phy, 0)
            if size < 0:
                self.position = pos
                if size == BLANK:
                    return END_OF_SEGMENT
                return DONE if size == NOTHING else DAMAGED
            queue_id = get_i32(p, pos + 12)
            queue_offset = get_i64(p, pos + 20)
            sys_flag = get_i32(p, pos + 36)
            at = pos + 56
            if sys_flag & 0x10:
                at += 12
            timestamp = get_i64(p, at)
            at += 40 if sys_flag & 0x20 else 28
            at += 4 + get_i32(p, at)
            if get_i32(p, pos + 4) == MAGIC_V2:
                topic_size = get_i16(p, at)
                at += 2
            else:
                topic_size = get_u8(p, at)
                at += 1
            queue = self._queue(p, at, topic_size, queue_id)
            if queue is None:
                self.position = pos
                return NEW_QUEUE
            self._find_properties(p, at + topic_size + 2, pos + size)
            kind = sys_flag & 0xC
            if (kind == 0 or kind == 8) and phy + size > queue.max_phy:
                if queue_offset > queue.tail_first + queue.tail_count:
                    self.position = pos
                    return GAP
                if queue_offset == queue.tail_first + queue.tail_count:
                    queue.add(phy, size, self._tags_code(queue, p, timestamp))
                    if queue.tail_count == self.tail_max:
                        self.heavy.append(queue)
                    if queue.round != self.round:
                        queue.round = self.round
                        self.touched.append(queue)
            if self.index_keys and kind != 0xC and phy > self.indexed_to:
                self._add_keys(queue, p, phy, timestamp)
                self.indexed_to = phy
            self.last_timestamp = timestamp
            self.count += 1
            pos += size
        self.position = pos
        return DONE

    @cython.cfunc
    def _queue(
        self,
        p: cython.p_const_uchar,
        topic_at: cython.Py_ssize_t,
        topic_size: cython.Py_ssize_t,
        queue_id: cython.int,
    ) -> QueueState | None:
        """The queue of a record; a small cache saves making the dictionary key for every record."""
        slot: cython.Py_ssize_t = queue_id  # wider: the largest id times 31 is no int
        slot = (slot * 31 + topic_size) & 0xFF
        topic: cython.p_uchar
        queue: QueueState | None
        if topic_size:
            slot = (slot ^ get_u8(p, topic_at) ^ get_u8(p, topic_at + topic_size - 1) * 5) & 0xFF
        queue = self.cache[slot]
        if queue is not None and queue.queue_id == queue_id and len(queue.topic) == topic_size:
            topic = queue.topic
            if same_bytes(p, topic_at, topic, 0, topic_size):
                return queue
        name: bytes = bytes(p[topic_at : topic_at + topic_size])
        queue = self.queues.get((name, queue_id))
        if queue is not None:
            self.cache[slot] = queue
        return queue

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find_properties(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.void:
        """Where in the properties the few are that matter here; the last of equal names counts."""
        stop: cython.Py_ssize_t
        size: cython.Py_ssize_t
        name: cython.int
        self.tags = self.keys_at = self.unique = self.delay = -1
        while at < end:
            stop = find_byte(p, at, end, 2)
            if stop < 0:
                stop = end
            size = stop - at
            if size > 5:
                name = get_i32(p, at)
                if name == 0x54414753 and get_u8(p, at + 4) == 1:  # TAGS
                    self.tags = at + 5
                    self.tags_end = stop
                elif name == 0x4B455953 and get_u8(p, at + 4) == 1:  # KEYS
                    self.keys_at = at + 5
                    self.keys_end = stop
                elif (
                    name == 0x554E4951  # UNIQ
                    and size > 9
                    and get_u8(p, at + 8) == 1
                    and get_i32(p, at + 4) == 0x5F4B4559  # _KEY
                ):
                    self.unique = at + 9
                    self.unique_end = stop
                elif name == 0x44454C41 and size > 6 and get_u8(p, at + 4) == 0x59 and get_u8(p, at + 5) == 1:
                    self.delay = at + 6  # DELA, Y
                    self.delay_end = stop
            at = stop + 1

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _tags_code(
        self, queue: QueueState, p: cython.p_const_uchar, timestamp: cython.longlong
    ) -> cython.longlong:
        """What a queue entry says for filtering: the hash of the tag or, for delayed messages, the due time."""
        level: cython.longlong = 0
        i: cython.Py_ssize_t
        digit: cython.int
        if queue.scheduled and self.delay >= 0:
            for i in range(self.delay, min(self.delay_end, self.delay + 9)):
                digit = get_u8(p, i) - 48
                if digit < 0 or digit > 9:
                    level = 0
                    break
                level = level * 10 + digit
            if level > 0:
                # No checksum covers a record's store time: damaged, it may be near the end of all times.
                return min(max(timestamp, -POSITION_MAX), POSITION_MAX) + (
                    self.delays_ms[min(level, len(self.delays_ms)) - 1] if self.delays_ms else 1000
                )
        if self.tags >= 0:
            return java_hash(p, self.tags, self.tags_end - self.tags, 0)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _add_keys(
        self, queue: QueueState, p: cython.p_const_uchar, phy: cython.longlong, timestamp: cython.longlong
    ) -> cython.int:
        """The unique key first, then every word of KEYS, each as the hash of `topic#key`."""
        stop: cython.Py_ssize_t
        at: cython.Py_ssize_t = self.keys_at
        if self.unique >= 0:
            self._add_key(
                java_hash(p, self.unique, self.unique_end - self.unique, queue.key_seed), phy, timestamp
            )
        if at >= 0:
            while at < self.keys_end:
                stop = find_byte(p, at, self.keys_end, 32)
                if stop < 0:
                    stop = self.keys_end
                if stop > at:
                    self._add_key(java_hash(p, at, stop - at, queue.key_seed), phy, timestamp)
                at = stop + 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _add_key(self, key_hash: cython.int, phy: cython.longlong, timestamp: cython.longlong) -> cython.int:
        at: cython.Py_ssize_t = self.key_count * ENTRY_SIZE
        if at + ENTRY_SIZE > len(self.keys):
            self.keys.extend(bytes(at + ENTRY_SIZE))
        p: cython.p_uchar = self.keys
        put_i32(p, at, key_hash)
        put_i64(p, at + 4, phy)
        put_i64(p, at + 12, timestamp)
        self.key_count += 1
        return 0
