"""A coordinator that divides queues, its consumers and the broker that leases them, by a seed.

    python -m penstock.testing.simulation --balance --seed 4711 --trace

What runs is the production code without its sockets and clocks: `Groups` and `GroupBalance` of the coordinator,
`Assignment` and `Rebalance` of the consumers, `PartitionLeases` of the broker. Every message between them takes its
time, overtakes others or is lost; consumers are killed, paused and cut off, the coordinator is replaced by one that
knows nothing, and so is the broker's memory of its leases.

    I10  at no moment do two consumers read one queue; once faults end, every queue is read, level within one or by
         whom the ring says, and nothing moves any more

A consumer reads what it holds while its lease is valid as it counts itself: from the moment at which it asked.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import LeaseOutcome, PartitionLeases
from penstock.client.allocation import find_strategy
from penstock.client.assignment import Assignment
from penstock.client.claims import is_renewable
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
from penstock.coordinator.groups import Groups, NudgeMember
from penstock.coordinator.ring_division import divide_by_ring
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import Binding, ClientBeatAnswer, ClientBeatBody
from penstock.testing.clock import ManualClock
from penstock.testing.simulation.judge import Broken

GROUP, TOPIC, BROKER = "g", "T", "b"
LEASE_MS, REFRESH_MS, BEAT_MS, SILENT_MS = 10_000, 3_000, 3_000, 45_000
STORM_MS, CALM_MS, STILL_MS = 90_000, 120_000, 60_000
MEMBERS_MAX = 6


@dataclass(frozen=True, slots=True)
class BalanceReport:
    """What happened in a history."""

    seed: int
    faults: int
    rounds: int
    moves: int
    refusals: int


@dataclass(slots=True)
class Member:
    """One consumer: its cores, its leases as it counts them, and how it fares."""

    name: str
    release_ms: int
    assignment: Assignment = field(default_factory=Assignment)
    core: Rebalance = field(init=False)
    until: dict[MessageQueue, int] = field(default_factory=dict)
    sequence: int = 0
    is_alive: bool = True
    is_cut: bool = False
    paused_until: int = 0

    def __post_init__(self) -> None:
        self.core = Rebalance(self.name, find_strategy("averagely"), orderly=True, broadcasting=False)

    def reading(self, now_ms: int) -> set[MessageQueue]:
        """A release lets end what is in hand: until then the queue is read."""
        if not self.is_alive:
            return set()
        states = (QueueState.HELD, QueueState.RELEASING)
        return {
            q for q, state in self.core.states.items() if state in states and self.until.get(q, 0) > now_ms
        }


class BalanceWorld:
    """One history. `leases` may be replaced by a broken one, to see that it is found. `gentle`: messages are late and
    lost, consumers come and go, and nothing worse happens."""

    def __init__(
        self,
        seed: int,
        show: Callable[[str], None] | None = None,
        leases: type[PartitionLeases] = PartitionLeases,
        gentle: bool = False,
        binding: Binding = Binding.EVEN,
    ) -> None:
        self._is_gentle = gentle
        self._binding = binding
        self._choice = random.Random(seed)
        self._seed = seed
        self._show = show
        self._clock = ManualClock()
        self._began = self._clock.monotonic_ms()
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_calm = False
        self._broker_life = 0
        self.queues = tuple(
            MessageQueue(TOPIC, BROKER, number) for number in range(self._choice.randint(1, 9))
        )
        self._leases = leases(BrokerOptions(partition_lease_ms=LEASE_MS), self._clock)
        self._groups = Groups(BalanceTimes(interval_ms=30_000), term=1)
        self._heard: dict[str, int] = {}
        self._members: dict[str, Member] = {}
        self._ever = itertools.count(1)
        self._owners: dict[MessageQueue, str] = {}
        self.faults = self.moves = self.refusals = self.rounds = 0

    # -- time and the network --------------------------------------------------------------------------------

    def now(self) -> int:
        return self._clock.monotonic_ms()

    def _say(self, text: str) -> None:
        if self._show is not None:
            self._show(f"{self.now() - self._began:8d} ms  {text}")

    def _after(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now() + ms, next(self._order), action))

    def _send(self, member: Member, action: Callable[[], None], *, to_coordinator: bool = False) -> None:
        """A message to or from a consumer: mostly quick, at times slow or lost."""
        if not self._is_calm and (self._choice.random() < 0.08 or (to_coordinator and member.is_cut)):
            return
        slow = not self._is_calm and self._choice.random() < 0.1
        self._after(self._choice.randint(300, 4_000) if slow else self._choice.randint(0, 40), action)

    def _to_broker(self, member: Member, action: Callable[[], None]) -> None:
        """A connection ends with the broker's process: what was sent to it does not reach the next one."""
        life = self._broker_life
        self._send(member, lambda: action() if life == self._broker_life else None)

    def _to(self, member: Member, action: Callable[[], None]) -> None:
        """Something reaches a consumer; a paused one notices when it goes on."""
        if member.is_alive:
            wait = member.paused_until - self.now()
            if wait > 0:
                self._after(wait, lambda: self._to(member, action))
            else:
                action()

    def run_to(self, end_ms: int) -> None:
        while self._later and self._later[0][0] <= end_ms:
            at, _, action = heapq.heappop(self._later)
            self._clock.advance(max(at - self.now(), 0))
            action()
            self._judge()
        self._clock.advance(max(end_ms - self.now(), 0))

    def _judge(self) -> None:
        owners: dict[MessageQueue, str] = {}
        for member in self._members.values():
            for queue in member.reading(self.now()):
                other = owners.setdefault(queue, member.name)
                if other != member.name:
                    raise self.broken(f"I10: queue {queue.queue_id} is read by {other} and {member.name}")
                if self._owners.get(queue) != member.name:
                    self.moves += 1
                    self._say(f"{member.name} reads queue {queue.queue_id}")
        self._owners = owners

    def broken(self, text: str) -> Broken:
        self._say(f"BROKEN {text}")
        ring = " --ring" if self._binding is Binding.RING else ""
        replay = f"python -m penstock.testing.simulation --balance{ring} --seed {self._seed} --trace"
        return Broken(f"seed {self._seed}: {text}; see it again with: {replay}")

    # -- consumers -------------------------------------------------------------------------------------------

    def join(self) -> None:
        member = Member(f"c{next(self._ever)}", self._choice.choice((0, 0, 200, 4_000)))
        self._members[member.name] = member
        self._say(f"{member.name} joins")
        self._beats(member)
        self._refreshes(member)

    def _beats(self, member: Member) -> None:
        if member.is_alive:
            self._to(member, lambda: self._beat(member))
            self._after(BEAT_MS, lambda: self._beats(member))

    def _refreshes(self, member: Member) -> None:
        if member.is_alive:
            self._to(member, lambda: self._refresh(member))
            self._after(REFRESH_MS, lambda: self._refreshes(member))

    def _beat(self, member: Member) -> None:
        member.sequence += 1
        sent = ClientBeatBody(
            member.name,
            GROUP,
            topics=(TOPIC,),
            queues=member.assignment.report(member.core.states),
            result=member.assignment.result,
            refused=tuple(member.assignment.refused.values()),
            sequence=member.sequence,
            binding=self._binding,
        )
        self._send(member, lambda: self._take_beat(member, sent), to_coordinator=True)

    def _take_beat(self, member: Member, sent: ClientBeatBody) -> None:
        answer, nudges = self._groups.beat(sent, self.now())
        self._heard[member.name] = self.now()
        self._groups.seen({TOPIC: self.queues}, frozenset({BROKER}), self.now())
        self._send(
            member,
            lambda: self._to(member, lambda: self._answered(member, sent, answer)),
            to_coordinator=True,
        )
        self._nudge(nudges)

    def _nudge(self, nudges: list[NudgeMember]) -> None:
        for one in nudges:
            member = self._members.get(one.member)
            if member is not None:
                self._send(member, lambda m=member: self._to(m, lambda: self._beat(m)), to_coordinator=True)  # type: ignore[misc]

    def _answered(self, member: Member, sent: ClientBeatBody, answer: ClientBeatAnswer) -> None:
        if not member.assignment.is_news(answer.term):
            return
        member.assignment.heard(sent.result)
        if answer.event is not None and member.assignment.told(answer.event):
            self._apply(member, member.core.handle(Assigned(member.assignment.wanted)))
        self._look(member)

    def _apply(self, member: Member, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Release(queue):
                    self._after(
                        member.release_ms,
                        lambda q=queue: self._to(member, lambda: self._release(member, q)),  # type: ignore[misc]
                    )
                case Lock(queues):
                    asked_ms = self.now()
                    self._to_broker(member, lambda q=queues, at=asked_ms: self._claim(member, q, at))  # type: ignore[misc]
                    # Production's call times out: whoever is not answered has not got it.
                    self._after(5_000, lambda q=queues: self._to(member, lambda: self._unanswered(member, q)))  # type: ignore[misc]
                case Start(queue):
                    self._apply(member, member.core.handle(Started(queue)))

    def _look(self, member: Member) -> None:
        states = member.core.states
        member.assignment.look(states, [q for q, state in states.items() if state is QueueState.HELD])

    # -- leases ----------------------------------------------------------------------------------------------

    def _claim(self, member: Member, queues: tuple[MessageQueue, ...], asked_ms: int) -> None:
        outcome = self._leases.claim(GROUP, member.name, queues)
        self._send(member, lambda: self._to(member, lambda: self._claimed(member, queues, outcome, asked_ms)))

    def _claimed(
        self, member: Member, queues: tuple[MessageQueue, ...], outcome: LeaseOutcome, asked_ms: int
    ) -> None:
        waiting = {q for q, state in member.core.states.items() if state is QueueState.LOCKING}
        if not waiting.issuperset(queues):
            # Too late: the call has timed out. What was granted is not used, and runs out.
            return
        for queue in outcome.granted:
            member.until[queue] = asked_ms + LEASE_MS
        self._refused(member, outcome)
        self._apply(member, member.core.handle(LockAnswered(queues, frozenset(outcome.granted))))
        self._apply(member, member.core.handle(Assigned(member.assignment.wanted)))
        self._look(member)

    def _unanswered(self, member: Member, queues: tuple[MessageQueue, ...]) -> None:
        waiting = tuple(q for q in queues if member.core.states.get(q) is QueueState.LOCKING)
        if waiting:
            member.assignment.dropped(waiting)
            self._apply(member, member.core.handle(LockAnswered(waiting, frozenset())))
            self._apply(member, member.core.handle(Assigned(member.assignment.wanted)))
            self._look(member)

    def _refresh(self, member: Member) -> None:
        held, asked_ms = [q for q in member.core.states if q in member.until], self.now()
        over = [q for q in held if not is_renewable(member.until[q] - LEASE_MS, LEASE_MS, asked_ms)]
        for queue in over:
            member.until.pop(queue)
            held.remove(queue)
        if over:
            self._to_broker(member, lambda: self._leases.release(GROUP, member.name, over))
            member.assignment.dropped(over)
            self._apply(member, member.core.handle(Assigned(member.assignment.wanted)))
        if held:
            self._to_broker(member, lambda: self._take_refresh(member, held, asked_ms))

    def _take_refresh(self, member: Member, held: list[MessageQueue], asked_ms: int) -> None:
        outcome = self._leases.refresh(GROUP, member.name, held)
        self._send(member, lambda: self._to(member, lambda: self._refreshed(member, outcome, asked_ms)))

    def _refreshed(self, member: Member, outcome: LeaseOutcome, asked_ms: int) -> None:
        for queue in outcome.granted:
            if queue in member.until:
                member.until[queue] = max(member.until[queue], asked_ms + LEASE_MS)
        for one in outcome.refused:
            member.until.pop(one.queue, None)
        if outcome.refused:
            self._refused(member, outcome)
            self._apply(member, member.core.handle(Assigned(member.assignment.wanted)))
        self._look(member)

    def _refused(self, member: Member, outcome: LeaseOutcome) -> None:
        self.refusals += len(outcome.refused)
        member.assignment.dropped((one.queue for one in outcome.refused), outcome.refused)

    def _release(self, member: Member, queue: MessageQueue) -> None:
        """It has stopped reading before it says so."""
        member.until.pop(queue, None)
        self._to_broker(member, lambda: self._leases.release(GROUP, member.name, [queue]))
        self._apply(member, member.core.handle(Released(queue)))
        self._look(member)

    # -- the coordinator -------------------------------------------------------------------------------------

    def ticks(self) -> None:
        now = self.now()
        for name in [name for name, heard in self._heard.items() if now - heard >= SILENT_MS]:
            del self._heard[name]
            self._nudge(self._groups.left(GROUP, name, now))
        before = self._round()
        self._nudge(self._groups.tick(now))
        self.rounds += self._round() > before
        self._after(500, self.ticks)

    def _round(self) -> int:
        group = self._groups.get(GROUP)
        return 0 if group is None else group.round

    # -- faults ----------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """One fault, and the next a while later."""
        living = [member for member in self._members.values() if member.is_alive]
        kinds = [] if self._is_gentle else [self._take_over, self._forget_leases]
        if len(living) < MEMBERS_MAX:
            kinds += [self.join] * 3
        if living:
            one = self._choice.choice(living)
            kinds.append(lambda: self._leave(one))
            if not self._is_gentle:
                harm = [lambda: self._pause(one), lambda: self._cut(one)]
                kinds += [lambda: self._kill(one), *harm, *harm]
        self.faults += 1
        self._choice.choice(kinds)()
        self._after(self._choice.randint(200, 12_000), lambda: None if self._is_calm else self.strike())

    def _take_over(self) -> None:
        self._say("another coordinator takes over")
        self._groups.lead(self._groups.term + 1, self.now() + 5_000)
        self._heard.clear()

    def _forget_leases(self) -> None:
        self._say("the broker starts again")
        self._broker_life += 1
        self._leases.begin([TOPIC])

    def _kill(self, member: Member) -> None:
        self._say(f"{member.name} is killed")
        member.is_alive = False
        del self._members[member.name]
        self._groups.dropped(GROUP, member.name, self.now())
        self._heard.pop(member.name, None)

    def _leave(self, member: Member) -> None:
        """It lets go of everything, and says goodbye."""
        self._say(f"{member.name} leaves")
        member.is_alive = False
        del self._members[member.name]
        self._leases.release(GROUP, member.name, list(member.until))
        self._heard.pop(member.name, None)
        self._nudge(self._groups.left(GROUP, member.name, self.now()))

    def _pause(self, member: Member) -> None:
        lasts_ms = self._choice.choice((1_000, 8_000, 15_000, 50_000))
        self._say(f"{member.name} is paused for {lasts_ms} ms")
        member.paused_until = max(member.paused_until, self.now() + lasts_ms)

    def _cut(self, member: Member) -> None:
        """The way to the coordinator is gone; the consumer works on."""
        self._say(f"{member.name} is cut off the coordinator")
        member.is_cut = True
        self._groups.dropped(GROUP, member.name, self.now())
        self._after(self._choice.randint(1_000, 60_000), lambda: self._heal(member))

    def _heal(self, member: Member) -> None:
        member.is_cut = False

    # -- the end ---------------------------------------------------------------------------------------------

    def calm(self) -> None:
        self._say("calm")
        self._is_calm = True
        for member in self._members.values():
            member.is_cut, member.paused_until = False, 0
        if not self._members:
            self.join()

    def shares(self) -> dict[str, set[MessageQueue]]:
        return {member.name: member.reading(self.now()) for member in self._members.values()}

    def misplaced(self) -> str:
        """What is wrong with who reads what in the end; empty if nothing is."""
        found = self.shares()
        if self._binding is Binding.RING:
            fair = divide_by_ring(dict.fromkeys(found, (TOPIC,)), {}, {TOPIC: self.queues}).shares
            return "" if found == fair else "in the end queues are not where the ring has them"
        sizes = sorted(len(share) for share in found.values())
        return "" if sizes[-1] - sizes[0] <= 1 else f"in the end consumers read {sizes} queues"


def simulate_balance(
    seed: int,
    *,
    show: Callable[[str], None] | None = None,
    leases: type[PartitionLeases] = PartitionLeases,
    gentle: bool = False,
    binding: Binding = Binding.EVEN,
) -> BalanceReport:
    """The history of a seed. Broken, where a promise does not hold."""
    world = BalanceWorld(seed, show, leases, gentle, binding)
    began = world.now()
    world.join()
    world.ticks()
    world.strike()
    world.run_to(began + STORM_MS)
    world.calm()
    world.run_to(began + STORM_MS + CALM_MS)
    shares = world.shares()
    read = sorted(queue for share in shares.values() for queue in share)
    if read != sorted(world.queues):
        raise world.broken(f"I10: of {len(world.queues)} queues {len(read)} are read in the end")
    if wrong := world.misplaced():
        raise world.broken(f"I10: {wrong}")
    moves = world.moves
    world.run_to(world.now() + STILL_MS)
    if world.moves != moves:
        raise world.broken("I10: queues still move when all is calm")
    return BalanceReport(seed, world.faults, world.rounds, world.moves, world.refusals)
