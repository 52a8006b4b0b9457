"""Where queues go that are created on demand, and how brokers are told."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.async_producer import AsyncProducer
from penstock.client.coordinators import Coordinators
from penstock.coordinator.creation import TURN_S, Creation
from penstock.coordinator.placement import place
from penstock.coordinator.topic_reports import SetName, TopicQueues, TopicReports
from penstock.errors import ConnectError, RequestError, ResponseError
from penstock.message import Message
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies.tables import encode_topic_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from tests.support.balanced import Cluster, cluster
from tests.unit.coordinator.virtual_time import run_virtually, virtual_runtime
from tests.waiting import until


@pytest.mark.feature("partition-placement", "fifth-seed")
@pytest.mark.seed("S4-71")
def test_queues_go_to_the_broker_set_with_the_fewest() -> None:
    placement = place("T", 4, {"a": 10, "b": 8, "c": 9}, {})
    # 8 -> 9; then b and c have 9, then all have 10: a, the first by name.
    assert placement.created == {"b": 2, "c": 1, "a": 1}


@pytest.mark.feature("partition-placement", "fifth-seed")
@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 50), min_size=1),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3)),
    st.integers(1, 10),
)
def test_the_least_loaded_is_chosen_each_time(
    loads: dict[str, int], existing: dict[str, int], wanted: int
) -> None:
    placement = place("T", wanted, loads, existing, limit=10)
    new = max(0, wanted - sum(existing.values()))
    assert sum(placement.created.values()) == new
    after = {name: load + placement.created.get(name, 0) for name, load in loads.items()}
    # Whoever got one is at most one above everybody else.
    assert all(after[name] <= min(after.values()) + 1 for name in placement.created)
    assert placement.queues == {
        name: existing.get(name, 0) + placement.created.get(name, 0)
        for name in {*existing, *placement.created}
    }


@pytest.mark.feature("partition-placement", "fifth-seed")
@pytest.mark.seed("S4-73")
@pytest.mark.seed("S4-74")
@pytest.mark.seed("S4-75")
def test_ten_on_demand_and_no_more() -> None:
    assert place("T", 10, {"a": 0}, {}).created == {"a": 10}
    with pytest.raises(RequestError, match="at most 10 are created on demand") as caught:
        place("T", 11, {"a": 0}, {"a": 10})
    assert caught.value.code == ResponseCode.NO_PERMISSION
    # What an operator gave it is no reason to refuse a request that is content with less.
    assert place("T", 16, {"a": 0}, {"a": 16}).created == {}
    with pytest.raises(RequestError, match="are none"):
        place("T", 0, {"a": 0}, {})
    with pytest.raises(RequestError, match="no broker set is alive"):
        place("T", 1, {}, {})


class Brokers:
    """Answers for broker sets, and writes down what they are told."""

    def __init__(self, *names: str) -> None:
        self.topics: dict[str, dict[str, TopicConfig]] = {name: {} for name in names}
        self.told: list[tuple[str, dict[str, str]]] = []
        self.reports = TopicReports()
        self.answer_code = 0
        self.is_reporting = True
        self.report()

    def report(self) -> None:
        for name, topics in self.topics.items():
            found = {t: TopicQueues(c.read_queue_nums, c.write_queue_nums) for t, c in topics.items()}
            self.reports.report(SetName("c", name), len(self.told), found)

    async def call(self, broker: str, command: Command) -> Command:
        await asyncio.sleep(0)
        topic = command.fields["topic"]
        if command.code == RequestCode.GET_TOPIC_CONFIG:
            config = self.topics[broker].get(topic)
            if config is None:
                return command.answer(ResponseCode.TOPIC_NOT_EXIST, "no")
            return command.answer(body=encode_topic_config(config))
        if self.answer_code:
            return command.answer(self.answer_code, "not now")
        self.told.append((broker, command.fields))
        self.topics[broker][topic] = TopicConfig(
            topic, int(command.fields["readQueueNums"]), int(command.fields["writeQueueNums"])
        )
        if self.is_reporting:
            self.report()
        return command.answer()


def test_what_was_created_counts_before_it_is_reported() -> None:
    brokers = Brokers("a", "b")
    brokers.is_reporting = False
    creation = Creation(brokers.reports, brokers.call)

    async def scenario() -> None:
        first, second, third = await asyncio.gather(
            creation.create("T", 2), creation.create("T", 2), creation.create("U", 2)
        )
        assert first.created == {"a": 1, "b": 1}
        assert second.created == {}
        assert third.created == {"a": 1, "b": 1}
        assert len(brokers.told) == 4
        brokers.report()
        assert (await creation.create("T", 3)).queues == {"a": 2, "b": 1}

    asyncio.run(scenario())


def test_a_topic_that_is_there_keeps_everything_but_its_number_of_queues() -> None:
    brokers = Brokers("a")
    brokers.topics["a"]["T"] = TopicConfig("T", 4, 2, Permission.WRITE, order=True, sys_flag=1)
    brokers.report()
    asyncio.run(Creation(brokers.reports, brokers.call).create("T", 3))
    ((_, fields),) = brokers.told
    assert fields["writeQueueNums"] == "3"
    assert fields["readQueueNums"] == "4"
    assert (fields["perm"], fields["order"], fields["topicSysFlag"]) == ("2", "true", "1")


def test_a_broker_that_refuses_is_said_so_and_asked_again_later() -> None:
    brokers = Brokers("a")
    creation = Creation(brokers.reports, brokers.call)
    brokers.answer_code = ResponseCode.SYSTEM_BUSY

    async def scenario() -> None:
        with pytest.raises(RequestError, match="a did not create 1 queues of T") as caught:
            await creation.create("T", 1)
        assert caught.value.code == ResponseCode.SYSTEM_BUSY
        brokers.answer_code = 0
        assert (await creation.create("T", 1)).created == {"a": 1}
        with pytest.raises(RequestError, match="topic is"):
            await creation.create("", 1)

    asyncio.run(scenario())


def test_creations_that_wait_for_a_silent_broker_are_answered_in_time() -> None:
    """Each waited for all before it, and each of those for the broker."""
    brokers = Brokers("a")
    runtime, clock = virtual_runtime()
    call_s, waiting = 6.0, 20

    async def silent(broker: str, command: Command) -> Command:
        await asyncio.sleep(call_s)
        raise ConnectError(f"{broker} does not answer")

    async def scenario() -> None:
        creation = Creation(brokers.reports, silent)
        outcomes = await asyncio.gather(
            *(creation.create("T", 1) for _ in range(waiting)), return_exceptions=True
        )
        assert runtime.clock.monotonic_ms() - began_ms <= (TURN_S + call_s) * 1000
        texts = [str(outcome) for outcome in outcomes]
        assert all(isinstance(outcome, RequestError) for outcome in outcomes)
        assert any("others are creating queues of topic T" in text for text in texts)
        brokers.is_reporting = True
        assert (await Creation(brokers.reports, brokers.call).create("T", 1)).created == {"a": 1}

    began_ms = clock.monotonic_ms()
    run_virtually(scenario(), clock)


# -- with a real broker ----------------------------------------------------------------------------------------


def topic_queues(found: Cluster, topic: str) -> int:
    assert found.node.broker is not None
    config = found.node.broker.topics.get(topic)
    return config.write_queue_nums if config is not None else 0


@pytest.mark.feature("topic-on-demand", "fifth-seed")
@pytest.mark.seed("S4-69")
@pytest.mark.seed("S4-72")
@pytest.mark.seed("S0-53")
def test_a_producer_and_a_consumer_have_missing_topics_created() -> None:
    async def scenario() -> None:
        async with cluster(broker={"auto_create_topics": False}) as found:
            async with AsyncProducer(
                found.node.address, "p", coordinators=found.addresses, topic_queues=3
            ) as producer:
                await producer.send(Message("Produced", b"x"))
                assert topic_queues(found, "Produced") == 3
                await until(lambda: found.balancing.publishers.of("Produced") != [])
            await until(lambda: len(found.balancing.publishers) == 0)
            async with found.consumer("one") as consumer:
                await consumer.subscribe("Consumed")
                await until(lambda: topic_queues(found, "Consumed") == 1)
                await until(lambda: any(queue.topic == "Consumed" for queue in consumer.assignment))

    asyncio.run(scenario())


@pytest.mark.feature("partition-placement", "fifth-seed")
@pytest.mark.seed("S4-75")
def test_too_many_queues_are_a_clear_error_for_the_producer() -> None:
    async def scenario() -> None:
        async with (
            cluster(broker={"auto_create_topics": False}) as found,
            AsyncProducer(found.node.address, "p", coordinators=found.addresses, topic_queues=11) as producer,
        ):
            with pytest.raises(Exception, match="at most 10 are created on demand"):
                await producer.send(Message("Wide", b"x"))
            assert topic_queues(found, "Wide") == 0

    asyncio.run(scenario())


def test_the_leader_is_found_through_the_others() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 1}, coordinators=2) as found:
            leader = found.leader
            other = next(one for one in found.coordinators if one is not leader)
            remoting = RemotingClient(runtime=Runtime.system())
            try:
                asked = Coordinators([other.address], remoting)
                assert (await asked.create("T", 1)).created == 0
                assert asked.leader == leader.address
                with pytest.raises(ResponseError, match="no consumer of group"):
                    await asked.explain("nobody")
                nowhere = Coordinators(["127.0.0.1:1"], remoting, 200)
                with pytest.raises(ConnectError, match="no coordinator leads"):
                    await nowhere.create("T", 1)
                both = Coordinators(["127.0.0.1:1", other.address], remoting)
                assert (await both.create("T", 1)).queues == {"test-broker": 1}
            finally:
                await remoting.close()

    asyncio.run(scenario())
