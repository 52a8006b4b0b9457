"""A coordinator: election, broker sets, heartbeats, registry and the socket, put together.

    store = metadata_store("zookeeper:zk1:2181,zk2:2181", runtime)
    coordinator = Coordinator(CoordinatorOptions(port=0), store, runtime=Runtime.system())
    await coordinator.start()
    ... coordinator.address ...
    await coordinator.stop()

Rules. One coordinator leads, the others stand by, answer questions and say who leads. What is durable is in the
metadata store; everything else is learned anew by a new leader, from beats, within a second. It never dials anybody
and never touches a message. Everything runs in the loop that called `start`.

Order of the stop: no more requests, then rest (nobody is granted a lease any more), then the leader's entry goes,
then the session: whoever leads next finds nothing of us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.coordinator.broker_sets import BrokerSets
from penstock.coordinator.copies import RecordCopies
from penstock.coordinator.heartbeats import Gone, Heartbeats, TimeoutInfo
from penstock.coordinator.leadership import Lead, Leadership
from penstock.coordinator.links import BrokerLinks
from penstock.coordinator.metadata import MetadataStore
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.parts import Part, Shared
from penstock.coordinator.processors.brokers import BrokerReportProcessor
from penstock.coordinator.processors.controller import ControllerProcessor
from penstock.coordinator.processors.questions import QuestionProcessor
from penstock.coordinator.registry import CoordinatorEntry, Registry, broker_entries, partition_entries
from penstock.coordinator.status import coordinator_status
from penstock.coordinator.topic_reports import SetName, TopicReports
from penstock.metadata.fastjson import JsonObject
from penstock.remoting import Connection, ProcessorTable, RemotingOptions, RemotingServer, TlsOptions
from penstock.runtime import Runtime
from penstock.security import OPEN, NodeAccess
from penstock.telemetry import Meters

_LOG = logging.getLogger("penstock.coordinator")
COUNTERS = ("beats", "took_over", "unsure", "resumed", "rested", "timed_out", "dropped")
MakePart = Callable[[Shared], Part]


class Coordinator:
    """`start` and `stop` are called once each, in one event loop. The store is started and stopped along."""

    def __init__(
        self,
        options: CoordinatorOptions,
        store: MetadataStore,
        *,
        runtime: Runtime,
        remoting_options: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        access: NodeAccess = OPEN,
        parts: tuple[MakePart, ...] = (),
    ) -> None:
        access.require_cluster_secret("a coordinator is for brokers that replicate")
        self.options = options
        self.store = store
        self._clock = runtime.clock
        self.meters = Meters(COUNTERS)
        self.links = BrokerLinks()
        self.heartbeats = Heartbeats(
            consumer_timeout_ms=options.consumer_timeout_ms,
            producer_timeout_ms=options.producer_timeout_ms,
            broker_timeout_ms=options.broker_timeout_ms,
        )
        self.heartbeats.brokers.listen(self._broker_gone)
        self.leadership = Leadership(store)
        self.leadership.listen(self._lead_changed)
        self.sets = BrokerSets(
            store,
            self._clock,
            options.set_policy,
            notify=self.links.notify,
            changed=self._set_changed,
            deposed=self.leadership.doubt,
            sets_max=options.sets_max,
        )
        self.topics = TopicReports(self.sets.is_live)
        self.registry = Registry(store)
        self.entry = CoordinatorEntry(store, self.leadership)
        self.copies = RecordCopies(
            store,
            self._clock,
            self.entry.touch,
            stale_max_ms=options.stale_max_ms,
            stale_wait_ms=options.stale_wait_ms,
        )
        self.table = ProcessorTable()
        self._server = RemotingServer(
            options.host,
            options.port,
            self.table,
            runtime=runtime,
            options=remoting_options,
            on_close=self._connection_closed,
            tls=tls,
            guard=access.guard,
        )
        shared = Shared(
            options,
            runtime,
            self.leadership,
            self.heartbeats,
            self.sets,
            self.topics,
            self.links,
            self.meters,
            access.guard,
        )
        self.parts = [make(shared) for make in parts]
        self._register_handlers(shared)
        self._epochs: dict[SetName, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def _register_handlers(self, shared: Shared) -> None:
        BrokerReportProcessor(shared).register(self.table)
        ControllerProcessor(shared).register(self.table)
        QuestionProcessor(shared, self.copies, self.entry, self.status).register(self.table)
        for part in self.parts:
            part.register(self.table)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the metadata store, listen, stand for election. Raises if the store cannot be reached (the error names
        its address) or the port is taken; nothing is left behind then."""
        try:
            await self.store.start()
            await self._server.start()
            await self.leadership.start(self.options.advertised_address or self.address)
        except BaseException:
            await self.stop()
            raise
        self._run("leases", self._every(self.options.lease_scan_ms, self._tick))
        self._run("heartbeats", self._every(self.options.scan_interval_ms, self._scan))
        self._run("registry", self.registry.run())
        self._run("copies", self.copies.run())
        _LOG.info("coordinator listening on %s, metadata in %s", self.address, self.store.address)

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work, name=f"coordinator-{name}"))

    async def stop(self) -> None:
        """See the module's text. Harmless if it never started."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop()
        await self.leadership.stop()
        for part in self.parts:
            await part.stop()
        await self.sets.stop()
        await self.store.stop()

    @property
    def address(self) -> str:
        """`host:port` where it listens, with the port that the system chose if 0 was asked for."""
        return str(self._server.address)

    @property
    def remoting_meters(self) -> Meters:
        return self._server.meters

    # -- time ------------------------------------------------------------------------------------------------

    async def _every(self, milliseconds: int, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(milliseconds / 1000)
            try:
                work()
            except Exception:
                _LOG.exception("a scan of the coordinator failed; it is done again")

    def _tick(self) -> None:
        # Only while it is sure: beats are not taken otherwise, so that silence would say nothing.
        if self.leadership.is_sure:
            self.sets.tick()
            now_ms = self._clock.monotonic_ms()
            for part in self.parts:
                part.tick(now_ms)

    def _scan(self) -> None:
        if self.leadership.is_sure:
            gone = self.heartbeats.scan(self._clock.monotonic_ms())
            self.meters.add("timed_out", len(gone))
        self._fill_registry()

    def _fill_registry(self) -> None:
        if not self.leadership.leads:
            self.registry.want({})
        elif self.leadership.is_sure:
            brokers = broker_entries(self.sets.records(), self.heartbeats.brokers)
            partitions = partition_entries(self.topics, self.options.registry_partitions_max)
            self.registry.want({**brokers, **partitions})

    # -- what happens ----------------------------------------------------------------------------------------

    def _lead_changed(self, event: Lead, term: int) -> None:
        self.meters.add(event.name.lower())
        if event is Lead.RESUMED:
            self.heartbeats.refresh(self._clock.monotonic_ms())
            self.sets.resume()
        elif event in (Lead.TOOK_OVER, Lead.RESTED):
            self.heartbeats.clear()
            self.topics.clear()
            self._epochs.clear()
            if event is Lead.TOOK_OVER:
                self.sets.lead(term)
            else:
                self.sets.rest()
        for part in self.parts:
            part.lead_changed(event, term)

    def _connection_closed(self, connection: Connection) -> None:
        self.links.closed(connection)
        lost = self.heartbeats.connection_dropped(connection.id)
        self.meters.add("dropped", len(lost))
        # Elections wait for leases, so that this only lets us look at once where none is left.
        if self.leadership.is_sure:
            self.sets.dropped(connection.id)
        for part in self.parts:
            part.connection_closed(connection)

    def _broker_gone(self, node_id: str, info: TimeoutInfo) -> None:
        level = logging.INFO if info.gone is Gone.CLOSED else logging.WARNING
        _LOG.log(level, "broker %s is gone: %s", node_id, info.gone.value if info.gone is not None else "")

    def _set_changed(self, name: SetName) -> None:
        one = self.sets.get(name)
        record = None if one is None else one.record
        if record is None:
            self._epochs.pop(name, None)
            self.topics.forget(name)
        elif self._epochs.get(name) != record.master_epoch:
            self._epochs[name] = record.master_epoch
            self.topics.expect_again(name)

    def status(self) -> JsonObject:
        """What COORDINATOR_STATUS (9025) answers."""
        return coordinator_status(self)
