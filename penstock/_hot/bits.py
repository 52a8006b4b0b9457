"""Byte order, copying, searching and checksums: the pure form of what `bits.pxd` gives the compiled modules
as inline C. Same names, same arguments, same results; a test compares the two over random input."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from typing import Any

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_OWN_I32 = struct.Struct("=i")
_OWN_I64 = struct.Struct("=q")

# How much of a file gets its pages in one step. A larger piece needs memory in larger pieces, which is not always
# there at once: at 512 KiB some writes took ten times as long.
AHEAD_BYTES = 128 * 1024
_ZEROS = bytes(AHEAD_BYTES)


def get_u8(p: Any, pos: int) -> int:
    value: int = p[pos]
    return value


def get_i16(p: Any, pos: int) -> int:
    value: int = _I16.unpack_from(p, pos)[0]
    return value


def get_i32(p: Any, pos: int) -> int:
    value: int = _I32.unpack_from(p, pos)[0]
    return value


def get_i64(p: Any, pos: int) -> int:
    value: int = _I64.unpack_from(p, pos)[0]
    return value


def put_u8(p: Any, pos: int, value: int) -> None:
    p[pos] = value


def put_i16(p: Any, pos: int, value: int) -> None:
    _I16.pack_into(p, pos, value)


def put_i32(p: Any, pos: int, value: int) -> None:
    _I32.pack_into(p, pos, value)


def put_i64(p: Any, pos: int, value: int) -> None:
    _I64.pack_into(p, pos, value)


def get_own_i32(p: Any, pos: int) -> int:
    """In the machine's own byte order, for buffers that are handed to others in memory."""
    value: int = _OWN_I32.unpack_from(p, pos)[0]
    return value


def put_own_i32(p: Any, pos: int, value: int) -> None:
    _OWN_I32.pack_into(p, pos, value)


def put_own_i64(p: Any, pos: int, value: int) -> None:
    _OWN_I64.pack_into(p, pos, value)


def copy_bytes(target: Any, target_pos: int, source: Any, source_pos: int, count: int) -> None:
    target[target_pos : target_pos + count] = source[source_pos : source_pos + count]


def move_bytes(p: Any, to: int, start: int, count: int) -> None:
    """Copy within one buffer; the two places may overlap."""
    p[to : to + count] = bytes(p[start : start + count])


def same_bytes(a: Any, a_pos: int, b: Any, b_pos: int, count: int) -> bool:
    return bytes(a[a_pos : a_pos + count]) == bytes(b[b_pos : b_pos + count])


def find_byte(p: Any, pos: int, end: int, value: int) -> int:
    """Position of the first such byte in [pos, end), or -1."""
    found = bytes(p[pos:end]).find(value)
    return found + pos if found >= 0 else -1


def all_zero(p: Any, pos: int, end: int) -> bool:
    return not any(bytes(p[pos:end]))


def is_utf8(p: Any, pos: int, count: int) -> bool:
    """Whether bytes are text, by Python's rules: no surrogates, no longer form than needed."""
    try:
        bytes(p[pos : pos + count]).decode()
    except UnicodeDecodeError:
        return False
    return True


def crc31(p: Any, pos: int, count: int) -> int:
    """CRC-32 with the top bit cleared, the checksum of RocketMQ's records."""
    return zlib.crc32(p[pos : pos + count]) & 0x7FFFFFFF


def copy_crc31(target: Any, target_pos: int, source: Any, source_pos: int, count: int) -> int:
    """Copy bytes and give their checksum, 0 if there are none."""
    copy_bytes(target, target_pos, source, source_pos, count)
    return crc31(source, source_pos, count) if count else 0


def java_hash(p: Any, pos: int, count: int, seed: int) -> int:
    """Java's `String.hashCode` over UTF-8 bytes, continued from `seed`; malformed bytes count as U+FFFD."""
    units = bytes(p[pos : pos + count]).decode("utf-8", "replace").encode("utf-16-be")
    value = seed & 0xFFFFFFFF
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x80000000 else value


def prefetch(target: Any) -> None:
    """Bring an object near before it is used; a hint to the processor, nothing to Python."""


def prefetch_at(p: Any, pos: int, size: int) -> None:
    """The same for a record of some size at a place."""


def new_buffer(size: int) -> bytearray:
    """A buffer whose content is not defined yet."""
    return bytearray(size)


def write_ahead(fd: int, p: Any, count: int, position: int, room: int) -> int:
    """Write p[:count] at a position of a preallocated file, in as many calls as it takes; 0, or the error's number.

    A write that reaches into the next `AHEAD_BYTES` of the file fills them up with zeros, within `room` bytes from
    the position. They are zero already, so this says nothing new: but the file's pages are then made in one large
    piece instead of a few at a time, and a sync finds them written instead of converting them one by one. Nothing
    depends on the zeros: a short write of them is as good.
    """
    view = memoryview(p)[:count]
    done = zeros = 0
    if position + count > -(-position // AHEAD_BYTES) * AHEAD_BYTES:
        zeros = max(0, min(-(position + count) % AHEAD_BYTES, room - count))
    # A short write is how a disk that fills up says so: the next call brings the error itself.
    while done < count:
        try:
            done += os.pwritev(fd, [view[done:], memoryview(_ZEROS)[:zeros]], position + done)
        except OSError as failure:
            if not zeros:
                return failure.errno or errno.EIO
        # If they found no place, the records alone may.
        zeros = 0
    return 0
