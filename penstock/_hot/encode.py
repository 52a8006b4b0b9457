"""Rows of a table into staged messages: Arrow's buffers in, items out, no Python object per row.

An item is what `staged.py` reads: total size, target, delay level, flag, body, properties. The properties of a row
are its unique key, its keys and tags, and what its map holds besides; names that a broker sets itself are left out.
The target follows from the row's topic and queue: the queue that the row names, else the one that its key's hash
gives, as RocketMQ's own hash selector does, else the next one in turn.

Columns are read where Arrow has them, in the machine's byte order. Trusts no offset: what lies outside its buffer
is an IndexError. A row that cannot be a message ends the run with the row and a reason. Owned by one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import (
        copy_bytes,
        find_byte,
        get_own_i32,
        get_u8,
        java_hash,
        put_i16,
        put_i32,
        put_u8,
        same_bytes,
    )
    from penstock._hot.layout import (
        E_DELAY,
        E_KEYS,
        E_LONG_BODY,
        E_NAME,
        E_NO_BODY,
        E_NO_TOPIC,
        E_PROPERTIES,
        E_QUEUE,
        E_TAGS,
        E_VALUE,
        IDS_PER_MOMENT,
        ITEM_SIZE_MIN,
    )
    from penstock._hot.mapped import MappedBytes
    from penstock._hot.staged import is_reserved

_NOTHING = b"\0"


def _mapped(buffer: Any) -> MappedBytes:
    return MappedBytes(buffer if buffer is not None and len(buffer) else _NOTHING)


@cython.cclass
class Column:
    """One Arrow column: 32-bit numbers (`data` is None), or bytes and text with 32-bit offsets into `data`.

    `first` is where its rows begin in the buffers, `nulls` the validity bitmap or None. Without `numbers` it stands
    for a column that is not there: null in every row.
    """

    def __init__(self, numbers: Any, data: Any, nulls: Any, first: int, count: int) -> None:
        self.numbers = _mapped(numbers)
        self.data = _mapped(data)
        self.is_absent = numbers is None
        self.has_nulls = nulls is not None
        self.nulls = _mapped(nulls)
        self.first = first
        self.count = count
        last: cython.Py_ssize_t = first + count + (1 if data is not None else 0)
        self.has_ends = data is not None
        if first < 0 or count < 0 or (count and last > self.numbers.size // 4):
            raise IndexError("a column has fewer rows than it says")
        if self.has_nulls and count and (first + count + 7) // 8 > self.nulls.size:
            raise IndexError("a column has fewer validity bits than rows")

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t = self.first + row
        if not self.has_nulls:
            return self.is_absent
        return not (get_u8(self.nulls.base, at >> 3) >> (at & 7)) & 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def number(self, row: cython.Py_ssize_t) -> cython.longlong:
        return get_own_i32(self.numbers.base, (self.first + row) * 4)

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def find(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the bytes of a row begin; `size` is set to how many there are."""
        start: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        if row < 0 or row >= self.count:
            raise IndexError("a row lies outside its column")
        start = self.number(row)
        stop = self.number(row + 1)
        if start < 0 or stop < start or stop > self.data.size:
            raise IndexError("a row lies outside its column")
        self.size = stop - start
        return start


