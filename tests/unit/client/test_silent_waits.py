"""A consumer that can get nothing says so, instead of waiting in silence."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client import queue_loop
from penstock.client.conflicts import Conflicts
from penstock.client.loop_thread import LoopThread
from penstock.errors import ClientError
from penstock.protocol.bodies import ConsumerConnection, ConsumerData, MessageModel, SubscriptionData
from penstock.protocol.bodies.membership import ClientConnection
from penstock.testing.embedded import EmbeddedBroker
from tests.waiting import wait_until


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("style", ["iterate", "poll", "pop"])
def test_reading_without_a_subscription_is_an_error(penstock_broker: str, style: str) -> None:
    settings = {"delivery": "pop"} if style == "pop" else {}
    with penstock.Consumer(penstock_broker, "g", **settings) as consumer:
        with pytest.raises(ClientError, match=r"subscribed to no topic; call subscribe\(topic\)"):
            next(iter(consumer)) if style == "iterate" else getattr(consumer, style)()
        consumer.subscribe("T")
        assert style == "iterate" or getattr(consumer, style)(timeout_s=0.01) == []


def test_the_asynchronous_consumer_does_the_same(penstock_broker: str) -> None:
    async def scenario() -> None:
        async with penstock.AsyncConsumer(penstock_broker, "g") as consumer:
            with pytest.raises(ClientError, match="subscribed to no topic"):
                await consumer.poll()

    asyncio.run(scenario())


def test_assigned_queues_are_enough(penstock_broker: str) -> None:
    with (
        penstock.Producer(penstock_broker) as producer,
        penstock.Consumer(penstock_broker, "g", start_from="first") as consumer,
    ):
        consumer.assign([producer.send("T", b"x").queue])
        wait_until(lambda: consumer.poll(timeout_s=0.1), "the message of the assigned queue")


def test_a_topic_that_does_not_exist_is_warned_of(
    penstock_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.Consumer(penstock_broker, "g") as consumer:
        consumer.subscribe("Ordres")
        wait_until(lambda: messages(caplog), "a warning")
    assert messages(caplog)[0].startswith(
        "group g waits for messages: topic 'Ordres' has no route; create it first"
    )


@pytest.mark.parametrize("delivery", ["pull", "pop", "push"])
def test_a_broker_that_dies_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    """The loop of the program only sees that no more messages come."""
    monkeypatch.setattr(queue_loop, "OUTAGE_MS", 300)
    thread = LoopThread("dying broker")
    server = EmbeddedBroker()
    thread.run(server.start())
    try:
        with (
            penstock.Producer(server.address) as producer,
            penstock.Consumer(
                server.address,
                "g",
                start_from="first",
                delivery=delivery,
                pull_retry_ms=100,
                close_timeout_ms=100,
            ) as consumer,
        ):
            producer.send("T", b"x")
            consumer.subscribe("T")
            next(iter(consumer))
            assert server.broker is not None
            thread.run(server.broker.stop())
            wait_until(lambda: heard(caplog, "group g has read nothing from broker test-broker for"))
            wait_until(
                lambda: heard(caplog, "keeps trying: cannot connect to 127.0.0.1:", "Connection refused")
            )
        assert len([text for text in messages(caplog) if "has read nothing" in text]) == 1
    finally:
        thread.run(server.stop())
        thread.stop()


def test_a_consumer_without_a_group_is_warned_of(
    penstock_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.Consumer(penstock_broker):
        pass
    with penstock.Consumer(penstock_broker, "billing"):
        pass
    assert len(messages(caplog)) == 1
    assert "shares the messages with all other consumers in DEFAULT_CONSUMER" in messages(caplog)[0]


# -- members of a group that do not agree ------------------------------------------------------------------------


def heard(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    return any(all(word in text for word in words) for text in messages(caplog))


@pytest.mark.parametrize(
    ("topic", "expression", "settings", "terms"),
    [
        ("U", "*", {}, "clustering: U (*)"),
        ("T", "b || a", {}, "clustering: T (a || b)"),
        ("T", "*", {"model": "broadcasting"}, "broadcasting: T (*)"),
        ("T", "*", {"delivery": "pop"}, "clustering by pop: T (*)"),
    ],
    ids=["topic", "expression", "model", "delivery"],
)
def test_members_that_do_not_agree_name_each_other(
    penstock_broker: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    topic: str,
    expression: str,
    settings: dict[str, Any],
    terms: str,
) -> None:
    with penstock.Admin(penstock_broker) as admin:
        admin.create_topic("T", queues=4)
        admin.create_topic("U", queues=4)
    quick: dict[str, Any] = {"rebalance_interval_ms": 500, "offset_directory": str(tmp_path)}
    with (
        penstock.Consumer(penstock_broker, "g", **quick) as first,
        penstock.Consumer(penstock_broker, "g", **quick, **settings) as second,
    ):
        first.subscribe("T")
        second.subscribe(topic, expression)
        of_second = (f"group g: {first.client_id} at 127.0.0.1:", "consumes clustering: T (*); this client")
        wait_until(lambda: heard(caplog, *of_second, terms), "the second to name the first")
        if (
            topic == "U" or expression != "*"
        ):  # brokers tell no member when a broadcasting or popping one comes
            of_first = (f"group g: {second.client_id} at 127.0.0.1:", f"consumes {terms}; this client")
            wait_until(lambda: heard(caplog, *of_first, "or another group"), "the first to name the second")


def test_consumers_without_a_group_name_each_other(
    penstock_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        penstock.Producer(penstock_broker) as producer,
        penstock.Consumer(penstock_broker) as first,
        penstock.Consumer(penstock_broker) as second,
    ):
        producer.send("T", b"x")
        first.subscribe("T")
        second.subscribe("T")
        shares = "in DEFAULT_CONSUMER it shares the messages with"
        wait_until(lambda: heard(caplog, shares, f"{first.client_id} at 127.0.0.1:"), "the first to be named")


def own_entry() -> ConsumerData:
    return ConsumerData("g", subscriptions=(SubscriptionData.parse("T", "a || b"),))


def test_members_that_agree_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    conflicts = Conflicts("me", own_entry)
    same = ConsumerData("g", subscriptions=(SubscriptionData.parse("T", "b||a"),))
    conflicts.look(ConsumerConnection((ClientConnection("you", "1.2.3.4:5", terms=same.terms),)))
    conflicts.look(ConsumerConnection((ClientConnection("you", "1.2.3.4:5"),), {"T": same.subscriptions[0]}))
    assert messages(caplog) == []


def test_a_broker_that_knows_the_group_only_has_all_others_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """RocketMQ's brokers keep what the latest heartbeat said for the whole group."""
    conflicts = Conflicts("me", own_entry)
    clients = tuple(ClientConnection(f"c{number}", f"1.2.3.4:{number}") for number in range(5))
    for _ in range(2):
        conflicts.look(
            ConsumerConnection(
                (ClientConnection("me", "1.2.3.4:9"), *clients),
                {"T": SubscriptionData.parse("T", "*")},
                message_model=MessageModel.BROADCASTING,
            )
        )
    (text,) = messages(caplog)
    assert "c0 at 1.2.3.4:0, c1 at 1.2.3.4:1, c2 at 1.2.3.4:2 and 2 more consumes broadcasting: T (*)" in text


