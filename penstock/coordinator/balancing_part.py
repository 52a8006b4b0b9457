"""Balancing, placement and their requests as a part of a coordinator: assembly only.

Coordinator(options, store, runtime=runtime, parts=(BalancingPart,))
"""

from __future__ import annotations

from penstock.coordinator.balance import BalanceTimes
from penstock.coordinator.balancing import Balancing
from penstock.coordinator.creation import Creation
from penstock.coordinator.groups import GroupLimits
from penstock.coordinator.leadership import Lead
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.parts import Shared
from penstock.coordinator.processors.clients import ClientsProcessor
from penstock.metadata.fastjson import JsonObject
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable


class BalancingPart:
    """See `parts.Part`."""

    def __init__(self, shared: Shared) -> None:
        options = shared.options
        self.balancing = Balancing(
            shared.heartbeats,
            shared.topics,
            shared.runtime.clock,
            times=_times(options),
            limits=GroupLimits(
                options.groups_max,
                options.group_members_max,
                options.client_topics_max,
                options.reported_queues_max,
            ),
            first_balance_ms=options.first_balance_ms,
            virtual_nodes=options.ring_virtual_nodes,
        )

        async def call(broker_name: str, command: Command) -> Command:
            return await shared.links.call_master(shared.sets, broker_name, command)

        self.creation = Creation(shared.topics, call, options.on_demand_queues_max)
        self._clients = ClientsProcessor(shared.leadership, self.balancing, self.creation, shared.guard)

    def register(self, table: ProcessorTable) -> None:
        self._clients.register(table)

    def lead_changed(self, event: Lead, term: int) -> None:
        self.balancing.lead_changed(event, term)
        if event in (Lead.TOOK_OVER, Lead.RESTED):
            self.creation.clear()

    def tick(self, now_ms: int) -> None:
        self.balancing.tick(now_ms)

    def connection_closed(self, connection: Connection) -> None:
        """The tables of heartbeats tell everything that matters."""

    def status(self) -> JsonObject:
        groups = self.balancing.groups
        members = sum(len(group.members) for name in groups.names if (group := groups.get(name)) is not None)
        return {"groups": len(groups), "consumers": members, "producers": len(self.balancing.publishers)}

    async def stop(self) -> None:
        """It has no tasks."""


def _times(options: CoordinatorOptions) -> BalanceTimes:
    return BalanceTimes(
        interval_ms=options.balance_interval_ms,
        gather_ms=options.balance_gather_ms,
        retry_ms=options.balance_retry_ms,
        return_ms=options.consumer_return_ms,
        unfinished_rounds_max=options.unfinished_rounds_max,
    )
