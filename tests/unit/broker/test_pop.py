"""POP over sockets: what is handed out, for how long, and when it comes again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.metadata.group_table import SubscriptionGroup
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from penstock.store import FlushMode
from penstock.testing import ManualClock
from tests.support.popping import (
    GROUP,
    ack,
    batch_ack,
    change,
    fill,
    held,
    is_unknown,
    open_checks,
    pop,
    popped,
    settled,
    take,
    turn,
)
from tests.support.running_broker import STORE, Bench, records, run, running

RETRY = f"%RETRY%{GROUP}_T"


@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_messages_are_handed_out_once_and_acknowledged(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            bodies = [*await fill(bench.client, 3, queue=0), *await fill(bench.client, 3, queue=1)]
            answer = await pop(bench.client, most=4)
            assert (answer.code, answer.fields["invisibleTime"], answer.fields["restNum"]) == (
                0,
                "60000",
                "2",
            )
            first = popped(answer)
            assert len(first) == 4
            second = await take(bench.client)
            assert len(second) == 2
            assert sorted(one.body for one in first + second) == sorted(bodies)
            assert await take(bench.client) == []
            for one in first:
                assert (await ack(bench.client, one)).code == 0
            assert (await batch_ack(bench.client, second)).code == 0
            assert open_checks(bench) == 0
            # An acknowledgement counts once; who comes later hears that nobody waits for it.
            assert is_unknown(await ack(bench.client, first[0]))
            await settled(bench)
            offsets = bench.broker.offsets
            assert [offsets.query(GROUP, "T", queue) for queue in (0, 1)] == [3, 3]

    run(scenario)


def test_groups_pop_each_for_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 2)
            for group in ("one", "two"):
                assert [m.body for m in await take(bench.client, group=group)] == bodies

    run(scenario)


def test_what_is_not_acknowledged_comes_again_as_a_retry(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 3, TAGS="a", KEYS="k", mine="x")
            first = await take(bench.client, invisible_ms=10_000)
            await ack(bench.client, first[1])
            clock.advance(9_990)
            turn(bench)
            assert await take(bench.client) == []
            clock.advance(10)
            turn(bench)
            assert open_checks(bench) == 0
            again = await take(bench.client, invisible_ms=10_000)
            assert [one.body for one in again] == [first[0].body, first[2].body]
            for one, before in zip(again, (first[0], first[2]), strict=True):
                message, old = one.message, before.message
                # It is a message of its topic to the consumer, with the handle among its properties.
                assert (message.topic, one.tries, one.handle.kind) == ("T", 1, "1")
                assert one.real_topic == RETRY
                assert message.properties["1ST_POP_TIME"] == str(before.handle.pop_time)
                assert (message.properties["mine"], message.properties["TAGS"]) == ("x", "a")
                assert message.properties["UNIQ_KEY"] == old.properties["UNIQ_KEY"]
                assert (message.born_timestamp, message.flag) == (old.born_timestamp, old.flag)
            # Too late: it is somebody else's by now.
            assert is_unknown(await ack(bench.client, first[0]))
            assert (await ack(bench.client, again[0])).code == 0
            clock.advance(10_000)
            turn(bench)
            [third] = await take(bench.client)
            assert (third.body, third.tries) == (first[2].body, 2)
            assert third.message.properties["1ST_POP_TIME"] == str(first[2].handle.pop_time)
            assert bench.broker.store.max_offset(RETRY, 0) == 3
            assert bench.broker.topics.all()[RETRY].read_queue_nums == 1

    run(scenario)


def test_after_the_groups_tries_it_is_a_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            bench.broker.groups.update(SubscriptionGroup(GROUP, retry_max_times=2))
            [body] = await fill(bench.client, 1)
            for tries in range(3):
                [one] = await take(bench.client, invisible_ms=5_000)
                assert one.tries == tries
                clock.advance(5_000)
                turn(bench)
            assert await take(bench.client) == []
            [dead] = bench.broker.store.read(f"%DLQ%{GROUP}", 0, 0)
            assert (dead.body, dead.reconsume_times) == (body, 3)
            assert dead.properties["RETRY_TOPIC"] == "T"
            assert "ORIGIN_MESSAGE_ID" in dead.properties
            assert "POP_CK" not in dead.properties

    run(scenario)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_short_time_is_taken_and_lasts_a_second(tmp_path: Path, in_order: bool) -> None:
    """RocketMQ's brokers take any; a consumer that cannot do its work gives the message back with 0."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 1)
            order = {"order": "true"} if in_order else {}
            for asked_ms in (0, 1, 999):
                [one] = await take(bench.client, invisible_ms=asked_ms, **order)
                answer = await change(bench.client, one, asked_ms)
                assert (answer.code, answer.fields["invisibleTime"]) == (0, "1000")
                clock.advance(999)
                turn(bench)
                assert await take(bench.client, invisible_ms=10_000, **order) == []
                clock.advance(1)
                turn(bench)
            assert len(await take(bench.client, invisible_ms=10_000, **order)) == 1

    run(scenario)


