"""Consumers against a real broker and name server in this process: the three styles, offsets, tags, closing."""

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import penstock
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.consumer import Consumer
from penstock.errors import ClientClosedError, ClientError, OptionError, RouteNotFoundError
from penstock.protocol.bodies import MessageQueue
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, numbered, send, take
from tests.waiting import turns, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


# -- iterating ---------------------------------------------------------------------------------------------------


@pytest.mark.seed("S4-3")
@pytest.mark.seed("S2-47")
@pytest.mark.seed("S3-21")
def test_iterating_gives_what_was_sent_and_remembers_it(address: str) -> None:
    sent = numbered(50)
    send(address, "T", *sent)
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        assert sorted(take(consumer, 50)) == sorted(sent)
    send(address, "T", b"after")
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        assert take(consumer, 1) == [b"after"]


def test_leaving_by_an_error_does_not_acknowledge(address: str) -> None:
    send(address, "T", b"one", queue_key="k")

    def work() -> None:
        with Consumer(address, group="g", start_from="first") as consumer:
            consumer.subscribe("T")
            for message in consumer:
                raise ValueError(message.body)

    with pytest.raises(ValueError, match="one"):
        work()
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        assert take(consumer, 1) == [b"one"]


def test_a_loop_that_was_left_begins_again_with_the_message_it_was_left_at(address: str) -> None:
    send(address, "T", *numbered(3), queue_key="k")
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        assert take(consumer, 2) == [b"0", b"1"]
        assert take(consumer, 2) == [b"1", b"2"]


def test_several_threads_may_iterate(address: str) -> None:
    send(address, "T", *numbered(200))
    got: list[bytes] = []
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")

        def work() -> None:
            for message in consumer:
                got.append(message.body)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(got) >= 200)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert sorted(got) == sorted(numbered(200))


def test_acknowledged_by_hand(address: str) -> None:
    send(address, "T", *numbered(4), queue_key="k")
    with Consumer(address, group="g", start_from="first", auto_ack=False, close_timeout_ms=0) as consumer:
        consumer.subscribe("T")
        messages = []
        for message in consumer:
            messages.append(message)
            if len(messages) == 4:
                break
        consumer.ack(messages[0])
        consumer.ack(messages[2])
        with pytest.raises(ClientError, match="once"):
            consumer.ack(messages[2])
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        # 1 was not done, so everything from there comes again.
        assert take(consumer, 3) == [b"1", b"2", b"3"]


def test_retry_later_while_iterating(address: str) -> None:
    send(address, "T", b"one")
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        tries = []
        for message in consumer:
            tries.append((message.topic, message.tries, message.queue.topic))
            if len(tries) == 2:
                break
            consumer.retry(message)
    assert tries == [("T", 0, "T"), ("T", 1, "%RETRY%g")]


# -- tags and subscriptions ----------------------------------------------------------------------------------


def test_only_wanted_tags_come(address: str) -> None:
    with penstock.Producer(address) as producer:
        for number, tag in enumerate(["a", "b", "", "c", "a"]):
            producer.send("T", b"%d" % number, tag=tag)
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T", "a || c")
        assert sorted(take(consumer, 3)) == [b"0", b"3", b"4"]
    with Consumer(address, group="other", start_from="first") as consumer:
        consumer.subscribe("T")
        assert len(take(consumer, 5)) == 5


def test_tags_of_equal_hash_are_told_apart(address: str) -> None:
    # "Aa" and "BB" have the same Java hash: the broker cannot tell them apart, the client must.
    with penstock.Producer(address) as producer:
        for number in range(10):
            producer.send("T", b"%d" % number, tag="Aa" if number % 2 else "BB", queue_key="k")
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T", "Aa")
        assert take(consumer, 5) == [b"1", b"3", b"5", b"7", b"9"]
        queue = consumer.assignment[-1]
    with Consumer(address, group="g") as consumer:
        # What was filtered out is done with as well.
        offsets = [consumer.committed(q) or 0 for q in consumer.queues("T")]
        assert sum(offsets) == 10
        assert queue.topic == "T"


