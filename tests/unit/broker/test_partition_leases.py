"""Partition leases: one holder, the first claim after expiry, broker restarts, and what others may not do."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import LeaseOutcome, PartitionLeases
from penstock.broker.processors.partition_leases import PartitionLeasesProcessor
from penstock.errors import CodecError, RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import (
    HOLDER_FIELD,
    LeaseAnswerBody,
    LeasedElsewhere,
    LeaseRequestBody,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.testing import ManualClock
from penstock.testing.embedded import EmbeddedBroker

Q0, Q1 = MessageQueue("T", "b-a", 0), MessageQueue("T", "b-a", 1)
OPTIONS = BrokerOptions(partition_lease_ms=10_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases(clock: ManualClock) -> PartitionLeases:
    return PartitionLeases(OPTIONS, clock)


def granted(outcome: LeaseOutcome) -> list[MessageQueue]:
    return list(outcome.granted)


@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-31")
@pytest.mark.seed("S4-32")
@pytest.mark.seed("S4-97")
@pytest.mark.seed("S4-98")
def test_one_consumer_of_a_group_holds_a_queue(leases: PartitionLeases) -> None:
    assert granted(leases.claim("g", "a", [Q0])) == [Q0]
    outcome = leases.claim("g", "b", [Q0, Q1])
    assert outcome == LeaseOutcome((Q1,), (LeasedElsewhere(Q0, "a", 10_000),))
    assert granted(leases.claim("g", "a", [Q0])) == [Q0]
    assert granted(leases.claim("another group", "b", [Q0])) == [Q0]
    assert leases.holder("g", "T", 0) == "a"
    assert leases.holder("g", "T", 1) == "b"


def test_the_first_claim_after_the_end_succeeds(leases: PartitionLeases, clock: ManualClock) -> None:
    leases.claim("g", "a", [Q0])
    clock.advance(9_000)
    assert granted(leases.refresh("g", "a", [Q0])) == [Q0]
    clock.advance(9_999)
    assert leases.claim("g", "b", [Q0]).refused == (LeasedElsewhere(Q0, "a", 1),)
    clock.jump(3_600_000)
    assert not leases.claim("g", "b", [Q0]).granted
    clock.advance(1)
    assert granted(leases.claim("g", "b", [Q0])) == [Q0]


def test_a_refresh_after_somebody_else_had_the_queue_is_refused(
    leases: PartitionLeases, clock: ManualClock
) -> None:
    leases.claim("g", "a", [Q0])
    clock.advance(10_000)
    leases.claim("g", "b", [Q0])
    assert leases.refresh("g", "a", [Q0]).refused == (LeasedElsewhere(Q0, "b", 10_000),)
    clock.advance(10_000)
    assert leases.refresh("g", "a", [Q0]).refused == (LeasedElsewhere(Q0, "b", 0),)
    leases.release("g", "b", [Q0])
    # It is free, but b may have read on: a has to begin anew.
    assert leases.refresh("g", "a", [Q0]).refused == (LeasedElsewhere(Q0),)
    assert granted(leases.claim("g", "a", [Q0])) == [Q0]


def test_a_refresh_that_comes_late_to_a_queue_nobody_took_goes_on(
    leases: PartitionLeases, clock: ManualClock
) -> None:
    leases.claim("g", "a", [Q0])
    clock.advance(20_000)
    assert granted(leases.refresh("g", "a", [Q0])) == [Q0]


def test_only_the_holder_releases(leases: PartitionLeases) -> None:
    leases.claim("g", "a", [Q0, Q1])
    leases.release("g", "b", [Q0])
    leases.release("unknown", "a", [Q0])
    assert leases.holder("g", "T", 0) == "a"
    leases.release("g", "a", [Q0])
    assert leases.holder("g", "T", 0) is None
    assert len(leases) == 1
    assert granted(leases.claim("g", "b", [Q0])) == [Q0]


@pytest.mark.fault("F1")
def test_a_broker_that_was_started_waits_for_the_holders(leases: PartitionLeases, clock: ManualClock) -> None:
    leases.claim("g", "a", [Q0])
    leases.begin(["T"])
    # b cannot have it: a may be reading on. A topic that is new cannot have been leased before.
    assert leases.claim("g", "b", [Q0]).refused == (LeasedElsewhere(Q0, "", 10_000),)
    new = MessageQueue("new", "b-a", 0)
    assert granted(leases.claim("g", "b", [new])) == [new]
    clock.advance(3_000)
    assert granted(leases.refresh("g", "a", [Q0])) == [Q0]
    clock.advance(7_000)
    assert leases.claim("g", "b", [Q0]).refused == (LeasedElsewhere(Q0, "a", 3_000),)
    assert granted(leases.claim("g", "b", [Q1])) == [Q1]


def test_others_of_the_group_neither_pull_nor_commit(leases: PartitionLeases, clock: ManualClock) -> None:
    leases.check("g", "T", 0, None)
    leases.claim("g", "a", [Q0])
    leases.check("g", "T", 0, "a")
    leases.check("g", "T", 1, None)
    leases.check("another group", "T", 0, None)
    for somebody in (None, "b"):
        with pytest.raises(RequestError, match="leased to a") as caught:
            leases.check("g", "T", 0, somebody)
        assert caught.value.code == ResponseCode.NO_PERMISSION
    clock.advance(10_000)
    leases.check("g", "T", 0, "b")


def test_forgetting(leases: PartitionLeases, clock: ManualClock) -> None:
    leases.claim("g", "a", [Q0, Q1])
    leases.claim("h", "a", [Q0])
    leases.remove_group("g")
    assert (leases.holder("g", "T", 0), leases.holder("h", "T", 0)) == (None, "a")
    clock.advance(10_000)
    leases.scan()
    assert len(leases) == 0


@pytest.mark.abuse("A14")
def test_the_number_of_leases_is_limited(clock: ManualClock) -> None:
    leases = PartitionLeases(replace(OPTIONS, partition_leases_max=1), clock)
    leases.claim("g", "a", [Q0])
    with pytest.raises(RequestError, match="partition_leases_max"):
        leases.claim("h", "b", [Q0])
    clock.advance(10_000)
    assert granted(leases.claim("h", "b", [Q0])) == [Q0]


# -- over the wire ---------------------------------------------------------------------------------------------


async def ask(
    node: EmbeddedBroker, code: RequestCode, client: str, queues: Iterable[MessageQueue]
) -> LeaseAnswerBody | Command:
    from penstock.remoting import RemotingClient
    from penstock.runtime import Runtime

    remoting = RemotingClient(runtime=Runtime.system())
    try:
        body = LeaseRequestBody(client, "g", tuple(queues)).encode()
        answer = await remoting.call(node.broker_address, Command(code, body=body))
        if answer.code or code == RequestCode.RELEASE_PARTITION:
            return answer
        return LeaseAnswerBody.decode(answer.body)
    finally:
        await remoting.close()


async def call(node: EmbeddedBroker, command: Command) -> Command:
    from penstock.remoting import RemotingClient
    from penstock.runtime import Runtime

    remoting = RemotingClient(runtime=Runtime.system())
    try:
        return await remoting.call(node.broker_address, command)
    finally:
        await remoting.close()


async def create_topic(node: EmbeddedBroker) -> None:
    fields = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    answer = await call(node, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    assert answer.code == 0


def test_claims_commits_and_pulls_at_a_broker(tmp_path: Path) -> None:
    first, second = MessageQueue("T", "test-broker", 0), MessageQueue("T", "test-broker", 1)
    strange = MessageQueue("T", "another-broker", 0)
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "0"}
    pull = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }

    async def scenario() -> None:
        node = EmbeddedBroker(tmp_path)
        await node.start()
        try:
            await create_topic(node)
            mine = await ask(node, RequestCode.CLAIM_PARTITION, "a", [first, strange])
            assert mine == LeaseAnswerBody(10_000, (first,), (LeasedElsewhere(strange),))
            theirs = await ask(node, RequestCode.CLAIM_PARTITION, "b", [first, second])
            assert isinstance(theirs, LeaseAnswerBody)
            assert theirs.granted == (second,)
            assert theirs.refused[0].holder == "a"
            for code, fields in (
                (RequestCode.UPDATE_CONSUMER_OFFSET, commit),
                (RequestCode.PULL_MESSAGE, pull),
            ):
                for client, expected in (("a", False), ("b", True), (None, True)):
                    said = {**fields, **({HOLDER_FIELD: client} if client else {})}
                    answer = await call(node, Command(code, said))
                    assert (answer.code == ResponseCode.NO_PERMISSION) is expected, (code, client)
            await ask(node, RequestCode.RELEASE_PARTITION, "a", [first])
            again = await ask(node, RequestCode.CLAIM_PARTITION, "b", [first])
            assert isinstance(again, LeaseAnswerBody)
            assert again.granted == (first,)
        finally:
            await node.stop()
        # The same data directory, another process as far as the leases go.
        node = EmbeddedBroker(tmp_path)
        await node.start()
        try:
            early = await ask(node, RequestCode.CLAIM_PARTITION, "c", [first])
            assert isinstance(early, LeaseAnswerBody)
            assert not early.granted
            kept = await ask(node, RequestCode.REFRESH_PARTITION, "b", [first, second])
            assert isinstance(kept, LeaseAnswerBody)
            assert kept.granted == (first, second)
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_a_slave_grants_nothing() -> None:
    async def scenario() -> None:
        node = EmbeddedBroker(broker=BrokerOptions(broker_name="test-broker", port=0, broker_id=1))
        await node.start()
        try:
            answer = await ask(node, RequestCode.CLAIM_PARTITION, "a", [MessageQueue("T", "test-broker", 0)])
            assert isinstance(answer, Command)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        finally:
            await node.stop()

    asyncio.run(scenario())


@pytest.mark.abuse("A14")
@pytest.mark.parametrize("body", [b"", b"[]", b'{"queues": 3}', b'{"queues": ["T"]}', b'{"group": {}}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(CodecError):
        LeaseRequestBody.decode(body)


def test_a_master_that_is_not_sure_asks_its_replicas_first(clock: ManualClock) -> None:
    class Everything:
        """Topics and groups in which everything is there."""

        def get(self, topic: str) -> TopicConfig:
            return TopicConfig(topic)

        def require(self, group: str) -> None:
            return None

    leases = PartitionLeases(OPTIONS, clock)
    options = replace(OPTIONS, broker_name="b-a")
    everything: Any = Everything()
    processor = PartitionLeasesProcessor(options, everything, everything, leases)
    request = Command(RequestCode.CLAIM_PARTITION, body=LeaseRequestBody("a", "g", (Q0,)).encode())
    connection: Any = None
    asked: list[str] = []

    async def prove() -> None:
        asked.append("replicas")
        if len(asked) > 1:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker stopped being master")

    async def claim() -> Command:
        answer = processor.handle_claim_partition(connection, request)
        return answer if isinstance(answer, Command) else await answer

    leases.prove = prove
    assert asyncio.run(claim()).code == 0
    assert asked == []
    leases.is_sure = lambda: False
    assert asyncio.run(claim()).code == 0
    assert asked == ["replicas"]
    with pytest.raises(RequestError, match="stopped being master"):
        asyncio.run(claim())
    # Stopped while it was waiting for them.
    asked.clear()
    waiting = processor.handle_claim_partition(connection, request)
    processor.reconfigure(replace(options, broker_id=1))
    assert not isinstance(waiting, Command)
    assert waiting is not None

    async def go_on() -> None:
        await waiting

    with pytest.raises(RequestError, match="not the master"):
        asyncio.run(go_on())
