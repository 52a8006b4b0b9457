"""A classic slave: copies its master's log and tables for as long as it runs, and takes over nothing by itself.

Where the master is, name servers say in their answer to a registration; an address in the options comes before that.
While there is no connection the slave registers anew every few seconds, so that it soon hears of a master that was
started or moved. If the master is gone the slave goes on reading to consumers what it has. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.options import BrokerOptions
from penstock.broker.registration import Registration
from penstock.broker.slave_tables import SlaveTables
from penstock.protocol.headers import RegisterBrokerResponseHeader
from penstock.replication import HaClient

_LOG = logging.getLogger("penstock.broker")
ASK_INTERVAL_MS = 3_000


class Slave:
    """See the module's text."""

    def __init__(
        self, options: BrokerOptions, client: HaClient, tables: SlaveTables, registration: Registration
    ) -> None:
        self._options = options
        self._client = client
        self._tables = tables
        self._registration = registration
        self._timer: asyncio.TimerHandle | None = None
        self._ha_address = ""

    async def start(self) -> None:
        await self._client.start()
        if self._options.ha_master_address:
            self._follow(self._options.ha_master_address)
        elif not self._options.name_servers:
            _LOG.error("a slave without name_servers and ha_master_address follows nobody: name one of them")
        if not self._options.name_servers:
            _LOG.warning("without name_servers topics, groups and offsets of the master are not followed")
        self._tables.start()
        self._registration.on_answer.append(self._answered)
        self._ask_again()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._answered in self._registration.on_answer:
            self._registration.on_answer.remove(self._answered)
        await self._tables.stop()
        await self._client.stop()

    @property
    def has_master(self) -> bool:
        """Whether the master is there: the log comes from it, or would."""
        return self._client.is_connected

    def _answered(self, header: RegisterBrokerResponseHeader) -> None:
        """A name server that says nothing of a master knows none; others may, and the last known one may be back."""
        if header.master_addr:
            self._tables.follow(header.master_addr)
        if header.ha_server_addr and not self._options.ha_master_address:
            self._follow(header.ha_server_addr)

    def _follow(self, address: str) -> None:
        if address != self._ha_address:
            _LOG.info("following the master's log at %s", address)
            self._ha_address = address
            self._client.follow(address)

    def _ask_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(ASK_INTERVAL_MS / 1000, self._ask_again)
        if not self.has_master:
            self._registration.hurry()
