"""The producer against brokers that do what the test says."""

import asyncio
import zlib

import pytest

from penstock.client.async_producer import AsyncProducer
from penstock.client.outgoing import property_bytes
from penstock.client.queue_selection import select_by_key
from penstock.client.results import SendStatus
from penstock.errors import (
    BufferFullError,
    ClientClosedError,
    CodecError,
    ConnectError,
    MessageError,
    MessageTooLargeError,
    OptionError,
    PenstockError,
    PropertiesTooLargeError,
    RouteNotFoundError,
    SendFailedError,
    SendUnknownError,
    TopicNameError,
)
from penstock.message import Message, decode_properties, encode_properties
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.runtime import Runtime
from tests.unit.client.producer_cluster import cluster
from tests.waiting import turns, until

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def run(scenario, brokers=1, topics=("T",), queues=2, **settings):
    """Run a scenario with a started producer."""

    async def main():
        async with (
            cluster(brokers, topics, queues) as fake,
            AsyncProducer(fake.address, "pg", **settings) as producer,
        ):
            await scenario(fake, producer)

    asyncio.run(main())


def sends(fake):
    return [
        request for broker in fake.brokers for request in broker.requests if request.code in (SEND, BATCH)
    ]


# -- plain sends ---------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-34")
@pytest.mark.seed("S2-53")
def test_a_send_carries_every_field_and_brings_a_result():
    async def scenario(fake, producer):
        result = await producer.send("T", b"body", tag="a", keys=["k1", "k2"], properties={"p": "v"}, flag=7)
        assert result.status is SendStatus.OK
        assert result.is_ok
        assert result.queue.topic == "T"
        assert (result.queue.broker_name, result.queue_offset, result.attempts) == ("broker-a", 0, 1)
        assert len(result.msg_id) == 32
        (request,) = sends(fake)
        fields = request.fields
        properties = decode_properties(fields.pop("i").encode())
        assert properties == {"p": "v", "TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": result.msg_id}
        assert abs(int(fields.pop("g")) - Runtime.system().clock.now_ms()) < 60_000
        assert fields == {
            "a": "pg",
            "b": "T",
            "c": "TBW102",
            "d": "4",
            "e": str(result.queue.queue_id),
            "f": "0",
            "h": "7",
            "j": "0",
            "k": "false",
            "m": "false",
            "n": "broker-a",
        }
        assert (request.body, request.language) == (b"body", "PYTHON")

    run(scenario)


@pytest.mark.seed("S2-35")
def test_sends_without_waiting_and_in_any_number():
    async def scenario(fake, producer):
        futures = [producer.send_nowait("T", b"%d" % n) for n in range(100)]
        results = await asyncio.gather(*futures)
        assert len({(r.queue, r.queue_offset) for r in results}) == 100
        assert len({r.msg_id for r in results}) == 100
        assert {r.queue.queue_id for r in results} == {0, 1}

    run(scenario, batch_size=1)


@pytest.mark.seed("S2-51")
def test_a_one_way_send_asks_for_no_answer():
    async def scenario(fake, producer):
        await producer.send_oneway("T", b"quick")
        await until(lambda: fake.stored)
        (request,) = sends(fake)
        assert request.is_oneway

    run(scenario)


@pytest.mark.seed("S2-36")
def test_a_delayed_send():
    async def scenario(fake, producer):
        await producer.send("T", b"later", delay_level=3)
        assert decode_properties(sends(fake)[0].fields["i"].encode())["DELAY"] == "3"
        with pytest.raises(MessageError):
            await producer.send("T", b"x", delay_level=-1)

    run(scenario)


def test_a_message_may_be_given_whole_and_keeps_its_own_id():
    async def scenario(fake, producer):
        message = Message("T", b"x", {"UNIQ_KEY": "MINE", "KEYS": "k"}, 3)
        assert (await producer.send(message)).msg_id == "MINE"
        with pytest.raises(MessageError, match="either"):
            await producer.send(message, tag="a")

    run(scenario)


