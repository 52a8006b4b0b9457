"""Choosing records by their properties, where a filter says which are wanted.

Queue entries are chosen first, as for any read; of each record only the properties are copied and shown to the
filter. What cannot be read is kept: the copying that follows names it as damaged or missing. A filter may end a read
early, after one record at the earliest: then the next read goes on from there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from penstock._hot.mapped import MappedBytes
from penstock._hot.reads import EntrySelection
from penstock.message import property_bytes

# Log that one read looks through, however few records are wanted; so much of it is read ahead from disk.
FILTER_BYTES_MAX = 8 << 20
_ENTRY = struct.Struct(">qiq")


class RecordFilter(Protocol):
    """Which records a read wants."""

    def accepts(self, properties: bytes) -> bool:
        """Whether a record with these properties is wanted."""

    def is_spent(self) -> bool:
        """Whether the read has taken its time, and should end with what it has."""


def choose(
    candidates: EntrySelection,
    views: Sequence[MappedBytes | None],
    first_base: int,
    segment_size: int,
    wanted: RecordFilter,
    max_count: int,
    max_bytes: int,
) -> tuple[EntrySelection, int]:
    """The entries whose records are wanted, under the limits of a read; and the offset to go on from."""
    chosen = EntrySelection(max_count, max_bytes, None)
    for i in range(candidates.count):
        position, size, offset = candidates.position(i), candidates.size(i), candidates.offset(i)
        properties = _properties(views, position - first_base, size, segment_size)
        if properties is None or wanted.accepts(properties):
            chosen.scan_bytes(_ENTRY.pack(position, size, 0), offset)
            if chosen.full:
                return chosen, offset
        if chosen.count >= max_count or wanted.is_spent():
            return chosen, offset + 1
    return chosen, candidates.scanned_to


def _properties(views: Sequence[MappedBytes | None], at: int, size: int, segment_size: int) -> bytes | None:
    number, start = divmod(at, segment_size)
    view = views[number] if 0 <= number < len(views) else None
    if view is None or size < 0:
        return None
    try:
        record = view.slice(start, start + size)
    except IndexError:  # an entry that lies, or retention took the segment meanwhile
        return None
    with record:
        return property_bytes(record)
