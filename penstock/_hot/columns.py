"""Columns out of rows: the buffers of Arrow arrays, filled straight from stored records.

Content is copied once, from the record to its place in the column. Only columns that are wanted have buffers.
A block of rows is done column by column, so that each loop is short and its bytes are still in the cache.

`take` hands the buffers over and the next batch gets new ones: nothing here writes to what was handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import (
        copy_bytes,
        get_i32,
        get_i64,
        get_u8,
        is_utf8,
        put_own_i32,
        put_own_i64,
        put_u8,
    )
    from penstock._hot.buffers import Content, Numbers
    from penstock._hot.layout import (
        R_BODY,
        R_BODY_SIZE,
        R_ID,
        R_ID_SIZE,
        R_KEYS,
        R_PLAIN,
        R_RECORD,
        R_REST,
        R_TAGS,
        R_TOPIC,
        R_TOPIC_SIZE,
        ROW_SIZE,
    )
    from penstock._hot.pairs import Pairs
    from penstock._hot.rows import RowScan
    from penstock._hot.text import put_decimal, put_hexadecimal

HOSTS_MAX = 4096


@cython.cclass
class Columns(RowScan):
    """The columns of one batch at a time; fed through `take_run` and `take_entries`."""

    def __init__(
        self,
        wanted: Collection[str],
        broker: bytes,
        rows_max: int,
        size_max: int,
        tags: Sequence[bytes],
        key: bytes,
        verify: bool,
        unpack: Callable[[bytes, int], bytes | None],
        host_text: Callable[[bytes], bytes],
    ) -> None:
        names = frozenset(wanted)
        find_names = not names.isdisjoint(("keys", "tags", "message_id"))
        RowScan.__init__(
            self,
            rows_max,
            size_max,
            tags,
            key,
            verify,
            find_names,
            "properties" in names,
            unpack if "body" in names else None,
        )
        self.broker_name = broker
        self.host_text = host_text
        self.hosts: dict[bytes, bytes] = {}
        self.queue_id = self._numbers(4, "queue_id" in names)
        self.queue_offset = self._numbers(8, "queue_offset" in names)
        self.born_time = self._numbers(8, "born_time" in names)
        self.store_time = self._numbers(8, "store_time" in names)
        self.reconsume_times = self._numbers(4, "reconsume_times" in names)
        self.physical_offset = self._numbers(8, "physical_offset" in names)
        self.size = self._numbers(4, "size" in names)
        self.topic = self._content("topic" in names)
        self.broker = self._content("broker" in names)
        self.message_id = self._content("message_id" in names)
        self.keys = self._content("keys" in names)
        self.tag = self._content("tags" in names)
        self.body = self._content("body" in names)
        self.born_host = self._content("born_host" in names)
        self.properties: Any = Pairs(rows_max) if "properties" in names else None

    def _numbers(self, width: int, wanted: bool) -> Any:
        return Numbers(width, self.rows_max) if wanted else None

    def _content(self, wanted: bool) -> Any:
        return Content(self.rows_max) if wanted else None

    def take(self, keep: bool = False) -> tuple[int, dict[str, tuple]]:
        """Rows of the batch, and what `take` says of each column; then begin anew. With `keep` the next batch is
        filled into the same memory: what is found must have been read by then."""
        rows = self.rows
        found: dict[str, tuple] = {}
        column: tuple
        for column in (
            ("queue_id", self.queue_id),
            ("queue_offset", self.queue_offset),
            ("born_time", self.born_time),
            ("store_time", self.store_time),
            ("reconsume_times", self.reconsume_times),
            ("physical_offset", self.physical_offset),
            ("size", self.size),
            ("topic", self.topic),
            ("broker", self.broker),
            ("message_id", self.message_id),
            ("keys", self.keys),
            ("tags", self.tag),
            ("body", self.body),
            ("born_host", self.born_host),
            ("properties", self.properties),
        ):
            if column[1] is not None:
                found[column[0]] = column[1].take(rows, keep)
        self.rows = 0
        self.taken_bytes = 0
        self.full = False
        return rows, found

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill(self, p: cython.p_const_uchar) -> cython.int:
        if self.queue_id is not None:
            self._fill_i32(p, self.queue_id, R_RECORD, 12)
        if self.queue_offset is not None:
            self._fill_i64(p, self.queue_offset, 20)
        if self.physical_offset is not None:
            self._fill_i64(p, self.physical_offset, 28)
        if self.size is not None:
            self._fill_i32(p, self.size, R_RECORD, 0)
        if self.reconsume_times is not None:
            self._fill_i32(p, self.reconsume_times, R_REST, 0)
        if self.born_time is not None:
            self._fill_times(p, self.born_time, 40, 0)
        if self.store_time is not None:
            self._fill_times(p, self.store_time, 56, 12)
        if self.body is not None:
            self._fill_body(p)
        if self.topic is not None:
            self._fill_topics(p)
        if self.keys is not None:
            self._fill_text(p, self.keys, R_KEYS)
        if self.tag is not None:
            self._fill_text(p, self.tag, R_TAGS)
        if self.message_id is not None:
            self._fill_ids(p)
        if self.broker is not None:
            self._fill_broker()
        if self.born_host is not None:
            self._fill_hosts(p)
        if self.properties is not None:
            slots: cython.p_uchar = self.slots
            self.properties._fill(p, slots, self.rows, self.count, self.text_bytes)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_i32(
        self, p: cython.p_const_uchar, column: Numbers, slot: cython.Py_ssize_t, at: cython.Py_ssize_t
    ) -> cython.int:
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        i: cython.Py_ssize_t
        for i in range(self.count):
            put_own_i32(target, (self.rows + i) * 4, get_i32(p, get_i64(s, i * ROW_SIZE + slot) + at))
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_i64(self, p: cython.p_const_uchar, column: Numbers, at: cython.Py_ssize_t) -> cython.int:
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        i: cython.Py_ssize_t
        for i in range(self.count):
            put_own_i64(target, (self.rows + i) * 8, get_i64(p, get_i64(s, i * ROW_SIZE + R_RECORD) + at))
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_times(
        self, p: cython.p_const_uchar, column: Numbers, at: cython.Py_ssize_t, wide: cython.Py_ssize_t
    ) -> cython.int:
        """Microseconds; a time that no calendar has is none. `wide`: what an IPv6 born host adds to the place."""
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        valid: cython.p_uchar = column.valid
        i: cython.Py_ssize_t
        row: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        time: cython.longlong
        low: cython.longlong = -62135596800000  # the first of year 1
        high: cython.longlong = 253402300799999  # the last of year 9999
        for i in range(self.count):
            row = self.rows + i
            pos = get_i64(s, i * ROW_SIZE + R_RECORD)
            time = get_i64(p, pos + at + (wide if get_u8(p, pos + 39) & 0x10 else 0))
            if time < low or time > high:
                column.nulls += 1
                time = 0
            else:
                put_u8(valid, row >> 3, get_u8(valid, row >> 3) | (1 << (row & 7)))
            put_own_i64(target, row * 8, time * 1000)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_body(self, p: cython.p_const_uchar) -> cython.int:
        column: Content = self.body
        column._make_room(self.body_bytes)
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        used: cython.Py_ssize_t = column.used
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        content: bytes
        source: cython.p_const_uchar
        for i in range(self.count):
            at = get_i64(s, i * ROW_SIZE + R_BODY)
            size = get_i64(s, i * ROW_SIZE + R_BODY_SIZE)
            if at >= 0:
                copy_bytes(target, used, p, at, size)
            else:
                content = self.unpacked[-at - 1]
                source = content
                copy_bytes(target, used, source, 0, size)
            used += size
            put_own_i32(ends, (self.rows + i + 1) * 4, used)
        column.used = used
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_topics(self, p: cython.p_const_uchar) -> cython.int:
        column: Content = self.topic
        column._make_room(self.topic_bytes)
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for i in range(self.count):
            at = get_i64(s, i * ROW_SIZE + R_TOPIC)
            size = get_i64(s, i * ROW_SIZE + R_TOPIC_SIZE)
            if is_utf8(p, at, size):
                copy_bytes(target, column.used, p, at, size)
                column.used += size
                put_own_i32(ends, (self.rows + i + 1) * 4, column.used)
            else:
                column._put_replaced(self.rows + i, p, at, size)
                target = column.data
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_text(self, p: cython.p_const_uchar, column: Content, slot: cython.Py_ssize_t) -> cython.int:
        """A property that the slots tell the place of; size -1 stands for none."""
        column._make_room(self.text_bytes)
        s: cython.p_uchar = self.slots
        valid: cython.p_uchar = column.valid
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        i: cython.Py_ssize_t
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for i in range(self.count):
            row = self.rows + i
            at = get_i64(s, i * ROW_SIZE + slot)
            size = get_i64(s, i * ROW_SIZE + slot + 8)
            if size < 0:
                column.nulls += 1
                put_own_i32(ends, (row + 1) * 4, column.used)
                continue
            put_u8(valid, row >> 3, get_u8(valid, row >> 3) | (1 << (row & 7)))
            if get_i64(s, i * ROW_SIZE + R_PLAIN):
                copy_bytes(target, column.used, p, at, size)
                column.used += size
                put_own_i32(ends, (row + 1) * 4, column.used)
            else:
                column._put_replaced(row, p, at, size)
                target = column.data
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_ids(self, p: cython.p_const_uchar) -> cython.int:
        """The unique key, else the upper-case hex of store host and log position."""
        column: Content = self.message_id
        column._make_room(self.text_bytes + 56 * self.count)
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for i in range(self.count):
            at = get_i64(s, i * ROW_SIZE + R_ID)
            size = get_i64(s, i * ROW_SIZE + R_ID_SIZE)
            if size < 0:
                column.used = _put_id(target, column.used, p, get_i64(s, i * ROW_SIZE + R_RECORD))
            elif get_i64(s, i * ROW_SIZE + R_PLAIN):
                copy_bytes(target, column.used, p, at, size)
                column.used += size
            else:
                column._put_replaced(self.rows + i, p, at, size)
                target = column.data
            put_own_i32(ends, (self.rows + i + 1) * 4, column.used)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_broker(self) -> cython.int:
        column: Content = self.broker
        size: cython.Py_ssize_t = len(self.broker_name)
        column._make_room(size * self.count)
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        source: cython.p_const_uchar = self.broker_name
        i: cython.Py_ssize_t
        for i in range(self.count):
            copy_bytes(target, column.used, source, 0, size)
            column.used += size
            put_own_i32(ends, (self.rows + i + 1) * 4, column.used)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _fill_hosts(self, p: cython.p_const_uchar) -> cython.int:
        column: Content = self.born_host
        column._make_room(64 * self.count)
        s: cython.p_uchar = self.slots
        target: cython.p_uchar = column.data
        ends: cython.p_uchar = column.ends
        i: cython.Py_ssize_t
        k: cython.Py_ssize_t
        pos: cython.Py_ssize_t
        to: cython.Py_ssize_t
        size: cython.Py_ssize_t = 0
        last: cython.longlong = 0
        for i in range(self.count):
            pos = get_i64(s, i * ROW_SIZE + R_RECORD)
            if get_u8(p, pos + 39) & 0x10:
                self._put_wide_host(p, pos + 48)
                size = 0
            elif size > 0 and get_i64(p, pos + 48) == last:
                # Mostly the host of the row before; its text is what was written last.
                copy_bytes(target, column.used, target, column.used - size, size)
                column.used += size
            else:
                last = get_i64(p, pos + 48)
                to = column.used
                for k in range(4):
                    to = put_decimal(target, to, get_u8(p, pos + 48 + k))
                    put_u8(target, to, 0x2E if k < 3 else 0x3A)
                    to += 1
                to = put_decimal(target, to, get_i32(p, pos + 52))
                size = to - column.used
                column.used = to
            put_own_i32(ends, (self.rows + i + 1) * 4, column.used)
        return 0

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _put_wide_host(self, p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.int:
        """An IPv6 host has many spellings; the one that messages show is made once for each host."""
        host: bytes = bytes(p[at : at + 20])
        text: bytes = self.hosts.get(host, b"")
        if not text:
            text = self.host_text(host)
            if len(text) > 64:
                raise ValueError("a host's text has more than 64 bytes")
            if len(self.hosts) >= HOSTS_MAX:
                self.hosts.clear()
            self.hosts[host] = text
        target: cython.p_uchar = self.born_host.data
        source: cython.p_const_uchar = text
        copy_bytes(target, self.born_host.used, source, 0, len(text))
        self.born_host.used += len(text)
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def _put_id(
    target: cython.p_uchar, to: cython.Py_ssize_t, p: cython.p_const_uchar, pos: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The id of a record by its place: store host and log position in hex; where it ends."""
    host: cython.Py_ssize_t = pos + (76 if get_u8(p, pos + 39) & 0x10 else 64)
    to = put_hexadecimal(target, to, get_i64(p, host))
    if get_u8(p, pos + 39) & 0x20:
        put_hexadecimal(target, to, get_i64(p, host + 8))
        # The last eight of twenty bytes; four of them are there already.
        to = put_hexadecimal(target, to + 8, get_i64(p, host + 12))
    return put_hexadecimal(target, to, get_i64(p, pos + 28))
