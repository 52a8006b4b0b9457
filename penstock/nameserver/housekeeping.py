"""Who is still there: connections of brokers that close, and brokers that fall silent.

Rules: a broker whose connection is gone is removed at once; one that was silent for its time is removed by the
next scan (the first after 5 s, then every 10 s), and its connection closed unless others registered over it. The
only ones who ever hear of it are members of an acting-master broker, where that is turned on, over the
connections that they opened: nothing here connects to anybody. Owned by the server's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.nameserver.lost_brokers import LostBrokers
from penstock.nameserver.route_table import MinIdChange, Registration, Removed, RouteTable
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import NotifyMinBrokerIdChangeRequestHeader
from penstock.remoting import Connection
from penstock.runtime import Clock
from penstock.telemetry import Meters

_LOG = logging.getLogger("penstock.nameserver")
COUNTERS = ("registered", "refused", "left", "lost", "expired", "routes", "no_route")
Sleep = Callable[[float], Awaitable[None]]


class Housekeeping:
    """Connections over which brokers registered, and the scan."""

    def __init__(
        self, table: RouteTable, config: RuntimeConfig, clock: Clock, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._table = table
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._connections: dict[int, Connection] = {}
        self.lost = LostBrokers(clock)
        self.meters = Meters(COUNTERS)

    def registered(self, connection: Connection, new: Registration, *, was_live: bool) -> None:
        """A broker registered over this connection."""
        self._connections[connection.id] = connection
        self.lost.registered(new, was_live=was_live)
        self.meters.add("registered")

    def connection_closed(self, connection: Connection) -> None:
        """Clients come and go unnoticed; of brokers everything is removed that came over the connection."""
        if self._connections.pop(connection.id, None) is None:
            return
        for removed in self._table.drop_connection(connection.id):
            _LOG.warning("the connection of the broker at %s is gone: removed", removed.place.address)
            self.meters.add("lost")
            self.lost.add(removed)
            self.tell(removed.notice)

    def scan(self) -> list[Removed]:
        """Remove who was silent for too long."""
        expired = self._table.expire(self._clock.monotonic_ms())
        in_use = {live.connection for live in self._table.live.values()}
        for removed in expired:
            self.meters.add("expired")
            self.lost.add(removed)
            self.tell(removed.notice)
            connection = self._connections.get(removed.connection)
            if connection is not None and removed.connection not in in_use:
                connection.close("the broker was silent for too long")
        return expired

    async def run(self) -> None:
        """Scan until cancelled."""
        await self._sleep(self._config.options.scan_first_ms / 1000)
        while True:
            try:
                self.scan()
            except Exception:
                _LOG.exception("the scan for silent brokers failed; it is tried again")
            await self._sleep(self._config.options.scan_interval_ms / 1000)

    def tell(self, notice: MinIdChange | None) -> None:
        """Tell members of a broker that their smallest id changed."""
        if notice is None or not self._config.options.notify_min_broker_id:
            return
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=notice.min_id,
            broker_name=notice.broker,
            min_broker_addr=notice.min_address,
            offline_broker_addr=notice.offline_address,
            ha_broker_addr=notice.ha_address,
        )
        for number in notice.connections:
            connection = self._connections.get(number)
            if connection is not None and connection.is_open:
                connection.send(Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header.encode()))
