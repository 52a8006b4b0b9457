"""Penstock's own clients at a real RocketMQ broker, and the same tests at Penstock's: neither may be able to tell."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from tests.interop.wire.conftest import Drivers
from tests.interop.wire.peer import Peer, Server, bodies
from tests.waiting import wait_until

# Routes and shares are looked at often, so that a topic of this second is seen in the next.
QUICK = {"route_interval_ms": 500, "rebalance_interval_ms": 1_000, "heartbeat_interval_ms": 1_000}
_fresh = Peer.fresh


class Listener:
    """Remembers what it was given; `outcome` says what to answer."""

    def __init__(self, outcome: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._outcome = outcome
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> object:
        with self._lock:
            self.messages.append(message)
        return self._outcome(message)

    def await_count(self, count: int) -> list[ReceivedMessage]:
        wait_until(lambda: len(self.messages) >= count, f"{count} messages, not {len(self.messages)}")
        return list(self.messages)

    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.messages)


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


@pytest.fixture
def admin(server: Server) -> Iterator[penstock.Admin]:
    with penstock.Admin(server.nameserver) as opened:
        yield opened


@pytest.fixture
def topic(admin: penstock.Admin) -> str:
    name = _fresh("py-topic")
    admin.create_topic(name, 4)
    return name


# -- sends -------------------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_a_send_of_each_kind_is_consumed(server: Server, topic: str) -> None:
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        parts = {"tag": "t", "keys": ["k1", "k2"], "properties": {"n": "1"}}
        result = producer.send(topic, b"sync", **parts)
        assert result.is_ok
        assert result.queue.topic == topic
        assert (result.region_id, result.trace_on) == ("DefaultRegion", True)
        assert producer.send_async(topic, b"async", **parts).result(10).is_ok
        producer.send_oneway(topic, b"one-way", **parts)
        batch = [penstock.Message.of(topic, b"batch-%d" % i, tag="t", keys="k1 k2") for i in range(3)]
        results = producer.send_batch(batch)
        assert [item.queue_offset - results[0].queue_offset for item in results] == [0, 1, 2]
        big = b"0123456789" * 10_000
        producer.send(topic, big, tag="t")
    with penstock.Consumer(
        server.nameserver, group=_fresh("py-group"), start_from="first", **QUICK
    ) as consumer:
        consumer.subscribe(topic)
        found = list(itertools.islice(consumer, 7))
    assert sorted(message.body for message in found) == sorted(
        [b"sync", b"async", b"one-way", b"batch-0", b"batch-1", b"batch-2", big]
    )
    by_body = {message.body: message for message in found}
    assert by_body[b"sync"].msg_id == result.msg_id
    assert by_body[b"sync"].offset_msg_id == result.offset_msg_id
    for body in (b"sync", b"async", b"one-way"):
        assert (by_body[body].tag, by_body[body].keys, by_body[body].properties["n"]) == (
            "t",
            ["k1", "k2"],
            "1",
        )


@pytest.mark.feature("python-clients", "rocketmq-5.3")
@pytest.mark.parametrize("settings", [{}, {"linger_ms": 5}], ids=["at once", "lingering"])
def test_sends_are_batched_by_themselves(server: Server, topic: str, settings: dict[str, Any]) -> None:
    """Among them messages that the broker takes in no batch, and some that have to keep their order."""
    with penstock.Producer(server.nameserver, group=_fresh("py-producers"), **settings) as producer:
        futures = []
        for number, body in enumerate(numbered(200)):
            parts: dict[str, Any] = {"tag": f"t{number % 3}", "keys": f"k{number}"}
            if number % 50 == 10:
                parts |= {"properties": {"WAIT": "false"}}
            elif number % 50 == 20:
                parts |= {"delay_level": 1}
            elif number % 50 == 30:
                body += b" and more" * 1_000
            elif number % 4 == 1:
                parts |= {"queue_key": "one"}
            futures.append(producer.send_async(topic, body, **parts))
        results = [future.result(30) for future in futures]
    assert all(result.is_ok for result in results)
    keyed = [results[number] for number in range(1, 200, 4) if number % 50 not in (10, 20, 30)]
    assert len({result.queue for result in keyed}) == 1
    offsets = [result.queue_offset for result in keyed]
    assert offsets == sorted(offsets)
    seen = Listener()
    with penstock.Consumer(
        server.nameserver, group=_fresh("py-group"), listener=seen, start_from="first", **QUICK
    ) as consumer:
        consumer.subscribe(topic)
        messages = seen.await_count(200)
    assert sorted(message.body[:3] for message in messages) == numbered(200)
    for message in messages:
        number = int(message.body[:3])
        assert (message.tag, message.keys) == (f"t{number % 3}", [f"k{number}"])
        assert message.msg_id == results[number].msg_id


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_a_topic_comes_into_being_with_its_first_send(server: Server, admin: penstock.Admin) -> None:
    name = _fresh("py-new")
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        assert producer.send(name, b"first").is_ok
    wait_until(lambda: name in admin.list_topics(), "the topic is listed")


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_what_cannot_be_stored_is_refused(server: Server, topic: str) -> None:
    with (
        penstock.Producer(server.nameserver, group=_fresh("py-producers"), template_topic="none") as producer,
        pytest.raises(penstock.ClientError),
    ):
        producer.send(_fresh("py-absent"), b"x")


# -- consumption -------------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_a_group_shares_a_topic_and_takes_over(server: Server, topic: str) -> None:
    group = _fresh("py-group")
    first_seen, second_seen = Listener(), Listener()
    first = penstock.Consumer(
        server.nameserver, group=group, listener=first_seen, start_from="first", **QUICK
    ).start()
    first.subscribe(topic)
    with penstock.Consumer(
        server.nameserver,
        group=group,
        listener=second_seen,
        start_from="first",
        instance_name="second",
        **QUICK,
    ) as second:
        second.subscribe(topic)
        wait_until(lambda: len(_of(first, topic)) == len(_of(second, topic)) == 2, "two queues each")
        with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
            for body in numbered(40):
                producer.send(topic, body)
            wait_until(lambda: len(first_seen.messages) + len(second_seen.messages) >= 40, "all came")
            assert first_seen.messages
            assert second_seen.messages
            first.close()
            wait_until(lambda: len(_of(second, topic)) == 4, "the other took over")
            producer.send(topic, b"after")
            wait_until(lambda: b"after" in second_seen.bodies(), "it goes on")
    assert {*first_seen.bodies(), *second_seen.bodies()} == {*numbered(40), b"after"}


def _of(consumer: penstock.Consumer, topic: str) -> list[penstock.MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == topic]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_broadcasting_reaches_every_member(server: Server, topic: str) -> None:
    group = _fresh("py-group")
    seen = [Listener(), Listener()]
    consumers = []
    for number, listener in enumerate(seen):
        settings = {
            "model": "broadcasting",
            "start_from": "first",
            "instance_name": f"member-{number}",
            **QUICK,
        }
        consumer = penstock.Consumer(server.nameserver, group=group, listener=listener, **settings).start()
        consumer.subscribe(topic)
        consumers.append(consumer)
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        for body in numbered(10):
            producer.send(topic, body)
    for listener in seen:
        listener.await_count(10)
        assert listener.bodies() == numbered(10)
    for consumer in consumers:
        consumer.close()


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_orderly_consumption_keeps_the_order_of_a_key(server: Server, topic: str) -> None:
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        for body in numbered(20):
            for key in ("a", "b", "c"):
                producer.send(topic, key.encode() + body, queue_key=key)
    seen = Listener()
    settings = {"group": _fresh("py-group"), "orderly": True, "start_from": "first", **QUICK}
    with penstock.Consumer(server.nameserver, listener=seen, **settings) as consumer:
        consumer.subscribe(topic)
        seen.await_count(60)
    for key in (b"a", b"b", b"c"):
        assert [m.body[1:] for m in seen.messages if m.body.startswith(key)] == numbered(20)


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_tags_filter(server: Server, topic: str) -> None:
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        for tag in ("red", "blue", "Aa", "BB"):
            producer.send(topic, tag.encode(), tag=tag)
        producer.send(topic, b"none")
    settings = {"group": _fresh("py-group"), "start_from": "first", **QUICK}
    with penstock.Consumer(server.nameserver, **settings) as consumer:
        consumer.subscribe(topic, "red || Aa")
        assert sorted(message.body for message in itertools.islice(consumer, 2)) == [b"Aa", b"red"]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_a_refused_message_comes_again_and_becomes_a_dead_letter(server: Server, topic: str) -> None:
    group = _fresh("py-group")
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        producer.send(topic, b"poison", keys="k")
    seen = Listener(lambda message: penstock.Retry(1))
    settings = {"start_from": "first", "retries_max": 1, **QUICK}
    with penstock.Consumer(server.nameserver, group=group, listener=seen, **settings) as consumer:
        consumer.subscribe(topic)
        tries = seen.await_count(2)
        assert [(message.topic, message.tries) for message in tries] == [(topic, 0), (topic, 1)]
        settings = {"group": _fresh("py-group"), "start_from": "first", **QUICK}
        with penstock.Consumer(server.nameserver, **settings) as dead_letters:
            dead_letters.subscribe(f"%DLQ%{group}")
            dead = next(iter(dead_letters))
    assert (dead.body, dead.keys, dead.properties["RETRY_TOPIC"]) == (b"poison", ["k"], topic)


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_pull_style(server: Server, topic: str) -> None:
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        queue = producer.queues(topic)[1]
        for body in numbered(10):
            producer.send(topic, body, queue=queue)
    group = _fresh("py-group")
    with penstock.Consumer(server.nameserver, group=group, start_from="first", **QUICK) as consumer:
        consumer.assign([queue])
        consumer.seek(queue, 4)
        found: list[bytes] = []
        wait_until(lambda: bool(found.extend(_polled(consumer))) or len(found) >= 6, "six messages")
        assert found == numbered(10)[4:]
        consumer.commit()
        assert consumer.committed(queue) == 10
        consumer.seek_to_first(queue)
        assert consumer.position(queue) == 0
    with penstock.Consumer(server.nameserver, group=group, **QUICK) as consumer:
        assert consumer.committed(queue) == 10


def _polled(consumer: penstock.Consumer) -> list[bytes]:
    return [message.body for message in consumer.poll(32, 0.5)]


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_asynchronous_clients(server: Server, topic: str) -> None:
    async def scenario() -> list[bytes]:
        async with penstock.AsyncProducer(server.nameserver, group=_fresh("py-producers")) as producer:
            results = await asyncio.gather(*(producer.send(topic, body) for body in numbered(20)))
            assert all(result.is_ok for result in results)
        settings = {"group": _fresh("py-group"), "start_from": "first", **QUICK}
        async with penstock.AsyncConsumer(server.nameserver, **settings) as consumer:
            await consumer.subscribe(topic)
            found = []
            async for message in consumer:
                found.append(message.body)
                if len(found) == 20:
                    return found
        raise AssertionError("the consumer ended")

    assert sorted(asyncio.run(asyncio.wait_for(scenario(), 30))) == numbered(20)


# -- administration ----------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_administration(server: Server, admin: penstock.Admin, topic: str) -> None:
    group = _fresh("py-group")
    with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
        queue = producer.queues(topic)[0]
        sent = [producer.send(topic, body, keys="order-1", queue=queue) for body in numbered(6)]
    assert topic in admin.list_topics()
    wait_until(lambda: admin.describe_topic(topic).messages == 6, "all are counted")
    assert admin.min_offset(queue) == 0
    assert admin.max_offset(queue) == 6
    assert admin.offset_at(queue, int(time.time() * 1000) + 60_000) == 6
    wait_until(lambda: len(admin.query_messages(topic, "order-1")) == 6, "all are indexed")
    assert [message.body for message in admin.query_messages(topic, "order-1")] == numbered(6)
    assert admin.get_message(sent[2].offset_msg_id).body == b"002"
    assert admin.get_message(sent[2].msg_id, topic).body == b"002"
    assert [message.body for message in admin.read_messages(queue, 4)] == [b"004", b"005"]

    admin.create_group(group, retry_max_times=3)
    seen = Listener()
    settings = {"listener": seen, "start_from": "first", **QUICK}
    with penstock.Consumer(server.nameserver, group=group, **settings) as consumer:
        consumer.subscribe(topic)
        seen.await_count(6)
        described = admin.describe_group(group)
        assert [member.client_id for member in described.members] == [consumer.client_id]
        assert described.retry_max_times == 3
        assert described.subscriptions[topic] == "*"
    wait_until(lambda: admin.offsets(group, topic).get(queue) == 6, "all is committed")
    assert admin.describe_group(group).lag == 0
    assert admin.reset_offsets(group, topic, offsets={queue: 2})[queue] == 2
    again = Listener()
    with penstock.Consumer(server.nameserver, group=group, listener=again, **QUICK) as consumer:
        consumer.subscribe(topic)
        again.await_count(4)
    assert again.bodies() == numbered(6)[2:]

    # A broker of RocketMQ fails to answer in its first seconds, while it has no statistics.
    wait_until(lambda: admin.cluster_status().is_healthy, "all answer")
    status = admin.cluster_status()
    assert [(broker.name, broker.address) for broker in status.brokers] == [("broker-a", server.broker)]
    assert group in admin.list_groups()
    admin.delete_group(group)
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.list_topics(), "it is gone")


# -- with Java ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("python-clients", "rocketmq-5.3")
def test_python_and_java_read_each_other(server: Server, drivers: Drivers, topic: str) -> None:
    peer = Peer(drivers.get("java-5.3.3"), server)
    try:
        with penstock.Producer(server.nameserver, group=_fresh("py-producers")) as producer:
            result = producer.send(
                topic, b"from Python \xc3\xa9" * 1000, tag="t", keys="k", properties={"p": "é"}
            )
            batch = [penstock.Message.of(topic, b"batch-%d" % i) for i in range(3)]
            producer.send_batch(batch)
        found = peer.received(peer.push(topic), 4)
        whole = next(message for message in found if message.get("tags") == "t")
        assert (whole["bodyLength"], whole["keys"], whole["properties"]["p"]) == (14_000, "k", "é")
        assert whole["msgId"] == result.msg_id
        assert bodies(message for message in found if message is not whole) == [
            "batch-0",
            "batch-1",
            "batch-2",
        ]
        peer.send(topic, [{"body": "from Java é", "fill": 1000, "keys": "k"}, {"body": "short", "tags": "t"}])
        settings = {"group": _fresh("py-group"), "start_from": "first", **QUICK}
        with penstock.Consumer(server.nameserver, **settings) as consumer:
            consumer.subscribe(topic)
            messages = {message.body: message for message in itertools.islice(consumer, 6)}
        assert messages["from Java é".encode() * 1000].keys == ["k"]
        assert messages[b"short"].tag == "t"
    finally:
        peer.end()
