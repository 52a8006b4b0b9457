"""The life of a loop that brings a queue's messages, whichever way: wait for room, take a turn, and never give up.

What a turn is (a pull, a pop, a subscription that is pushed) is the loop's own. One task per queue, in the consumer's
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.client.consume_meters import ConsumeMeters
from penstock.client.instance import ClientInstance
from penstock.client.offset_store import OffsetStore
from penstock.client.options import ConsumerOptions
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage
from penstock.errors import CodecError, ConnectError, PenstockError
from penstock.protocol.bodies import SubscriptionData

logger = logging.getLogger(__name__)
# The same complaint about a queue is logged this often.
COMPLAIN_EVERY_MS = 30_000
# A broker of which nothing can be read for so long is warned of, and again after so long. A failover takes less.
OUTAGE_MS, WARN_EVERY_MS = 3_000, 60_000


@dataclass(frozen=True, slots=True)
class QueueContext:
    """What the loops of a consumer share."""

    instance: ClientInstance
    options: ConsumerOptions
    offsets: OffsetStore
    meters: ConsumeMeters
    # The subscription of a topic; None if it is not subscribed any more, or the queues were assigned.
    subscription: Callable[[str], SubscriptionData | None]
    # New messages of a queue.
    accept: Callable[[ProcessQueue, list[ReceivedMessage]], None]
    # The broker says that the queue goes on elsewhere.
    moved: Callable[[ProcessQueue, int], None]
    # Under which client id the queues are leased; empty: they are not.
    holder: str = ""
    # Popped messages that are not wanted after all: they are done with.
    skip: Callable[[ProcessQueue, list[ReceivedMessage]], None] = lambda owner, messages: None
    # When a broker was warned of last.
    warned_ms: dict[str, int] = field(default_factory=dict)


class QueueLoop:
    """Takes turns until the queue is retired."""

    def __init__(self, context: QueueContext, owner: ProcessQueue) -> None:
        self._context = context
        self._owner = owner
        self._queue = owner.queue
        self._clock = context.instance.runtime.clock
        self._complaint = ("", 0)
        # Since when every turn fails.
        self._failing_ms = 0

    async def run(self) -> None:
        """Ends when the queue is retired; cancelled otherwise."""
        owner = self._owner
        while not owner.is_retired:
            if owner.is_full or owner.is_paused:
                await self._room()
                continue
            try:
                await self._turn()
            except Exception as error:
                if not owner.is_retired:
                    await self._failed(error)

    async def _turn(self) -> None:
        """Bring some messages. Whatever is raised is said, and tried again later."""
        raise NotImplementedError

    def _known_address(self) -> str | None:
        """Where to ask: the master, unless a loop knows better."""
        return self._context.instance.broker_address(self._queue.broker_name)

    def _address(self) -> str:
        address = self._known_address()
        if address is None:
            raise ConnectError(
                f"no address is known for broker {self._queue.broker_name!r}", "routes are refreshed"
            )
        return address

    async def _failed(self, error: Exception) -> None:
        """Say so, now and then; look for another way; wait. Nothing that can go wrong ends the loop."""
        now = self._clock.monotonic_ms()
        text, when = self._complaint
        if str(error) != text or now - when >= COMPLAIN_EVERY_MS:
            self._complaint = (str(error), now)
            known = isinstance(error, PenstockError)
            level = logging.INFO if known and not isinstance(error, CodecError) else logging.ERROR
            what = "reading %s at offset %d: %s"
            logger.log(level, what, self._queue, self._owner.next_offset, error, exc_info=not known)
        self._warn(error, now)
        await asyncio.sleep(self._context.options.pull_retry_ms / 1000)
        if isinstance(error, PenstockError) and error.route_stale and not self._owner.is_retired:
            try:
                await self._context.instance.routes.refresh(self._queue.topic)
            except PenstockError as problem:
                logger.debug("route of %s: %s", self._queue.topic, problem)

    def _warn(self, error: Exception, now: int) -> None:
        """Once for all queues of a broker, if turns fail for long: the program only sees that it waits."""
        if self._failing_ms <= self._owner.pulled_ms:
            self._failing_ms = now
        broker, warned = self._queue.broker_name, self._context.warned_ms
        if now - self._failing_ms < OUTAGE_MS or now - warned.get(broker, -WARN_EVERY_MS) < WARN_EVERY_MS:
            return
        warned[broker] = now
        logger.warning(
            "group %s has read nothing from broker %s for %d s and keeps trying: %s",
            self._context.options.group,
            broker,
            (now - self._failing_ms) // 1000,
            error,
        )

    async def _room(self) -> None:
        """Until the queue has room, is resumed, retired or dropped."""
        room = asyncio.Event()
        self._owner.when_room(room.set)
        # A full queue is alive: it is the consumer that is slow.
        self._owner.pulled_ms = self._clock.monotonic_ms()
        try:
            await room.wait()
        finally:
            self._owner.when_room(None)
        self._owner.pulled_ms = self._clock.monotonic_ms()
