"""Building stored records.

Layout (big-endian; IPv4 hosts, every IPv6 host adds 12 to what follows it):

      0 total size i32       28 physical offset i64     64 store host 4 + port i32
      4 magic i32            36 system flag i32         72 reconsume times i32
      8 body checksum i32    40 born time i64           76 prepared transaction offset i64
     12 queue id i32         48 born host 4 + port i32  84 body length i32, body
     16 flag i32             56 store time i64             topic length i8 (V1) or i16 (V2), topic
     20 queue offset i64                                   properties length i16, properties

The builder turns many messages into one run of bytes, for one write. It trusts no length: what does not fit
the format or the limits is refused and the rest goes on.
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
        copy_crc31,
        crc31,
        find_byte,
        get_i16,
        get_i32,
        get_u8,
        prefetch,
        put_i16,
        put_i32,
        put_i64,
        put_u8,
        write_ahead,
    )
    from penstock._hot.layout import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SEAL_SIZE
    from penstock._hot.queues import QueueState


@cython.cclass
class AppendRequest:
    """One message to append, and after the append where it went.

    `size` is 0 before the append, the record's size after it, -1 if the record was refused for its lengths.
    """

    def __init__(
        self,
        queue: QueueState,
        body: bytes,
        properties: bytes,
        born_timestamp: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> None:
        self.queue = queue
        self.body = body
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.size = 0
        self.physical_offset = -1
        self.queue_offset = -1
        self.store_timestamp = 0


@cython.cclass
class RecordBuilder:
    """A buffer of records that will be one write. Used by one thread at a time."""

    def __init__(self, store_host: bytes, max_body: int, seal: bool = False) -> None:
        self.buffer = bytearray(64 * 1024)
        self.store_host = store_host
        self.max_body = max_body
        self.seal = seal
        self.error = 0
        self.given: list[QueueState] = []
        self.begin(0, 0, 0)

    def begin(self, base: int, room: int, now: int) -> None:
        """Start a run at log position `base`, of at most `room` bytes, stored at time `now`."""
        self._begin(base, room, now)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _begin(self, base: cython.longlong, room: cython.longlong, now: cython.longlong) -> cython.int:
        self.base = base
        self.room = room
        self.now = now
        self.used = 0
        self.count = 0
        self.requests: Sequence[AppendRequest] = ()
        # Queues of records that were put one by one, in their order: what taking back needs.
        if self.given:
            self.given = []
        self.first = 0
        self.after = 0
        self.batch_queue: QueueState | None = None
        self.batch_first = 0
        return 0

    def content(self) -> memoryview:
        """The bytes built so far; valid until the next call."""
        return memoryview(self.buffer)[: self.used]

    def take_back(self) -> None:
        """The write failed: the queue offsets given out are free again, the requests as they were."""
        i: cython.Py_ssize_t
        request: AppendRequest
        queue: QueueState
        if self.batch_queue is not None:
            self.batch_queue.next_offset = self.batch_first
        for i in range(len(self.given)):
            queue = self.given[i]
            queue.next_offset -= 1
        for i in range(self.first, self.after):
            request = self.requests[i]
            if request.size > 0 and _has_queue_offset(request.sys_flag):
                request.queue.next_offset -= 1
            request.size = 0
        self.begin(self.base, self.room, self.now)

    def shrink(self) -> None:
        """Give back the memory that one unusually large group needed; what was built is gone with it."""
        if len(self.buffer) > 4 * 1024 * 1024:
            self.buffer = bytearray(64 * 1024)
            self.used = 0

    def build(self, requests: Sequence[AppendRequest], base: int, room: int, now: int) -> int:
        """Begin a run and add all requests; its size, or -1 (and nothing is given out) if they do not all fit."""
        return self._build(requests, base, room, now)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _build(
        self,
        requests: Sequence[AppendRequest],
        base: cython.longlong,
        room: cython.longlong,
        now: cython.longlong,
    ) -> cython.Py_ssize_t:
        self._begin(base, room, now)
        if self._add_all(requests, 0) == len(requests):
            return self.used
        self.take_back()
        return -1

    def write(self, fd: int, position: int) -> bool:
        """Write the run at `position` of the file; False with the reason in `error` if that failed."""
        self.error = self._write(fd, position)
        return self.error == 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _write(self, fd: cython.int, position: cython.longlong) -> cython.int:
        """One write of the run; 0 or the error's number. Other threads run meanwhile."""
        data: cython.p_uchar = self.buffer
        size: cython.Py_ssize_t = self.used
        room: cython.longlong = self.room
        error: cython.int
        with cython.nogil:
            error = write_ahead(fd, data, size, position, room)
        return error

    def add_all(self, requests: Sequence[AppendRequest], first: int) -> int:
        """Add requests from `first` on; returns the index of the first that does not fit the room."""
        return self._add_all(requests, first)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _add_all(self, requests: Sequence[AppendRequest], first: cython.Py_ssize_t) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t = first
        total: cython.Py_ssize_t = len(requests)
        request: AppendRequest
        while i < total:
            if i + 6 < total:
                prefetch(requests[i + 6])
            if i + 3 < total:
                request = requests[i + 3]
                prefetch(request.properties)
            request = requests[i]
            if not self._add(request):
                break
            i += 1
        self.requests = requests
        self.first = first
        self.after = i
        return i

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _add(self, request: AppendRequest) -> cython.bint:
        body: cython.p_uchar = request.body
        properties: cython.p_uchar = request.properties
        born_host: cython.p_uchar = request.born_host
        start: cython.longlong = self.base + self.used
        queue_offset: cython.longlong = request.queue.next_offset
        size: cython.longlong = self.put(
            request.queue,
            body,
            0,
            len(request.body),
            properties,
            0,
            len(request.properties),
            request.flag,
            request.sys_flag,
            request.born_timestamp,
            born_host,
            len(request.born_host),
            request.reconsume_times,
            request.prepared_offset,
        )
        if size == 0:
            return False
        request.size = size
        if size > 0:
            request.physical_offset = start
            request.queue_offset = queue_offset if _has_queue_offset(request.sys_flag) else 0
            request.store_timestamp = self.now
        return True

    def measure_batch(self, queue: QueueState, batch: bytes, hosts_size: int) -> int:
        """Bytes that a client batch takes as records, or -1 if its lengths do not add up.

        A batch item: size i32, magic i32, checksum i32, flag i32, body length i32 + body, properties
        length i16 + properties. Magic and checksum are the client's and are not used.
        """
        p: cython.p_uchar = batch
        end: cython.Py_ssize_t = len(batch)
        pos: cython.Py_ssize_t = 0
        total: cython.longlong = 0
        fixed: cython.longlong = 75 + hosts_size + len(queue.topic) + (1 if len(queue.topic) > 127 else 0)
        size: cython.longlong
        properties_size: cython.longlong
        while pos < end:
            properties_size = _item_properties(p, pos, end)
            if properties_size < 0 or get_i32(p, pos + 16) > self.max_body:
                return -1
            size = get_i32(p, pos)
            total += fixed + size - 22
            if self.seal or find_byte(p, pos + size - properties_size, pos + size, 0) >= 0:
                total += SEAL_SIZE + 1
            pos += size
        return total

    def add_batch(
        self, queue: QueueState, batch: bytes, sys_flag: int, born_timestamp: int, born_host: bytes
    ) -> list[tuple[int, int]]:
        """Add every item of a batch that `measure_batch` accepted and that fits; (position, size) of each."""
        p: cython.p_uchar = batch
        host: cython.p_uchar = born_host
        end: cython.Py_ssize_t = len(batch)
        pos: cython.Py_ssize_t = 0
        body_size: cython.Py_ssize_t
        properties_size: cython.Py_ssize_t
        start: cython.longlong
        size: cython.longlong
        placed: list = []
        self.batch_queue = queue
        self.batch_first = queue.next_offset
        while pos < end:
            properties_size = _item_properties(p, pos, end)
            if properties_size < 0:
                raise AssertionError("broken invariant: a batch was not measured")
            body_size = get_i32(p, pos + 16)
            start = self.base + self.used
            size = self.put(
                queue,
                p,
                pos + 20,
                body_size,
                p,
                pos + 22 + body_size,
                properties_size,
                get_i32(p, pos + 12),
                sys_flag,
                born_timestamp,
                host,
                len(born_host),
                0,
                0,
            )
            if size <= 0:
                raise AssertionError("broken invariant: a measured batch did not fit")
            placed.append((start, size))
            pos += get_i32(p, pos)
        return placed

    def add_blank(self, room: int) -> None:
        """End the segment: a blank record that covers the `room` bytes left (its 8 first are written)."""
        self._reserve(BLANK_SIZE)
        p: cython.p_uchar = self.buffer
        put_i32(p, self.used, room)
        put_i32(p, self.used + 4, MAGIC_BLANK)
        self.used += BLANK_SIZE

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _reserve(self, size: cython.Py_ssize_t) -> cython.int:
        missing: cython.Py_ssize_t = self.used + size - len(self.buffer)
        if missing > 0:
            self.buffer.extend(bytes(max(missing, len(self.buffer))))
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def put(
        self,
        queue: QueueState,
        body: cython.p_const_uchar,
        body_at: cython.Py_ssize_t,
        body_size: cython.Py_ssize_t,
        properties: cython.p_uchar,
        properties_at: cython.Py_ssize_t,
        properties_size: cython.Py_ssize_t,
        flag: cython.int,
        sys_flag: cython.int,
        born_timestamp: cython.longlong,
        born_host: cython.p_uchar,
        born_size: cython.Py_ssize_t,
        reconsume_times: cython.int,
        prepared_offset: cython.longlong,
    ) -> cython.longlong:
        """Append one record; its size, or 0 if it does not fit the room, or -1 if it fits no record."""
        topic_size: cython.Py_ssize_t = len(queue.topic)
        store_size: cython.Py_ssize_t = len(self.store_host)
        version_2: cython.bint = topic_size > 127
        tail: cython.Py_ssize_t = 0
        # A zero byte in the properties would look like a torn write, so such a record always gets a seal.
        if self.seal or find_byte(properties, properties_at, properties_at + properties_size, 0) >= 0:
            tail = SEAL_SIZE
            if properties_size and get_u8(properties, properties_at + properties_size - 1) != 2:
                tail += 1
        if (
            body_size > self.max_body
            or topic_size > 255
            or properties_size + tail > 32767
            or (born_size != 8 and born_size != 20)
        ):
            return -1
        size: cython.Py_ssize_t = (
            75 + born_size + store_size + body_size + topic_size + version_2 + properties_size + tail
        )
        # Eight bytes stay free for the blank record that every full segment ends with.
        if self.used + size + BLANK_SIZE > self.room:
            return 0
        self._reserve(size)
        p: cython.p_uchar = self.buffer
        host: cython.p_uchar = self.store_host
        topic: cython.p_uchar = queue.topic
        at: cython.Py_ssize_t = self.used
        if born_size == 20:
            sys_flag = sys_flag | 0x10
        else:
            sys_flag = sys_flag & ~0x10
        if store_size == 20:
            sys_flag = sys_flag | 0x20
        else:
            sys_flag = sys_flag & ~0x20
        put_i32(p, at, size)
        put_i32(p, at + 4, MAGIC_V2 if version_2 else MAGIC_V1)
        put_i32(p, at + 12, queue.queue_id)
        put_i32(p, at + 16, flag)
        put_i64(p, at + 20, queue.next_offset if _has_queue_offset(sys_flag) else 0)
        put_i64(p, at + 28, self.base + at)
        put_i32(p, at + 36, sys_flag)
        put_i64(p, at + 40, born_timestamp)
        copy_bytes(p, at + 48, born_host, 0, born_size)
        at += 48 + born_size
        put_i64(p, at, self.now)
        copy_bytes(p, at + 8, host, 0, store_size)
        at += 8 + store_size
        put_i32(p, at, reconsume_times)
        put_i64(p, at + 4, prepared_offset)
        put_i32(p, at + 12, body_size)
        put_i32(p, self.used + 8, copy_crc31(p, at + 16, body, body_at, body_size))
        at += 16 + body_size
        if version_2:
            put_i16(p, at, topic_size)
            at += 2
        else:
            put_u8(p, at, topic_size)
            at += 1
        copy_bytes(p, at, topic, 0, topic_size)
        at += topic_size
        put_i16(p, at, properties_size + tail)
        copy_bytes(p, at + 2, properties, properties_at, properties_size)
        at += 2 + properties_size
        if tail:
            if tail > SEAL_SIZE:
                put_u8(p, at, 2)
            _seal(p, self.used, self.used + size)
        if _has_queue_offset(sys_flag):
            queue.next_offset += 1
        self.used += size
        self.count += 1
        return size


