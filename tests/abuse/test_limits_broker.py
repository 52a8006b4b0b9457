"""Limits of a broker, each over a socket: over it a request is refused with its code, and what is there stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    MessageQueue,
    ProducerData,
    SubscriptionData,
)
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.limits import limit
from tests.support.running_broker import (
    STORE,
    Bench,
    batch_item,
    properties,
    records,
    run,
    running,
    send_fields,
)
from tests.waiting import until

Test = Callable[[Bench], Awaitable[None]]


def with_broker(path: Path, test: Test, **options: object) -> None:
    async def scenario() -> None:
        async with running(path, **options) as bench:  # type: ignore[arg-type]
            assert (await bench.client.send()).code == 0
            await test(bench)
            assert (await bench.client.send()).code == 0, "who was there before goes on"

    run(scenario)


def topic(name: str, queues: int = 1) -> dict[str, str]:
    return {"topic": name, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}


# -- topics and groups ---------------------------------------------------------------------------------------


@limit("broker.auto_topic_queues_max")
@pytest.mark.abuse("A14")
def test_queues_of_a_topic_that_a_send_makes(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for asked in (5, 2**31 - 1):
            name = f"New{asked}"
            assert (
                await bench.client.call(310, send_fields(name, d=asked, c="DefaultCluster"), b"x")
            ).code == 0
            config = bench.broker.topics.get(name)
            assert config is not None
            assert config.write_queue_nums == 3
        assert (await bench.client.call(310, send_fields("New5", 3), b"x")).code == 29

    with_broker(tmp_path, test, auto_topic_queues_max=3)


@limit("broker.topic_queues_max")
@pytest.mark.abuse("A14")
def test_queues_of_a_topic_that_an_operator_makes(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.call(17, topic("A", 50))).code == 0
        assert (await bench.client.call(17, topic("B", 51))).code == 29
        assert (await bench.client.call(17, topic("B", 2**31 - 1))).code == 29
        group = json.dumps({"groupName": "g", "retryQueueNums": 51}).encode()
        assert (await bench.client.call(200, body=group)).code == 29
        assert bench.broker.topics.get("B") is None

    with_broker(tmp_path, test, topic_queues_max=50)


@limit("broker.auto_topics_max", "broker.topics_max")
@pytest.mark.abuse("A14")
def test_topics(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        codes = [(await bench.client.send(f"T{n}")).code for n in range(40)]
        assert set(codes) == {0, 17}
        assert len(bench.broker.topics.all()) == 30
        codes = [(await bench.client.call(17, topic(f"U{n}"))).code for n in range(20)]
        assert (codes.count(0), codes.count(29)) == (10, 10)
        assert (await bench.client.call(17, topic("U0", 2))).code == 0, "one that is there can be changed"
        assert len(bench.broker.topics.all()) == 40

    with_broker(tmp_path, test, auto_topics_max=30, topics_max=40)


@limit("broker.auto_groups_max", "broker.groups_max")
@pytest.mark.abuse("A14")
def test_groups(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        codes = [(await bench.client.pull(consumerGroup=f"g{n}")).code for n in range(30)]
        assert set(codes) == {0, 26}
        assert len(bench.broker.groups.all()) == 20
        groups = [json.dumps({"groupName": f"h{n}"}).encode() for n in range(10)]
        codes = [(await bench.client.call(200, body=group)).code for group in groups]
        assert codes == [0] * 5 + [29] * 5
        assert (await bench.client.call(225, body=b'{"groupConfigList":[%b]}' % groups[9])).code == 29

    with_broker(tmp_path, test, auto_groups_max=20, groups_max=25)


@limit("broker.create_per_second", "broker.create_burst")
@pytest.mark.abuse("A14")
def test_topics_and_groups_made_at_once(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        codes = [(await bench.client.send(f"T{n}")).code for n in range(20)]
        assert codes == [0] * 4 + [2] * 16, "the first one was made before"
        assert (await bench.client.pull(consumerGroup="new")).code == 26
        clock.advance(600)
        assert (await bench.client.send("Later")).code == 0

    clock = ManualClock()
    with_broker(tmp_path, test, create_per_second=2, create_burst=5, runtime=Runtime(clock=clock))


@limit("broker.queues_max")
@pytest.mark.abuse("A14")
def test_queues_that_have_messages(tmp_path: Path) -> None:
    """Each takes descriptors: a broker that runs out of them could neither accept clients nor keep its queues."""

    async def test(bench: Bench) -> None:
        first = bench.broker.store.queues
        assert (await bench.client.call(17, topic("Wide", 100))).code == 0
        codes = [(await bench.client.send("Wide", queue=n)).code for n in range(100)]
        assert set(codes) == {0, 14}
        assert len(first) == 20
        batch = batch_item(b"x", properties(UNIQ_KEY="u"))
        answer = await bench.client.call(320, send_fields("Wide", 99, m="true"), batch)
        assert (answer.code, "raise queues_max" in (answer.remark or "")) == (14, True)
        assert int(answer.fields["penstockRetryAfterMs"]) > 0
        late = await bench.client.send("Wide", queue=0, DELAY="1")
        assert late.code == 0, "what the broker keeps for itself gets in a little longer"
        for retry in range(10):
            await bench.client.pull(consumerGroup=f"g{retry}")
            assert (await bench.client.send(f"%RETRY%g{retry}")).code in (0, 14)
        assert len(first) == 25

    with_broker(tmp_path, test, queues_max=20)


@pytest.mark.abuse("A14")
def test_a_delayed_message_waits_for_a_queue(tmp_path: Path) -> None:
    """It is not dropped because there is no room for its queue when it is due."""

    async def test(bench: Bench) -> None:
        assert (await bench.client.call(17, topic("Wide", 100))).code == 0
        assert (await bench.client.send("Wide", b"before", queue=98, DELAY="1")).code == 0
        assert (await bench.client.send("Wide", b"late", queue=99, DELAY="1")).code == 0
        for queue in range(20):
            await bench.client.send("Wide", queue=queue)
        clock.advance(1_500)
        delay = bench.broker.delay
        assert delay is not None
        delay.turn(delay.levels[0])
        assert bench.broker.store.max_offset("Wide", 99) == 0
        bench.broker.reconfigure(replace(bench.broker.options, queues_max=100))
        await until(lambda: bench.broker.store.max_offset("Wide", 99) > 0)
        assert [m.body for m in records((await bench.client.pull("Wide", 99)).body)] == [b"late"]
        assert [m.body for m in records((await bench.client.pull("Wide", 98)).body)] == [b"before"]

    clock = ManualClock()
    with_broker(tmp_path, test, queues_max=10, runtime=Runtime(clock=clock))


# -- membership ----------------------------------------------------------------------------------------------


def consumer(group: str, topics: int = 1, expression: str = "*") -> ConsumerData:
    wanted = tuple(SubscriptionData(f"T{n}", expression) for n in range(topics))
    return ConsumerData(group, subscriptions=wanted)


async def beat(bench: Bench, *consumers: ConsumerData, producers: int = 0, client: str = "c@1") -> int:
    data = HeartbeatData(client, tuple(ProducerData(f"p{n}") for n in range(producers)), consumers)
    return (await bench.client.call(34, body=data.encode())).code


@limit("broker.client_groups_max", "broker.group_subscriptions_max", "broker.expression_size_max")
@pytest.mark.abuse("A14")
def test_heartbeats_with_huge_tables(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert await beat(bench, *(consumer(f"g{n}") for n in range(10)), producers=10) == 0
        assert await beat(bench, *(consumer(f"h{n}") for n in range(11))) == 29
        assert await beat(bench, producers=11) == 29
        assert await beat(bench, consumer("h0")) == 29, "the connection is in ten groups already"
        assert await beat(bench, consumer("g0", topics=20)) == 0
        assert await beat(bench, consumer("g0", topics=21)) == 29
        assert await beat(bench, consumer("g0", expression="x" * 100)) == 0
        assert await beat(bench, consumer("g0", expression="x" * 101)) == 29
        assert (await bench.client.pull(subscription="x" * 101)).code == 23
        assert {group.name for group in bench.broker.consumers.all()} == {f"g{n}" for n in range(10)}

    with_broker(tmp_path, test, client_groups_max=10, group_subscriptions_max=20, expression_size_max=100)


@limit("broker.subscription_keys_max")
@pytest.mark.abuse("A14")
def test_a_subscription_with_very_many_keys(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.client.send("F", KEYS="k1")
        for keys, code in (("k0 k1 k2", 0), ("k0 k1 k2 k3", 23), ("k1 " * 50, 0)):
            assert (await bench.client.pull("F", subscription=keys, expressionType="KEYS")).code == code

    with_broker(tmp_path, test, subscription_keys_max=3)


@limit("broker.filter_time_max_ms")
@pytest.mark.abuse("A17")
def test_a_filter_that_takes_its_time(tmp_path: Path) -> None:
    """With no time at all a pull still looks at one message, so that it gets on."""

    async def test(bench: Bench) -> None:
        for _ in range(3):
            await bench.client.send("F", a="1")
        for offset in range(3):
            answer = await bench.client.pull("F", 0, offset, subscription="a > 5", expressionType="SQL92")
            assert (answer.code, answer.fields["nextBeginOffset"]) == (20, str(offset + 1))

    with_broker(tmp_path, test, filter_time_max_ms=0)


@limit("broker.heartbeat_bytes_max")
@pytest.mark.abuse("A14")
def test_a_large_heartbeat(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert await beat(bench, consumer("g", expression="x" * 1_000)) == 0
        assert await beat(bench, consumer("g", expression="x" * 3_000)) == 29

    with_broker(tmp_path, test, heartbeat_bytes_max=3_000)


@limit("broker.producer_groups_max")
@pytest.mark.abuse("A14")
def test_producer_groups(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert await beat(bench, producers=50) == 0
        assert len([*bench.broker.producers.groups()]) == 7

    with_broker(tmp_path, test, producer_groups_max=7)


@limit("broker.queue_locks_max")
@pytest.mark.abuse("A14")
def test_queue_locks(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.call(17, topic("Wide", 100))).code == 0
        wanted = tuple(MessageQueue("Wide", "broker-a", n) for n in range(100))
        body = LockBatchRequestBody("c@1", "g", wanted).encode()
        answer = await bench.client.call(41, body=body)
        assert len(json.loads(answer.body)["lockOKMQSet"]) == 30

    with_broker(tmp_path, test, queue_locks_max=30)


@limit("broker.offsets_max")
@pytest.mark.abuse("A14")
def test_offsets(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.call(17, topic("Wide", 100))).code == 0
        await bench.client.pull(consumerGroup="g")
        where = {"consumerGroup": "g", "topic": "Wide", "commitOffset": "1"}
        codes = [(await bench.client.call(15, {**where, "queueId": str(n)})).code for n in range(60)]
        assert (codes.count(0), codes.count(1)) == (50, 10)
        assert (await bench.client.call(15, {**where, "queueId": "0", "commitOffset": "9"})).code == 0
        for n in range(10):  # pairs of topic and group are fewer
            await bench.client.send(f"T{n}")
            await bench.client.pull(f"T{n}", consumerGroup="g")
        assert len(bench.broker.offsets._pulled) <= 6
        assert (await bench.client.call(207, {"groupName": "g", "cleanOffset": "true"})).code == 0
        await bench.client.pull(consumerGroup="h")
        assert (await bench.client.call(15, {**where, "consumerGroup": "h", "queueId": "0"})).code == 0

    with_broker(tmp_path, test, offsets_max=50)


# -- pulls ---------------------------------------------------------------------------------------------------


@limit("broker.long_poll_max_ms")
@pytest.mark.abuse("A14")
@pytest.mark.abuse("A16")
@pytest.mark.parametrize("wait_ms", [600_000, 2**63 - 1])
def test_the_longest_wait(tmp_path: Path, wait_ms: int) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.client.pull(offset=1, wait_ms=wait_ms)).code == 19

    with_broker(tmp_path, test, long_poll_max_ms=300)


@limit("broker.long_polls_max", "broker.long_polls_per_connection_max")
@pytest.mark.abuse("A14")
def test_many_long_polls(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        polling = bench.broker.pulls.polling  # type: ignore[union-attr]
        waiting: list[asyncio.Task[Command]] = []
        for _ in range(20):
            # One connection after the other: what is pushed out of one makes room for its own next.
            client = bench.connect()
            those = [asyncio.ensure_future(client.pull(offset=1, wait_ms=600_000)) for _ in range(15)]
            await until(lambda those=those: sum(task.done() for task in those) == 5)  # type: ignore[misc]
            waiting += those
        await until(lambda: len(polling) == 100 and sum(task.done() for task in waiting) == 200)
        done = [task.result().code for task in waiting if task.done()]
        assert (done.count(215), done.count(19)) == (100, 100), "over the connection's limit; oldest, early"
        await bench.client.send()
        codes = [(await task).code for task in waiting]
        assert codes.count(0) == 100
        assert len(polling) == 0

    with_broker(tmp_path, test, long_polls_max=100, long_polls_per_connection_max=10)


@limit("broker.pull_count_memory_max", "broker.pull_bytes_memory_max")
@limit("broker.pull_count_disk_max", "broker.pull_bytes_disk_max")
@pytest.mark.abuse("A16")
@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("asked", [1_000, 2**31 - 1])
def test_one_answer(tmp_path: Path, kind: str, asked: int) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(12):
            await bench.client.send("Small", b"x")
            await bench.client.send("Large", bytes(2_000))
        small = records((await bench.client.pull("Small", maxMsgNums=asked)).body)
        large = (await bench.client.pull("Large", maxMsgNums=asked, maxMsgBytes=2**31 - 1)).body
        assert len(small) == 7
        assert len(records(large)) < 4
        assert len(large) < 8_000

    options = {f"pull_count_{kind}_max": 7, f"pull_bytes_{kind}_max": 6_000}
    with_broker(tmp_path, test, memory_percent=0 if kind == "disk" else 40, **options)


@limit("broker.pull_count_batch_max")
@pytest.mark.abuse("A16")
def test_one_answer_to_a_batch(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(60):
            await bench.client.send("Small", b"x")
            await bench.client.send("Large", bytes(20_000))
        # RocketMQ's default, whatever is asked for.
        assert len(records((await bench.client.pull("Small", maxMsgNums=1_000)).body)) == 32
        batch = {"maxMsgNums": 2**31 - 1, "maxMsgBytes": 2**31 - 1, "penstockPull": "batch"}
        assert len(records((await bench.client.pull("Small", **batch)).body)) == 40
        assert len((await bench.client.pull("Large", **batch)).body) <= 256 * 1024

    with_broker(tmp_path, test, pull_count_batch_max=40)


@limit("broker.scan_count_max", "broker.scan_bytes_max")
@pytest.mark.abuse("A16")
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_one_answer_to_a_scan(tmp_path: Path, kind: str) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(40):
            await bench.client.send("Small", b"x")
            await bench.client.send("Large", bytes(2_000))
        most = 2**31 - 1
        all_of_it = {"maxMsgNums": most, "maxMsgBytes": most}
        small = await bench.client.pull("Small", **all_of_it, penstockPull="scan")
        large = await bench.client.pull("Large", **all_of_it, penstockPull="scan")
        assert len(records(small.body)) == 30
        assert 20_000 < len(large.body) <= 40_000
        # Whatever is asked for: a scan says that it is one.
        for other in ({}, {"penstockPull": "SCAN"}):
            assert len(records((await bench.client.pull("Small", **all_of_it, **other)).body)) == 7
            assert len((await bench.client.pull("Large", **all_of_it, **other)).body) < 8_000

    limits = {f"pull_count_{kind}_max": 7, f"pull_bytes_{kind}_max": 6_000}
    scans = {"scan_count_max": 30, "scan_bytes_max": 40_000}
    with_broker(tmp_path, test, memory_percent=0 if kind == "disk" else 40, **limits, **scans)


# -- sends ---------------------------------------------------------------------------------------------------


@limit("broker.batch_count_max")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A14")
@pytest.mark.parametrize("code", [310, 320])
@pytest.mark.parametrize("keyed", [False, True])
def test_messages_of_a_batch(tmp_path: Path, code: int, keyed: bool) -> None:
    """Also where the compiled way could take it: its messages have keys, and its queue is known."""

    async def test(bench: Bench) -> None:
        item = batch_item(b"x", properties(UNIQ_KEY="u") if keyed else "")
        for count, wanted in ((50, 0), (51, 13), (5_000, 13)):
            before = bench.broker.store.max_offset("T", 0)
            answer = await bench.client.call(code, send_fields(m="true"), item * count)
            assert answer.code == wanted
            assert bench.broker.store.max_offset("T", 0) - before == (0 if wanted else count)

    with_broker(tmp_path, test, batch_count_max=50, store=replace(STORE, max_message_size_bytes=1 << 20))


@limit("store.max_message_size_bytes")
@pytest.mark.abuse("A5")
def test_the_largest_message(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        most = STORE.max_message_size_bytes
        assert (await bench.client.send(body=bytes(most))).code == 0
        for body in (bytes(most + 1), bytes(most * 3)):
            assert (await bench.client.send(body=body)).code == 13
            fields = send_fields("DefaultCluster_REPLY_TOPIC", props=properties(REPLY_TO_CLIENT="c"))
            reply = Command(325, fields, body)
            assert (await bench.client.call(325, reply.fields, body)).code == 13

    with_broker(tmp_path, test)
