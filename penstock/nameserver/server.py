"""A name server: the tables, their handlers, the scan and the socket, put together.

    server = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
    await server.start()
    ... server.address ...
    await server.stop()

Rules: it starts empty but for its KV config and fills as brokers register. It listens and never connects, so
several run side by side without knowing of each other. Everything runs in the loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.nameserver.housekeeping import Housekeeping
from penstock.nameserver.kv_config import KvConfig
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.processors.administration import AdministrationProcessor
from penstock.nameserver.processors.brokers import BrokerProcessor
from penstock.nameserver.processors.routes import RouteProcessor
from penstock.nameserver.route_table import RouteTable
from penstock.nameserver.runtime_config import RuntimeConfig
from penstock.remoting import ProcessorTable, RemotingOptions, RemotingServer, TlsOptions
from penstock.runtime import Runtime
from penstock.security import OPEN, NodeAccess
from penstock.telemetry import Meters

_LOG = logging.getLogger("penstock.nameserver")


class NameServer:
    """`start` and `stop` are called once each, in one event loop."""

    def __init__(
        self,
        options: NameServerOptions,
        *,
        runtime: Runtime,
        remoting_options: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        access: NodeAccess = OPEN,
    ) -> None:
        clock = runtime.clock
        self._config = RuntimeConfig(options)
        self._kv = KvConfig(options, runtime.disk)
        self.routes = RouteTable(options)
        self.housekeeping = Housekeeping(self.routes, self._config, clock)
        self.table = table = ProcessorTable()
        BrokerProcessor(self.routes, self._config, self._kv, self.housekeeping, clock).register(table)
        self._route_processor = RouteProcessor(
            self.routes, self.housekeeping.lost, self._config, self._kv, self.meters, clock
        )
        self._route_processor.register(table)
        AdministrationProcessor(self.routes, self._config, self._kv).register(table)
        self.server = RemotingServer(
            options.host,
            options.port,
            table,
            runtime=runtime,
            options=remoting_options,
            on_close=self.housekeeping.connection_closed,
            tls=tls,
            guard=access.guard,
        )
        self._scan: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the KV config, listen, and begin to scan. Raises if the port is taken or the file is damaged."""
        self._kv.load()
        self._route_processor.begin()
        await self.server.start()
        self._scan = asyncio.create_task(self.housekeeping.run(), name="nameserver-scan")
        _LOG.info("name server listening on %s", self.address)

    @property
    def address(self) -> str:
        """`host:port` where it listens, with the port that the system chose if 0 was asked for."""
        return str(self.server.address)

    @property
    def meters(self) -> Meters:
        return self.housekeeping.meters

    @property
    def remoting_meters(self) -> Meters:
        return self.server.meters

    async def stop(self) -> None:
        """Close all connections and finish what is being saved. Harmless if it never started."""
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
            self._scan = None
        await self.server.stop()
        await self._kv.close()