def test_a_changed_time_counts_from_now_and_has_a_new_handle(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 2)
            first, second = await take(bench.client, invisible_ms=10_000)
            clock.advance(8_000)
            answer = await change(bench.client, first, 20_000)
            assert (answer.code, answer.fields["invisibleTime"]) == (0, "20000")
            assert int(answer.fields["popTime"]) == clock.now_ms()
            longer = first.changed(answer)
            clock.advance(2_000)
            turn(bench)
            [again] = await take(bench.client)
            assert again.body == second.body
            clock.advance(17_000)
            turn(bench)
            assert await take(bench.client) == []
            assert is_unknown(await ack(bench.client, first))
            assert is_unknown(await change(bench.client, first, 5_000))
            shorter = longer.changed(await change(bench.client, longer, 1_000))
            clock.advance(1_000)
            turn(bench)
            [back] = await take(bench.client)
            assert (back.body, back.tries) == (first.body, 1)
            assert is_unknown(await ack(bench.client, shorter))
            assert (await ack(bench.client, back)).code == 0

    run(scenario)


def test_tags_are_filtered_and_what_does_not_match_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for number in range(10):
                await bench.client.send(body=str(number).encode(), TAGS="even" if number % 2 == 0 else "odd")
            found = await take(bench.client, exp="odd", most=3)
            assert [one.body for one in found] == [b"1", b"3", b"5"]
            assert [one.handle.offset for one in found] == [1, 3, 5]
            assert {one.handle.start_offset for one in found} == {0}
            rest = await take(bench.client, exp="odd")
            assert [one.body for one in rest] == [b"7", b"9"]
            assert (await batch_ack(bench.client, found + rest)).code == 0
            assert await take(bench.client, exp="none") == []
            await settled(bench)
            assert bench.broker.offsets.query(GROUP, "T", 0) == 10
            await bench.client.send(body=b"10", TAGS="even")
            assert await take(bench.client, exp="odd") == []
            await settled(bench)
            assert bench.broker.offsets.query(GROUP, "T", 0) == 11

    run(scenario)


def test_a_pop_waits_for_messages_in_any_queue_and_for_retries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1)
            [one] = await take(bench.client)
            other = bench.connect()
            waiting = asyncio.create_task(pop(other, wait_ms=60_000))
            await held(bench, 1)
            info = await bench.client.call(
                RequestCode.POLLING_INFO, {"consumerGroup": GROUP, "topic": "T", "queueId": "-1"}
            )
            assert info.fields["pollingNum"] == "1"
            await bench.client.send(body=b"late", queue=3)
            assert [m.body for m in popped(await waiting)] == [b"late"]
            # What comes back wakes too.
            waiting = asyncio.create_task(pop(other, wait_ms=60_000))
            await held(bench, 1)
            assert (await change(bench.client, one, 1_000)).code == 0
            [again] = popped(await waiting)
            assert (again.body, again.tries) == (one.body, 1)
            # Nothing comes: 210 when the time is over, not before.
            begun = asyncio.get_running_loop().time()
            assert (await pop(other, wait_ms=300)).code == ResponseCode.POLLING_TIMEOUT
            assert asyncio.get_running_loop().time() - begun > 0.25

    run(scenario)


def test_a_closed_connection_waits_for_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1)
            await take(bench.client)
            other = bench.connect()
            waiting = asyncio.create_task(pop(other, wait_ms=60_000))
            await held(bench, 1)
            await other.close()
            await asyncio.gather(waiting, return_exceptions=True)
            await held(bench, 0)
            await bench.client.send(body=b"next")
            assert [one.body for one in await take(bench.client)] == [b"next"]

    run(scenario)


