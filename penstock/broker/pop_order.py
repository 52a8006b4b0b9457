"""Popping in order: one lot of a queue at a time. The decisions, without a clock, a disk or a socket.

     (free) ---- pop ----> HELD ---- last message acknowledged ----> (free)
                            |  ^
       time of every one    |  |  popped again: what is not acknowledged, from the first on, one try more
       that is left is over v  |
                           OVER

Rules. While a lot is held nobody of its group pops its queue, except the same attempt again, whose answer was lost.
The group's position is the first message of the lot that is not acknowledged: whatever happens, the next pop begins
there, and what was acknowledged behind it does not come again, however many pops it takes to get there. A lot that is
over still takes acknowledgements, until somebody has popped it again: then only those of the new pop count. Each
message of a lot has a time of its own, which a client may change; the lot is held as long as one of them is not over.
Times are the caller's monotonic milliseconds. Owned by one thread at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.broker.pop_records import CheckPoint, OrderedNotes, QueueKey

# What handles of ordered pops say instead of a revive queue: RocketMQ's.
ORDERED_QUEUE = 999
# How long a lot that is over is remembered, with its tries, when nobody pops the queue: RocketMQ's.
KEEP_MS = 24 * 3_600_000
# The heap of times is made anew when so many more are in it than there are lots.
_SPARE = 1_000


@dataclass(slots=True, eq=False)
class OrderedLot(CheckPoint):
    """Messages of one queue that are popped in order. `spans` says how long after the pop each is invisible."""

    notes: OrderedNotes = field(default_factory=OrderedNotes)
    # When it was popped, by the monotonic clock.
    began_ms: int = 0

    def over_ms(self) -> int:
        """When nothing of it is invisible any more."""
        spans = [s for place, s in enumerate(self.notes.spans) if not self.acked >> place & 1]
        return self.began_ms + max(spans, default=0)

    def position(self) -> int:
        """The first message that is not acknowledged, or the one behind the last."""
        left = self.left()
        return left[0] if left else self.end

    def tries_of(self, offset: int) -> int:
        return self.notes.tries[self.offsets.index(offset)]


class OrderedLots:
    """The last lot of each queue that a group pops in order, unless all of it is acknowledged."""

    def __init__(self) -> None:
        self.lots: dict[QueueKey, OrderedLot] = {}
        self._times: list[tuple[int, int, OrderedLot]] = []
        self._stale: list[tuple[int, int, OrderedLot]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.lots)

    def find(self, queue: QueueKey, pop_time: int) -> OrderedLot | None:
        """The lot of a pop, if it still counts."""
        lot = self.lots.get(queue)
        return lot if lot is not None and lot.key.pop_time == pop_time else None

    def is_held(self, queue: QueueKey, now_ms: int, attempt: str = "") -> bool:
        """Whether a queue is somebody else's now."""
        lot = self.lots.get(queue)
        if lot is None or (attempt and attempt == lot.notes.attempt):
            return False
        return now_ms < lot.over_ms()

    def tries(self, queue: QueueKey, offsets: Sequence[int], attempt: str) -> tuple[int, ...]:
        """How often messages were popped before, if these are popped now. The same attempt again is no new one."""
        lot = self.lots.get(queue)
        if lot is None:
            return (0,) * len(offsets)
        more = 0 if attempt and attempt == lot.notes.attempt else 1
        known = dict(zip(lot.offsets, lot.notes.tries, strict=True))
        return tuple(known[offset] + more if offset in known else 0 for offset in offsets)

    def put(self, lot: OrderedLot) -> OrderedLot | None:
        """A lot is popped; the one whose place it takes."""
        old = self.lots.get(lot.key.queue)
        self.lots[lot.key.queue] = lot
        self.watch(lot)
        return old

    def watch(self, lot: OrderedLot) -> None:
        """Its times have changed, or are new."""
        self._sequence += 1
        heapq.heappush(self._times, (lot.over_ms(), self._sequence, lot))
        if len(self._times) + len(self._stale) > 4 * len(self.lots) + _SPARE:
            # Each lot once; those that are over go to the stale ones again when they are found so.
            self._times, self._stale = [], []
            for one in self.lots.values():
                self._sequence += 1
                self._times.append((one.over_ms(), self._sequence, one))
            heapq.heapify(self._times)

    def drop(self, queue: QueueKey) -> OrderedLot | None:
        """The queue has no lot any more."""
        return self.lots.pop(queue, None)

    def over(self, now_ms: int) -> list[OrderedLot]:
        """Lots whose time is over, each once."""
        found = []
        while self._times and self._times[0][0] <= now_ms:
            lot = heapq.heappop(self._times)[2]
            if self.lots.get(lot.key.queue) is lot and lot.over_ms() <= now_ms and lot not in found:
                found.append(lot)
                heapq.heappush(self._stale, (lot.over_ms() + KEEP_MS, self._sequence, lot))
                self._sequence += 1
        return found

    def stale(self, now_ms: int) -> list[OrderedLot]:
        """Lots that nobody has asked for in a long time."""
        found = []
        while self._stale and self._stale[0][0] <= now_ms:
            lot = heapq.heappop(self._stale)[2]
            if self.lots.get(lot.key.queue) is lot and lot.over_ms() + KEEP_MS <= now_ms:
                found.append(lot)
        return found
