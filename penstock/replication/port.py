"""What the cores of replication need of a log, of its epochs and of a leadership; they know nothing else of a store.

`stored_offset` is how far this node vouches for its log: what is written or, under synchronous flush, what is on
disk. It is what a replica acknowledges, and what a master counts as its own copy.
"""

from __future__ import annotations

from typing import Protocol

from penstock.replication.frames import Epoch


class SourceLog(Protocol):
    """A log that is sent."""

    @property
    def min_offset(self) -> int:
        """Position of the oldest byte."""

    @property
    def max_offset(self) -> int:
        """Position after the newest byte."""

    @property
    def stored_offset(self) -> int:
        """How far this node vouches for it."""

    @property
    def segment_size(self) -> int:
        """Size of every segment file."""

    def slice_for_transfer(self, position: int, max_bytes: int) -> memoryview | None:
        """Bytes from `position` on, inside one segment; None where there are none."""


class ReplicaLog(Protocol):
    """A log that is copied into. Any of these may raise StoreError."""

    @property
    def min_offset(self) -> int:
        """Position of the oldest byte."""

    @property
    def max_offset(self) -> int:
        """Position after the newest byte; 0 for a log that never had one."""

    @property
    def stored_offset(self) -> int:
        """How far this node vouches for it."""

    @property
    def confirmed_offset(self) -> int:
        """Up to where records were confirmed by the set, as far as this log remembers."""

    def append_replica(self, data: memoryview, position: int) -> None:
        """Put the bytes at the end of the log, which is `position` unless the log is empty."""

    def truncate(self, position: int) -> None:
        """Cut the log at a record boundary; durable when this returns."""

    def bound(self, position: int) -> None:
        """Nothing at or behind `position` may be seen."""


class EpochTable(Protocol):
    """Which epoch wrote which part of the log. Changes are durable when a call returns."""

    @property
    def entries(self) -> tuple[Epoch, ...]:
        """All epochs, oldest first."""

    def append(self, epoch: int, start: int) -> None:
        """A new epoch begins; it takes the place of an older one that began there too and wrote nothing."""

    def truncate(self, position: int) -> None:
        """Forget epochs that begin at or behind `position`."""


class Leadership(Protocol):
    """What a sender tells its replica about the master, as it is at the moment."""

    @property
    def epoch(self) -> int:
        """The epoch in which this node is master."""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs of the log, oldest first."""

    @property
    def confirm_offset(self) -> int:
        """Every member of the sync-state set has the log up to here."""

    def tables_snapshot(self) -> tuple[int, bytes] | None:
        """All side tables and the sequence number of their last change; None where there are none to send."""