def test_an_explicit_queue_is_used():
    async def scenario(fake, producer):
        queues = await producer.queues("T")
        assert [queue.queue_id for queue in queues] == [0, 1]
        for _ in range(5):
            assert (await producer.send("T", b"x", queue=queues[1])).queue == queues[1]
        with pytest.raises(MessageError):
            await producer.send("T", b"x", queue=MessageQueue("U", "broker-a", 0))

    run(scenario)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"message": "a b", "body": b""}, TopicNameError),
        ({"message": "", "body": b""}, TopicNameError),
        ({"message": "x" * 128, "body": b""}, TopicNameError),
        ({"message": 5, "body": b""}, TopicNameError),
        ({"message": "T", "body": "text"}, MessageError),
        ({"message": "T", "body": None}, MessageError),
        ({"message": "T", "body": b"x" * 1001}, MessageTooLargeError),
        ({"message": "T", "body": b"", "properties": {"a": "b\x01c"}}, CodecError),
        ({"message": "T", "body": b"", "properties": {"a": ""}}, CodecError),
        ({"message": "T", "body": b"", "properties": {"a": "x" * 40_000}}, PropertiesTooLargeError),
        ({"message": "T", "body": b"", "properties": {"a": "\ud800"}}, CodecError),
        ({"message": "T", "body": b"", "durability": "much"}, OptionError),
    ],
)
def test_what_no_broker_would_take_is_refused_before_it_is_sent(call, error):
    async def scenario(fake, producer):
        with pytest.raises(error):
            await producer.send(**call)
        assert sends(fake) == []

    run(scenario, message_bytes_max=1000)


@pytest.mark.parametrize(
    "properties", [{}, {"a": "b"}, {"a": "b", "c": "d e"}, {"ä": "ü"}, {"a": "b", "UNIQ_KEY": "X" * 32}]
)
def test_the_quick_way_to_write_properties_is_the_careful_one(properties):
    assert property_bytes(properties) == encode_properties(properties)


# -- routes --------------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-68")
@pytest.mark.seed("S2-44")
def test_a_topic_is_looked_up_once():
    async def scenario(fake, producer):
        for _ in range(5):
            await producer.send("T", b"x")
        assert [r.fields["topic"] for r in fake.name_server.requests] == ["T"]

    run(scenario)


@pytest.mark.seed("S4-69")
def test_a_topic_that_does_not_exist_is_sent_by_its_models_route():
    async def scenario(fake, producer):
        with pytest.raises(RouteNotFoundError, match="penstock topic create New"):
            await producer.send("New", b"x")
        fake.add_topic("TBW102", 8)
        results = [await producer.send("New", b"x") for _ in range(8)]
        assert {r.queue.queue_id for r in results} == {0, 1, 2, 3}
        assert {request.fields["c"] for request in sends(fake)} == {"TBW102"}

    run(scenario)


def test_a_topic_without_write_permission_cannot_be_sent_to():
    async def scenario(fake, producer):
        fake.add_topic("T", 2, perm=4)
        with pytest.raises(ConnectError, match="can be written"):
            await producer.send("T", b"x")
        with pytest.raises(ConnectError):
            await producer.send("T", b"x", queue_key="k")
        with pytest.raises(ConnectError):
            await producer.send_oneway("T", b"x")

    run(scenario)


# -- retries -------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-87")
@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 1500])
def test_another_broker_is_tried_when_one_refuses(code):
    async def scenario(fake, producer):
        bad, good = fake.brokers
        bad.behave = lambda _, request: request.answer(code, "no")
        results = [await producer.send("T", b"x") for _ in range(4)]
        assert {r.queue.broker_name for r in results} == {good.name}
        assert {r.attempts for r in results} <= {1, 2}
        assert sum(r.attempts == 2 for r in results) == len(bad.requests) - bad.count(RequestCode.HEART_BEAT)

    run(scenario, brokers=2)


@pytest.mark.seed("S1-25")
@pytest.mark.fault("F1")
def test_a_dead_broker_is_passed_over_and_the_message_keeps_its_id():
    async def scenario(fake, producer):
        await asyncio.gather(*(producer.send("T", b"x") for _ in range(4)))
        await fake.brokers[0].stop()
        results = [await producer.send("T", b"%d" % n) for n in range(6)]
        assert {r.queue.broker_name for r in results} == {"broker-b"}
        ids = [decode_properties(p)["UNIQ_KEY"] for _, _, body, p in fake.brokers[1].stored if body != b"x"]
        assert ids == [r.msg_id for r in results]

    run(scenario, brokers=2)


