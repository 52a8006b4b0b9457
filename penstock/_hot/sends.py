"""From scanned frames to records, and after the write to answers: one run of each for a whole chunk.

    scan      `frames.py`; needs no lock
    build     records into the store's builder, under the store's lock
    answers   after the write, and under synchronous flush after the sync

Owned by the event loop.
"""

from __future__ import annotations

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
        put_i16,
        put_i32,
        put_i64,
        put_u8,
        same_bytes,
    )
    from penstock._hot.frames import SendScanner, TopicQueues
    from penstock._hot.layout import (
        S_BATCH,
        S_BODY,
        S_BODY_SIZE,
        S_BORN,
        S_FLAG,
        S_FORM,
        S_FRAME,
        S_ID,
        S_ID_SIZE,
        S_OFFSET,
        S_ONEWAY,
        S_OPAQUE,
        S_PHY,
        S_PROPERTIES,
        S_PROPERTIES_SIZE,
        S_SYS_FLAG,
        SLOT_COUNT,
    )
    from penstock._hot.queues import QueueState
    from penstock._hot.records import RecordBuilder
    from penstock._hot.text import put_decimal, put_hexadecimal, put_text


@cython.cclass
class SendPath(SendScanner):
    """See the module's text."""

    # -- build -----------------------------------------------------------------------------------------------

    def build(self, builder: RecordBuilder, born_host: bytes) -> int:
        """Records of the scanned frames, in order, as far as they fit; how many frames that were."""
        data: cython.p_uchar = self.data
        scratch: cython.p_uchar = self.scratch
        s: cython.p_uchar = self.slots
        host: cython.p_uchar = born_host
        host_size: cython.Py_ssize_t = len(born_host)
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.longlong
        queue: QueueState
        topic: TopicQueues
        if self.built:
            raise AssertionError("broken invariant: the frames of one scan are built once")
        for i in range(self.count):
            at = i * SLOT_COUNT * 8
            queue = self.queues[i]
            put_i64(s, at + S_PHY, builder.base + builder.used)
            put_i64(s, at + S_OFFSET, queue.next_offset)
            topic = self.owners[i]
            if get_i64(s, at + S_BATCH):
                if not self._build_batch(builder, queue, topic, at, host, host_size):
                    break
                scratch = self.scratch  # it may have grown
            else:
                size = builder.put(
                    queue,
                    data,
                    get_i64(s, at + S_BODY),
                    get_i64(s, at + S_BODY_SIZE),
                    scratch,
                    get_i64(s, at + S_PROPERTIES),
                    get_i64(s, at + S_PROPERTIES_SIZE),
                    get_i64(s, at + S_FLAG),
                    get_i64(s, at + S_SYS_FLAG),
                    get_i64(s, at + S_BORN),
                    host,
                    host_size,
                    0,
                    0,
                )
                if size <= 0:
                    break
                builder.given.append(queue)
                if topic.messages == 0:
                    self.touched.append(topic)
                topic.messages += 1
                topic.bytes += size
            self.built += 1
        return self.built

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _build_batch(
        self,
        builder: RecordBuilder,
        queue: QueueState,
        topic: TopicQueues,
        at: cython.Py_ssize_t,
        host: cython.p_uchar,
        host_size: cython.Py_ssize_t,
    ) -> cython.bint:
        """All items of a batch, or none and False."""
        data: cython.p_uchar = self.data
        s: cython.p_uchar = self.slots
        pos: cython.Py_ssize_t = get_i64(s, at + S_BODY)
        end: cython.Py_ssize_t = pos + get_i64(s, at + S_BODY_SIZE)
        suffix_size: cython.Py_ssize_t = len(self.suffix)
        suffix: cython.p_uchar = self.suffix
        scratch: cython.p_uchar
        body_size: cython.Py_ssize_t
        size: cython.Py_ssize_t
        made: cython.longlong
        phys: list = []
        made = _batch_items(data, pos, end) * (200 + len(queue.topic) + suffix_size)
        if builder.used + (end - pos) + made > builder.room:
            return False
        if end - pos > builder.max_body:
            return False
        while pos < end:
            body_size = get_i32(data, pos + 16)
            size = get_i16(data, pos + 20 + body_size)
            if self.used + size + suffix_size > len(self.scratch):
                self.scratch.extend(bytes(len(self.scratch) + size + suffix_size))
            scratch = self.scratch
            size = _copy_without_wait(scratch, self.used, data, pos + 22 + body_size, size)
            copy_bytes(scratch, self.used + size, suffix, 0, suffix_size)
            phys.append(builder.base + builder.used)
            made = builder.put(
                queue,
                data,
                pos + 20,
                body_size,
                scratch,
                self.used,
                size + suffix_size,
                get_i32(data, pos + 12),
                get_i64(s, at + S_SYS_FLAG),
                get_i64(s, at + S_BORN),
                host,
                host_size,
                0,
                0,
            )
            if made <= 0:
                raise AssertionError("broken invariant: a measured batch did not fit")
            builder.given.append(queue)
            if topic.messages == 0:
                self.touched.append(topic)
            topic.messages += 1
            topic.bytes += made
            pos += get_i32(data, pos)
        self.positions.append(phys)
        return True

    def take_counts(self) -> list[tuple[bytes, int, int]]:
        """Messages and bytes of the records built, by topic; counting starts anew."""
        topic: TopicQueues
        counts: list = []
        for topic in self.touched:
            counts.append((topic.name, topic.messages, topic.bytes))
            topic.messages = 0
            topic.bytes = 0
        self.touched = []
        return counts

    def frame_at(self, i: int) -> int:
        """Where scanned frame `i` begins in the chunk."""
        if i < 0 or i >= self.count:
            raise IndexError("no such frame")
        s: cython.p_uchar = self.slots
        return get_i64(s, i * SLOT_COUNT * 8 + S_FRAME)

    # -- answers ---------------------------------------------------------------------------------------------

    def answers(self, id_prefix: bytes) -> bytearray:
        """Answers to all frames that were built, one after the other. `id_prefix` is the broker's address in hex,
        the first part of every message id."""
        fixed: cython.Py_ssize_t = 400 + max(len(self.head_fields), len(self.binary_fields))
        out: bytearray = bytearray(self.built * fixed + 64)
        s: cython.p_uchar = self.slots
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        to: cython.Py_ssize_t = 0
        batches: cython.Py_ssize_t = 0
        needed: cython.Py_ssize_t
        phys: list
        queue: QueueState
        for i in range(self.built):
            at = i * SLOT_COUNT * 8
            phys = []
            if get_i64(s, at + S_BATCH):
                phys = self.positions[batches]
                batches += 1
            if get_i64(s, at + S_ONEWAY):
                continue
            queue = self.queues[i]
            needed = to + fixed + (len(id_prefix) + 20) * (1 + len(phys)) + 128
            if needed > len(out):
                out.extend(bytes(needed - len(out) + len(out) // 2))
            if get_i64(s, at + S_FORM):
                to = self._binary_answer(out, to, at, queue, id_prefix, phys)
            else:
                to = self._json_answer(out, to, at, queue, id_prefix, phys)
        del out[to:]
        return out

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _json_answer(
        self,
        out: bytearray,
        to: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        queue: QueueState,
        id_prefix: bytes,
        phys: list,
    ) -> cython.Py_ssize_t:
        o: cython.p_uchar = out
        s: cython.p_uchar = self.slots
        head: cython.p_uchar = self.head_fields
        start: cython.Py_ssize_t = to
        to = put_text(o, to + 8, b'{"code":0,"extFields":{', 23)
        copy_bytes(o, to, head, 0, len(self.head_fields))
        to = put_text(o, to + len(self.head_fields), b'"msgId":"', 9)
        to = self._message_ids(o, to, at, id_prefix, phys)
        to = put_text(o, to, b'","queueId":"', 13)
        to = put_decimal(o, to, queue.queue_id)
        to = put_text(o, to, b'","queueOffset":"', 17)
        to = put_decimal(o, to, get_i64(s, at + S_OFFSET))
        if get_i64(s, at + S_ID_SIZE):
            to = put_text(o, to, b'","transactionId":"', 19)
            to = self._unique_id(o, to, at)
        to = put_text(o, to, b'"},"flag":1,"language":"JAVA","opaque":', 39)
        to = put_decimal(o, to, get_i64(s, at + S_OPAQUE))
        to = put_text(o, to, b',"serializeTypeCurrentRPC":"JSON","version":479}', 48)
        put_i32(o, start, to - start - 4)
        put_i32(o, start + 4, to - start - 8)
        return to

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _binary_answer(
        self,
        out: bytearray,
        to: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        queue: QueueState,
        id_prefix: bytes,
        phys: list,
    ) -> cython.Py_ssize_t:
        o: cython.p_uchar = out
        s: cython.p_uchar = self.slots
        fields: cython.p_uchar = self.binary_fields
        start: cython.Py_ssize_t = to
        ext: cython.Py_ssize_t = to + 8 + 21
        size_at: cython.Py_ssize_t
        put_i16(o, to + 8, 0)
        put_u8(o, to + 10, 0)
        put_i16(o, to + 11, 479)
        put_i32(o, to + 13, get_i64(s, at + S_OPAQUE))
        put_i32(o, to + 17, 1)
        put_i32(o, to + 21, 0)
        copy_bytes(o, ext, fields, 0, len(self.binary_fields))
        to = ext + len(self.binary_fields)
        to = size_at = put_text(o, to, b"\x00\x05msgId", 7)
        to = self._message_ids(o, to + 4, at, id_prefix, phys)
        put_i32(o, size_at, to - size_at - 4)
        to = size_at = put_text(o, to, b"\x00\x07queueId", 9)
        to = put_decimal(o, to + 4, queue.queue_id)
        put_i32(o, size_at, to - size_at - 4)
        to = size_at = put_text(o, to, b"\x00\x0bqueueOffset", 13)
        to = put_decimal(o, to + 4, get_i64(s, at + S_OFFSET))
        put_i32(o, size_at, to - size_at - 4)
        if get_i64(s, at + S_ID_SIZE):
            to = size_at = put_text(o, to, b"\x00\x0dtransactionId", 15)
            to = self._unique_id(o, to + 4, at)
            put_i32(o, size_at, to - size_at - 4)
        put_i32(o, start + 25, to - ext)
        put_i32(o, start, to - start - 4)
        put_i32(o, start + 4, 0x01000000 | (to - start - 8))
        return to

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _unique_id(
        self, o: cython.p_uchar, to: cython.Py_ssize_t, at: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        s: cython.p_uchar = self.slots
        scratch: cython.p_uchar = self.scratch
        size: cython.Py_ssize_t = get_i64(s, at + S_ID_SIZE)
        copy_bytes(o, to, scratch, get_i64(s, at + S_ID), size)
        return to + size

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _message_ids(
        self,
        o: cython.p_uchar,
        to: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        id_prefix: bytes,
        phys: list,
    ) -> cython.Py_ssize_t:
        """One id, or those of a batch with commas between."""
        s: cython.p_uchar = self.slots
        prefix: cython.p_uchar = id_prefix
        size: cython.Py_ssize_t = len(id_prefix)
        n: cython.Py_ssize_t
        phy: cython.longlong
        if not get_i64(s, at + S_BATCH):
            copy_bytes(o, to, prefix, 0, size)
            return put_hexadecimal(o, to + size, get_i64(s, at + S_PHY))
        for n in range(len(phys)):
            if n:
                put_u8(o, to, 0x2C)
                to += 1
            phy = phys[n]
            copy_bytes(o, to, prefix, 0, size)
            to = put_hexadecimal(o, to + size, phy)
        return to


@cython.cfunc
@cython.exceptval(check=False)
def _batch_items(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    count: cython.Py_ssize_t = 0
    while pos < end:
        count += 1
        pos += get_i32(p, pos)
    return count


@cython.cfunc
@cython.exceptval(check=False)
def _copy_without_wait(
    target: cython.p_uchar,
    to: cython.Py_ssize_t,
    source: cython.p_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy checked properties, leaving WAIT out; the size of what was copied."""
    start: cython.Py_ssize_t = to
    end: cython.Py_ssize_t = at + size
    stop: cython.Py_ssize_t
    while at < end:
        stop = find_byte(source, at, end, 2)
        if stop - at != 9 or not same_bytes(source, at, b"WAIT\x01true", 0, 9):
            copy_bytes(target, to, source, at, stop + 1 - at)
            to += stop + 1 - at
        at = stop + 1
    return to - start
