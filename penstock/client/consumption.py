"""What both kinds of consumption share: messages come in from pull loops, reports come back from whoever works
on them, and offsets move.

Rule: a message is done with when its listener said so, or when it was handed back to the broker for another try;
until then it holds up the committed offset. Belongs to the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.client.consume_meters import ConsumeMeters
from penstock.client.handout import Handout, Report
from penstock.client.offset_store import OffsetStore
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry

logger = logging.getLogger(__name__)


class Consumption:
    """The base of concurrent and of orderly consumption."""

    def __init__(self, handout: Handout, offsets: OffsetStore, meters: ConsumeMeters) -> None:
        self.handout = handout
        self._clock = meters.clock
        self._offsets = offsets
        self._meters = meters
        # Told of every report, if the consumer is traced.
        self.on_end: Callable[[Report], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[asyncio.TimerHandle, Callable[[], None]] = {}

    def accept(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Messages that were pulled and are wanted."""
        self.handout.offer(owner, messages)

    def settle(self, report: Report) -> None:
        """What became of messages that were given out."""
        if self.on_end is not None:
            self.on_end(report)
        self.handout.note_pace(report.spent_ms, len(report.done) + len(report.failed))
        self._meters.consumed(report)
        if report.done:
            self.finish(report.owner, report.done)
        if report.failed:
            self._retry(report.owner, report.failed, report.left)
            return
        if report.left:
            self.handout.give_back(report.owner, report.left)
        if report.is_last:
            self.handout.free(report.owner)

    def finish(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Done with, one way or another."""
        committed = owner.done(messages)
        if committed >= 0:
            self._offsets.advance(owner.queue, committed)
            owner.consumed_wall_ms = self._clock.now_ms()

    def expire(self, owner: ProcessQueue, now_ms: int, limit_ms: int) -> None:
        """Look for messages that somebody has had for too long."""

    async def give_up(self, owners: Sequence[ProcessQueue]) -> None:
        """The consumer closes: what nobody has begun with is left to others."""

    async def drain(self) -> None:
        """The consumer closes and its queues are retired: wait for nothing but what is under way to a broker."""
        for timer in list(self._timers):
            timer.cancel()
            self._timers.pop(timer)()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cancel(self) -> None:
        """Give up what is under way."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()

    def _retry(
        self,
        owner: ProcessQueue,
        failed: Sequence[tuple[ReceivedMessage, Retry]],
        left: Sequence[ReceivedMessage],
    ) -> None:
        """Messages that were not done; sooner or later the queue has to be freed for the next taker."""
        raise NotImplementedError

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something after a while, or when the consumer closes."""
        loop = asyncio.get_running_loop()

        def act() -> None:
            self._timers.pop(timer, None)
            action()

        timer = loop.call_later(delay_ms / 1000, act)
        self._timers[timer] = action

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("handing a message back failed", exc_info=task.exception())
