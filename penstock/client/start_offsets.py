"""Where a consumer begins in a queue that it takes over.

    1. where the group stopped, if it ever was there
    2. in a retry topic, or with start_from "first": the oldest message
    3. a group that is new to the topic: the end, or the time given, if start_from says so
    4. else: in a queue that still has its first message, that one; in others as in 3, the end if nothing was said

Rules: 3 counts only for the queues that the topic had when the consumer first looked at it, and 4 is what
RocketMQ's clients do for every queue. So "last" means last for a new group, and yet nothing is missed in a queue,
or a whole topic, that was made while the group was already there, running or not. Belongs to the consumer's
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.client.broker_calls import BrokerCalls
from penstock.client.offset_store import OffsetStore
from penstock.client.received import RETRY_PREFIX
from penstock.errors import PenstockError
from penstock.protocol.bodies import MessageQueue

# Offsets asked for at the same time when finding out whether a group knows a topic.
ASKED_AT_ONCE = 32


@dataclass(slots=True)
class _Look:
    """What the first look at a topic showed."""

    queues: frozenset[MessageQueue] = frozenset()
    known: bool | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class StartOffsets:
    """Finds offsets for one consumer. `start` is auto, first, last or time; the time is `start_ms`."""

    def __init__(
        self, calls: BrokerCalls, offsets: OffsetStore, *, start: str, start_ms: int = -1, broadcasting: bool
    ) -> None:
        self._calls = calls
        self._offsets = offsets
        self._start = start
        self._start_ms = start_ms
        self._broadcasting = broadcasting
        self._looks: dict[str, _Look] = {}

    def see(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """The queues of a topic, none if it is not there; only the first look counts."""
        if topic not in self._looks:
            self._looks[topic] = _Look(frozenset(queues))

    async def find(self, queue: MessageQueue) -> int:
        """Where to begin."""
        stored = await self._offsets.fetch(queue)
        if stored is not None:
            return stored
        if self._start == "first" or queue.topic.startswith(RETRY_PREFIX):
            return await self._calls.first_offset(queue)
        look = self._looks.setdefault(queue.topic, _Look())
        if self._start == "auto" or queue not in look.queues or await self._is_known(look):
            young = await self._young(queue)
            if young is not None:
                return young
        if self._start == "time":
            return await self._calls.offset_at(queue, self._start_ms)
        return await self._calls.end_offset(queue)

    async def _young(self, queue: MessageQueue) -> int | None:
        """The first offset of a queue that has lost nothing yet."""
        if await self._calls.end_offset(queue) <= 0:
            # Asked first: an empty queue counts as not young, and a message may come between two questions.
            return 0
        if not self._broadcasting:
            return await self._calls.committed(queue, zero_if_young=True)
        first = await self._calls.first_offset(queue)
        return 0 if first <= 0 else None

    async def _is_known(self, look: _Look) -> bool:
        """Whether the group has an offset in any queue of the topic; asked once."""
        async with look.asking:
            if look.known is None:
                look.known = await self._ask(sorted(look.queues))
            # Where a broker cannot be asked, the careful way is the one that misses nothing.
            return look.known is not False

    async def _ask(self, queues: Sequence[MessageQueue]) -> bool | None:
        answer: bool | None = False
        for start in range(0, len(queues), ASKED_AT_ONCE):
            some = queues[start : start + ASKED_AT_ONCE]
            for found in await asyncio.gather(*map(self._offsets.fetch, some), return_exceptions=True):
                if isinstance(found, int):
                    return True
                if isinstance(found, PenstockError):
                    answer = None
                elif found is not None:
                    raise found
        return answer