# -- messages that are not acknowledged --------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True], ids=["any order", "in order"])
def test_pop_reports_what_is_not_acknowledged_and_releases_it(
    penstock_broker: str, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    with (
        penstock.Producer(penstock_broker) as producer,
        penstock.Admin(penstock_broker) as admin,
        penstock.Consumer(
            penstock_broker, "g", delivery="pop", start_from="first", invisible_ms=2_000, orderly=orderly
        ) as consumer,
    ):
        admin.create_topic("T", queues=1)
        sent = {b"%d" % number for number in range(100)}
        for body in sent:
            producer.enqueue("T", body)
        producer.flush()
        consumer.subscribe("T")
        taken: list[penstock.ReceivedMessage] = []
        wait_until(lambda: taken.extend(consumer.pop(timeout_s=0.2)) or heard(caplog, "nothing more"))
        assert heard(caplog, "nothing more of topic T is popped", "call ack(message) or retry(message)")
        assert len(taken) <= 97
        again = wait_until(lambda: consumer.pop(timeout_s=0.2), "the messages to come again")
        assert {message.body for message in again} <= sent
        first = taken[0].body
        while first not in {message.body for message in again}:
            for message in again:
                consumer.ack(message)
            again = wait_until(lambda: consumer.pop(timeout_s=0.2), "the first message to come again")


def test_what_waits_here_is_the_programs_for_the_whole_time_from_when_it_took_it(
    penstock_broker: str,
) -> None:
    """It was popped with others and waited behind them; nobody else gets it meanwhile."""
    settings: dict[str, Any] = {"delivery": "pop", "start_from": "first", "invisible_ms": 2_000}
    with (
        penstock.Producer(penstock_broker) as producer,
        penstock.Consumer(penstock_broker, "g", **settings) as consumer,
        penstock.Consumer(penstock_broker, "g", **settings) as other,
    ):
        for number in range(2):
            producer.send("T", b"%d" % number, queue_key="k")
        consumer.subscribe("T")
        (first,) = wait_until(lambda: consumer.pop(max_messages=1))
        consumer.ack(first)
        other.subscribe("T")
        other.pop(timeout_s=3)  # longer than the second message would be ours without being looked after
        (second,) = consumer.pop(max_messages=1)
        consumer.ack(second)
        assert other.pop(timeout_s=3) == []
