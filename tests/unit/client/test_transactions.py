"""Transactions of producers against a real broker: what consumers see, and what questions are answered with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import ReceivedMessage, TransactionState
from penstock.errors import ClientError, MessageError, SendFailedError, SendUnknownError
from penstock.message import encode_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import HALF_TOPIC
from penstock.remoting import Connection
from penstock.testing import EmbeddedBroker
from penstock.testing.embedded import BROKER
from tests.support.transaction_bench import halves, stored
from tests.waiting import until

# It asks as often as it takes a slow machine to have somebody who answers.
QUICK = replace(
    BROKER, transaction_check_interval_ms=100, transaction_timeout_ms=50, transaction_check_max=100_000
)
SLOW = replace(BROKER, transaction_check_interval_ms=3_600_000)


@asynccontextmanager
async def cluster(path: Path | None = None, options: Any = SLOW) -> AsyncIterator[EmbeddedBroker]:
    embedded = EmbeddedBroker(path, broker=options)
    await embedded.start()
    try:
        yield embedded
    finally:
        await embedded.stop()


@asynccontextmanager
async def producing(
    options: Any = SLOW, listener: Any = None, **settings: Any
) -> AsyncIterator[tuple[EmbeddedBroker, penstock.AsyncProducer]]:
    """A broker and a producer of group `g`."""
    async with cluster(options=options) as embedded:
        producer = penstock.AsyncProducer(embedded.address, "g", transaction_listener=listener, **settings)
        async with producer:
            yield embedded, producer


def opened(embedded: EmbeddedBroker) -> list[int]:
    assert embedded.broker is not None
    return embedded.broker.transactions.open.offsets()


def run(scenario: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())


def bodies(embedded: EmbeddedBroker, topic: str = "T") -> list[bytes]:
    """What is in the queues of a topic."""
    assert embedded.broker is not None
    return sorted(message.body for queue in range(8) for message in stored(embedded, topic, queue))


class Listener:
    """Answers what it was told to, and remembers who was asked about."""

    def __init__(self, answer: object = TransactionState.COMMIT) -> None:
        self.answer = answer
        self.asked: list[ReceivedMessage] = []
        self.threads: set[str] = set()
        self.event = threading.Event()

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message)
        self.threads.add(threading.current_thread().name)
        self.event.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
def test_a_body_that_returns_commits_and_one_that_raises_rolls_back() -> None:
    async def scenario() -> None:
        async with producing() as (embedded, producer):
            async with producer.transaction("T", b"kept", tag="a", keys="k") as transaction:
                assert bodies(embedded) == []
                assert transaction.result.is_ok
            assert transaction.state == TransactionState.COMMIT
            assert bodies(embedded) == [b"kept"]
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction("T", b"dropped") as transaction:
                    raise ZeroDivisionError
            assert transaction.state is TransactionState.ROLLBACK
            async with producer.transaction(penstock.Message.of("T", b"dropped too", tag="b")) as transaction:
                transaction.rollback()
            assert bodies(embedded) == [b"kept"]
            assert opened(embedded) == []
            [message] = [m for q in range(8) for m in stored(embedded, "T", q)]
            assert (message.tag, message.properties["PGROUP"]) == ("a", "g")
            assert message.properties["UNIQ_KEY"] != transaction.msg_id

    run(scenario)


@pytest.mark.seed("S2-37")
def test_transactions_of_threads() -> None:
    with penstock.testing.broker() as address, penstock.Producer(address, "g") as producer:
        with producer.transaction("T", b"1", queue_key="k"):
            pass
        with pytest.raises(KeyError), producer.transaction("T", b"2", queue_key="k"):
            raise KeyError
        with producer.transaction("T", b"3", queue_key="k") as transaction:
            pass
        with pytest.raises(ClientError, match="has ended"):
            transaction.rollback()
        with pytest.raises(ClientError, match="entered before"):
            transaction.__enter__()
        with penstock.Consumer(address, "c", start_from="first") as consumer:
            consumer.subscribe("T")
            messages = iter(consumer)
            found = [next(messages).body for _ in range(2)]
        assert found == [b"1", b"3"]


def test_what_is_left_open_the_listener_is_asked_about() -> None:
    async def scenario() -> None:
        listener = Listener()
        async with (
            cluster(options=QUICK) as embedded,
            penstock.AsyncProducer(embedded.address, "g", transaction_listener=listener) as producer,
        ):
            body = b"x" * 10_000  # packed on its way, and not when it is shown
            async with producer.transaction("T", body, tag="a") as transaction:
                transaction.unknown()
            await until(lambda: bodies(embedded))
            message = listener.asked[0]
            assert (message.topic, message.body, message.tag) == ("T", body, "a")
            assert message.msg_id == transaction.msg_id
            assert "MainThread" not in listener.threads
            assert len(bodies(embedded)) == 1
            # An exception after `unknown` is no decision.
            listener.answer = TransactionState.ROLLBACK
            transaction = producer.transaction("T", b"2")
            await transaction.__aenter__()
            transaction.unknown()
            await transaction.__aexit__(OSError, OSError("gone"), None)
            assert transaction.state is TransactionState.UNKNOWN
            await until(lambda: not opened(embedded))
            assert len(bodies(embedded)) == 1

    run(scenario)


def test_an_interrupted_body_leaves_the_transaction_open() -> None:
    async def scenario() -> None:
        async with producing() as (embedded, producer):
            entered = asyncio.Event()

            async def work() -> None:
                async with producer.transaction("T", b"1"):
                    entered.set()
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(opened(embedded)) == 1

    run(scenario)


def test_a_transaction_that_is_under_way_is_not_anybody_elses_to_end() -> None:
    """The body takes longer than the broker waits: it is asked, and nobody answers for the program."""

    async def scenario() -> None:
        listener = Listener(TransactionState.ROLLBACK)
        async with (
            cluster(options=QUICK) as embedded,
            penstock.AsyncProducer(embedded.address, "g", transaction_listener=listener) as producer,
        ):
            async with producer.transaction("T", b"1"):
                await until(lambda: len(halves(embedded)) >= 3)
            assert listener.asked == []
            assert bodies(embedded) == [b"1"]

    run(scenario)


@pytest.mark.parametrize("answer", [TransactionState.UNKNOWN, ValueError("broken"), "COMMIT"])
def test_a_listener_that_does_not_know_or_fails_is_asked_again(answer: object) -> None:
    async def scenario() -> None:
        listener = Listener(answer)
        async with (
            cluster(options=QUICK) as embedded,
            penstock.AsyncProducer(embedded.address, "g", transaction_listener=listener) as producer,
        ):
            async with producer.transaction("T", b"1") as transaction:
                transaction.unknown()
            await until(lambda: len(listener.asked) >= 2)
            assert bodies(embedded) == []
            listener.answer = TransactionState.COMMIT
            await until(lambda: bodies(embedded))

    run(scenario)


def test_a_coroutine_may_answer_and_a_producer_that_has_just_started() -> None:
    """What a program left open that is gone, its next run is asked about before it has sent anything."""

    class Later:
        async def check(self, message: ReceivedMessage) -> TransactionState:
            await asyncio.sleep(0)
            return TransactionState.COMMIT

    async def scenario() -> None:
        async with producing(QUICK) as (embedded, producer):
            async with producer.transaction("T", b"1") as transaction:
                transaction.unknown()
            async with penstock.AsyncProducer(
                embedded.address, "g", transaction_listener=Later(), transaction_topics=["T"]
            ):
                await until(lambda: bodies(embedded))

    run(scenario)


def test_without_a_half_message_the_body_does_not_run() -> None:
    async def scenario() -> None:
        refusing = replace(SLOW, reject_transactions=True)
        async with producing(refusing) as (embedded, producer):
            with pytest.raises(SendFailedError, match="transactional"):
                async with producer.transaction("T", b"1"):
                    raise AssertionError("it ran")
            for parts in ({"delay_level": 3}, {"properties": {"TIMER_DELAY_SEC": "5"}}):
                with pytest.raises(MessageError, match="both delayed and transactional"):
                    async with producer.transaction("T", b"1", **parts):
                        raise AssertionError("it ran")
            assert halves(embedded) == []

    run(scenario)


class Deaf:
    """A broker's END_TRANSACTION that stores and does not answer, so many times, or answers something else."""

    def __init__(self, embedded: EmbeddedBroker, times: int, code: int = -1) -> None:
        assert embedded.broker is not None
        self.times, self.code, self.heard = times, code, 0
        handler = embedded.broker.table.find(RequestCode.END_TRANSACTION)
        assert handler is not None
        self._handler = handler
        embedded.broker.table.wrap(RequestCode.END_TRANSACTION, lambda own: self.handle)

    def handle(self, connection: Connection, command: Command) -> Any:
        if command.is_oneway:
            return self._handler(connection, command)  # the answer to a question
        self.heard += 1
        if self.heard > self.times:
            return self._handler(connection, command)
        if self.code >= 0:
            return command.answer(self.code, "not now")
        command.flag |= 2  # one-way: carried out, not answered
        return self._handler(connection, command)


