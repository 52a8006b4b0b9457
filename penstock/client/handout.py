"""Where pulled messages wait for somebody to work on them, and who gets which.

    pull loops --offer--> queues in line --take--> lots of messages --report--> consumption

Rules: queues stand in line and are served in turn, so that a full one does not starve the others. In order, a
queue is with one taker at a time and leaves the line while it is; otherwise any number may work on it. A lot is
as large as a taker's fair share of what waits and as what takes about LOT_MS to work on: slow work is spread
message by message, fast work is not slowed down by handing out.

The loop offers; takers may be other threads (`ThreadHandout`) or tasks of the loop (`LoopHandout`). One lock
guards the line and the waiting messages of every queue in it; it is never held while anything waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry

LOT_MESSAGES_MAX = 256
LOT_MS = 20.0


@dataclass(slots=True)
class Report:
    """What became of a lot. What is in none of the lists is still in hand."""

    owner: ProcessQueue
    done: list[ReceivedMessage] = field(default_factory=list)
    failed: list[tuple[ReceivedMessage, Retry]] = field(default_factory=list)
    # Given out, but not touched.
    left: list[ReceivedMessage] = field(default_factory=list)
    # Whether the taker is done with the queue.
    is_last: bool = True
    spent_ms: float = 0.0


@dataclass(slots=True)
class Lot:
    """Messages of one queue, given to one taker."""

    owner: ProcessQueue
    messages: list[ReceivedMessage]


class Handout:
    """The line. The subclasses know how takers wait."""

    def __init__(self, *, orderly: bool, takers: int = 1) -> None:
        self._lock = threading.Lock()
        self._line: deque[ProcessQueue] = deque()
        self._waiting = 0
        self._orderly = orderly
        # Slow until proven fast: the first lots are single messages.
        self._pace_ms = LOT_MS
        self.takers = takers
        self.is_closed = False
        # The time, more or less: who takes a message notes it. Kept by the consumer's watch; never 0.
        self.now_ms = 1
        # Told of every message that somebody begins to work on, if the consumer is traced.
        self.on_begin: Callable[[ReceivedMessage], None] | None = None

    @property
    def waiting(self) -> int:
        """Messages that nobody has taken yet."""
        return self._waiting

    def note_begun(self, messages: Sequence[ReceivedMessage]) -> None:
        """Messages are with somebody who asked for several at once."""
        if self.on_begin is not None:
            for message in messages:
                self.on_begin(message)

    # -- the loop's side -------------------------------------------------------------------------------------

    def offer(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage] = ()) -> None:
        """Messages that may be given out after those of the queue that wait already."""
        with self._lock:
            owner.waiting.extend(messages)
            self._waiting += len(messages)
            count = self._line_up(owner)
        if count:
            self._wake(count)

    def give_back(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Messages that are to be given out again, before the others of their queue."""
        kept = [message for message in messages if message in owner]
        with self._lock:
            owner.waiting.extendleft(reversed(kept))
            self._waiting += len(kept)
            count = self._line_up(owner)
        owner.look_idle()
        if count:
            self._wake(count)

    def free(self, owner: ProcessQueue) -> None:
        """In order: the taker of the queue is done with it, the next may have it."""
        with self._lock:
            owner.is_taken = False
            count = self._line_up(owner)
        if count:
            self._wake(count)

    def drop(self, owner: ProcessQueue) -> None:
        """Give nothing of the queue out any more and forget what waits."""
        with self._lock:
            self._waiting -= len(owner.waiting)
            owner.drop()

    def retire(self, owner: ProcessQueue) -> None:
        """Give nothing of the queue out any more; what waits stays known, so that it counts as not done."""
        with self._lock:
            owner.retire()

    def note_pace(self, spent_ms: float, messages: int) -> None:
        """How long a taker needed for so many messages."""
        if messages:
            self._pace_ms += 0.2 * (spent_ms / messages - self._pace_ms)

    def close(self) -> None:
        """Everybody who waits or comes later gets nothing."""
        with self._lock:
            self.is_closed = True
        self._wake(-1)

    # -- the takers' side ------------------------------------------------------------------------------------

    def take(self, most: int = 0) -> Lot | None:
        """The next lot, if any: of at most so many messages, or of a fair share."""
        with self._lock:
            return self._take(most)

    def _take(self, most: int) -> Lot | None:
        line = self._line
        while line and not self.is_closed:
            owner = line.popleft()
            owner.is_in_line = False
            waiting = owner.waiting
            if not waiting or not owner.gives_out:
                continue
            count = min(most or self._fair_share(), len(waiting))
            messages = [waiting.popleft() for _ in range(count)]
            self._waiting -= count
            if self._orderly:
                owner.is_taken = True
            elif waiting:
                self._line_up(owner)
            return Lot(owner, messages)
        return None

    def _fair_share(self) -> int:
        by_pace = int(LOT_MS / self._pace_ms) if self._pace_ms > 0 else LOT_MESSAGES_MAX
        return max(1, min(LOT_MESSAGES_MAX, by_pace, self._waiting // max(1, self.takers)))

    def _line_up(self, owner: ProcessQueue) -> int:
        """How many takers have something to do because of this queue."""
        if owner.is_in_line or owner.is_taken or not owner.waiting or not owner.gives_out:
            return len(owner.waiting) if owner.is_in_line and not self._orderly else 0
        owner.is_in_line = True
        self._line.append(owner)
        return 1 if self._orderly else len(owner.waiting)

    def _wake(self, count: int) -> None:
        raise NotImplementedError


class ThreadHandout(Handout):
    """Takers are threads."""

    def __init__(self, *, orderly: bool, takers: int = 1) -> None:
        super().__init__(orderly=orderly, takers=takers)
        self._something = threading.Condition(self._lock)
        self._idle = 0
        # Called by the loop with the number of takers that are missing.
        self.on_short: Callable[[int], None] | None = None

    def wait(self, most: int = 0, timeout_s: float | None = None) -> Lot | None:
        """The next lot; None after the time is over or when the handout was closed."""
        with self._something:
            lot = self._take(most)
            if lot is not None or self.is_closed or timeout_s == 0:
                return lot
            found: list[Lot | None] = []

            def look() -> bool:
                taken = self._take(most)
                if taken is not None or self.is_closed:
                    found.append(taken)
                return bool(found)

            self._idle += 1
            try:
                self._something.wait_for(look, timeout_s)
            finally:
                self._idle -= 1
            return found[0] if found else None

    def _wake(self, count: int) -> None:
        with self._something:
            idle = self._idle
            if count < 0:
                self._something.notify_all()
            elif idle:
                self._something.notify(min(count, idle))
        if count > idle and self.on_short is not None:
            self.on_short(count - idle)


class LoopHandout(Handout):
    """Takers are tasks of the loop that offers."""

    def __init__(self, *, orderly: bool, takers: int = 1) -> None:
        super().__init__(orderly=orderly, takers=takers)
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self, most: int = 0, timeout_s: float | None = None) -> Lot | None:
        """The next lot; None after the time is over or when the handout was closed."""
        lot = self._take(most)
        if lot is not None or self.is_closed or timeout_s == 0:
            return lot
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while lot is None and not self.is_closed:
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                break
            if not await self._sleep(loop, left):
                break
            lot = self._take(most)
        return lot

    async def _sleep(self, loop: asyncio.AbstractEventLoop, timeout_s: float | None) -> bool:
        """Until woken (True) or the time is over."""
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # it was meant for somebody who is not there any more
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def _wake(self, count: int) -> None:
        while self._waiters and count != 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
