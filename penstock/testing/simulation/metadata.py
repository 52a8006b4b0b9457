"""The metadata service of a simulation: versioned entries and the sessions of coordinators, as ZooKeeper keeps them.

The live session that has been there longest leads; each new leader has a higher term. A session ends when nothing was
heard of it for its timeout by this service's own time, never earlier. During an outage nothing is answered, and
sessions do not end: no server is there to end them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.coordinator.set_record import SetRecord
from penstock.testing.simulation.world import Process, World

SESSION_MS = 4_000
CHECK_MS = 100
NAME = "metadata"
Answered = TypeVar("Answered")


class Metadata(Process):
    """Never killed; `outage_until` says when it answers again."""

    def __init__(self, world: World) -> None:
        super().__init__(world, NAME)
        self.outage_until = 0.0
        self.term = 0
        self.leader: str | None = None
        self._heard: dict[str, float] = {}
        self._entries: dict[str, tuple[int, SetRecord]] = {}

    def started(self) -> None:
        self.every(CHECK_MS, self._check)

    def outage(self, duration: float) -> None:
        self.world.say(f"metadata is away for {duration:.0f} ms")
        self.outage_until = self.world.now + duration
        for name in self._heard:
            self._heard[name] = self.outage_until

    @property
    def is_away(self) -> bool:
        return self.world.now < self.outage_until

    def _check(self) -> None:
        if self.is_away:
            return
        ended = [name for name, heard in self._heard.items() if self.world.now - heard > SESSION_MS]
        for name in ended:
            del self._heard[name]
            self.world.say(f"the session of {name} ends")
        self._elect()

    def _elect(self) -> None:
        if self.leader in self._heard or not self._heard:
            return
        self.leader = next(iter(self._heard))
        self.term += 1
        self.world.say(f"{self.leader} leads the coordinators in term {self.term}")

    # -- requests --------------------------------------------------------------------------------------------

    def renew(self, session: str) -> tuple[str | None, int] | None:
        """Keep a session; who leads, and in which term."""
        if self.is_away:
            return None
        self._heard[session] = self.world.now
        self._elect()
        return self.leader, self.term

    def read(self, path: str) -> tuple[int | None, SetRecord | None] | None:
        if self.is_away:
            return None
        return self._entries.get(path, (None, None))

    def write(
        self, path: str, record: SetRecord | None, version: int | None
    ) -> tuple[bool, int | None] | None:
        """By compare-and-set: whether it was done, and the version."""
        if self.is_away:
            return None
        known = self._entries.get(path)
        if (known[0] if known is not None else None) != version:
            return False, None
        if record is None:
            self._entries.pop(path, None)
            return True, None
        new = 0 if version is None else version + 1
        # As bytes and back: what an entry cannot say is not there.
        self._entries[path] = (new, SetRecord.decode(record.encode()))
        return True, new

    def peek(self, path: str) -> SetRecord | None:
        """For judges."""
        return self._entries.get(path, (None, None))[1]


def ask(
    client: Process,
    service: Metadata,
    request: Callable[[], Answered | None],
    timeout_ms: float,
    done: Callable[[Answered | None], None],
) -> None:
    """A request and its answer over the network; `done(None)` where none came in time."""
    is_over = False

    def finish(answer: Answered | None) -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            done(answer)

    # The answer is for the process that asked, not for one that was started since.
    generation = client.generation

    def served() -> None:
        answer = request()
        if answer is not None and client.generation == generation:
            client.world.transmit(service.name, client.name, client.receive(lambda: finish(answer)))

    client.world.transmit(client.name, service.name, served)
    client.timer(timeout_ms, lambda: finish(None))
