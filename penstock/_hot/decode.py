"""A client's codec: stored records out of an answer, batches into a request.

Decoding takes body and properties out as bytes and leaves what they say for later: most programs read the body,
few read every property. Every record is checked, lengths and checksum, before anything of it is handed out.
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
        get_i16,
        get_i32,
        get_i64,
        get_u8,
        new_buffer,
        put_i16,
        put_i32,
        same_bytes,
    )
    from penstock._hot.checks import check_record
    from penstock._hot.layout import MAGIC_V2


@cython.cclass
class RawRecord:
    """The fields of one record. Hosts, topic and properties are as they are stored."""

    def __init__(self) -> None:
        self.topic = b""
        self.body = b""
        self.properties = b""
        self.born_host = b""
        self.store_host = b""
        self.size = 0
        self.body_crc = 0
        self.queue_id = 0
        self.flag = 0
        self.queue_offset = 0
        self.physical_offset = 0
        self.sys_flag = 0
        self.born_timestamp = 0
        self.store_timestamp = 0
        self.reconsume_times = 0
        self.prepared_offset = 0


def decode_run(data: bytes, topic: bytes) -> tuple[list[RawRecord], int]:
    """Records one after the other, and where the first one begins that is bad (the end if none is).

    With a topic, a record of any other counts as bad: it has no business in an answer for that topic (A26).
    """
    p: cython.p_uchar = data
    name: cython.p_uchar = topic
    name_size: cython.Py_ssize_t = len(topic)
    end: cython.Py_ssize_t = len(data)
    pos: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    host: cython.Py_ssize_t
    size: cython.longlong
    length: cython.Py_ssize_t
    record: RawRecord
    found: list = []
    while pos < end:
        size = check_record(p, pos, end, -1, 1)
        if size < 0:
            break
        record = RawRecord()
        record.size = size
        record.body_crc = get_i32(p, pos + 8)
        record.queue_id = get_i32(p, pos + 12)
        record.flag = get_i32(p, pos + 16)
        record.queue_offset = get_i64(p, pos + 20)
        record.physical_offset = get_i64(p, pos + 28)
        record.sys_flag = get_i32(p, pos + 36)
        record.born_timestamp = get_i64(p, pos + 40)
        at = pos + 48
        host = 20 if record.sys_flag & 0x10 else 8
        record.born_host = bytes(p[at : at + host])
        at += host
        record.store_timestamp = get_i64(p, at)
        at += 8
        host = 20 if record.sys_flag & 0x20 else 8
        record.store_host = bytes(p[at : at + host])
        at += host
        record.reconsume_times = get_i32(p, at)
        record.prepared_offset = get_i64(p, at + 4)
        length = get_i32(p, at + 12)
        at += 16
        record.body = bytes(p[at : at + length])
        at += length
        if get_i32(p, pos + 4) == MAGIC_V2:
            length = get_i16(p, at)
            at += 2
        else:
            length = get_u8(p, at)
            at += 1
        if name_size:
            if length != name_size or not same_bytes(p, at, name, 0, length):
                break
            record.topic = topic
        else:
            record.topic = bytes(p[at : at + length])
        at += length
        length = get_i16(p, at)
        record.properties = bytes(p[at + 2 : at + 2 + length])
        found.append(record)
        pos += size
    return found, pos


def encode_items(messages: Sequence[tuple[bytes, bytes, int]]) -> bytearray:
    """The body of a batch, from (body, properties, flag) of each message.

    An item: size i32, magic i32 and checksum i32 (zero), flag i32, body length i32, body, properties length i16,
    properties.
    """
    total: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(messages)
    body: bytes
    properties: bytes
    message: tuple
    flag: cython.int
    for i in range(count):
        message = messages[i]
        if len(message) != 3:
            raise ValueError("a message is a body, properties and a flag")
        body = message[0]
        properties = message[1]
        if len(properties) > 32767:
            raise ValueError("properties of more than 32767 bytes fit no record")
        total += 22 + len(body) + len(properties)
    if total > 0x7FFFFFFF:
        raise ValueError("a batch of more than 2 GiB fits no frame")
    out: bytearray = new_buffer(total)
    o: cython.p_uchar = out
    source: cython.p_uchar
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    for i in range(count):
        message = messages[i]
        body = message[0]
        properties = message[1]
        flag = message[2]
        size = len(body)
        put_i32(o, at, 22 + size + len(properties))
        put_i32(o, at + 4, 0)
        put_i32(o, at + 8, 0)
        put_i32(o, at + 12, flag)
        put_i32(o, at + 16, size)
        source = body
        copy_bytes(o, at + 20, source, 0, size)
        at += 20 + size
        size = len(properties)
        put_i16(o, at, size)
        source = properties
        copy_bytes(o, at + 2, source, 0, size)
        at += 2 + size
    return out
