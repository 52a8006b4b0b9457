"""Misfortunes of a cluster, chosen by a seed: which, whose and for how long; in one of three a second one begins.

Each has an end, so that everything is whole again behind it. The story says what was done and when. The same seed
does the same again, except that who is master then is not the seed's choice.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.fault.cluster.load import ClusterLoad
from tests.fault.cluster.nodes import Cluster, revive
from tests.fault.cluster.pace import BRIEF, LONGER_THAN_LEASE, LONGER_THAN_SESSION, REST
from tests.support.server_processes import ServerProcess

SECOND = 1 / 3
MASTER = 2 / 3

Misfortune = Callable[[ServerProcess], AbstractContextManager[None]]


class Storm:
    """See the module's text."""

    def __init__(self, seed: int, cluster: Cluster, load: ClusterLoad) -> None:
        self._choice = random.Random(seed)
        self._cluster = cluster
        self._load = load
        self._began = time.monotonic()
        self.story: list[str] = []
        self.moments: list[float] = []
        self.kinds: Counter[str] = Counter()
        self._broken: set[str] = set()

    def strike(self) -> None:
        """One misfortune and its end, perhaps with a second in its midst; then a rest."""
        with self._misfortune():
            if self._choice.random() < SECOND:
                with self._misfortune():
                    pass
        time.sleep(self._choice.uniform(*REST))

    def _say(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:7.2f} s  {text}")

    @contextmanager
    def _misfortune(self) -> Iterator[None]:
        """A kind for which its part of the cluster is whole at the moment."""
        kinds: dict[str, tuple[str, Callable[[], AbstractContextManager[None]], int]] = {
            "kill a broker": ("brokers", lambda: self._one(self._killed), 4),
            "stop a broker": ("brokers", lambda: self._one(self._paused), 3),
            "cut a broker off": ("brokers", lambda: self._one(self._cut), 3),
            "deafen a broker": ("brokers", lambda: self._one(self._deaf), 2),
            "fill a disk": ("brokers", self._disk_full, 2),
            "break connections": ("brokers", lambda: self._one(self._reset), 1),
            "kill a coordinator": ("coordinators", lambda: self._killed(self._coordinator()), 2),
            "stop a coordinator": ("coordinators", lambda: self._paused(self._coordinator()), 2),
            "cut ZooKeeper off": ("coordinators", lambda: self._cut(self._coordinator()), 2),
            "kill ZooKeeper's leader": ("zookeeper", self._leader_lost, 2),
            "kill all of ZooKeeper": ("zookeeper", self._outage, 1),
            "kill a name server": (
                "names",
                lambda: self._killed(self._choice.choice(self._cluster.names)),
                1,
            ),
            "a consumer leaves": ("consumers", self._member_changed, 2),
        }
        possible = [kind for kind, (part, _, _) in kinds.items() if part not in self._broken]
        # What has not happened yet is likelier: a short storm has of everything.
        weights = [kinds[one][2] / (1 + 2 * self.kinds[one]) for one in possible]
        kind = self._choice.choices(possible, weights)[0]
        part, begin, _ = kinds[kind]
        lasts_s = self._choice.uniform(*self._choice.choice((BRIEF, LONGER_THAN_LEASE, LONGER_THAN_SESSION)))
        self._broken.add(part)
        self.kinds[kind] += 1
        self._say(f"{kind}, for {lasts_s:.1f} s")
        self.moments.append(time.monotonic())
        with begin():
            time.sleep(lasts_s / 2)
            yield
            time.sleep(lasts_s / 2)
        self._say(f"over: {kind}")
        self._broken.discard(part)

    # -- whose -----------------------------------------------------------------------------------------------

    def _one(self, misfortune: Misfortune) -> AbstractContextManager[None]:
        """Mostly the master: it has most to lose. The seed chooses another all the same, to stay in step."""
        is_master, other = self._choice.random() < MASTER, self._choice.choice(self._cluster.brokers)
        master = self._cluster.master() if is_master else None
        return misfortune(master or other)

    def _coordinator(self) -> ServerProcess:
        return self._choice.choice(self._cluster.coordinators)

    def _name(self, server: ServerProcess) -> str:
        return server.log.parent.name

    # -- what ------------------------------------------------------------------------------------------------

    @contextmanager
    def _killed(self, server: ServerProcess) -> Iterator[None]:
        self._say(f"  {self._name(server)} is killed")
        server.kill()
        try:
            yield
        finally:
            revive(server)

    @contextmanager
    def _paused(self, server: ServerProcess) -> Iterator[None]:
        self._say(f"  {self._name(server)} is stopped")
        server.pause()
        try:
            yield
        finally:
            server.resume()

    @contextmanager
    def _cut(self, server: ServerProcess) -> Iterator[None]:
        """Nothing passes, nobody is told, nobody gets a new connection."""
        self._say(f"  {self._name(server)} is cut off")
        for way in self._cluster.around[server]:
            way.refuse(True)
            way.swallow()
        try:
            yield
        finally:
            self._heal(server)

    @contextmanager
    def _deaf(self, server: ServerProcess) -> Iterator[None]:
        """One-way: what connections ask arrives, what is answered does not; new ones need both."""
        self._say(f"  {self._name(server)} is cut off one way")
        for way in self._cluster.around[server]:
            way.refuse(True)
            way.deafen()
        try:
            yield
        finally:
            self._heal(server)

    def _heal(self, server: ServerProcess) -> None:
        """New connections are sound. Bytes are missing in the old ones: they end now, as after a timeout."""
        for way in self._cluster.around[server]:
            way.refuse(False)
            way.reset()

    @contextmanager
    def _reset(self, server: ServerProcess) -> Iterator[None]:
        """Frames are cut in the middle."""
        self._say(f"  connections of {self._name(server)} break")
        for way in self._cluster.around[server]:
            way.reset(self._choice.randrange(1, 3_000))
        yield

    @contextmanager
    def _disk_full(self) -> Iterator[None]:
        """The master's, if its can be; it stays master, and takes nothing until there is space again."""
        able = [one for one in self._cluster.brokers if one.can_fill]
        other, master = self._choice.choice(able), self._cluster.master()
        server = master if master in able else other
        self._say(f"  the disk of {self._name(server)} is full")
        server.full_mark.touch()
        try:
            yield
        finally:
            server.full_mark.unlink()

    @contextmanager
    def _leader_lost(self) -> Iterator[None]:
        server = self._cluster.zookeeper.leader()
        self._say(f"  ZooKeeper {server.number} is killed")
        server.kill()
        try:
            yield
        finally:
            server.start()

    @contextmanager
    def _outage(self) -> Iterator[None]:
        self._cluster.zookeeper.stop()
        try:
            yield
        finally:
            for server in self._cluster.zookeeper.servers:
                server.start()

    @contextmanager
    def _member_changed(self) -> Iterator[None]:
        self._load.leave(self._choice.random() < 0.5)
        try:
            yield
        finally:
            self._load.join()
