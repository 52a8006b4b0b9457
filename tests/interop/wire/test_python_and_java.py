"""Python and Java clients together, at RocketMQ's servers and at Penstock's: requests answered across languages, Java's
dead letters redriven from Python, and
traces that either writes read by the other's tools."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from penstock.client.trace_records import TraceRecord
from tests.interop.wire.conftest import Drivers
from tests.interop.wire.mqadmin import MqAdmin
from tests.interop.wire.peer import Peer, Server
from tests.waiting import wait_until

QUICK = {"route_interval_ms": 500, "rebalance_interval_ms": 1_000, "heartbeat_interval_ms": 1_000}
_fresh = Peer.fresh


@pytest.fixture
def java(server: Server, drivers: Drivers) -> Iterator[Peer]:
    peer = Peer(drivers.get("java-5.3.3"), server)
    yield peer
    peer.end()


# -- requests ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
@pytest.mark.feature("request-reply", "rocketmq-5.3")
def test_java_replies_to_python(server: Server, java: Peer) -> None:
    topic = java.create_topic(queues=1)
    java.push(topic, reply=True)
    with penstock.Producer(server.nameserver, group=_fresh("py-askers")) as producer:
        for body in (b"ping", b"pong" * 5_000):
            assert producer.request(topic, body, timeout_ms=20_000).body == b"re: " + body


@pytest.mark.feature("python-clients", "rocketmq-5.3")
@pytest.mark.feature("request-reply", "rocketmq-5.3")
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


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_a_request_that_nobody_answers_ends(server: Server, java: Peer) -> None:
    topic = java.create_topic(queues=1)
    with (
        penstock.Producer(server.nameserver, group=_fresh("py-askers")) as producer,
        pytest.raises(penstock.ReplyTimeoutError),
    ):
        producer.request(topic, b"ping", timeout_ms=300)


# -- dead letters ------------------------------------------------------------------------------------------------


@pytest.mark.feature("retries", "rocketmq-5.3")
def test_what_java_gave_up_is_redriven_once(server: Server, java: Peer) -> None:
    topic, group = java.create_topic(queues=1), _fresh("group")
    consumer = java.push(topic, group=group, fail=9, tries=0)
    java.send(topic, [{"body": f"poison {number}", "keys": f"k{number}"} for number in range(3)])
    java.received(consumer, 3)
    with penstock.Admin(server.nameserver) as admin:
        wait_until(
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


# -- traces ------------------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
@pytest.mark.feature("trace", "rocketmq-5.3")
def test_traces_of_java_are_read(server: Server, java: Peer) -> None:
    topic, group, name = java.create_topic(queues=1), _fresh("group"), _fresh("producer")
    command = {"name": name, "group": f"group-of-{name}", "nameserver": server.nameserver, "trace": True}
    java.driver.do("producer", **command)
    consumer = java.push(topic, group=group, trace=True)
    message = {"body": "hello", "tags": "t", "keys": "k1"}
    sent = java.driver.do("send", name=name, topic=topic, how="sync", messages=[message])["results"][0]
    java.received(consumer, 1)
    with penstock.Admin(server.nameserver) as admin:
        wait_until(lambda: len(admin.trace_message(sent["msgId"])) == 3, "three traces", timeout_s=30)
        pub, before, after = admin.trace_message(sent["msgId"])
    assert [str(each.kind) for each in (pub, before, after)] == ["Pub", "SubBefore", "SubAfter"]
    assert (pub.group, pub.topic, pub.tag, pub.keys) == (f"group-of-{name}", topic, "t", "k1")
    assert (pub.body_size, pub.is_success, pub.offset_msg_id) == (5, True, sent["offsetMsgId"])
    assert (before.group, after.group, after.is_success) == (group, group, True)
    assert before.request_id == after.request_id


@pytest.mark.feature("mqadmin", "rocketmq-5.3")
@pytest.mark.feature("trace", "rocketmq-5.3")
def test_traces_of_python_are_read_by_mqadmin(server: Server, java: Peer, tmp_path: Path) -> None:
    topic, group, producers = java.create_topic(queues=1), _fresh("py-group"), _fresh("py-producers")
    done = threading.Event()
    settings = {"group": group, "start_from": "first", "trace": True, **QUICK}
    with (
        penstock.Consumer(server.nameserver, listener=lambda message: done.set(), **settings) as consumer,
        penstock.Producer(server.nameserver, group=producers, trace=True) as producer,
    ):
        consumer.subscribe(topic)
        sent = producer.send(topic, b"hello", tag="t", keys="k1")
        assert done.wait(20)
    with MqAdmin(server, tmp_path) as admin:
        printed = ""

        def is_shown() -> bool:
            nonlocal printed
            printed = admin.run("queryMsgTraceById", "-i", sent.msg_id).output
            return group in printed and producers in printed

        wait_until(is_shown, "mqadmin shows both", timeout_s=30)
    assert re.search(rf"Pub +{producers} .*success", printed), printed
    assert re.search(r"Sub +.*success", printed), printed


def test_traces_of_javas_transactions_are_read(server: Server, java: Peer) -> None:
    topic, name = java.create_topic(queues=1), _fresh("transactions")
    command = {"name": name, "group": f"group-of-{name}", "nameserver": server.nameserver, "trace": True}
    java.driver.do("transaction_producer", **command)
    with penstock.Admin(server.nameserver) as admin:
        for kind, state in (("commit", "COMMIT_MESSAGE"), ("rollback", "ROLLBACK_MESSAGE")):
            end = _traced_end(java, admin, name, topic, kind)
            assert (end.state, end.topic, end.keys) == (state, topic, "k1")
            assert end.message_kind == 2
            assert end.group == f"group-of-{name}"


def _traced_end(java: Peer, admin: penstock.Admin, name: str, topic: str, kind: str) -> TraceRecord:
    """How a transaction ended, as Java's client traced it. RocketMQ's broker may ask how it was all the same, again and
    again, and each answer is traced as one more end: the first one counts."""
    message = {"body": kind, "keys": "k1", "properties": {"local": kind}}
    (result,) = java.driver.do("transaction", name=name, topic=topic, messages=[message])["results"]
    ends: list[TraceRecord] = []

    def has_ended() -> bool:
        records = admin.trace_message(result["msgId"])
        ends[:] = [each for each in records if each.kind == "EndTransaction" and not each.from_check]
        return bool(ends)

    wait_until(has_ended, "the end is traced", timeout_s=60)
    return ends[0]


def test_mqadmin_reads_bodies_with_traces_of_transactions_and_recalls(
    server: Server, java: Peer, tmp_path: Path
) -> None:
    """It shows sends and deliveries, and has to understand every record of a body to get there."""
    topic, producers = java.create_topic(queues=1), _fresh("py-producers")
    with penstock.Producer(server.nameserver, group=producers, trace=True) as producer:
        with producer.transaction(topic, b"hello", tag="t", keys="k1") as transaction:
            pass
        waiting = producer.send(topic, b"later", delay=60)
        try:
            producer.recall(waiting.recall_handle)
        except penstock.PenstockError as error:  # RocketMQ has it off
            print(f"recall: {error}")
    with MqAdmin(server, tmp_path) as admin:
        for msg_id in (transaction.msg_id, waiting.msg_id):
            printed = ""

            def is_shown(msg_id: str = msg_id) -> bool:
                nonlocal printed
                printed = admin.run("queryMsgTraceById", "-i", msg_id).output
                return producers in printed

            wait_until(is_shown, "mqadmin shows the send", timeout_s=30)
            assert re.search(rf"Pub +{producers} .*success", printed), printed
            assert "Exception" not in printed, printed