@cython.cclass
class RowEncoder:
    """Encodes the rows of one batch after the other; `out[:used]` are the items so far."""

    def __init__(self, properties_max: int) -> None:
        self.properties_max = properties_max
        # What items may take together; a row that does not fit in it alone is too long.
        self.room = 0
        self.is_full = False
        self.out = bytearray(1 << 16)
        self.used = 0
        self.items = 0
        self.row = 0
        self.refusal = 0
        self.id_prefix = b""
        self.id_next = IDS_PER_MOMENT
        self.bases: list[int] = []
        self.queues: list[int] = []
        self.turns: list[int] = []
        self.load(0, {})

    def set_topics(self, topics: Sequence[tuple[int, int]], turn: int, room: int) -> None:
        """By topic: its first target and how many queues it has. Queues without a key take turns from `turn` on. At
        most `room` bytes of items are put together."""
        self.room = room
        self.bases = [base for base, _ in topics]
        self.queues = [count for _, count in topics]
        while len(self.turns) < len(topics):
            self.turns.append(turn)

    def set_ids(self, prefix: bytes) -> None:
        """The next 65536 unique keys begin so."""
        self.id_prefix = prefix
        self.id_next = 0

    @property
    def needs_ids(self) -> bool:
        return self.id_next >= IDS_PER_MOMENT

    def load(self, count: int, columns: dict[str, Column]) -> None:
        """Begin with the rows of a batch. Columns: body, keys, tags, topic (a number in the order of `set_topics`),
        queue, delay, and of the properties `pairs` (offsets of those of each row), `names` and `values`."""
        for name, column in columns.items():
            if column.count < count and name not in ("names", "values"):
                raise IndexError("a column has fewer rows than the batch")
            if column.count and column.has_ends == (name in ("topic", "queue", "delay")):
                raise ValueError(f"{name} is a column of another kind")
        if "pairs" in columns and not ("names" in columns and "values" in columns):
            raise ValueError("properties have names and values")
        absent = Column(None, None, None, 0, 0)
        self.rows = count
        self.row = 0
        self.refusal = 0
        self.body = columns.get("body", absent)
        self.keys = columns.get("keys", absent)
        self.tags = columns.get("tags", absent)
        self.topic = columns.get("topic", absent)
        self.queue = columns.get("queue", absent)
        self.delay = columns.get("delay", absent)
        self.pairs = columns.get("pairs", absent)
        self.names = columns.get("names", absent)
        self.values = columns.get("values", absent)

    def take(self) -> bytes:
        """The items so far; the next ones begin anew."""
        items = bytes(memoryview(self.out)[: self.used])
        self.used = self.items = 0
        self.is_full = False
        return items

    def run(self, bytes_max: int, items_max: int) -> bool:
        """Encode rows until none are left (True), or there are so many bytes or items (`is_full`), or no ids are left
        (`needs_ids`), or one cannot be a message (`refusal`)."""
        limit: cython.Py_ssize_t = bytes_max
        most: cython.Py_ssize_t = items_max
        while self.row < self.rows:
            if self.id_next >= IDS_PER_MOMENT:
                return False
            self.is_full = self.is_full or self.used >= limit or self.items >= most
            if not self.is_full:
                self.refusal = self._row()
            if self.is_full or self.refusal:
                return False
            self.row += 1
        return True

    # -- one row ---------------------------------------------------------------------------------------------

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _row(self) -> cython.int:
        """Put one item, unless that makes it too many bytes (`is_full`); 0, or why there can be none."""
        if self.body.is_null(self.row):
            return E_NO_BODY
        body_at: cython.Py_ssize_t = self.body.find(self.row)
        body_size: cython.Py_ssize_t = self.body.size
        needed: cython.Py_ssize_t = ITEM_SIZE_MIN + body_size + self._text_room()
        if needed > self.room:
            return E_LONG_BODY
        if self.used + needed > self.room:
            self.is_full = True
            return 0
        level: cython.longlong = 0
        if not self.delay.is_null(self.row):
            level = self.delay.number(self.row)
            if level < 0:
                return E_DELAY
        target: cython.longlong = self._target()
        if target < 0:
            return -target
        start: cython.Py_ssize_t = self.used
        text: cython.Py_ssize_t = start + ITEM_SIZE_MIN + body_size
        self._reserve(needed)
        o: cython.p_uchar = self.out
        copy_bytes(o, start + 20, self.body.data.base, body_at, body_size)
        end: cython.Py_ssize_t = self._properties(text)
        if end < 0:
            return -end
        if end - text > self.properties_max:
            return E_PROPERTIES
        put_i32(o, start, end - start)
        put_i32(o, start + 4, target)
        put_i32(o, start + 8, level)
        put_i32(o, start + 12, 0)
        put_i32(o, start + 16, body_size)
        put_i16(o, text - 2, end - text)
        self.used = end
        self.items += 1
        self.id_next += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-100, check=True)
    def _target(self) -> cython.longlong:
        """The number of the queue that a row goes to, or the negative reason why there is none."""
        topic: cython.longlong = 0
        at: cython.Py_ssize_t
        key: cython.longlong
        if not self.topic.is_absent:
            if self.topic.is_null(self.row):
                return -E_NO_TOPIC
            topic = self.topic.number(self.row)
        if topic < 0 or topic >= len(self.queues):
            return -E_NO_TOPIC
        count: cython.longlong = self.queues[topic]
        number: cython.longlong
        if not self.queue.is_null(self.row):
            number = self.queue.number(self.row)
            if number < 0 or number >= count:
                return -E_QUEUE
        elif count <= 0:
            return -E_QUEUE
        elif self._key_size():
            at = self.keys.find(self.row)
            key = java_hash(self.keys.data.base, at, self.keys.size, 0)
            number = (-key if key < 0 else key) % count
        else:
            number = self.turns[topic] % count
            self.turns[topic] = number + 1
        return self.bases[topic] + number

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _key_size(self) -> cython.Py_ssize_t:
        """How long the keys of a row are, 0 if it has none."""
        if self.keys.is_null(self.row):
            return 0
        self.keys.find(self.row)
        return self.keys.size

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _text_room(self) -> cython.Py_ssize_t:
        """Bytes that the properties of a row take at most."""
        room: cython.Py_ssize_t = 32 + len(self.id_prefix)
        i: cython.Py_ssize_t
        room += 8 + self._key_size()
        if not self.tags.is_null(self.row):
            self.tags.find(self.row)
            room += 8 + self.tags.size
        if not self.pairs.is_null(self.row):
            for i in range(self.pairs.number(self.row), self.pairs.number(self.row + 1)):
                if i < 0 or i >= self.names.count or i >= self.values.count:
                    raise IndexError("a property lies outside its column")
                self.names.find(i)
                room += 2 + self.names.size
                if not self.values.is_null(i):
                    self.values.find(i)
                    room += self.values.size
        return room

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _reserve(self, size: cython.Py_ssize_t) -> cython.int:
        missing: cython.Py_ssize_t = self.used + size - len(self.out)
        if missing > 0:
            self.out.extend(bytes(max(missing, len(self.out))))
        return 0

    @cython.cfunc
    @cython.exceptval(-100, check=True)
    def _properties(self, to: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Put the properties of a row, for which there is room; where they end, or the negative reason."""
        o: cython.p_uchar = self.out
        prefix: cython.p_const_uchar = self.id_prefix
        size: cython.Py_ssize_t = len(self.id_prefix)
        digits: cython.int = self.id_next
        has_keys: cython.bint = False
        has_tags: cython.bint = False
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        digit: cython.int
        copy_bytes(o, to, b"UNIQ_KEY\x01", 0, 9)
        copy_bytes(o, to + 9, prefix, 0, size)
        to += 9 + size
        for i in range(4):
            digit = (digits >> (12 - 4 * i)) & 0xF
            put_u8(o, to + i, 48 + digit if digit < 10 else 55 + digit)
        put_u8(o, to + 4, 2)
        to += 5
        start = to
        to = self._named(to, b"KEYS\x01", self.keys)
        if to < 0:
            return -E_KEYS
        has_keys = to > start
        start = to
        to = self._named(to, b"TAGS\x01", self.tags)
        if to < 0:
            return -E_TAGS
        has_tags = to > start
        if not self.pairs.is_null(self.row):
            for i in range(self.pairs.number(self.row), self.pairs.number(self.row + 1)):
                to = self._pair(to, i, has_keys, has_tags)
                if to < 0:
                    return to
        return to

    @cython.cfunc
    @cython.exceptval(-100, check=True)
    def _named(self, to: cython.Py_ssize_t, name: cython.p_const_uchar, column: Column) -> cython.Py_ssize_t:
        """A property whose name has four letters, unless the row has none; -1 if its value cannot be one."""
        o: cython.p_uchar = self.out
        at: cython.Py_ssize_t
        if column.is_null(self.row):
            return to
        at = column.find(self.row)
        if not column.size:
            return to
        if _has_separator(column.data.base, at, column.size):
            return -1
        copy_bytes(o, to, name, 0, 5)
        copy_bytes(o, to + 5, column.data.base, at, column.size)
        put_u8(o, to + 5 + column.size, 2)
        return to + 6 + column.size

    @cython.cfunc
    @cython.exceptval(-100, check=True)
    def _pair(
        self, to: cython.Py_ssize_t, i: cython.Py_ssize_t, has_keys: cython.bint, has_tags: cython.bint
    ) -> cython.Py_ssize_t:
        """One property of the map; a null value is none, and what columns or brokers set is left out."""
        o: cython.p_uchar = self.out
        at: cython.Py_ssize_t = self.names.find(i)
        size: cython.Py_ssize_t = self.names.size
        name: cython.p_const_uchar = self.names.data.base
        if self.values.is_null(i):
            return to
        if not size or self.names.is_null(i) or _has_separator(name, at, size):
            return -E_NAME
        if is_reserved(name, at, size) or (size == 8 and same_bytes(name, at, b"UNIQ_KEY", 0, 8)):
            return to
        if size == 4 and has_keys and same_bytes(name, at, b"KEYS", 0, 4):
            return to
        if size == 4 and has_tags and same_bytes(name, at, b"TAGS", 0, 4):
            return to
        copy_bytes(o, to, name, at, size)
        put_u8(o, to + size, 1)
        to += size + 1
        at = self.values.find(i)
        size = self.values.size
        if not size or _has_separator(self.values.data.base, at, size):
            return -E_VALUE
        copy_bytes(o, to, self.values.data.base, at, size)
        put_u8(o, to + size, 2)
        return to + size + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_separator(p: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.bint:
    return find_byte(p, at, at + size, 1) >= 0 or find_byte(p, at, at + size, 2) >= 0
