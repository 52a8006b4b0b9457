"""What producers and consumers ask of a coordinator (9021 to 9024, 9029).

Every one of them is for the leader: what it knows of groups is in its memory alone. A coordinator that does not lead
refuses with 2007 and the leader's address. Owned by the coordinator's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from penstock.coordinator.balancing import Balancing
from penstock.coordinator.creation import Creation
from penstock.coordinator.leadership import Leadership
from penstock.coordinator.processors.lead import not_leader
from penstock.errors import CodecError, RequestError
from penstock.protocol.bodies.balance import ClientBeatAnswer, ClientBeatBody, ClientKind, PlacementBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.balance import (
    CreateOnDemandRequestHeader,
    ExplainRequestHeader,
    SubscriptionsRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.security import Guard

T = TypeVar("T")


class ClientsProcessor:
    """Codes 9021, 9022, 9023, 9024 and 9029."""

    def __init__(
        self, leadership: Leadership, balancing: Balancing, creation: Creation, guard: Guard | None = None
    ) -> None:
        self._leadership = leadership
        self._balancing = balancing
        self._creation = creation
        self._guard = guard

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.CLIENT_BEAT, self.handle_client_beat)
        table.register(RequestCode.CLIENT_CLOSE, self.handle_client_close)
        table.register(RequestCode.EXPLAIN, self.handle_explain)
        table.register(RequestCode.CREATE_ON_DEMAND, self.handle_create_on_demand)
        table.register(RequestCode.SUBSCRIPTIONS, self.handle_subscriptions)

    def handle_client_beat(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        body = _read(command, ClientBeatBody.decode)
        if body.kind is ClientKind.PRODUCER:
            self._balancing.producer_beat(self._owned(body), connection)
            return command.answer(body=ClientBeatAnswer(self._balancing.term).encode())
        return command.answer(body=self._balancing.consumer_beat(body, connection).encode())

    def handle_client_close(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        body = _read(command, ClientBeatBody.decode)
        self._balancing.close(self._owned(body) if body.kind is ClientKind.PRODUCER else body)
        return command.answer()

    def _owned(self, body: ClientBeatBody) -> ClientBeatBody:
        """The report of a producer under an id of its user's: no group says whose it is, so that another user could
        take its place or close it."""
        if self._guard is None:
            return body
        return replace(
            body, client_id=f"{self._guard.sender_name} {body.client_id}" if body.client_id else ""
        )

    def handle_explain(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = ExplainRequestHeader.decode(command.fields)
        return command.answer(body=self._balancing.explain(header.group).encode())

    def handle_subscriptions(self, connection: Connection, command: Command) -> Command:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        header = SubscriptionsRequestHeader.decode(command.fields)
        return command.answer(body=self._balancing.groups.subscriptions(header.topic).encode())

    def handle_create_on_demand(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        if not self._leadership.is_sure:
            return not_leader(command, self._leadership)
        return self._create(command, CreateOnDemandRequestHeader.decode(command.fields))

    async def _create(self, command: Command, header: CreateOnDemandRequestHeader) -> Command:
        placement = await self._creation.create(header.topic, header.queues)
        created = sum(placement.created.values())
        return command.answer(body=PlacementBody(header.topic, placement.queues, created).encode())


def _read(command: Command, decode: Callable[[bytes | bytearray], T]) -> T:
    try:
        return decode(command.body)
    except CodecError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, error.message, error.hint) from error
