"""Sends without options: a lone message leaves at once, and what comes while others are under way leaves together."""

import asyncio

import pytest

import penstock
import penstock.testing
from penstock.client.batching import GATHER_MS, Accumulator
from penstock.errors import SendFailedError
from penstock.message import Message
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers import REPEATED_FIELD, SEQUENCE_FIELD
from tests.unit.client.producer_cluster import split_batch
from tests.unit.client.test_async_producer import BATCH, run, sends
from tests.unit.client.test_batching import bodies, bound, item
from tests.waiting import until


class Held:
    """Brokers that answer when the test says so."""

    def __init__(self, fake):
        self.fake = fake
        self.waiting = []
        for broker in fake.brokers:
            broker.behave = lambda connection, request, broker=broker: self.waiting.append(
                (broker, connection, request)
            )

    @property
    def sizes(self):
        """How many messages each request has that waits for its answer."""
        return [
            len(split_batch(request.body)) if request.code == BATCH else 1 for _, _, request in self.waiting
        ]

    def answer(self, count=None):
        now, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for broker, connection, request in now:
            connection.answer(request, broker.store(request))

    def release(self):
        for broker in self.fake.brokers:
            broker.behave = None
        self.answer()


async def known(producer, topic="T"):
    await producer.send(topic, b"first")


def test_lone_messages_leave_at_once_and_alone():
    async def scenario(fake, producer):
        await known(producer)
        for number in range(5):
            future = producer.send_nowait("T", b"%d" % number)
            (parcel,) = producer._delivery._lanes.unfinished()
            assert parcel.lane.in_flight, "it is on its way before the call returns"
            assert (await future).is_ok
        assert [request.code for request in sends(fake)] == [RequestCode.SEND_MESSAGE_V2] * 6

    run(scenario)


def test_what_comes_while_others_are_under_way_leaves_together_with_the_next_answer():
    async def scenario(fake, producer):
        await known(producer)
        held = Held(fake)
        futures = [producer.send_nowait("T", b"%d" % number) for number in range(300)]
        await until(lambda: len(held.waiting) >= 5)
        # More than sends_in_flight messages are under way: the others wait for answers.
        late = [producer.send_nowait("T", b"%d" % number) for number in range(300, 400)]
        await until(lambda: not producer._delivery.inbox.has_items)
        assert held.sizes == [1, 1, 1, 1, 296]
        held.answer(2)
        await until(lambda: len(held.waiting) == 4)
        assert held.sizes == [1, 1, 296, 100]
        held.release()
        results = await asyncio.gather(*futures, *late)
        assert len({result.msg_id for result in results}) == 400
        assert len({(result.queue, result.queue_offset) for result in results}) == 400
        assert sorted(body for _, _, body, _ in fake.stored) == sorted(
            [b"first", *(b"%d" % number for number in range(400))]
        )

    run(scenario, retries=0, send_timeout_ms=60_000)


def test_a_broker_that_does_not_answer_holds_up_no_message():
    """Without an answer the gathered messages leave by themselves, and reach the broker that is well."""

    async def scenario(fake, producer):
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(8)))
        stuck, well = fake.brokers
        stuck.behave = lambda _, request: None
        stored = len(well.stored)
        waiting = []
        while len(well.stored) < stored + 10:
            waiting.append(producer.send_nowait("T", b"x"))
            await asyncio.sleep(0)
            await until(lambda: not producer._delivery._lanes.is_gathering)
        assert sum(not future.done() for future in waiting) > 4
        for future in waiting:
            future.cancel()
        stuck.behave = None

    run(scenario, brokers=2, retries=0, send_timeout_ms=2_000)


def test_packed_messages_are_not_limited_as_batches_are():
    async def scenario(fake, producer):
        await known(producer)
        held = Held(fake)
        futures = [producer.send_nowait("T", b"x" * 5_000) for _ in range(50)]
        await until(lambda: len(held.waiting) == 50)
        held.release()
        await asyncio.gather(*futures)

    run(scenario, retries=0, send_timeout_ms=60_000)


def test_order_of_a_key_with_gathered_messages():
    async def scenario(fake, producer):
        await known(producer)
        held = Held(fake)
        futures = [producer.send_nowait("T", b"%d" % number, queue_key="k") for number in range(20)]
        await until(lambda: held.waiting)
        assert held.sizes == [1]
        held.answer()
        await until(lambda: held.waiting)
        assert held.sizes == [19]
        held.release()
        offsets = [result.queue_offset for result in await asyncio.gather(*futures)]
        assert offsets == sorted(offsets)

    run(scenario, retries=0, send_timeout_ms=60_000)


@pytest.mark.parametrize(
    "parts",
    [
        {"delay_level": 1},
        {"delay": 1},
        {"deliver_at": 1},
        {"properties": {"WAIT": "false"}},
    ],
    ids=str,
)
def test_messages_that_no_batch_may_have(parts):
    async def scenario(fake, producer):
        await known(producer)
        held = Held(fake)
        plain = [producer.send_nowait("T", b"a") for _ in range(4)]
        others = [
            producer.send_nowait("T", b"b"),
            producer.send_nowait(Message("T", b"x", parts["properties"]))
            if "properties" in parts
            else producer.send_nowait("T", b"x", **parts),
            producer.send_nowait("T", b"c"),
        ]
        await until(lambda: len(held.waiting) >= 7)
        assert held.sizes == [1] * 7
        held.release()
        await asyncio.gather(*plain, *others)

    run(scenario, retries=0, send_timeout_ms=60_000)


