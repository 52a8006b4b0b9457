"""Which coordinator a client talks to: the one that leads, found by asking and remembered until it fails.

Rules. One that does not lead says who does (2007), and is believed once per call: after that the others are asked in
turn, each at most once. A leader whose connection breaks is not asked again before the others. A call that nobody
takes raises ConnectError; whoever calls goes on without. Requests may arrive twice, so what is asked here does no
harm twice. Belongs to the client's event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.name_servers import NOT_ONE, unreached
from penstock.errors import ConnectError, RemotingError
from penstock.protocol.bodies.balance import PlacementBody
from penstock.protocol.bodies.explanation import ExplanationBody
from penstock.protocol.bodies.subscriptions import SubscriptionsBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.balance import (
    CreateOnDemandRequestHeader,
    ExplainRequestHeader,
    SubscriptionsRequestHeader,
)
from penstock.protocol.headers.controller import NotLeaderResponseHeader
from penstock.remoting import RemotingClient, check

logger = logging.getLogger(__name__)
START_COORDINATOR = "start one (`penstock coordinator`), or correct the addresses given to the client"


class Coordinators:
    """Asks the coordinator that leads, whichever it is."""

    def __init__(self, addresses: Sequence[str], remoting: RemotingClient, timeout_ms: int = 3_000) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._timeout_ms = timeout_ms
        self._leader: str | None = None
        self._next = 0

    @property
    def leader(self) -> str | None:
        """The one that answered last."""
        return self._leader

    async def call(self, command: Command, timeout_ms: int | None = None) -> Command:
        """The leader's answer, whatever code it has. ConnectError if no leader is found."""
        failures: dict[str, RemotingError] = {}
        asked: set[str] = set()
        told: str | None = None
        while (address := self._choose(asked, told)) is not None:
            asked.add(address)
            told = None
            try:
                answer = await self._remoting.call(
                    address,
                    Command(command.code, dict(command.fields), command.body),
                    timeout_ms or self._timeout_ms,
                )
            except RemotingError as error:
                failures[address] = error
                self._failed(address)
                self._remoting.drop(address)
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                hint = "the port of a coordinator is 9877 by default"
                failures[address] = ConnectError(f"{address} is no coordinator", hint, reason=NOT_ONE)
                self._failed(address)
                continue
            if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                self._leader = address
                return answer
            failures[address] = ConnectError(answer.remark or "it does not lead")
            self._failed(address)
            told = NotLeaderResponseHeader.decode(answer.fields).leader_address
        raise unreached(
            "no coordinator leads",
            failures,
            START_COORDINATOR,
        )

    def _choose(self, asked: set[str], told: str | None) -> str | None:
        if told is not None and told not in asked:
            return told
        if self._leader is not None and self._leader not in asked:
            return self._leader
        count = len(self.addresses)
        for step in range(count):
            address = self.addresses[(self._next + step) % count]
            if address not in asked:
                return address
        return None

    def _failed(self, address: str) -> None:
        if self._leader == address:
            self._leader = None
        if address in self.addresses:
            self._next = (self.addresses.index(address) + 1) % len(self.addresses)

    # -- what may be asked -----------------------------------------------------------------------------------

    async def create(self, topic: str, queues: int) -> PlacementBody:
        """Have at least so many queues of a topic. ResponseError says why not."""
        header = CreateOnDemandRequestHeader(topic=topic, queues=queues)
        answer = await self.call(Command(RequestCode.CREATE_ON_DEMAND, header.encode()), 2 * self._timeout_ms)
        return PlacementBody.decode(check(answer).body)

    async def explain(self, group: str) -> ExplanationBody:
        """Who owns which queue of a group, and why."""
        header = ExplainRequestHeader(group=group)
        return ExplanationBody.decode(
            check(await self.call(Command(RequestCode.EXPLAIN, header.encode()))).body
        )

    async def subscriptions(self, topic: str) -> SubscriptionsBody:
        """Who reads a topic, in which mode; and the group that a consumer without one is to be in."""
        header = SubscriptionsRequestHeader(topic=topic)
        return SubscriptionsBody.decode(
            check(await self.call(Command(RequestCode.SUBSCRIPTIONS, header.encode()))).body
        )
