"""A broker that keeps offsets in a real ZooKeeper too: TubeMQ's entries, and groups that go on without a disk."""

import asyncio
import functools
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from penstock.coordinator.offsets import OffsetStorage, OffsetStorageOptions, broker_id_of_set
from penstock.errors import MetadataUnavailableError
from penstock.protocol.codes import RequestCode
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.support.running_broker import Bench, Client, run, running
from tests.waiting import until

pytestmark = pytest.mark.java
NUMBER = broker_id_of_set("DefaultCluster", "broker-a")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path_factory.mktemp("zookeeper")) as servers:
        yield servers


@pytest.fixture
def entries(zookeeper: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    """Somebody who looks into ZooKeeper, where nothing is at first."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    client.delete("/tubemq", recursive=True) if client.exists("/tubemq") else None
    yield client
    client.stop()
    client.close()


def entry(group: str, topic: str, queue: int) -> str:
    return f"/tubemq/consumers-v3/{group}/offsets/{topic}/{NUMBER}-{queue}"


def text_at(entries: KazooClient, path: str) -> str | None:
    try:
        return entries.get(path)[0].decode()
    except NoNodeError:
        return None


async def commit(client: Client, offset: int, queue: int = 0) -> None:
    fields = {"consumerGroup": "consumers", "topic": "T", "queueId": str(queue), "commitOffset": str(offset)}
    assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


def no_ordinary_writing(bench: Bench) -> OffsetStorage:
    """From now on only what must not wait is written, so nothing else can have written it."""
    assert bench.broker.zookeeper is not None
    storage = bench.broker.zookeeper.storage
    assert storage._writer is not None
    storage._writer.cancel()
    return storage


async def offset_of(client: Client, queue: int = 0) -> int:
    """-1 where the broker knows of none."""
    fields = {"consumerGroup": "consumers", "topic": "T", "queueId": str(queue), "setZeroIfNotFound": "false"}
    answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.fields["offset"]) if answer.code == 0 else -1


async def joined(bench: Bench, messages: int = 0) -> Client:
    """A consumer of a topic with so many messages in its queue 0."""
    for _ in range(max(messages, 1)):
        await bench.client.send()
    assert (await bench.client.heartbeat()).code == 0
    return bench.client


def test_the_number_is_the_sets_and_not_the_members() -> None:
    assert NUMBER == 1947000463, "as in docs/coordinator/metadata.md; another one would lose all offsets"
    others = {broker_id_of_set("DefaultCluster", f"set-{number}") for number in range(1_000)}
    assert len(others) == 1_000
    assert broker_id_of_set("other", "broker-a") != NUMBER


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.fault("F1")
@pytest.mark.seed("S0-4", "S0-9", "S0-10", "S0-11", "S0-13")
def test_a_killed_broker_without_its_disk(
    zookeeper: ZooKeeperEnsemble, entries: KazooClient, tmp_path: Path
) -> None:
    """Committed through a broker, which is killed; another one, with an empty directory, begins a new log, and the
    group is given all of it."""
    command = [
        sys.executable,
        "-m",
        "tests.unit.broker.killed_broker",
        str(tmp_path / "lost"),
        zookeeper.hosts,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()

            async def life() -> None:
                client = Client(address)
                await client.send()
                await client.heartbeat()
                for number in (3, 4, 28):
                    await commit(client, number)
                await commit(client, 7, queue=1)
                await until(lambda: text_at(entries, entry("consumers", "T", 1)) is not None)
                await client.close()

            run(life)
        finally:
            process.kill()
    assert text_at(entries, entry("consumers", "T", 0)) == "0-28"
    assert text_at(entries, entry("consumers", "T", 1)) == "0-7"
    # Of three commits between two writings, one was written.
    assert entries.get(entry("consumers", "T", 0))[1].version == 0

    async def another() -> None:
        async with running(tmp_path / "empty", zookeeper_offsets=zookeeper.hosts) as bench:
            client = await joined(bench, 3)
            assert [await offset_of(client, queue) for queue in (0, 1, 2)] == [0, 0, -1]
            answer = await client.pull(offset=0)
            assert int(answer.fields["nextBeginOffset"]) == 3
        assert (tmp_path / "empty/config/consumerOffset.json").exists()

    run(another)


def test_a_group_takes_the_rest_when_only_the_tables_are_lost(
    zookeeper: ZooKeeperEnsemble, entries: KazooClient, tmp_path: Path
) -> None:
    async def life() -> None:
        async with running(tmp_path, zookeeper_offsets=zookeeper.hosts) as bench:
            await commit(await joined(bench, 5), 3)
        # A clean stop writes.
        assert text_at(entries, entry("consumers", "T", 0)) == "0-3"
        for file in (tmp_path / "config").glob("consumerOffset*"):
            file.unlink()
        async with running(tmp_path, zookeeper_offsets=zookeeper.hosts) as bench:
            client = await joined(bench, 1)
            start = await offset_of(client)
            assert start == 3
            answer = await client.pull(offset=start)
            assert int(answer.fields["nextBeginOffset"]) == 6

    run(life)


def test_the_higher_offset_counts_and_the_other_place_catches_up(
    zookeeper: ZooKeeperEnsemble, entries: KazooClient, tmp_path: Path
) -> None:
    async def life() -> None:
        async with running(tmp_path) as bench:
            client = await joined(bench, 5)
            await commit(client, 3, queue=0)
            await commit(client, 10, queue=1)
            await commit(client, 10, queue=2)
        for queue, value in ((0, b"4711-5"), (1, b"4711-4")):
            entries.create(entry("consumers", "T", queue), value, makepath=True)
        async with running(tmp_path, zookeeper_offsets=zookeeper.hosts) as bench:
            assert [await offset_of(bench.client, queue) for queue in (0, 1, 2)] == [5, 10, 10]
        # The one that was as far here as there is left as TubeMQ wrote it.
        found = [text_at(entries, entry("consumers", "T", queue)) for queue in (0, 1, 2)]
        assert found == ["4711-5", "0-10", "0-10"]

    run(life)


def test_resets_and_deletions_do_not_wait(
    zookeeper: ZooKeeperEnsemble, entries: KazooClient, tmp_path: Path
) -> None:
    """Else a restart would find the old offset, and take it for a further one."""
    path = entry("consumers", "T", 0)
    other = f"/tubemq/consumers-v3/consumers/offsets/T/{NUMBER + 1}-0"

    async def life() -> None:
        async with running(tmp_path, zookeeper_offsets=zookeeper.hosts) as bench:
            no_ordinary_writing(bench)
            await commit(await joined(bench), 50)
            bench.broker.offsets.assign_reset("consumers", "T", 0, 5)
            await until(lambda: text_at(entries, path) == "0-5")
            entries.create(other, b"1-1")
            bench.broker.offsets.remove_group("consumers")
            await until(lambda: text_at(entries, path) is None)
            assert text_at(entries, other) == "1-1"
            # It may come again, and its offsets with it.
            await commit(bench.client, 2)
        assert text_at(entries, path) == "0-2"

    run(life)


def test_a_reset_during_the_writing_of_another_does_not_wait_either(
    zookeeper: ZooKeeperEnsemble, entries: KazooClient, tmp_path: Path
) -> None:
    """The writing that is under way has looked already at what has changed."""
    paths = [entry("consumers", "T", queue) for queue in (0, 1)]

    async def life() -> None:
        async with running(tmp_path, zookeeper_offsets=zookeeper.hosts) as bench:
            storage = no_ordinary_writing(bench)
            client = await joined(bench)
            for queue in (0, 1):
                await commit(client, 50, queue)
            held, write, is_writing = asyncio.Event(), storage._write, asyncio.Event()

            async def slow_write(*what: Any) -> None:
                is_writing.set()
                await held.wait()
                await write(*what)

            storage._write = slow_write  # type: ignore[method-assign]
            bench.broker.offsets.assign_reset("consumers", "T", 0, 5)
            await is_writing.wait()
            bench.broker.offsets.assign_reset("consumers", "T", 1, 6)
            held.set()
            await until(lambda: [text_at(entries, path) for path in paths] == ["0-5", "0-6"])
            bench.broker.offsets.remove_group("consumers")
            await until(lambda: [text_at(entries, path) for path in paths] == [None, None])

    run(life)


@pytest.mark.fault("F11")
def test_without_zookeeper_the_file_goes_on_and_it_catches_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = functools.partial(OffsetStorageOptions, commit_interval_ms=100)
    monkeypatch.setattr("penstock.coordinator.offsets.OffsetStorageOptions", often)
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path / "zookeeper") as servers:

        async def life() -> None:
            async with running(tmp_path / "store", zookeeper_offsets=servers.hosts) as bench:
                client = await joined(bench)
                await commit(client, 1)
                servers.servers[0].kill()
                await commit(client, 2)
                await until(lambda: "wait for being written" in caplog.text)
                await commit(client, 3)
                assert await offset_of(client) == 3
                assert await bench.broker.offsets.save()
                servers.servers[0].start()
                await until(lambda: "again" in caplog.text)
                await commit(client, 4)

        run(life)
        assert sum("wait for being written" in record.message for record in caplog.records) == 1
        client = KazooClient(servers.hosts)
        client.start()
        assert text_at(client, entry("consumers", "T", 0)) == "0-4"
        client.stop()
        client.close()


def test_nobody_answers_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "127.0.0.1:1"
    monkeypatch.setattr("penstock.broker.zookeeper_offsets.CONNECT_TIMEOUT_MS", 500)

    async def life() -> None:
        with pytest.raises(MetadataUnavailableError, match=address):
            async with running(tmp_path, zookeeper_offsets=address):
                pass
        # Nothing was left open.
        async with running(tmp_path):
            pass

    run(life)
    assert any(
        record.levelno == logging.ERROR and address in record.getMessage() for record in caplog.records
    )
