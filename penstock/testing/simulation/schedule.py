"""One simulated history: three brokers, two coordinators and their metadata, clients, and faults that a seed chooses.

trouble     clients send and commit while processes are killed, paused and cut off, at random
calm        everything works again, and has time; then the judge has the last word, as soon as all is quiet
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.coordinator.set_messages import Notify
from penstock.coordinator.set_record import set_path
from penstock.coordinator.set_rules import SetPolicy
from penstock.store import Durability
from penstock.testing.simulation.broker import SimBroker
from penstock.testing.simulation.clients import commit, send
from penstock.testing.simulation.coordinator import CLUSTER, SET, SimCoordinator
from penstock.testing.simulation.judge import Broken, Judge
from penstock.testing.simulation.metadata import Metadata
from penstock.testing.simulation.world import Process, World

# How long everything may take to work again, and how long clients go on meanwhile.
CALM_MS = 40_000.0
SENDING_MS = 4_000.0
LOOK_MS = 500.0
SEND_MS = 40.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long there is trouble, and what may happen."""

    trouble_ms: float = 14_000.0
    fault_ms: float = 1_000.0
    brokers: int = 3
    coordinators: int = 2
    policy: SetPolicy = field(default_factory=SetPolicy)


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in a history in which everything held."""

    seed: int
    replicated: int
    alone: int
    refused: int
    commits: int
    epochs: int
    faults: int


def simulate(seed: int, plan: Plan | None = None, show: Callable[[str], None] | None = None) -> Report:
    """Run the history of a seed. Raises `Broken`, with the seed in its text; `show` gets the trace either way."""
    history = _History(seed, plan or Plan())
    try:
        return history.run()
    except Broken as broken:
        raise Broken(
            f"seed {seed}: {broken}; replay: python -m penstock.testing.simulation --seed {seed} --trace"
        ) from broken
    finally:
        if show is not None:
            for line in history.world.trace:
                show(line)


class _History:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.world = World(seed)
        self.chance = self.world.chance
        # With synchronous flush machines may lose their power; without it only processes die.
        self.is_sync = self.chance.random() < 0.4
        self.judge = Judge(self.world.say)
        self.metadata = Metadata(self.world)
        self.coordinators = [
            SimCoordinator(self.world, f"coordinator-{number}", self.metadata, plan.policy, self._tell)
            for number in range(1, plan.coordinators + 1)
        ]
        self.brokers: dict[int, SimBroker] = {}
        for broker_id in range(1, plan.brokers + 1):
            self.brokers[broker_id] = SimBroker(
                self.world, broker_id, self.judge, self.coordinators, self.brokers, is_sync=self.is_sync
            )
        self.messages = self.refused = self.commits = self.faults = 0

    def _tell(self, broker_id: int, notice: Notify, term: int) -> None:
        broker = self.brokers[broker_id]
        arriving = broker.receive(lambda: broker.notice(notice.record, term))
        # Whoever leads sends it; which of the coordinators that is does not matter to a cut.
        source = next((one.name for one in self.coordinators if one.term == term), "coordinator-1")
        self.world.transmit(source, broker.name, arriving)

    # -- the course ------------------------------------------------------------------------------------------

    def run(self) -> Report:
        world, plan = self.world, self.plan
        self.metadata.start()
        for coordinator in self.coordinators:
            coordinator.start()
        for broker in self.brokers.values():
            world.after(self.chance.random() * 300, broker.start)
        world.after(SEND_MS, self._send)
        world.after(plan.fault_ms * self.chance.random() * 2, self._fault)
        world.run(plan.trouble_ms)
        self._calm()
        world.run(plan.trouble_ms + SENDING_MS)
        while world.now < plan.trouble_ms + CALM_MS:
            world.run(world.now + LOOK_MS)
            if self._is_quiet():
                break
        self._settle()
        return Report(
            self.seed,
            len(self.judge.replicated),
            self.judge.alone,
            self.refused,
            self.commits,
            len(self.judge.leaders),
            self.faults,
        )

    def _calm(self) -> None:
        world = self.world
        world.say("calm")
        world.is_calm = True
        world.heal()
        for process in (*self.coordinators, *self.brokers.values()):
            if not process.is_up:
                process.start()

    @property
    def masters(self) -> list[SimBroker]:
        """Whoever says so."""
        return [one for one in self.brokers.values() if one.is_up and one.membership.is_master]

    def _in_sync(self) -> int:
        record = self.metadata.peek(set_path(CLUSTER, SET))
        return len(record.sync_set) if record is not None else 0

    def _is_quiet(self) -> bool:
        logs = [broker.log.data for broker in self.brokers.values()]
        return (
            len(self.masters) == 1
            and self._in_sync() == len(self.brokers)
            and all(log == logs[0] for log in logs)
        )

    def _settle(self) -> None:
        master = self.masters[0].name if len(self.masters) == 1 else None
        logs = {broker.name: broker.log for broker in self.brokers.values()}
        self.judge.settles(logs, len(self.brokers), self._in_sync(), master)

    # -- clients ---------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Somebody sends to whoever says that it is master; a client may well believe the wrong one."""
        world, chance = self.world, self.chance
        if world.now > self.plan.trouble_ms + SENDING_MS:
            return
        world.after(SEND_MS * chance.random() * 2, self._send)
        claiming = self.masters
        if not claiming:
            self.refused += 1
            return
        broker = chance.choice(claiming)
        self.messages += 1
        message, kind = self.messages, chance.random()
        if kind < 0.15:
            world.after(world.delay(), broker.receive(lambda: commit(broker, self._committed)))
            return
        demand = Durability.MEMORY if kind < 0.45 else None
        world.after(world.delay(), broker.receive(lambda: send(broker, message, demand, self._sent)))

    def _sent(self, is_acknowledged: bool) -> None:
        self.refused += not is_acknowledged

    def _committed(self, is_acknowledged: bool) -> None:
        self.commits += is_acknowledged

    # -- faults ----------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        world, chance = self.world, self.chance
        if world.is_calm:
            return
        world.after(self.plan.fault_ms * chance.random() * 2, self._fault)
        self.faults += 1
        broker = chance.choice(list(self.brokers.values()))
        if self.masters and chance.random() < 0.5:
            broker = chance.choice(self.masters)
        coordinator = chance.choice(self.coordinators)
        kind = chance.randrange(9)
        if kind <= 1:
            self._kill(broker, broker.kill)
        elif kind == 2:
            self._kill(broker, broker.lose_power if self.is_sync else broker.stop)
        elif kind == 3:
            broker.pause(chance.random() * 6_000)
        elif kind == 4:
            chance.choice((coordinator.pause, broker.pause))(chance.random() * 8_000)
        elif kind == 5:
            self._kill(coordinator, coordinator.kill)
        elif kind <= 7:
            self._cut()
        else:
            self.metadata.outage(chance.random() * 5_000)

    def _kill(self, process: Process, kill: Callable[[], None]) -> None:
        if not process.is_up:
            return
        kill()

        def start_again() -> None:
            if not process.is_up:
                process.start()

        self.world.after(self.chance.random() * 4_000, start_again)

    def _cut(self) -> None:
        """A partition: one process from all others or two from each other, both ways or one way."""
        world, chance = self.world, self.chance
        names = [*(one.name for one in self.coordinators), *(one.name for one in self.brokers.values())]
        one = chance.choice(names)
        others = [name for name in [*names, self.metadata.name] if name != one]
        if chance.random() < 0.5:
            others = [chance.choice(others)]
        ways = chance.choice(("both", "in", "out"))
        world.say(f"{one} is cut off from {', '.join(others)} ({ways})")
        for other in others:
            if ways in ("both", "out"):
                world.block(one, other)
            if ways in ("both", "in"):
                world.block(other, one)
        world.after(chance.random() * 6_000, world.heal)
