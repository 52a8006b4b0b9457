import asyncio

import pytest

from penstock._hot.decode import encode_items as encode_batch
from penstock.client.batching import Accumulator
from penstock.client.inbox import Inbox
from penstock.client.options import ProducerOptions
from penstock.client.outgoing import RECORD_OVERHEAD, Outgoing
from penstock.client.room import Room
from penstock.errors import ClientClosedError
from penstock.protocol.bodies.batch import decode_batch
from penstock.protocol.bodies.queues import MessageQueue
from tests.waiting import until


def item(body=b"x", topic="T", durability="", solo=False, queue=None):
    found = Outgoing(topic, body, b"", 0, "id")
    found.durability = durability
    found.is_solo = solo
    found.queue = queue
    return found


def bound(item):
    return item.queue


def test_the_bytes_of_a_batch_are_those_on_the_wire():
    data = encode_batch([(b"hi", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01tagA\x02", 0)])
    assert data.hex() == (
        "00000034" + "00" * 12 + "00000002" + "6869" + "001c"
        "4b455953016b3102" + "57414954017472756502" + "54414753017461674102"
    )
    messages = [(b"body%d" % n, b"A\x01%d\x02" % n, n) for n in range(5)] + [(b"", b"", -1)]
    assert [(r.body, r.properties, r.flag) for r in decode_batch(encode_batch(messages))] == messages
    assert encode_batch([]) == b""


def bodies(parcels):
    return [[each.body for each in parcel.items] for parcel in parcels]


def test_messages_travel_together_up_to_the_limits():
    lanes = Accumulator(3, 10_000, in_flight_max=10)
    lanes.add([item(b"%d" % n) for n in range(7)], bound)
    assert bodies(lanes.ready()) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]
    assert lanes.ready() == []
    sized = Accumulator(100, 2 * (RECORD_OVERHEAD + 10), in_flight_max=10)
    sized.add([item(b"x" * 10) for _ in range(5)], bound)
    assert [len(parcel.items) for parcel in sized.ready()] == [2, 2, 1]


def test_what_arrives_while_a_lane_is_busy_goes_together():
    lanes = Accumulator(100, 10_000, in_flight_max=1)
    lanes.add([item(b"0")], bound)
    (first,) = lanes.ready()
    lanes.add([item(b"1")], bound)
    lanes.add([item(b"2")], bound)
    assert lanes.ready() == []
    lanes.finished(first)
    assert bodies(lanes.ready()) == [[b"1", b"2"]]


@pytest.mark.abuse("A26")
def test_topics_queues_and_demands_never_share_a_batch():
    queue = MessageQueue("T", "a", 1)
    lanes = Accumulator(100, 10_000, in_flight_max=4)
    lanes.add(
        [
            item(b"0"),
            item(b"1", "U"),
            item(b"2"),
            item(b"3", durability="flushed"),
            item(b"4", queue=queue),
            item(b"5", queue=MessageQueue("T", "a", 2)),
            item(b"6", "U"),
        ],
        bound,
    )
    assert sorted(bodies(lanes.ready())) == [[b"0", b"2"], [b"1", b"6"], [b"3"], [b"4"], [b"5"]]


def test_a_queue_has_one_batch_under_way_so_that_order_survives_retries():
    queue = MessageQueue("T", "a", 1)
    lanes = Accumulator(1, 10_000, in_flight_max=4)
    lanes.add([item(b"%d" % n, queue=queue) for n in range(3)], bound)
    seen = []
    for _ in range(3):
        (parcel,) = lanes.ready()
        assert parcel.queue == queue
        assert lanes.ready() == []
        seen.append(parcel.items[0].body)
        lanes.finished(parcel)
    assert seen == [b"0", b"1", b"2"]


def test_a_message_that_may_not_be_in_a_batch_travels_alone_in_its_place():
    queue = MessageQueue("T", "a", 1)
    lanes = Accumulator(100, 10_000, in_flight_max=1)
    lanes.add([item(b"0", queue=queue), item(b"1", queue=queue)], bound)
    lanes.add([item(b"2", queue=queue, solo=True), item(b"3", queue=queue)], bound)
    seen = []
    while parcels := lanes.ready():
        (parcel,) = parcels
        seen.append([each.body for each in parcel.items])
        lanes.finished(parcel)
    assert seen == [[b"0", b"1"], [b"2"], [b"3"]]


def test_unfinished_is_everything_and_whoever_waits_is_told():
    lanes = Accumulator(2, 10_000, in_flight_max=1)
    lanes.add([item(b"%d" % n) for n in range(5)], bound)
    lanes.ready()
    parcels = lanes.unfinished()
    assert sorted(body for lot in bodies(parcels) for body in lot) == [b"0", b"1", b"2", b"3", b"4"]
    told = []
    for parcel in parcels:
        parcel.when_done.append(lambda p=parcel: told.append(p))
    lanes.finished(next(iter(p for p in parcels if p.items[0].body == b"0")))
    while ready := lanes.ready():
        for parcel in ready:
            lanes.finished(parcel)
    assert len(told) == 3
    assert lanes.unfinished() == []


# -- inbox ---------------------------------------------------------------------------------------------------


class Wakes:
    """Counts how often the loop is woken from outside."""

    def __init__(self, loop):
        self.loop = loop
        self.count = 0

    def __call__(self, callback):
        self.count += 1
        self.loop.call_soon_threadsafe(callback)


def inbox(loop, taken, wakes=None, **more):
    room = {"buffer_bytes": more.pop("room_bytes", 100_000), "buffer_messages": 100_000}
    options = {"linger_ms": 20, "messages_max": 100, "bytes_max": 10_000, **more}

    def deliver(items):
        taken.append([each.body for each in items])
        return 1

    call_soon = wakes or loop.call_soon
    return Inbox(
        deliver, Room(ProducerOptions(**room), loop, call_soon), loop=loop, call_soon=call_soon, **options
    )


def test_the_loop_is_woken_once_and_takes_everything_after_lingering():
    async def main():
        loop = asyncio.get_running_loop()
        taken, wakes = [], Wakes(loop)
        box = inbox(loop, taken, wakes)

        def fill():
            for number in range(50):
                assert box.put(item(b"%d" % number))

        await asyncio.to_thread(fill)
        assert (wakes.count, taken) == (1, [])
        await until(lambda: taken)
        assert [len(lot) for lot in taken] == [50]
        await asyncio.to_thread(fill)
        await until(lambda: len(taken) == 2)
        assert (wakes.count, [len(lot) for lot in taken]) == (2, [50, 50])

    asyncio.run(main())


def test_a_full_batch_does_not_linger():
    async def main():
        loop = asyncio.get_running_loop()
        taken, wakes = [], Wakes(loop)
        box = inbox(loop, taken, wakes, linger_ms=10_000, messages_max=10)
        for number in range(10):
            box.put(item(b"%d" % number))
        assert wakes.count == 2
        await until(lambda: taken)
        assert [len(lot) for lot in taken] == [10]
        large = item(b"x" * 20_000)
        box.put(item(b"small"))
        box.put(large)
        await until(lambda: len(taken) >= 2)
        assert len(taken) == 2
        box.drain()

    asyncio.run(main())


def test_who_finds_no_room_waits_until_answers_free_it():
    async def main():
        loop = asyncio.get_running_loop()
        taken = []
        one = item(b"x" * 1000)
        box = inbox(loop, taken, linger_ms=0, room_bytes=2 * one.size)
        assert box.put(one)
        assert box.put(one)
        assert not box.put(one)
        assert not box.reserve(1)
        waiting = asyncio.ensure_future(box.room.wait(one.size))
        await asyncio.sleep(0)
        thread = loop.run_in_executor(None, box.room.block, one.size)
        assert not waiting.done()
        box.room.release(one.size, 1)
        await waiting
        assert not thread.done()
        assert not box.put(one), "the thread is first"
        box.room.release(one.size, 1)
        await thread
        assert (box.room.bytes, box.room.messages) == (2 * one.size, 2)

    asyncio.run(main())


def test_a_message_larger_than_the_room_goes_alone():
    async def main():
        box = inbox(asyncio.get_running_loop(), [], linger_ms=0, room_bytes=1024)
        assert box.put(item(b"x" * 2000))
        assert not box.put(item(b"y"))
        box.room.release(box.room.bytes, 1)
        assert box.put(item(b"y"))

    asyncio.run(main())


def test_a_closed_inbox_takes_nothing():
    async def main():
        loop = asyncio.get_running_loop()
        taken = []
        box = inbox(loop, taken, linger_ms=10_000)
        box.put(item())
        box.close()
        with pytest.raises(ClientClosedError):
            box.put(item())
        box.drain()
        assert taken == [[b"x"]]

    asyncio.run(main())


def test_threads_lose_nothing():
    async def main():
        loop = asyncio.get_running_loop()
        taken = []
        box = inbox(loop, taken, loop.call_soon_threadsafe, linger_ms=1, room_bytes=1 << 30)

        def fill(name):
            for number in range(2_000):
                box.put(item(b"%d-%d" % (name, number)))

        await asyncio.gather(*(asyncio.to_thread(fill, name) for name in range(4)))
        box.drain()
        found = [body for lot in taken for body in lot]
        assert len(found) == 8_000
        for name in range(4):
            mine = [body for body in found if body.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, number) for number in range(2_000)]

    asyncio.run(main())
