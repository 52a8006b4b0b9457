"""Checking stored records: the one judge of what is a valid record, for reading, recovery and audits.

Layout: see `records.py`. Reads nothing outside its bounds, whatever the bytes say.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from penstock._hot import shadow as cython  # type: ignore[no-redef]

if not cython.compiled:
    from penstock._hot.bits import all_zero, crc31, find_byte, get_i16, get_i32, get_i64, get_u8
    from penstock._hot.layout import (
        BAD_CHECKSUM,
        BAD_LENGTH,
        BAD_MAGIC,
        BAD_POSITION,
        BAD_SIZE,
        BLANK,
        MAGIC_BLANK,
        MAGIC_V1,
        MAGIC_V2,
        NOTHING,
        RECORD_SIZE_MIN,
        SEAL_SIZE,
        TORN,
    )


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _is_sealed(p: cython.p_const_uchar, end: cython.Py_ssize_t) -> cython.bint:
    """True if the record ends in `__CRC32#` 0x01, ten bytes, 0x02."""
    at: cython.Py_ssize_t = end - SEAL_SIZE
    if get_i32(p, at) != 0x5F5F4352 or get_i32(p, at + 4) != 0x43333223:
        return False
    return get_u8(p, at + 8) == 1 and get_u8(p, at + 19) == 2


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _seal_is_wrong(p: cython.p_const_uchar, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """True if the seal that the record ends in does not match it."""
    at: cython.Py_ssize_t = end - SEAL_SIZE
    value: cython.longlong = 0
    i: cython.int
    for i in range(9, -1, -1):
        value = value * 10 + get_u8(p, at + 9 + i) - 48
    return value != crc31(p, start, at - start)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def check_record(
    p: cython.p_const_uchar,
    pos: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    phy: cython.longlong,
    verify: cython.int,
) -> cython.longlong:
    """Size of the valid record at `pos`, or a reason of `layout.py`. `phy` is its position in the log.

    `verify`: 0 lengths only, 1 checksums too, 2 also that a write torn behind the body shows: what was not written
    is zero, and neither a topic nor the properties of a record without a seal contain a zero byte.
    """
    left: cython.Py_ssize_t = end - pos
    if left < 8:
        return BAD_SIZE if left > 0 and not all_zero(p, pos, end) else NOTHING
    size: cython.longlong = get_i32(p, pos)
    magic: cython.int = get_i32(p, pos + 4)
    if magic == MAGIC_BLANK:
        return BLANK if size >= 8 and size <= left else BAD_SIZE
    if size == 0 and magic == 0:
        return NOTHING
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return BAD_MAGIC
    if size < RECORD_SIZE_MIN or size > left:
        return BAD_SIZE
    sys_flag: cython.int = get_i32(p, pos + 36)
    at: cython.longlong = 84
    if sys_flag & 0x10:
        at += 12
    if sys_flag & 0x20:
        at += 12
    if at + 7 > size:
        return BAD_LENGTH
    body_size: cython.longlong = get_i32(p, pos + at)
    if body_size < 0 or at + 4 + body_size + 3 > size:
        return BAD_LENGTH
    body_at: cython.longlong = pos + at + 4
    at += 4 + body_size
    topic_size: cython.longlong
    if magic == MAGIC_V2:
        topic_size = get_i16(p, pos + at)
        at += 2
    else:
        topic_size = get_u8(p, pos + at)
        if topic_size > 127:
            return BAD_LENGTH
        at += 1
    if topic_size < 0 or at + topic_size + 2 > size:
        return BAD_LENGTH
    at += topic_size
    properties_size: cython.longlong = get_i16(p, pos + at)
    if properties_size < 0 or at + 2 + properties_size != size:
        return BAD_LENGTH
    if phy >= 0 and get_i64(p, pos + 28) != phy:
        return BAD_POSITION
    if verify:
        if body_size and crc31(p, body_at, body_size) != get_i32(p, pos + 8):
            return BAD_CHECKSUM
        if properties_size >= SEAL_SIZE and _is_sealed(p, pos + size):
            if _seal_is_wrong(p, pos, pos + size):
                return BAD_CHECKSUM
        elif verify > 1 and (
            find_byte(p, pos + at - topic_size, pos + at, 0) >= 0
            or find_byte(p, pos + at + 2, pos + size, 0) >= 0
        ):
            return TORN
    return size


def check(data: Any, pos: int, end: int, phy: int, verify: int = 1) -> int:
    """`check_record` over any bytes; copies no more of them than the record."""
    left: cython.Py_ssize_t = max(end - pos, 0)
    if left > RECORD_SIZE_MIN:
        size: int = int.from_bytes(data[pos : pos + 4], "big")
        left = min(left, size) if size >= RECORD_SIZE_MIN and size <= left else RECORD_SIZE_MIN
    content: bytes = bytes(data[pos : pos + left])
    p: cython.p_uchar = content
    return check_record(p, 0, len(content), phy, verify)


def checksum(data: bytes) -> int:
    """The 31-bit checksum of bytes."""
    p: cython.p_uchar = data
    return crc31(p, 0, len(data))