def test_a_new_expression_replaces_the_old_one(address: str) -> None:
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T", "a")
        send(address, "T", b"1", tag="a", queue_key="k")
        messages = iter(consumer)
        assert next(messages).body == b"1"
        consumer.subscribe("T", "b")
        consumer.wait_assigned()
        send(address, "T", b"2", tag="a", queue_key="k")
        send(address, "T", b"3", tag="b", queue_key="k")
        assert next(messages).body == b"3"


def test_unsubscribing_gives_the_queues_up(address: str) -> None:
    send(address, "T", b"1")
    send(address, "U", b"1")
    with Consumer(address, group="g") as consumer:
        consumer.subscribe("T")
        consumer.subscribe("U")
        assert {queue.topic for queue in consumer.wait_assigned()} >= {"T", "U"}
        consumer.unsubscribe("T")
        assert {queue.topic for queue in consumer.wait_assigned()} - {"%RETRY%g"} == {"U"}
        consumer.unsubscribe("U")
        wait_until(lambda: not consumer.assignment)


def test_a_topic_that_comes_later_is_read_from_its_first_message(address: str) -> None:
    with Consumer(address, group="g", start_from="last") as consumer:
        consumer.subscribe("T")
        consumer.wait_assigned()
        send(address, "T", *numbered(5))
        assert sorted(take(consumer, 5)) == numbered(5)


# -- where a group begins ------------------------------------------------------------------------------------


def test_a_new_group_begins_where_it_was_told(address: str) -> None:
    send(address, "T", *numbered(5), queue_key="k")
    time.sleep(0.05)
    middle = datetime.now(tz=UTC)
    time.sleep(0.05)
    send(address, "T", b"late", queue_key="k")
    for group, start, expected in (
        ("first", "first", [*numbered(5), b"late"]),
        ("time", middle, [b"late"]),
        ("ms", int(middle.timestamp() * 1000), [b"late"]),
        ("last", "last", []),
        ("auto", "auto", [*numbered(5), b"late"]),
    ):
        with Consumer(address, group=group, start_from=start) as consumer:
            consumer.subscribe("T")
            consumer.wait_assigned()
            got = [message.body for message in consumer.poll(100, 60 if expected else 0.3)]
            while len(got) < len(expected):
                got += [message.body for message in consumer.poll(100, 60)]
            assert got == expected, group


def test_a_group_that_knows_the_topic_misses_nothing_in_a_queue_that_is_new_to_it(address: str) -> None:
    send(address, "T", *numbered(8))
    with Consumer(address, group="g", start_from="last") as consumer:
        queues = consumer.queues("T")
        consumer.assign(queues[:1])
        consumer.commit({queues[0]: 1})
    with Consumer(address, group="g", start_from="last") as consumer:
        consumer.subscribe("T")
        positions = {q: consumer.position(q) for q in consumer.wait_assigned() if q.topic == "T"}
    assert sorted(positions.values()) == [0] * (len(queues) - 1) + [1]


# -- pull style ----------------------------------------------------------------------------------------------


@pytest.mark.feature("pull", "fifth-seed")
@pytest.mark.seed("S3-15")
def test_assign_seek_poll_commit(address: str) -> None:
    send(address, "T", *numbered(10), queue_key="k")
    with Consumer(address, group="g") as consumer:
        [queue] = [q for q in consumer.queues("T") if _end(address, q) == 10]
        consumer.assign([queue])
        consumer.seek(queue, 4)
        assert [m.body for m in consumer.poll(3, 60)] == [b"4", b"5", b"6"]
        assert consumer.position(queue) == 7
        assert consumer.committed(queue) is None
        consumer.commit()
        assert consumer.committed(queue) == 7
        assert [m.body for m in consumer.poll(100, 60)] == [b"7", b"8", b"9"]
        assert consumer.poll(100, 0.05) == []
        consumer.seek_to_first(queue)
        assert [m.body for m in consumer.poll(2, 60)] == [b"0", b"1"]
        consumer.seek_to_last(queue)
        assert consumer.poll(1, 0.05) == []
    with Consumer(address, group="g") as consumer:
        consumer.assign([queue])
        # Closing commits nothing by itself: 7 was the last commit.
        assert [m.body for m in consumer.poll(1, 60)] == [b"7"]


