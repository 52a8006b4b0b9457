"""The unmodified Go client v2 does at Penstock what it does at RocketMQ.

It asks for routes every 30 seconds and shares queues every 20, and neither can be changed: topics and retry topics are
made before their consumers, so that no test waits for that.
"""

from __future__ import annotations

import pytest

from tests.interop.wire.frames import Wire, has_route
from tests.interop.wire.peer import Peer, bodies, in_queue_order, offset_id_parts
from tests.interop.wire.session_broker import heartbeat, subscription, topic_fields
from tests.waiting import wait_until

FOUND, NO_NEW, NO_MATCH, ILLEGAL = range(4)


def make_topic(peer: Peer, queues: int = 4) -> str:
    topic = peer.fresh("go-topic")
    with Wire(peer.server.broker) as wire:
        assert wire.call(17, topic_fields(topic, queues)).code == 0
    wait_until(lambda: has_route(peer.server.nameserver, topic), "the topic has a route")
    return topic


def make_group(peer: Peer, topic: str) -> str:
    """A group whose retry topic has a route: a member came and went."""
    group = peer.fresh("go-group")
    with Wire(peer.server.broker) as wire:
        assert wire.call(34, body=heartbeat("first", subscription(topic), group=group)).code == 0
    wait_until(lambda: has_route(peer.server.nameserver, f"%RETRY%{group}"), "the retry topic has a route")
    return group


@pytest.mark.feature("batches", "rocketmq-5.3")
@pytest.mark.feature("sends", "rocketmq-5.3")
@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch"])
def test_a_send_of_each_kind_is_consumed(go_peer: Peer, how: str) -> None:
    topic = make_topic(go_peer)
    sent = [
        {"body": f"{how}-{i}", "tags": "t", "keys": f"k{i}", "properties": {"n": str(i)}} for i in range(20)
    ]
    results = go_peer.send(topic, sent, how=how)
    found = go_peer.received(go_peer.push(topic, group=make_group(go_peer, topic)), 20)
    assert bodies(found) == sorted(message["body"] for message in sent)
    for message in found:
        number = message["body"].rpartition("-")[2]
        assert (message["tags"], message["keys"], message["properties"]["n"]) == ("t", f"k{number}", number)
        assert message["storeHost"] == go_peer.server.broker
    assert {result["status"] for result in results} == ({"SEND_OK"} if how != "oneway" else set())