def test_a_client_that_leaves_its_group_waits_for_nothing(tmp_path: Path) -> None:
    """Its connection may live on, and what it were given would be invisible for nothing."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1)
            await take(bench.client)
            other = bench.connect()
            await other.heartbeat(GROUP)
            await other.heartbeat("others")
            waiting = [
                asyncio.create_task(pop(other, wait_ms=60_000)),
                asyncio.create_task(pop(other, wait_ms=20_000, group="others", queue=1)),
            ]
            await held(bench, 1)
            await held(bench, 1, group="others")
            fields = {"clientID": "client@1", "consumerGroup": GROUP}
            assert (await other.call(RequestCode.UNREGISTER_CLIENT, fields)).code == 0
            await held(bench, 0)
            await held(bench, 1, group="others")
            await bench.client.send(body=b"next", queue=1)
            assert [one.body for one in await take(bench.client)] == [b"next"]
            assert [one.body for one in popped(await waiting[1], group="others")] == [b"next"]
            waiting[0].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario)


def test_a_new_group_begins_where_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, memory_percent=0) as bench:
            await fill(bench.client, 5)
            # From the last one; a queue whose first message is in memory is begun at that.
            assert [one.handle.offset for one in await take(bench.client, group="last", initMode=1)] == [4]
            assert len(await take(bench.client, group="first", initMode=0)) == 5
        async with running(tmp_path) as bench:
            assert len(await take(bench.client, group="warm", initMode=1)) == 5

    run(scenario)


def test_a_reset_is_where_the_next_pop_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 4)
            assert len(await take(bench.client)) == 4
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 1)
            again = await take(bench.client)
            assert [one.body for one in again] == bodies[1:]
            assert (await batch_ack(bench.client, again)).code == 0

    run(scenario)


@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_reset_outlives_a_restart_whichever_revive_queue_was_popped_to(tmp_path: Path, first: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 8)
            assert bench.broker.pop is not None
            bench.broker.pop.service.revive_turn = first
            assert len(await take(bench.client, queue=0, most=6)) == 6
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 0)
            assert [one.body for one in await take(bench.client, queue=0, most=1)] == bodies[:1]
            await settled(bench)
        async with running(tmp_path) as bench:
            assert [one.body for one in await take(bench.client, queue=0)] == bodies[1:]

    run(scenario)


def test_an_offset_that_is_not_there_is_put_right(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 2)
            bench.broker.groups.require(GROUP)
            bench.broker.offsets.commit(GROUP, "T", 0, 100)
            assert await take(bench.client) == []
            await bench.client.send(body=b"new")
            assert [one.body for one in await take(bench.client)] == [b"new"]

    run(scenario)


def test_retries_come_first_as_often_as_is_said(tmp_path: Path) -> None:
    async def scenario(percent: int, expected: list[bytes]) -> None:
        clock = ManualClock()
        path = tmp_path / str(percent)
        async with running(path, runtime=Runtime(clock=clock), pop_from_retry_percent=percent) as bench:
            await bench.client.send(body=b"old")
            await take(bench.client, invisible_ms=1_000)
            clock.advance(1_000)
            turn(bench)
            await bench.client.send(body=b"new")
            found = [*await take(bench.client, most=1), *await take(bench.client, most=1)]
            assert [one.body for one in found] == expected

    run(lambda: scenario(100, [b"old", b"new"]))
    run(lambda: scenario(0, [b"new", b"old"]))


def test_the_second_form_of_retry_topics(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock), pop_retry_topic_v2=True) as bench:
            await bench.client.send(body=b"x")
            await take(bench.client, invisible_ms=1_000)
            clock.advance(1_000)
            turn(bench)
            [one] = await take(bench.client)
            assert (one.handle.kind, one.real_topic) == ("2", f"%RETRY%{GROUP}+T")
            assert (await ack(bench.client, one)).code == 0

    run(scenario)


def test_looking_takes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 3)
            fields = {"consumerGroup": GROUP, "topic": "T", "queueId": "-1", "maxMsgNums": "2"}
            for _ in range(2):
                answer = await bench.client.call(RequestCode.PEEK_MESSAGE, fields)
                assert [m.body for m in records(answer.body)] == bodies[:2]
            assert bench.broker.offsets.query(GROUP, "T", 0) == -1
            assert open_checks(bench) == 0
            # The handle of such a message names no pop.
            looked = popped(await bench.client.call(RequestCode.PEEK_MESSAGE, fields))
            assert is_unknown(await ack(bench.client, looked[0]))
            assert len(await take(bench.client)) == 3
            answer = await bench.client.call(RequestCode.PEEK_MESSAGE, fields)
            assert answer.code == ResponseCode.PULL_NOT_FOUND

    run(scenario)


def test_news_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 1)
            fields = {"consumerGroup": GROUP, "topic": "T", "queueId": "-1", "bornTime": "0"}

            async def notified(wait_ms: int) -> bool:
                answer = await bench.connect().call(
                    RequestCode.NOTIFICATION, {**fields, "pollTime": str(wait_ms)}
                )
                assert answer.code == 0
                return answer.fields["hasMsg"] == "true"

            assert await notified(0)
            await take(bench.client)
            assert not await notified(0)
            waiting = asyncio.create_task(notified(60_000))
            await held(bench, 1)
            await bench.client.send(body=b"news")
            assert await waiting

    run(scenario)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_records_in_the_revive_topic_are_rocketmqs(tmp_path: Path, is_buffered: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime, pop_buffer=is_buffered) as bench:
            await fill(bench.client, 3)
            found = await take(bench.client)
            topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
            handle = found[0].handle
            before = bench.broker.store.read(topic, handle.revive_queue, 0)
            if is_buffered:
                assert before == []
                clock.advance(10_000)
                turn(bench)
                before = bench.broker.store.read(topic, handle.revive_queue, 0)
            [check] = before
            assert check.properties["TAGS"] == "ck"
            expected = (
                f'{{"bm":0,"bn":"broker-a","c":"{GROUP}","d":[0,1,2],"it":60000,"n":3,"pt":{handle.pop_time},'
                '"q":0,"ro":0,"so":0,"t":"T"}'
            )
            assert check.body.decode() == expected
            assert check.properties["UNIQ_KEY"] == f"T@0@0@{GROUP}@{handle.pop_time}@broker-a@ck"
            assert check.properties["TIMER_DELIVER_MS"] == str(handle.pop_time + 59_000)
            assert (await ack(bench.client, found[1])).code == 0
            assert (await batch_ack(bench.client, [found[0], found[2]])).code == 0
            acks = bench.broker.store.read(topic, handle.revive_queue, 1)
            assert {one.properties["TAGS"] for one in acks} <= {"ack", "bAck"}
            assert acks[0].body.decode() == (
                f'{{"bn":"broker-a","c":"{GROUP}","pt":{handle.pop_time},"q":0,"so":0,"t":"T","ao":1}}'
            )

    run(scenario)


async def refused(bench: Bench, **more: object) -> tuple[int, str]:
    answer = await pop(bench.client, **more)  # type: ignore[arg-type]
    return answer.code, answer.remark or ""


def test_what_a_pop_must_not_ask_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_groups=False) as bench:
            await fill(bench.client, 1)
            bench.broker.groups.update(SubscriptionGroup(GROUP))
            bench.broker.groups.update(SubscriptionGroup("barred", consume_enable=False))
            for more, code in (
                ({"most": 33}, 29),
                ({"most": 0}, 29),
                ({"most": -1}, 29),
                ({"queue": 8}, 29),
                ({"queue": -2}, 29),
                ({"topic": "nowhere"}, 17),
                ({"group": "nobody"}, 26),
                ({"group": "barred"}, 16),
                ({"invisible_ms": 43_200_001}, 29),
                ({"invisible_ms": 2**63 - 1}, 29),
                ({"invisible_ms": -1}, 29),
                ({"expType": "SQL92", "exp": "a >"}, 23),
                ({"order": "true", "attemptId": "a" * 129}, 29),
            ):
                assert (await refused(bench, **more))[0] == code, more
            # A request that comes later than it wanted to wait.
            assert (await refused(bench, bornTime=1, wait_ms=1_000))[0] == ResponseCode.POLLING_TIMEOUT
            assert len(await take(bench.client)) == 1

    run(scenario)


def test_what_cannot_carry_notes_comes_again_without_and_holds_nobody_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            # As many properties as fit: not one more byte.
            await fill(bench.client, 1, large="x" * 32_600)
            await fill(bench.client, 2)
            first = await take(bench.client, invisible_ms=10_000)
            assert len(first) == 3
            clock.advance(10_000)
            turn(bench)
            again = await take(bench.client, invisible_ms=10_000)
            assert sorted(one.body for one in again) == sorted(one.body for one in first)

    run(scenario)


@pytest.mark.abuse("A20")
def test_nobody_else_says_how_far_the_revive_topic_is_done_with(tmp_path: Path) -> None:
    """Whoever moved it would have what was popped and not acknowledged forgotten."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 2)
            assert len(await take(bench.client, invisible_ms=10_000)) == 2
            offsets, topic = bench.broker.offsets, bench.broker.pop.service.topic  # type: ignore[union-attr]
            for queue in range(8):
                assert not offsets.commit("CID_RMQ_SYS_REVIVE_GROUP", topic, queue, 10**12)
                offsets.assign_reset("CID_RMQ_SYS_REVIVE_GROUP", topic, queue, 10**12)
        clock.advance(10_000)
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            turn(bench)
            assert len(await take(bench.client)) == 2

    run(scenario)
