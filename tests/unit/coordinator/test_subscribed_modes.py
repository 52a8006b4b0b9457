"""The modes of subscription end to end: real coordinator and broker, consumers that join, share and are refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.client.consumer import Consumer
from penstock.coordinator.ring_division import divide_by_ring
from penstock.errors import ClientClosedError, ClientError, OptionError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER
from tests.support.balanced import SHORT_LEASE, Cluster, cluster, shares
from tests.unit.coordinator.test_balanced_consumers import is_level
from tests.waiting import DEADLINE_S, until

P2P: dict[str, Any] = {"subscription_mode": "point_to_point"}
PUBSUB: dict[str, Any] = {"subscription_mode": "publish_subscribe"}


async def start(stack: AsyncExitStack, found: Cluster, name: str, **settings: Any) -> AsyncConsumer:
    consumer = await stack.enter_async_context(found.consumer(name, **settings))
    await consumer.subscribe("T")
    return consumer


async def refused_at(consumer: AsyncConsumer) -> None:
    """Wait until the coordinator has refused it, then for its queues, which it does not get."""
    await until(lambda: consumer.core.rebalancing.refusal, "a refusal")
    await consumer.wait_assigned(1)


@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-31")
@pytest.mark.seed("S4-32")
@pytest.mark.seed("S4-33")
@pytest.mark.seed("S4-34")
@pytest.mark.seed("S4-41")
def test_consumers_that_name_no_group_make_the_topics_own_and_join_it() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 4, "U": 2}) as found, AsyncExitStack() as stack:
            one = await start(stack, found, "one", group="", **P2P)
            assert one.group == "T-point_to_point"
            two = await start(stack, found, "two", group="DEFAULT_CONSUMER", **P2P)
            assert two.group == "T-point_to_point"
            await until(lambda: is_level(one, two, queues=4))
            await found.send("T", [str(number) for number in range(20)])
            await until(lambda: len(found.everything) >= 20)
            # Each message at one consumer, once.
            assert found.everything == sorted(str(number) for number in range(20))
            assert found.received["one"]
            assert found.received["two"]

    asyncio.run(scenario())


@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-30")
@pytest.mark.seed("S4-34")
@pytest.mark.seed("S4-80")
def test_a_group_of_another_name_is_joined_by_who_names_none_and_refused_to_who_names_a_third() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2, "U": 2}) as found, AsyncExitStack() as stack:
            one = await start(stack, found, "one", group="billing", **P2P)
            await one.wait_assigned(DEADLINE_S)
            two = await start(stack, found, "two", group="", **P2P)
            assert two.group == "billing"
            await until(lambda: is_level(one, two, queues=2))
            third = await start(stack, found, "third", group="third", **P2P)
            with pytest.raises(
                ClientError, match=r"T is read point to point by group billing.*join billing, name no group"
            ):
                await refused_at(third)
            # When its readers have gone, the topic is free.
            await one.close()
            await two.close()
            await until(lambda: len(shares(third)[0]) == 2)

    asyncio.run(scenario())


def test_a_consumer_for_threads_waits_for_its_topic_before_it_joins() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 3}) as found:
            await found.send("T", [str(number) for number in range(6)])

            def consume() -> None:
                settings: Any = {"balance": "coordinator", "coordinators": found.leader.address, **P2P}
                with Consumer(found.node.address, start_from="first", **settings) as consumer:
                    consumer.subscribe("T")
                    assert consumer.group == "T-point_to_point"
                    got = [int(message.body) for _, message in zip(range(6), consumer, strict=False)]
                    assert sorted(got) == list(range(6))
                # Subscribed before it starts, and never started.
                early = Consumer(found.node.address, start_from="first", **settings)
                assert early.start() is early
                with pytest.raises(ClientClosedError, match=r"no group yet.*subscribe to a topic first"):
                    early.poll()
                early.close()
                with pytest.raises(ClientClosedError, match="is closed"):
                    early.subscribe("T")
                lost = {**settings, "coordinators": "127.0.0.1:1", "call_timeout_ms": 300}
                with Consumer(found.node.address, **lost) as consumer:
                    for _ in range(2):
                        with pytest.raises(Exception, match="no coordinator leads"):
                            consumer.subscribe("T")

            await asyncio.to_thread(consume)

    asyncio.run(scenario())


@pytest.mark.feature("publish-subscribe", "fifth-seed")
@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-27")
@pytest.mark.seed("S4-28")
@pytest.mark.seed("S4-29")
@pytest.mark.seed("S4-35")
@pytest.mark.seed("S4-36")
@pytest.mark.seed("S4-37")
@pytest.mark.seed("S4-53")
@pytest.mark.seed("S4-57")
def test_each_partition_is_read_in_both_modes_at_once_and_a_broadcast_reaches_every_group_of_one() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            one = await start(stack, found, "one", group="", **P2P)
            two = await start(stack, found, "two", group="", **P2P)
            lone = [await start(stack, found, f"lone{n}", group=f"alone-{n}", **PUBSUB) for n in range(3)]
            await until(lambda: is_level(one, two, queues=2))
            # The same partitions: one consumer each point to point, and all of them for each group of one.
            await until(lambda: [len(share) for share in shares(*lone)] == [2, 2, 2])
            assert set().union(*shares(one, two)) == shares(lone[0])[0]
            await found.send("T", [str(number) for number in range(10)])
            everything = sorted(str(number) for number in range(10))
            await until(lambda: all(sorted(found.received[f"lone{n}"]) == everything for n in range(3)))
            await until(lambda: sorted(found.received["one"] + found.received["two"]) == everything)
            said = found.balancing.groups.subscriptions("T")
            assert [(sub.name, len(sub.groups)) for sub in said.subscriptions] == [
                ("T-point_to_point", 1),
                ("T-publish_subscribe", 3),
            ]
            assert [group.queues for sub in said.subscriptions for group in sub.groups] == [2, 2, 2, 2]
            # A partition keeps how far each of its readers is.
            for consumer in (one, two, *lone):
                await consumer.core.offsets.persist(surely=True)
            broker = found.node.broker
            assert broker is not None
            for group in ("T-point_to_point", "alone-0", "alone-1", "alone-2"):
                assert [broker.offsets.query(group, "T", queue) for queue in range(2)] == [5, 5]
            second = await start(stack, found, "second", group="alone-0", **PUBSUB)
            with pytest.raises(ClientError, match=r"group alone-0 has its consumer, .*@lone0"):
                await refused_at(second)

    asyncio.run(scenario())


def fair(*consumers: AsyncConsumer, queues: int) -> list[set[MessageQueue]]:
    """Who has what by the ring."""
    wanted = [MessageQueue("T", BROKER.broker_name, number) for number in range(queues)]
    found = divide_by_ring({one.client_id: ("T",) for one in consumers}, {}, {"T": wanted}).shares
    return [found[one.client_id] for one in consumers]


@pytest.mark.feature("hash-ring", "fifth-seed")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I10")
@pytest.mark.seed("S4-32")
@pytest.mark.seed("S4-54")
def test_a_ring_binds_consumers_to_partitions_and_a_dead_owners_go_to_the_others_alone() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 12}, broker=SHORT_LEASE) as found, AsyncExitStack() as stack:
            settings: Any = {"binding": "ring", "group": "", **P2P}
            one, two, three = [
                await start(stack, found, name, **settings) for name in ("one", "two", "three")
            ]
            await until(lambda: shares(one, two, three) == fair(one, two, three, queues=12))
            before = shares(one, two)
            await found.send("T", [f"first {number}" for number in range(24)])
            await until(lambda: len(set(found.everything)) == 24)
            for consumer in (one, two, three):
                await consumer.core.offsets.persist(surely=True)
            await three.core.abandon()
            await until(lambda: shares(one, two) == fair(one, two, queues=12))
            assert before[0] <= shares(one)[0]
            assert before[1] <= shares(two)[0]
            await found.send("T", [f"second {number}" for number in range(24)])
            await until(lambda: len(set(found.everything)) == 48)
            even = await start(stack, found, "even", group="T-point_to_point", **P2P)
            with pytest.raises(ClientError, match="in the way ring, this consumer wants even"):
                await refused_at(even)

    asyncio.run(scenario())


@pytest.mark.seed("S4-51")
@pytest.mark.seed("S4-52")
def test_a_point_to_point_subscription_has_no_keys_and_others_may_have() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 2}) as found, AsyncExitStack() as stack:
            keyed = await stack.enter_async_context(found.consumer("keyed", "keyed", **PUBSUB))
            await keyed.subscribe("T", keys=["k1", "k2"])
            await keyed.wait_assigned(DEADLINE_S)
            async with AsyncProducer(found.node.address) as producer:
                for number in range(12):
                    await producer.send("T", str(number).encode(), keys=f"k{number % 4} other{number}")
            await until(lambda: len(found.received["keyed"]) == 6)
            assert {int(text) % 4 for text in found.received["keyed"]} == {1, 2}
            refused = await stack.enter_async_context(found.consumer("p2p", "", **P2P))
            with pytest.raises(OptionError, match="point_to_point subscription has no keys"):
                await refused.subscribe("T", keys="k1")

    asyncio.run(scenario())


@pytest.mark.abuse("A3", "A6")
def test_a_question_for_readers_that_is_none_is_refused_and_one_to_who_does_not_lead_sent_on() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 1}, coordinators=2) as found:
            client = RemotingClient(runtime=Runtime.system())
            try:
                for fields in ({}, {"topic": ""}, {"topic": "x" * 256}, {"topic": "a\nb"}, {"group": "T"}):
                    command = Command(RequestCode.SUBSCRIPTIONS, fields)
                    answer = await client.call(found.leader.address, command)
                    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER), fields
                    assert answer.remark
                other = next(one for one in found.coordinators if one is not found.leader)
                command = Command(RequestCode.SUBSCRIPTIONS, {"topic": "T"})
                answer = await client.call(other.address, command)
                assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
                assert len(found.balancing.groups) == 0
            finally:
                await client.close()

    asyncio.run(scenario())
