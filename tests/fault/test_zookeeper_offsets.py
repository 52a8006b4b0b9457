"""Offsets of a coordinated set in a real ZooKeeper: one entry whoever is master, and a group that goes on when every
broker was killed and all their tables are lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from penstock.coordinator.offsets import broker_id_of_set
from penstock.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.testing.zookeeper import ZooKeeperEnsemble, why_unavailable, zookeeper_servers
from tests.support.broker_set import NAME, BrokerSet, broker_set, raw
from tests.support.server_processes import ServerProcess

LEAF = f"{broker_id_of_set('DefaultCluster', NAME)}-0"
TOPIC_PATH = "/tubemq/consumers-v3/g/offsets/T"
WAIT_S = 90.0


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with zookeeper_servers(tmp_path / "zookeeper") as servers:
        yield servers


def accepted(node: ServerProcess, command: Command) -> Command:
    """As soon as the broker takes it: it may have been elected a moment ago."""
    deadline = time.monotonic() + WAIT_S
    while (answer := raw(node.address, command)).code != 0:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return answer


def commit(node: ServerProcess, offset: int) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    accepted(node, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))


QUERY = Command(
    RequestCode.QUERY_CONSUMER_OFFSET,
    {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": "false"},
)


def offset_at(node: ServerProcess) -> int:
    return int(accepted(node, QUERY).fields["offset"])


def offset_of(cluster: BrokerSet) -> int:
    """By the word of whoever is master in the end: the one that was may still be said to be it."""
    deadline = time.monotonic() + WAIT_S
    while (answer := raw(cluster.master().address, QUERY)).code != 0:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return int(answer.fields["offset"])


def join(node: ServerProcess) -> None:
    topic = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    accepted(node, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic))
    consumer = ConsumerData("g", subscriptions=(SubscriptionData.parse("T", "*"),))
    accepted(node, Command(RequestCode.HEART_BEAT, {}, HeartbeatData("c@1", (), (consumer,)).encode()))


def fill(node: ServerProcess, count: int) -> None:
    """Offsets lead somewhere only where there are messages."""
    fields = {
        "producerGroup": "p",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": "",
    }
    for _ in range(count):
        accepted(node, Command(RequestCode.SEND_MESSAGE, fields, b"x"))


def wait_written(entries: KazooClient, value: bytes) -> None:
    deadline = time.monotonic() + WAIT_S
    path = f"{TOPIC_PATH}/{LEAF}"
    while not entries.exists(path) or entries.get(path)[0] != value:
        assert time.monotonic() < deadline, entries.get(path) if entries.exists(path) else "no entry"
        time.sleep(0.1)


def lose_tables(broker: ServerProcess) -> None:
    """All of `config`, the journal included; the log and the broker's identity stay."""
    (folder,) = broker.data.rglob("config")
    assert list(folder.glob("tables.*.log"))
    shutil.rmtree(folder)


@pytest.mark.feature("offsets-in-zookeeper", "tubemq")
@pytest.mark.java
@pytest.mark.fault("F1")
def test_the_entry_is_the_sets_and_outlives_all_tables(zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    entries = KazooClient(zookeeper.hosts)
    entries.start()
    place = ("--set", f"broker.zookeeper_offsets={zookeeper.hosts}")
    with broker_set(tmp_path / "set", *place, count=2) as cluster:
        first = cluster.master()
        join(first)
        fill(first, 30)
        commit(first, 28)
        wait_written(entries, b"0-28")
        _fail_over(cluster, first, entries)
        first.start()
        cluster.wait(2)
        # Both at once, and nobody has a table left.
        cluster.kill_all()
        for node in cluster.brokers:
            lose_tables(node)
        for node in cluster.brokers:
            node.launch()
        for node in cluster.brokers:
            node.wait_ready()
        assert offset_of(cluster) == 30
    entries.stop()
    entries.close()


def _fail_over(cluster: BrokerSet, first: ServerProcess, entries: KazooClient) -> None:
    epoch = cluster.wait(2).master_epoch
    first.kill()
    second = cluster.master(epoch=epoch + 1)
    assert second is not first
    assert offset_at(second) == 28
    commit(second, 30)
    wait_written(entries, b"0-30")
    assert entries.get_children(TOPIC_PATH) == [LEAF]
