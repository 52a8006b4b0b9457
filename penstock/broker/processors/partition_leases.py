"""Partition leases (9026, 9027, 9028). Queues that the broker does not have are refused, held by nobody; a broker
that is not master grants nothing. Owned by the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.broker.groups import Groups
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import LeaseOutcome, PartitionLeases
from penstock.broker.processors.heartbeat import check_client_id
from penstock.broker.processors.reading import read_body
from penstock.broker.topics import Topics
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import LeaseAnswerBody, LeasedElsewhere, LeaseRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable

# One of the methods of `PartitionLeases`.
Ask = Callable[[str, str, list[MessageQueue]], LeaseOutcome]


class PartitionLeasesProcessor:
    """Grants, renews and frees leases for consumers."""

    def __init__(
        self, options: BrokerOptions, topics: Topics, groups: Groups, leases: PartitionLeases
    ) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups
        self._leases = leases

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.CLAIM_PARTITION, self.handle_claim_partition)
        table.register(RequestCode.REFRESH_PARTITION, self.handle_refresh_partition)
        table.register(RequestCode.RELEASE_PARTITION, self.handle_release_partition)

    def handle_claim_partition(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        return self._grant(command, self._leases.claim)

    def handle_refresh_partition(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        return self._grant(command, self._leases.refresh)

    def handle_release_partition(self, connection: Connection, command: Command) -> Command:
        request = read_body(command, LeaseRequestBody.decode)
        self._leases.release(request.group, request.client_id, request.queues)
        return command.answer()

    def _grant(self, command: Command, ask: Ask) -> Command | Awaitable[Command]:
        request = read_body(command, LeaseRequestBody.decode)
        check_client_id(request.client_id)
        self._check_master()
        self._groups.require(request.group)
        if self._leases.is_sure() or self._leases.prove is None:
            return self._answer(command, request, ask)
        return self._grant_surely(command, request, ask, self._leases.prove)

    async def _grant_surely(
        self, command: Command, request: LeaseRequestBody, ask: Ask, prove: Callable[[], Awaitable[None]]
    ) -> Command:
        await prove()
        self._check_master()
        return self._answer(command, request, ask)

    def _check_master(self) -> None:
        if self._options.broker_id:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{self._options.broker_name} with id {self._options.broker_id} is not the master",
                "ask the master, which the route names",
            )

    def _answer(self, command: Command, request: LeaseRequestBody, ask: Ask) -> Command:
        wanted = [queue for queue in request.queues if self._has(queue)]
        outcome = ask(request.group, request.client_id, wanted)
        unknown = tuple(LeasedElsewhere(queue) for queue in request.queues if not self._has(queue))
        body = LeaseAnswerBody(self._leases.lease_ms, outcome.granted, (*outcome.refused, *unknown))
        return command.answer(body=body.encode())

    def _has(self, queue: MessageQueue) -> bool:
        config = self._topics.get(queue.topic)
        if config is None or queue.broker_name != self._options.broker_name:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)
