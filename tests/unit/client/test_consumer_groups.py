"""Several consumers against a real broker: sharing, taking over, broadcasting, restarts."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.client.allocation import FixedQueues
from penstock.client.consumer import Consumer
from penstock.errors import ClientError
from penstock.protocol.bodies import MessageQueue
from penstock.testing import EmbeddedBroker, broker
from tests.support.consuming import QUICK, Seen, numbered, send, take
from tests.waiting import until, wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


def of_topic(queues: object, topic: str = "T") -> list[int]:
    return [queue.queue_id for queue in queues if queue.topic == topic]  # type: ignore[attr-defined]


@pytest.mark.seed("S2-48")
@pytest.mark.seed("S3-5")
@pytest.mark.seed("S3-7")
@pytest.mark.seed("S3-16")
@pytest.mark.seed("S3-17")
@pytest.mark.seed("S3-36")
@pytest.mark.seed("S3-38")
@pytest.mark.invariant("I10")
def test_two_consumers_share_and_one_takes_over_what_the_other_leaves(address: str) -> None:
    send(address, "T", b"0")
    first_seen, second_seen = Seen(), Seen()
    changes: list[tuple[str, list[int]]] = []
    first = Consumer(
        address,
        group="g",
        start_from="first",
        listener=first_seen,
        on_queues=lambda topic, queues: changes.append((topic, of_topic(queues))),
    ).start()
    with closing(first):
        first.subscribe("T")
        assert of_topic(first.wait_assigned()) == [0, 1, 2, 3]
        with Consumer(address, group="g", start_from="first", listener=second_seen) as second:
            assert second.client_id != first.client_id
            second.subscribe("T")
            # The broker tells the first one: nobody waits for the next twenty seconds.
            wait_until(
                lambda: (
                    of_topic(first.assignment) + of_topic(second.assignment) in ([0, 1, 2, 3], [2, 3, 0, 1])
                )
            )
            send(address, "T", *numbered(40, 1))
            wait_until(lambda: set(first_seen.bodies + second_seen.bodies) == set(numbered(41)))
            assert second_seen.messages
            first.close()
            wait_until(lambda: of_topic(second.assignment) == [0, 1, 2, 3])
            send(address, "T", *numbered(10, 41))
            wait_until(lambda: set(numbered(10, 41)) <= set(second_seen.bodies))
    assert changes[0] == ("T", [0, 1, 2, 3])
    assert any(topic == "T" and len(queues) == 2 for topic, queues in changes)
    assert set(first_seen.bodies + second_seen.bodies) == set(numbered(51))


def test_a_consumer_that_vanishes_is_replaced(address: str) -> None:
    """Its connections break without a goodbye, as if the process had been killed."""
    send(address, "T", *numbered(8))

    async def scenario() -> None:
        dying = penstock.AsyncConsumer(address, group="g", start_from="first")
        await dying.start()
        await dying.subscribe("T")
        await dying.wait_assigned()
        async with penstock.AsyncConsumer(address, group="g", start_from="first") as heir:
            await heir.subscribe("T")
            await until(lambda: len(of_topic(heir.assignment)) == len(of_topic(dying.assignment)) == 2)
            await dying.core.abandon()
            await until(lambda: of_topic(heir.assignment) == [0, 1, 2, 3])
            bodies = set()
            async for message in heir:
                bodies.add(message.body)
                if bodies == set(numbered(8)):
                    break
        await dying.close(timeout_ms=0)

    asyncio.run(scenario())


@pytest.mark.parametrize("strategy", ["circle", "consistent_hash", "room_nearby"])
def test_every_strategy_divides_all_queues(address: str, strategy: str) -> None:
    send(address, "T", b"0")
    consumers = [Consumer(address, group="g", strategy=strategy).start() for _ in range(3)]
    try:
        for consumer in consumers:
            consumer.subscribe("T")
        wait_until(lambda: sorted(n for one in consumers for n in of_topic(one.assignment)) == [0, 1, 2, 3])
    finally:
        for consumer in consumers:
            consumer.close()


def test_a_fixed_list_of_queues(address: str) -> None:
    send(address, "T", b"0")
    mine = MessageQueue("T", "test-broker", 2)
    with Consumer(address, group="g", strategy=FixedQueues([mine])) as consumer:
        consumer.subscribe("T")
        assert of_topic(consumer.wait_assigned()) == [2]


def test_broadcasting_gives_everything_to_everybody_and_keeps_offsets_in_files(
    address: str, tmp_path: Path
) -> None:
    send(address, "T", b"0")
    settings = {"model": "broadcasting", "start_from": "first", "offset_directory": str(tmp_path)}
    with (
        Consumer(address, group="g", **settings) as first,
        Consumer(address, group="g", **settings) as second,
    ):
        for consumer in (first, second):
            consumer.subscribe("T")
            assert of_topic(consumer.wait_assigned()) == [0, 1, 2, 3]
            assert [q.topic for q in consumer.assignment] == ["T"] * 4
        send(address, "T", *numbered(9, 1))
        assert sorted(take(first, 10)) == sorted(numbered(10))
        assert sorted(take(second, 10)) == sorted(numbered(10))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("offsets.json")) == [
        "DEFAULT-2/g/offsets.json",
        "DEFAULT/g/offsets.json",
    ]
    send(address, "T", b"new")
    with Consumer(address, group="g", **settings) as first:
        first.subscribe("T")
        assert take(first, 1) == [b"new"]
    with Consumer(address, group="g", **settings, instance_name="other") as third:
        third.subscribe("T")
        assert len(take(third, 11)) == 11


def test_what_fails_in_broadcasting_is_given_up(address: str, tmp_path: Path) -> None:
    send(address, "T", b"bad", queue_key="k")
    send(address, "T", b"good", queue_key="k")
    seen = Seen(lambda message: message.body != b"bad")
    with Consumer(
        address,
        group="g",
        model="broadcasting",
        start_from="first",
        offset_directory=str(tmp_path),
        listener=seen,
    ) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: len(seen.messages) >= 2)
        wait_until(lambda: sum(consumer.position(q) for q in consumer.assignment) == 2)
    assert sorted(seen.bodies) == [b"bad", b"good"]


def test_a_directory_that_cannot_be_written_is_said(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    send(address, "T", b"0")
    with Consumer(
        address, group="g", model="broadcasting", offset_directory=str(tmp_path / "file")
    ) as consumer:
        consumer.subscribe("T")
        with pytest.raises(ClientError, match="not divided"):
            consumer.wait_assigned(1)
        with pytest.raises(ClientError, match="offset_directory"):
            consumer.committed(MessageQueue("T", "test-broker", 0))


def test_offsets_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        for sent, start in ((numbered(5), 0), (numbered(5, 5), 5)):
            embedded = EmbeddedBroker(tmp_path / "data")
            await embedded.start()
            try:
                await asyncio.to_thread(round_trip, embedded.address, sent, start)
            finally:
                await embedded.stop()

    def round_trip(address: str, sent: list[bytes], start: int) -> None:
        send(address, "T", *sent)
        with Consumer(address, group="g", start_from="first") as consumer:
            consumer.subscribe("T")
            assert sorted(take(consumer, 5)) == sorted(sent)

    asyncio.run(scenario())


@pytest.mark.seed("S3-34")
def test_a_broker_that_comes_back_is_pulled_from_again(tmp_path: Path) -> None:
    """The connection breaks and the broker restarts on another port: routes are asked for again."""

    async def scenario() -> None:
        embedded = EmbeddedBroker(tmp_path / "data")
        await embedded.start()
        seen = Seen()
        consumer = Consumer(
            embedded.address,
            group="g",
            start_from="first",
            listener=seen,
            route_interval_ms=200,
            pull_retry_ms=100,
        )
        try:
            await asyncio.to_thread(send, embedded.address, "T", b"1")
            await asyncio.to_thread(consumer.start)
            await asyncio.to_thread(consumer.subscribe, "T")
            await asyncio.to_thread(wait_until, lambda: seen.bodies == [b"1"])
            await restart(embedded)
            await asyncio.to_thread(send, embedded.address, "T", b"2")
            await asyncio.to_thread(wait_until, lambda: b"2" in seen.bodies)
        finally:
            await asyncio.to_thread(consumer.close)
            await embedded.stop()

    async def restart(embedded: EmbeddedBroker) -> None:
        assert embedded.broker is not None
        await embedded.broker.stop()
        options = replace(embedded.broker_options, name_servers=(embedded.address,))
        embedded.broker = Broker(options, embedded.store_options, tmp_path / "data", runtime=embedded.runtime)
        await embedded.broker.start()
        await embedded.broker.registration.wait_registered(60_000)

    asyncio.run(scenario())


def test_consumers_come_and_go_and_nothing_is_lost(address: str) -> None:
    """I1 through rebalances: whatever the members do, every message reaches somebody."""
    got: set[bytes] = set()
    lock = threading.Lock()

    def work(message: penstock.ReceivedMessage) -> None:
        with lock:
            got.add(message.body)

    send(address, "T", b"start")
    total = numbered(600)
    members: list[Consumer] = []
    with penstock.Producer(address) as producer:
        for number, body in enumerate(total):
            producer.send("T", body)
            if number % 100 == 0:
                member = Consumer(address, group="g", start_from="first", listener=work, threads=2).start()
                member.subscribe("T")
                members.append(member)
            elif number % 100 == 50 and len(members) > 1:
                members.pop(0).close()
    try:
        wait_until(lambda: got >= set(total))
    finally:
        for member in members:
            member.close()