@pytest.mark.feature("sends", "rocketmq-5.3")
def test_a_send_is_told_where_the_message_is(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    results = go_peer.send(topic, ["a", "b", "c"], queue=2)
    assert [(result["queueId"], result["queueOffset"]) for result in results] == [(2, 0), (2, 1), (2, 2)]
    host, _, port = go_peer.server.broker.rpartition(":")
    for result in results:
        assert offset_id_parts(result["offsetMsgId"])[:2] == (host, int(port))
        assert (result["region"], result["traceOn"]) == ("DefaultRegion", True)


@pytest.mark.feature("topic-on-demand", "rocketmq-5.3")
def test_a_topic_comes_into_being_with_its_first_send(go_peer: Peer) -> None:
    topic = go_peer.fresh("go-topic")
    (result,) = go_peer.send(topic, [{"body": "0123456789", "fill": 1000}])
    assert result["status"] == "SEND_OK"
    wait_until(lambda: has_route(go_peer.server.nameserver, topic), "the topic has a route")
    (message,) = go_peer.received(go_peer.push(topic, group=make_group(go_peer, topic)), 1)
    assert (message["bodyLength"], message["body"][:10]) == (10_000, "0123456789")


@pytest.mark.feature("clustering", "rocketmq-5.3")
def test_a_group_shares_a_topic(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    group = make_group(go_peer, topic)
    first, second = go_peer.push(topic, group=group), go_peer.push(topic, group=group)
    for queue in range(4):
        go_peer.send(topic, [f"{queue}-{i}" for i in range(5)], queue=queue)
    wait_until(
        lambda: len(go_peer.received(first, 0)) + len(go_peer.received(second, 0)) >= 20,
        "all came",
        timeout_s=30,
    )
    both = [*go_peer.received(first, 0), *go_peer.received(second, 0)]
    assert set(bodies(both)) == {f"{queue}-{i}" for queue in range(4) for i in range(5)}


@pytest.mark.feature("broadcast", "rocketmq-5.3")
def test_broadcast_reaches_every_member(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    group = make_group(go_peer, topic)
    consumers = [go_peer.push(topic, group=group, broadcast=True) for _ in range(2)]
    go_peer.send(topic, [f"m{i}" for i in range(12)])
    for consumer in consumers:
        assert bodies(go_peer.received(consumer, 12)) == sorted(f"m{i}" for i in range(12))


@pytest.mark.feature("order", "rocketmq-5.3")
def test_orderly_consumption_keeps_the_order_of_each_queue(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    for queue in range(4):
        go_peer.send(topic, [f"{queue}-{i:02}" for i in range(10)], queue=queue)
    found = go_peer.received(go_peer.push(topic, group=make_group(go_peer, topic), orderly=True), 40)
    assert len(found) == 40
    for queue, messages in in_queue_order(found).items():
        assert [message["body"] for message in messages] == [f"{queue}-{i:02}" for i in range(10)]


@pytest.mark.feature("tag-filters", "rocketmq-5.3")
def test_tags_filter(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    sent = [{"body": f"{tag}{i}", "tags": tag} for tag in ("red", "blue", "Aa", "BB") for i in range(3)]
    go_peer.send(topic, [*sent, {"body": "untagged"}])
    consumer = go_peer.push(topic, group=make_group(go_peer, topic), expression="red || Aa")
    assert bodies(go_peer.received(consumer, 6)) == ["Aa0", "Aa1", "Aa2", "red0", "red1", "red2"]
    assert len(go_peer.received(consumer, 99, wait_ms=500)) == 6


@pytest.mark.feature("retries", "rocketmq-5.3")
def test_a_refused_message_comes_again_and_becomes_a_dead_letter(go_peer: Peer) -> None:
    topic = make_topic(go_peer, 1)
    group = make_group(go_peer, topic)
    go_peer.send(topic, [{"body": "poison", "keys": "k"}])
    deliveries = go_peer.received(go_peer.push(topic, group=group, fail=99, tries=1, delay=1), 2)
    assert [(message["topic"], message["reconsumeTimes"]) for message in deliveries] == [
        (topic, 0),
        (topic, 1),
    ]
    dead_topic = f"%DLQ%{group}"
    wait_until(lambda: has_route(go_peer.server.nameserver, dead_topic), "the dead letter has a topic")
    (dead,) = go_peer.received(go_peer.push(dead_topic, group=make_group(go_peer, dead_topic)), 1)
    assert (dead["body"], dead["keys"], dead["properties"]["RETRY_TOPIC"]) == ("poison", "k", topic)


@pytest.mark.feature("pull", "rocketmq-5.3")
def test_pull_by_hand(go_peer: Peer) -> None:
    topic = make_topic(go_peer, 2)
    go_peer.send(topic, [f"m{i}" for i in range(10)], queue=1)
    name = go_peer.fresh("puller")
    command = {"name": name, "group": make_group(go_peer, topic), "topic": topic}
    go_peer.driver.do("puller", nameserver=go_peer.server.nameserver, **command)
    at = {"name": name, "topic": topic, "broker": "broker-a", "queue": 1}
    found = go_peer.driver.do("pull", **at, offset=2, max=4)
    assert (found["status"], found["next"], found["min"], found["max"]) == (FOUND, 6, 0, 10)
    assert [message["body"] for message in found["messages"]] == ["m2", "m3", "m4", "m5"]
    beyond = go_peer.driver.do("pull", **at, offset=99, max=4)
    assert (beyond["status"], beyond["next"]) == (ILLEGAL, 10)