@cython.cfunc
@cython.exceptval(check=False)
def _item_properties(
    p: cython.p_const_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """How many bytes the properties of a batch's item take, -1 if its lengths do not add up."""
    size: cython.longlong
    body_size: cython.longlong
    properties_size: cython.longlong
    if end - pos < 22:
        return -1
    size = get_i32(p, pos)
    body_size = get_i32(p, pos + 16)
    if size < 22 or size > end - pos or body_size < 0 or body_size > size - 22:
        return -1
    properties_size = get_i16(p, pos + 20 + body_size)
    return properties_size if size == 22 + body_size + properties_size else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_queue_offset(sys_flag: cython.int) -> cython.bint:
    """Half and rolled-back messages of a transaction have no place in a queue."""
    kind: cython.int = sys_flag & 0xC
    return kind == 0 or kind == 8


@cython.cfunc
@cython.exceptval(check=False)
def _seal(p: cython.p_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.void:
    """Write the property that holds the checksum of the whole record: ten digits, lowest first."""
    at: cython.Py_ssize_t = end - SEAL_SIZE
    value: cython.longlong = crc31(p, start, at - start)
    i: cython.int
    mark: cython.p_uchar = b"__CRC32#\x01"
    copy_bytes(p, at, mark, 0, 9)
    for i in range(10):
        put_u8(p, at + 9 + i, 48 + value % 10)
        value = value // 10
    put_u8(p, at + 19, 2)