def test_every_attempt_failing_says_what_happened_where():
    async def scenario(fake, producer):
        for broker in fake.brokers:
            broker.behave = lambda _, request: request.answer(14, "disk is full")
        with pytest.raises(SendFailedError, match="3 attempts") as caught:
            await producer.send("T", b"x")
        error = caught.value
        assert (error.outcome_unknown, error.code, len(error.attempts)) == (False, 14, 3)
        assert "disk is full" in str(error)
        assert "broker-a" in str(error)
        assert "broker-b" in str(error)

    run(scenario, brokers=2)


def test_a_refusal_for_the_messages_own_sake_is_final():
    async def scenario(fake, producer):
        fake.brokers[0].behave = lambda _, request: request.answer(13, "illegal")
        with pytest.raises(SendFailedError, match="illegal"):
            await producer.send("T", b"x")
        assert len(sends(fake)) == 1

    run(scenario)


def test_silence_leaves_the_outcome_unknown():
    async def scenario(fake, producer):
        fake.brokers[0].behave = lambda _, request: None
        with pytest.raises(SendUnknownError, match="not known whether") as caught:
            await producer.send("T", b"x")
        assert len(caught.value.attempts) == 2
        assert len(sends(fake)) == 2

    run(scenario, send_timeout_ms=500, retries=1)


def test_a_connection_that_breaks_leaves_the_outcome_unknown():
    async def scenario(fake, producer):
        fake.brokers[0].behave = lambda connection, _: connection.abort("cut")
        with pytest.raises(SendUnknownError) as caught:
            await producer.send("T", b"x")
        assert caught.value.__cause__ is not None

    run(scenario, retries=0)


def test_nothing_sent_is_failed_not_unknown():
    async def scenario(fake, producer):
        await producer.queues("T")
        await fake.brokers[0].stop()
        with pytest.raises(SendFailedError) as caught:
            await producer.send("T", b"x")
        assert not caught.value.outcome_unknown

    run(scenario, send_timeout_ms=300)


def test_an_answer_that_cannot_be_read_is_unknown():
    async def scenario(fake, producer):
        fake.brokers[0].behave = lambda _, request: request.answer(0, fields={"queueId": "x"})
        with pytest.raises(SendUnknownError):
            await producer.send("T", b"x")

    run(scenario)


def test_a_busy_broker_is_tried_again_when_it_says():
    async def scenario(fake, producer):
        broker, refusals = fake.brokers[0], []

        def busy_once(_, request):
            if refusals:
                return broker.store(request)
            refusals.append(asyncio.get_running_loop().time())
            return request.answer(2, "[REJECTREQUEST]", {"penstockRetryAfterMs": "200"})

        broker.behave = busy_once
        assert (await producer.send("T", b"x")).attempts == 2
        assert asyncio.get_running_loop().time() - refusals[0] >= 0.19

    run(scenario)


def test_a_send_waits_for_a_master_and_finds_it_where_it_is_now():
    """Failover: the master is gone, for a while only a replica is in the route, then that is the master."""

    async def scenario(fake, producer):
        old, new = fake.brokers
        new.name = old.name
        fake.add_topic("T", 2, brokers=(old,))
        await producer.send("T", b"before")
        await old.stop()
        new.broker_id = 1
        fake.add_topic("T", 2, brokers=(new,))
        refused = []

        def refuse(_, request):
            refused.append(request)
            return request.answer(2, "[REJECTREQUEST]is a slave")

        new.behave = refuse
        asked = len(fake.name_server.requests)
        waiting = asyncio.ensure_future(producer.send("T", b"during"))
        await until(lambda: len(fake.name_server.requests) >= asked + 2)
        assert not waiting.done()
        new.broker_id = 0
        fake.add_topic("T", 2, brokers=(new,))
        await until(lambda: len(refused) >= 2)
        assert not waiting.done()  # elected, and not acting as master yet
        new.behave = None
        result = await waiting
        assert [body for _, _, body, _ in new.stored] == [b"during"]
        assert result.attempts > 3

    run(scenario, brokers=2)


