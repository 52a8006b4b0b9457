"""Pulls over real sockets: the checks in their order, the table of results, limits, and long polling."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.metadata.group_table import SubscriptionGroup
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import MessageModel
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.runtime import Runtime
from penstock.store import FlushMode
from penstock.testing import ManualClock
from tests.support.running_broker import (
    STORE,
    Bench,
    polling,
    properties,
    pulls_held,
    records,
    run,
    running,
    send_fields,
)
from tests.waiting import until

FOUR = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in records(answer.body)]


async def fill(bench: Bench, count: int, topic: str = "T", tags: str = "") -> None:
    for i in range(count):
        more = {"TAGS": tags[i % len(tags)]} if tags else {}
        assert (await bench.client.send(topic, b"%d" % i, **more)).code == 0


# -- results -------------------------------------------------------------------------------------------------


@pytest.mark.feature("retained-messages", "fifth-seed")
@pytest.mark.feature("pull", "fifth-seed")
@pytest.mark.seed("S4-4")
@pytest.mark.seed("S4-9")
def test_messages_come_in_order_and_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 5)
            for _ in range(2):
                answer = await bench.client.pull(offset=1)
                assert answer.code == 0
                assert bodies(answer) == [b"1", b"2", b"3", b"4"]
                assert [answer.fields[name] for name in FOUR] == ["0", "5", "0", "5"]
                assert answer.remark == "FOUND"
                assert (answer.fields["topicSysFlag"], answer.fields["groupSysFlag"]) == ("0", "0")

    run(scenario)


@pytest.mark.abuse("A16")
def test_every_position_has_its_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bench.broker.topics.update(TopicConfig("T", 2, 2, Permission(6)))
            table = [
                (0, 0, ResponseCode.PULL_NOT_FOUND, 0),
                (0, 5, ResponseCode.PULL_OFFSET_MOVED, 0),
                (0, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
            ]
            await self_check(bench, table)
            await fill(bench, 3)
            table = [
                (0, 3, ResponseCode.PULL_NOT_FOUND, 3),
                (0, 4, ResponseCode.PULL_OFFSET_MOVED, 3),
                (0, 2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, 3),
                (0, -1, ResponseCode.PULL_OFFSET_MOVED, 0),
                (0, -(2**63), ResponseCode.PULL_OFFSET_MOVED, 0),
                (1, 0, ResponseCode.PULL_NOT_FOUND, 0),
                (1, 1, ResponseCode.PULL_OFFSET_MOVED, 0),
            ]
            await self_check(bench, table)

    async def self_check(bench: Bench, table: list[tuple[int, int, int, int]]) -> None:
        for queue, offset, code, following in table:
            answer = await bench.client.pull(queue=queue, offset=offset)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (code, str(following)), (queue, offset)
            assert all(name in answer.fields for name in FOUR)
            assert answer.body == b""

    run(scenario)


@pytest.mark.abuse("A16")
def test_counts_and_sizes_are_clamped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, pull_count_memory_max=5, pull_bytes_memory_max=10_000) as bench:
            await fill(bench, 10)
            for asked, got in ((2**31 - 1, 5), (3, 3), (1, 1), (0, 1), (-1, 1), (-(2**31), 1)):
                answer = await bench.client.pull(maxMsgNums=asked)
                assert len(bodies(answer)) == got
                assert answer.fields["nextBeginOffset"] == str(got)
            answer = await bench.client.pull(maxMsgNums=2**31)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            for _ in range(3):
                await bench.client.send("Big", b"x" * 6_000)
            assert len(bodies(await bench.client.pull("Big"))) == 1
            await bench.client.send("Huge", b"x" * 20_000)
            assert len(bodies(await bench.client.pull("Huge"))) == 1
            assert len(bodies(await bench.client.pull("T", maxMsgBytes=250))) == 1

    run(scenario)


def test_what_memory_cannot_hold_is_read_in_smaller_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, memory_percent=0, pull_count_disk_max=2) as bench:
            await fill(bench, 5)
            assert len(bodies(await bench.client.pull())) == 2
            assert len(bodies(await bench.client.pull(offset=4))) == 1

    run(scenario)


def test_tags_are_filtered_by_code(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 6, tags="abc")
            assert bodies(await bench.client.pull(subscription="a || c")) == [b"0", b"2", b"3", b"5"]
            assert bodies(await bench.client.pull(subscription=" b ")) == [b"1", b"4"]
            answer = await bench.client.pull(subscription="nothing")
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.fields["nextBeginOffset"] == "6"
            assert len(bodies(await bench.client.pull(subscription=""))) == 6
            # `Aa` and `BB` have one hash: the broker lets both pass, the client looks at the tag itself.
            await bench.client.send("Hash", b"Aa", TAGS="Aa")
            await bench.client.send("Hash", b"BB", TAGS="BB")
            assert bodies(await bench.client.pull("Hash", subscription="Aa")) == [b"Aa", b"BB"]

    run(scenario)


def test_offsets_are_committed_on_demand_and_pull_offsets_always(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 3)
            offsets = bench.broker.offsets
            await bench.client.pull(commitOffset=2)
            assert offsets.query("consumers", "T", 0) == -1
            assert offsets.query_pull("consumers", "T", 0) == 3
            await bench.client.pull(commitOffset=2, sysFlag=PullSysFlag.COMMIT_OFFSET)
            assert offsets.query("consumers", "T", 0) == 2
            await bench.client.pull(commitOffset=-5, sysFlag=PullSysFlag.COMMIT_OFFSET)
            assert offsets.query("consumers", "T", 0) == 2
            # Also where nothing is found and the pull waits, and only once.
            flag = PullSysFlag.COMMIT_OFFSET
            waiting = asyncio.ensure_future(
                bench.client.pull(offset=3, commitOffset=3, sysFlag=flag, wait_ms=60_000)
            )
            await pulls_held(bench)
            assert offsets.query("consumers", "T", 0) == 3
            offsets.commit("consumers", "T", 0, 1)
            await bench.client.send()
            assert (await waiting).code == 0
            assert offsets.query("consumers", "T", 0) == 1

    run(scenario)


def test_a_reset_moves_the_next_pull_also_one_that_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, long_poll_check_interval_ms=100) as bench:
            await fill(bench, 3)
            bench.broker.offsets.assign_reset("consumers", "T", 0, 1)
            answer = await bench.client.pull(offset=3)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
            assert answer.remark == "OFFSET_RESET"
            assert (await bench.client.pull(offset=1)).code == 0
            waiting = asyncio.ensure_future(bench.client.pull(offset=3, wait_ms=60_000))
            await pulls_held(bench)
            bench.broker.offsets.assign_reset("consumers", "T", 0, 2)
            answer = await waiting
            assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")

    run(scenario)


# -- refusals ------------------------------------------------------------------------------------------------


def test_the_checks_come_in_order_with_their_codes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_groups=False) as bench:
            topics, groups, client = bench.broker.topics, bench.broker.groups, bench.client

            async def code_of(**more: object) -> tuple[int, str | None]:
                answer = await client.pull(**more)
                return answer.code, answer.fields.get("forbiddenType")

            assert await code_of() == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
            groups.update(SubscriptionGroup("consumers", consume_enable=False))
            assert await code_of() == (ResponseCode.NO_PERMISSION, "2")
            groups.update(SubscriptionGroup("consumers"))
            assert await code_of() == (ResponseCode.TOPIC_NOT_EXIST, None)
            topics.update(TopicConfig("T", 2, 4, Permission(2)))
            assert await code_of() == (ResponseCode.NO_PERMISSION, "3")
            topics.update(TopicConfig("T", 2, 4, Permission(6)))
            assert await code_of(queue=2) == (ResponseCode.INVALID_PARAMETER, None)
            assert await code_of(queue=-1) == (ResponseCode.INVALID_PARAMETER, None)
            assert await code_of(subscription="||") == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, None)
            for kind in ("SQL92", "XPATH"):
                assert await code_of(subscription="a > ", expressionType=kind) == (
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    None,
                )
            assert await code_of(queueOffset="x") == (ResponseCode.SYSTEM_ERROR, None)
            assert await code_of(queueOffset=2**63) == (ResponseCode.SYSTEM_ERROR, None)
            assert await code_of() == (ResponseCode.PULL_NOT_FOUND, None)

    run(scenario)


def test_a_pull_without_expression_needs_a_heartbeat(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            client, groups = bench.client, bench.broker.groups
            await fill(bench, 4, tags="ab")

            async def code_of(**more: object) -> tuple[int, str | None]:
                answer = await client.pull(subscription=None, **more)
                return answer.code, answer.fields.get("forbiddenType")

            assert await code_of() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
            await client.heartbeat(topic="Other")
            assert await code_of() == (ResponseCode.SUBSCRIPTION_NOT_EXIST, None)
            await client.heartbeat(topic="T", expression="b", sub_version=5)
            assert await code_of(subVersion=6) == (ResponseCode.SUBSCRIPTION_NOT_LATEST, None)
            # A client in Go says TAG here whatever it means; it counts only with an expression.
            answer = await client.pull(subscription=None, subVersion=5, expressionType="SQL92")
            assert bodies(answer) == [b"1", b"3"]
            groups.forbid_read("consumers", "T", True)
            assert await code_of() == (ResponseCode.NO_PERMISSION, "5")
            groups.forbid_read("consumers", "T", False)
            groups.update(replace(groups.require("consumers"), consume_broadcast_enable=False))
            assert (await code_of())[0] == 0
            await client.heartbeat(model=MessageModel.BROADCASTING)
            assert await code_of() == (ResponseCode.NO_PERMISSION, "4")

    run(scenario)


def test_a_broker_that_does_not_hand_out_messages_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "closed", permission=2) as bench:
            answer = await bench.client.pull()
            assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
        async with running(tmp_path / "slave", broker_id=1, slave_reads=False) as bench:
            assert (await bench.client.pull()).code == ResponseCode.SYSTEM_BUSY
        async with running(tmp_path / "lite", lite_pull=False) as bench:
            await bench.client.send()
            answer = await bench.client.pull(code=RequestCode.LITE_PULL_MESSAGE)
            assert (answer.code, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
            assert (await bench.client.pull()).code == 0
        async with running(tmp_path / "open") as bench:
            await bench.client.send()
            assert (await bench.client.pull(code=RequestCode.LITE_PULL_MESSAGE)).code == 0

    run(scenario)


# -- long polling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
@pytest.mark.parametrize("is_new_queue", [True, False])
def test_a_waiting_pull_is_woken_by_a_message(tmp_path: Path, flush: FlushMode, is_new_queue: bool) -> None:
    async def scenario() -> None:
        store = replace(STORE, flush_mode=flush)
        async with running(tmp_path, store=store, long_poll_check_interval_ms=60_000) as bench:
            bench.broker.topics.update(TopicConfig("T", 2, 2, Permission(6)))
            if not is_new_queue:
                await bench.client.send(body=b"old")
            waiting = asyncio.ensure_future(
                bench.client.pull(offset=0 if is_new_queue else 1, wait_ms=60_000)
            )
            await pulls_held(bench)
            assert not waiting.done()
            sender = bench.connect()
            await sender.send(queue=1, body=b"elsewhere")
            await sender.send(body=b"new")
            answer = await waiting
            assert bodies(answer) == [b"new"]
            assert len(polling(bench)) == 0

    run(scenario)


def test_a_waiting_pull_ends_at_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            started = asyncio.get_running_loop().time()
            answer = await bench.client.pull(offset=1, wait_ms=300)
            took = asyncio.get_running_loop().time() - started
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.fields["nextBeginOffset"] == "1"
            assert took > 0.28

    run(scenario)


def test_only_a_message_that_may_match_wakes_a_pull(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(TAGS="a")
            waiting = asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=60_000, subscription="b"))
            await pulls_held(bench)
            sender = bench.connect()
            for _ in range(5):
                await sender.send(TAGS="a")
            # An answer to the pull would come before the one to a later request of its connection.
            await bench.client.send("other")
            assert not waiting.done()
            await sender.send(body=b"wanted", TAGS="b")
            answer = await waiting
            assert bodies(answer) == [b"wanted"]
            # And one that nothing wakes is told how far it need not read again.
            waiting = asyncio.ensure_future(bench.client.pull(offset=7, wait_ms=300, subscription="b"))
            await pulls_held(bench)
            await sender.send(TAGS="a")
            clock.advance(1_000)
            answer = await waiting
            assert (answer.code, answer.fields["nextBeginOffset"]) == (
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                "8",
            )

    run(scenario)


def test_without_long_polling_pulls_wait_a_short_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, long_polling=False, short_polling_ms=200) as bench:
            await bench.client.send()
            answer = await bench.client.pull(offset=1, wait_ms=600_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND

    run(scenario)


def test_a_closed_connection_takes_its_waiting_pulls_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            other = bench.connect()
            waiting = [asyncio.ensure_future(other.pull(offset=1, wait_ms=60_000)) for _ in range(5)]
            await pulls_held(bench, 5)
            await other.close()
            await asyncio.gather(*waiting, return_exceptions=True)
            await pulls_held(bench, 0)
            assert polling(bench).held_for("T", 0) == 0
            assert not polling(bench)._slots
            await bench.client.send()

    run(scenario)


@pytest.mark.abuse("A14")
def test_a_full_table_answers_the_oldest_early(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, long_polls_max=3) as bench:
            await bench.client.send()
            waiting = []
            for number in range(5):
                waiting.append(asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=60_000)))
                await until(
                    lambda number=number: len(polling(bench)) + polling(bench).answered_early > number
                )
            assert [(await future).code for future in waiting[:2]] == [ResponseCode.PULL_NOT_FOUND] * 2
            assert [future.done() for future in waiting[2:]] == [False] * 3
            assert polling(bench).answered_early == 2
            await bench.client.send()
            assert [(await future).code for future in waiting[2:]] == [0, 0, 0]

    run(scenario)


@pytest.mark.abuse("A14")
def test_one_connection_may_hold_only_so_many(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, long_polls_per_connection_max=2) as bench:
            await bench.client.send()
            waiting = [asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=60_000)) for _ in range(2)]
            await pulls_held(bench, 2)
            answer = await bench.client.pull(offset=1, wait_ms=500)
            assert answer.code == ResponseCode.FLOW_CONTROL
            assert "2 pulls of this connection are waiting" in (answer.remark or "")
            assert int(answer.fields["penstockRetryAfterMs"]) > 0
            other = bench.connect()
            assert (await other.pull(offset=1, wait_ms=50)).code == ResponseCode.PULL_NOT_FOUND
            await bench.client.send()
            assert [answer.code for answer in await asyncio.gather(*waiting)] == [0, 0]

    run(scenario)


def test_many_pulls_of_many_queues_are_all_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bench.broker.topics.update(TopicConfig("T", 50, 50, Permission(6)))
            waiting = [
                asyncio.ensure_future(bench.client.pull(queue=queue, wait_ms=60_000))
                for queue in range(50)
                for _ in range(4)
            ]
            await pulls_held(bench, 200)
            sender = bench.connect()
            await asyncio.gather(*(sender.send(queue=queue, body=b"%d" % queue) for queue in range(50)))
            answers = await asyncio.gather(*waiting)
            assert [bodies(answer) for answer in answers] == [[b"%d" % (i // 4)] for i in range(200)]

    run(scenario)


@pytest.mark.seed("S4-13")
@pytest.mark.abuse("A26")
def test_the_bytes_of_one_topic_never_reach_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            topics = [f"T{i}" for i in range(6)]
            for number in range(120):
                topic = topics[number * 7 % 6]
                fields = send_fields(topic, props=properties(owner=topic))
                body = topic.encode() * (1 + number % 9)
                assert (await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, body)).code == 0
            for topic in topics:
                answer = await bench.client.pull(topic)
                messages = records(answer.body)
                assert len(messages) == 20
                for message in messages:
                    assert message.topic == message.properties["owner"] == topic
                    assert message.body == topic.encode() * (len(message.body) // 2)

    run(scenario)
