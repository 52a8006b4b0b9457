"""The four parts of the fifth seed together: network, queue, files, and a real ZooKeeper that knows what is where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from penstock.client.async_producer import AsyncProducer
from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.message import Message
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.support.balanced import cluster
from tests.waiting import until

pytestmark = pytest.mark.java


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path / "zookeeper") as servers:
        yield servers


class InZooKeeper:
    """Stores for coordinators, all of them in these servers."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts

    def client(self) -> ZooKeeperMetadata:
        return ZooKeeperMetadata(ZooKeeperOptions(self._hosts))


class Looking:
    """What is in ZooKeeper, by another client than ours."""

    def __init__(self, hosts: str) -> None:
        self._kazoo = KazooClient(hosts)

    def __enter__(self) -> Looking:
        self._kazoo.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kazoo.stop()
        self._kazoo.close()

    def below(self, path: str) -> list[str]:
        return sorted(self._kazoo.get_children(path)) if self._kazoo.exists(path) else []

    def value(self, path: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self._kazoo.get(path)[0])
        return found


@pytest.mark.feature("registry", "fifth-seed")
@pytest.mark.feature("topic-on-demand", "fifth-seed")
@pytest.mark.seed("S4-1", "S4-2", "S4-3", "S4-7", "S4-63", "S4-64", "S4-70")
def test_a_message_goes_through_what_zookeeper_knows(tmp_path: Path, zookeeper: ZooKeeperEnsemble) -> None:
    """A producer has partitions created, which are then in ZooKeeper with their broker; the message is in the
    broker's files and with the consumer."""

    async def scenario() -> None:
        store = tmp_path / "broker"
        with Looking(zookeeper.hosts) as looking:
            async with cluster(
                store, ensemble=InZooKeeper(zookeeper.hosts), broker={"auto_create_topics": False}
            ) as found:
                assert looking.below("/penstock/live/topics/orders") == []
                async with AsyncProducer(
                    found.node.address, "p", coordinators=found.addresses, topic_queues=2
                ) as producer:
                    await producer.send(Message("orders", b"value-of-the-order"))
                name = found.node.broker.options.broker_name
                partitions = [f"{name}-0", f"{name}-1"]
                await until(lambda: looking.below("/penstock/live/topics/orders") == partitions)
                await until(lambda: looking.below(f"/penstock/live/brokers/c/{name}") == ["1"])
                entry = looking.value(f"/penstock/live/brokers/c/{name}/1")
                assert (entry["address"], entry["isMaster"]) == (found.node.broker_address, True)
                assert looking.below("/penstock/brokers/c") == [name]
                async with found.consumer("one") as consumer:
                    await consumer.subscribe("orders")
                    await until(lambda: found.received["one"] == ["value-of-the-order"])
            (log,) = (store / "commitlog").iterdir()
            assert b"value-of-the-order" in log.read_bytes()
            # Whoever is gone is no longer registered; which sets there are is remembered.
            await until(lambda: looking.below(f"/penstock/live/brokers/c/{name}") == [])
            assert looking.below("/penstock/brokers/c") == [name]

    asyncio.run(scenario())