def test_a_queue_of_a_topic_not_looked_at_yet_can_be_asked_about(address: str) -> None:
    send(address, "T", b"one")
    queue = MessageQueue("T", "test-broker", 0)
    with Consumer(address, group="g") as consumer:
        assert consumer.committed(queue) is None
    with Consumer(address, group="g") as consumer:
        consumer.commit({queue: 1})
        assert consumer.committed(queue) == 1
    with Consumer(address, group="g") as consumer, pytest.raises(RouteNotFoundError):
        consumer.committed(MessageQueue("None", "test-broker", 0))


def _end(address: str, queue: MessageQueue) -> int:
    with penstock.Admin(address) as admin:
        return admin.max_offset(queue)


@pytest.mark.seed("S3-14")
def test_auto_commit_counts_a_poll_when_the_next_one_comes(address: str) -> None:
    send(address, "T", *numbered(6), queue_key="k")
    with Consumer(address, group="g", start_from="first", auto_commit=True) as consumer:
        consumer.subscribe("T")
        assert len(consumer.poll(3, 60)) == 3
        assert len(consumer.poll(3, 60)) == 3
    with Consumer(address, group="g", start_from="first") as consumer:
        consumer.subscribe("T")
        assert [m.body for m in consumer.poll(100, 60)] == [b"3", b"4", b"5"]


def test_pause_and_resume(address: str) -> None:
    send(address, "T", b"1")
    with Consumer(address, group="g", start_from="first") as consumer:
        queues = consumer.queues("T")
        consumer.pause(queues)
        consumer.assign(queues)
        assert consumer.poll(1, 0.1) == []
        consumer.resume(queues)
        assert [m.body for m in consumer.poll(1, 60)] == [b"1"]


def test_assigning_what_is_not_there_is_an_error(address: str) -> None:
    send(address, "T", b"1")
    with Consumer(address, group="g") as consumer:
        with pytest.raises(RouteNotFoundError):
            consumer.assign([MessageQueue("nothing", "test-broker", 0)])
        with pytest.raises(ClientError, match="no queue"):
            consumer.assign([MessageQueue("T", "test-broker", 99)])
        queues = consumer.queues("T")
        consumer.assign(queues)
        with pytest.raises(ClientError, match="assign"):
            consumer.subscribe("T")
        with pytest.raises(ClientError, match="negative"):
            consumer.seek(queues[0], -1)
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(MessageQueue("T", "test-broker", 99), 0)


def test_an_assigned_consumer_does_not_disturb_its_group(address: str) -> None:
    send(address, "T", *numbered(4))
    with Consumer(address, group="g") as member, Consumer(address, group="g") as reader:
        member.subscribe("T")
        assert [q for q in member.wait_assigned() if q.topic == "T"] == list(reader.queues("T"))
        reader.assign(reader.queues("T"))
        reader.poll(1, 0.2)
        assert [q for q in member.wait_assigned() if q.topic == "T"] == list(reader.queues("T"))


def test_an_offset_outside_the_queue_is_corrected_by_the_broker(address: str) -> None:
    send(address, "T", b"0", queue_key="k")
    with Consumer(address, group="g") as consumer:
        [queue] = [q for q in consumer.queues("T") if _end(address, q) == 1]
        consumer.assign([queue])
        consumer.seek(queue, 1_000_000)
        assert consumer.poll(1, 0.5) == []
        assert consumer.position(queue) == 1
        send(address, "T", b"1", queue_key="k")
        assert [m.body for m in consumer.poll(1, 60)] == [b"1"]


