"""The broker, assembled: its store, its tables, its processors, its servers, and the order in which they live.

    start   store opened (recovery in a thread), tables read, publications finished that a crash interrupted, timers,
            server, registration last: whoever finds the broker through a name server finds it ready
    stop    unregistered, no new sends, waiting sends, publications and pulls answered, connections closed, tables
            saved, store flushed and closed

Everything runs in the event loop that called `start`; disk work that takes long runs in threads. A start that
fails leaves nothing open. Assembly only: what a part does is in its own module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock import _hot
from penstock.broker.channels import publisher_of
from penstock.broker.classic_set import ClassicMaster, ClassicSlave
from penstock.broker.consumers import Consumers
from penstock.broker.coordinated_set import UNKNOWN_ID, CoordinatedMember, MemberParts
from penstock.broker.creation import CreationLimit
from penstock.broker.delay import DelayService
from penstock.broker.fast_path import SendFastPath
from penstock.broker.flow_control import FlowControl
from penstock.broker.groups import Groups
from penstock.broker.idempotence import TICK_MS, Idempotence
from penstock.broker.locks import QueueLocks
from penstock.broker.master_services import MasterServices
from penstock.broker.message_ids import OffsetIds, UniqueIds
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.parts import (
    FastPathSlot,
    Processor,
    Reconfigurable,
    Timers,
    check_replication,
    ha_runtime,
    record_host,
)
from penstock.broker.pop_parts import PopParts
from penstock.broker.processor_list import membership_processors, own_processors
from penstock.broker.processors.access import AccessProcessor
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.processors.relay import ClientCalls
from penstock.broker.processors.send import SendProcessor
from penstock.broker.processors.staging import StagingProcessor
from penstock.broker.processors.timers import TimersProcessor
from penstock.broker.producers import Producers
from penstock.broker.publications import Publications
from penstock.broker.push_service import PushService
from penstock.broker.registration import Registration
from penstock.broker.request_modes import RequestModes
from penstock.broker.retention_groups import RetentionGroups
from penstock.broker.retry_names import RetryNames
from penstock.broker.send_rules import SendRules
from penstock.broker.side_tables import SideTables
from penstock.broker.slave_tables import SlaveTables
from penstock.broker.staging import Staging
from penstock.broker.statistics import Statistics
from penstock.broker.table_journal import TableJournal
from penstock.broker.timer import TimerService
from penstock.broker.timer_sends import TimerSends
from penstock.broker.topics import Topics
from penstock.broker.transactions import Transactions
from penstock.broker.writing import MessageWriter
from penstock.broker.zookeeper_offsets import ZooKeeperOffsets, zookeeper_offsets
from penstock.errors import ConnectError, StoreClosedError
from penstock.message import HostAddress
from penstock.protocol.codes import RequestCode
from penstock.remoting import Connection, ProcessorTable, RemotingOptions, RemotingServer, TlsOptions
from penstock.runtime import Runtime
from penstock.security import OPEN, NodeAccess
from penstock.store import MessageStore, StoreOptions
from penstock.store.layout import StorePaths
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
_NOT_ON_VIP = (
    *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE),
    *(RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO),
)
STOP_GRACE_MS = 1_000


class Broker:
    """One broker on one data directory. `start` and `stop` are called once each, in the same loop."""

    def __init__(
        self,
        options: BrokerOptions,
        store_options: StoreOptions,
        data_dir: str | Path,
        *,
        runtime: Runtime,
        remoting_options: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        access: NodeAccess = OPEN,
    ) -> None:
        if options.coordinators:
            # Nobody's master until the coordinators have said what it is.
            options = replace(options, broker_id=UNKNOWN_ID)
        check_replication(options, access)
        self.options = options
        self.store_options = store_options
        self.data_dir = Path(data_dir)
        self._runtime = runtime
        self.remoting_options = remoting_options or RemotingOptions()
        self._tls = tls
        self.guard = access.guard
        calls_tls = None if tls is None else tls.of_calls()
        # How it calls name servers, coordinators and its master.
        self._calls: dict[str, Any] = {
            "remoting": self.remoting_options,
            "tls": calls_tls,
            "hook": access.hook,
        }
        self._ha_runtime = ha_runtime(runtime, access, calls_tls)
        self._replicates = access.replicates
        clock, config = runtime.clock, StorePaths(self.data_dir).config
        limit = CreationLimit(clock, options.create_per_second, options.create_burst)
        self._journal = journal = TableJournal(runtime.disk, config)
        self.topics = Topics(options, runtime, journal, limit)
        self.groups = Groups(options, runtime, journal, limit)
        self.retry_names = RetryNames(self.groups, self.topics, is_guarded=self.guard is not None)
        self.offsets = ConsumerOffsets(options, runtime, journal)
        self.modes = RequestModes(options, runtime, journal)
        self.sequences = Idempotence(options, runtime, config)
        self.consumers = Consumers(options, clock)
        self.producers = Producers(options, clock)
        if self.guard is not None:
            self.producers.identify = publisher_of(self.guard)
        self.locks = QueueLocks(options, clock)
        self.leases = PartitionLeases(options, clock)
        self.statistics = Statistics(clock, options.cluster_name)
        self.flow = FlowControl(options, store_options, clock)
        self.calls = ClientCalls(options)
        self.offset_ids = OffsetIds(options)
        self.rules = SendRules(
            options, self.topics, self.groups, self.locks, len(store_options.delays_ms), runtime
        )
        self.registration = Registration(
            options,
            runtime,
            self.topics,
            self.listening,
            ha_port=lambda: self.place.ha_port if self.place is not None else 0,
            **self._calls,
        )
        self.table = ProcessorTable()
        self.vip_table = ProcessorTable()
        self.fast_path = FastPathSlot()
        self.server = self._make_server(options.port, self.table)
        self._vip_server: RemotingServer | None = None
        self._timers = Timers()
        self._store: MessageStore | None = None
        self.flusher: LoopFlusher | None = None
        self.writer: MessageWriter | None = None
        self.delay: DelayService | None = None
        self.timer: TimerService | None = None
        self.retention: RetentionGroups | None = None
        self.pulls: PullProcessor | None = None
        self.pop: PopParts | None = None
        self.publications: Publications | None = None
        self.push: PushService  # with the store
        self.transactions: Transactions  # with the store
        self.services: MasterServices | None = None
        # What it is in its set: a master with a replication port, or a slave.
        self.place: ClassicMaster | ClassicSlave | CoordinatedMember | None = None
        self.side_tables: SideTables | None = None
        self.zookeeper: ZooKeeperOffsets | None = None
        self._followers: list[Reconfigurable] = []
        self._is_started = False

    def _make_server(
        self, port: int, table: ProcessorTable, beside: RemotingServer | None = None
    ) -> RemotingServer:
        return RemotingServer(
            self.options.host,
            port,
            table,
            runtime=self._runtime,
            options=self.remoting_options,
            on_close=self._closed,
            fast_path=self.fast_path,
            tls=self._tls,
            guard=self.guard,
            beside=beside,
        )

    # -- addresses -------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where clients reach the broker: as advertised, or as it listens."""
        listening = self.listening()
        return self.options.advertise(listening.ip, listening.port)

    def listening(self) -> HostAddress:
        return self.server.address

    def _store_host(self) -> HostAddress:
        return record_host(self.options, self.listening())

    @property
    def store(self) -> MessageStore:
        if self._store is None:
            raise StoreClosedError("the broker is not running", "start it first")
        return self._store

    @property
    def connections(self) -> set[Connection]:
        """Everybody who is connected."""
        return self.server.connections

    # -- start -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        if self.options.port == 0:
            # The port goes into records and ids, so it has to be known first. Nobody else knows it yet.
            await self.server.start()
        store = await self._open_store()
        self._load(store)
        self.zookeeper = zookeeper_offsets(self.options, store, self.offsets, self.leases, self._runtime)
        if self.zookeeper is not None:
            await self.zookeeper.start()
        publications = await self._finish_publications(store)
        self._assemble(store, publications)
        if not self.options.is_slave and self.services is not None:
            await self.services.read_log()
        if self.flusher is not None and self.place is not None:
            self.flusher.start()
            await self.place.start()
        if self.options.port:
            await self.server.start()
        if self.options.vip_listener and self.options.port > 2:
            await self._open_vip_port(self.options.port - 2)
        self._begin()
        self._is_started = True
        _LOG.info("broker %s answers on %s", self.options.broker_name, self.address)

    async def _open_vip_port(self, port: int) -> None:
        server = self._make_server(port, self.vip_table, self.server)
        try:
            await server.start()
        except ConnectError as error:
            _LOG.warning("clients with vipChannelEnabled cannot send to this broker: %s", error.message)
        else:
            self._vip_server = server

    async def _open_store(self) -> MessageStore:
        """In a thread: after a crash it reads the end of the log, which may be long."""
        opening = partial(
            MessageStore.open,
            self.data_dir,
            self.store_options,
            runtime=self._runtime,
            store_host=self._store_host(),
            replica=self.options.is_slave,
            bounded=bool(self.options.coordinators),
        )
        self._store = await asyncio.get_running_loop().run_in_executor(None, opening)
        return self._store

    def _load(self, store: MessageStore) -> None:
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.modes.load()
        if not self.options.is_slave:
            self._adopt(store)
        self.leases.begin(self.topics.all())

    def _adopt(self, store: MessageStore) -> None:
        self.topics.adopt(store.queues.counts())

    async def _finish_publications(self, store: MessageStore) -> Publications:
        """Before any request has a processor: nobody may see the half of a batch that a crash has left."""
        options, runtime = self.options, self._runtime
        self.publications = Publications(
            options, store, self.topics, self.rules, self.flow, self.statistics, runtime, self._journal
        )
        if not options.is_slave:  # a slave has what its master has decided
            await asyncio.get_running_loop().run_in_executor(None, self.publications.recover)
        return self.publications

    def _assemble(self, store: MessageStore, publications: Publications) -> None:
        options, runtime, clock = self.options, self._runtime, self._runtime.clock
        flusher = self.flusher = LoopFlusher(store)
        writer = self.writer = MessageWriter(store, flusher, self.flow, self.statistics, clock)
        publications.replicated = writer.replicated
        if options.name_servers or self.guard is not None:
            publications.known_brokers = self.registration.broker_names
        self.sequences.open(store, self.topics)
        delay = self.delay = DelayService(options, store, writer, flusher, runtime, self._journal)
        delay.load()
        paths = StorePaths(self.data_dir)
        timers = self.timer = TimerService(options, store, writer, flusher, runtime, paths)
        timers.load()
        retention = self.retention = RetentionGroups(self.offsets, store, timers)
        tables = (self.topics, self.groups, self.consumers, self.offsets, self.leases, self.modes)
        pop = self.pop = PopParts(
            *(options, store, writer, flusher, *tables, self.statistics, self.registration),
            *(runtime, self._store_host(), self.retry_names),
        )
        if options.coordinators:
            self.side_tables = SideTables(
                *(store, self.topics, self.groups, self.offsets, delay, timers, self._journal, self.modes)
            )
            self.side_tables.recover()
        unique_ids, host = UniqueIds(self._store_host(), runtime), self._store_host()
        self.transactions = Transactions(
            *(
                options,
                store,
                writer,
                self.rules,
                self.topics,
                self.offsets,
                self.producers,
                unique_ids,
                clock,
            ),
            *(host, delay, self.guard),
        )
        clean_ms = self.store_options.clean_interval_ms
        self.services = MasterServices(
            *(delay, timers, publications, self.transactions, retention, flusher, clean_ms, self.zookeeper),
            pop=pop.service,
            sequences=self.sequences,
        )
        topics, groups, consumers, offsets = self.topics, self.groups, self.consumers, self.offsets
        leases, flow, rates = self.leases, self.flow, self.statistics
        pulls = self.pulls = PullProcessor(
            options, store, topics, groups, consumers, offsets, leases, flow, rates, clock
        )
        self.push = self.services.push = PushService(options, store, pulls, offsets, leases, clock)
        sends = SendProcessor(
            *(self.rules, writer, TimerSends(timers), unique_ids, self.offset_ids, self.transactions.open),
            sequences=self.sequences,
            body_bytes_max=store.options.max_message_size_bytes,
            batch_count_max=options.batch_count_max,
            learn=self._make_fast_path(writer),
            guard=self.guard,
        )
        processors: list[Processor] = [
            sends,
            pulls,
            self.transactions,
            *own_processors(self, store, writer, pulls, delay, timers, runtime, self.guard),
        ]
        processors.append(TimersProcessor(self.rules, writer, topics, timers, unique_ids))
        processors += [*membership_processors(self, store, self.side_tables, clock), *pop.processors]
        staging = Staging(store, self.rules, writer, options.batch_count_max)
        processors.append(
            StagingProcessor(options, self.rules, writer, staging, publications, runtime.entropy, self.guard)
        )
        if self.guard is not None:
            processors.append(AccessProcessor(self.guard))
        for processor in processors:
            processor.register(self.table)
        self.place = self._make_place(store, writer, flusher, pulls, delay, timers)
        if isinstance(self.place, CoordinatedMember | ClassicMaster):
            self.place.register(self.table)
        for code in self.table.codes:
            handler = self.table.find(code)
            if handler is not None and code not in _NOT_ON_VIP:
                self.vip_table.register(code, handler)
        parts: list[object] = [
            *processors,
            *(publications, timers, self.rules, self.flow, self.calls, self.registration, pop),
            *(self.topics, self.groups, self.consumers, self.producers, self.sequences),
        ]
        self._followers = [part for part in parts if hasattr(part, "reconfigure")]

    def _make_place(
        self,
        store: MessageStore,
        writer: MessageWriter,
        flusher: LoopFlusher,
        pulls: PullProcessor,
        delay: DelayService,
        timers: TimerService,
    ) -> ClassicMaster | ClassicSlave | CoordinatedMember:
        options, runtime = self.options, self._runtime
        if self.side_tables and self.services and self.publications and self.pop:
            parts = MemberParts(
                *(store, flusher, writer, pulls, delay, timers, self.publications, self.services),
                *(self.topics, self.side_tables, self.leases, self.registration, self.pop.service),
                self.sequences,
            )
            return CoordinatedMember(
                *(options, parts, self.reconfigure, self._adopt, runtime, self.listening),
                ha_runtime=self._ha_runtime,
                **self._calls,
            )
        port = options.port or self.listening().port
        if not options.is_slave:
            return ClassicMaster(
                options, store, writer, pulls, port, self._ha_runtime, has_port=self._replicates
            )
        tables = SlaveTables(
            *(options, self.topics, self.groups, self.offsets, delay, timers, store, runtime),
            modes=self.modes,
            **self._calls,
        )
        return ClassicSlave(options, store, flusher, pulls, self.registration, tables, port, self._ha_runtime)

    def _make_fast_path(self, writer: MessageWriter) -> Callable[[str, int], None] | None:
        """Uncompiled, the ordinary way is faster."""
        if _hot.form() != "compiled":
            return None
        path = SendFastPath(self.rules, writer, self.flow, self.offset_ids, self.remoting_options.limits)
        self.topics.on_change.append(path.forget)
        self.fast_path.path = path
        return path.learn

    def _begin(self) -> None:
        """Everything that runs by itself."""
        if not (self.pulls and self.delay and self.timer and self.services and self.pop):
            return
        self.pulls.polling.start()
        self.pop.start()
        self.store.on_arrival(self.pulls.polling.on_arrival)
        self.offsets.on_reset.append(self.pulls.polling.wake)
        self.timer.run()
        if self.options.is_slave:
            self.delay.stored.start()
        else:
            self.services.start()
        self.topics.start()
        self.groups.start()
        self.offsets.start()
        self.topics.on_delete.append(self.statistics.forget_topic)
        self._timers.every(1_000, self.statistics.tick)
        self._timers.every(TICK_MS, self.sequences.tick)
        self._timers.every(TICK_MS, self.consumers.tick)
        self._timers.every(self.options.offset_save_interval_ms, self._journal.sync_soon)
        self._timers.every(self.store_options.clean_interval_ms, self._tell_of_timers)
        self._timers.every(self.options.channel_scan_interval_ms, self._scan)
        if not self.options.coordinators:
            self.registration.start()

    # -- while it runs ---------------------------------------------------------------------------------------

    def reconfigure(self, options: BrokerOptions) -> None:
        """Have every part follow new options."""
        self.options = options
        if isinstance(self.place, CoordinatedMember):
            self.place.follow_options(options)
        for part in self._followers:
            part.reconfigure(options)

    def _closed(self, connection: Connection) -> None:
        if self.pulls is not None and self.pop is not None:
            self.pulls.polling.drop_connection(connection)
            self.pop.closed(connection)
            self.push.closed(connection)
        self.consumers.drop_connection(connection)
        self.producers.drop_connection(connection)

    def _tell_of_timers(self) -> None:
        if self.options.is_slave and self.retention is not None:
            self.retention.tell_of_timers()

    def _scan(self) -> None:
        """Drop clients and locks that nobody has heard of for long."""
        for connection in {*self.consumers.scan(), *self.producers.scan()}:
            # One group of a client may have ended without a word while the others live on.
            if not self.consumers.is_member(connection) and not self.producers.is_member(connection):
                connection.close("its clients sent no heartbeat")
        self.locks.scan()
        self.leases.scan()

    # -- stop ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer what waits, save, close; after a start that failed, whatever of that there is to do."""
        await self.registration.stop()
        self.rules.is_stopping = True
        self._timers.stop()
        if self._is_started and self.writer is not None and self.pulls is not None:
            await self.writer.drain(self.store_options.sync_flush_timeout_ms)
            if self.services is not None:
                await self.services.stop()
            self.pulls.polling.stop()
            if self.pop is not None:
                self.pop.polling.stop()
        if self.place is not None:
            await self.place.stop()
        if self._vip_server is not None:
            await self._vip_server.stop(STOP_GRACE_MS)
        await self.server.stop(STOP_GRACE_MS)
        if self.zookeeper is not None:
            await self.zookeeper.stop()
        is_saved = await self._save() if self._is_started else False
        await self._journal.close(is_saved=is_saved)
        if self.writer is not None:
            self.writer.stop()
        if self.flusher is not None:
            self.flusher.stop()
        store, self._store = self._store, None
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(None, store.close)
        self._is_started = False

    async def _save(self) -> bool:
        """Whether the tables' own files have everything."""
        if self.delay is not None and self.timer is not None:
            await self.delay.stop()
            await self.timer.stop()
        await self.sequences.stop()
        await self.topics.stop()
        await self.groups.stop()
        await self.offsets.stop()
        await self.modes.stop()
        owners = (self.topics, self.groups, self.offsets, self.modes, self.delay)
        return all(owner.stored.is_clean for owner in owners if owner is not None)