@pytest.mark.fault("F3")
@pytest.mark.invariant("I9")
def test_a_commit_whose_answer_is_lost_is_sent_again_and_adds_nothing() -> None:
    async def scenario() -> None:
        async with cluster() as embedded:
            deaf = Deaf(embedded, 2)
            async with penstock.AsyncProducer(embedded.address, "g", send_timeout_ms=1_000) as producer:
                async with producer.transaction("T", b"1"):
                    pass
                assert deaf.heard == 3
                assert bodies(embedded) == [b"1"]
                deaf.heard = -100
                deaf.times = 0
                with pytest.raises(SendUnknownError, match="will ask"):
                    async with producer.transaction("T", b"2"):
                        pass
                assert bodies(embedded) == [b"1", b"2"]

    run(scenario)


def test_an_end_that_did_not_arrive_is_said_when_the_broker_asks() -> None:
    async def scenario() -> None:
        async with cluster(options=QUICK) as embedded:
            deaf = Deaf(embedded, 2, int(ResponseCode.SYSTEM_BUSY))
            async with penstock.AsyncProducer(embedded.address, "g", retries=1) as producer:
                with pytest.raises(SendUnknownError):
                    async with producer.transaction("T", b"1"):
                        pass
                assert deaf.heard == 2
                await until(lambda: bodies(embedded))
                assert len(bodies(embedded)) == 1

    run(scenario)