def test_a_send_without_retries_waits_for_nobody():
    async def scenario(fake, producer):
        await producer.send("T", b"before")
        await fake.brokers[0].stop()
        with pytest.raises(PenstockError):
            await producer.send("T", b"x")

    run(scenario, retries=0, send_timeout_ms=600_000)


def test_a_keyed_message_waits_for_its_broker_instead_of_trying_it_in_a_rush():
    async def scenario(fake, producer):
        queues = await producer.queues("T")
        key = next(
            key for key in map(str, range(100)) if select_by_key(queues, key).broker_name == "broker-a"
        )
        await producer.send("T", b"x", queue_key=key)
        first = fake.brokers[0]
        await first.stop()
        waiting = asyncio.ensure_future(producer.send("T", b"later", queue_key=key))
        await turns()
        await first.start()
        assert (await waiting).queue.broker_name == "broker-a"

    run(scenario, brokers=2)


def test_slow_brokers_are_avoided_if_wanted():
    async def scenario(fake, producer):
        slow, quick = fake.brokers
        slow.behave = lambda _, request: request.answer(14, "no")
        await asyncio.gather(*(producer.send("T", b"x") for _ in range(4)))
        slow.behave = None
        assert {(await producer.send("T", b"x")).queue.broker_name for _ in range(10)} == {quick.name}

    run(scenario, brokers=2, avoid_slow_brokers=True, batch_size=1)


# -- durability ----------------------------------------------------------------------------------------------


def test_a_demand_travels_and_what_was_reached_comes_back():
    async def scenario(fake, producer):
        broker = fake.brokers[0]
        broker.behave = lambda _, request: broker.store(
            request, durability=request.fields.get("durability", "memory")
        )
        assert (await producer.send("T", b"x", durability="flushed")).durability == "flushed"
        assert (await producer.send("T", b"x")).durability == "memory"

    run(scenario)


def test_a_demand_that_was_not_met_is_an_error_with_the_result():
    async def scenario(fake, producer):
        broker = fake.brokers[0]
        broker.behave = lambda _, request: broker.store(request, 10, durability="memory")
        with pytest.raises(SendUnknownError, match="'flushed' was not reached") as caught:
            await producer.send("T", b"x")
        assert caught.value.result.queue_offset == 0
        assert caught.value.code == 10

    run(scenario, durability="flushed")


def test_without_a_demand_it_is_a_status():
    async def scenario(fake, producer):
        broker = fake.brokers[0]
        broker.behave = lambda _, request: broker.store(request, 12)
        assert (await producer.send("T", b"x")).status is SendStatus.FLUSH_SLAVE_TIMEOUT

    run(scenario)


# -- order and compression -----------------------------------------------------------------------------------


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("settings", [{}, {"linger_ms": 2}, {"batch_size": 3}])
def test_messages_of_a_key_stay_in_order_through_refusals(settings):
    async def scenario(fake, producer):
        count = 0

        def often_busy(broker):
            def behave(_, request):
                nonlocal count
                count += 1
                return request.answer(2, "busy") if count % 3 == 0 else broker.store(request)

            return behave

        for broker in fake.brokers:
            broker.behave = often_busy(broker)
        futures = [producer.send_nowait("T", b"%d" % n, queue_key=f"k{n % 3}") for n in range(30)]
        await asyncio.gather(*futures)
        for key in range(3):
            numbers = [n for n in range(30) if n % 3 == key]
            places = [futures[n].result() for n in numbers]
            assert len({place.queue for place in places}) == 1
            offsets = [place.queue_offset for place in places]
            assert offsets == sorted(offsets)

    run(scenario, brokers=2, retries=10, **settings)


def test_large_bodies_are_packed_and_small_ones_are_not():
    async def scenario(fake, producer):
        body = b"a body to be packed " * 500
        await producer.send("T", body)
        await producer.send("T", b"x" * 4095)
        packed, plain = sends(fake)
        assert packed.fields["f"] == str(0x301)
        assert zlib.decompress(bytes(packed.body)) == body
        assert (plain.fields["f"], len(plain.body)) == ("0", 4095)

    run(scenario)


