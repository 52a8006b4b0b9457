"""Offsets in a metadata store: coalesced, kept until written, never undone by a late write; also in ZooKeeper."""

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest
from kazoo.client import KazooClient

from penstock.coordinator.metadata import Entry, SessionState
from penstock.coordinator.offsets import (
    OffsetKey,
    OffsetStorage,
    OffsetStorageOptions,
    StoredOffset,
    broker_id_of,
    zookeeper_offset_storage,
)
from penstock.errors import CodecError, MetadataUnavailableError, MetadataUnknownError, OptionError
from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.unit.coordinator.virtual_time import run_virtually, virtual_runtime

BROKER = 2130706433
KEY = OffsetKey("tboy", "test", 0)
PATH = "/consumers-v3/tboy/offsets/test/2130706433-0"


class Counting(MemoryMetadata):
    """Counts the changes that are asked for."""

    changes = 0

    async def set(self, path: str, value: bytes, version: int | None = None) -> Entry:
        self.changes += 1
        return await super().set(path, value, version)

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Entry:
        self.changes += 1
        return await super().create(path, value, ephemeral=ephemeral)


Life = Callable[[OffsetStorage, Counting, MemoryMetadata], Awaitable[None]]


def run(life: Life, latency: Callable[[], float] | None = None, **options: int) -> None:
    """The storage, its own store, and one of somebody else, in virtual time."""
    runtime, clock = virtual_runtime()
    ensemble = MemoryEnsemble(runtime, latency=latency)

    async def whole() -> None:
        store, other = Counting(ensemble), ensemble.client()
        await other.start()
        storage = OffsetStorage(store, BROKER, OffsetStorageOptions(**options))
        await storage.start()
        await life(storage, store, other)
        await storage.stop()
        await other.stop()

    run_virtually(whole(), clock)


async def value_of(store: MemoryMetadata, path: str = PATH) -> bytes | None:
    entry = await store.get(path)
    return None if entry is None else entry.value


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.seed("S0-9", "S0-13")
def test_commits_are_written_together_every_five_seconds() -> None:
    async def life(storage: OffsetStorage, store: Counting, other: MemoryMetadata) -> None:
        for offset in range(1000):
            storage.commit(KEY, offset, message_id=offset + 1)
            storage.commit(KEY._replace(partition=1), offset)
        assert storage.changed_count == 2
        await asyncio.sleep(4.9)
        assert await value_of(other) is None
        await asyncio.sleep(0.2)
        assert await value_of(other) == b"1000-999"
        assert await value_of(other, PATH[:-1] + "1") == b"0-999"
        assert store.changes == 2
        assert storage.changed_count == 0
        # What has not changed is not written.
        await asyncio.sleep(60)
        assert store.changes == 2
        storage.commit(KEY, 1000)
        await asyncio.sleep(5)
        assert store.changes == 3
        assert await value_of(other) == b"0-1000"

    run(life)


@pytest.mark.fault("F11")
def test_the_mark_is_kept_when_the_write_fails() -> None:
    async def life(storage: OffsetStorage, store: Counting, other: MemoryMetadata) -> None:
        storage.commit(KEY, 1)
        await storage.flush()
        store.cut()
        storage.commit(KEY, 2)
        await asyncio.sleep(30)
        assert await value_of(other) == b"0-1"
        assert storage.changed_count == 1
        with pytest.raises(MetadataUnavailableError):
            await storage.flush()
        store.heal()
        await asyncio.sleep(15)
        assert await value_of(other) == b"0-2"
        assert storage.changed_count == 0

    run(life)


def test_a_commit_during_the_write_is_still_to_be_written() -> None:
    async def life(storage: OffsetStorage, _store: Counting, other: MemoryMetadata) -> None:
        storage.commit(KEY, 1)
        flush = asyncio.create_task(storage.flush())
        await asyncio.sleep(0.15)
        storage.commit(KEY, 2)
        await flush
        assert await value_of(other) == b"0-1"
        assert storage.changed_count == 1
        assert await storage.flush() == 1
        assert await value_of(other) == b"0-2"

    run(life, latency=lambda: 0.1)


