"""Unmodified RocketMQ clients do at Penstock what they do at RocketMQ: each test holds at both, with both releases."""

from __future__ import annotations

import time

import pytest

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.driver import DriverError
from tests.interop.wire.peer import (
    Peer,
    bodies,
    in_queue_order,
    offset_id_parts,
    saved_offset_sum,
)
from tests.waiting import wait_until

# -- sends -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("frames", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.feature("batches", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.feature("sends", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("how", ["sync", "async", "oneway", "batch"])
def test_a_send_of_each_kind_is_consumed(peer: Peer, how: str) -> None:
    topic = peer.fresh("topic")
    sent = [
        {"body": f"{how}-{i}", "tags": "t", "keys": f"k{i}", "properties": {"n": str(i)}} for i in range(20)
    ]
    results = peer.send(topic, sent, how=how)
    found = peer.received(peer.push(topic), 20)
    assert bodies(found) == sorted(message["body"] for message in sent)
    for message in found:
        number = message["body"].rpartition("-")[2]
        assert (message["tags"], message["keys"], message["properties"]["n"]) == ("t", f"k{number}", number)
        assert message["properties"]["MSG_REGION"] == "DefaultRegion"
        assert message["properties"]["CLUSTER"] == "DefaultCluster"
        assert message["storeHost"] == peer.server.broker
    assert {result["status"] for result in results} == ({"SEND_OK"} if how != "oneway" else set())


@pytest.mark.feature("sends", "rocketmq-5.3", "rocketmq-4.9")
def test_a_send_is_told_where_the_message_is(peer: Peer) -> None:
    topic = peer.create_topic(queues=4)
    results = peer.send(topic, ["a", "b", "c"], queue=2)
    assert [result["queueId"] for result in results] == [2, 2, 2]
    assert [result["queueOffset"] for result in results] == [0, 1, 2]
    assert {result["broker"] for result in results} == {"broker-a"}
    host, _, port = peer.server.broker.rpartition(":")
    positions = []
    for result in results:
        assert offset_id_parts(result["offsetMsgId"])[:2] == (host, int(port))
        positions.append(offset_id_parts(result["offsetMsgId"])[2])
        assert (result["region"], result["traceOn"]) == ("DefaultRegion", True)
    assert positions == sorted(set(positions))
    found = peer.received(peer.push(topic), 3)
    assert {message["offsetMsgId"] for message in found} == {result["offsetMsgId"] for result in results}
    assert {message["msgId"] for message in found} == {result["msgId"] for result in results}


@pytest.mark.feature("topic-on-demand", "rocketmq-5.3", "rocketmq-4.9")
def test_a_topic_comes_into_being_with_its_first_send(peer: Peer) -> None:
    topic = peer.fresh("topic")
    (result,) = peer.send(topic, [{"body": "first"}])
    assert result["status"] == "SEND_OK"
    assert bodies(peer.received(peer.push(topic), 1, wait_ms=20_000)) == ["first"]


@pytest.mark.feature("batches", "rocketmq-5.3", "rocketmq-4.9")
def test_a_batch_is_consecutive_in_one_queue(peer: Peer) -> None:
    topic = peer.create_topic(queues=4)
    (result,) = peer.send(topic, [f"m{i}" for i in range(10)], how="batch")
    ids = result["offsetMsgId"].split(",")
    assert len(ids) == len(result["msgId"].split(",")) == 10
    found = sorted(peer.received(peer.push(topic), 10), key=lambda message: message["queueOffset"])
    assert [message["body"] for message in found] == [f"m{i}" for i in range(10)]
    assert {message["queueId"] for message in found} == {result["queueId"]}
    assert [message["queueOffset"] for message in found] == list(range(10))
    assert [message["offsetMsgId"] for message in found] == ids


