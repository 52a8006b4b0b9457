"""A consumer that can get nothing says so, instead of waiting in silence."""

from __future__ import annotations

import asyncio
import logging

import pytest

import penstock
from penstock.errors import ClientError
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


def test_a_consumer_without_a_group_is_warned_of(
    penstock_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.Consumer(penstock_broker):
        pass
    with penstock.Consumer(penstock_broker, "billing"):
        pass
    assert len(messages(caplog)) == 1
    assert "shares the messages with all other consumers in DEFAULT_CONSUMER" in messages(caplog)[0]
