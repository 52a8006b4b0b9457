"""A simulated broker of a set: the cores of the real one, on a model log and simulated streams.

What `broker/replicas.py`, `replication/leader.py` and `replication/follower.py` do with tasks and sockets is done
here in the same order with timers and stream ends. What survives a kill is in the log, the epochs and the tables.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.membership import (
    Altered,
    AlterRefused,
    AlterUnanswered,
    AskElection,
    Beat,
    Beaten,
    Decide,
    Event,
    Follow,
    Forget,
    Instruction,
    Lead,
    Led,
    Membership,
    MustRegister,
    Notified,
    Propose,
    Proposed,
    Register,
    Registered,
    StepDown,
    Stopping,
    Tick,
    View,
)
from penstock.broker.set_waits import SetReplicas
from penstock.coordinator import set_messages
from penstock.coordinator.set_messages import Answer
from penstock.coordinator.set_record import SetRecord
from penstock.protocol.codes import ResponseCode
from penstock.replication.receiver import EpochReceiver
from penstock.replication.steps import (
    ApplyTables,
    Close,
    Connected,
    Following,
    Received,
    ReceiverInstruction,
    Send,
    Stored,
    TablesDone,
)
from penstock.replication.steps import Follow as FollowEpoch
from penstock.replication.steps import Tick as ReplicationTick
from penstock.testing.simulation.coordinator import SET, SimCoordinator
from penstock.testing.simulation.judge import Judge
from penstock.testing.simulation.leading import OPTIONS, Leading
from penstock.testing.simulation.model_log import ModelEpochs, ModelLog
from penstock.testing.simulation.world import Process, StreamEnd, World, connect

BEAT_MS = 500
CALL_TIMEOUT_MS = 1_000
TICK_MS = 50
PUMP_MS = 20
SYNC_MS = 8.0
_REFUSALS = frozenset(
    int(code)
    for code in (
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_NOT_LEADER,
    )
)


class SimBroker(Process):
    """`peers` finds the brokers of the set by id; `coordinators` are asked in turn."""

    def __init__(
        self,
        world: World,
        broker_id: int,
        judge: Judge,
        coordinators: list[SimCoordinator],
        peers: dict[int, SimBroker],
        *,
        is_sync: bool,
    ) -> None:
        super().__init__(world, f"broker-{broker_id}")
        self.broker_id = broker_id
        self.judge = judge
        self._coordinators = coordinators
        self._peers = peers
        self.log = ModelLog(is_sync)
        self.log.on_bound = lambda: self.judge.shows(self.name, self.log)
        self.epochs = ModelEpochs()
        # The only side table: a committed offset.
        self.committed = 0
        self._incarnation = 0
        self._is_intact = True
        self._has_id = False
        self.connection = 0
        self._at = broker_id % len(coordinators)
        self.membership: Membership
        self.leading: Leading | None = None
        self.waits: SetReplicas
        self._receiver: EpochReceiver | None = None
        self._link: StreamEnd | None = None
        self._master: int | None = None
        self._follow_epoch = 0
        self._next_try = 0.0
        self._is_syncing = False
        self._asking: set[type[object]] = set()
        self.synced_waiters: list[tuple[int, Callable[[], None]]] = []

    # -- life ------------------------------------------------------------------------------------------------

    def started(self) -> None:
        self._incarnation += 1
        self.membership = Membership(self.broker_id, self.epochs.last_epoch, beat_interval_ms=BEAT_MS)
        self.waits = SetReplicas(SET, 1, self)  # type: ignore[arg-type]
        self.waits.membership = self.membership
        self.leading = self._receiver = self._link = None
        self._master, self._follow_epoch = None, self.epochs.last_epoch
        self.log.bounded_at = 0
        self.connection = self._new_connection()
        self._asking.clear()
        self.synced_waiters.clear()
        self._is_syncing = False
        if not self.log.is_sync:
            self.log.sync(self.log.max_offset // 2)
        self.every(TICK_MS, lambda: self.handle(Tick()))
        self.every(PUMP_MS, self._pump)
        self.every(OPTIONS.review_interval_ms, self._review)

    def killed(self) -> None:
        """The kernel closes its sockets; whoever is not cut off notices."""
        for coordinator in self._coordinators:
            self._drop(coordinator)
        if self._link is not None:
            self._link.close()
        if self.leading is not None:
            self.leading.close_all()

    def stop(self) -> None:
        """A clean end: the lease is given back before anything is gone."""
        if self.is_up:
            self.handle(Stopping())
            self.kill()

    def lose_power(self) -> None:
        self.log.lose_power(self.world.chance)
        self._is_intact = self.log.is_sync
        self.kill()

    def _new_connection(self) -> int:
        return self.world.chance.randrange(1 << 40)

    def _drop(self, coordinator: SimCoordinator) -> None:
        connection = self.connection
        dropped = coordinator.receive(lambda: coordinator.dropped(connection))
        if not self.world.is_blocked(self.name, coordinator.name):
            self.world.after(self.world.delay(), dropped)

    # -- the coordinators ------------------------------------------------------------------------------------

    def _call(
        self,
        kind: type[object],
        serve: Callable[[SimCoordinator, Callable[[Answer, int], None]], None],
        done: Callable[[Answer | None, int], None],
        *,
        is_urgent: bool = False,
    ) -> None:
        if kind in self._asking and not is_urgent:
            return
        self._asking.add(kind)
        coordinator, generation, is_over = self._coordinators[self._at], self.generation, False

        def finish(answer: Answer | None, term: int) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._asking.discard(kind)
            is_no_help = answer is None or answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            if is_no_help and coordinator is self._coordinators[self._at]:
                self._at = (self._at + 1) % len(self._coordinators)
                self._drop(coordinator)
                self.connection = self._new_connection()
            done(answer, term)

        def reply(answer: Answer, term: int) -> None:
            if self.generation == generation:
                arriving = self.receive(lambda: finish(answer, term))
                self.world.transmit(coordinator.name, self.name, arriving)

        self.world.transmit(
            self.name, coordinator.name, coordinator.receive(lambda: serve(coordinator, reply))
        )
        self.timer(CALL_TIMEOUT_MS, lambda: finish(None, 0))

    def notice(self, record: SetRecord, term: int) -> None:
        """1008 came in."""
        self.handle(Notified(_view(record, term)))

    def _beat(self, step: Beat, *, is_urgent: bool) -> None:
        sent_ms, connection = self.now_ms(), self.connection
        beat = set_messages.Beat(
            self.broker_id,
            connection,
            self.name,
            self.name,
            self._incarnation,
            step.epoch,
            max_offset=self.log.max_offset,
            is_stopping=step.is_stopping,
        )

        def done(answer: Answer | None, term: int) -> None:
            if answer is None:
                return
            if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                self.handle(MustRegister())
            elif answer.code == ResponseCode.SUCCESS and answer.record is not None:
                self.handle(Beaten(_view(answer.record, term), sent_ms, answer.lease_ms))

        self._call(Beat, lambda coordinator, reply: coordinator.beat(beat, reply), done, is_urgent=is_urgent)

    def _register(self) -> None:
        request: set_messages.Request
        if not self._has_id:
            request = set_messages.ApplyId(self.broker_id, self.name)
        else:
            request = set_messages.Register(
                self.broker_id,
                self.name,
                self.name,
                self._incarnation,
                self._is_intact,
                self.epochs.last_epoch,
                self.log.max_offset,
                self.connection,
            )

        def done(answer: Answer | None, term: int) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                if self._has_id:
                    self._is_intact = True
                    self.handle(Registered())
                self._has_id = True

        self._submit(Register, request, done)

    def _propose(self, step: Propose) -> None:
        request = set_messages.AlterSyncSet(self.broker_id, step.epoch, step.set_epoch, step.members)

        def done(answer: Answer | None, term: int) -> None:
            if answer is None or (answer.code != ResponseCode.SUCCESS and answer.code not in _REFUSALS):
                self.handle(AlterUnanswered(step.epoch))
            elif answer.code == ResponseCode.SUCCESS and answer.record is not None:
                self.handle(Altered(step.epoch, answer.record.sync_set, answer.record.set_epoch))
            else:
                self.handle(AlterRefused(step.epoch))

        self._submit(Propose, request, done)

    def _submit(
        self, kind: type[object], request: set_messages.Request, done: Callable[[Answer | None, int], None]
    ) -> None:
        self._call(
            kind,
            lambda coordinator, reply: coordinator.submit(request, reply, CALL_TIMEOUT_MS),
            done,
            is_urgent=kind is Propose,
        )

    # -- membership ------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        generation = self.generation
        for step in self.membership.handle(event, self.now_ms()):
            if self.generation == generation and self.is_up:
                self._carry_out(step)
        self.membership.validate()

    def _carry_out(self, step: Instruction) -> None:
        if isinstance(step, StepDown):
            self._step_down()
        elif isinstance(step, Lead):
            self.timer(self.world.chance.random() * 30, lambda: self._lead(step))
        elif isinstance(step, Follow):
            self._follow(step)
        elif isinstance(step, Decide):
            if self.leading is not None:
                self.leading.tracker.decided(step.members, step.set_epoch)
        elif isinstance(step, Forget):
            if self.leading is not None and step.is_certain:
                self.leading.tracker.refused()
            elif self.leading is not None:
                self.leading.tracker.unanswered()
        elif isinstance(step, Propose):
            self._propose(step)
        elif isinstance(step, Register):
            self._register()
        elif isinstance(step, AskElection):
            self._submit(AskElection, set_messages.Elect(self.broker_id), self._after_election)
        else:
            self._beat(step, is_urgent=True)

    def _after_election(self, answer: Answer | None, term: int) -> None:
        if answer is not None:
            self.handle(Registered())

    def _lead(self, step: Lead) -> None:
        if self.membership.epoch != step.epoch:
            return
        self._let_go("this node is master")
        self.leading = Leading(self, step)
        self.waits.server = self.leading  # type: ignore[assignment]
        self.judge.leads(self.name, step.epoch, self.log, self.committed)
        self.handle(Led(step.epoch))

    def _step_down(self) -> None:
        leading, self.leading = self.leading, None
        self.waits.server = None
        if leading is not None:
            leading.step_down()

    # -- following -------------------------------------------------------------------------------------------

    def _follow(self, step: Follow) -> None:
        if step.epoch < self._follow_epoch:
            return
        self._follow_epoch = step.epoch
        if self._receiver is not None:
            self._of_receiver(self._receiver.handle(FollowEpoch(step.epoch), self.now_ms()))
        if step.master_id != self._master:
            self._let_go("there is another master")
        self._master = step.master_id
        self._next_try = 0

    def _let_go(self, reason: str) -> None:
        link, self._link, self._receiver = self._link, None, None
        self._master = None
        if link is not None:
            link.close()

    def _connect(self) -> None:
        peer = self._peers.get(self._master) if self._master is not None else None
        now_ms = self.now_ms()
        if peer is None or peer is self or self.leading is not None or now_ms < self._next_try:
            return
        self._next_try = now_ms + OPTIONS.rejoin_interval_ms
        if not peer.is_up or self.world.is_blocked(self.name, peer.name):
            return
        if self.log.is_sync and self.log.synced < self.log.max_offset:
            self.sync_soon()
            return
        here, there = connect(self, peer)
        receiver = EpochReceiver(
            self.log, self.epochs, self.broker_id, self._follow_epoch, OPTIONS, self.now_ms()
        )
        self._receiver, self._link = receiver, here

        def data(piece: bytes) -> None:
            if self._receiver is receiver:
                self._of_receiver(receiver.handle(Received(piece), self.now_ms()))
                self.sync_soon()

        def lost() -> None:
            if self._receiver is receiver:
                self._receiver = self._link = None

        here.on_data, here.on_lost = data, lost
        here.open(lambda: peer.accept(there))
        self._of_receiver(receiver.handle(Connected(), self.now_ms()))

    def accept(self, end: StreamEnd) -> None:
        """A replica connects."""
        if self.leading is None:
            end.close()
        else:
            self.leading.accept(end)

    def _of_receiver(self, steps: list[ReceiverInstruction]) -> None:
        for step in steps:
            link, receiver = self._link, self._receiver
            if link is None or receiver is None:
                return
            if isinstance(step, Send):
                link.send(b"".join(bytes(part) for part in step.parts))
            elif isinstance(step, ApplyTables):
                self.committed = int(step.body)
                self._of_receiver(receiver.handle(TablesDone(step.sequence), self.now_ms()))
            elif isinstance(step, Following):
                self._follow_epoch = max(self._follow_epoch, step.epoch)
            elif isinstance(step, Close):
                self.world.say(f"{self.name} leaves its master: {step.reason}")
                if step.retry_ms:
                    self._next_try = self.now_ms() + step.retry_ms
                self._link = self._receiver = None
                link.close()

    # -- time ------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self.leading is not None:
            self.leading.pump()
        elif self._receiver is not None:
            self._of_receiver(self._receiver.handle(ReplicationTick(), self.now_ms()))
        else:
            self._connect()
        self.sync_soon()

    def sync_soon(self) -> None:
        """Under synchronous flush: have what is written on disk a little later, and then say so."""
        if not self.log.is_sync or self._is_syncing or self.log.synced >= self.log.max_offset:
            return
        self._is_syncing = True
        end = self.log.max_offset

        def synced() -> None:
            self._is_syncing = False
            self.log.sync(end)
            if self._receiver is not None:
                self._of_receiver(self._receiver.handle(Stored(), self.now_ms()))
            if self.leading is not None:
                self.leading.appended()
            waiting, self.synced_waiters = self.synced_waiters, []
            for position, action in waiting:
                if position <= self.log.synced:
                    action()
                else:
                    self.synced_waiters.append((position, action))
            self.sync_soon()

        self.timer(self.world.chance.random() * SYNC_MS, synced)

    def _review(self) -> None:
        if self.leading is not None:
            proposal = self.leading.review()
            if proposal is not None:
                self.handle(Proposed(proposal.members, proposal.set_epoch))


def _view(record: SetRecord, term: int) -> View:
    master = record.master
    return View(
        term,
        record.master_epoch,
        record.set_epoch,
        record.sync_set,
        record.master_id,
        master.address if master is not None else "",
        master.ha_address if master is not None else "",
    )
