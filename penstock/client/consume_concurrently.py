"""Consumption in any order: messages of one queue may be worked on at the same time.

Rules. A message that failed is handed back to the broker, which delivers it again after a while and longer after
each failure, and after too many to the dead letters; then it is done with here. If it can be handed back to
nobody it is tried again here after some seconds: it is never skipped. In broadcasting there is nobody to hand it
back to: it is reported and given up. A message that somebody has had for longer than the consume timeout is
handed back as well, because it would hold up its queue for ever. Belongs to the consumer's event loop.
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
# How soon a message is tried again here that could be handed back to nobody.
LOCAL_RETRY_MS = 5_000
# Delay level of a message that took too long.
EXPIRED_LEVEL = 3


class ConcurrentConsumption(Consumption):
    """`retries` is None in broadcasting."""

    def __init__(
        self,
        handout: Handout,
        offsets: OffsetStore,
        meters: ConsumeMeters,
        retries: Retries | None,
        *,
        local_retry_ms: int = LOCAL_RETRY_MS,
    ) -> None:
        super().__init__(handout, offsets, meters)
        self._retries = retries
        self.local_retry_ms = local_retry_ms

    def _retry(
        self,
        owner: ProcessQueue,
        failed: Sequence[tuple[ReceivedMessage, Retry]],
        left: Sequence[ReceivedMessage],
    ) -> None:
        if left:
            self.handout.give_back(owner, left)
        for message, retry in failed:
            if message not in owner:
                continue  # the queue was dropped, or the message took so long that it was handed back already
            if self._retries is None:
                logger.warning("%r failed and is given up: broadcasting tries nothing twice", message)
                self.finish(owner, [message])
            else:
                self._spawn(self._hand_back(owner, message, retry))

    async def _hand_back(self, owner: ProcessQueue, message: ReceivedMessage, retry: Retry) -> None:
        assert self._retries is not None
        if await self._retries.hand_back(message, retry):
            self.finish(owner, [message])
            return
        message.tries += 1
        logger.warning("%r is tried again here in %d ms", message, self.local_retry_ms)
        message.started_ms = 0
        self._later(self.local_retry_ms, lambda: self.handout.give_back(owner, [message]))

    def expire(self, owner: ProcessQueue, now_ms: int, limit_ms: int) -> None:
        message = owner.lowest
        if self._retries is None or message is None or not message.started_ms:
            return
        if now_ms - message.started_ms > limit_ms:
            logger.warning("%r has been worked on for more than %d ms and is handed back", message, limit_ms)
            message.started_ms = now_ms
            expired = Retry(EXPIRED_LEVEL, f"worked on for more than {limit_ms} ms")
            self._spawn(self._hand_back(owner, message, expired))