@pytest.mark.fault("F3")
def test_a_write_whose_answer_was_lost_is_made_again() -> None:
    async def life(storage: OffsetStorage, store: Counting, other: MemoryMetadata) -> None:
        for number, cut_after_s in enumerate((0.05, 0.15, 0.25, 0.35)):
            storage.commit(KEY, number)
            flush = asyncio.create_task(storage.flush())
            await asyncio.sleep(cut_after_s)
            store.cut()
            await asyncio.sleep(0.5)
            store.heal()
            outcome = (await asyncio.gather(flush, return_exceptions=True))[0]
            if isinstance(outcome, MetadataUnknownError):
                assert storage.changed_count == 1
                await storage.flush()
            assert await value_of(other) == b"0-%d" % number

    run(life, latency=lambda: 0.1)


def test_a_late_write_cannot_undo_a_later_one() -> None:
    """A write that hangs in a buffer names the version it replaces, which is gone when it arrives."""

    async def life(storage: OffsetStorage, store: Counting, other: MemoryMetadata) -> None:
        asked: list[tuple[str, bytes, int | None]] = []
        real_set = store.set

        async def remembering(path: str, value: bytes, version: int | None = None) -> Entry:
            asked.append((path, value, version))
            return await real_set(path, value, version)

        store.set = remembering  # type: ignore[method-assign]
        for offset in range(5):
            storage.commit(KEY, offset)
            await storage.flush()
        assert [version for _, _, version in asked] == [0, 1, 2, 3]
        for late in asked:
            with pytest.raises(Exception, match="version"):
                await other.set(*late)
        assert await value_of(other) == b"0-4"

    run(life)


def test_an_entry_that_others_changed_or_deleted_is_written_all_the_same() -> None:
    async def life(storage: OffsetStorage, _store: Counting, other: MemoryMetadata) -> None:
        await other.create(PATH, b"5-50")
        storage.commit(KEY, 60)
        await storage.flush()
        await other.set(PATH, b"1-1")
        storage.commit(KEY, 61)
        await storage.flush()
        assert await value_of(other) == b"0-61"
        await other.delete(PATH)
        storage.commit(KEY, 62)
        await storage.flush()
        assert await value_of(other) == b"0-62"

    run(life)


def test_stopping_writes_what_is_left_with_patience(caplog: pytest.LogCaptureFixture) -> None:
    runtime, clock = virtual_runtime()
    ensemble = MemoryEnsemble(runtime, operation_timeout_ms=1000)

    async def whole() -> None:
        other = ensemble.client()
        await other.start()
        for is_back in (True, False):
            store = ensemble.client()
            storage = OffsetStorage(store, BROKER, OffsetStorageOptions(retry_wait_ms=1000, stop_tries=10))
            await storage.start()
            storage.commit(KEY, 10 if is_back else 20)
            store.cut()
            stop = asyncio.create_task(storage.stop())
            await asyncio.sleep(5)
            assert not stop.done()
            if is_back:
                store.heal()
            began = clock.now_s
            await stop
            assert clock.now_s - began < 20
            assert await value_of(other) == b"0-10"
        await other.stop()

    run_virtually(whole(), clock)
    assert "1 changed offsets were not written" in caplog.text


def test_load_and_query_answer_none_for_what_is_missing_or_unreadable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def life(storage: OffsetStorage, _store: Counting, other: MemoryMetadata) -> None:
        assert await storage.load(KEY) is None
        await other.create(PATH, b"4711-100")
        await other.create(PATH[:-1] + "1", b"rubbish")
        await other.create(PATH[:-1] + "x", b"1-1")
        await other.create("/consumers-v3/tboy/offsets/test/99-0", b"1-1")
        assert await storage.load(KEY) == StoredOffset(100, 4711)
        with pytest.raises(CodecError, match="rubbish"):
            await storage.load(KEY._replace(partition=1))
        keys = [KEY._replace(partition=number) for number in range(3)]
        assert await storage.query(keys) == {keys[0]: StoredOffset(100, 4711), keys[1]: None, keys[2]: None}
        assert await storage.load_all() == {KEY: StoredOffset(100, 4711)}

    run(life)
    assert "rubbish" in caplog.text


