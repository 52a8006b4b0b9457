"""Candidates that are killed or stopped for longer than their session, and servers that stop or forget, with one real
ZooKeeper server."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from penstock.coordinator.metadata import SessionState
from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.errors import MetadataError, MetadataUnavailableError, MetadataUnknownError
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.fault.zookeeper_candidates import Candidate, check_one_at_a_time, delete_everything
from tests.waiting import until, wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
TICK_MS = 200
SESSION_MS = 2000
# One that outlives short stops, also where a busy machine makes them longer.
LONG_SESSION_MS = 12_000
# Longer than a server takes to start on a busy machine.
SURVIVING_SESSION_MS = 60_000
STOP_S = 0.5
# How long an operation waits that is to fail, and one that is to outlast the start of a server.
BRIEF_MS, PATIENT_MS = 4_000, 60_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS) as found:
        yield found


@pytest.fixture
def zookeeper(servers: ZooKeeperEnsemble) -> ZooKeeperEnsemble:
    """All of them serve and have no entries, whatever the test before did."""
    servers.start()
    delete_everything(servers.hosts)
    return servers


@asynccontextmanager
async def opened(
    zookeeper: ZooKeeperEnsemble, operation_timeout_ms: int = BRIEF_MS, session_timeout_ms: int = SESSION_MS
) -> AsyncIterator[ZooKeeperMetadata]:
    """Stopped also after a failure: its threads draw random numbers, which fails later tests of the process."""
    options = ZooKeeperOptions(
        zookeeper.hosts, session_timeout_ms=session_timeout_ms, operation_timeout_ms=operation_timeout_ms
    )
    store = ZooKeeperMetadata(options)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


def roles(first: Candidate, second: Candidate) -> tuple[Candidate, Candidate]:
    """The one that leads, and the other. A busy machine may have ended a session, and a lead with it, before."""
    wait_until(lambda: first.leads != second.leads, "one that leads")
    return (first, second) if first.leads else (second, first)


async def until_connected(states: list[SessionState]) -> None:
    await until(lambda: states[-1:] == [SessionState.CONNECTED])


@pytest.mark.fault("F1")
@pytest.mark.invariant("I6")
def test_a_killed_leader_is_replaced_when_its_session_is_over(zookeeper: ZooKeeperEnsemble) -> None:
    address = f"zookeeper:{zookeeper.hosts}"
    with Candidate(address, "first", SESSION_MS) as first:
        first.wait_leading()
        with Candidate(address, "second", SESSION_MS) as second:
            second.wait_more(10)
            leader, other = roles(first, second)
            leader.kill()
            taken = other.wait_leading()
            assert taken.term > max(belief.term for belief in leader.beliefs if belief.leads)
            # Never before the moment up to which the dead one was sure of its session.
            check_one_at_a_time(first, second)


@pytest.mark.fault("F2", "F12")
@pytest.mark.invariant("I6")
def test_a_leader_that_was_stopped_too_long_knows_it_with_its_first_breath(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    address = f"zookeeper:{zookeeper.hosts}"
    with Candidate(address, "first", SESSION_MS) as first:
        first.wait_leading()
        with Candidate(address, "second", SESSION_MS) as second:
            second.wait_more(10)
            stopped, other = roles(first, second)
            stopped.pause()
            taken = other.wait_leading()
            term = max(belief.term for belief in stopped.beliefs if belief.leads)
            assert taken.term > term
            stopped.resume()
            stopped.wait_more(50)
            # What it said before it was stopped may still have been in the pipe; of what follows, nothing leads.
            after = [belief for belief in stopped.beliefs if belief.at_ms > taken.at_ms]
            assert after
            assert not any(belief.leads and belief.term <= taken.term for belief in after)
            other.kill()
            assert stopped.wait_leading().term > taken.term
            terms = [term for _, _, term in check_one_at_a_time(first, second)]
            assert terms == sorted(set(terms))


@pytest.mark.fault("F2")
@pytest.mark.invariant("I6")
def test_a_leader_that_is_stopped_for_a_moment_leads_on(zookeeper: ZooKeeperEnsemble) -> None:
    address = f"zookeeper:{zookeeper.hosts}"
    with Candidate(address, "first", LONG_SESSION_MS) as first:
        first.wait_leading()
        with Candidate(address, "second", LONG_SESSION_MS) as second:
            second.wait_more(10)
            for _ in range(3):
                first.pause()
                time.sleep(STOP_S)
                first.resume()
                first.wait_more(30)
            assert first.leads
            assert {term for _, _, term in check_one_at_a_time(first, second)} == {1}


@pytest.mark.fault("F11")
@pytest.mark.invariant("I6")
def test_while_zookeeper_is_stopped_nobody_leads_and_nothing_is_claimed(zookeeper: ZooKeeperEnsemble) -> None:
    """Also from the server's own pause: its clients must not believe in a session that it cannot confirm."""

    async def life() -> None:
        async with opened(zookeeper) as store:
            election = store.election("/lead", "a")
            await election.start()
            states: list[SessionState] = []
            store.on_state(states.append)
            await until(lambda: election.is_leader)
            server = zookeeper.servers[0]
            server.pause()
            try:
                led_ms = paused_ms = store.clock_ms
                while True:
                    at_ms = store.clock_ms
                    if not election.is_leader:
                        break
                    led_ms = at_ms
                    await asyncio.sleep(0.005)
                assert led_ms - paused_ms <= SESSION_MS
                with pytest.raises((MetadataUnavailableError, MetadataUnknownError)):
                    await store.set("/lead/term", b"99")
            finally:
                server.resume()
            await until_connected(states)
            await until(lambda: election.is_leader)
            await election.stop()

    asyncio.run(life())


