"""Real coordinator processes over real ZooKeeper servers: killed, stopped, cut off; three brokers report to them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.effort import by_length
from tests.fault.reporting_brokers import BEAT_S, ReportingBroker, check_leases
from tests.support.server_processes import ServerProcess, options
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
TICK_MS = 200
SESSION_MS = 2_000
LEASE_S = 1.2
KILLS = by_length(2, 20)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper"), count=3, tick_ms=TICK_MS) as servers:
        yield servers


class Cluster:
    """Two coordinators and three brokers, all of them in sync."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperEnsemble) -> None:
        metadata = f"zookeeper:{zookeeper.hosts}/{folder.name}"
        self.coordinators = [
            ServerProcess(
                *("coordinator", folder / f"coordinator-{n}", "--metadata", metadata),
                *options(
                    "coordinator",
                    session_timeout_ms=SESSION_MS,
                    master_lease_ms=int(LEASE_S * 1_000),
                    broker_silent_ms=int(LEASE_S * 1_000),
                ),
            )
            for n in (1, 2)
        ]
        self.brokers = [ReportingBroker(n, self.coordinators) for n in (1, 2, 3)]

    @property
    def master(self) -> ReportingBroker:
        newest = max(self.brokers, key=lambda one: one.epoch)
        return next(one for one in self.brokers if one.broker_id == newest.master)

    @property
    def epochs(self) -> set[int]:
        return {one.epoch for one in self.brokers}

    async def start(self) -> None:
        for coordinator in self.coordinators:
            await asyncio.to_thread(coordinator.start)
        for broker in self.brokers:
            broker.start()
            await until(lambda broker=broker: broker.epoch > 0)
        await self.settle()

    async def settle(self) -> None:
        """Everybody in the set, and the master with a lease."""
        await until(lambda: len(self.epochs) == 1 and self.has_lease())
        await self.master.let_in(1, 2, 3)
        await until(lambda: all(one.members == {1, 2, 3} for one in self.brokers) and self.has_lease())

    def has_lease(self) -> bool:
        leases = self.master.leases
        return bool(leases) and leases[-1].until_s > time.monotonic() and leases[-1].epoch == max(self.epochs)

    async def leader(self) -> tuple[ServerProcess, ServerProcess]:
        """The coordinator that leads, and the other."""
        one, two = self.coordinators
        await until(lambda: self.master.leader is not None)
        return (one, two) if self.master.leader is one else (two, one)

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.kill()
        for coordinator in self.coordinators:
            await asyncio.to_thread(coordinator.put_down)


@contextlib.asynccontextmanager
async def cluster(folder: Path, zookeeper: ZooKeeperEnsemble) -> AsyncIterator[Cluster]:
    found = Cluster(folder, zookeeper)
    try:
        await found.start()
        yield found
    finally:
        await found.stop()
    check_leases(found.brokers)


@pytest.mark.feature("failover", "fifth-seed")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I6", "I14")
@pytest.mark.seed("S4-21")
@pytest.mark.long
def test_a_master_that_dies_is_replaced_after_its_lease(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble, record_property: Callable[[str, object], None]
) -> None:
    async def go() -> None:
        times = []
        async with cluster(tmp_path, zookeeper) as those:
            for _ in range(KILLS):
                await those.settle()
                dead = those.master
                epoch = dead.epoch
                killed_s = await dead.kill()
                others = [one for one in those.brokers if one is not dead]
                await until(lambda others=others, epoch=epoch: all(one.epoch > epoch for one in others))
                times.append(max(one.heard[-1][0] for one in others) - killed_s)
                await dead.restart()
        print("elections after a kill, s:", [round(one, 2) for one in times])
        record_property("elections_s", times)
        # The last beat began up to its interval before.
        assert min(times) > LEASE_S - 2 * BEAT_S

    asyncio.run(go())


@pytest.mark.fault("F1")
@pytest.mark.invariant("I6", "I14")
def test_the_death_of_the_leading_coordinator_replaces_no_master(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, zookeeper) as those:
            leader, other = await those.leader()
            master, epoch, term = those.master, those.master.epoch, those.master.term
            killed_s = time.monotonic()
            await asyncio.to_thread(leader.kill)
            await until(lambda: master.term > term and those.has_lease())
            print("without a lease, s:", round(master.uncovered_s(killed_s, time.monotonic()), 2))
            await asyncio.sleep(LEASE_S + 0.5)
            assert (those.epochs, those.master) == ({epoch}, master)
            await asyncio.to_thread(leader.start)
            stopped_s = time.monotonic()
            await asyncio.to_thread(other.stop)
            await until(lambda: master.term > term + 1 and those.has_lease())
            print(
                "without a lease after a clean stop, s:",
                round(master.uncovered_s(stopped_s, time.monotonic()), 2),
            )
            assert those.epochs == {epoch}

    asyncio.run(go())


@pytest.mark.fault("F2", "F12")
@pytest.mark.invariant("I6")
def test_a_leading_coordinator_that_slept_grants_nothing_when_it_wakes_up(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, zookeeper) as those:
            leader, _ = await those.leader()
            master, term = those.master, those.master.term
            leader.pause()
            await until(lambda: master.term > term and those.has_lease())
            leader.resume()
            answers = [await master.broker.beat(leader) for _ in range(20)]  # type: ignore[arg-type]
            assert {answer.code for answer in answers} == {2007}
            await until(those.has_lease)
            assert those.master is master

    asyncio.run(go())


@pytest.mark.fault("F11")
@pytest.mark.invariant("I6")
def test_zookeeper_loses_its_leader_then_everything_and_no_master_changes(
    tmp_path: Path, zookeeper: ZooKeeperEnsemble
) -> None:
    async def go() -> None:
        async with cluster(tmp_path, zookeeper) as those:
            master, epoch = those.master, those.master.epoch
            lost = zookeeper.leader()
            killed_s = time.monotonic()
            await asyncio.to_thread(lost.kill)
            await asyncio.sleep(SESSION_MS / 1000 + 1)
            gap_s = master.uncovered_s(killed_s, time.monotonic())
            print("without a lease, ZooKeeper's leader gone, s:", round(gap_s, 2))
            assert those.epochs == {epoch}
            await until(those.has_lease)
            await asyncio.to_thread(lost.start)
            for server in zookeeper.servers:
                if server.is_running:
                    await asyncio.to_thread(server.kill)
            await asyncio.sleep(SESSION_MS / 1000 + LEASE_S + 1)
            assert not those.has_lease(), "nobody is granted a lease by one who cannot be sure to lead"
            assert those.epochs == {epoch}, "and nobody is elected"
            for server in zookeeper.servers:
                await asyncio.to_thread(server.start)
            back_s = time.monotonic()
            await until(those.has_lease)
            print("a lease again after ZooKeeper is back, s:", round(time.monotonic() - back_s, 2))
            await asyncio.sleep(LEASE_S + 0.5)
            assert (those.epochs, those.master) == ({epoch}, master)

    asyncio.run(go())