def test_topics_are_those_with_an_offset_of_this_broker() -> None:
    async def life(storage: OffsetStorage, _store: Counting, other: MemoryMetadata) -> None:
        for path in (
            "g1/offsets/a/2130706433-0",
            "g1/offsets/b/99-0",
            "g2/offsets/c/99-0",
            "g3/offsets/a/2130706433-7",
        ):
            await other.create(f"/consumers-v3/{path}", b"0-1")
        assert await storage.topics() == {"g1": ("a",), "g3": ("a",)}
        assert await storage.topics(["g1", "g2", "none"]) == {"g1": ("a",)}
        assert await storage.load_all(["g3"]) == {OffsetKey("g3", "a", 7): StoredOffset(1)}

    run(life)


def test_deleting_goes_from_the_bottom_up_and_spares_others() -> None:
    async def life(storage: OffsetStorage, _store: Counting, other: MemoryMetadata) -> None:
        for topic in ("a", "b"):
            for partition in (0, 1):
                storage.commit(OffsetKey("g", topic, partition), 1)
        storage.commit(OffsetKey("h", "a", 0), 1)
        await storage.flush()
        await other.create("/consumers-v3/h/offsets/a/99-0", b"0-1")
        # A commit that was not written yet must not bring it back.
        storage.commit(OffsetKey("g", "a", 0), 2)
        assert await storage.delete("g", {"a": [0, 5]}) == 1
        await storage.flush()
        assert await other.children("/consumers-v3/g/offsets/a") == ("2130706433-1",)
        assert await storage.delete("g", {"a": None}) == 1
        assert await other.children("/consumers-v3/g/offsets") == ("b",)
        storage.commit(OffsetKey("g", "c", 0), 2)
        assert await storage.delete("g") == 2
        await storage.flush()
        assert await other.children("/consumers-v3") == ("h",)
        assert await storage.delete("h") == 1
        assert await other.children("/consumers-v3/h/offsets/a") == ("99-0",)
        assert await storage.delete("h") == await storage.delete("none") == 0
        storage.commit(OffsetKey("g", "a", 0), 3)
        await storage.flush()
        assert await storage.load(OffsetKey("g", "a", 0)) == StoredOffset(3)

    run(life)


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
def test_what_tubemq_cannot_hold_is_refused_at_once() -> None:
    async def life(storage: OffsetStorage, _store: Counting, _other: MemoryMetadata) -> None:
        for key, offset, message_id in ((KEY, -1, 0), (KEY, 0, -1), (KEY._replace(group="a/b"), 0, 0)):
            with pytest.raises(CodecError):
                storage.commit(key, offset, message_id)
        assert storage.changed_count == 0

    run(life)
    with pytest.raises(OptionError):
        OffsetStorage(MemoryEnsemble().client(), -1)
    with pytest.raises(OptionError):
        OffsetStorage(MemoryEnsemble().client(), 2**32)