@pytest.mark.parametrize("settings", [{}, {"idempotent": True}], ids=["plain", "idempotent"])
def test_a_message_that_a_broker_refuses_fails_alone(settings):
    """A batch is refused as a whole; its halves are sent again until each message has its own answer."""

    async def scenario(fake, producer):
        (broker,) = fake.brokers

        def behave(_, request):
            records = split_batch(request.body) if request.code == BATCH else [(request.body, b"", 0)]
            if any(body == b"13" for body, _, _ in records):
                return request.answer(13, "it is illegal")
            answer = broker.store(request)
            if settings:
                answer.fields[REPEATED_FIELD] = "false"
            return answer

        broker.behave = behave
        await known(producer)
        futures = [producer.send_nowait("T", b"%d" % number, queue_key="k") for number in range(40)]
        await producer.flush()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        refused = [number for number, one in enumerate(outcomes) if isinstance(one, SendFailedError)]
        assert refused == [13]
        stored = [body for _, _, body, _ in fake.stored]
        assert stored == [b"first", *(b"%d" % number for number in range(40) if number != 13)]
        if settings:
            numbers = [
                (int(request.fields[SEQUENCE_FIELD]), len(split_batch(request.body)))
                for request in sends(fake)
                if request.code == BATCH
            ]
            assert numbers[0][1] > numbers[1][1], "halves"
            assert numbers[0][0] == numbers[1][0], "they have the numbers that they had"

    run(scenario, retries=0, **settings)


def test_a_batch_of_the_program_is_not_taken_apart():
    async def scenario(fake, producer):
        await known(producer)
        fake.brokers[0].behave = lambda _, request: request.answer(13, "it is illegal")
        with pytest.raises(SendFailedError):
            await producer.send_batch([Message("T", b"%d" % number) for number in range(4)])
        assert [request.code for request in sends(fake)].count(BATCH) == 1

    run(scenario, retries=0)


def test_batches_that_are_too_large_for_a_broker_arrive_all_the_same():
    """Its limit is for a message; here it is smaller than what is gathered."""
    with (
        penstock.testing.broker(store={"max_message_size_bytes": 8_192}) as address,
        penstock.Producer(address, retries=0, send_timeout_ms=60_000) as producer,
        penstock.Admin(address) as admin,
    ):
        producer.send("T", b"first")
        for _ in range(300):
            producer.enqueue("T", b"x" * 1_000)
        producer.flush()
        assert admin.describe_topic("T").messages == 301


def test_without_batches_each_message_is_a_request():
    async def scenario(fake, producer):
        await asyncio.gather(*(producer.send("T", b"%d" % number) for number in range(50)))
        assert [request.code for request in sends(fake)] == [RequestCode.SEND_MESSAGE_V2] * 50

    run(scenario, batch_size=1)


# -- lanes ---------------------------------------------------------------------------------------------------


def lanes_with_two_under_way(**more):
    lanes = Accumulator(100, 10_000, in_flight_max=2, **more)
    for number in range(2):
        lanes.add([item(b"%d" % number)], bound, 0)
        assert len(lanes.ready()) == 1
    return lanes


def test_an_open_batch_seals_itself_in_time_while_few_messages_are_under_way():
    lanes = lanes_with_two_under_way(sends_in_flight_max=4)
    lanes.add([item(b"2"), item(b"3")], bound, 10)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([], True)
    lanes.seal_gathered(10)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([], True)
    lanes.seal_gathered(10 + GATHER_MS)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([[b"2", b"3"]], False)
    # Four messages are under way: what comes now waits for an answer, however long that takes.
    lanes.add([item(b"4")], bound, 20)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([], False)


def test_answers_make_room_for_what_was_gathered():
    lanes = lanes_with_two_under_way(sends_in_flight_max=2)
    under_way = lanes.unfinished()
    lanes.add([item(b"2")], bound, 0)
    lanes.add([item(b"3")], bound, 0)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([], False)
    lanes.finished(under_way[0])
    assert bodies(lanes.ready()) == [[b"2", b"3"]]


def test_a_queue_with_one_request_under_way_never_sends_another():
    queue = MessageQueue("T", "a", 1)
    lanes = Accumulator(100, 10_000, in_flight_max=4, sends_in_flight_max=256)
    lanes.add([item(b"0", queue=queue)], bound, 0)
    (first,) = lanes.ready()
    lanes.add([item(b"1", queue=queue), item(b"2", queue=queue, solo=True)], bound, 0)
    lanes.seal_gathered(100)
    assert (bodies(lanes.ready()), lanes.is_gathering) == ([], False)
    lanes.finished(first)
    assert bodies(lanes.ready()) == [[b"1"]]


def test_halves_take_the_place_of_their_batch_and_who_waits_for_it_waits_for_both():
    queue = MessageQueue("T", "a", 1)
    lanes = Accumulator(3, 10_000, in_flight_max=4)
    lanes.add([item(b"%d" % number, queue=queue) for number in range(5)], bound, 0)
    (batch,) = lanes.ready()
    done = []
    batch.when_done.append(lambda: done.append(True))
    lanes.halve(batch)
    seen = []
    while parcels := lanes.ready():
        (parcel,) = parcels
        seen += bodies(parcels)
        assert bool(done) == (len(seen) > 2)
        lanes.finished(parcel)
    assert seen == [[b"0"], [b"1", b"2"], [b"3", b"4"]]
    assert (lanes.in_flight, lanes.in_flight_bytes, lanes.unfinished()) == (0, 0, [])
