"""Shares that the broker computes (400), and how groups get their messages (401, 402).

A client that lets the broker divide the queues asks here for its share of a topic, with all queues of all brokers:
the name servers' route, asked for at most every few seconds. Where no route is to be had, the answer has no list, and
the client keeps what it has. Owned by the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.broker.consumers import Consumers
from penstock.broker.groups import Groups
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.heartbeat import check_client_id
from penstock.broker.processors.reading import read_body, saved
from penstock.broker.queue_shares import STRATEGIES, for_pop
from penstock.broker.request_modes import RequestModes
from penstock.broker.topics import Topics
from penstock.errors import CodecError, RequestError
from penstock.metadata.fastjson import dump_compact
from penstock.metadata.request_mode_table import RequestMode
from penstock.metadata.topic_table import Permission
from penstock.protocol.bodies import MessageModel, MessageQueue, TopicRouteData
from penstock.protocol.bodies.pop import (
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import GetRouteInfoRequestHeader
from penstock.protocol.topic_names import RETRY_PREFIX
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock

ROUTE_MS = 5_000
ROUTES_MAX = 10_000
# Asks the name servers; None where none answers.
Ask = Callable[[Command], Awaitable[Command | None]]


class AssignmentProcessor:
    """Codes 400, 401 and 402. `ask` is None where there are no name servers."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        modes: RequestModes,
        ask: Ask | None,
        clock: Clock,
    ) -> None:
        self.options = options
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._modes = modes
        self._ask = ask
        self._clock = clock
        # Queues of a topic, and when they were asked for; who asks while they are being asked for waits for the same.
        self._routes: dict[str, tuple[int, asyncio.Future[tuple[MessageQueue, ...] | None]]] = {}

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.QUERY_ASSIGNMENT, self.handle_query_assignment)
        table.register(RequestCode.SET_MESSAGE_REQUEST_MODE, self.handle_set_message_request_mode)
        table.register(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.handle_get_all_message_request_mode)

    # -- shares ----------------------------------------------------------------------------------------------

    async def handle_query_assignment(self, connection: Connection, command: Command) -> Command:
        request = read_body(command, QueryAssignmentRequestBody.decode)
        check_client_id(request.client_id)
        config = self._modes.get(request.topic, request.consumer_group)
        queues = await self._share(request) if self.options.server_assignment else None
        return command.answer(body=QueryAssignmentResponseBody(queues, config.mode).encode())

    async def _share(self, request: QueryAssignmentRequestBody) -> tuple[MessageQueue, ...] | None:
        queues = await self._queues(request.topic)
        if queues is None:
            return None
        if request.message_model == MessageModel.BROADCASTING:
            return queues
        group = self._consumers.group(request.consumer_group)
        strategy = STRATEGIES.get(request.strategy_name)
        if group is None or strategy is None:
            return None
        clients = sorted(group.client_ids)
        config = self._modes.get(request.topic, request.consumer_group)
        if config.mode is RequestMode.POP:
            return tuple(for_pop(strategy, request.client_id, clients, queues, config.share_queues))
        return tuple(strategy(request.client_id, clients, queues))

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """All queues of a topic that can be read, sorted; None where nobody knows."""
        if self._ask is None:
            return self._own_queues(topic)
        now_ms = self._clock.monotonic_ms()
        known = self._routes.get(topic)
        if known is None or now_ms - known[0] > ROUTE_MS:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            task = asyncio.ensure_future(self._route(self._ask, topic))
            known = self._routes[topic] = (now_ms, task)
        return await asyncio.shield(known[1])

    def _own_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        config = self._topics.get(topic)
        if config is None or not config.perm & Permission.READ:
            return None
        name = self.options.broker_name
        return tuple(MessageQueue(topic, name, number) for number in range(config.read_queue_nums))

    async def _route(self, ask: Ask, topic: str) -> tuple[MessageQueue, ...] | None:
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode()))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._routes.pop(topic, None)
            return None
        try:
            route = TopicRouteData.decode(answer.body)
        except CodecError:
            return None
        queues = [
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & Permission.READ
            for number in range(data.read_queue_nums)
        ]
        return tuple(sorted(queues))

    # -- modes -----------------------------------------------------------------------------------------------

    def handle_set_message_request_mode(self, connection: Connection, command: Command) -> Awaitable[Command]:
        request = read_body(command, SetMessageRequestModeRequestBody.decode)
        if request.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "what was given back by pulling is pulled")
        if self._topics.get(request.topic) is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {request.topic[:80]!r} does not exist",
                "create it first",
            )
        self._groups.require(request.consumer_group)
        self._modes.set(request.topic, request.consumer_group, request.config)
        return saved(self._modes, command)

    def handle_get_all_message_request_mode(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=dump_compact(self._modes.snapshot().to_json()))
