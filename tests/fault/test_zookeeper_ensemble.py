"""Three real ZooKeeper servers: the leader killed or stopped, the majority lost, a server that hangs."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.coordinator.metadata import SessionState
from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.errors import MetadataError, MetadataUnavailableError, MetadataUnknownError
from penstock.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, why_unavailable, zookeeper_servers
from tests.fault.zookeeper_candidates import delete_everything
from tests.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]
TICK_MS = 200
# The longest that servers with such ticks grant: elections on a busy machine must not outlast it.
SESSION_MS = 4000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper"), count=3, tick_ms=TICK_MS) as found:
        yield found


@pytest.fixture
def ensemble(servers: ZooKeeperEnsemble) -> ZooKeeperEnsemble:
    """All of them serve and have no entries, whatever the test before did."""
    servers.start()
    delete_everything(servers.hosts)
    return servers


async def opened(hosts: str, **options: Any) -> ZooKeeperMetadata:
    store = ZooKeeperMetadata(ZooKeeperOptions(hosts, session_timeout_ms=SESSION_MS, **options))
    await store.start()
    return store


def serving(ensemble: ZooKeeperEnsemble, store: ZooKeeperMetadata) -> ZooKeeperServer:
    """The server that the store is connected to."""
    port = store.session.client._connection._socket.getpeername()[1]
    return next(server for server in ensemble.servers if server.port == port)


async def opened_at(ensemble: ZooKeeperEnsemble, server: ZooKeeperServer) -> ZooKeeperMetadata:
    """Knows all servers, and is connected to this one; which one it is, chance decides."""
    for _ in range(50):
        store = await opened(ensemble.hosts)
        if serving(ensemble, store) is server:
            return store
        await store.stop()
    raise AssertionError("never the one that was wanted")


async def written(store: ZooKeeperMetadata, path: str) -> float:
    """Seconds until a change is accepted, asked for again and again."""
    started = time.monotonic()
    while True:
        try:
            await store.set(path, b"%d" % store.clock_ms)
            return time.monotonic() - started
        except (MetadataUnavailableError, MetadataUnknownError):
            if time.monotonic() - started > 60:
                raise


@pytest.mark.fault("F1", "F11")
def test_a_killed_leader_costs_a_moment_and_no_session(ensemble: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        # One that is connected to the leader, one that is not.
        leader = await asyncio.to_thread(ensemble.leader)
        follower = (await asyncio.to_thread(ensemble.followers))[0]
        direct = await opened_at(ensemble, leader)
        through = await opened(follower.address)
        states: list[SessionState] = []
        direct.on_state(states.append)
        through.on_state(states.append)
        await direct.create("/direct", b"", ephemeral=True)
        await through.create("/through", b"", ephemeral=True)
        sessions = [direct.client_id, through.client_id]
        calls: list[str] = []
        direct.watch("/through", calls.append)
        await until(lambda: calls)
        await asyncio.to_thread(leader.kill)
        took = max(await asyncio.gather(written(direct, "/direct"), written(through, "/through")))
        print(f"first change after the leader was killed: {took:.2f} s")
        assert SessionState.LOST not in states
        assert [direct.client_id, through.client_id] == sessions
        entry = await direct.get("/direct")
        assert entry is not None
        assert entry.is_ephemeral
        calls.clear()
        await through.set("/through", b"told")
        await until(lambda: calls)
        await until(lambda: min(direct.surely_until_ms, through.surely_until_ms) > direct.clock_ms)
        await asyncio.to_thread(ensemble.start)
        await written(direct, "/direct")
        await direct.stop()
        assert await through.get("/direct") is None
        await through.stop()

    asyncio.run(life())


@pytest.mark.fault("F11")
@pytest.mark.invariant("I6")
def test_without_a_majority_nothing_changes_and_nobody_leads(ensemble: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        store = await opened(ensemble.hosts, operation_timeout_ms=1500)
        other = await opened(ensemble.hosts, operation_timeout_ms=1500)
        await store.create("/value", b"before")
        elections = [store.election("/lead", "a"), other.election("/lead", "b")]
        for election in elections:
            await election.start()
        await until(lambda: any(election.is_leader for election in elections))
        await until(lambda: all(election.leader for election in elections))
        led = [election.leader for election in elections]
        lost = ensemble.servers[:2]
        for server in lost:
            await asyncio.to_thread(server.kill)
        await until(lambda: not any(election.is_leader for election in elections))
        with pytest.raises(MetadataError):
            await store.set("/value", b"during")
        started = time.monotonic()
        while time.monotonic() - started < 2:
            assert not any(election.is_leader for election in elections)
            await asyncio.sleep(0.02)
        with pytest.raises(MetadataUnavailableError, match=ensemble.servers[2].address):
            await opened(ensemble.servers[2].address, connect_timeout_ms=1000)
        await asyncio.to_thread(ensemble.start)
        await until(lambda: any(election.is_leader for election in elections))
        # Nobody's session ended while nobody could count it: the same one leads, with the same term.
        await until(lambda: [election.leader for election in elections] == led)
        assert {election.term for election in elections} == {1}
        await written(store, "/value")
        for election in elections:
            await election.stop()
        await store.stop()
        await other.stop()

    asyncio.run(life())


@pytest.mark.fault("F2", "F11")
@pytest.mark.invariant("I6")
def test_reads_of_a_follower_that_lost_its_leader_make_nobody_sure(ensemble: ZooKeeperEnsemble) -> None:
    """The trap that `certainty` is about: the leader hangs, its follower goes on answering reads for a while."""

    async def life() -> None:
        leader = await asyncio.to_thread(ensemble.leader)
        follower = (await asyncio.to_thread(ensemble.followers))[0]
        store = await opened(follower.address)
        await store.create("/value", b"")
        await asyncio.sleep(0.1)
        leader.pause()
        try:
            paused_ms = store.clock_ms
            answered = 0
            for _ in range(20):
                try:
                    async with asyncio.timeout(0.2):
                        await store.get("/value")
                    answered += 1
                except TimeoutError:
                    if answered:
                        break
                await asyncio.sleep(0.01)
            assert answered > 0
            # Nothing that was answered since then moved it.
            assert store.surely_until_ms <= paused_ms + SESSION_MS * 2 / 3
            sure_ms = store.surely_until_ms
            await asyncio.sleep(0.5)
            assert (
                store.surely_until_ms == sure_ms or (await asyncio.to_thread(ensemble.leader)) is not leader
            )
        finally:
            leader.resume()
        await written(store, "/value")
        await store.stop()

    asyncio.run(life())


@pytest.mark.fault("F2", "F11")
def test_a_server_that_hangs_is_left_while_the_session_lives(ensemble: ZooKeeperEnsemble) -> None:
    """Even under a stream of requests, which keeps kazoo itself from noticing."""

    async def life() -> None:
        store = await opened(ensemble.hosts)
        await store.create("/mine", b"", ephemeral=True)
        session = store.client_id
        states: list[SessionState] = []
        store.on_state(states.append)
        hung = serving(ensemble, store)
        is_over = False

        async def requests() -> None:
            while not is_over:
                try:
                    async with asyncio.timeout(0.1):
                        await store.get("/mine")
                except (TimeoutError, MetadataError):
                    pass
                await asyncio.sleep(0.02)

        stream = asyncio.create_task(requests())
        await asyncio.sleep(0.5)
        hung.pause()
        try:
            started = time.monotonic()
            await until(lambda: states[-1:] == [SessionState.CONNECTED])
            await written(store, "/mine")
            took = time.monotonic() - started
            print(f"a hanging server was left, and a change made elsewhere, after {took:.2f} s")
            assert serving(ensemble, store) is not hung
            # If it hung as the leader, the others had to elect one first; either way the session went on.
            assert states.count(SessionState.LOST) == 0
            assert store.client_id == session
        finally:
            hung.resume()
            is_over = True
        await stream
        await store.stop()

    asyncio.run(life())
