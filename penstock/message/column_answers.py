"""Columns of stored messages as the body of an answer: what Penstock's scans ask brokers for, instead of records.

A scan that needs the bodies of small messages would move three times their bytes as records, and take them apart on
the other side. In columns the same answer is what Arrow has in memory: the reader hands it on as it came. Numbers and
bodies only: what is in the text of properties is looked for by whoever wants it, not by the broker.

    0    4    "PCOL"
    4    4    version, 1
    8    4    rows
    12   4    damages
    16   4    buffers
    20        damages, 20 bytes each: first queue offset i64, last i64, why i32 (`_hot/layout.py`)
              size of each buffer i64, -1 for one that is not there
              zeros up to a multiple of 64
              the buffers, zeros up to a multiple of 64 behind each

Numbers are little-endian, as they are inside the buffers. Buffers come in the order of the columns that were asked
for: of each, bits of the rows that have a value, not there where all have one; then the values, of bodies first where
each ends (4 bytes, and one more for where the first begins) and then all of them in a row.

Rule: whatever does not add up raises CodecError before a buffer is handed out (A1). Plain functions.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.errors import CodecError

BODY = "body"
# Bytes of a value.
NUMBERS = {
    "queue_id": 4,
    "queue_offset": 8,
    "born_time": 8,
    "store_time": 8,
    "reconsume_times": 4,
    "physical_offset": 8,
    "size": 4,
}
NAMES = frozenset((*NUMBERS, BODY))
# Records may have times that no calendar has.
MAY_BE_NULL = frozenset(("born_time", "store_time"))
# Of the request: names with commas between them. Of the answer: the same, and how many bytes its records have.
COLUMNS_FIELD = "columns"
STORED_FIELD = "storedBytes"
# Buffers are handed over as they are in memory.
CAN_SPEAK = sys.byteorder == "little"

_MAGIC = b"PCOL"
_VERSION = 1
_HEAD = struct.Struct("<4sIIII")
_DAMAGE = struct.Struct("<qqi")
_ALIGN = 64

# What `Columns.take` says of a column: bits or None, then (buffer, bytes used) one or two times.
Part = tuple[Any, ...]


class ColumnAnswer(NamedTuple):
    """Rows, the parts of each column, and queue offsets without a row: [first, last, why]."""

    rows: int
    found: dict[str, Part]
    damaged: list[list[int]]


def pack(names: Sequence[str], answer: ColumnAnswer) -> bytearray:
    """The body of an answer."""
    buffers: list[Any] = []
    for name in names:
        valid, *filled = answer.found[name]
        buffers += [valid, *(memoryview(buffer)[:used] for buffer, used in filled)]
    head = [_HEAD.pack(_MAGIC, _VERSION, answer.rows, len(answer.damaged), len(buffers))]
    head += [_DAMAGE.pack(*damage) for damage in answer.damaged]
    sizes = [-1 if buffer is None else len(buffer) for buffer in buffers]
    head.append(struct.pack(f"<{len(sizes)}q", *sizes))
    pieces: list[Any] = [*head, bytes(-sum(map(len, head)) % _ALIGN)]
    for buffer in buffers:
        if buffer is not None:
            pieces += [buffer, bytes(-len(buffer) % _ALIGN)]
    return bytearray().join(pieces)


def unpack(names: Sequence[str], data: bytes | bytearray | memoryview, rows_max: int) -> ColumnAnswer:
    """The same from a body; buffers are views of it. At most `rows_max` rows. Whether the ends of bodies are inside
    their content is left to whoever reads them."""
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size:
        raise CodecError(f"an answer in columns of {len(view)} bytes")
    magic, version, rows, damages, count = _HEAD.unpack_from(view)
    if magic != _MAGIC or version != _VERSION:
        raise CodecError("an answer in columns of another form", "use the same version on both sides")
    # Every damage has an offset of its own.
    if rows + damages > rows_max or count != sum(3 if name == BODY else 2 for name in names):
        raise CodecError(f"an answer in columns with {rows} rows, {damages} damages and {count} buffers")
    at = _HEAD.size + damages * _DAMAGE.size
    start = at + count * 8
    if start > len(view):
        raise CodecError("an answer in columns that ends in its head")
    damaged = [list(_DAMAGE.unpack_from(view, _HEAD.size + i * _DAMAGE.size)) for i in range(damages)]
    buffers = _cut(view, start + -start % _ALIGN, struct.unpack_from(f"<{count}q", view, at))
    return ColumnAnswer(rows, {name: _part(name, rows, buffers) for name in names}, damaged)


def _cut(view: memoryview, at: int, sizes: Iterable[int]) -> Iterable[memoryview | None]:
    for size in sizes:
        if size == -1:
            yield None
            continue
        if size < 0 or at + size > len(view):
            raise CodecError("an answer in columns that ends in a buffer")
        yield view[at : at + size]
        at += size + -size % _ALIGN


def _part(name: str, rows: int, buffers: Iterable[memoryview | None]) -> Part:
    left = iter(buffers)
    valid = next(left)
    filled = [next(left) for _ in range(2 if name == BODY else 1)]
    wanted = (rows + 1) * 4 if name == BODY else rows * NUMBERS[name]
    first = filled[0]
    if (
        None in filled
        or first is None
        or len(first) != wanted
        or (valid is not None and (name not in MAY_BE_NULL or len(valid) < (rows + 7) // 8))
    ):
        raise CodecError(f"an answer in columns in which {name} has other sizes than {rows} rows")
    return (valid, *((buffer, len(buffer)) for buffer in filled if buffer is not None))
