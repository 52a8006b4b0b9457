"""Producers that are faster than their broker: callers wait for room, and no timeout runs while messages wait."""

import asyncio
import threading

import pytest

import penstock
from penstock.client.async_producer import AsyncProducer
from penstock.client.producer import Producer
from penstock.errors import BufferFullError, ClientClosedError
from penstock.testing import broker
from tests.effort import by_length
from tests.unit.client.producer_cluster import cluster
from tests.waiting import until


class Gate:
    """A broker that answers sends when the test says so."""

    def __init__(self, fake):
        self.broker = fake.brokers[0]
        self.held = []
        self.most = 0
        self.broker.behave = self._hold

    def _hold(self, connection, request):
        self.held.append((connection, request))
        self.most = max(self.most, len(self.held))

    def answer(self, count=None):
        """Answer the oldest requests; how many."""
        now, self.held = self.held[:count], self.held[len(self.held[:count]) :]
        for connection, request in now:
            connection.answer(request, self.broker.store(request))
        return len(now)

    async def answer_until(self, done):
        while not done():
            self.answer()
            await asyncio.sleep(0.005)

    @property
    def bodies(self):
        return [body for _, _, body, _ in self.broker.stored]


def run(scenario, **settings):
    async def main():
        async with cluster(1, ("T",), 1) as fake:
            producer = AsyncProducer(fake.address, "pg", **settings)
            await producer.start()
            gate = Gate(fake)
            try:
                async with asyncio.timeout(60):
                    await scenario(gate, producer)
            finally:
                gate.broker.behave = None
                gate.answer()
                await producer.close()

    asyncio.run(main())


def producer_is_full(producer):
    try:
        producer.enqueue("T", b"x" * 1000)
    except BufferFullError as error:
        return "buffer_messages=" in str(error) and "buffer_bytes=" in str(error)
    return False


@pytest.mark.parametrize(
    "limits", [{"buffer_messages": 5}, {"buffer_bytes": 5 * 1100}], ids=["messages", "bytes"]
)
@pytest.mark.parametrize(
    "batching", [{"batch_size": 1}, {"batch_size": 2}, {}], ids=["single", "batches", "default"]
)
def test_callers_wait_for_room_in_their_order(limits, batching):
    async def scenario(gate, producer):
        bodies = [b"%04d" % number + b"x" * 996 for number in range(40)]

        async def enqueue_all():
            for body in bodies:
                await producer.enqueue_when_room("T", body)

        task = asyncio.ensure_future(enqueue_all())
        await until(lambda: gate.held)
        await until(lambda: not task.done() and producer_is_full(producer))
        assert not task.done()
        await gate.answer_until(task.done)
        flush = asyncio.ensure_future(producer.flush())
        await gate.answer_until(flush.done)
        await flush
        assert gate.most <= 5
        assert [body for body in gate.bodies if body[:4].isdigit()] == bodies

    run(scenario, compression="none", retries=0, **limits, **batching)


def test_timeout_begins_when_a_message_is_sent():
    """Together the answers take longer than the timeout of one message."""

    async def scenario(gate, producer):
        loop = asyncio.get_running_loop()
        turn = 0

        def answer_in_turn(connection, request):
            nonlocal turn
            turn = max(turn, loop.time()) + 0.4
            loop.call_at(turn, lambda: connection.answer(request, gate.broker.store(request)))

        gate.broker.behave = answer_in_turn
        for number in range(8):
            producer.enqueue("T", b"%d" % number)
        await producer.flush()
        assert gate.bodies == [b"%d" % number for number in range(8)]

    run(scenario, sends_in_flight=1, send_timeout_ms=2_000, retries=0)


def test_cancelled_caller_leaves_no_room_taken():
    async def scenario(gate, producer):
        producer.enqueue("T", b"first")
        producer.enqueue("T", b"second")
        waiting = [asyncio.ensure_future(producer.enqueue_when_room("T", b"never")) for _ in range(10)]
        behind = asyncio.ensure_future(producer.enqueue_when_room("T", b"third"))
        await until(lambda: len(gate.held) == 2)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(task.cancelled() for task in waiting)
        await gate.answer_until(behind.done)
        await behind
        await until(lambda: gate.held)
        gate.answer()
        await producer.flush()
        assert gate.bodies == [b"first", b"second", b"third"]
        producer.enqueue("T", b"fourth")
        producer.enqueue("T", b"fifth")

    run(scenario, buffer_messages=2, batch_size=1)


def test_closing_ends_callers_that_wait():
    async def scenario(gate, producer):
        producer.enqueue("T", b"first", on_result=lambda result, error: None)
        waiting = asyncio.ensure_future(producer.enqueue_when_room("T", b"second"))
        await until(lambda: gate.held)
        closing = asyncio.ensure_future(producer.close())
        await gate.answer_until(closing.done)
        await closing
        with pytest.raises(ClientClosedError):
            await waiting

    run(scenario, buffer_messages=1)


def test_broker_that_never_answers_ends_the_wait():
    async def scenario(gate, producer):
        producer.enqueue("T", b"first", on_result=lambda result, error: None)
        with pytest.raises(BufferFullError, match=r"no room for 300 ms.*buffer_timeout_ms"):
            await producer.enqueue_when_room("T", b"second")
        gate.answer()

    run(scenario, buffer_messages=1, buffer_timeout_ms=300, send_timeout_ms=20_000)


def test_message_larger_than_the_room_is_sent_alone():
    async def scenario(gate, producer):
        producer.enqueue("T", b"x" * 5_000)
        with pytest.raises(BufferFullError):
            producer.enqueue("T", b"small")
        small = asyncio.ensure_future(producer.enqueue_when_room("T", b"small"))
        await gate.answer_until(small.done)
        await small
        await gate.answer_until(lambda: len(gate.bodies) == 2)
        assert [len(body) for body in gate.bodies] == [5_000, 5]

    run(scenario, buffer_bytes=2_000, compression="none")


def test_refused_sends_give_their_room_back():
    async def scenario(gate, producer):
        gate.broker.behave = lambda connection, request: request.answer(13, "it is too large")
        for _ in range(10):
            await producer.enqueue_when_room("T", b"bad", on_result=lambda result, error: None)
        gate.broker.behave = None
        assert (await producer.send("T", b"good")).is_ok

    run(scenario, buffer_messages=2, retries=0)


def test_thread_that_enqueues_waits_for_room():
    async def main():
        async with cluster(1, ("T",), 1) as fake:
            producer = Producer(fake.address, "pg", buffer_messages=5, batch_size=1)
            await asyncio.to_thread(producer.start)
            gate = Gate(fake)
            bodies = [b"%d" % number for number in range(30)]

            def enqueue_all():
                for body in bodies:
                    producer.enqueue("T", body)
                producer.flush()

            thread = threading.Thread(target=enqueue_all)
            thread.start()
            await until(lambda: len(gate.held) == 5)
            assert thread.is_alive()
            await gate.answer_until(lambda: not thread.is_alive())
            thread.join()
            gate.broker.behave = None
            await asyncio.to_thread(producer.close)
            assert (gate.most, gate.bodies) == (5, bodies)

    asyncio.run(main())


@pytest.mark.long
def test_many_messages_are_enqueued_and_flushed():
    """What a program does that copies a file: the defaults must carry it."""
    count = by_length(20_000, 60_000)
    with broker() as address, penstock.Producer(address, retries=0, send_timeout_ms=60_000) as producer:
        for number in range(count):
            producer.enqueue("many", b"%d" % number)
        producer.flush()
        with penstock.Admin(address) as admin:
            assert admin.describe_topic("many").messages == count
