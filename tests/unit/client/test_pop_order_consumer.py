"""Consumers that pop in order, at a real broker: each queue in its order whatever fails, dies or takes long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from penstock import AsyncConsumer, Consumer, Producer
from penstock.client.received import ReceivedMessage, Retry
from penstock.message import Message
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection
from penstock.testing import broker
from tests.unit.client.consumer_cluster import scripted
from tests.waiting import PATIENT_SENDS, until, wait_until

QUEUES = 4


def send(address: str, count: int) -> None:
    """To every queue the numbers from 0 on."""
    with Producer(address, **PATIENT_SENDS) as producer:
        for number in range(count):
            for queue in range(QUEUES):
                target = MessageQueue("T", "test-broker", queue)
                producer.send(Message("T", b"%d" % number), queue=target)


class Seen:
    """Every message that a listener was given, by queue, in the order of the listeners' beginnings and ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_queue: dict[int, list[int]] = defaultdict(list)
        self.working: set[int] = set()

    def begin(self, message: ReceivedMessage) -> int:
        queue, number = message.queue.queue_id, int(message.body)
        with self.lock:
            assert queue not in self.working, "two messages of a queue at once"
            self.working.add(queue)
        return number

    def end(self, message: ReceivedMessage) -> None:
        with self.lock:
            self.by_queue[message.queue.queue_id].append(int(message.body))
            self.working.discard(message.queue.queue_id)

    @property
    def count(self) -> int:
        with self.lock:
            return sum(map(len, self.by_queue.values()))


def consumer(
    address: str, listener: Callable[[ReceivedMessage], object] | None = None, **more: object
) -> Consumer:
    settings: dict[str, object] = {"start_from": "first", "invisible_ms": 5_000, "pop_batch": 3, **more}
    found = Consumer(address, group="g", delivery="pop", orderly=True, listener=listener, **settings)  # type: ignore[arg-type]
    return found


@pytest.mark.invariant("I3")
def test_several_consumers_keep_the_order_of_each_queue() -> None:
    """Whoever pops a queue next goes on exactly where the last one ended: one swap would be seen."""
    with broker() as address:
        send(address, 20)
        seen = Seen()
        workers: set[int] = set()

        def work(message: ReceivedMessage) -> None:
            seen.begin(message)
            time.sleep(0.002)
            workers.add(threading.get_ident())
            seen.end(message)

        consumers = [consumer(address, work) for _ in range(3)]
        for one in consumers:
            one.subscribe("T")
            one.start()
        wait_until(lambda: seen.count >= 20 * QUEUES)
        for one in consumers:
            one.close()
        assert dict(seen.by_queue) == {queue: list(range(20)) for queue in range(QUEUES)}
        assert len(workers) > 1


@pytest.mark.invariant("I3")
def test_a_message_that_fails_comes_again_before_those_behind_it() -> None:
    with broker() as address:
        send(address, 5)
        seen = Seen()
        tries: list[int] = []

        def work(message: ReceivedMessage) -> object:
            number = seen.begin(message)
            is_hard = number == 2 and message.queue.queue_id == 1
            if is_hard:
                tries.append(message.tries)
            try:
                return Retry() if is_hard and message.tries < 2 else None
            finally:
                seen.end(message)

        with consumer(address, work, rest_ms=20) as one:
            one.subscribe("T")
            wait_until(lambda: seen.count >= 5 * QUEUES + 2)
        assert seen.by_queue[1] == [0, 1, 2, 2, 2, 3, 4]
        assert seen.by_queue[0] == [0, 1, 2, 3, 4]
        assert tries == [0, 1, 2]


def test_after_the_last_try_it_is_a_dead_letter_and_the_queue_goes_on() -> None:
    with broker() as address:
        send(address, 4)
        seen = Seen()

        def work(message: ReceivedMessage) -> object:
            number = seen.begin(message)
            try:
                return Retry(reason="never") if number == 1 else None
            finally:
                seen.end(message)

        with consumer(address, work, rest_ms=10, retries_max=1) as one:
            one.subscribe("T")
            wait_until(lambda: seen.count >= 5 * QUEUES)
        assert seen.by_queue[0] == [0, 1, 1, 2, 3]
        with Consumer(address, group="undertaker", start_from="first") as dead:
            dead.subscribe("%DLQ%g")
            found: list[ReceivedMessage] = []
            wait_until(lambda: len(found.__iadd__(dead.poll(timeout_s=0.1))) >= QUEUES)
        assert {message.body for message in found} == {b"1"}


