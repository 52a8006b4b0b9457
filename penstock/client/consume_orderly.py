"""Consumption in order: one message of a queue at a time, the next one when the last one is done.

Rules. A message that failed stays where it is: its queue rests for a moment and then the same message comes
again, before everything behind it. With a limit on tries it is handed to the dead letters after that, so that a
poisoned message does not stop its queue for ever; without one (the default) it does. A queue is worked on only
while its lock is held. Belongs to the consumer's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.consume_meters import ConsumeMeters
from penstock.client.consumption import Consumption
from penstock.client.handout import Handout
from penstock.client.offset_store import OffsetStore
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.retries import Retries

logger = logging.getLogger(__name__)
DEAD_LETTER_LEVEL = -1


class OrderlyConsumption(Consumption):
    """`retries` is None in broadcasting; `retries_max` below 0 means no limit."""

    def __init__(
        self,
        handout: Handout,
        offsets: OffsetStore,
        meters: ConsumeMeters,
        retries: Retries | None,
        *,
        retries_max: int = -1,
        suspend_ms: int = 1_000,
    ) -> None:
        super().__init__(handout, offsets, meters)
        self._retries = retries
        self._retries_max = retries_max
        self._suspend_ms = suspend_ms

    def _retry(
        self,
        owner: ProcessQueue,
        failed: Sequence[tuple[ReceivedMessage, Retry]],
        left: Sequence[ReceivedMessage],
    ) -> None:
        [(message, retry)] = failed
        message.tries += 1
        too_often = 0 <= self._retries_max < message.tries or retry.delay_level < 0
        if self._retries is not None and too_often:
            self._spawn(self._bury(owner, message, left, retry.reason))
        else:
            self._rest(owner, [message, *left])

    def _rest(self, owner: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Nothing of the queue is given out until the moment is over. The messages are back at once, so that
        whoever wants to give the queue up need not wait for that."""
        self.handout.give_back(owner, messages)
        self._later(self._suspend_ms, lambda: self.handout.free(owner))

    async def _bury(
        self, owner: ProcessQueue, message: ReceivedMessage, left: Sequence[ReceivedMessage], reason: str
    ) -> None:
        assert self._retries is not None
        if not await self._retries.hand_back(message, Retry(DEAD_LETTER_LEVEL, reason)):
            self._rest(owner, [message, *left])
            return
        logger.warning("%r failed %d times and went to the dead letters", message, message.tries)
        self.finish(owner, [message])
        self.handout.give_back(owner, left)
        self.handout.free(owner)
