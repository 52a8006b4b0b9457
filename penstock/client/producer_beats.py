"""Tells the coordinator every ten seconds which producers live in this client and what they publish.

Rules: only while there are producers. A coordinator that is away changes nothing for them: sends need none. Belongs
to the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.client.coordinators import Coordinators
from penstock.errors import PenstockError
from penstock.protocol.bodies.balance import ClientBeatBody, ClientKind
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.runtime import Clock

logger = logging.getLogger(__name__)
INTERVAL_S = 10.0
# How soon the first beat follows a producer that has just started.
LOOK_S = 1.0
TOPICS_MAX = 1_000
# Groups and topics of the client's producers.
Published = Callable[[], tuple[list[str], list[str]]]


class ProducerBeats:
    """The beats of all producers of one client."""

    def __init__(self, coordinators: Coordinators, client_id: str, clock: Clock) -> None:
        self._coordinators = coordinators
        self._client_id = client_id
        self._sequence = clock.now_ms()
        self._last: tuple[list[str], list[str]] = ([], [])
        self._is_known = False

    async def run(self, published: Published) -> None:
        """Beat until cancelled."""
        waited_s = INTERVAL_S
        while True:
            groups, topics = published()
            if groups and (waited_s >= INTERVAL_S or (groups, topics) != self._last):
                await self._beat(groups, topics)
                waited_s = 0.0
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S

    async def _beat(self, groups: list[str], topics: list[str]) -> None:
        self._last = (groups, topics)
        self._sequence += 1
        body = ClientBeatBody(
            self._client_id,
            ",".join(groups),
            ClientKind.PRODUCER,
            topics=tuple(topics[:TOPICS_MAX]),
            sequence=self._sequence,
        )
        self._is_known = await self._tell(RequestCode.CLIENT_BEAT, body) or self._is_known

    async def leave(self) -> None:
        """The client closes."""
        if self._is_known:
            await self._tell(
                RequestCode.CLIENT_CLOSE, ClientBeatBody(self._client_id, "", ClientKind.PRODUCER)
            )

    async def _tell(self, code: RequestCode, body: ClientBeatBody) -> bool:
        try:
            answer = await self._coordinators.call(Command(code, body=body.encode()))
        except PenstockError as error:
            logger.info("producers of %s are not known to a coordinator: %s", self._client_id, error)
            return False
        return answer.code == 0