@pytest.mark.fault("F1")
def test_what_a_dead_consumer_had_comes_to_another_in_order() -> None:
    with broker() as address:
        send(address, 4)
        doomed = consumer(address)
        doomed.start()
        doomed.subscribe("T")
        had: list[ReceivedMessage] = []
        wait_until(lambda: len(had.__iadd__(doomed.pop(timeout_s=0.2))) >= QUEUES)
        # By hand a queue gives one message, and the next when that is acknowledged.
        assert sorted(int(message.body) for message in had) == [0] * QUEUES
        doomed.ack(next(message for message in had if message.queue.queue_id == 3))
        more: list[ReceivedMessage] = []
        wait_until(lambda: bool(more.__iadd__(doomed.pop(timeout_s=0.2))))
        assert [(message.queue.queue_id, message.body) for message in more] == [(3, b"1")]
        doomed.close(timeout_s=0)
        seen = Seen()

        def work(message: ReceivedMessage) -> None:
            seen.begin(message)
            seen.end(message)

        with consumer(address, work) as one:
            one.subscribe("T")
            wait_until(lambda: seen.count >= 4 * QUEUES - 1)
        assert seen.by_queue[0] == [0, 1, 2, 3]
        assert seen.by_queue[3] == [1, 2, 3]


@pytest.mark.invariant("I3")
def test_a_lot_stays_ours_while_it_is_worked_on() -> None:
    """Longer than the invisible time: the consumer asks for more, and nobody else gets the queue."""
    with broker() as address:
        send(address, 2)
        seen = Seen()

        def work(message: ReceivedMessage) -> None:
            seen.begin(message)
            time.sleep(1.7 if message.queue.queue_id == 0 else 0)
            seen.end(message)

        slow, other = (consumer(address, work, invisible_ms=2_000) for _ in range(2))
        for one in (slow, other):
            one.subscribe("T")
            one.start()
        wait_until(lambda: seen.count >= 2 * QUEUES)
        for one in (slow, other):
            one.close()
        assert dict(seen.by_queue) == {queue: [0, 1] for queue in range(QUEUES)}


def test_tags_that_only_look_alike_do_not_hold_a_queue_up() -> None:
    """In Java `Aa` and `BB` have one hash: the broker gives both. A lot is held far longer than the test takes."""
    with broker() as address:
        with Producer(address) as producer:
            target = MessageQueue("T", "test-broker", 0)
            for number, tag in enumerate(["BB"] * 4 + ["Aa", "BB", "Aa", "Aa", "Aa", "BB", "Aa"]):
                producer.send(Message("T", b"%d" % number, {"TAGS": tag}), queue=target)
        seen = Seen()

        def work(message: ReceivedMessage) -> None:
            seen.begin(message)
            seen.end(message)

        with consumer(address, work, invisible_ms=60_000) as one:
            one.subscribe("T", "Aa")
            wait_until(lambda: seen.count >= 5)
        assert seen.by_queue[0] == [4, 6, 7, 8, 10]


def test_an_attempt_that_fails_is_made_again_under_the_same_name() -> None:
    """The broker may have kept the lot before something went wrong; to another attempt it would be held."""

    async def scenario() -> None:
        attempts: list[str] = []
        codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.FLOW_CONTROL, ResponseCode.POLLING_TIMEOUT]

        def answer(connection: Connection, command: Command) -> Command | None:
            attempts.append(command.fields["attemptId"])
            return command.answer(codes.pop(0), "not now") if codes else None

        settings = {"delivery": "pop", "orderly": True, "pull_retry_ms": 20, "close_timeout_ms": 0}
        async with scripted() as scripts:
            scripts.table.register(RequestCode.POP_MESSAGE, answer)
            async with AsyncConsumer(scripts.address, group="g", **settings) as one, asyncio.timeout(60):  # type: ignore[arg-type]
                await one.subscribe("T")
                await until(lambda: len(attempts) >= 4)
        assert attempts[0] == attempts[1] == attempts[2] != attempts[3]

    asyncio.run(scenario())