def test_what_does_not_get_smaller_is_sent_as_it_is():
    async def scenario(fake, producer):
        body = Runtime.system().entropy.bytes(8192)
        await producer.send("T", body)
        assert (sends(fake)[0].fields["f"], bytes(sends(fake)[0].body)) == ("0", body)

    run(scenario)


def test_compression_can_be_switched_off():
    async def scenario(fake, producer):
        await producer.send("T", bytes(10_000))
        assert sends(fake)[0].fields["f"] == "0"

    run(scenario, compression="none")


# -- batches -------------------------------------------------------------------------------------------------


def test_lingering_messages_travel_in_one_frame_and_each_has_its_own_result():
    async def scenario(fake, producer):
        results = await asyncio.gather(*(producer.send("T", b"%d" % n, keys=f"k{n}") for n in range(50)))
        (request,) = sends(fake)
        assert (request.code, request.fields["m"]) == (BATCH, "true")
        assert [r.queue_offset for r in results] == list(range(50))
        assert len({r.queue for r in results}) == 1
        assert len({r.offset_msg_id for r in results}) == 50
        stored = [(body, decode_properties(p)) for _, _, body, p in fake.stored]
        assert [(body, p["UNIQ_KEY"], p["KEYS"]) for body, p in stored] == [
            (b"%d" % n, results[n].msg_id, f"k{n}") for n in range(50)
        ]

    run(scenario, linger_ms=20)


def test_batches_take_turns_through_the_queues():
    async def scenario(fake, producer):
        for _ in range(6):
            await asyncio.gather(*(producer.send("T", b"x") for _ in range(3)))
        assert {(topic, queue) for topic, queue, _, _ in fake.stored} == {("T", 0), ("T", 1)}
        assert {broker.name for broker in fake.brokers if broker.stored} == {"broker-a", "broker-b"}

    run(scenario, brokers=2, linger_ms=1)


def test_a_batch_is_as_large_as_allowed():
    async def scenario(fake, producer):
        await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(25)))
        assert all(request.code == BATCH for request in sends(fake))
        assert sum(len(broker.stored) for broker in fake.brokers) == 25
        assert len(sends(fake)) == 3

    run(scenario, linger_ms=500, batch_size=10)


def test_packed_and_delayed_messages_travel_alone():
    async def scenario(fake, producer):
        await asyncio.gather(
            *(producer.send("T", b"%d" % n, queue_key="k") for n in range(3)),
            producer.send("T", bytes(10_000), queue_key="k"),
            producer.send("T", b"later", queue_key="k", delay_level=1),
            producer.send("T", b"last", queue_key="k"),
        )
        assert [request.code for request in sends(fake)] == [BATCH, SEND, SEND, SEND]
        assert fake.stored[-1][2] == b"last"

    run(scenario, linger_ms=5)


def test_messages_of_a_retry_topic_travel_alone():
    async def scenario(fake, producer):
        await asyncio.gather(*(producer.send("%RETRY%g", b"%d" % n) for n in range(3)))
        assert [request.code for request in sends(fake)] == [SEND] * 3
        await producer.send_batch([Message.of("%RETRY%g", b"x")] * 2)
        assert [request.code for request in sends(fake)] == [SEND] * 5

    run(scenario, topics=("%RETRY%g",), linger_ms=5)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"tag": "a"},
        {"keys": "k1 k2"},
        {"tag": "ä", "keys": "k"},
        {"tag": "a", "keys": ["k1", "k2"], "properties": {"x": "y"}},
    ],
)
def test_the_quick_way_to_compose_is_the_careful_one(parts):
    async def scenario(fake, producer):
        for _ in range(2):  # the first message of a topic goes the careful way
            await producer.send("T", b"body", flag=3, **parts)
        first, second = (decode_properties(request.fields["i"].encode()) for request in sends(fake))
        assert first.pop("UNIQ_KEY") != second.pop("UNIQ_KEY")
        assert first == second
        assert {request.fields["h"] for request in sends(fake)} == {"3"}
        for wrong in ({"tag": "a\x02b"}, {"keys": "a\x01b"}, {"tag": "\ud800"}, {"keys": "k" * 40_000}):
            with pytest.raises((CodecError, PropertiesTooLargeError)):
                await producer.send("T", b"body", **wrong)

    run(scenario)


