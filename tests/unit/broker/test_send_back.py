"""Messages that consumers give back: retried later, then dead letters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.message import StoredMessage
from penstock.metadata.group_table import CustomizedRetry, ExponentialRetry, GroupRetryPolicy
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.runtime import Runtime
from penstock.store import FlushMode
from penstock.testing import ManualClock
from tests.support.running_broker import STORE, Bench, records, run, running


async def send_back(bench: Bench, offset: int, level: int = 0, version: int = 401, **more: object) -> Command:
    fields = {"offset": offset, "group": "g", "delayLevel": level, "unitMode": "false", **more}
    return await bench.client.call(
        RequestCode.CONSUMER_SEND_MSG_BACK, {k: str(v) for k, v in fields.items()}, version=version
    )


async def one(bench: Bench, topic: str = "T") -> StoredMessage:
    return records((await bench.client.pull(topic)).body)[-1]


@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_message_comes_again_with_one_more_try(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = replace(STORE, flush_mode=flush, delay_levels="1s 2s 3s 4s 5s 6s")
        async with running(tmp_path, store=store, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(body=b"hard", TAGS="a", KEYS="k", UNIQ_KEY="U", mine="x")
            first = await one(bench)
            delay = bench.broker.delay
            assert delay is not None
            tried = first
            for tries in range(1, 4):
                answer = await send_back(bench, tried.physical_offset, originMsgId="U", originTopic="T")
                assert (answer.code, answer.remark) == (0, None)
                level = delay.levels[2 + tries - 1]
                clock.advance(level.delay_ms + 10)
                delay.turn(level)
                if flush is FlushMode.SYNC:
                    bench.broker.store.flush()
                tried = await one(bench, "%RETRY%g")
                assert (tried.body, tried.reconsume_times) == (b"hard", tries)
                assert tried.properties["RETRY_TOPIC"] == "T"
                assert tried.properties["ORIGIN_MESSAGE_ID"] == first.message_id
                assert tried.properties["UNIQ_KEY"] == "U"
                assert (tried.properties["mine"], tried.properties["TAGS"]) == ("x", "a")
                assert tried.properties["DELAY"] == str(2 + tries)
                assert (tried.born_timestamp, tried.born_host) == (first.born_timestamp, first.born_host)
                assert tried.flag == first.flag

    run(scenario)


def test_a_level_asked_for_is_taken_and_one_too_high_is_the_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            position = (await one(bench)).physical_offset
            for asked, level in ((2, 2), (100, 5)):
                assert (await send_back(bench, position, asked)).code == 0
                [message] = bench.broker.store.read(SCHEDULE_TOPIC, level - 1, 0)
                assert message.properties["REAL_TOPIC"] == "%RETRY%g"
                assert message.properties["DELAY"] == str(level)

    run(scenario)


def test_after_the_last_try_it_is_a_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send(body=b"hard")
            position = (await one(bench)).physical_offset
            for more in ({"maxReconsumeTimes": 0}, {"level": -1}):
                assert (await send_back(bench, position, **more)).code == 0
                dead = await one(bench, "%DLQ%g")
                assert (dead.body, dead.reconsume_times) == (b"hard", 1)
                assert dead.properties["RETRY_TOPIC"] == "T"
            assert bench.broker.store.max_offset("%DLQ%g", 0) == 2
            config = bench.broker.topics.get("%DLQ%g")
            assert config is not None
            assert (config.read_queue_nums, int(config.perm)) == (1, 6)
            # An old client has no say in the number of tries.
            assert (await send_back(bench, position, version=100, maxReconsumeTimes=0)).code == 0
            assert bench.broker.store.max_offset("%DLQ%g", 0) == 2

    run(scenario)


def test_reason_first_failure_and_origin_survive_to_the_dead_letter(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(body=b"before")
            await bench.client.send(body=b"hard", mine="x")
            first = await one(bench)
            began_ms = clock.now_ms()
            assert (
                await send_back(bench, first.physical_offset, penstockReason="ValueError: seven")
            ).code == 0
            [tried] = bench.broker.store.read(SCHEDULE_TOPIC, 2, 0)
            clock.advance(5_000)
            # A client that gives no reason leaves the last one; one that does replaces it, cut and cleaned.
            assert (await send_back(bench, tried.physical_offset, -1)).code == 0
            hostile = "KeyError:\x01a\x02b\nc" + "ü" * 2_000
            assert (await send_back(bench, tried.physical_offset, -1, penstockReason=hostile)).code == 0
            kept, replaced = records((await bench.client.pull("%DLQ%g")).body)
            for dead in (tried, kept, replaced):
                assert dead.properties["PENSTOCK_FIRST_FAILED"] == str(began_ms)
                assert dead.properties["PENSTOCK_ORIGIN"] == f"{bench.broker.options.broker_name}/0/1"
                assert dead.properties["ORIGIN_MESSAGE_ID"] == first.message_id
                assert (dead.properties["RETRY_TOPIC"], dead.properties["mine"]) == ("T", "x")
            assert kept.properties["PENSTOCK_REASON"] == "ValueError: seven"
            reason = replaced.properties["PENSTOCK_REASON"]
            assert reason.startswith("KeyError: a b cü")
            assert reason.endswith(" ...")
            assert len(reason.encode()) <= 512

    run(scenario)


def test_notes_that_do_not_fit_are_left_out_and_the_message_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send(large="x" * 32_500)).code == 0
            position = (await one(bench)).physical_offset
            assert (await send_back(bench, position, -1, penstockReason="y" * 500)).code == 0
            dead = await one(bench, "%DLQ%g")
            assert len(dead.properties["large"]) == 32_500
            assert dead.properties["RETRY_TOPIC"] == "T"
            assert "PENSTOCK_REASON" not in dead.properties

    run(scenario)


def test_a_groups_own_policy_decides_how_long_it_waits(tmp_path: Path) -> None:
    exponential = GroupRetryPolicy("EXPONENTIAL", exponential=ExponentialRetry(1_500, 4_000, 2))
    customized = GroupRetryPolicy(customized=CustomizedRetry((9_000, 9_000, 1_000, 5_000)))
    cases = [(exponential, [2, 3, 4, 4]), (customized, [1, 5, 5]), (GroupRetryPolicy(), [3, 4, 5])]

    async def scenario() -> None:
        async with running(tmp_path) as bench:  # levels of 1 to 5 s
            await bench.client.send()
            position = (await one(bench)).physical_offset
            groups = bench.broker.groups
            for policy, levels in cases:
                groups.update(replace(groups.require("g"), retry_policy=policy, retry_queue_nums=3))
                tried = position
                for level in levels:
                    before = bench.broker.store.max_offset(SCHEDULE_TOPIC, level - 1)
                    assert (await send_back(bench, tried)).code == 0
                    [copy] = bench.broker.store.read(SCHEDULE_TOPIC, level - 1, before)
                    assert copy.properties["REAL_QID"] in ("0", "1", "2")
                    tried = copy.physical_offset
            config = bench.broker.topics.get("%RETRY%g")
            assert config is not None

    run(scenario)


def test_refusals(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, auto_create_groups=False) as bench:
            await bench.client.send()
            position = (await bench.client.send()).fields["msgId"][-16:]
            offset = int(position, 16)
            assert (await send_back(bench, offset)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            bench.broker.groups.update(replace(bench.broker.groups.require("TOOLS_CONSUMER"), name="g"))
            for wrong in (offset + 1, offset - 1, 10**12, -1, -(2**63), 2**63 - 1):
                answer = await send_back(bench, wrong)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "no message at log position" in (answer.remark or "")
            assert bench.broker.store.max_offset(SCHEDULE_TOPIC, 2) == 0
            assert (await send_back(bench, offset)).code == 0
            group = replace(bench.broker.groups.require("g"), retry_queue_nums=0)
            bench.broker.groups.update(group)
            before = bench.broker.store.log.max_offset
            assert (await send_back(bench, offset)).code == 0  # the group wants no retries: dropped
            assert bench.broker.store.log.max_offset == before
        async with running(tmp_path, permission=4) as bench:
            assert (await send_back(bench, offset)).code == ResponseCode.NO_PERMISSION

    run(scenario)


def test_statistics_count_what_came_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send()
            position = (await one(bench)).physical_offset
            await send_back(bench, position)
            await send_back(bench, position, -1)
            find = bench.broker.statistics.find
            back, dead = find("SNDBCK_PUT_NUMS", "T@g"), find("DLQ_PUT_NUMS", "T@g")
            assert back is not None
            assert dead is not None
            assert (back.value, dead.value) == (2, 1)

    run(scenario)
