"""What is particular to ZooKeeper: reaching it, the timeout it grants, and entries that other tools can read."""

import asyncio
import logging
import socket
import time
from typing import Any

import pytest
from kazoo.client import KazooClient

from penstock.coordinator.metadata import SessionState, metadata_store
from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.errors import MetadataError, MetadataUnavailableError
from penstock.testing.zookeeper import ZooKeeperEnsemble
from tests.waiting import until

pytestmark = pytest.mark.java


@pytest.mark.fault("F11")
@pytest.mark.seed("S0-6")
def test_a_zookeeper_that_cannot_be_reached_is_named() -> None:
    async def whole(address: str) -> None:
        store = ZooKeeperMetadata(ZooKeeperOptions(address, connect_timeout_ms=300))
        started = time.monotonic()
        with pytest.raises(MetadataUnavailableError, match=address) as error:
            await store.start()
        assert time.monotonic() - started < 30
        assert error.value.hint
        assert store.state is SessionState.LOST
        await store.stop()

    # Bound and not listened at: nothing else gets the port, and connections are refused.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        asyncio.run(whole(f"127.0.0.1:{closed.getsockname()[1]}"))


@pytest.mark.fault("F11")
def test_a_server_that_accepts_and_never_answers_is_no_zookeeper() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        async def whole() -> None:
            store = ZooKeeperMetadata(
                ZooKeeperOptions(address, session_timeout_ms=500, connect_timeout_ms=500)
            )
            with pytest.raises(MetadataUnavailableError, match=address):
                await store.start()

        asyncio.run(whole())


def test_the_granted_timeout_counts_not_the_one_asked_for(
    zookeeper: ZooKeeperEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    async def asked(timeout_ms: int) -> int:
        store = ZooKeeperMetadata(ZooKeeperOptions(zookeeper.hosts, session_timeout_ms=timeout_ms))
        await store.start()
        granted_ms = store.granted_timeout_ms
        # With a beat that a busy machine answers soon.
        await until(lambda: granted_ms / 3 < store.surely_until_ms - store.clock_ms)
        assert store.surely_until_ms - store.clock_ms <= granted_ms * 2 / 3
        await store.stop()
        return granted_ms

    # These servers have a tick of 500 ms, and grant two of them to a minute.
    assert asyncio.run(asked(6_000)) == 6_000
    assert "grants" not in caplog.text
    assert asyncio.run(asked(600_000)) == 60_000
    assert "grants a session timeout of 60000 ms instead of 600000 ms" in caplog.text
    assert asyncio.run(asked(100)) == 1_000


@pytest.mark.seed("S0-24")
def test_entries_are_plain_ones_below_the_root(zookeeper: ZooKeeperEnsemble) -> None:
    other = KazooClient(hosts=zookeeper.hosts)
    other.start()

    async def life() -> None:
        store = metadata_store(f"zookeeper:{zookeeper.hosts}/deep/root")
        await store.start()
        calls: list[str] = []
        store.watch("/brokers", calls.append)
        await store.create("/brokers/a", b"value")
        assert other.get("/deep/root/brokers/a")[0] == b"value"
        await until(lambda: len(calls) > 1)
        calls.clear()
        other.create("/deep/root/brokers/b", b"from outside")
        await until(lambda: calls)
        assert await store.children("/brokers") == ("a", "b")
        assert store.address == f"zookeeper:{zookeeper.hosts}/deep/root"
        await store.stop()

    asyncio.run(life())
    other.stop()
    other.close()


def test_the_whole_tree_may_be_the_root(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        store = ZooKeeperMetadata(ZooKeeperOptions(zookeeper.hosts, root="/"))
        await store.start()
        calls: list[str] = []
        store.watch("/", calls.append)
        await until(lambda: calls)
        await store.create("/top-of-all", b"")
        await until(lambda: len(calls) > 1)
        names = await store.children("/")
        assert "top-of-all" in names
        # ZooKeeper's own entry is none of ours.
        assert "zookeeper" not in names
        await store.delete("/top-of-all")
        await store.stop()

    asyncio.run(life())


def test_an_entry_that_is_not_for_us_is_an_error_that_says_so(zookeeper: ZooKeeperEnsemble) -> None:
    from kazoo.security import make_digest_acl

    other = KazooClient(hosts=zookeeper.hosts)
    other.start()
    other.ensure_path("/guarded")
    other.create("/guarded/secret", b"", acl=[make_digest_acl("someone", "else", all=True)])

    async def life() -> None:
        store = metadata_store(f"zookeeper:{zookeeper.hosts}/guarded")
        await store.start()
        for call in (lambda: store.get("/secret"), lambda: store.set("/secret", b"")):
            with pytest.raises(MetadataError, match="ACL"):
                await call()
        await store.stop()

    asyncio.run(life())
    other.stop()
    other.close()


def test_watches_without_news_cost_no_requests(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        store = metadata_store(f"zookeeper:{zookeeper.hosts}", session_timeout_ms=10_000)
        await store.start()
        client: Any = store.session.client  # type: ignore[attr-defined]
        call = client._call
        sent: list[Any] = []

        def note(request: Any, *arguments: Any) -> Any:
            sent.append(request)
            return call(request, *arguments)

        client._call = note
        for number in range(20):
            store.watch(f"/w-{number}", lambda _path: None)
        await until(lambda: sum("/w-" in str(request) for request in sent) >= 20)
        await store.get("/after-the-watches-are-set")
        sent.clear()
        await until(lambda: len(sent) >= 2)
        # What is sent while all rests are beats, and they concern no watch.
        assert len({type(request) for request in sent}) == 1
        assert [request for request in sent if "/w-" in str(request)] == []
        await store.stop()

    asyncio.run(life())


def test_stopping_in_the_middle_of_operations_leaves_nobody_waiting(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        store = metadata_store(f"zookeeper:{zookeeper.hosts}/stopping")
        await store.start()
        await store.create("/a", b"")
        running = [asyncio.create_task(store.set("/a", b"")) for _ in range(30)]
        running += [asyncio.create_task(store.get("/a")) for _ in range(30)]  # type: ignore[arg-type]
        await asyncio.sleep(0.001)
        await store.stop()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*running, return_exceptions=True)
        assert all(not isinstance(one, BaseException) or isinstance(one, MetadataError) for one in outcomes)

    asyncio.run(life())


def test_stopping_is_never_swallowed(zookeeper: ZooKeeperEnsemble) -> None:
    """Python 3.11's wait_for returns, cancelled or not, if the answer is there: tasks of ours lived on like that."""

    async def life() -> None:
        for number in range(30):
            store = metadata_store(f"zookeeper:{zookeeper.hosts}/swallowed")
            await store.start()
            election = store.election("/lead", f"candidate-{number}")
            await election.start()
            await asyncio.sleep(number % 10 / 1000)
            async with asyncio.timeout(60):
                await election.stop()
                await store.stop()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(life())


def test_the_log_tells_of_changes_and_kazoo_is_quiet(
    zookeeper: ZooKeeperEnsemble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commands that were tested in this process have their logs on standard error alone.
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, "penstock")

    async def life() -> None:
        store = metadata_store(f"zookeeper:{zookeeper.hosts}")
        await store.start()
        await store.stop()

    asyncio.run(life())
    assert f"ZooKeeper at {zookeeper.hosts}: connected" in caplog.text
    # And not to its own, where it would warn twice a second while servers are away.
    assert {record.name.partition(".")[0] for record in caplog.records if record.levelno >= logging.INFO} == {
        "penstock"
    }
