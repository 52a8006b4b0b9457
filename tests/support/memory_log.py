"""A log in memory, and its epochs, as the cores of replication see them; and two cores with a wire between them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock.errors import DiskFullError, LogPositionError
from penstock.replication.receiver import Receiver
from penstock.replication.sender import Sender
from penstock.replication.steps import (
    Acked,
    ApplyTables,
    Close,
    Connected,
    Ready,
    Received,
    Send,
    TablesDone,
    Tick,
)


class MemoryLog:
    """`flushed` is None where everything written counts as stored."""

    def __init__(self, data: bytes = b"", base: int = 0, segment_size: int = 64) -> None:
        self.data = bytearray(data)
        self.base = base
        self.segment_size = segment_size
        self.flushed: int | None = None
        self.bounds: list[int] = []
        self.cuts: list[int] = []
        self.full_at: int | None = None
        # None: all of it.
        self.confirmed: int | None = None

    @property
    def min_offset(self) -> int:
        return self.base

    @property
    def max_offset(self) -> int:
        return self.base + len(self.data)

    @property
    def stored_offset(self) -> int:
        return self.max_offset if self.flushed is None else self.flushed

    @property
    def confirmed_offset(self) -> int:
        return self.max_offset if self.confirmed is None else self.confirmed

    def append(self, data: bytes) -> None:
        self.data += data

    def slice_for_transfer(self, position: int, max_bytes: int) -> memoryview | None:
        if not self.base <= position < self.max_offset:
            return None
        end = min(position + max_bytes, position - position % self.segment_size + self.segment_size)
        return memoryview(bytes(self.data[position - self.base : end - self.base]))

    def append_replica(self, data: memoryview, position: int) -> None:
        if not self.data and not self.base:
            if position % self.segment_size:
                raise LogPositionError("an empty log begins with a segment")
            self.base = position
        if position != self.max_offset or not data:
            raise LogPositionError("not at the end")
        if self.full_at is not None and self.max_offset + len(data) > self.full_at:
            raise DiskFullError("full")
        if position // self.segment_size != (position + len(data) - 1) // self.segment_size:
            raise LogPositionError("across segments")
        self.data += data

    def truncate(self, position: int) -> None:
        if not self.base <= position <= self.max_offset:
            raise LogPositionError("outside the log")
        self.cuts.append(position)
        del self.data[position - self.base :]
        if self.flushed is not None:
            self.flushed = min(self.flushed, position)

    def bound(self, position: int) -> None:
        self.bounds.append(position)


class MemoryEpochs:
    """By the rules of `port.EpochTable`."""

    def __init__(self, *entries: tuple[int, int]) -> None:
        self.entries: tuple[tuple[int, int], ...] = entries

    def append(self, epoch: int, start: int) -> None:
        kept = tuple(entry for entry in self.entries if entry[1] < start)
        assert not kept or kept[-1][0] < epoch
        self.entries = (*kept, (epoch, start))

    def truncate(self, position: int) -> None:
        self.entries = tuple(entry for entry in self.entries if entry[1] < position)


@dataclass
class MemoryLeadership:
    """What a sender is told."""

    epoch: int = 1
    epochs: tuple[tuple[int, int], ...] = ((1, 0),)
    confirm_offset: int = 0
    sequence: int = 0
    tables: bytes | None = None
    asked: int = 0

    def tables_snapshot(self) -> tuple[int, bytes] | None:
        self.asked += 1
        return None if self.tables is None else (self.sequence, self.tables)


def sent(steps: list[object]) -> bytes:
    """All bytes of the `Send` steps."""
    return b"".join(bytes(part) for step in steps if isinstance(step, Send) for part in step.parts)


def closed(steps: list[object]) -> str:
    """The reason of the `Close` that is the last step."""
    assert isinstance(steps[-1], Close), steps
    return steps[-1].reason


@dataclass
class Wire:
    """Two cores and the bytes between them, handed over in pieces of any size."""

    sender: Sender
    receiver: Receiver
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    now_ms: int = 0
    room: int = 1 << 20
    to_master: bytearray = field(default_factory=bytearray)
    to_replica: bytearray = field(default_factory=bytearray)
    acked: int = -1
    tables: list[bytes] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def connect(self) -> None:
        self._of_receiver(self.receiver.handle(Connected(), self.now_ms))

    @property
    def is_over(self) -> bool:
        return self.sender.is_closed or self.receiver.is_closed

    def step(self) -> None:
        """Something happens: a piece arrives, or there is room, or time passes."""
        if self.to_master and self.chance.random() < 0.7:
            data = self._piece(self.to_master)
            self._of_sender(self.sender.handle(Received(data), self.now_ms))
        if self.to_replica and self.chance.random() < 0.7:
            data = self._piece(self.to_replica)
            self._of_receiver(self.receiver.handle(Received(data), self.now_ms))
        if self.chance.random() < 0.8:
            self._of_sender(self.sender.handle(Ready(self.room), self.now_ms))
        self.now_ms += self.chance.choice((0, 1, 20))
        self._of_sender(self.sender.handle(Tick(), self.now_ms))
        self._of_receiver(self.receiver.handle(Tick(), self.now_ms))

    def settle(self, limit: int = 10_000) -> None:
        """Go on until nothing is under way."""
        for _ in range(limit):
            self.step()
            if self.is_over:
                return
            idle = not (self.to_master or self.to_replica or self.sender.has_more)
            if idle and self.sender.position >= 0 and self.acked == self.sender.position:
                return
        raise AssertionError("the two never came to rest")

    def _piece(self, buffer: bytearray) -> bytes:
        size = self.chance.choice((1, 3, 7, 13, 40, 100_000))
        piece = bytes(buffer[:size])
        del buffer[:size]
        return piece

    def _of_sender(self, steps: list[object]) -> None:
        for step in steps:
            if isinstance(step, Send):
                for part in step.parts:
                    self.to_replica += part
            elif isinstance(step, Acked):
                self.acked = step.offset
            elif isinstance(step, Close):
                self.reasons.append(step.reason)

    def _of_receiver(self, steps: list[object]) -> None:
        for step in steps:
            if isinstance(step, Send):
                for part in step.parts:
                    self.to_master += part
            elif isinstance(step, ApplyTables):
                self.tables.append(step.body)
                self._of_receiver(self.receiver.handle(TablesDone(step.sequence), self.now_ms))
            elif isinstance(step, Close):
                self.reasons.append(step.reason)
