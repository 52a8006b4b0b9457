"""A whole cluster of real processes: a set of three brokers, two name servers, two coordinators, three ZooKeepers.

Every broker has a loopback address of its own, which is the one that it tells: there, proxies stand before its port
and its port for replicas. It reaches the coordinators over proxies of its own, and so does each coordinator the
ZooKeeper servers. So a broker, or a coordinator's way to its metadata, is cut off without touching anybody else;
only a replica's own way to its master stays open, which is cut at the master. What the tests themselves ask goes to
the processes directly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.errors import PenstockError
from penstock.protocol.bodies.controller import ReplicasInfo
from penstock.testing.reserved_port import ReservedPort
from penstock.testing.zookeeper import ZooKeeperEnsemble, zookeeper_servers
from tests.fault.cluster.pace import BEAT_MS, MASTER_LEASE_MS, SESSION_MS, TICK_MS
from tests.support.broker_set import NAME, BrokerSet
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_processes import ServerProcess, broker, name_server, options

REVIVE_S = 120.0
CALM_S = 180.0


@dataclass
class Cluster:
    """The processes, and the proxies around each broker and before each coordinator's ZooKeeper."""

    zookeeper: ZooKeeperEnsemble
    names: list[ServerProcess]
    coordinators: list[ServerProcess]
    brokers: list[ServerProcess]
    around: dict[ServerProcess, list[CuttingProxy]]

    @property
    def name_servers(self) -> str:
        return ";".join(one.address for one in self.names)

    @property
    def coordinator_addresses(self) -> str:
        return ";".join(one.address for one in self.coordinators)

    @property
    def servers(self) -> list[ServerProcess]:
        return [*self.names, *self.coordinators, *self.brokers]

    def info(self) -> ReplicasInfo | None:
        """What the coordinators say of the set; None while none says anything. All may answer, and only the one that
        leads knows who lives: the newest answer with most of the living counts."""
        answers = []
        for one in self.coordinators:
            try:
                # Others may be stopped, and are not waited for.
                found = BrokerSet(self.names[0], one, self.brokers).info(5_000)
            except (PenstockError, AssertionError):
                continue
            if found is not None:
                answers.append(found)
        return max(answers, key=lambda one: (one.master_epoch, _living(one)), default=None)

    def master(self) -> ServerProcess | None:
        """Who is master, if a coordinator says so."""
        found = self.info()
        if found is None or not found.master_address:
            return None
        port = int(found.master_address.rpartition(":")[2])
        return next(one for one in self.brokers if one.port == port)

    def wait_calm(self) -> ServerProcess:
        """Wait until all brokers are in sync and one of them is master."""
        self.zookeeper.wait_serving(len(self.zookeeper.servers))
        deadline = time.monotonic() + CALM_S
        while True:
            found = self.info()
            master = self.master()
            if master is not None and found is not None and _living(found) == len(self.brokers):
                return master
            assert time.monotonic() < deadline, f"the set does not come together again: {found}"
            time.sleep(0.2)

    def log_ends(self) -> list[str]:
        """How far each broker's log goes by its own word."""
        return BrokerSet(self.names[0], self.coordinators[0], self.brokers).log_ends()

    def logs(self) -> dict[ServerProcess, bytes]:
        """The logs of dead brokers."""
        reader = BrokerSet(self.names[0], self.coordinators[0], self.brokers)
        return {one: reader.log_of(one) for one in self.brokers}


def _living(found: ReplicasInfo) -> int:
    return sum(one.alive for one in found.in_sync)


def revive(server: ServerProcess) -> None:
    """Start it. A coordinator that does not reach ZooKeeper ends by itself, and is started again."""
    deadline = time.monotonic() + REVIVE_S
    while True:
        try:
            server.start()
            return
        except AssertionError:
            server.let_die()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """All of it, with a topic's worth of calm: everybody is in sync."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(zookeeper_servers(folder / "zookeeper", count=3, tick_ms=TICK_MS))

        def proxy(target: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> CuttingProxy:
            found = stack.enter_context(CuttingProxy(listen))
            found.forward_to(target)
            return found

        around: dict[ServerProcess, list[CuttingProxy]] = {}
        names = [name_server(folder / f"nameserver-{number}") for number in (1, 2)]
        coordinators = []
        for number in (1, 2):
            ways = [proxy(server.address) for server in zookeeper.servers]
            metadata = "zookeeper:" + ",".join(way.address for way in ways)
            one = ServerProcess(
                *("coordinator", folder / f"coordinator-{number}", "--metadata", metadata),
                *options(
                    "coordinator",
                    session_timeout_ms=SESSION_MS,
                    master_lease_ms=MASTER_LEASE_MS,
                    broker_silent_ms=MASTER_LEASE_MS,
                    first_balance_ms=1_000,
                ),
            )
            coordinators.append(one)
            around[one] = ways
        brokers = []
        for number in (1, 2, 3):
            ways = [proxy(one.address) for one in coordinators]
            host, ha_port = f"127.0.0.{10 + number}", stack.enter_context(ReservedPort()).number
            settings = (
                *("--name", NAME, "--advertise", host),
                *options(
                    "broker",
                    ha_port=ha_port,
                    coordinators=";".join(way.address for way in ways),
                    beat_interval_ms=BEAT_MS,
                ),
            )
            node = broker(
                folder / f"broker-{number}", ";".join(n.address for n in names), *settings, flush="async"
            )
            if number != 3:  # one writes as in earnest, in one compiled call
                node.watch_disk()
            brokers.append(node)
            ways += [proxy(f"127.0.0.1:{port}", (host, port)) for port in (node.port, ha_port)]
            around[node] = ways
        found = Cluster(zookeeper, names, coordinators, brokers, around)
        try:
            for (
                server
            ) in found.servers:  # one after the other: on a busy machine all at once is nobody in time
                revive(server)
            found.wait_calm()
            yield found
            for server in found.servers:
                assert "Traceback" not in server.complaints(), server.complaints()[-8_000:]
        except BaseException as error:
            for server in found.servers:
                text = server.complaints()[-3_000:]
                error.add_note(f"standard error of {server.log.parent.name} {server.port}:\n{text}")
            raise
        finally:
            for server in found.servers:
                server.put_down()


def make_topic(found: Cluster, topic: str, queues: int) -> None:
    """Routes come a moment after the master."""
    deadline = time.monotonic() + CALM_S
    with penstock.Admin(found.name_servers) as admin:
        while True:
            try:
                admin.create_topic(topic, queues=queues)
                return
            except PenstockError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
