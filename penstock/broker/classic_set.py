"""A broker's place in a set that nobody coordinates: a master with its replication port, or a slave of one.

Which of them is a matter of the options and stays so until the next start: failing over is the operator's work
(docs/operating/replication.md). A master that stops gives its slaves a moment to take the end of its log, so that one
of them can go on in its place without losing anything. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.options import BrokerOptions, BrokerRole
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.registration import Registration
from penstock.broker.replica_waits import ClassicReplicas, replication_options
from penstock.broker.slave import Slave
from penstock.broker.slave_tables import SlaveTables
from penstock.broker.writing import MessageWriter
from penstock.errors import ConnectError
from penstock.protocol.bodies.running import HAConnectionRuntimeInfo, HARuntimeInfo
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable
from penstock.replication import HaClient, HaServer
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
# How long slaves may take for the end of a log whose master is being stopped.
FAREWELL_MS = 1_000


class ClassicMaster:
    """Serves the log to slaves and reports to the writer when there are enough copies. `has_port` is false where no
    slave may connect: access control without a cluster secret."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        pulls: PullProcessor,
        port: int,
        runtime: Runtime,
        *,
        has_port: bool = True,
    ) -> None:
        self._options = options
        self._store = store
        self._has_port = has_port
        self._runtime = runtime
        # The port after the broker's is only a habit: nobody who asks name servers relies on it.
        self._port, self._may_be_another = options.ha_port or port + 1, not options.ha_port
        self.server = self._make_server(self._port)
        self._writer = writer
        self._pulls = pulls

    def _make_server(self, port: int) -> HaServer:
        options = replication_options(self._options)
        return HaServer(self._store, options, self._runtime, host=self._options.host, port=port)

    @property
    def ha_port(self) -> int:
        return self.server.address[1]

    def register(self, table: ProcessorTable) -> None:
        """Who follows is known here; called when every other handler is there."""
        table.wrap(RequestCode.GET_BROKER_HA_STATUS, lambda handler: self.handle_ha_status)

    def handle_ha_status(self, connection: Connection, command: Command) -> Command:
        slaves = self.server.replicas()
        status = HARuntimeInfo(
            is_master=True,
            master_commit_log_max_offset=self._store.log.max_offset,
            in_sync_slave_nums=sum(slave.is_in_sync for slave in slaves),
            connections=tuple(
                HAConnectionRuntimeInfo(
                    addr=slave.address,
                    slave_ack_offset=slave.acked_offset,
                    diff=slave.behind_bytes,
                    in_sync=slave.is_in_sync,
                    transfer_from_where=slave.acked_offset,
                )
                for slave in slaves
            ),
        )
        return command.answer(body=status.encode())

    async def start(self) -> None:
        if self._has_port:
            await self._listen()
        else:
            _LOG.warning(
                "no replication port is opened: access control is on and access.cluster_secret is not set; slaves "
                "cannot copy this broker"
            )
        self.server.serve()
        is_sync = self._options.role is BrokerRole.SYNC_MASTER
        self._writer.replicas = ClassicReplicas(
            self.server, replication_options(self._options), is_sync=is_sync
        )
        self._pulls.has_slaves = self._has_slaves

    async def _listen(self) -> None:
        try:
            await self.server.start()
        except ConnectError as error:
            if not self._may_be_another:
                raise
            self.server = self._make_server(0)
            await self.server.start()
            _LOG.info("%s; slaves are served on port %d instead", error.message, self.ha_port)

    def _has_slaves(self) -> bool:
        tracker = self.server.tracker
        return tracker is not None and tracker.in_sync_count() > 1

    async def stop(self) -> None:
        tracker = self.server.tracker
        if tracker is not None and tracker.in_sync_count() > 1:
            over = asyncio.Event()
            end, copies = self._store.log.max_offset, tracker.in_sync_count()
            self.server.when_replicated(end, copies, lambda outcome: over.set())
            try:
                async with asyncio.timeout(FAREWELL_MS / 1000):
                    await over.wait()
            except TimeoutError:
                _LOG.warning("not every slave has the end of the log")
        await self.server.stop()


class ClassicSlave:
    """Follows the master's log and tables."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        flusher: LoopFlusher,
        pulls: PullProcessor,
        registration: Registration,
        tables: SlaveTables,
        port: int,
        runtime: Runtime,
    ) -> None:
        client = HaClient(store, replication_options(options), runtime, flusher=flusher)
        self.slave = Slave(options, client, tables, registration)
        self._pulls = pulls
        # Where it would serve slaves if it were the master.
        self.ha_port = options.ha_port or port + 1

    async def start(self) -> None:
        self._pulls.has_master = lambda: self.slave.has_master
        await self.slave.start()

    async def stop(self) -> None:
        await self.slave.stop()
