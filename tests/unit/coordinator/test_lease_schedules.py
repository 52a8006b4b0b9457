"""Random schedules of delays, pauses, crashes and lost writes: no two masters may acknowledge on their own at once.

A small world around the state machine: three brokers that behave as brokers must, coordinators that take over from
each other while the old one goes on in its belief, one metadata entry. Every message and every write takes a random
time, or is lost. A failing seed replays exactly.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.coordinator.replica_sets import Phase, ReplicaSet
from penstock.coordinator.set_messages import (
    AlterSyncSet,
    Answer,
    ApplyId,
    Elect,
    Instruction,
    Notify,
    Read,
    Write,
)
from penstock.coordinator.set_record import SetRecord
from tests.unit.coordinator.sets import POLICY, SharedEntry, beat, register

SESSION_MS = 3_000
BROKERS = (1, 2, 3)


class Broker:
    """What a broker has to do so that it may rely on its coordinator."""

    def __init__(self, world: "World", broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.incarnation = 0
        self.file_epoch = 0
        self.start()

    def start(self) -> None:
        self.incarnation += 1
        self.epoch = 0
        self.term = 0
        self.lease_until = 0
        self.is_master = False
        self.is_registered = False
        self.is_up = True
        self.paused_until = 0

    @property
    def may_acknowledge_alone(self) -> bool:
        return self.is_up and self.is_master and self.world.now < self.lease_until

    def beat(self) -> None:
        world, sent, incarnation = self.world, self.world.now, self.incarnation
        if not self.is_up or world.now < self.paused_until:
            return
        leader = world.random.choice(world.coordinators[-2:])
        connection = self.id * 1_000 + incarnation
        if not self.is_registered:
            request = register(self.id, incarnation=incarnation, epoch=self.file_epoch, connection=connection)
            world.send(lambda: leader.ask(request, lambda answer: self.heard(answer, sent, incarnation)))
            return
        report = beat(
            self.id, incarnation=incarnation, epoch=self.epoch, connection=connection, max_offset=sent
        )
        world.send(lambda: leader.beat(report, lambda answer: self.heard(answer, sent, incarnation)))

    def heard(self, answer: Answer, sent: int, incarnation: int) -> None:
        if not self.is_up or incarnation != self.incarnation:
            return
        if self.world.now < self.paused_until:  # It is read when the process goes on.
            self.world.at(self.paused_until, lambda: self.heard(answer, sent, incarnation))
            return
        if answer.code == 2010:
            self.is_registered = False
        if answer.code or answer.record is None or answer.record.term < self.term:
            return
        self.is_registered = True
        self.obey(answer.record)
        if answer.lease_ms and self.is_master and answer.record.master_epoch == self.epoch:
            self.lease_until = max(self.lease_until, sent + answer.lease_ms)

    def obey(self, record: SetRecord) -> None:
        """Only a later epoch than any before makes a master: a restart is an election."""
        self.term = record.term
        if record.master_epoch > max(self.epoch, self.file_epoch) or (
            record.master_epoch > self.epoch and record.master_id != self.id
        ):
            self.epoch = self.file_epoch = record.master_epoch
            self.is_master = record.master_id == self.id
            self.lease_until = 0

    def stop(self) -> None:
        """Cleanly: it acknowledges nothing, then says so."""
        self.is_up = False
        leader, connection = self.world.coordinators[-1], self.id * 1_000 + self.incarnation
        report = beat(
            self.id, incarnation=self.incarnation, epoch=self.epoch, connection=connection, is_stopping=True
        )
        self.world.send(lambda: leader.beat(report, lambda answer: None))


class Coordinator:
    """Drives the state machine; believes in its leadership for as long as its session surely lives."""

    def __init__(self, world: "World", term: int) -> None:
        self.world = world
        self.sure_until = world.now + SESSION_MS
        self.paused_until = 0
        self.waiting: dict[int, Callable[[Answer], None]] = {}
        self.tokens = iter(range(1, 10**9))
        self.set = ReplicaSet("c", "broker-a", term, POLICY)
        self.do(self.set.begin())

    @property
    def is_sure(self) -> bool:
        return self.world.now < self.sure_until

    def run(self, work: Callable[[], list[Instruction]]) -> None:
        """Whatever arrives while it is paused is handled when it goes on."""
        if self.world.now < self.paused_until:
            self.world.at(self.paused_until, lambda: self.run(work))
        else:
            self.do(work())

    def beat(self, report: Any, respond: Callable[[Answer], None]) -> None:
        token = next(self.tokens)
        self.waiting[token] = respond
        self.run(lambda: self.set.beat(token, report, self.world.now, is_sure=self.is_sure))

    def ask(self, request: Any, respond: Callable[[Answer], None]) -> None:
        token = next(self.tokens)
        self.waiting[token] = respond
        self.run(lambda: self.set.submit(token, request, self.world.now, self.world.now + 3_000))

    def tick(self) -> None:
        # On purpose also when it is not sure any more: elections are guarded by the version alone.
        if self.world.now >= self.paused_until:
            self.do(self.set.tick(self.world.now))

    def do(self, instructions: list[Instruction]) -> None:
        world = self.world
        for instruction in instructions:
            if isinstance(instruction, Answer):
                respond = self.waiting.pop(instruction.token)  # type: ignore[call-overload]
                world.send(lambda respond=respond, answer=instruction: respond(answer))
            elif isinstance(instruction, Notify):
                for broker_id, _ in instruction.members:
                    target = world.brokers[broker_id]
                    answer = Answer(0, 0, "", instruction.record)
                    started = target.incarnation
                    world.send(
                        lambda target=target, answer=answer, started=started: target.heard(answer, 0, started)
                    )
            elif isinstance(instruction, Read):
                world.later(self.read)
            elif isinstance(instruction, Write):
                world.later(lambda write=instruction: self.write(write))
        self.set.validate(world.now)

    def read(self) -> None:
        value, version, now = self.world.entry.value, self.world.entry.version, self.world.now
        record = None if value is None else SetRecord.decode(value)
        self.run(lambda: self.set.loaded(record, None if record is None else version, now))

    def write(self, write: Write) -> None:
        world, fate = self.world, self.world.random.random()
        if fate < 0.05:
            self.run(lambda: self.set.failed("out of reach", world.now))
        elif fate < 0.10:
            self.run(lambda: self.set.unknown(world.now))
            # It arrives all the same, late: whoever settles the outcome must not be surprised by it.
            world.later(lambda: world.store(write))
        else:
            version = world.store(write)
            if version is False:
                self.run(lambda: self.set.conflict(world.now))
            elif fate < 0.15:
                self.run(lambda: self.set.unknown(world.now))
            else:
                world.later(lambda: self.run(lambda: self.set.written(version, world.now)))


class World:
    """Time, chance and the one entry."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.entry = SharedEntry()
        self.masters: list[tuple[int, int | None]] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.coordinators = [Coordinator(self, 1)]
        self.brokers = {broker_id: Broker(self, broker_id) for broker_id in BROKERS}

    def at(self, when: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def later(self, action: Callable[[], None]) -> None:
        slow = 2_000 if self.random.random() < 0.02 else 30
        self.at(self.now + self.random.randrange(1, slow), action)

    def send(self, action: Callable[[], None]) -> None:
        """A message: mostly quick, at times late, at times lost; two may overtake each other."""
        chance = self.random.random()
        if chance > 0.03:
            self.at(self.now + self.random.randrange(1, 5_000 if chance < 0.06 else 60), action)

    def every(self, milliseconds: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(self.now + milliseconds, again)

        self.at(self.now + self.random.randrange(milliseconds), again)

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self.check()

    def store(self, write: Write) -> int | bool | None:
        try:
            version = self.entry.write(write.record, write.version)
        except LookupError:
            return False
        record = write.record
        if record is not None and (not self.masters or self.masters[-1][0] != record.master_epoch):
            assert not self.masters or record.master_epoch > self.masters[-1][0], "epochs only grow"
            self.masters.append((record.master_epoch, record.master_id))
            for broker in self.brokers.values():
                is_deposed = broker.id != record.master_id or broker.epoch != record.master_epoch
                assert not (is_deposed and broker.may_acknowledge_alone), (
                    f"broker {broker.id} has a lease in epoch {broker.epoch} while {record.master_id} is elected"
                )
        return version

    def check(self) -> None:
        alone = [broker.id for broker in self.brokers.values() if broker.may_acknowledge_alone]
        assert len(alone) <= 1, f"{alone} may all acknowledge alone"

    # -- what goes wrong -------------------------------------------------------------------------------------

    def trouble(self) -> None:
        chance, broker = self.random.random(), self.random.choice(list(self.brokers.values()))
        pause = self.random.randrange(500, 8_000)
        leader = self.coordinators[-1]
        if chance < 0.2:
            broker.is_up = False
            self.at(self.now + pause // 4, broker.start)
        elif chance < 0.35:
            broker.paused_until = self.now + pause
        elif chance < 0.45 and broker.is_up:
            broker.stop()
            self.at(self.now + pause, broker.start)
        elif chance < 0.6:
            leader.paused_until = self.now + pause
        elif chance < 0.8:
            self.take_over()
        else:
            for number in range(4):
                leader.run(lambda n=number: leader.set.dropped(broker.id * 1_000 + n, self.now))
        self.propose()

    def take_over(self) -> None:
        """The next leader comes only when the session of the one before is over, which that one cannot know."""
        old = self.coordinators[-1]
        self.at(
            old.sure_until, lambda: self.coordinators.append(Coordinator(self, len(self.coordinators) + 1))
        )
        old.sure_until = max(old.sure_until, self.now)
        old.session_ended = True  # type: ignore[attr-defined]

    def renew(self) -> None:
        leader = self.coordinators[-1]
        if not getattr(leader, "session_ended", False) and self.now >= leader.paused_until:
            leader.sure_until = self.now + SESSION_MS

    def propose(self) -> None:
        """A master lets the others into its set, or out of it."""
        leader = self.coordinators[-1]
        record = leader.set.record
        if record is None or record.master_id is None or leader.set.phase is not Phase.READY:
            return
        members = frozenset((record.master_id, *self.random.sample(BROKERS, self.random.randrange(1, 4))))
        leader.ask(
            AlterSyncSet(record.master_id, record.master_epoch, record.set_epoch, members),
            lambda answer: None,
        )


@pytest.mark.fault("F1", "F2", "F3", "F11", "F12")
@pytest.mark.invariant("I6")
@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_never_two_who_may_acknowledge_alone(first_seed: int) -> None:
    elections = 0
    for seed in range(first_seed, first_seed + 20):
        world = World(seed)
        world.run(2_500)
        first = world.coordinators[0]
        for broker_id in BROKERS:
            first.ask(ApplyId(broker_id, f"code-{broker_id}"), lambda answer: None)
            world.run(world.now + 5_000)
        first.sure_until = world.now + SESSION_MS
        for broker in world.brokers.values():
            world.every(500, broker.beat)
        world.every(50, lambda world=world: world.coordinators[-1].tick())
        world.every(50, lambda world=world: world.coordinators[max(0, len(world.coordinators) - 2)].tick())
        world.every(300, world.renew)
        world.every(700, world.propose)
        first.ask(Elect(1), lambda answer: None)
        world.run(world.now + 5_000)
        world.every(4_000, world.trouble)
        try:
            world.run(world.now + 60_000)
        except AssertionError as error:
            raise AssertionError(f"seed {seed} at {world.now} ms: {error}") from error
        elections += len(world.masters)
    assert elections > 40, "something has to happen for this to mean anything"