# -- listeners -----------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-19")
@pytest.mark.seed("S3-21")
def test_a_listener_is_called_by_threads_of_the_consumer(address: str) -> None:
    threads: set[str] = set()

    def slow(message: object) -> bool:
        threads.add(threading.current_thread().name)
        time.sleep(0.02)
        return True

    seen = Seen(slow)
    send(address, "T", *numbered(40))
    with Consumer(address, group="g", start_from="first", listener=seen, threads=4) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) >= 40)
    assert sorted(seen.bodies) == sorted(numbered(40))
    assert threads == {f"penstock-g-{number}" for number in range(4)}


def test_a_consumer_is_used_in_one_style(address: str) -> None:
    with Consumer(address, group="g", listener=Seen()) as consumer:
        with pytest.raises(ClientError, match="a listener"):
            iter(consumer)
        with pytest.raises(ClientError, match="a listener"):
            consumer.poll(1, 0)
    with pytest.raises(OptionError, match="AsyncConsumer"):
        Consumer(address, group="g", listener=_coroutine)


async def _coroutine(message: object) -> None:
    """A listener for event loops."""


def test_an_async_listener_runs_in_tasks(address: str) -> None:
    send(address, "T", *numbered(40))

    async def scenario() -> tuple[list[bytes], int]:
        got: list[bytes] = []
        at_once = most = 0
        enough = asyncio.Event()

        async def listener(message: penstock.ReceivedMessage) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1
            got.append(message.body)
            if len(got) == 40:
                enough.set()

        async with AsyncConsumer(address, group="g", start_from="first", listener=listener, threads=8) as one:
            await one.subscribe("T")
            await asyncio.wait_for(enough.wait(), 60)
        return got, most

    got, most = asyncio.run(scenario())
    assert sorted(got) == sorted(numbered(40))
    assert 1 < most <= 8


def test_an_ordinary_listener_of_an_async_consumer_runs_in_threads(address: str) -> None:
    send(address, "T", b"1")
    seen = Seen()

    async def scenario() -> None:
        async with AsyncConsumer(address, group="g", start_from="first", listener=seen) as consumer:
            await consumer.subscribe("T")
            await asyncio.to_thread(wait_until, lambda: seen.messages)

    asyncio.run(scenario())
    assert seen.bodies == [b"1"]


def test_async_iteration_and_poll(address: str) -> None:
    send(address, "T", *numbered(10), queue_key="k")

    async def scenario() -> None:
        consumer = AsyncConsumer(address, group="g", start_from="first")
        await consumer.subscribe("T")  # a wish, until it starts
        got = []
        async with consumer:
            async for message in consumer:
                got.append(message.body)
                if len(got) == 4:
                    break
        assert got == numbered(4)
        async with AsyncConsumer(address, group="g", start_from="first") as consumer:
            await consumer.subscribe("T")
            queues = [q for q in await consumer.wait_assigned() if consumer.position(q) == 4]
            assert [m.body for m in await consumer.poll(2, 60)] == [b"4", b"5"]
            await consumer.commit()
            assert await consumer.committed(queues[0]) == 6
            await consumer.seek_to_time(queues[0], 0)
            assert (await consumer.poll(1, 60))[0].body == b"0"

    asyncio.run(scenario())


def test_a_wish_that_cannot_be_granted_fails_the_start(address: str) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(address, group="g")
        await consumer.subscribe("no topic")
        with pytest.raises(OptionError):
            await consumer.start()
        with pytest.raises(ClientClosedError):
            await consumer.start()
        both = AsyncConsumer(address, group="g")
        first, second = await asyncio.gather(both.begin(), both.begin())
        assert first is second
        await both.close()
        await both.close()

    asyncio.run(scenario())


