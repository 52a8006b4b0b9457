"""A broker in a coordinated set: carries out what `membership.py` decides, with files, sockets and the store.

    start     who am I (files, or an id from the coordinator), then beats until the end
    Lead      following ends; tail cut, epoch on disk, log writable (HaServer.lead); then the services of a master,
              and its name servers are told
    Follow    the log takes a master's bytes, and shows what is confirmed; the services of a master rest
    StepDown  at once, before anything else: no acknowledgement, no replica served, no message taken
    stop      the lease is given back by a broker that has stopped acknowledging

One task talks to the coordinators and one changes roles, one role after the other; a step down does not wait for
either. Whoever is asked for the role meanwhile gets the safe answer: not master. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from penstock.broker.coordinator_calls import CoordinatorCalls, Facts, SetMember
from penstock.broker.coordinators import Coordinators
from penstock.broker.flow_control import UnknownOutcomeError
from penstock.broker.membership import (
    AlterRefused,
    AskElection,
    Beat,
    CannotLead,
    Decide,
    Event,
    Follow,
    Forget,
    Instruction,
    Lead,
    Led,
    Membership,
    Notified,
    Propose,
    Proposed,
    Register,
    StepDown,
    Stopping,
    Superseded,
    Tick,
    View,
)
from penstock.broker.options import BrokerOptions
from penstock.broker.set_identity import SetIdentity
from penstock.broker.set_waits import SetReplicas
from penstock.broker.side_tables import SideTables
from penstock.broker.topics import Topics
from penstock.errors import ConnectError, PenstockError
from penstock.message import HostAddress
from penstock.protocol.bodies.controller import SyncStateSet, TopicTableReport
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.controller import NotifyBrokerRoleChangedRequestHeader
from penstock.remoting import RemotingOptions, RpcHook, TlsOptions
from penstock.remoting.processors import Handler
from penstock.replication import HaClient, HaServer, Outcome, Proposal, ReplicationOptions
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.store.epochs import EpochFile
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
EPOCHS = "epochFileCheckpoint"
TICK_MS = 50
TABLES_MS = 500
STOP_BEAT_MS = 500
RETRY_MS = 1_000
# Beats that may be unanswered at the same time: one that is lost must not hold up those that renew the lease.
BEATS_MAX = 4


class RoleServices(Protocol):
    """What the broker around does when its role changes."""

    async def prepare(self, epoch: int) -> None:
        """Finish what the master before has left, before messages are taken in this epoch."""

    def lead(self) -> None:
        """Be master: services, answers, name servers."""

    def follow(self, broker_id: int) -> None:
        """Be a replica with this id."""

    async def rest(self) -> None:
        """End what only a master does."""


class Replicas:
    """See the module's text. `waits` is for whoever stores messages, `tables` for whoever tells offsets."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        flusher: LoopFlusher,
        topics: Topics,
        tables: SideTables,
        services: RoleServices,
        runtime: Runtime,
        listening: Callable[[], HostAddress],
        replication: ReplicationOptions,
        *,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        hook: RpcHook | None = None,
        ha_runtime: Runtime | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._flusher = flusher
        self._tables = tables
        self._services = services
        self._runtime = ha_runtime or runtime
        self._clock = runtime.clock
        self._listening = listening
        self._topics = topics
        self._replication = replication
        self._identity = SetIdentity(runtime.disk, store.path, options.cluster_name, options.broker_name)
        self._epochs = EpochFile.open(runtime.disk, store.path / EPOCHS, store.log.max_offset)
        self._coordinators = Coordinators(
            options.coordinators, self._noticed, runtime, remoting=remoting, tls=tls, hook=hook
        )
        self.waits = SetReplicas(options.broker_name, options.min_in_sync_replicas, runtime.clock)
        self.membership: Membership | None = None
        self.server: HaServer | None = None
        self._client: HaClient | None = None
        facts = Facts(
            listening,
            lambda: self.ha_port,
            self._log_facts,
            lambda: topics.data_version.counter,
            self._topic_report,
        )
        self._calls = CoordinatorCalls(options, self._coordinators, facts, runtime)
        self._me: SetMember | None = None
        self._roles: asyncio.Queue[Lead | Follow] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        # What is asked of the coordinator at the moment, by kind.
        self._asking: dict[type[Instruction], set[asyncio.Task[None]]] = {}
        self._timers: list[asyncio.Handle] = []
        self._is_stopping = False

    def serve(self, code: int, handler: Handler) -> None:
        """Let coordinators ask for this."""
        self._coordinators.serve(code, handler)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to find out who this broker is; it answers as nobody's master until then."""
        started = self._identity.start()
        # Only a machine that went down takes what a process had written; synced is synced.
        is_intact = (
            self._store.report.clean
            or started.is_same_boot
            or self._store.options.flush_mode is FlushMode.SYNC
        )
        run = self._run(self._identity.broker_id(), started.incarnation, is_intact)
        self._spawn(run, "membership of the broker")

    async def _run(self, broker_id: int | None, incarnation: int, is_intact: bool) -> None:
        if broker_id is None:
            broker_id = await self._calls.apply_for_id(self._identity)
        me, options = SetMember(broker_id, incarnation, is_intact), self._options
        self.server = await self._listen(broker_id)
        last = self._epochs.last
        self.membership = Membership(
            me.broker_id, last.epoch if last is not None else 0, beat_interval_ms=options.beat_interval_ms
        )
        self.waits.server, self.waits.membership = self.server, self.membership
        self._me = me
        self._spawn(self._change_roles(), "role of the broker")
        self._every(TICK_MS, lambda: self._handle(Tick()))
        self._every(TABLES_MS, self._tables.send)

    async def _listen(self, broker_id: int) -> HaServer:
        """For replicas, on the port after the broker's unless another is asked for or that one is taken: everybody
        learns it from the coordinator."""
        options = self._options
        try:
            return await self._listen_on(
                options.ha_port or (options.port + 1 if options.port else 0), broker_id
            )
        except ConnectError as error:
            if options.ha_port:
                raise
            _LOG.info("%s; any other port will do", error.message)
            return await self._listen_on(0, broker_id)

    async def _listen_on(self, port: int, broker_id: int) -> HaServer:
        server = HaServer(
            self._store,
            self._replication,
            self._runtime,
            host=self._options.host,
            port=port,
            own_id=broker_id,
            epochs=self._epochs,
            snapshot=self._tables.snapshot,
            on_proposal=self._proposed,
            on_superseded=lambda epoch: self._handle(Superseded(epoch)),
        )
        await server.start()
        return server

    async def stop(self) -> None:
        """Stop acknowledging, give the lease back, let go of everybody."""
        self._is_stopping = True
        self._handle(Stopping())
        for timer in self._timers:
            timer.cancel()
        if self._asking.get(Beat):
            await asyncio.wait(self._asking[Beat], timeout=STOP_BEAT_MS / 1000)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.stop()
        if self.server is not None:
            await self.server.stop()
        await self._coordinators.close()

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        return self.membership is not None and self.membership.is_master

    @property
    def has_master(self) -> bool:
        """Whether the log comes from a master at the moment."""
        return self._client is not None and self._client.is_connected

    @property
    def has_replicas(self) -> bool:
        tracker = self.server.tracker if self.is_master and self.server is not None else None
        return tracker is not None and tracker.in_sync_count() > 1

    @property
    def ha_port(self) -> int:
        return self.server.address[1] if self.server is not None else 0

    @property
    def epochs(self) -> EpochFile:
        return self._epochs

    @property
    def confirm_offset(self) -> int:
        """How far the log is with everybody who could be master."""
        return self.server.confirm_offset if self.is_master and self.server is not None else 0

    @property
    def sure_offset(self) -> int:
        """How far the log is that no election takes back: a master's confirmed part, or what a replica may show."""
        return self.confirm_offset if self.is_master else self._store.dispatch.offset

    async def confirmed(self, position: int) -> None:
        """Wait until the log is confirmed so far. Raises RequestError where it is not in time."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.waits.when_replicated(
            position, None, lambda outcome: None if future.done() else future.set_result(outcome)
        )
        self.waits.appended()
        if await future is not Outcome.REPLICATED:
            raise UnknownOutcomeError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "it is stored, but not known to be with every replica in sync",
                "ask again: it is done once however often it is asked for",
            )

    def hold_ended(self) -> None:
        """What a publication had kept back is shown as far as it is confirmed."""
        if self.is_master and self.server is not None:
            self.server.hold_ended()

    def _log_facts(self) -> tuple[int, int, int]:
        last = self._epochs.last
        confirmed = self.server.confirm_offset if self.is_master and self.server is not None else 0
        return (
            last.epoch if last is not None else 0,
            self._store.log.max_offset,
            confirmed or self._store.dispatch.offset,
        )

    def _topic_report(self) -> TopicTableReport:
        return TopicTableReport(
            {
                name: (config.read_queue_nums, config.write_queue_nums, int(config.perm))
                for name, config in self._topics.all().items()
            }
        )

    # -- events ----------------------------------------------------------------------------------------------

    def _noticed(self, header: NotifyBrokerRoleChangedRequestHeader, members: SyncStateSet) -> None:
        view = View(
            header.term,
            header.master_epoch,
            header.sync_state_set_epoch,
            members.members,
            header.master_broker_id,
            header.master_address or "",
            header.master_ha_address or "",
        )
        if header.master_ha_address is not None or header.master_broker_id is None:
            self._handle(Notified(view))

    def _proposed(self, proposal: Proposal) -> None:
        self._handle(Proposed(proposal.members, proposal.set_epoch))

    def _handle(self, event: Event) -> None:
        if self.membership is not None:
            for step in self.membership.handle(event, self._clock.monotonic_ms()):
                self._carry_out(step)

    def _carry_out(self, step: Instruction) -> None:
        server, me, calls = self.server, self._me, self._calls
        if server is None or me is None:
            return
        if isinstance(step, StepDown):
            self._step_down(step.epoch)
        elif isinstance(step, Lead | Follow):
            self._roles.put_nowait(step)
        elif isinstance(step, Decide):
            if server.tracker is not None:
                server.tracker.decided(step.members, step.set_epoch)
        elif isinstance(step, Forget):
            if server.tracker is not None and step.is_certain:
                server.tracker.refused()
            elif server.tracker is not None:
                server.tracker.unanswered()
        elif isinstance(step, Propose):
            if not self._ask(step, calls.alter(me, step)):
                self._handle(AlterRefused(step.epoch))
        elif isinstance(step, Register):
            self._ask(step, calls.register(me))
        elif isinstance(step, AskElection):
            self._ask(step, calls.ask_election(me))
        else:
            self._ask(step, calls.beat(me, step), most=BEATS_MAX)

    def _ask(self, step: Instruction, call: Coroutine[Any, Any, Event | None], *, most: int = 1) -> bool:
        """Ask the coordinator, unless the same is being asked so often already; whether it is asked."""
        asking = self._asking.setdefault(type(step), set())
        if len(asking) >= most and not self._is_stopping:
            call.close()
            return False
        task = self._spawn(self._asked(call), type(step).__name__)
        asking.add(task)
        task.add_done_callback(asking.discard)
        return True

    async def _asked(self, call: Coroutine[Any, Any, Event | None]) -> None:
        event = await call
        if event is not None:
            self._handle(event)

    # -- roles -----------------------------------------------------------------------------------------------

    def _step_down(self, epoch: int) -> None:
        if self.server is not None:
            self.server.step_down()
        self._tables.step_down()
        if not self._is_stopping:
            # From here on the gate of the store refuses messages, whoever brings them; a publication ends half-way,
            # and the next master adds the rest.
            self._store.bound(self._store.dispatch.offset)
            self._store.replica_mode(True)
            self._store.release()
            _LOG.warning("broker %s is not master any more (epoch %d)", self._options.broker_name, epoch)

    async def _change_roles(self) -> None:
        while True:
            step = await self._roles.get()
            if not self._roles.empty():
                continue  # overtaken
            try:
                if isinstance(step, Lead):
                    await self._lead(step)
                else:
                    await self._follow(step)
            except Exception as error:
                if isinstance(error, PenstockError):
                    _LOG.error("changing the role failed: %s", error)
                else:
                    _LOG.exception("changing the role failed")
                await self._after_failure(step)

    async def _after_failure(self, step: Lead | Follow) -> None:
        """Who cannot lead lets somebody else; who cannot follow tries again, until it has something else to do."""
        if isinstance(step, Lead):
            self._handle(CannotLead(step.epoch))
            return
        await asyncio.sleep(RETRY_MS / 1000)
        if self._roles.empty():
            self._roles.put_nowait(step)

    async def _lead(self, step: Lead) -> None:
        membership, server = self.membership, self.server
        if membership is None or server is None:
            return
        if self._client is not None:
            client, self._client = self._client, None
            await client.stop()
        if membership.epoch != step.epoch:
            return
        await self._services.rest()
        if membership.epoch != step.epoch:
            return
        # Ends when the services have finished what the master before had begun (`prepare`).
        self._store.hold_unseen()
        server.lead(step.epoch, step.members, step.set_epoch)
        self._tables.lead(server)
        await self._services.prepare(step.epoch)
        if membership.epoch != step.epoch:
            return
        self._handle(Led(step.epoch))
        self._services.lead()
        _LOG.info("broker %s is master in epoch %d", self._options.broker_name, step.epoch)

    async def _follow(self, step: Follow) -> None:
        membership = self.membership
        if membership is None:
            return
        await self._services.rest()
        if self._client is None:
            self._store.bound(self._store.dispatch.offset)
            self._store.release()  # one that was about to lead
            self._client = HaClient(
                self._store,
                self._replication,
                self._runtime,
                replica_id=membership.broker_id,
                epochs=self._epochs,
                flusher=self._flusher,
                on_tables=self._tables.apply,
            )
            await self._client.start()
        self._services.follow(membership.broker_id)
        self._client.follow(step.ha_address or None, step.epoch)
        _LOG.info(
            "broker %s id %d follows %s in epoch %d",
            *(self._options.broker_name, membership.broker_id, step.ha_address or "nobody", step.epoch),
        )

    # -- tasks -----------------------------------------------------------------------------------------------

    def _every(self, interval_ms: int, action: Callable[[], None]) -> None:
        loop, place = asyncio.get_running_loop(), len(self._timers)

        def run() -> None:
            if not self._is_stopping:
                self._timers[place] = loop.call_later(interval_ms / 1000, run)
                action()

        self._timers.append(loop.call_soon(run))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("%s failed", task.get_name(), exc_info=task.exception())
