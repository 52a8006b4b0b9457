"""Python and Java clients together, at RocketMQ's servers and at Penstock's: requests answered across languages, Java's dead
letters redriven from Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from tests.interop.wire.conftest import Drivers
from tests.interop.wire.peer import Peer, Server, eventually

QUICK = {"route_interval_ms": 500, "rebalance_interval_ms": 1_000, "heartbeat_interval_ms": 1_000}
_fresh = Peer.fresh


@pytest.fixture
def java(server: Server, drivers: Drivers) -> Iterator[Peer]:
    peer = Peer(drivers.get("java-5.3.3"), server)
    yield peer
    peer.end()


# -- requests ----------------------------------------------------------------------------------------------------


def test_java_replies_to_python(server: Server, java: Peer) -> None:
    topic = java.create_topic(queues=1)
    java.push(topic, reply=True)
    with penstock.Producer(server.nameserver, group=_fresh("py-askers")) as producer:
        for body in (b"ping", b"pong" * 5_000):
            assert producer.request(topic, body, timeout_ms=20_000).body == b"re: " + body


def test_python_replies_to_java(server: Server, java: Peer) -> None:
    topic = java.create_topic(queues=1)
    failures: list[penstock.PenstockError] = []
    with penstock.Producer(server.nameserver, group=_fresh("py-repliers")) as producer:

        def reply(message: ReceivedMessage) -> None:
            try:
                producer.reply(message, b"re: " + message.body)
            except penstock.PenstockError as error:
                failures.append(error)

        settings = {"group": _fresh("py-group"), "start_from": "first", **QUICK}
        with penstock.Consumer(server.nameserver, listener=reply, **settings) as consumer:
            consumer.subscribe(topic)
            command = {
                "name": java.producer(),
                "topic": topic,
                "messages": [{"body": "ping"}],
                "timeout": 20_000,
            }
            assert java.driver.do("request", **command)["body"] == "re: ping"
    assert failures == []


def test_a_request_that_nobody_answers_ends(server: Server, java: Peer) -> None:
    topic = java.create_topic(queues=1)
    with (
        penstock.Producer(server.nameserver, group=_fresh("py-askers")) as producer,
        pytest.raises(penstock.ReplyTimeoutError),
    ):
        producer.request(topic, b"ping", timeout_ms=300)


# -- dead letters ------------------------------------------------------------------------------------------------


def test_what_java_gave_up_is_redriven_once(server: Server, java: Peer) -> None:
    topic, group = java.create_topic(queues=1), _fresh("group")
    consumer = java.push(topic, group=group, fail=9, tries=0)
    java.send(topic, [{"body": f"poison {number}", "keys": f"k{number}"} for number in range(3)])
    java.received(consumer, 3)
    with penstock.Admin(server.nameserver) as admin:
        eventually(
            lambda: [summary.count for summary in admin.dead_letters.groups(group)] == [3],
            "three dead letters",
        )
        java.close(consumer)
        [summary] = admin.dead_letters.groups(group)
        assert [kind.topics for kind in summary.kinds] == [{topic: 3}]
        [first] = admin.dead_letters.redrive(group, key="k1")
        assert (first.outcome, first.topic) == ("sent", topic)
        outcomes = [str(result.outcome) for result in admin.dead_letters.redrive(group)]
        assert sorted(outcomes) == ["sent", "sent", "skipped"]
        assert {str(result.outcome) for result in admin.dead_letters.redrive(group)} == {"skipped"}
    again = java.received(java.push(topic), 6)
    copies = [message for message in again if "PENSTOCK_REDRIVEN_FROM" in message["properties"]]
    assert sorted(message["body"] for message in copies) == ["poison 0", "poison 1", "poison 2"]
