"""The table of sequences as a file, `config/producerSequences`: so that a start need not read the whole log.

    magic "PSEQ" | version i32 = 1 | CRC-32 u32 of all that follows
    | log position i64: everything before it is in here, nothing at or behind it | pairs i32
    each pair: producer and topic, each u16 length and UTF-8 | queue i32 | floor i64 | last used ms i64
               | count i32 | sequences i64 each | positions i64 each

Big-endian. The log is the truth: a file that is lost, torn or of another version only means that more of the log is
read. Pure functions.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array

from penstock.broker.sequence_table import Pair, SequenceTable, Window
from penstock.errors import CodecError

FILE_NAME = "producerSequences"
VERSION = 1
_MAGIC = b"PSEQ"
_HEAD = struct.Struct(">4siI")
_BEGIN = struct.Struct(">qi")
_PAIR = struct.Struct(">iqqi")
_SIZE = struct.Struct(">H")

# Copies, which nobody changes any more.
Frozen = list[tuple[Pair, Window]]


def freeze(table: SequenceTable, position: int) -> Frozen:
    """What the table knows of the log before a position; cheap, for a thread to encode."""
    frozen: Frozen = []
    for pair, window in table.items():
        known = Window(window.floor, window.used_ms, window.sequences[:], window.positions[:])
        frozen.append((pair, known))
    return frozen


def encode(frozen: Frozen, position: int) -> bytes:
    """The file's content."""
    for _, window in frozen:
        window.keep_positions(0, position)
    frozen = [(pair, window) for pair, window in frozen if window.sequences or window.floor >= 0]
    parts = [_BEGIN.pack(position, len(frozen))]
    for pair, window in frozen:
        for name in (pair.producer, pair.topic):
            data = name.encode()
            parts += (_SIZE.pack(len(data)), data)
        parts.append(_PAIR.pack(pair.queue_id, window.floor, window.used_ms, len(window.sequences)))
        parts += (_big_endian(window.sequences), _big_endian(window.positions))
    body = b"".join(parts)
    return _HEAD.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def decode(data: bytes, table: SequenceTable) -> int:
    """Fill an empty table; the log position that it knows everything before. Raises CodecError."""
    if len(data) < _HEAD.size + _BEGIN.size:
        raise CodecError(f"{FILE_NAME} has {len(data)} bytes only")
    magic, version, checksum = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise CodecError(f"{FILE_NAME} is no file of version {VERSION}")
    if zlib.crc32(memoryview(data)[_HEAD.size :]) != checksum:
        raise CodecError(f"{FILE_NAME} is damaged: its checksum does not match")
    try:
        return _fill(data, table)
    except (struct.error, ValueError) as error:
        raise CodecError(f"{FILE_NAME} cannot be read: {error}") from error


def _fill(data: bytes, table: SequenceTable) -> int:
    position, count = _BEGIN.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _BEGIN.size
    for _ in range(count):
        names = []
        for _ in range(2):
            (size,) = _SIZE.unpack_from(data, at)
            names.append(data[at + _SIZE.size : at + _SIZE.size + size].decode())
            at += _SIZE.size + size
        queue_id, floor, used_ms, number = _PAIR.unpack_from(data, at)
        at += _PAIR.size
        sequences = _numbers(data, at, number)
        positions = _numbers(data, at + 8 * number, number)
        at += 16 * number
        table.put(Pair(names[0], names[1], queue_id), Window(floor, used_ms, sequences, positions))
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes are left over")
    return int(position)


def _numbers(data: bytes, at: int, count: int) -> array[int]:
    if count < 0 or at + 8 * count > len(data):
        raise ValueError("it ends inside a pair")
    numbers = array("q", data[at : at + 8 * count])
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _big_endian(numbers: array[int]) -> bytes:
    swapped = numbers[:]
    if sys.byteorder == "little":
        swapped.byteswap()
    return swapped.tobytes()
