"""Java and Go consumers that choose by an SQL92 expression: the same messages from Penstock as from RocketMQ."""

from __future__ import annotations

import pytest

from tests.interop.wire.driver import DriverError
from tests.interop.wire.peer import Peer, bodies, in_queue_order
from tests.interop.wire.test_go_client import make_group, make_topic

PRICED = [
    {
        "body": f"m{i}",
        "tags": "ab"[i % 2],
        "properties": {"price": str(i), "shop": "north" if i < 6 else "south"},
    }
    for i in range(12)
]
WITHOUT = {"body": "free"}
TEXT = {"body": "text", "properties": {"price": "cheap", "shop": "north"}}
WANTED = {
    "price > 3 and shop = 'north'": ["m4", "m5"],
    "price is null or TAGS = 'b' and price between 8 and 99": ["free", "m11", "m9"],
    "shop not in ('north') and not (price < 10)": ["m10", "m11"],
}
CONTAINS = {"shop contains 'ort' and price <= 1": ["m0", "m1"], "shop startswith 'so' and price = 7": ["m7"]}


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_java_consumers_choose_by_expression(peer: Peer) -> None:
    topic = peer.create_topic()
    peer.send(topic, [*PRICED, WITHOUT, TEXT])
    wanted = {**WANTED, **CONTAINS}
    consumers = {sql: peer.push(topic, sql=sql) for sql in wanted}
    for sql, expected in wanted.items():
        assert bodies(peer.received(consumers[sql], len(expected))) == sorted(expected), sql
    # What comes while they wait is chosen likewise.
    peer.send(topic, [*PRICED, WITHOUT, TEXT])
    for sql, expected in wanted.items():
        found = peer.received(consumers[sql], 2 * len(expected))
        assert bodies(found) == sorted([*expected, *expected]), sql
    for sql, expected in wanted.items():
        assert len(peer.received(consumers[sql], 99, wait_ms=200)) == 2 * len(expected), sql


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_java_is_told_of_a_wrong_expression_at_its_start(peer: Peer) -> None:
    topic = peer.create_topic()
    for sql in ("price >", "price > 'x'", "price = null"):
        with pytest.raises(DriverError) as caught:
            peer.push(topic, sql=sql)
        assert caught.value.kind == "MQClientException"
        assert "CODE: 23" in str(caught.value)


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_java_orderly_consumers_keep_the_order_of_what_they_want(peer: Peer) -> None:
    topic = peer.create_topic(2)
    for queue in (0, 1):
        sent = [{"body": f"{queue}-{i:02}", "properties": {"n": str(i)}} for i in range(20)]
        peer.send(topic, sent, queue=queue)
    found = peer.received(peer.push(topic, sql="n >= 10", orderly=True), 20)
    for queue, messages in in_queue_order(found).items():
        assert [message["body"] for message in messages] == [f"{queue}-{i}" for i in range(10, 20)]


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_java_retries_come_whatever_the_expression_says(peer: Peer) -> None:
    topic = peer.create_topic(1)
    peer.send(topic, PRICED)
    consumer = peer.push(topic, sql="price = 7", fail=1, delay=1)
    found = peer.received(consumer, 2)
    assert [(message["body"], message["reconsumeTimes"]) for message in found] == [("m7", 0), ("m7", 1)]


@pytest.mark.feature("sql-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_java_lite_pull_consumers_choose_by_expression(peer: Peer) -> None:
    topic = peer.create_topic(1)
    peer.send(topic, PRICED)
    lite = peer.fresh("lite")
    command = {
        "name": lite,
        "group": peer.fresh("group"),
        "nameserver": peer.server.nameserver,
        "topic": topic,
    }
    peer.driver.do("lite", **command, sql="price in ('3', '5')")
    polled = peer.driver.do("poll", name=lite, count=2, timeout=15_000)
    assert bodies(polled["messages"]) == ["m3", "m5"]


@pytest.mark.feature("sql-filters", "rocketmq-5.3")
def test_go_consumers_choose_by_expression(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    go_peer.send(topic, [*PRICED, WITHOUT, TEXT])
    for sql, expected in WANTED.items():
        consumer = go_peer.push(topic, group=make_group(go_peer, topic), sql=sql)
        assert bodies(go_peer.received(consumer, len(expected), wait_ms=40_000)) == sorted(expected), sql
        assert bodies(go_peer.received(consumer, 99, wait_ms=300)) == sorted(expected), sql
