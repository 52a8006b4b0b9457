"""Consumers that pop, at a real broker: acknowledged, rested, kept while they are worked on, and given up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from penstock import AsyncConsumer, Consumer, Producer
from penstock.client.consumer_core import watch_ms
from penstock.client.options import ConsumerOptions
from penstock.client.pop_messages import retry_delay_ms
from penstock.client.received import DEAD_LETTER, ReceivedMessage, Retry
from penstock.errors import ClientError, OptionError
from penstock.message import Message
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, Handler
from penstock.testing import async_broker, broker
from penstock.testing.embedded import EmbeddedBroker
from tests.waiting import PATIENT_SENDS, until, wait_until


def send(address: str, count: int, topic: str = "T", tag: str = "") -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    with Producer(address, **PATIENT_SENDS) as producer:
        for body in bodies:
            producer.send(Message(topic, body, {"TAGS": tag} if tag else {}))
    return bodies


def test_several_consumers_pop_every_message_once() -> None:
    with broker() as address:
        bodies = send(address, 60)
        seen: Counter[bytes] = Counter()
        lock = threading.Lock()

        def work(message: ReceivedMessage) -> None:
            with lock:
                seen[message.body] += 1

        settings = {"group": "g", "listener": work, "delivery": "pop", "pop_batch": 4, "start_from": "first"}
        with Consumer(address, **settings) as one, Consumer(address, **settings) as two:  # type: ignore[arg-type]
            for consumer in (one, two):
                consumer.subscribe("T")
            wait_until(lambda: sum(seen.values()) >= 60)
        # Nothing comes again: all of it was acknowledged.
        with Consumer(address, group="g", delivery="pop") as consumer:
            consumer.subscribe("T")
            assert consumer.pop(timeout_s=0.5) == []
        assert seen == Counter(bodies)


def test_popping_by_hand() -> None:
    with broker() as address:
        bodies = send(address, 3)
        with Consumer(address, group="g", delivery="pop", invisible_ms=5_000, start_from="first") as consumer:
            consumer.subscribe("T")
            found: list[ReceivedMessage] = []
            while len(found) < 3:
                found += consumer.pop(max_messages=3, timeout_s=60)
            assert sorted(m.body for m in found) == bodies
            assert {(m.topic, m.tries) for m in found} == {("T", 0)}
            first, second, third = sorted(found, key=lambda message: message.body)
            consumer.ack(first)
            consumer.retry(second, delay_level=1)
            with pytest.raises(ClientError, match="not waiting"):
                consumer.ack(first)
            # What was neither acknowledged nor retried comes again after its time, as what was retried does.
            again: list[ReceivedMessage] = []
            while len(again) < 2:
                again += consumer.pop(timeout_s=60)
            assert {(m.body, m.topic) for m in again} == {(second.body, "T"), (third.body, "T")}
            assert all(m.tries == 1 for m in again)
            for message in again:
                consumer.ack(message)
            assert consumer.pop(timeout_s=0.5) == []


def test_iterating_and_what_is_left_at_the_end() -> None:
    async def scenario() -> None:
        async with async_broker() as address:
            bodies = await asyncio.to_thread(send, address, 10)
            seen = []
            async with AsyncConsumer(address, group="g", delivery="pop", start_from="first") as consumer:
                await consumer.subscribe("T")
                async for message in consumer:
                    seen.append(message.body)
                    if len(seen) == 4:
                        break
            # The others were popped and not begun with: they come soon, not when their minute is over.
            begun = time.monotonic()
            async with AsyncConsumer(address, group="g", delivery="pop", start_from="first") as consumer:
                await consumer.subscribe("T")
                async for message in consumer:
                    seen.append(message.body)
                    if len(seen) == 10:
                        break
            assert sorted(seen) == bodies
            assert time.monotonic() - begun < 50

    asyncio.run(scenario())


def test_a_listener_that_fails_and_dead_letters() -> None:
    with broker() as address:
        send(address, 2)
        tried: Counter[bytes] = Counter()

        def work(message: ReceivedMessage) -> object:
            tried[message.body] += 1
            if message.body == b"0":
                return DEAD_LETTER
            return Retry(1) if message.tries < 2 else None

        with Consumer(address, group="g", listener=work, delivery="pop", start_from="first") as consumer:
            consumer.subscribe("T")
            wait_until(lambda: tried[b"1"] == 3)
        assert tried == {b"0": 1, b"1": 3}
        with Consumer(address, group="graves", start_from="first") as consumer:
            consumer.subscribe("%DLQ%g")
            [dead] = consumer.poll(timeout_s=60)
            assert dead.body == b"0"


def test_messages_of_a_consumer_that_died_come_to_another() -> None:
    async def scenario() -> None:
        async with async_broker() as address:
            bodies = await asyncio.to_thread(send, address, 3)
            settings: dict[str, object] = {
                "group": "g",
                "delivery": "pop",
                "start_from": "first",
                "invisible_ms": 1_500,
            }
            dead = await AsyncConsumer(address, **settings).start()  # type: ignore[arg-type]
            await dead.subscribe("T")
            taken: list[ReceivedMessage] = []
            while len({message.body for message in taken}) < 3:  # one may come again before the last has come
                taken += await dead.pop(timeout_s=60)
            await dead.core.abandon()
            settings["invisible_ms"] = 60_000
            async with AsyncConsumer(address, **settings) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe("T")
                found: list[ReceivedMessage] = []
                while len(found) < 3:
                    found += await consumer.pop(timeout_s=60)
                for message in found:
                    consumer.ack(message)
            assert sorted(message.body for message in found) == bodies
            assert min(message.tries for message in found) >= 1
            await dead.close(timeout_ms=0)

    asyncio.run(scenario())


def test_tags_are_filtered() -> None:
    with broker() as address:
        send(address, 3, tag="a")
        send(address, 2, tag="b")
        with Consumer(address, group="g", delivery="pop", start_from="first") as consumer:
            consumer.subscribe("T", "b")
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += consumer.pop(timeout_s=60)
            assert [message.tag for message in found] == ["b", "b"]
            for message in found:
                consumer.ack(message)
            assert consumer.pop(timeout_s=0.3) == []


def test_sql_conditions_are_the_brokers_work() -> None:
    with broker() as address:
        with Producer(address) as producer:
            for number in range(6):
                producer.send(Message("T", b"%d" % number, {"price": str(number)}))
        with Consumer(address, group="g", delivery="pop", start_from="first") as consumer:
            consumer.subscribe("T", sql="price between 2 and 3")
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += consumer.pop(timeout_s=60)
            assert sorted(message.body for message in found) == [b"2", b"3"]
            for message in found:
                consumer.ack(message)
            assert consumer.pop(timeout_s=0.3) == []


def test_acknowledgements_are_repeated() -> None:
    """A broker that is not ready takes them later."""

    async def scenario() -> None:
        embedded = EmbeddedBroker()
        await embedded.start()
        try:
            bodies = await asyncio.to_thread(send, embedded.address, 4)
            settings = {"group": "g", "delivery": "pop", "start_from": "first", "pull_retry_ms": 100}
            async with AsyncConsumer(embedded.address, **settings) as consumer:  # type: ignore[arg-type]
                await consumer.subscribe("T")
                found: list[ReceivedMessage] = []
                while len(found) < 4:
                    found += await consumer.pop(timeout_s=60)
                assert embedded.broker is not None
                pop = embedded.broker.pop
                assert pop is not None
                refused: list[int] = []

                def watched(handler: Handler) -> Handler:
                    def handle(connection: Connection, command: Command) -> Any:
                        refused.append(command.code)
                        return handler(connection, command)

                    return handle

                for code in (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE):
                    embedded.broker.table.wrap(code, watched)
                await pop.service.stop()  # it knows nothing now, and says so
                for message in found:
                    consumer.ack(message)
                await until(lambda: len(refused) > 1)
                assert len(pop.service.state)
                pop.service.start()
                await until(lambda: not len(pop.service.state))
                assert sorted(message.body for message in found) == bodies
        finally:
            await embedded.stop()

    asyncio.run(scenario())


def test_what_a_popping_consumer_has_not() -> None:
    for settings in (
        {"model": "broadcasting"},
        {"balance": "coordinator", "coordinators": "127.0.0.1:1"},
        {"start_from": 5},
        {"invisible_ms": 999},
        {"invisible_ms": 43_200_001},
        {"pop_batch": 33},
    ):
        with pytest.raises(OptionError):
            AsyncConsumer(group="g", delivery="pop", **settings)
    with pytest.raises(OptionError, match="delivery"):
        AsyncConsumer(group="g", delivery="carrier pigeon")

    async def scenario() -> None:
        async with async_broker() as address:
            async with AsyncConsumer(address, group="g", delivery="pop") as consumer:
                for refused in (
                    consumer.poll(),
                    consumer.commit(),
                    consumer.assign([]),
                ):
                    with pytest.raises(ClientError):
                        await refused
            async with AsyncConsumer(address, group="g") as consumer:
                with pytest.raises(ClientError, match="pulls"):
                    await consumer.pop()

    asyncio.run(scenario())


@pytest.mark.parametrize("invisible_ms", [1_000, 2_000, 3_999, 60_000])
def test_a_message_in_hand_is_extended_with_a_quarter_of_its_time_left(invisible_ms: int) -> None:
    """It is looked at in steps, and extended when less than half of its time is left."""
    step_ms = watch_ms(ConsumerOptions(group="g", delivery="pop", invisible_ms=invisible_ms))
    assert 0 < step_ms <= min(1_000, invisible_ms / 4)


def test_how_long_a_message_rests() -> None:
    assert [retry_delay_ms(0, tries) for tries in (0, 1, 15, 100)] == [10_000, 30_000, 7_200_000, 7_200_000]
    assert [retry_delay_ms(level, 9) for level in (1, 2, 18, 99)] == [1_000, 5_000, 7_200_000, 7_200_000]
