"""When queues are divided anew: every twenty seconds, at once on notice; and what if brokers say odd things."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.options import ConsumerOptions
from penstock.protocol.bodies import ConsumerList
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.unit.client.consumer_cluster import ScriptedBroker, scripted
from tests.waiting import until

Body = Callable[[AsyncConsumer, ScriptedBroker], Awaitable[None]]
FIRST = "!"  # sorts before every client id, so the only queue is its


def run(body: Body, topics: set[str] | None = None, **settings: Any) -> ScriptedBroker:
    async def scenario() -> ScriptedBroker:
        async with scripted() as broker:
            broker.topics |= topics or set()
            async with AsyncConsumer(broker.address, group="g", **settings) as consumer:
                await consumer.subscribe("T")
                await consumer.wait_assigned()
                await body(consumer, broker)
            return broker

    return asyncio.run(scenario())


def members(*ids: str) -> Callable[[Command], Command]:
    return lambda request: request.answer(body=ConsumerList(ids).encode())


@pytest.mark.seed("S3-20", "S3-35")
def test_every_twenty_seconds_unless_told_otherwise() -> None:
    assert ConsumerOptions().rebalance_interval_ms == 20_000

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert len(consumer.assignment) == 1
        # Nobody says anything; the consumer finds out by itself.
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members(FIRST, consumer.client_id)
        await until(lambda: not consumer.assignment)
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members(consumer.client_id)
        await until(lambda: consumer.assignment)

    run(body, rebalance_interval_ms=50)


@pytest.mark.seed("S3-20")
def test_at_once_on_notice() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members(FIRST, consumer.client_id)
        assert broker.server is not None
        for connection in broker.server.connections:
            connection.send(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}))
        await until(lambda: not consumer.assignment)

    # With a route for every topic nothing but the notice makes it look again.
    run(body, topics={"T", "%RETRY%g"})


def test_an_error_instead_of_members_changes_nothing() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        asked: list[Command] = []

        def refuse(request: Command) -> Command:
            asked.append(request)
            return request.answer(1, "no consumer for this group")

        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = refuse
        await until(lambda: len(asked) >= 2)
        assert len(consumer.assignment) == 1

    run(body, rebalance_interval_ms=50)


def test_a_consumer_that_is_not_listed_introduces_itself_and_then_lets_go() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        beats = len(broker.heartbeats)
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = members("somebody else")
        await until(lambda: not consumer.assignment)
        assert len(broker.heartbeats) > beats
        del broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
        await until(lambda: consumer.assignment)

    run(body, rebalance_interval_ms=50)


@pytest.mark.parametrize("answer", [members("somebody else"), lambda request: request.answer(1, "not now")])
def test_waiting_for_a_share_outlasts_rounds_that_could_not_divide(
    answer: Callable[[Command], Command],
) -> None:
    async def scenario() -> None:
        async with scripted() as broker:
            asked = 0

            def not_at_first(request: Command) -> Command:
                nonlocal asked
                asked += 1
                return answer(request) if asked <= 2 else members(consumer.client_id)(request)

            broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = not_at_first
            async with AsyncConsumer(broker.address, group="g", rebalance_interval_ms=100) as consumer:
                await consumer.subscribe("T")
                assert len(await consumer.wait_assigned()) == 1
                assert asked > 2

    asyncio.run(scenario())


def test_an_offset_that_cannot_be_had_is_asked_for_again() -> None:
    async def scenario() -> None:
        async with scripted() as broker:
            refused: list[Command] = []

            def refuse(request: Command) -> Command:
                refused.append(request)
                return request.answer(1, "not now")

            broker.answers[RequestCode.QUERY_CONSUMER_OFFSET] = refuse
            async with AsyncConsumer(broker.address, group="g", rebalance_interval_ms=100) as consumer:
                await consumer.subscribe("T")
                await until(lambda: len(refused) >= 2)
                assert not consumer.assignment
                del broker.answers[RequestCode.QUERY_CONSUMER_OFFSET]
                await until(lambda: consumer.assignment)

    asyncio.run(scenario())


def test_leaving_stores_offsets_and_says_goodbye_in_this_order() -> None:
    async def scenario() -> list[int]:
        said: list[int] = []
        async with scripted() as broker:
            for code in (
                RequestCode.UPDATE_CONSUMER_OFFSET,
                RequestCode.UNLOCK_BATCH_MQ,
                RequestCode.UNREGISTER_CLIENT,
            ):

                def note(request: Command) -> Command:
                    said.append(request.code)
                    return request.answer()

                broker.answers[code] = note
            broker.stored_offset = 7
            async with AsyncConsumer(broker.address, group="g", orderly=True) as consumer:
                await consumer.subscribe("T")
                await consumer.wait_assigned()
        return said

    assert asyncio.run(scenario()) == [
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UNREGISTER_CLIENT,
    ]
