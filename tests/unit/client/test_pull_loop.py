"""Pulling one queue from a broker that answers as the test wants: every code, damage, limits, back-pressure."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.received import ReceivedMessage
from penstock.message import StoredMessage
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from tests.unit.client.consumer_cluster import ScriptedBroker, found, pulled, scripted
from tests.unit.client.consumer_messages import records, stored
from tests.waiting import turns, until

Step = Callable[[Command], "Command | None"]


def script(*steps: Step) -> Step:
    """One step per pull; after the last, pulls are held."""
    waiting = list(steps)

    def pull(request: Command) -> Command | None:
        return waiting.pop(0)(request) if waiting else None

    return pull


def run(
    pull: Step,
    body: Callable[[AsyncConsumer, ScriptedBroker], Awaitable[None]],
    **settings: Any,
) -> ScriptedBroker:
    async def scenario() -> ScriptedBroker:
        async with scripted() as broker:
            broker.pull = pull
            settings.setdefault("pull_retry_ms", 20)
            settings.setdefault("close_timeout_ms", 0)
            async with AsyncConsumer(broker.address, group="g", **settings) as consumer:
                await consumer.subscribe("T")
                await body(consumer, broker)
            return broker

    return asyncio.run(scenario())


async def take(consumer: AsyncConsumer, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    async with asyncio.timeout(60):
        async for message in consumer:
            got.append(message)
            if len(got) == count:
                return got
    return got


async def settled(consumer: AsyncConsumer) -> None:
    """Until the answers that the broker has sent are taken, and what follows from them was sent to it."""
    for _ in range(3):
        await consumer.core.instance.heartbeat()
        await turns()


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def batch(start: int, count: int, **parts: Any) -> list[StoredMessage]:
    return [stored(offset, **parts) for offset in range(start, start + count)]


def asked(broker: ScriptedBroker) -> list[int]:
    return [request.integer("queueOffset") for request in broker.pulls]


def test_the_question_carries_what_the_reference_sends() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 2)) == [0, 1]

    broker = run(script(lambda request: found(request, batch(0, 2), 2)), body)
    first, second = broker.pulls[:2]
    assert first.fields["consumerGroup"] == "g"
    assert (first.fields["maxMsgNums"], first.fields["penstockPull"]) == ("256", "batch")
    assert first.fields["suspendTimeoutMillis"] == "15000"
    assert first.integer("sysFlag") == PullSysFlag.SUSPEND
    assert "subscription" not in first.fields
    assert second.integer("queueOffset") == 2
    subscription = next(s for s in broker.heartbeats[0].consumers[0].subscriptions if s.topic == "T")
    assert first.integer("subVersion") == subscription.sub_version


def test_what_is_done_is_committed_with_the_next_pull_and_at_the_end() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        messages = aiter(consumer)
        for _ in range(3):
            await anext(messages)

    broker = run(
        script(lambda r: found(r, batch(0, 2), 2), lambda r: found(r, batch(2, 2), 4)), body, auto_ack=True
    )
    assert broker.commits[-1] == 3
    assert all(
        request.integer("sysFlag") & PullSysFlag.COMMIT_OFFSET
        for request in broker.pulls
        if request.integer("commitOffset")
    )


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_nothing_new_goes_on_where_the_broker_says(code: ResponseCode) -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 1)) == [40]

    broker = run(script(lambda r: pulled(r, code, 40), lambda r: found(r, batch(40, 1), 41)), body)
    assert asked(broker)[:2] == [0, 40]
    # What was looked at and not wanted is done with.
    assert broker.pulls[1].fields["commitOffset"] == "40"


def test_a_moved_offset_begins_anew_there(caplog: pytest.LogCaptureFixture) -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 1)) == [7]

    with caplog.at_level(logging.WARNING):
        broker = run(
            script(
                lambda r: pulled(r, ResponseCode.PULL_OFFSET_MOVED, 7), lambda r: found(r, batch(7, 1), 8)
            ),
            body,
        )
    assert asked(broker)[:2] == [0, 7]
    assert "instead of 0" in caplog.text


@pytest.mark.parametrize(
    "code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.NO_PERMISSION, 1]
)
def test_trouble_is_waited_out(code: int) -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 1)) == [0]

    broker = run(script(*[lambda r: r.answer(code, "no")] * 3, lambda r: found(r, batch(0, 1), 1)), body)
    assert asked(broker)[:4] == [0, 0, 0, 0]


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST])
def test_a_broker_that_does_not_know_us_is_told(code: ResponseCode) -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        await take(consumer, 1)

    broker = run(script(lambda r: r.answer(code, "who"), lambda r: found(r, batch(0, 1), 1)), body)
    assert len(broker.heartbeats) >= 2


def test_a_broken_connection_is_made_again() -> None:
    def hang_up(request: Command) -> None:
        for connection in list(servers[0].connections):
            connection.abort("no reason")

    servers: list[Any] = []

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        servers.append(broker.server)
        broker.pull = script(hang_up, lambda r: found(r, batch(0, 1), 1))
        assert offsets(await take(consumer, 1)) == [0]

    run(lambda request: pulled(request, ResponseCode.SYSTEM_BUSY, 0), body)


@pytest.mark.invariant("I12")
def test_damage_stops_the_queue_and_is_said_but_what_comes_before_it_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def damaged(request: Command) -> Command:
        body = bytearray(records(*batch(0, 2)))
        body[-6] ^= 0xFF  # of "hi"
        return pulled(request, 0, 2, bytes(body))

    def still_damaged(request: Command) -> Command:
        body = bytearray(records(*batch(1, 1)))
        body[-6] ^= 0xFF  # of "hi"
        return pulled(request, 0, 2, bytes(body))

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 2)) == [0, 1]

    steps = script(damaged, still_damaged, still_damaged, lambda r: found(r, batch(1, 1), 2))

    def pull(request: Command) -> Command | None:
        # A question behind the damage was on its way before the damage was seen; it does not count.
        return None if request.integer("queueOffset") > 1 else steps(request)

    with caplog.at_level(logging.ERROR):
        broker = run(pull, body)
    # Damage is asked for again, never skipped.
    assert [offset for offset in asked(broker) if offset < 2] == [0, 1, 1, 1]
    assert "offset 1" in caplog.text


@pytest.mark.abuse("A26")
def test_records_of_another_topic_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert [m.body for m in await take(consumer, 1)] == [b"mine"]

    with caplog.at_level(logging.ERROR):
        run(
            script(
                lambda r: found(r, [stored(0, b"secret", topic="Other")], 1),
                lambda r: None,
                lambda r: found(r, [stored(0, b"mine")], 1),
            ),
            body,
        )
    assert "Other" in caplog.text


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("next_offset", ["-1", "x", "0", "9" * 30])
def test_an_answer_that_leads_nowhere_is_not_followed(next_offset: str) -> None:
    def nonsense(request: Command) -> Command:
        return found(request, batch(0, 1), 0, nextBeginOffset=next_offset)

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 1)) == [0]

    broker = run(script(nonsense, lambda r: found(r, batch(0, 1), 1)), body)
    assert asked(broker)[:2] == [0, 0]


@pytest.mark.seed("S3-13")
def test_pulling_pauses_while_too_much_is_not_done() -> None:
    def endless(request: Command) -> Command:
        start = request.integer("queueOffset")
        return found(request, batch(start, 10), start + 10)

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        messages = aiter(consumer)
        await anext(messages)
        await until(lambda: len(broker.pulls) >= 3)
        await settled(consumer)
        # 30 fill the queue, and one more answer was on its way.
        assert len(broker.pulls) <= 5
        before = len(broker.pulls)
        for _ in range(30):
            await anext(messages)
        await until(lambda: len(broker.pulls) > before)

    run(endless, body, queue_messages_max=30)


@pytest.mark.seed("S1-88")
def test_a_slave_is_pulled_from_when_the_broker_says_so() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        slave = ScriptedBroker()
        await slave.start()
        try:
            await consumer.wait_assigned()
            consumer.core.instance.routes.cache.brokers["b"].broker_addrs[1] = slave.address
            slave.pull = script(lambda r: found(r, batch(1, 1), 2))
            broker.pull = script(lambda r: found(r, batch(0, 1), 1, suggestWhichBrokerId="1"))
            assert offsets(await take(consumer, 2)) == [0, 1]
            # Offsets are the master's business.
            assert not slave.pulls[0].integer("sysFlag") & PullSysFlag.COMMIT_OFFSET
        finally:
            await slave.stop()

    run(lambda request: pulled(request, ResponseCode.SYSTEM_BUSY, 0), body)


def test_a_pull_that_never_returns_is_given_up_and_tried_again() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        silent: list[Command] = []

        def silent_once(request: Command) -> Command | None:
            """The same answer again, should the client have given up one that came too late."""
            if not silent:
                silent.append(request)
                return None
            return found(request, batch(0, 1), 1) if request.integer("queueOffset") == 0 else None

        broker.pull = silent_once
        assert offsets(await take(consumer, 1)) == [0]

    run(
        lambda request: pulled(request, ResponseCode.SYSTEM_BUSY, 0), body, suspend_ms=50, pull_timeout_ms=200
    )


def test_without_suspension_an_empty_queue_is_not_asked_in_a_circle() -> None:
    times: list[float] = []

    def empty(request: Command) -> Command:
        times.append(time.monotonic())
        return pulled(request, ResponseCode.PULL_NOT_FOUND, 0)

    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        await until(lambda: len(times) >= 4)

    broker = run(empty, body, suspend_ms=0, pull_retry_ms=50)
    # Each waits for the one before it, and for `pull_retry_ms` after its answer.
    assert times[3] - times[0] > 0.09
    assert broker.pulls[0].integer("sysFlag") == 0


def test_a_queue_that_nothing_comes_of_is_taken_anew() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        await consumer.wait_assigned()
        [owner] = consumer.core.holdings.owners
        owner.pulled_ms -= 200_000
        holdings = consumer.core.holdings
        await until(lambda: holdings.owners and holdings.owners[0] is not owner)

    run(lambda request: None, body)


def test_without_its_lock_an_orderly_queue_waits() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        assert offsets(await take(consumer, 1)) == [0]
        broker.grants_locks = False
        await until(lambda: not consumer.assignment)
        broker.grants_locks = True
        await consumer.wait_assigned()
        assert broker.locks[0].client_id == consumer.client_id

    run(script(lambda r: found(r, batch(0, 1), 1)), body, orderly=True, lock_interval_ms=50)


def test_a_lock_that_cannot_be_renewed_runs_out() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        await take(consumer, 1)
        [owner] = consumer.core.holdings.owners
        broker.answers[RequestCode.LOCK_BATCH_MQ] = lambda request: request.answer(1, "not now")
        await until(lambda: not owner.is_locked)
        assert not owner.gives_out
        del broker.answers[RequestCode.LOCK_BATCH_MQ]
        await until(lambda: owner.is_locked)
        assert consumer.assignment

    run(
        script(lambda r: found(r, batch(0, 1), 1)),
        body,
        orderly=True,
        lock_interval_ms=30,
        lock_expiry_ms=60,
    )


def test_a_broker_that_hangs_up_after_every_answer_is_not_stormed() -> None:
    async def body(consumer: AsyncConsumer, broker: ScriptedBroker) -> None:
        beats: list[Command] = []

        def answer_and_hang_up(request: Command) -> Command:
            beats.append(request)
            assert broker.server is not None
            for connection in list(broker.server.connections):
                asyncio.get_running_loop().call_later(0.005, connection.abort)
            return request.answer()

        broker.answers[RequestCode.HEART_BEAT] = answer_and_hang_up
        await consumer.core.instance.heartbeat()
        # A slow machine makes fewer of them.
        await asyncio.sleep(0.5)
        assert len(beats) <= 5

    run(lambda request: None, body)