def test_a_commit_of_what_was_rolled_back_by_another_is_an_error() -> None:
    async def scenario() -> None:
        async with producing() as (embedded, producer):
            with pytest.raises(SendFailedError, match="rolled back"):
                async with producer.transaction("T", b"1") as transaction:
                    await producer._end(transaction.result, TransactionState.ROLLBACK)
            assert bodies(embedded) == []

    run(scenario)


def test_questions_that_make_no_sense_are_ignored() -> None:
    async def scenario() -> None:
        listener = Listener()
        async with (
            cluster() as embedded,
            penstock.AsyncProducer(embedded.address, "g", transaction_listener=listener) as producer,
        ):
            await producer.send("T", b"plain")
            instance = producer._instance
            assert instance is not None
            [message] = [m for q in range(8) for m in stored(embedded, "T", q)]
            connection = instance.remoting.open_connection(embedded.broker_address)
            assert connection is not None
            with pytest.raises(Exception, match="0 transactions"):
                instance._to_producer(connection, Command(RequestCode.CHECK_TRANSACTION_STATE))
            plain = Command(RequestCode.CHECK_TRANSACTION_STATE, {}, encode_record(message))
            instance._to_producer(connection, plain)  # of no group that lives here
            assert listener.asked == []
            assert embedded.broker.store.max_offset(HALF_TOPIC, 0) == 0  # type: ignore[union-attr]

    run(scenario)