@pytest.mark.feature("compression", "rocketmq-5.3", "rocketmq-4.9")
def test_a_long_body_travels_compressed_and_arrives_whole(peer: Peer) -> None:
    topic = peer.fresh("topic")
    peer.send(topic, [{"body": "0123456789", "fill": 100_000}])
    (message,) = peer.received(peer.push(topic), 1)
    assert message["bodyLength"] == 1_000_000
    assert message["body"] == "0123456789" * 20


@pytest.mark.feature("delay-levels", "rocketmq-5.3", "rocketmq-4.9")
def test_a_delayed_message_comes_when_it_is_due(peer: Peer) -> None:
    topic = peer.fresh("topic")
    consumer = peer.push(topic)
    peer.send(topic, [{"body": "later", "delay": 1}])
    (message,) = peer.received(consumer, 1)
    assert message["storeTimestamp"] - message["bornTimestamp"] >= 950
    assert message["properties"]["REAL_TOPIC"] == topic
    assert message["properties"]["DELAY"] == "1"


@pytest.mark.feature("request-reply", "rocketmq-5.3", "rocketmq-4.9")
def test_a_request_gets_its_reply(peer: Peer) -> None:
    topic = peer.create_topic(queues=1)
    peer.push(topic, reply=True)
    command = {"name": peer.producer(), "topic": topic, "messages": [{"body": "ping"}], "timeout": 15_000}
    assert peer.driver.do("request", **command)["body"] == "re: ping"


# -- push consumption --------------------------------------------------------------------------------------------


@pytest.mark.feature("clustering", "rocketmq-5.3", "rocketmq-4.9")
def test_a_group_shares_a_topic(peer: Peer) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("group")
    first, second = peer.push(topic, group=group), peer.push(topic, group=group)
    wait_until(lambda: len(peer.assigned(first)) == len(peer.assigned(second)) == 2, "two queues each")
    assert not set(peer.assigned(first)) & set(peer.assigned(second))
    for queue in range(4):
        peer.send(topic, [f"{queue}-{i}" for i in range(5)], queue=queue)
    assert len(peer.received(first, 10)) == len(peer.received(second, 10)) == 10
    both = [*peer.received(first, 10), *peer.received(second, 10)]
    assert bodies(both) == sorted(f"{queue}-{i}" for queue in range(4) for i in range(5))


