"""Consumers that a coordinator balances, against a real coordinator and a real broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.consumer import Consumer
from penstock.errors import ClientError, OptionError
from penstock.protocol.bodies import MessageQueue
from tests.support.balanced import SHORT_LEASE, Cluster, cluster, create_topic, shares
from tests.waiting import DEADLINE_S, until, wait_until


def is_level(*consumers: AsyncConsumer, queues: int) -> bool:
    found = shares(*consumers)
    sizes = [len(share) for share in found]
    return len(set().union(*found)) == sum(sizes) == queues and max(sizes) - min(sizes) <= 1


async def start(stack: AsyncExitStack, found: Cluster, *names: str, **settings: Any) -> list[AsyncConsumer]:
    consumers = []
    for name in names:
        consumer = await stack.enter_async_context(found.consumer(name, **settings))
        await consumer.subscribe("T")
        consumers.append(consumer)
    return consumers


@pytest.mark.feature("clustering", "fifth-seed")
@pytest.mark.feature("coordinator-balancing", "tubemq")
@pytest.mark.invariant("I10")
@pytest.mark.seed("S4-32")
@pytest.mark.seed("S4-34")
@pytest.mark.seed("S0-53")
def test_three_consumers_share_a_topic_and_take_over_from_who_leaves() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 8}) as found, AsyncExitStack() as stack:
            one, two, three = await start(stack, found, "one", "two", "three")
            await until(lambda: is_level(one, two, three, queues=8))
            await found.send("T", [f"first {number}" for number in range(40)])
            await until(lambda: len(found.everything) == 40)
            before = shares(one, two)
            await three.close()
            await until(lambda: is_level(one, two, queues=8))
            after = shares(one, two)
            assert before[0] <= after[0]
            assert before[1] <= after[1]
            await found.send("T", [f"second {number}" for number in range(40)])
            await until(lambda: len(found.everything) == 80)
            # What was done is not seen again: offsets went over with the queues.
            assert len(set(found.everything)) == 80

    asyncio.run(scenario())


@pytest.mark.feature("coordinator-balancing", "tubemq")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I10")
@pytest.mark.seed("S0-58")
def test_the_queues_of_a_dead_consumer_are_taken_over_when_its_lease_is_over() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 6}, broker=SHORT_LEASE) as found, AsyncExitStack() as stack:
            one, two, three = await start(stack, found, "one", "two", "three")
            await until(lambda: is_level(one, two, three, queues=6))
            await found.send("T", [f"first {number}" for number in range(12)])
            await until(lambda: len(set(found.everything)) == 12)
            await asyncio.gather(
                *(consumer.core.offsets.persist(surely=True) for consumer in (one, two, three))
            )
            began = asyncio.get_running_loop().time()
            await three.core.abandon()
            await until(lambda: is_level(one, two, queues=6))
            waited_s = asyncio.get_running_loop().time() - began
            # Not before its lease has expired.
            assert waited_s > 0.5
            await found.send("T", [f"second {number}" for number in range(12)])
            await until(lambda: len(set(found.everything)) == 24)

    asyncio.run(scenario())


@pytest.mark.fault("F1")
def test_consumers_go_on_without_a_coordinator_and_nothing_moves_when_it_is_back() -> None:
    async def scenario() -> None:
        lease = {"partition_lease_ms": 2_000}
        async with cluster(topics={"T": 6}, coordinators=2, broker=lease) as found, AsyncExitStack() as stack:
            one, two = await start(stack, found, "one", "two")
            await until(lambda: is_level(one, two, queues=6))
            before = shares(one, two)
            first = found.leader
            other = next(server for server in found.coordinators if server is not first)
            other.store.cut()  # type: ignore[attr-defined]
            await first.stop()
            # Nobody leads: the other one cannot reach the metadata store. Longer than a lease.
            await asyncio.sleep(2.2)
            await until(lambda: shares(one, two) == before)
            await found.send("T", [f"alone {number}" for number in range(12)])
            await until(lambda: len(set(found.everything)) == 12)
            other.store.heal()  # type: ignore[attr-defined]
            await until(lambda: other.leadership.is_sure)
            await until(lambda: len(found.balancing.groups) == 1)
            group = found.balancing.groups.get("g")
            assert group is not None
            await until(lambda: group.round > 1)
            assert shares(one, two) == before
            (three,) = await start(stack, found, "three")
            await until(lambda: is_level(one, two, three, queues=6))

    asyncio.run(scenario())


@pytest.mark.fault("F2")
@pytest.mark.invariant("I10")
def test_a_queue_whose_lease_another_holds_is_dropped_and_its_offset_left_alone() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            (one,) = await start(stack, found, "one")
            await one.wait_assigned(DEADLINE_S)
            await found.send("T", [str(number) for number in range(20)])
            await until(lambda: len(found.everything) == 20)
            assert found.node.broker is not None
            leases = found.node.broker.leases
            queue = shares(one)[0].pop()
            # As after a pause that outlasted the lease: somebody else has it, and has come further.
            leases.release("g", one.client_id, [queue])
            assert leases.claim("g", "stranger", [queue]).granted
            found.node.broker.offsets.commit("g", "T", queue.queue_id, 10)
            one.core.offsets.set(queue, 3)
            failed = await one.core.offsets.persist([queue], surely=True)
            assert "leased to stranger" in str(failed[queue])
            await until(lambda: queue not in shares(one)[0])
            assert found.node.broker.offsets.query("g", "T", queue.queue_id) == 10
            await until(lambda: "leases it to stranger" in explained(found, queue.queue_id))
            leases.release("g", "stranger", [queue])
            await until(lambda: queue in shares(one)[0])
            assert one.position(queue) == 10

    asyncio.run(scenario())


def explained(found: Cluster, number: int) -> str:
    queues = found.balancing.explain("g").queues
    return next(item.why for item in queues if item.queue.topic == "T" and item.queue.queue_id == number)


@pytest.mark.invariant("I10")
def test_a_queue_is_given_away_when_what_is_in_hand_is_done() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            working: dict[int, str] = {}
            seen: list[tuple[str, str]] = []

            def listener(name: str):  # type: ignore[no-untyped-def]
                async def listen(message) -> None:  # type: ignore[no-untyped-def]
                    number = message.queue.queue_id
                    assert number not in working, f"queue {number} is worked on by two"
                    working[number] = name
                    # So slowly that the other one has its queue long before everything is done.
                    await asyncio.sleep(0 if "two" in {who for who, _ in seen} else 0.2)
                    del working[number]
                    seen.append((name, message.body.decode()))

                return listen

            settings = {"orderly": True, "coordinator_interval_ms": 200}
            (one,) = await start(stack, found, "one", listener=listener("one"), **settings)
            await one.wait_assigned(DEADLINE_S)
            await found.send("T", [str(number) for number in range(300)])
            await until(lambda: len(seen) > 2)
            (two,) = await start(stack, found, "two", listener=listener("two"), **settings)
            await until(lambda: len(seen) == 300)
            assert is_level(one, two, queues=2)
            # In order, and each message once: offsets were stored before the queue was given away.
            assert len({text for _, text in seen}) == 300
            assert {name for name, _ in seen} == {"one", "two"}
            for number in range(2):
                texts = [int(text) for _, text in seen if int(text) % 2 == number]
                assert texts == sorted(texts)

    asyncio.run(scenario())


def test_a_listener_that_takes_too_long_holds_a_queue_up_for_a_while_only() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 1}) as found, AsyncExitStack() as stack:
            ends = asyncio.Event()

            async def listen(message) -> None:  # type: ignore[no-untyped-def]
                await ends.wait()

            (one,) = await start(stack, found, "one", listener=listen, release_timeout_ms=300)
            await one.wait_assigned(DEADLINE_S)
            await found.send("T", ["stuck"])
            await until(lambda: sum(owner.in_hand for owner in one.core.holdings.owners) == 1)
            await one.unsubscribe("T")
            await start(stack, found, "two")
            await until(lambda: found.received["two"] == ["stuck"])
            ends.set()

    asyncio.run(scenario())


def test_more_consumers_than_queues() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 1}) as found, AsyncExitStack() as stack:
            one, two, three = await start(stack, found, "one", "two", "three")
            for consumer in (one, two, three):
                await consumer.wait_assigned(DEADLINE_S)
            await until(lambda: sorted(map(len, shares(one, two, three))) == [0, 0, 1])

    asyncio.run(scenario())


def test_a_topic_that_is_not_subscribed_any_more_goes_to_the_others() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 4, "U": 4}) as found, AsyncExitStack() as stack:
            one, two = await start(stack, found, "one", "two")
            await one.subscribe("U")
            await two.subscribe("U")
            for topic in ("T", "U"):
                await until(lambda topic=topic: [len(s) for s in shares(one, two, topic=topic)] == [2, 2])  # type: ignore[misc]
            await two.unsubscribe("T")
            await until(lambda: [len(s) for s in shares(one, two)] == [4, 0])
            assert [len(s) for s in shares(one, two, topic="U")] == [2, 2]

    asyncio.run(scenario())


def test_queues_that_are_added_are_divided() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            one, two = await start(stack, found, "one", "two")
            await until(lambda: is_level(one, two, queues=2))
            before = shares(one, two)
            await create_topic(found.node, "T", 5)
            await until(lambda: is_level(one, two, queues=5))
            assert before[0] <= shares(one)[0]
            assert before[1] <= shares(two)[0]

    asyncio.run(scenario())


@pytest.mark.feature("publish-subscribe", "fifth-seed")
@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-30")
@pytest.mark.seed("S4-36")
def test_modes_that_do_not_go_together_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            (one,) = await start(stack, found, "one", subscription_mode="point_to_point")
            await one.wait_assigned(DEADLINE_S)
            await start(stack, found, "two", group="other", subscription_mode="point_to_point")
            await until(lambda: "read point to point by group g" in caplog.text)
            (alone,) = await start(
                stack, found, "alone", group="single", subscription_mode="publish_subscribe"
            )
            await alone.wait_assigned(DEADLINE_S)
            await start(stack, found, "second", group="single", subscription_mode="publish_subscribe")
            await until(lambda: "group single has its consumer" in caplog.text)

    asyncio.run(scenario())


def test_a_consumer_for_threads() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 3}) as found:
            got: list[bytes] = []

            def consume() -> None:
                with Consumer(
                    found.node.address,
                    "threads",
                    balance="coordinator",
                    coordinators=found.leader.address,
                    start_from="first",
                ) as consumer:
                    consumer.subscribe("T")
                    consumer.wait_assigned(DEADLINE_S)
                    # The broker makes the retry topic, which has one, a moment after the member has come.
                    wait_until(lambda: len(consumer.assignment) == 4, "its share of both topics")
                    for message in consumer:
                        got.append(message.body)
                        if len(got) == 9:
                            break

            await found.send("T", [str(number) for number in range(9)])
            await asyncio.to_thread(consume)
            assert sorted(got) == sorted(str(number).encode() for number in range(9))

    asyncio.run(scenario())


def test_what_does_not_go_together_with_a_coordinator_is_said_at_once() -> None:
    with pytest.raises(OptionError, match="no coordinators"):
        AsyncConsumer("127.0.0.1:1", balance="coordinator")
    with pytest.raises(OptionError, match="broadcasting"):
        AsyncConsumer("127.0.0.1:1", balance="coordinator", coordinators="c", model="broadcasting")
    with pytest.raises(OptionError, match="use one of"):
        AsyncConsumer("127.0.0.1:1", balance="somebody")

    async def scenario() -> None:
        async with cluster(topics={"T": 1}) as found, found.consumer("one") as consumer:
            with pytest.raises(ClientError, match="a coordinator assigns"):
                await consumer.assign([MessageQueue("T", "test-broker", 0)])

    asyncio.run(scenario())
