"""Being pushed one queue by a broker that sends what the test wants: gaps, repetitions, damage, last words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.received import ReceivedMessage
from penstock.message import StoredMessage
from penstock.protocol.bodies.push import PushResumed, PushResumedBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection
from tests.unit.client.consumer_cluster import ScriptedBroker, scripted
from tests.unit.client.consumer_messages import records, stored
from tests.waiting import turns, until

GOES_ON = PushResumed(client="c", group="g", topic="T", queue_id=0, was="held", goes_on=True, offset=0)


class Pusher:
    """The broker's side: what it was asked, and deliveries as a test makes them."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.asked: list[tuple[RequestCode, dict[str, str]]] = []
        self.refusals: list[int] = []
        self.resumes = True
        self.connection: Connection | None = None
        for code in (
            RequestCode.PUSH_REGISTER,
            RequestCode.PUSH_SUBSCRIBE,
            RequestCode.PUSH_UNSUBSCRIBE,
            RequestCode.PUSH_CLOSE,
            RequestCode.PUSH_RESUME,
        ):
            broker.table.register(code, self._handle)

    def _handle(self, connection: Connection, command: Command) -> Command:
        self.connection = connection
        self.asked.append((RequestCode(command.code), command.fields))
        if command.code == RequestCode.PUSH_SUBSCRIBE and self.refusals:
            return command.answer(self.refusals.pop(0), "not now")
        if command.code == RequestCode.PUSH_RESUME:
            return command.answer(body=PushResumedBody(tasks=(GOES_ON,) if self.resumes else ()).encode())
        return command.answer()

    def times(self, code: RequestCode) -> int:
        return sum(asked == code for asked, _ in self.asked)

    @property
    def offsets(self) -> list[str]:
        """Where each subscription wanted to begin."""
        return [fields["queueOffset"] for code, fields in self.asked if code is RequestCode.PUSH_SUBSCRIBE]

    def _command(self, start: int, end: int, body: bytes, **fields: object) -> Command:
        given = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": 0,
            "queueOffset": start,
            "nextBeginOffset": end,
        }
        texts = {name: str(value) for name, value in (given | fields).items()}
        return Command(RequestCode.PUSH_DELIVER, texts, body)

    async def deliver(
        self, start: int, *messages: StoredMessage, end: int = -1, body: bytes = b""
    ) -> dict[str, str]:
        assert self.connection is not None
        end = start + len(messages) if end < 0 else end
        answer = await self.connection.call(self._command(start, end, body or records(*messages)), 10_000)
        assert answer.code == 0, answer.remark
        return answer.fields

    def last_word(self, status: int, following: int = -1) -> None:
        assert self.connection is not None
        self.connection.send(self._command(0, following, b"", status=status, reason="because"))


