"""RocketMQ's mqadmin shows how far a group is that only commits, as a Spark query's does: at both servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.scan import QueueId, Scan
from tests.interop.java_release import missing_tools
from tests.interop.wire.mqadmin import MqAdmin
from tests.interop.wire.peer import Peer, Server
from tests.waiting import wait_until

QUEUES = 2
COUNT = 20
DONE = (COUNT, 5)


@pytest.fixture
def mqadmin(server: Server, tmp_path: Path) -> Iterator[MqAdmin]:
    if (missing := missing_tools()) is not None:
        pytest.skip(missing)
    with MqAdmin(server, tmp_path) as made:
        yield made


def filled(nameserver: str, scan: Scan) -> list[QueueId]:
    """Queues of a new topic with 20 messages each."""
    topic = Peer.fresh("lag")
    with penstock.Admin(nameserver) as admin:
        admin.create_topic(topic, QUEUES)
        places = sorted(admin.queues(topic))
    with penstock.Producer(nameserver) as producer:
        for future in [
            producer.send_async(topic, b"%d" % n, queue=places[n % QUEUES]) for n in range(COUNT * QUEUES)
        ]:
            future.result()
    found = scan.queues(topic)
    wait_until(lambda: all(item.max == COUNT for item in scan.ranges(found).values()), "all messages visible")
    return found


@pytest.mark.feature("mqadmin", "rocketmq-5.3")
def test_mqadmin_shows_the_lag_of_a_group_that_only_commits(server: Server, mqadmin: MqAdmin) -> None:
    group = Peer.fresh("spark-group")
    with Scan(server.nameserver, retry_ms=5_000) as scan:
        queues = filled(server.nameserver, scan)
        scan.commit(group, dict(zip(queues, DONE, strict=True)))

        # The name server learns of the retry topic a moment after the broker has made it.
        def is_listed() -> bool:
            listed = mqadmin.run("consumerProgress").output
            # Name, members, version, type, model, rate, lag.
            return re.search(rf"^{group[:64]} +0 .* {COUNT - DONE[1]}$", listed, re.MULTILINE) is not None

        wait_until(is_listed, f"{group} in the list of all groups with its lag and no members")
        one = mqadmin.run("consumerProgress", "-g", group).output
        for queue, done in zip(queues, DONE, strict=True):
            row = rf"{queue.topic} +{queue.broker} +{queue.queue_id} +{COUNT} +{done} +{COUNT - done} "
            assert re.search(row, one), one
        assert f"Consume Diff Total: {COUNT - DONE[1]}" in one

        # What is committed later shows too, and the reader is still no member.
        scan.commit(group, dict.fromkeys(queues, COUNT))
        wait_until(
            lambda: "Consume Diff Total: 0" in mqadmin.run("consumerProgress", "-g", group).output,
            "no lag any more",
        )
    members = mqadmin.run("consumerConnection", "-g", group).output
    assert "not online" in members, members
