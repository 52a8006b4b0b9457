"""What an audit asks a real cluster for: which queues are read, which are sent to, where the log begins. No Spark."""

import asyncio
from collections.abc import Iterator

import pytest

import penstock
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.spark.pipelines.audit_cluster import cluster_ranges, target_queues
from penstock.spark.pipelines.audit_sources import QueueKey, Source
from penstock.testing import broker

READ, WRITE = 4, 2


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker() as found:
        yield found


def make_topic(address: str, topic: str, *, read: int, write: int, permission: int = READ | WRITE) -> None:
    """The admin client makes as many queues for reading as for writing."""
    with penstock.Admin(address) as admin:
        admin.create_topic(topic, 1)
        (place,) = admin.describe_topic(topic).brokers.values()

    async def change() -> None:
        client = RemotingClient(runtime=Runtime.system())
        numbers = {"readQueueNums": str(read), "writeQueueNums": str(write), "perm": str(permission)}
        try:
            answer = await client.call(
                place, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, **numbers})
            )
            assert answer.code == 0, answer.remark
        finally:
            await client.close()

    asyncio.run(change())


def queues(address: str, *topics: str) -> set[QueueKey]:
    return set(cluster_ranges(Source("log", nameserver=address, topics=topics)))


def test_only_queues_that_are_read_are_audited(address: str) -> None:
    make_topic(address, "plain", read=2, write=2)
    make_topic(address, "growing", read=1, write=3)
    make_topic(address, "write-only", read=2, write=2, permission=WRITE)
    expected = {
        QueueKey("plain", "test-broker", 0),
        QueueKey("plain", "test-broker", 1),
        QueueKey("growing", "test-broker", 0),
    }
    assert queues(address) == queues(address, "plain", "growing", "write-only") == expected


def test_only_queues_that_are_written_to_are_a_target(address: str) -> None:
    make_topic(address, "shrinking", read=4, write=2)
    assert target_queues(address, "shrinking") == {"test-broker": [0, 1]}
    make_topic(address, "read-only", read=2, write=2, permission=READ)
    assert target_queues(address, "read-only") == {}
