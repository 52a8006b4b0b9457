"""A coordinator, its members and a broker's leases, with beats and answers lost and members coming and going.

The real cores of all three run here: `GroupBalance` through `Groups`, `Assignment` and `Rebalance` of the consumers,
`PartitionLeases` of the broker. Time and loss are hypothesis'. What must hold at every step: no queue is read by two.
What must hold once losses end: every queue is read by one, level within one, and nothing moves any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import LeaseOutcome, PartitionLeases
from penstock.client.allocation import find_strategy
from penstock.client.assignment import Assignment
from penstock.client.rebalance import (
    Assigned,
    Instruction,
    Lock,
    LockAnswered,
    QueueState,
    Rebalance,
    Release,
    Released,
    Start,
    Started,
)
from penstock.coordinator.balance import BalanceTimes
from penstock.coordinator.groups import Groups
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import ClientBeatAnswer, ClientBeatBody
from penstock.testing import ManualClock

LEASE_MS = 10_000
BEAT_MS = 3_000
TIMES = BalanceTimes(interval_ms=30_000)
CONSUMER_TIMEOUT_MS = 45_000
QUEUES = tuple(MessageQueue("T", "b", number) for number in range(7))


@dataclass(slots=True)
class Consumer:
    """A consumer whose releases take a while: `release_ms` in all."""

    name: str
    clock: ManualClock
    leases: PartitionLeases
    release_ms: int = 0
    assignment: Assignment = field(default_factory=Assignment)
    sequence: int = 0
    # Valid leases as the consumer counts them, and releases under way.
    until: dict[MessageQueue, int] = field(default_factory=dict)
    releasing: dict[MessageQueue, int] = field(default_factory=dict)
    # Stopped as a whole; or alive, but without a way to the coordinator.
    is_paused: bool = False
    is_cut: bool = False
    core: Rebalance = field(init=False)

    def __post_init__(self) -> None:
        self.core = Rebalance(self.name, find_strategy("averagely"), orderly=True, broadcasting=False)

    @property
    def reading(self) -> set[MessageQueue]:
        """What it works on: held, with a lease that it knows to be valid. A release lets what is in hand end."""
        now = self.clock.monotonic_ms()
        active = {q for q, s in self.core.states.items() if s in (QueueState.HELD, QueueState.RELEASING)}
        return {queue for queue in active if self.until.get(queue, 0) > now}

    def beat(self) -> ClientBeatBody:
        self.sequence += 1
        return ClientBeatBody(
            self.name,
            "g",
            topics=("T",),
            queues=self.assignment.report(self.core.states),
            result=self.assignment.result,
            refused=tuple(self.assignment.refused.values()),
            sequence=self.sequence,
        )

    def answered(self, sent: ClientBeatBody, answer: ClientBeatAnswer) -> None:
        if not self.assignment.is_news(answer.term):
            return
        self.assignment.heard(sent.result)
        if answer.event is not None and self.assignment.told(answer.event):
            self.apply(self.core.handle(Assigned(self.assignment.wanted)))
        self.look()

    def apply(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Release(queue):
                    self.releasing[queue] = self.clock.monotonic_ms() + self.release_ms
                case Lock(queues):
                    self.claim(queues)
                case Start(queue):
                    self.apply(self.core.handle(Started(queue)))

    def claim(self, queues: tuple[MessageQueue, ...]) -> None:
        outcome = self.leases.claim("g", self.name, queues)
        for queue in outcome.granted:
            self.until[queue] = self.clock.monotonic_ms() + LEASE_MS
        self.assignment.dropped((one.queue for one in outcome.refused), outcome.refused)
        self.apply(self.core.handle(LockAnswered(queues, frozenset(outcome.granted))))
        self.apply(self.core.handle(Assigned(self.assignment.wanted)))

    def work(self) -> None:
        """Time has passed: refresh leases, finish releases."""
        now = self.clock.monotonic_ms()
        for queue in [q for q, due in self.releasing.items() if due <= now]:
            del self.releasing[queue]
            self.leases.release("g", self.name, [queue])
            self.until.pop(queue, None)
            self.apply(self.core.handle(Released(queue)))
        held = [q for q in self.core.states if q in self.until]
        outcome = self.leases.refresh("g", self.name, held)
        for queue in outcome.granted:
            self.until[queue] = now + LEASE_MS
        for one in outcome.refused:
            self.until.pop(one.queue, None)
        if outcome.refused:
            self.assignment.dropped((one.queue for one in outcome.refused), outcome.refused)
            self.apply(self.core.handle(Assigned(self.assignment.wanted)))
        self.look()

    def look(self) -> None:
        states = self.core.states
        self.assignment.look(states, [q for q, s in states.items() if s is QueueState.HELD])


class World:
    """Everything, and the rules that must hold."""

    def __init__(self, leases: type[PartitionLeases] = PartitionLeases) -> None:
        self.clock = ManualClock()
        self.leases = leases(BrokerOptions(partition_lease_ms=LEASE_MS), self.clock)
        self.groups = Groups(TIMES, term=1)
        self.consumers: dict[str, Consumer] = {}
        self.heard: dict[str, int] = {}
        self.ever = 0

    def join(self, release_ms: int) -> None:
        self.ever += 1
        name = f"c{self.ever}"
        self.consumers[name] = Consumer(name, self.clock, self.leases, release_ms)

    def kill(self, name: str) -> None:
        """The process is gone; only its leases know."""
        del self.consumers[name]
        self.groups.dropped("g", name, self.clock.monotonic_ms())
        self.heard.pop(name, None)

    def cut(self, consumer: Consumer) -> None:
        """The way to the coordinator is gone, or is there again; the consumer works on."""
        consumer.is_cut = not consumer.is_cut
        if consumer.is_cut:
            self.groups.dropped("g", consumer.name, self.clock.monotonic_ms())

    def leave(self, name: str) -> None:
        """It says goodbye after letting go of everything."""
        consumer = self.consumers.pop(name)
        self.leases.release("g", name, list(consumer.until))
        self.heard.pop(name, None)
        self.groups.left("g", name, self.clock.monotonic_ms())

    def lead(self) -> None:
        """Another coordinator takes over, knowing nobody."""
        self.groups.lead(self.groups.term + 1, self.clock.monotonic_ms() + 5_000)
        self.heard.clear()

    def exchange(self, consumer: Consumer, *, request_lost: bool = False, answer_lost: bool = False) -> None:
        sent = consumer.beat()
        if request_lost:
            return
        now = self.clock.monotonic_ms()
        answer, _ = self.groups.beat(sent, now)
        self.heard[consumer.name] = now
        self.groups.seen({"T": QUEUES}, frozenset("b"), now)
        if not answer_lost:
            consumer.answered(sent, answer)
        self.check()

    def pass_time(self, ms: int) -> None:
        for _ in range(ms // 500):
            self.clock.advance(500)
            now = self.clock.monotonic_ms()
            for name, heard in list(self.heard.items()):
                if now - heard >= CONSUMER_TIMEOUT_MS:
                    del self.heard[name]
                    self.groups.left("g", name, now)
            self.groups.tick(now)
            for consumer in self.consumers.values():
                if not consumer.is_paused:
                    consumer.work()
            self.check()

    def check(self) -> None:
        owners: dict[MessageQueue, str] = {}
        for consumer in self.consumers.values():
            for queue in consumer.reading:
                assert queue not in owners, f"{queue} is read by {owners[queue]} and {consumer.name}"
                owners[queue] = consumer.name

    def settle(self, most_ms: int) -> None:
        for consumer in self.consumers.values():
            consumer.is_paused = consumer.is_cut = False
        for _ in range(most_ms // BEAT_MS):
            for consumer in self.consumers.values():
                self.exchange(consumer)
            self.pass_time(BEAT_MS)

    def shares(self) -> dict[str, set[MessageQueue]]:
        return {name: consumer.reading for name, consumer in self.consumers.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """Something happens, then everybody beats, as far as the network lets them, and time passes."""

    what: str
    whom: int
    # Two bits per consumer: its beat is lost; the answer is.
    losses: int
    ms: int


def steps(*actions: str) -> st.SearchStrategy[list[Step]]:
    lossy = st.one_of(st.just(0), st.just(0), st.integers(0, 2**12 - 1))
    times = st.sampled_from([500, 500, 1_000, 3_000])
    return st.lists(
        st.builds(Step, st.sampled_from(["nothing", *actions]), st.integers(0, 9), lossy, times),
        min_size=15,
        max_size=50,
    )


def play(world: World, step: Step) -> None:
    names = sorted(world.consumers)
    if step.what == "join" and len(names) < 6:
        world.join(4_000 if step.whom > 6 else 0)
    elif step.what == "take over":
        world.lead()
    elif names:
        consumer = world.consumers[names[step.whom % len(names)]]
        if step.what == "kill":
            world.kill(consumer.name)
        elif step.what == "leave":
            world.leave(consumer.name)
        elif step.what == "pause":
            consumer.is_paused = not consumer.is_paused
        elif step.what == "cut":
            world.cut(consumer)
    for number, consumer in enumerate(list(world.consumers.values())):
        if not consumer.is_paused and not consumer.is_cut:
            bits = step.losses >> 2 * number & 3
            world.exchange(consumer, request_lost=bool(bits & 1), answer_lost=bool(bits & 2))
    world.pass_time(step.ms)
    world.check()


@pytest.mark.feature("coordinator-balancing", "tubemq")
@pytest.mark.invariant("I10")
@pytest.mark.fault("F1", "F2", "F3")
@given(steps("join", "join", "kill", "leave", "pause", "cut", "take over"))
@settings(deadline=None)
def test_never_two_owners_and_always_level_in_the_end(script: list[Step]) -> None:
    world = World()
    world.join(0)
    for step in script:
        play(world, step)
    if not world.consumers:
        world.join(0)
    world.settle(60_000)
    shares = world.shares()
    assert sorted(q for share in shares.values() for q in share) == sorted(QUEUES)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    world.settle(60_000)
    assert world.shares() == shares


class Generous(PartitionLeases):
    """A broker that lets everybody have everything."""

    def claim(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LeaseOutcome:
        return LeaseOutcome(tuple(queues))

    refresh = claim


@pytest.mark.fault("F3")
@given(steps("join", "join", "leave"))
@settings(deadline=None)
def test_the_barrier_alone_keeps_living_members_apart(script: list[Step]) -> None:
    """Whatever is lost on the way: without deaths and take-overs the coordinator never gives away what is held."""
    world = World(Generous)
    world.join(0)
    for step in script:
        play(world, step)
        world.heard.clear()  # nobody is thought dead


@pytest.mark.fault("F3")
@given(st.integers(0, 5), st.integers(1, 5))
@settings(deadline=None)
def test_a_lost_event_costs_beats_and_not_rounds(lost: int, members: int) -> None:
    world = World()
    for _ in range(members):
        world.join(0)
    for _ in range(lost):
        for consumer in world.consumers.values():
            world.exchange(consumer, answer_lost=True)
        world.pass_time(BEAT_MS)
    began = world.clock.monotonic_ms()
    world.settle(3 * BEAT_MS)
    assert sum(len(share) for share in world.shares().values()) == len(QUEUES)
    assert world.clock.monotonic_ms() - began < TIMES.interval_ms


@given(st.integers(2, 5))
@settings(deadline=None)
def test_a_member_that_never_finishes_holds_the_others_up_for_ten_rounds_at_most(members: int) -> None:
    world = World()
    world.join(10**9)  # its release takes for ever
    world.settle(9_000)
    assert world.consumers["c1"].reading == set(QUEUES)
    for _ in range(members - 1):
        world.join(0)
    world.settle(11 * TIMES.interval_ms)
    group = world.groups.get("g")
    assert group is not None
    # It reads on what it does not let go of; nobody else was given any of that, and nobody waits for it any more.
    assert world.consumers["c1"].reading == set(QUEUES)
    assert group.round >= 3


def test_members_that_come_and_go_move_no_more_than_they_must() -> None:
    world = World()
    for _ in range(2):
        world.join(0)
    world.settle(12_000)
    before = world.shares()
    world.join(0)
    world.settle(12_000)
    after = world.shares()
    assert sorted(map(len, after.values())) == [2, 2, 3]
    # The newcomer's queues moved, and no other.
    assert after["c1"] <= before["c1"]
    assert after["c2"] <= before["c2"]
    world.kill("c3")
    world.settle(24_000)
    again = world.shares()
    assert after["c1"] <= again["c1"]
    assert after["c2"] <= again["c2"]
    assert len(again["c1"] | again["c2"]) == len(QUEUES)