@pytest.mark.feature("retained-messages", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.feature("clustering", "rocketmq-5.3", "rocketmq-4.9")
def test_two_groups_get_everything_each(peer: Peer) -> None:
    topic = peer.fresh("topic")
    peer.send(topic, [f"m{i}" for i in range(8)])
    for consumer in (peer.push(topic), peer.push(topic)):
        assert bodies(peer.received(consumer, 8)) == [f"m{i}" for i in range(8)]


@pytest.mark.feature("broadcast", "rocketmq-5.3", "rocketmq-4.9")
def test_broadcast_reaches_every_member(peer: Peer) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("group")
    consumers = [peer.push(topic, group=group, broadcast=True) for _ in range(2)]
    for consumer in consumers:
        wait_until(lambda name=consumer: len(peer.assigned(name)) == 4, "all queues are everyone's")
    peer.send(topic, [f"m{i}" for i in range(12)])
    for consumer in consumers:
        assert bodies(peer.received(consumer, 12)) == sorted(f"m{i}" for i in range(12))


@pytest.mark.feature("order", "rocketmq-5.3", "rocketmq-4.9")
def test_orderly_consumption_keeps_the_order_of_each_queue(peer: Peer) -> None:
    topic = peer.create_topic(queues=4)
    for key in "abcd":
        peer.send(topic, [f"{key}{i:02}" for i in range(15)], key=key)
    # Each message is refused once and comes again before its successor.
    found = peer.received(peer.push(topic, orderly=True, fail=1), 120)
    assert len(found) == 120
    for messages in in_queue_order(found).values():
        offsets = [message["queueOffset"] for message in messages]
        assert offsets == sorted(offsets)
        assert [message["reconsumeTimes"] for message in messages] == [0, 1] * (len(messages) // 2)
    for key in "abcd":
        seen = [message["body"] for message in found if message["body"].startswith(key)]
        assert list(dict.fromkeys(seen)) == [f"{key}{i:02}" for i in range(15)]


@pytest.mark.feature("order", "rocketmq-5.3", "rocketmq-4.9")
def test_two_orderly_consumers_never_share_a_queue(peer: Peer) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("group")
    consumers = [peer.push(topic, group=group, orderly=True, sleep=5) for _ in range(2)]
    wait_until(lambda: [len(peer.assigned(name)) for name in consumers] == [2, 2], "two queues each")
    for queue in range(4):
        peer.send(topic, [f"{queue}-{i}" for i in range(10)], queue=queue)
    first, second = (peer.received(name, 20) for name in consumers)
    assert bodies([*first, *second]) == sorted(f"{queue}-{i}" for queue in range(4) for i in range(10))
    assert not set(in_queue_order(first)) & set(in_queue_order(second))


@pytest.mark.feature("tag-filters", "rocketmq-5.3", "rocketmq-4.9")
def test_tags_filter(peer: Peer) -> None:
    topic = peer.fresh("topic")
    # "Aa" and "BB" have the same hash: the broker cannot tell them apart, the client does.
    sent = [{"body": f"{tag}{i}", "tags": tag} for tag in ("red", "blue", "Aa", "BB") for i in range(3)]
    peer.send(topic, [*sent, {"body": "untagged"}])
    wanted = {"red || Aa": ["Aa0", "Aa1", "Aa2", "red0", "red1", "red2"], "BB": ["BB0", "BB1", "BB2"]}
    consumers = {expression: peer.push(topic, expression=expression) for expression in wanted}
    everything = peer.push(topic, expression="*")
    for expression, expected in wanted.items():
        assert bodies(peer.received(consumers[expression], len(expected))) == expected
    assert len(peer.received(everything, 13)) == 13
    for expression, expected in wanted.items():
        assert bodies(peer.received(consumers[expression], 99, wait_ms=300)) == expected


@pytest.mark.feature("retries", "rocketmq-5.3", "rocketmq-4.9")
def test_a_message_that_was_refused_comes_again(peer: Peer) -> None:
    topic = peer.fresh("topic")
    peer.send(topic, [{"body": "again", "keys": "k"}])
    first, second = peer.received(peer.push(topic, fail=1, delay=1), 2)
    assert (first["topic"], first["reconsumeTimes"]) == (topic, 0)
    assert (second["topic"], second["reconsumeTimes"]) == (topic, 1)
    assert second["msgId"] == first["msgId"]
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == first["offsetMsgId"]
    assert second["at"] - first["at"] >= 950


@pytest.mark.feature("retries", "rocketmq-5.3", "rocketmq-4.9")
def test_a_message_refused_too_often_becomes_a_dead_letter(peer: Peer) -> None:
    topic, group = peer.fresh("topic"), peer.fresh("group")
    peer.send(topic, [{"body": "poison", "keys": "k"}])
    deliveries = peer.received(peer.push(topic, group=group, fail=99, tries=2, delay=1), 3)
    assert [message["reconsumeTimes"] for message in deliveries] == [0, 1, 2]
    (dead,) = peer.received(peer.push(f"%DLQ%{group}"), 1)
    assert (dead["topic"], dead["body"], dead["keys"]) == (f"%DLQ%{group}", "poison", "k")
    assert dead["properties"]["RETRY_TOPIC"] == topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == deliveries[0]["offsetMsgId"]
    assert dead["msgId"] == deliveries[0]["msgId"]


@pytest.mark.feature("offsets", "rocketmq-5.3", "rocketmq-4.9")
def test_a_new_group_starts_where_it_wants_to(peer: Peer) -> None:
    topic = peer.create_topic(queues=1)
    peer.send(topic, ["old"])
    # A queue that still has its first message counts as young: also a group that wants only new ones gets all.
    for start in ("first", "last"):
        assert bodies(peer.received(peer.push(topic, **{"from": start}), 1)) == ["old"]
    empty = peer.create_topic(queues=1)
    late = peer.push(empty, **{"from": "last"})
    wait_until(lambda: len(peer.assigned(late)) == 1, "the queue is assigned")
    time.sleep(0.5)
    peer.send(empty, ["new"])
    assert bodies(peer.received(late, 1)) == ["new"]


@pytest.mark.feature("heartbeats", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.feature("clustering", "rocketmq-5.3", "rocketmq-4.9")
def test_the_share_of_a_dead_consumer_goes_to_the_living(peer: Peer, drivers: Drivers) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("group")
    doomed = drivers.start(peer.driver.name)
    try:
        survivor = peer.push(topic, group=group)
        victim = peer.push(topic, group=group, driver=doomed)
        wait_until(
            lambda: len(peer.assigned(survivor)) == len(peer.assigned(victim, driver=doomed)) == 2,
            "two queues each",
        )
        doomed.kill()
        wait_until(lambda: len(peer.assigned(survivor)) == 4, "all queues are the survivor's")
        for queue in range(4):
            peer.send(topic, [f"{queue}-{i}" for i in range(3)], queue=queue)
        found = peer.received(survivor, 12)
        assert bodies(found) == sorted(f"{queue}-{i}" for queue in range(4) for i in range(3))
    finally:
        doomed.kill()


# -- pull --------------------------------------------------------------------------------------------------------


@pytest.mark.feature("pull", "rocketmq-5.3", "rocketmq-4.9")
def test_pull_by_hand(peer: Peer) -> None:
    topic = peer.create_topic(queues=2)
    started = int(time.time() * 1000)
    peer.send(topic, [{"body": f"m{i}", "tags": "even" if i % 2 == 0 else "odd"} for i in range(10)], queue=1)
    name = peer.fresh("puller")
    group = peer.fresh("group")
    peer.driver.do("puller", name=name, group=group, nameserver=peer.server.nameserver)
    at = {"name": name, "topic": topic, "queue": 1}

    found = peer.driver.do("pull", **at, offset=0, max=4, time=started)
    assert (found["status"], found["next"], found["min"], found["max"]) == ("FOUND", 4, 0, 10)
    assert [message["body"] for message in found["messages"]] == ["m0", "m1", "m2", "m3"]
    assert (found["minOffset"], found["maxOffset"], found["byTime"]) == (0, 10, 0)
    assert found["earliest"] == found["messages"][0]["storeTimestamp"]
    assert found["committed"] in (-1, 0)  # The younger client calls a young queue's start 0.

    odd = peer.driver.do("pull", **at, offset=4, max=32, expression="odd", commit=True, time=started + 60_000)
    assert [message["body"] for message in odd["messages"]] == ["m5", "m7", "m9"]
    assert (odd["next"], odd["committed"], odd["byTime"]) == (10, 10, 10)

    none = peer.driver.do("pull", **at, offset=0, max=32, expression="absent")
    assert (none["status"], none["next"], none["messages"]) == ("NO_MATCHED_MSG", 10, [])
    end = peer.driver.do("pull", **at, offset=10, max=32)
    assert (end["status"], end["next"], end["messages"]) == ("NO_NEW_MSG", 10, [])
    beyond = peer.driver.do("pull", **at, offset=99, max=32)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)
    empty = peer.driver.do("pull", name=name, topic=topic, queue=0, offset=0, max=1)
    assert (empty["status"], empty["minOffset"], empty["maxOffset"], empty["earliest"]) == (
        "NO_NEW_MSG",
        0,
        0,
        -1,
    )


@pytest.mark.feature("pull", "rocketmq-5.3", "rocketmq-4.9")
def test_lite_pull_by_share_and_by_hand(peer: Peer) -> None:
    topic, group = peer.create_topic(queues=2), peer.fresh("group")
    for queue in range(2):
        peer.send(topic, [f"{queue}-{i}" for i in range(5)], queue=queue)
    name = peer.fresh("lite")
    command = {"group": group, "nameserver": peer.server.nameserver, "topic": topic}
    peer.driver.do("lite", name=name, **command)
    found = peer.driver.do("poll", name=name, count=10, timeout=15_000, commit=True)["messages"]
    assert bodies(found) == sorted(f"{queue}-{i}" for queue in range(2) for i in range(5))
    peer.driver.do("close", name=name)

    peer.send(topic, ["0-5"], queue=0)
    second = peer.fresh("lite")
    peer.driver.do("lite", name=second, **command)
    assert bodies(peer.driver.do("poll", name=second, count=1, timeout=15_000)["messages"]) == ["0-5"]
    peer.driver.do("close", name=second)

    by_hand = peer.fresh("lite")
    peer.driver.do("lite", name=by_hand, **{**command, "group": peer.fresh("group")}, assign=True)
    # Everything first: what is on its way while the client seeks, 4.9 hands out all the same.
    assert len(peer.driver.do("poll", name=by_hand, count=11, timeout=15_000)["messages"]) == 11
    peer.driver.do("seek", name=by_hand, topic=topic, queue=0, offset=4)
    peer.driver.do("seek", name=by_hand, topic=topic, queue=1, offset=5)
    assert bodies(peer.driver.do("poll", name=by_hand, count=2, timeout=15_000)["messages"]) == ["0-4", "0-5"]


# -- look-ups ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("look-up", "rocketmq-5.3", "rocketmq-4.9")
def test_messages_are_found_by_key_and_by_id(peer: Peer) -> None:
    topic = peer.create_topic(queues=2)
    results = peer.send(topic, [{"body": f"m{i}", "keys": f"order-{i % 2} all"} for i in range(6)], queue=1)
    look_up = {"name": peer.producer(), "topic": topic}

    def by_key(key: str) -> list[str]:
        try:
            return bodies(peer.driver.do("query", **look_up, key=key, max=32)["messages"])
        except DriverError:
            return []

    # The key index follows the log by a moment.
    wait_until(lambda: len(by_key("all")) == 6, "all are indexed")
    assert by_key("order-0") == ["m0", "m2", "m4"]
    assert by_key("nothing") == []
    with pytest.raises(DriverError) as absent:
        peer.driver.do("query", **look_up, key="nothing", max=32)
    assert absent.value.kind == "MQClientException"
    for result, body in zip(results, (f"m{i}" for i in range(6)), strict=True):
        for name in ("offsetMsgId", "msgId"):
            found = peer.driver.do("view", **look_up, id=result[name])
            assert (found["body"], found["queueId"], found["queueOffset"]) == (body, 1, result["queueOffset"])


# -- restart -----------------------------------------------------------------------------------------------------


@pytest.mark.feature("offsets", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.parametrize("crash", [False, True], ids=["stop", "crash"])
def test_offsets_and_messages_survive_a_restart(peer: Peer, crash: bool) -> None:
    topic, group = peer.create_topic(queues=2), peer.fresh("group")
    peer.send(topic, [f"before-{i}" for i in range(10)])
    consumer = peer.push(topic, group=group)
    assert len(peer.received(consumer, 10)) == 10
    # The client commits every 5 s. One that is closed at once may not count the message that it has just handed over.
    wait_until(lambda: saved_offset_sum(peer.server.store, topic, group) == 10, "the offsets are on disk")
    peer.close(consumer)
    peer.server.restart(crash=crash)

    def sends() -> bool:
        try:
            peer.send(topic, ["after"])
        except DriverError:
            return False
        return True

    wait_until(sends, "the producer finds the broker again")
    assert bodies(peer.received(peer.push(topic, group=group), 1)) == ["after"]
    assert len(peer.received(peer.push(topic), 11)) == 11