def test_a_batch_that_is_refused_is_tried_elsewhere_as_a_whole():
    async def scenario(fake, producer):
        for broker in fake.brokers:
            broker.behave = lambda _, request, b=broker: (
                b.store(request) if b.count(BATCH) > 1 else request.answer(14, "no")
            )
        results = await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(5)))
        assert {r.attempts for r in results} == {3}
        assert len(fake.stored) == 5

    run(scenario, brokers=2, linger_ms=5)


def test_an_explicit_batch_is_one_frame():
    async def scenario(fake, producer):
        messages = [Message.of("T", b"%d" % n, keys=f"k{n}") for n in range(100)]
        results = await producer.send_batch(messages)
        assert [r.queue_offset for r in results] == list(range(100))
        assert len(sends(fake)) == 1
        assert list(await producer.send_batch([])) == []
        (alone,) = await producer.send_batch([Message.of("T", b"x")])
        assert alone.queue_offset in (0, 100)
        with pytest.raises(MessageError):
            await producer.send_batch([b"x"])

    run(scenario)


@pytest.mark.abuse("A26")
def test_an_explicit_batch_of_several_topics_keeps_results_in_order():
    async def scenario(fake, producer):
        messages = [Message.of("T" if n % 2 else "U", b"%d" % n) for n in range(4)]
        results = await producer.send_batch(messages, queue_key="k")
        assert [r.queue.topic for r in results] == ["U", "T", "U", "T"]
        assert [(topic, body) for topic, _, body, _ in fake.stored] == [
            ("U", b"0"),
            ("U", b"2"),
            ("T", b"1"),
            ("T", b"3"),
        ]
        assert [request.code for request in sends(fake)] == [BATCH] * 2
        sizes = await producer.send_batch(
            [Message.of("T", bytes([n]) * 600) for n in range(5)], queue_key="k"
        )
        assert [request.code for request in sends(fake)[2:]] == [BATCH, BATCH, SEND]
        assert [r.queue_offset for r in sizes] == [2, 3, 4, 5, 6]

    run(scenario, topics=("T", "U"), message_bytes_max=1400)


def test_a_batch_of_which_a_part_fails_says_which():
    async def scenario(fake, producer):
        broker = fake.brokers[0]
        broker.behave = lambda _, request: (
            broker.store(request) if request.fields["b"] == "T" else request.answer(13, "illegal")
        )
        messages = [Message.of("T", b"1"), Message.of("T", b"2"), Message.of("U", b"3")]
        with pytest.raises(SendUnknownError, match="1 of 3") as caught:
            await producer.send_batch(messages)
        first, second, third = caught.value.result
        assert (first.queue_offset, second.queue_offset) == (0, 1)
        assert isinstance(third, SendFailedError)
        with pytest.raises(SendFailedError):
            await producer.send_batch([Message.of("U", b"1"), Message.of("U", b"2", keys="k")])

    run(scenario, topics=("T", "U"))


# -- room, flush, close --------------------------------------------------------------------------------------


def test_a_send_waits_for_room_and_gives_up_after_its_time():
    async def scenario(fake, producer):
        broker, held = fake.brokers[0], []

        def hold(connection, request):
            held.append((connection, request))

        broker.behave = hold
        first = producer.send_nowait("T", b"x" * 1500)
        with pytest.raises(BufferFullError, match="buffer_bytes"):
            producer.send_nowait("T", b"x" * 1500)
        with pytest.raises(BufferFullError):
            producer.enqueue("T", b"x" * 1500)
        await until(lambda: held)  # connecting is no part of the wait for room
        waiting = asyncio.ensure_future(producer.send("T", b"y" * 1500))
        await turns()
        assert not waiting.done()
        connection, request = held.pop()
        connection.answer(request, broker.store(request))
        await first
        await until(lambda: held)
        connection, request = held.pop()
        connection.answer(request, broker.store(request))
        await waiting
        producer.send_nowait("T", b"x" * 1500).add_done_callback(lambda future: future.exception())
        with pytest.raises(BufferFullError):
            await producer.send("T", b"x" * 1500)
        connection, request = held.pop()
        connection.answer(request, broker.store(request))

    run(scenario, buffer_bytes=2000, buffer_timeout_ms=300, retries=1, send_timeout_ms=60_000)


