"""What is popped and not acknowledged: the decisions of POP without a clock, a disk or a socket.

    position    where a group pops a queue next: behind all that was handed out, before or after it is committed
    open        check points whose messages somebody works on, by key; each is also in the order of its revive queue
    due         those whose time is over; the caller gives their messages back
    pending     what was handed out of a queue, in order; its front is committed once it needs no more looking after:
                its check point is safe in the log, or all of it is acknowledged

Rules. The log is the truth: whoever reads the revive topic from `floor` on, in the order of the log, comes to the
same state (`replay`). An offset is committed only when the check point before it could not be lost any more, so that
a crash gives messages again and never loses one. A handle that names no open check point acknowledges nothing (A20).
Positions are forgotten when nothing is pending: the committed offset says the same. Owned by one thread at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.broker.pop_records import Acknowledged, CheckKey, CheckPoint, Moved, QueueKey

# The heap of due times is made anew when so many more are in it than are open.
_SPARE = 1_000


@dataclass(slots=True)
class PopQueue:
    """One queue as one group pops it."""

    position: int
    # Offset behind each run, and its check point; None for messages that did not match.
    pending: deque[tuple[int, CheckPoint | None]] = field(default_factory=deque)

    def settle(self, safe: int) -> int | None:
        """The offset that may be committed now, with the log safe up to `safe`; None if there is no new one."""
        reached = None
        while self.pending:
            end, check = self.pending[0]
            if check is not None and not _is_settled(check, safe):
                break
            self.pending.popleft()
            # A message whose time was changed lies behind what was popped after it.
            reached = end if reached is None else max(reached, end)
        return reached


def _is_settled(check: CheckPoint, safe: int) -> bool:
    if 0 <= check.log_end <= safe:
        return True  # whoever starts on this log finds it
    return check.is_done and check.done_at <= safe


class PopState:
    """See the module's text. Times are the caller's monotonic milliseconds."""

    def __init__(self, revive_queues: int) -> None:
        self.queues: dict[QueueKey, PopQueue] = {}
        self.open: dict[CheckKey, CheckPoint] = {}
        # How many of them each group has.
        self.of_group: Counter[str] = Counter()
        # Stored check points that are open, by their offset in the revive queue: the first holds its floor.
        self._stored: list[dict[int, CheckPoint]] = [{} for _ in range(revive_queues)]
        # The offset of a revive queue behind everything that was applied.
        self._applied = [0] * revive_queues
        self._due: list[tuple[int, int, CheckPoint]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.open)

    # -- popping ---------------------------------------------------------------------------------------------

    def position(self, queue: QueueKey, committed: int) -> int:
        """Where to pop next; `committed` is the group's offset, -1 if it has none."""
        known = self.queues.get(queue)
        return committed if known is None else max(committed, known.position)

    def advance(self, queue: QueueKey, end: int, check: CheckPoint | None = None) -> None:
        """Messages up to `end` were handed out with a check point, or did not match."""
        known = self.queues.get(queue)
        if known is None:
            known = self.queues[queue] = PopQueue(end)
        known.position = max(known.position, end)
        known.pending.append((end, check))

    def move(self, queue: QueueKey) -> None:
        """An operator moved the group: its own offset counts, whatever was popped before."""
        self.queues.pop(queue, None)

    def add(self, check: CheckPoint) -> None:
        """Messages are handed out."""
        self.of_group[check.key.queue.group] += check.key not in self.open
        self.open[check.key] = check
        self._sequence += 1
        heapq.heappush(self._due, (check.due_ms, self._sequence, check))
        if len(self._due) > 2 * len(self.open) + _SPARE:
            self._due = [item for item in self._due if not item[2].is_closed]
            heapq.heapify(self._due)

    def stored(self, check: CheckPoint, offset: int, log_end: int) -> None:
        """The check point is in the log now, or again: at this offset of its revive queue."""
        stored = self._stored[check.revive_queue]
        stored.pop(check.revive_offset, None)
        check.revive_offset, check.log_end = offset, log_end
        if not check.is_closed:
            stored[offset] = check
        self.applied(check.revive_queue, offset)

    def applied(self, revive_queue: int, offset: int) -> None:
        """The record at an offset of a revive queue is part of the state."""
        self._applied[revive_queue] = max(self._applied[revive_queue], offset + 1)

    # -- acknowledging ---------------------------------------------------------------------------------------

    def find(self, key: CheckKey) -> CheckPoint | None:
        return self.open.get(key)

    def ack(self, check: CheckPoint, bits: int) -> None:
        """Messages of an open check point are done."""
        check.acked |= bits
        if check.is_done:
            self.close(check)

    def close(self, check: CheckPoint) -> None:
        """Nobody waits for its messages any more."""
        check.is_closed = True
        if self.open.get(check.key) is check:
            del self.open[check.key]
            group = check.key.queue.group
            self.of_group[group] -= 1
            if not self.of_group[group]:
                del self.of_group[group]
        self._stored[check.revive_queue].pop(check.revive_offset, None)

    # -- time ------------------------------------------------------------------------------------------------

    def due(self, now_ms: int, most: int) -> list[CheckPoint]:
        """Open check points whose time is over, the oldest first. They stay open until the caller closes them, and
        are not named again unless `again` says so."""
        found: list[CheckPoint] = []
        while self._due and len(found) < most and self._due[0][0] <= now_ms:
            check = heapq.heappop(self._due)[2]
            if not check.is_closed:
                found.append(check)
        return found

    def again(self, check: CheckPoint, due_ms: int) -> None:
        """A check point that was due could not be dealt with; it is due again later."""
        self._sequence += 1
        heapq.heappush(self._due, (due_ms, self._sequence, check))

    @property
    def next_due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    # -- what may be committed -------------------------------------------------------------------------------

    def settle(self, safe: int) -> Iterator[tuple[QueueKey, int]]:
        """Queues and the offsets that may be committed now, with the log safe up to a position."""
        for queue, known in [*self.queues.items()]:
            reached = known.settle(safe)
            if reached is not None:
                yield queue, reached
            if not known.pending:
                del self.queues[queue]

    def floor(self, revive_queue: int) -> int:
        """The first offset of a revive queue that a replay needs."""
        stored = self._stored[revive_queue]
        return next(iter(stored)) if stored else self._applied[revive_queue]

    def oldest(self, revive_queue: int) -> CheckPoint | None:
        """The check point that holds the floor."""
        return next(iter(self._stored[revive_queue].values()), None)

    def lag(self, revive_queue: int) -> int:
        """Records of a revive queue from its floor on."""
        return self._applied[revive_queue] - self.floor(revive_queue)

    # -- replay ----------------------------------------------------------------------------------------------

    def replay(self, record: CheckPoint | Acknowledged | Moved, due_ms: Callable[[CheckPoint], int]) -> None:
        """Apply a record of the revive topic, in the order of the log. Whatever is no news changes nothing."""
        if isinstance(record, Moved):
            self.move(record.queue)
        elif isinstance(record, Acknowledged):
            known = self.open.get(record.key)
            if known is not None:
                self.ack(known, known.bits(record.offsets))
        else:
            self._replay_check(record, due_ms)

    def _replay_check(self, check: CheckPoint, due_ms: Callable[[CheckPoint], int]) -> None:
        known = self.open.get(check.key)
        if known is not None:  # written again, so that the floor could rise
            self.stored(known, check.revive_offset, check.log_end)
            self.ack(known, check.acked & ~known.acked)
            return
        self.advance(check.key.queue, check.end, check)
        check.due_ms = due_ms(check)
        self.add(check)
        self.stored(check, check.revive_offset, check.log_end)
        self.ack(check, 0)  # all of it may have been done when it was written


class CheckBuffer:
    """Check points that are only in memory, by when they must not be any more."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, CheckPoint]] = []
        self._count = 0

    def add(self, check: CheckPoint) -> None:
        self._count += 1
        heapq.heappush(self._items, (check.store_by_ms, self._count, check))

    def first(self, now_ms: int) -> CheckPoint | None:
        """The first whose time in memory is over."""
        return self._items[0][2] if self._items and self._items[0][0] <= now_ms else None

    def remove_first(self) -> None:
        heapq.heappop(self._items)

    def clear(self) -> None:
        self._items.clear()