@pytest.mark.fault("F3", "F11")
@pytest.mark.parametrize("seed", range(10))
def test_in_a_storm_stored_offsets_never_go_back_and_end_right(seed: int) -> None:
    choice = random.Random(seed)
    keys = [OffsetKey(f"g{group}", "t", partition) for group in range(3) for partition in range(4)]

    async def life(storage: OffsetStorage, store: Counting, other: MemoryMetadata) -> None:
        highest = dict.fromkeys(keys, 0)
        seen = dict.fromkeys(keys, 0)
        observer = OffsetStorage(other, BROKER)
        for _ in range(200):
            key = choice.choice(keys)
            highest[key] += choice.randrange(1, 10)
            storage.commit(key, highest[key])
            await asyncio.sleep(choice.uniform(0, 1))
            match choice.randrange(12):
                case 0:
                    store.cut(silently=choice.random() < 0.5)
                case 1 | 2:
                    store.heal()
                case 3 if store.is_linked:
                    store.expire()
            for key, stored in (await observer.query(keys)).items():
                offset = 0 if stored is None else stored.offset
                assert seen[key] <= offset <= highest[key]
                seen[key] = offset
        store.heal()
        assert store.state is SessionState.CONNECTED
        await storage.flush()
        assert {key: stored.offset for key, stored in (await observer.load_all()).items()} == {
            key: offset for key, offset in highest.items() if offset
        }

    run(life, latency=lambda: choice.uniform(0, 0.2))


# -- a real ZooKeeper --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper")) as servers:
        yield servers


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.java
@pytest.mark.seed("S0-1", "S0-2", "S0-3", "S0-4", "S0-5", "S0-8", "S0-9", "S0-10", "S0-11", "S0-12", "S0-13")
def test_what_lies_in_zookeeper_is_what_tubemq_puts_there(
    zookeeper: ZooKeeperEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    options = OffsetStorageOptions(hosts=zookeeper.hosts, root="tubemq/")
    tube = KazooClient(hosts=zookeeper.hosts)
    tube.start()

    async def life() -> None:
        storage = zookeeper_offset_storage(options, broker_id_of("127.0.0.1:10911"))
        assert storage.options is options
        await storage.start()
        storage.commit(OffsetKey("tboy", "test", 0), 100, message_id=4711)
        await storage.flush()
        value, stat = tube.get("/tubemq/consumers-v3/tboy/offsets/test/2130706433-0")
        assert value == b"4711-100"
        assert stat.ephemeralOwner == 0
        # And what TubeMQ writes, we read.
        tube.create("/tubemq/consumers-v3/tboy/offsets/test/2130706433-10000", b"8-2800")
        assert await storage.load_all() == {
            OffsetKey("tboy", "test", 0): StoredOffset(100, 4711),
            OffsetKey("tboy", "test", 10000): StoredOffset(2800, 8),
        }
        assert await storage.delete("tboy") == 2
        assert tube.exists("/tubemq/consumers-v3/tboy") is None
        assert tube.exists("/tubemq/consumers-v3") is not None
        await storage.stop()

    asyncio.run(life())
    tube.stop()
    tube.close()
    assert f"offset storage at zookeeper:{zookeeper.hosts}/tubemq is initiated" in caplog.text


@pytest.mark.java
def test_a_thousand_offsets_are_written_side_by_side(zookeeper: ZooKeeperEnsemble) -> None:
    async def life() -> None:
        storage = zookeeper_offset_storage(OffsetStorageOptions(hosts=zookeeper.hosts, root="/many"), BROKER)
        await storage.start()
        keys = [OffsetKey("g", f"t{topic}", partition) for topic in range(20) for partition in range(50)]
        for offset in (1, 2):
            for key in keys:
                storage.commit(key, offset)
            await storage.flush()
            assert storage.changed_count == 0
        assert await storage.load_all() == dict.fromkeys(keys, StoredOffset(2))
        await storage.stop()

    asyncio.run(life())


@pytest.mark.seed("S0-6")
def test_a_zookeeper_that_cannot_be_reached_is_logged_with_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def life() -> None:
        storage = zookeeper_offset_storage(
            OffsetStorageOptions(hosts=address, connect_timeout_ms=300), BROKER
        )
        with pytest.raises(MetadataUnavailableError, match=address):
            await storage.start()
        await storage.stop()

    # Bound and not listened at: nothing else gets the port, and connections are refused.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        asyncio.run(life())
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert address in record.getMessage()
