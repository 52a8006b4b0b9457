"""Consumption of popped messages: done is an acknowledgement, failed is a rest, and while somebody works it stays
ours.

    done       acknowledged to its broker, together with whatever else is done in the same moment
    failed     invisible for as long as a message rests that was handed back; to the dead letters if it was tried too
               often
    in hand    its time is changed before it is over, again and again, until `consume_timeout_ms` after it came
    by hand    what the program took to acknowledge it itself is the program's for `invisible_ms`, then it is released

Rules: an acknowledgement that nobody answers is repeated as long as the message is ours; then it comes again, which
is said. A message that the broker has given to somebody else meanwhile is not acknowledged by us. Belongs to the
consumer's event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.client.consume_meters import ConsumeMeters
from penstock.client.consumption import Consumption
from penstock.client.handout import Handout
from penstock.client.offset_store import OffsetStore
from penstock.client.pop_loop import PopQueue
from penstock.client.pop_messages import PopCalls, retry_delay_ms
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.retries import Retries
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)
ACKS_MAX = 512
AGAIN_MS = 500
# What brokers of ours take as the shortest time.
_SOON_MS = 1_000
# How soon the program is warned again that it acknowledges nothing: first, and at most.
_WARN_FIRST_MS, _WARN_MAX_MS = 10_000, 600_000


class PopConsumption(Consumption):
    """See the module's text."""

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
    ) -> None:
        super().__init__(handout, offsets, meters)
        self._retries = retries
        self._calls = calls
        self._invisible_ms = invisible_ms
        self._retries_max = retries_max
        # Done and not acknowledged yet, by broker.
        self._acks: dict[str, list[ReceivedMessage]] = {}
        self._extending: dict[ReceivedMessage, asyncio.Task[None]] = {}
        # When the next warning may be given, and how long it will be until another.
        self._warn_ms = 0
        self._warn_again_ms = _WARN_FIRST_MS

    def finish(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        owner.done(messages)
        owner.consumed_wall_ms = self._clock.now_ms()
        for message in messages:
            if message.popped is not None:
                broker = message.queue.broker_name
                waiting = self._acks.get(broker)
                if waiting is None:
                    self._acks[broker] = [message]
                    self._spawn(self._acknowledge(broker))
                else:
                    waiting.append(message)

    async def _acknowledge(self, broker: str) -> None:
        """All that is done by the time this runs goes together."""
        await asyncio.sleep(0)
        messages = self._acks.pop(broker, [])
        for start in range(0, len(messages), ACKS_MAX):
            await self._ack(broker, messages[start : start + ACKS_MAX])

    async def _ack(self, broker: str, messages: list[ReceivedMessage]) -> None:
        while messages:
            # While the time of one is being changed, neither its old handle counts nor is the new one known.
            changing = [self._extending[message] for message in messages if message in self._extending]
            await asyncio.gather(*changing, return_exceptions=True)
            try:
                if not await self._calls.ack(broker, messages):
                    logger.warning(
                        "%d messages were done too late and come again: %r", len(messages), messages[0]
                    )
                return
            except PenstockError as error:
                now_ms = self._clock.monotonic_ms()
                left = [m for m in messages if m.popped is not None and m.popped.due_ms > now_ms]
                logger.info("acknowledging %d messages at %s: %s", len(messages), broker, error)
                if len(left) < len(messages):
                    logger.warning(
                        "%d messages were done and come again all the same", len(messages) - len(left)
                    )
                messages = left
            await asyncio.sleep(AGAIN_MS / 1000)

    # -- failed ----------------------------------------------------------------------------------------------

    def _retry(
        self,
        owner: ProcessQueue,
        failed: Sequence[tuple[ReceivedMessage, Retry]],
        left: Sequence[ReceivedMessage],
    ) -> None:
        if left:
            self.handout.give_back(owner, left)
        for message, retry in failed:
            owner.done([message])
            is_dead = retry.delay_level < 0 or message.tries >= self._retries_max
            self._spawn(
                self._bury(owner, message, retry) if is_dead else self._rest(message, retry.delay_level)
            )

    async def _bury(self, owner: ProcessQueue, message: ReceivedMessage, retry: Retry) -> None:
        """First it is among the dead letters, with its reason, then it is done."""
        if await self._retries.hand_back(message, replace(retry, delay_level=-1)):
            self.finish(owner, [message])
        else:
            logger.warning("%r could not be put to the dead letters and comes again", message)

    async def _rest(self, message: ReceivedMessage, level: int) -> None:
        await self._change(message, retry_delay_ms(level, message.tries))

    async def _change(self, message: ReceivedMessage, invisible_ms: int) -> bool | None:
        """Whether it is still ours; None if that is not known."""
        try:
            is_ours = await self._calls.change(message, invisible_ms, self._clock.monotonic_ms())
        except PenstockError as error:
            logger.info("the time of %r stays as it is: %s", message, error)
            return None
        if not is_ours:
            logger.info("%r is not ours any more", message)
        return is_ours

    # -- in hand ---------------------------------------------------------------------------------------------

    def expire(self, owner: ProcessQueue, now_ms: int, limit_ms: int) -> None:
        """Called every second or so: what is here stays ours, but not for ever."""
        if not isinstance(owner, PopQueue):
            return
        released = []
        for message in owner.here():
            popped = message.popped
            if popped is None or message in self._extending:
                continue
            until_ms = self._program_until(message)
            if until_ms is None:
                if popped.due_ms - now_ms < self._invisible_ms / 2 and now_ms - popped.since_ms < limit_ms:
                    self._extending[message] = self._spawn(self._extend(message, self._invisible_ms))
            elif popped.due_ms < until_ms and now_ms < popped.due_ms:
                # It was here for a while before the program took it.
                self._extending[message] = self._spawn(
                    self._extend(message, max(_SOON_MS, until_ms - now_ms))
                )
            elif popped.due_ms <= now_ms:
                released.append(message)
        if released:
            owner.done(released)
            self._warn(
                "%d messages were popped and neither acknowledged nor retried within invisible_ms (%d); they come "
                "again, to any member of the group: %r",
                *(len(released), self._invisible_ms, released[0]),
            )

    def _program_until(self, message: ReceivedMessage) -> int | None:
        """Until when a message is the program's that is to acknowledge it; None: it was not taken by hand."""
        return None if message.owner is None else message.started_ms + self._invisible_ms

    def note_nothing(self, owners: Sequence[ProcessQueue]) -> None:
        """A pop by hand brought nothing: say so if that is because of what was not acknowledged."""
        for owner in owners:
            # In order the others of a lot wait here for the one that was taken.
            if isinstance(owner, PopQueue) and owner.is_full and (owner.is_taken or not owner.waiting):
                self._warn(
                    "nothing more of topic %s is popped at broker %s: %d messages were taken with pop() and are not "
                    "acknowledged; call ack(message) or retry(message) for each, or they come again after "
                    "invisible_ms (%d): %r",
                    *(
                        owner.queue.topic,
                        owner.queue.broker_name,
                        len(owner),
                        self._invisible_ms,
                        owner.lowest,
                    ),
                )

    def _warn(self, text: str, *arguments: object) -> None:
        """At once, and then less and less often."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._warn_ms:
            if now_ms >= self._warn_ms + _WARN_MAX_MS:
                self._warn_again_ms = _WARN_FIRST_MS  # all was well for long
            self._warn_ms = now_ms + self._warn_again_ms
            self._warn_again_ms = min(_WARN_MAX_MS, 2 * self._warn_again_ms)
            logger.warning(text, *arguments)

    async def _extend(self, message: ReceivedMessage, invisible_ms: int) -> None:
        try:
            await self._change(message, invisible_ms)
        finally:
            self._extending.pop(message, None)

    async def give_up(self, owners: Sequence[ProcessQueue]) -> None:
        """The consumer closes: others may have at once what nobody here has begun with."""
        left = [message for owner in owners for message in owner.waiting if message.popped is not None]
        await asyncio.gather(*(self._change(message, _SOON_MS) for message in left))
