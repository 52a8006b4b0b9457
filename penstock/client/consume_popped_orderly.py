"""Consumption of messages that are popped in order: one lot of a queue at a time, message by message.

    done       acknowledged; with the last one the broker gives the queue's next lot to whoever asks
    failed     stays where it is: its queue rests for a moment, and the same message comes again before those behind
               it; to the dead letters if it was tried too often and there is a limit
    in hand    the time of the last message of the lot is changed before it is over: the broker holds a queue as long
               as one message of its lot is invisible
    by hand    not for what the program took more than `invisible_ms` ago and has not acknowledged

Rule: a lot whose time is over, or that the broker says is not ours, is somebody else's: nothing more of it is given
out, and the queue is begun anew. Belongs to the consumer's event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.client.consume_meters import ConsumeMeters
from penstock.client.consume_orderly import DEAD_LETTER_LEVEL
from penstock.client.consume_popped import PopConsumption
from penstock.client.handout import Handout
from penstock.client.offset_store import OffsetStore
from penstock.client.pop_loop import PopQueue
from penstock.client.pop_messages import PopCalls
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.retries import Retries

logger = logging.getLogger(__name__)


class OrderlyPopConsumption(PopConsumption):
    """`retries_max` below 0 means no limit."""

    def __init__(
        self,
        handout: Handout,
        offsets: OffsetStore,
        meters: ConsumeMeters,
        retries: Retries,
        calls: PopCalls,
        *,
        invisible_ms: int,
        retries_max: int,
        rest_ms: int,
    ) -> None:
        super().__init__(
            *(handout, offsets, meters, retries, calls), invisible_ms=invisible_ms, retries_max=retries_max
        )
        self._rest_ms = rest_ms
        # Set by the core: has a queue given up and begun anew.
        self.on_lost: Callable[[ProcessQueue], None] = lambda owner: None

    def accept(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if isinstance(owner, PopQueue):
            owner.is_lease_over = lambda: self._is_over(owner)
        super().accept(owner, messages)

    def _is_over(self, owner: PopQueue) -> bool:
        """Whether somebody else may have what is here. Asked by whoever takes messages, in any thread."""
        due_ms = owner.due_ms
        return due_ms is not None and self._clock.monotonic_ms() >= due_ms

    # -- failed ----------------------------------------------------------------------------------------------

    def _retry(
        self,
        owner: ProcessQueue,
        failed: Sequence[tuple[ReceivedMessage, Retry]],
        left: Sequence[ReceivedMessage],
    ) -> None:
        [(message, retry)] = failed
        message.tries += 1
        if 0 <= self._retries_max < message.tries or retry.delay_level < 0:
            self._spawn(self._bury_in_order(owner, message, left, retry.reason))
        else:
            self._again(owner, [message, *left])

    def _again(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Nothing of the queue is given out until the moment is over."""
        self.handout.give_back(owner, messages)
        self._later(self._rest_ms, lambda: self.handout.free(owner))

    async def _bury_in_order(
        self, owner: ProcessQueue, message: ReceivedMessage, left: Sequence[ReceivedMessage], reason: str
    ) -> None:
        if not await self._retries.hand_back(message, Retry(DEAD_LETTER_LEVEL, reason)):
            self._again(owner, [message, *left])
            return
        logger.warning("%r failed %d times and went to the dead letters", message, message.tries)
        self.finish(owner, [message])
        self.handout.give_back(owner, left)
        self.handout.free(owner)

    # -- in hand ---------------------------------------------------------------------------------------------

    def expire(self, owner: ProcessQueue, now_ms: int, limit_ms: int) -> None:
        if not isinstance(owner, PopQueue) or owner.is_retired:
            return
        here = owner.here()
        last = here[-1].popped if here else None
        if last is None or here[-1] in self._extending:
            return
        if self._is_over(owner):
            logger.warning("the time of %d messages of %s is over; they come again", len(here), owner.queue)
            # What the program took and may never acknowledge is not waited for.
            owner.is_lock_lost = any(message.owner is not None for message in here)
            self.on_lost(owner)
        elif any(last.due_ms >= until for until in map(self._program_until, here) if until is not None):
            pass  # the program acknowledges nothing: the broker may give the lot to others when its time is over
        elif last.due_ms - now_ms < self._invisible_ms / 2 and now_ms - last.since_ms < limit_ms:
            self._extending[here[-1]] = self._spawn(self._hold(owner, here[-1]))

    async def _hold(self, owner: PopQueue, message: ReceivedMessage) -> None:
        """The lot stays ours for another while, or is known not to be."""
        try:
            is_ours = await self._change(message, self._invisible_ms)
        finally:
            self._extending.pop(message, None)
        if is_ours is False and message in owner:
            self.on_lost(owner)
        elif is_ours and message.popped is not None:
            owner.held_until(message.popped.due_ms)
            self.handout.offer(owner)  # the answer may have come after the end of the time before