@pytest.mark.fault("F11")
def test_a_server_that_comes_back_has_kept_session_and_entries(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        async with opened(zookeeper, PATIENT_MS, SURVIVING_SESSION_MS) as store:
            await store.create("/mine", b"", ephemeral=True)
            await store.create("/lasting", b"1")
            calls: list[str] = []
            store.watch("/lasting", calls.append)
            states: list[SessionState] = []
            store.on_state(states.append)
            zookeeper.servers[0].kill()
            await until(lambda: states == [SessionState.SUSPENDED])
            await asyncio.to_thread(zookeeper.start)
            await until_connected(states)
            # However long the server was away: it counts the session anew.
            assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert await store.get("/mine") is not None
            calls.clear()
            await store.set("/lasting", b"2")
            await until(lambda: calls)

    asyncio.run(life())


@pytest.mark.fault("F11")
@pytest.mark.invariant("I6")
def test_a_server_that_has_forgotten_everything_serves_nobody_who_remembers(
    zookeeper: ZooKeeperEnsemble,
) -> None:
    """ZooKeeper's own rule, and a good one: who has seen more than the server knows is not let in, so nobody leads on
    the strength of lost data. A process that starts anew begins with what there is."""

    def forget() -> None:
        zookeeper.servers[0].kill()
        [data] = zookeeper.servers[0].folder.rglob("version-2")
        shutil.rmtree(data)
        zookeeper.start()

    async def life() -> None:
        async with opened(zookeeper) as store:
            election = store.election("/lead", "a")
            await election.start()
            await until(lambda: election.is_leader)
            for number in range(50):
                await store.create(f"/seen-{number}", b"")
            await asyncio.to_thread(forget)
            await until(lambda: not election.is_leader)
            with pytest.raises(MetadataUnavailableError, match=zookeeper.hosts):
                await store.create("/more", b"")
            assert store.state is SessionState.SUSPENDED
            await election.stop()
        async with opened(zookeeper) as store:
            assert await store.children("/") == ()

    asyncio.run(life())


@pytest.mark.fault("F11")
def test_a_short_absence_is_waited_out_and_a_long_one_is_an_error(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        async with opened(zookeeper, PATIENT_MS) as store:
            await store.create("/a", b"1")
            zookeeper.servers[0].kill()
            reading = asyncio.create_task(store.get("/a"))
            await until(lambda: store.state is SessionState.SUSPENDED)
            assert not reading.done()
            await asyncio.to_thread(zookeeper.start)
            entry = await reading
            assert entry is not None
            assert entry.value == b"1"
        async with opened(zookeeper) as store:
            zookeeper.servers[0].kill()
            with pytest.raises(MetadataError) as error:
                await store.get("/a")
            assert isinstance(error.value, MetadataUnavailableError)
            assert zookeeper.hosts in error.value.message

    asyncio.run(life())
