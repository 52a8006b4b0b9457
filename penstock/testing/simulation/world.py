"""Time, network and processes of a simulation. One heap of events; ties are broken by their order.

Rules: an event of a process that was killed since is not run. A paused process gets nothing until it resumes; then
what came over the network runs before what its timers wanted, which is the order in which a stopped process finds out
and the worse of the two. Every process has a clock of its own that begins anywhere and runs up to one per cent fast
or slow. Messages between two processes may overtake one another, except inside a stream.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

Action = Callable[[], None]
DRIFT = 0.01
TRACE_LINES = 4_000


class World:
    """See the module's text. `now` is in milliseconds."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        # Directed: (from, to).
        self._blocked: set[tuple[str, str]] = set()
        self._held: list[Action] = []
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0
        self.is_calm = False

    def say(self, text: str) -> None:
        self.trace.append(f"{self.now:9.1f}  {text}")

    def at(self, time: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(time, self.now), self._count, action))

    def after(self, delay: float, action: Action) -> None:
        self.at(self.now + delay, action)

    def run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = until

    # -- network ---------------------------------------------------------------------------------------------

    def delay(self) -> float:
        """Mostly quick, sometimes slow, rarely very slow."""
        kind = self.chance.random()
        if self.is_calm or kind < 0.9:
            return self.chance.random() * 4
        return self.chance.random() * (60 if kind < 0.985 else 2_500)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def block(self, source: str, target: str) -> None:
        self._blocked.add((source, target))

    def heal(self) -> None:
        """Every partition ends; what was held arrives now, in its order."""
        self._blocked.clear()
        held, self._held = self._held, []
        for release in held:
            release()

    def transmit(self, source: str, target: str, action: Action) -> None:
        """A message by itself. Over a cut it is lost, or comes when the cut is healed."""
        if not self.is_blocked(source, target):
            self.after(self.delay(), action)
        elif self.chance.random() < 0.5:
            self._held.append(lambda: self.after(self.delay(), action))

    def hold(self, release: Action) -> None:
        """Call this when the cuts are healed."""
        self._held.append(release)


class Process:
    """What can be killed, paused and started again. `generation` grows with every start and every end."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.generation = 0
        self.is_up = False
        self._is_paused = False
        self._arrived: list[tuple[int, Action]] = []
        self._timers: list[tuple[int, Action]] = []
        self._rate = 1 + DRIFT * (2 * world.chance.random() - 1)
        self._zero = world.chance.randrange(10_000_000)

    def now_ms(self) -> int:
        """The monotonic clock of its machine."""
        return int(self._zero + self.world.now * self._rate)

    monotonic_ms = now_ms

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.generation += 1
        self.is_up = True
        self.world.say(f"{self.name} starts")
        self.started()

    def kill(self) -> None:
        self.generation += 1
        self.is_up = self._is_paused = False
        self._arrived.clear()
        self._timers.clear()
        self.world.say(f"{self.name} is killed")
        self.killed()

    def pause(self, duration: float) -> None:
        if self._is_paused or not self.is_up:
            return
        self._is_paused = True
        generation = self.generation
        self.world.say(f"{self.name} is paused for {duration:.0f} ms")
        self.world.after(duration, lambda: self._resume(generation))

    def _resume(self, generation: int) -> None:
        if generation != self.generation or not self._is_paused:
            return
        self._is_paused = False
        self.world.say(f"{self.name} goes on")
        waiting = [*self._arrived, *self._timers]
        self._arrived, self._timers = [], []
        for born, action in waiting:
            if born == self.generation:
                action()

    def started(self) -> None:
        """What it does first."""

    def killed(self) -> None:
        """What others notice of its end."""

    # -- events ----------------------------------------------------------------------------------------------

    def timer(self, delay_ms: float, action: Action) -> None:
        """By its own clock."""
        generation = self.generation
        self.world.after(delay_ms / self._rate, lambda: self._run(generation, action, self._timers))

    def every(self, interval_ms: float, action: Action) -> None:
        def run() -> None:
            self.timer(interval_ms, run)
            action()

        self.timer(interval_ms * self.world.chance.random(), run)

    def receive(self, action: Action) -> Action:
        """The action as something that comes over the network to this process as it is now."""
        generation = self.generation
        return lambda: self._run(generation, action, self._arrived)

    def _run(self, generation: int, action: Action, queue: list[tuple[int, Action]]) -> None:
        if generation != self.generation or not self.is_up:
            return
        if self._is_paused:
            queue.append((generation, action))
        else:
            action()


class StreamEnd:
    """One end of a connection: bytes in order, in pieces of any size. Its owner sets `on_data` and `on_lost`."""

    def __init__(self, owner: Process) -> None:
        self.owner = owner
        self.peer: StreamEnd
        self.is_open = True
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_lost: Action = lambda: None
        self._free_at = 0.0

    def send(self, data: bytes) -> None:
        if not self.is_open:
            return
        world = self.owner.world
        while data:
            size = world.chance.choice((5, 24, 100, 4_096)) if not world.is_calm else len(data)
            piece, data = data[:size], data[size:]
            self._pass(lambda piece=piece: self.peer._arrive(piece))  # type: ignore[misc]

    def close(self) -> None:
        """The other end notices in time, unless the network is cut."""
        if self.is_open:
            self.is_open = False
            self._pass(self.peer._lose)

    def open(self, accept: Action) -> None:
        """What the other side does when it gets the connection, before anything that is sent on it."""
        self._pass(accept)

    def _pass(self, action: Action) -> None:
        world, target = self.owner.world, self.peer.owner
        arriving = target.receive(action)
        if world.is_blocked(self.owner.name, target.name):
            world.hold(lambda: self._deliver(arriving))
        else:
            self._deliver(arriving)

    def _deliver(self, arriving: Action) -> None:
        world = self.owner.world
        self._free_at = max(self._free_at, world.now + world.delay()) + 1e-6
        world.at(self._free_at, arriving)

    def _arrive(self, data: bytes) -> None:
        if self.is_open:
            self.on_data(data)

    def _lose(self) -> None:
        if self.is_open:
            self.is_open = False
            self.on_lost()


def connect(client: Process, server: Process) -> tuple[StreamEnd, StreamEnd]:
    """A connection between two processes: the ends of the client and of the server."""
    here, there = StreamEnd(client), StreamEnd(server)
    here.peer, there.peer = there, here
    return here, there
