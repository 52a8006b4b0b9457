"""Plain sends in a received chunk: which frames they are, and their fields made ready for the record builder.

Plain are SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320), in either header form, to a topic
that is known and open, with nothing in their properties that asks for more than being stored. The scanner stops at
the first frame that is anything else, and ordinary Python takes that one, with the same outcome. It therefore
never decides what is an error: it only declines.

What a scanned frame is remembered by (`slots`, 8 bytes each): see the `S_` constants. Owned by the event loop.
`sends.py` builds records and answers from it.
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
        get_u8,
        move_bytes,
        put_i64,
        put_u8,
        same_bytes,
    )
    from penstock._hot.headers import SendHeader
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
        S_ONEWAY,
        S_OPAQUE,
        S_PROPERTIES,
        S_PROPERTIES_SIZE,
        S_SYS_FLAG,
        SLOT_COUNT,
    )
    from penstock._hot.queues import QueueState

# One run takes no more of a chunk: then the event loop decides whose turn it is.
RUN_BYTES = 128 * 1024

# Properties that ask for more than being stored, or that only a broker may set: not for the fast path.
DECLINED = frozenset(
    name.encode()
    for name in (
        "DELAY TRAN_MSG POP_CK MSG_REGION TRACE_ON CLUSTER TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS "
        "TIMER_DEL_UNIQKEY TIMER_OUT_MS TIMER_DELAY_LEVEL INNER_NUM INNER_BASE INNER_MULTI_DISPATCH "
        "INNER_MULTI_QUEUE_OFFSET __CRC32# PGROUP TRANSFER_FLAG MSG_TYPE PENSTOCK_PRODUCER PENSTOCK_SEQUENCE "
        "REAL_TOPIC REAL_QID"
    ).split()
)


@cython.cclass
class TopicQueues:
    """A topic that plain sends may go to, its queues by id (None: not yet), and what went there since last asked."""

    def __init__(self, name: bytes, queues: list[QueueState | None]) -> None:
        self.name = name
        self.queues = queues
        self.messages = 0
        self.bytes = 0


@cython.cclass
class SendScanner(SendHeader):
    """See the module's text. `suffix` is what the broker adds to the properties of every message."""

    def __init__(
        self,
        suffix: bytes,
        head_fields: bytes,
        binary_fields: bytes,
        frame_max: int,
        header_max: int,
        batch_max: int = 10_000,
    ) -> None:
        super().__init__()
        self.topics: dict[bytes, TopicQueues] = {}
        self.last_topic: TopicQueues | None = None
        self.suffix = suffix
        # The ext fields that every answer begins with, as JSON text: "MSG_REGION":"…","TRACE_ON":"…",
        self.head_fields = head_fields
        # The same as a part of a binary header.
        self.binary_fields = binary_fields
        self.frame_max = frame_max
        self.header_max = header_max
        self.batch_max = batch_max
        self.slots = bytearray(64 * SLOT_COUNT * 8)
        self.scratch = bytearray(64 * 1024)
        self.used = 0
        self.count = 0
        self.built = 0
        self.queues: list[QueueState] = []
        self.owners: list[TopicQueues] = []
        # Topics of the records built, each once.
        self.touched: list[TopicQueues] = []
        self.data = b""
        self.positions: list[list[int]] = []

    def put_topic(self, topic: TopicQueues) -> None:
        """Let plain sends to a topic through."""
        self.topics[topic.name] = topic
        self.last_topic = None

    def drop_topic(self, name: bytes) -> None:
        """Leave a topic to the ordinary path."""
        self.topics.pop(name, None)
        self.last_topic = None

    def clear_topics(self) -> None:
        self.topics.clear()
        self.last_topic = None

    # -- scan ------------------------------------------------------------------------------------------------

    def scan(self, data: bytes, start: int) -> int:
        """Take plain sends from `start` on; where the first frame begins that is none, is not complete, or is left to
        the next run."""
        p: cython.p_uchar = data
        at: cython.Py_ssize_t = start
        enough: cython.Py_ssize_t = at + RUN_BYTES
        end: cython.Py_ssize_t = len(data)
        length: cython.longlong
        word: cython.longlong
        header_size: cython.Py_ssize_t
        if at < 0:
            raise IndexError("no such place in the chunk")
        self.count = 0
        self.built = 0
        self.used = 0
        self.queues = []
        self.owners = []
        self.touched = []
        self.positions = []
        self.data = data
        while end - at >= 8 and at < enough:
            length = get_i32(p, at)
            word = get_i32(p, at + 4)
            header_size = word & 0xFFFFFF
            if length < 4 or length > self.frame_max or at + 4 + length > end:
                break
            if header_size > length - 4 or header_size > self.header_max:
                break
            if word >> 24 == 0:
                if not self._json(p, at + 8, at + 8 + header_size):
                    break
            elif word >> 24 != 1 or not self._binary(p, at + 8, at + 8 + header_size):
                break
            if not self._take(p, at, at + 8 + header_size, at + 4 + length, word >> 24):
                break
            at += 4 + length
        return at

    # -- one frame -------------------------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _take(
        self,
        p: cython.p_uchar,
        frame: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        form: cython.int,
    ) -> cython.bint:
        """Remember the frame whose header was read; False if it is not a plain send."""
        topic: TopicQueues
        at: cython.Py_ssize_t
        s: cython.p_uchar
        batch: cython.bint = self.code == 320
        properties_at: cython.Py_ssize_t
        if self.code == 310 or batch:
            if self.long_names:
                return False
        elif self.code != 10 or self.short_names:
            return False
        if self.flag != 0 and self.flag != 2:
            return False
        if self.value_at[0] < 0 or self.value_at[1] < 0 or self.value_at[2] < 0:
            return False
        # Those that nothing below looks into.
        low: cython.int = 0 if form else 0x20
        if not self._is_ascii(p, self.value_at[0], self.value_end[0], low):
            return False
        if not self._is_ascii(p, self.value_at[2], self.value_end[2], low):
            return False
        if self.value_at[13] >= 0 and not self._is_ascii(p, self.value_at[13], self.value_end[13], low):
            return False
        if batch:
            if self.value_at[12] < 0 or not self._is_text(p, 12, b"true", 4):
                return False
        elif self.value_at[12] >= 0 and not self._is_text(p, 12, b"false", 5):
            return False
        if self.value_at[9] >= 0 and not self._is_text(p, 9, b"0", 1):
            return False
        if self.value_at[10] >= 0 and not self._is_text(p, 10, b"false", 5):
            return False
        if not self._field(p, 3, -2147483648, 2147483647):
            return False
        if self.value_at[11] >= 0 and not self._field(p, 11, -2147483648, 2147483647):
            return False
        found = self._topic(p, self.value_at[1], self.value_end[1])
        if found is None:
            return False
        topic = found
        if not self._field(p, 4, 0, len(topic.queues) - 1):
            return False
        queue_id: cython.Py_ssize_t = self.number
        if topic.queues[queue_id] is None:
            return False
        at = self.count * SLOT_COUNT * 8
        if at + SLOT_COUNT * 8 > len(self.slots):
            self.slots.extend(bytes(len(self.slots)))
        s = self.slots
        # Compression bits only: transactions and inner batches are for the ordinary path.
        if not self._field(p, 5, 0, 0x7FFF) or self.number & ~0x731:
            return False
        put_i64(s, at + S_SYS_FLAG, self.number)
        if not self._field(p, 6, 0, 999999999999999999):
            return False
        put_i64(s, at + S_BORN, self.number)
        if not self._field(p, 7, -2147483648, 2147483647):
            return False
        put_i64(s, at + S_FLAG, self.number)
        properties_at = self.used
        if batch:
            if not self._is_batch(p, body, end):
                return False
            # The batch's own properties name it in the answer; its messages have theirs.
            self.id_size = 0
            if (
                self.value_at[8] >= 0
                and not self._is_only_wait(p)
                and not self._properties(p, self.value_at[8], self.value_end[8], form)
            ):
                self.used = properties_at
                return False
        elif self.value_at[8] < 0 or not self._properties(p, self.value_at[8], self.value_end[8], form):
            self.used = properties_at
            return False
        put_i64(s, at + S_PROPERTIES, properties_at)
        put_i64(s, at + S_PROPERTIES_SIZE, self.used - properties_at)
        put_i64(s, at + S_FRAME, frame)
        put_i64(s, at + S_BODY, body)
        put_i64(s, at + S_BODY_SIZE, end - body)
        put_i64(s, at + S_ID, self.id_at)
        put_i64(s, at + S_ID_SIZE, self.id_size)
        put_i64(s, at + S_OPAQUE, self.opaque)
        put_i64(s, at + S_ONEWAY, 1 if self.flag & 2 else 0)
        put_i64(s, at + S_FORM, form)
        put_i64(s, at + S_BATCH, 1 if batch else 0)
        self.queues.append(topic.queues[queue_id])
        self.owners.append(topic)
        self.count += 1
        return True

    @cython.cfunc
    def _topic(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> TopicQueues | None:
        name: cython.p_uchar
        last: TopicQueues | None = self.last_topic
        if last is not None and len(last.name) == end - at:
            name = last.name
            if same_bytes(p, at, name, 0, end - at):
                return last
        found: TopicQueues | None = self.topics.get(bytes(p[at:end]))
        if found is not None:
            self.last_topic = found
        return found

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_only_wait(self, p: cython.p_uchar) -> cython.bint:
        """Whether a batch's own properties say nothing but WAIT=true."""
        at: cython.Py_ssize_t = self.value_at[8]
        size: cython.Py_ssize_t = self.value_end[8] - at
        if size == 10:
            return same_bytes(p, at, b"WAIT\x01true\x02", 0, 10)
        return size == 20 and same_bytes(p, at, b"WAIT\\u0001true\\u0002", 0, 20)

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_batch(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether every length in a batch adds up and none of its items asks for more than being stored."""
        count: cython.Py_ssize_t = 0
        size: cython.longlong
        body_size: cython.longlong
        properties_size: cython.longlong
        if at >= end:
            return False
        while at < end:
            if end - at < 22:
                return False
            size = get_i32(p, at)
            body_size = get_i32(p, at + 16)
            if size < 22 or size > end - at or body_size < 0 or body_size > size - 22:
                return False
            properties_size = get_i16(p, at + 20 + body_size)
            if properties_size <= 0 or properties_size > 32000 or size != 22 + body_size + properties_size:
                return False
            if not self._check_items(p, at + 22 + body_size, at + size):
                return False
            count += 1
            at += size
        return count <= self.batch_max

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _check_items(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether properties are well formed, plain, and name a unique key; where that is, into `id_at`."""
        stop: cython.Py_ssize_t
        name_end: cython.Py_ssize_t
        first: cython.int
        self.id_size = 0
        if at >= end or get_u8(p, end - 1) != 2:
            return False
        while at < end:
            stop = find_byte(p, at, end, 2)
            name_end = find_byte(p, at, stop, 1)
            if name_end <= at or name_end + 1 >= stop or find_byte(p, name_end + 1, stop, 1) >= 0:
                return False
            first = get_u8(p, at)
            if first == 0x55 and name_end - at == 8 and same_bytes(p, at, b"UNIQ_KEY", 0, 8):
                if self.id_size:
                    return False
                self.id_at = name_end + 1
                self.id_size = stop - name_end - 1
                if self.id_size > 128 or not self._is_word(p, self.id_at, stop):
                    return False
            elif first == 0x57 and name_end - at == 4 and same_bytes(p, at, b"WAIT", 0, 4):
                if stop - at != 9 or not same_bytes(p, name_end + 1, b"true", 0, 4):
                    return False
            elif first in (0x43, 0x44, 0x49, 0x4D, 0x50, 0x52, 0x54, 0x5F):  # C D I M P R T _
                if not (name_end - at == 4 and same_bytes(p, at, b"TAGS", 0, 4)):
                    if bytes(p[at:name_end]) in DECLINED:
                        return False
                    if first == 0x5F and name_end - at > 16 and same_bytes(p, at, b"__RMQ.TRANSIENT.", 0, 16):
                        return False
            at = stop + 1
        return self.id_size > 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _is_word(self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether the bytes can stand in a JSON string as they are."""
        c: cython.int
        while at < end:
            c = get_u8(p, at)
            if c < 0x23 or c > 0x7E or c == 0x5C:
                return False
            at += 1
        return True

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _properties(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, form: cython.int
    ) -> cython.bint:
        """The properties as they will be stored, at the end of `scratch`: without WAIT, with the suffix."""
        start: cython.Py_ssize_t = self.used
        room: cython.Py_ssize_t = start + (end - at) + len(self.suffix) - len(self.scratch)
        if room > 0:
            self.scratch.extend(bytes(max(room, len(self.scratch))))
        t: cython.p_uchar = self.scratch
        suffix: cython.p_uchar = self.suffix
        to: cython.Py_ssize_t = start
        stop: cython.Py_ssize_t
        c: cython.int
        while at < end:
            c = get_u8(p, at)
            if c >= 0x80:  # whether that is text is for the ordinary path to say
                return False
            if c == 0x5C and form == 0:
                # Control characters come as \u00XX, two of them in every property.
                if end - at < 6 or get_u8(p, at + 1) != 0x75 or get_i16(p, at + 2) != 0x3030:
                    return False
                c = _hex_digit(get_u8(p, at + 4)) * 16 + _hex_digit(get_u8(p, at + 5))
                if c < 1 or c > 0x7F:
                    return False
                at += 5
            elif c < 0x20 and form == 0:
                return False
            elif c == 0:
                return False
            put_u8(t, to, c)
            to += 1
            at += 1
        if to == start:
            return False
        if get_u8(t, to - 1) != 2:
            return False
        if not self._check_items(t, start, to):
            return False
        # WAIT=true is taken out: nine bytes less in every record.
        at = start
        while at < to:
            stop = find_byte(t, at, to, 2)
            if stop - at == 9 and same_bytes(t, at, b"WAIT\x01true", 0, 9):
                move_bytes(t, at, stop + 1, to - stop - 1)
                to -= 10
                if self.id_at > at:
                    self.id_at -= 10
            else:
                at = stop + 1
        copy_bytes(t, to, suffix, 0, len(self.suffix))
        to += len(self.suffix)
        if to - start > 32000:
            return False
        self.used = to
        return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hex_digit(c: cython.int) -> cython.int:
    if 0x30 <= c <= 0x39:
        return c - 0x30
    if 0x41 <= c <= 0x46:
        return c - 0x37
    if 0x61 <= c <= 0x66:
        return c - 0x57
    return -1000