def test_cancelling_a_loop_leaves_the_consumer_usable(address: str) -> None:
    async def scenario() -> None:
        async with AsyncConsumer(address, group="g", start_from="first") as consumer:
            await consumer.subscribe("T")

            async def loop() -> bytes:
                async for message in consumer:
                    return message.body
                return b""

            task = asyncio.ensure_future(loop())
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(send, address, "T", b"1")
            assert await asyncio.wait_for(loop(), 60) == b"1"

    asyncio.run(scenario())


# -- closing -------------------------------------------------------------------------------------------------


def test_closing_waits_for_the_listener_and_stores_what_it_did(address: str) -> None:
    begun = threading.Event()

    def slow(message: object) -> None:
        begun.set()
        time.sleep(0.3)

    send(address, "T", b"1", queue_key="k")
    with Consumer(address, group="g", start_from="first", listener=slow) as consumer:
        consumer.subscribe("T")
        assert begun.wait(60)
    with Consumer(address, group="g") as consumer:
        assert sum(consumer.committed(queue) or 0 for queue in consumer.queues("T")) == 1


def test_closing_does_not_wait_for_ever(address: str) -> None:
    begun, release, ended = threading.Event(), threading.Event(), list[bool]()

    def hanging(message: object) -> None:
        begun.set()
        ended.append(release.wait(120))

    send(address, "T", b"1", queue_key="k")
    consumer = Consumer(
        address, group="g", start_from="first", listener=hanging, close_timeout_ms=100
    ).start()
    consumer.subscribe("T")
    assert begun.wait(60)
    consumer.close()
    assert not ended, "the listener still hangs"
    release.set()
    with Consumer(address, group="g", start_from="first") as again:
        again.subscribe("T")
        assert take(again, 1) == [b"1"]


def test_a_listener_may_close_its_consumer(address: str) -> None:
    send(address, "T", b"1")
    consumer = Consumer(
        address, group="g", start_from="first", listener=lambda message: consumer.close()
    ).start()
    consumer.subscribe("T")
    assert consumer.wait(60)


def test_closing_ends_loops_and_refuses_the_rest(address: str) -> None:
    consumer = Consumer(address, group="g")
    with pytest.raises(ClientClosedError):
        consumer.poll(1, 0)
    consumer.start()
    consumer.subscribe("T")
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(list(consumer) == []))
    thread.start()
    wait_until(lambda: consumer._turns, "the loop to begin")
    consumer.close()
    thread.join(60)
    assert ended == [True]
    consumer.close()
    queue = MessageQueue("T", "b", 0)
    for call in (consumer.start, lambda: consumer.subscribe("T"), lambda: consumer.seek(queue, 0)):
        with pytest.raises(ClientClosedError):
            call()
    assert consumer.wait(0)


def test_options_are_checked_before_anything_else() -> None:
    for settings in (
        {"group": ""},
        {"group": "a b"},
        {"model": "both"},
        {"start_from": "middle"},
        {"start_from": -5},
        {"start_from": 1.5},
        {"start_from": True},
        {"strategy": "none"},
        {"threads": 0},
        {"pull_batch": 0},
        {"suspend_ms": 30_000, "pull_timeout_ms": 30_000},
        {"nonsense": 1},
    ):
        with pytest.raises(OptionError):
            Consumer("127.0.0.1:1", **settings)  # type: ignore[arg-type]


def test_no_name_server_is_an_error_at_the_start() -> None:
    with pytest.raises(penstock.ConnectError):
        Consumer("127.0.0.1:1", group="g").start()


def test_a_consumer_that_was_forgotten_is_complained_about(address: str) -> None:
    consumer = Consumer(address, group="g").start()
    with pytest.warns(ResourceWarning, match="without being closed"):
        consumer.__del__()
    consumer.close()
