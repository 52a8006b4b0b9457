"""The log of a simulated broker: records of sixteen bytes, of which a power loss takes what was not synced.

A record is the number of the message and that of the epoch in which it was written. Segments hold whole records, so
there is no filler. What is kept over a crash is here; what a process holds in memory is not.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from penstock.errors import LogPositionError

RECORD = 16
SEGMENT = RECORD * 32


class ModelLog:
    """By the rules of replication's `SourceLog` and `ReplicaLog`."""

    def __init__(self, is_sync: bool) -> None:
        self.data = bytearray()
        self.synced = 0
        self.is_sync = is_sync
        self.segment_size = SEGMENT
        self.bounded_at: int | None = 0
        self.on_bound: Callable[[], None] = lambda: None

    min_offset = 0

    @property
    def max_offset(self) -> int:
        return len(self.data)

    @property
    def stored_offset(self) -> int:
        return self.synced if self.is_sync else len(self.data)

    @property
    def visible_offset(self) -> int:
        """Where the part ends that a consumer may see."""
        end = self.stored_offset if self.bounded_at is None else min(self.stored_offset, self.bounded_at)
        return end - end % RECORD

    @property
    def confirmed_offset(self) -> int:
        return self.visible_offset

    def record(self, position: int) -> bytes:
        return bytes(self.data[position : position + RECORD])

    def append(self, message: int, epoch: int) -> int:
        """Where the new record ends."""
        self.data += struct.pack(">qq", message, epoch)
        return len(self.data)

    def slice_for_transfer(self, position: int, max_bytes: int) -> memoryview | None:
        if not 0 <= position < len(self.data):
            return None
        end = min(position + max_bytes, position - position % SEGMENT + SEGMENT)
        return memoryview(bytes(self.data[position:end]))

    def append_replica(self, data: memoryview, position: int) -> None:
        if position != len(self.data):
            raise LogPositionError(f"bytes for {position}, the log ends at {len(self.data)}")
        self.data += data

    def truncate(self, position: int) -> None:
        if position % RECORD or position > len(self.data):
            raise LogPositionError(f"{position} is no end of a record")
        del self.data[position:]
        self.synced = min(self.synced, position)

    def bound(self, position: int | None) -> None:
        self.bounded_at = position
        self.on_bound()

    def cut_tail(self) -> int:
        self.truncate(len(self.data) - len(self.data) % RECORD)
        return len(self.data)

    def sync(self, position: int) -> None:
        self.synced = max(self.synced, min(position, len(self.data)))

    def lose_power(self, chance: random.Random) -> None:
        """Anything between what was synced and all; recovery keeps whole records."""
        kept = chance.randint(self.synced, len(self.data))
        del self.data[kept - kept % RECORD :]
        self.synced = len(self.data)


class ModelEpochs:
    """By the rules of replication's `EpochTable`: durable when a call returns."""

    def __init__(self) -> None:
        self.entries: tuple[tuple[int, int], ...] = ()

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else 0

    def append(self, epoch: int, start: int) -> None:
        kept = tuple(entry for entry in self.entries if entry[1] < start)
        self.entries = (*kept, (epoch, start))

    def truncate(self, position: int) -> None:
        self.entries = tuple(entry for entry in self.entries if entry[1] < position)