class Worker:
    """A listener that can be made to wait; it notes the offsets of what it has done."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, message: ReceivedMessage) -> None:
        await self.gate.wait()
        self.done.append(message.queue_offset)


@asynccontextmanager
async def pushed(**settings: Any) -> AsyncIterator[tuple[Worker, Pusher]]:
    given: dict[str, Any] = {"delivery": "push", "pull_retry_ms": 20, "close_timeout_ms": 0, **settings}
    async with scripted() as broker:
        pusher, worker = Pusher(broker), Worker()
        async with AsyncConsumer(broker.address, group="g", listener=worker, threads=1, **given) as consumer:
            await consumer.subscribe("T")
            yield worker, pusher


def run(scenario: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())


def batch(start: int, count: int) -> list[StoredMessage]:
    return [stored(offset) for offset in range(start, start + count)]


@pytest.mark.invariant("I3")
def test_each_message_is_taken_once_and_in_order() -> None:
    async def scenario() -> None:
        async with pushed() as (worker, pusher):
            await until(lambda: pusher.offsets == ["0"])
            assert await pusher.deliver(0, *batch(0, 3)) == {
                "nextOffset": "3",
                "commitOffset": "0",
                "hold": "false",
            }
            # Again, overlapping, and behind a gap: nothing twice, nothing too early.
            assert (await pusher.deliver(0, *batch(0, 3)))["nextOffset"] == "3"
            assert (await pusher.deliver(1, *batch(1, 4)))["nextOffset"] == "5"
            assert (await pusher.deliver(7, *batch(7, 2)))["nextOffset"] == "5"
            # Messages that the filter left out are passed over, and done with once those before them are.
            assert (await pusher.deliver(5, stored(6), end=9))["nextOffset"] == "9"
            await until(lambda: worker.done == [0, 1, 2, 3, 4, 6])
            await turns()
            done = await pusher.deliver(9, end=12)
            assert (done["nextOffset"], done["commitOffset"]) == ("12", "12")

    run(scenario)


@pytest.mark.invariant("I12")
def test_damage_stops_the_queue_there_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with pushed() as (worker, pusher):
            await until(lambda: pusher.offsets)
            good, bad = records(*batch(0, 2)), bytearray(records(stored(2, b"damaged")))
            bad[-8] ^= 0xFF  # of "damaged"
            answer = await pusher.deliver(0, end=3, body=good + bytes(bad))
            assert (answer["nextOffset"], answer["hold"]) == ("2", "true")
            await until(lambda: pusher.times(RequestCode.PUSH_RESUME) == 1)
            answer = await pusher.deliver(2, end=3, body=bytes(bad))
            assert (answer["nextOffset"], answer["hold"]) == ("2", "true")
            await until(lambda: pusher.times(RequestCode.PUSH_RESUME) == 2)
            assert (await pusher.deliver(2, stored(2)))["nextOffset"] == "3"
            await until(lambda: worker.done == [0, 1, 2])

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "at offset 2" in caplog.text


def test_a_full_queue_says_so_and_goes_on_when_there_is_room() -> None:
    async def scenario() -> None:
        async with pushed(queue_messages_max=3) as (worker, pusher):
            await until(lambda: pusher.offsets)
            assert pusher.asked[1][1]["windowMessages"] == "3"
            worker.gate.clear()
            assert (await pusher.deliver(0, *batch(0, 3)))["hold"] == "true"
            await turns()
            assert pusher.times(RequestCode.PUSH_RESUME) == 0
            worker.gate.set()
            await until(lambda: worker.done == [0, 1, 2])
            await until(lambda: pusher.times(RequestCode.PUSH_RESUME) == 1)
            # The broker has forgotten the subscription: it is made anew, behind what is here.
            pusher.resumes = False
            worker.gate.clear()
            assert (await pusher.deliver(3, *batch(3, 3)))["hold"] == "true"
            worker.gate.set()
            await until(lambda: pusher.offsets == ["0", "6"])

    run(scenario)


def test_last_words_and_refusals_lead_to_another_subscription() -> None:
    async def scenario() -> None:
        async with pushed() as (worker, pusher):
            await until(lambda: pusher.offsets == ["0"])
            await pusher.deliver(0, *batch(0, 2))
            pusher.refusals = [ResponseCode.NO_PERMISSION, ResponseCode.CONSUMER_NOT_ONLINE]
            pusher.last_word(ResponseCode.SERVICE_NOT_AVAILABLE)
            await until(lambda: pusher.offsets == ["0", "2", "2", "2"])
            # One that does not know us is registered with again.
            assert pusher.times(RequestCode.PUSH_REGISTER) == 2
            pusher.last_word(ResponseCode.PULL_OFFSET_MOVED, 40)
            await until(lambda: pusher.offsets[-1] == "40")
            await pusher.deliver(40, stored(40))
            await until(lambda: worker.done == [0, 1, 40])

    run(scenario)


@pytest.mark.fault("F3")
def test_a_lost_connection_is_replaced() -> None:
    async def scenario() -> None:
        async with pushed() as (worker, pusher):
            await until(lambda: pusher.offsets == ["0"])
            await pusher.deliver(0, *batch(0, 2))
            assert pusher.connection is not None
            pusher.connection.abort("the cable")
            await until(lambda: pusher.offsets == ["0", "2"])
            assert pusher.times(RequestCode.PUSH_REGISTER) == 2
            await pusher.deliver(2, stored(2))
            await until(lambda: worker.done == [0, 1, 2])

    run(scenario)


def test_leaving_unsubscribes_and_closes() -> None:
    async def scenario() -> None:
        async with pushed() as (_, pusher):
            await until(lambda: pusher.offsets)
        codes = [code for code, _ in pusher.asked]
        assert codes[-2:] == [RequestCode.PUSH_UNSUBSCRIBE, RequestCode.PUSH_CLOSE]

    run(scenario)