def test_flush_sends_what_lingers_and_raises_what_nobody_was_told():
    async def scenario(fake, producer):
        told = []
        for number in range(10):
            producer.enqueue(
                "T", b"%d" % number, on_result=lambda result, error: told.append((result, error))
            )
        await producer.flush()
        assert len(fake.stored) == 10
        assert [(result.queue_offset, error) for result, error in told] == [(n, None) for n in range(10)]
        fake.brokers[0].behave = lambda _, request: request.answer(13, "illegal")
        for number in range(3):
            producer.enqueue("T", b"%d" % number)
        with pytest.raises(SendFailedError, match="illegal") as caught:
            await producer.flush()
        assert "3 messages failed" in caught.value.__notes__[0]
        await producer.flush()

    run(scenario, linger_ms=10_000)


def test_a_callback_that_fails_hurts_nobody(caplog):
    async def scenario(fake, producer):
        producer.enqueue("T", b"x", on_result=lambda result, error: 1 / 0)
        await producer.flush()
        await producer.send("T", b"x")

    run(scenario)
    assert "callback" in caplog.text


def test_close_sends_what_waits():
    async def main():
        async with cluster() as fake:
            producer = await AsyncProducer(fake.address, "pg", linger_ms=10_000).start()
            future = producer.send_nowait("T", b"x")
            await producer.close()
            assert future.result().queue_offset == 0
            await producer.close()
            for call in (producer.send, producer.send_oneway):
                with pytest.raises(ClientClosedError):
                    await call("T", b"x")
            with pytest.raises(ClientClosedError):
                producer.send_nowait("T", b"x")

    asyncio.run(main())


def test_close_gives_up_after_its_time():
    async def main():
        async with cluster() as fake:
            producer = await AsyncProducer(fake.address, "pg").start()
            fake.brokers[0].behave = lambda _, request: None
            future = producer.send_nowait("T", b"x")
            await until(lambda: sends(fake))
            with pytest.raises(SendUnknownError, match="unanswered"):
                await producer.close(timeout_s=0.05)
            with pytest.raises(SendUnknownError):
                await future

    asyncio.run(main())


@pytest.mark.seed("S2-38")
@pytest.mark.seed("S2-40")
def test_the_first_send_starts_the_producer():
    async def main():
        async with cluster() as fake:
            producer = AsyncProducer([fake.address], "rmq-group", instance_name="rmq-instance")
            assert producer.client_id == ""
            with pytest.raises(ClientClosedError, match="start"):
                producer.send_nowait("T", b"x")
            await producer.send("T", b"x")
            assert producer.client_id == "127.0.0.1@rmq-instance"
            await until(lambda: fake.brokers[0].heartbeats)
            assert fake.brokers[0].heartbeats[0].producers[0].group_name == "rmq-group"
            await producer.close()

    asyncio.run(main())


def test_without_a_name_server_the_error_says_so():
    async def main():
        with pytest.raises(ConnectError, match="no name server answers"):
            await AsyncProducer("127.0.0.1:1").send("T", b"x")

    asyncio.run(main())


def test_a_cancelled_send_does_not_disturb_the_others():
    async def scenario(fake, producer):
        first = asyncio.ensure_future(producer.send("T", b"1"))
        second = asyncio.ensure_future(producer.send("T", b"2"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).queue_offset >= 0
        with pytest.raises(asyncio.CancelledError):
            await first

    run(scenario, linger_ms=20)


def test_a_keyed_send_to_a_topic_without_route_fails_with_the_reason():
    async def scenario(fake, producer):
        outcomes = await asyncio.gather(
            *(producer.send("Nope", b"x", queue_key=f"{n}") for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, RouteNotFoundError) for outcome in outcomes)

    run(scenario, linger_ms=1)
