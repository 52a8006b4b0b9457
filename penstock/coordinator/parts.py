"""How further parts of a coordinator (balancing, placement) fit into its server.

A part is made with the `Shared` things, registers its handlers, and is told of the lead, of closed connections and of
time. It is called in the coordinator's event loop and must not block. Whatever a part keeps in memory belongs to one
term: at TOOK_OVER it begins anew, at RESTED it lets go; see leadership.py for UNSURE and RESUMED.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.coordinator.broker_sets import BrokerSets
from penstock.coordinator.heartbeats import Heartbeats
from penstock.coordinator.leadership import Lead, Leadership
from penstock.coordinator.links import BrokerLinks
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.topic_reports import TopicReports
from penstock.metadata.fastjson import JsonObject
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Runtime
from penstock.security import Guard
from penstock.telemetry import Meters


@dataclass(frozen=True, slots=True)
class Shared:
    """What the parts of one coordinator have in common.

    `leadership.is_sure` before anything is changed, else answer `processors.lead.not_leader`. `heartbeats.consumers`
    and `.producers` are for whoever beats (9021): register, beat, close, and `listen` for who is gone; brokers are
    kept by the server. `topics` has the queues of all broker sets. `links.call_master(sets, name, command)` asks the
    master of a set.
    """

    options: CoordinatorOptions
    runtime: Runtime
    leadership: Leadership
    heartbeats: Heartbeats
    sets: BrokerSets
    topics: TopicReports
    links: BrokerLinks
    meters: Meters
    guard: Guard | None = None


class Part(Protocol):
    """See the module's text."""

    def register(self, table: ProcessorTable) -> None:
        """Say which requests it answers."""

    def lead_changed(self, event: Lead, term: int) -> None:
        """This coordinator leads from now on, or does not."""

    def tick(self, now_ms: int) -> None:
        """Every 50 ms, while this coordinator leads."""

    def connection_closed(self, connection: Connection) -> None:
        """A connection is gone; heartbeat tables have been told already."""

    def status(self) -> JsonObject:
        """What COORDINATOR_STATUS (9025) says about it."""

    async def stop(self) -> None:
        """End its tasks."""
