"""Delayed messages: when they come, what they are then, and what restarts and clocks that are set do to them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.delay import MESSAGES_PER_TURN, DelayService
from penstock.errors import DiskFullError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.testing import ManualClock
from tests.support.running_broker import (
    BROKER,
    STORE,
    Bench,
    properties,
    records,
    run,
    running,
    send_fields,
)

HOUR = 3_600_000


def service(bench: Bench) -> DelayService:
    found = bench.broker.delay
    assert found is not None
    return found


def count(bench: Bench, topic: str = "T", queue: int = 0) -> int:
    return bench.broker.store.max_offset(topic, queue)


async def saved(bench: Bench) -> dict[str, int]:
    """What the file says after a save."""
    service(bench).stored.changed()
    assert await service(bench).stored.save_file()
    path = bench.broker.data_dir / "config" / "delayOffset.json"
    return json.loads(path.read_bytes())["offsetTable"]


async def pulled(bench: Bench, queue: int, tag: str) -> bytes | bytearray:
    """What comes, whenever it comes."""
    while True:
        answer = await bench.client.pull(queue=queue, wait_ms=2_000, subscription=tag)
        if answer.code == ResponseCode.SUCCESS:
            return answer.body


@pytest.mark.seed("S2-36")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_delayed_message_comes_after_its_time_as_it_was_sent(tmp_path: Path, flush: FlushMode) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            fields = send_fields(queue=2, props=properties(DELAY="1", TAGS="a", KEYS="k", UNIQ_KEY="U"), j=3)
            answer = await bench.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"later")
            assert answer.code == 0
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
            assert count(bench, SCHEDULE_TOPIC) == 1
            [message] = records(await pulled(bench, 2, "a"))
            [waiting] = bench.broker.store.read(SCHEDULE_TOPIC, 0, 0)
            assert message.store_timestamp - waiting.store_timestamp >= 1_000
            assert (message.body, message.reconsume_times, message.flag) == (b"later", 3, 7)
            assert message.born_timestamp == waiting.born_timestamp
            assert message.born_host == waiting.born_host
            assert message.properties == waiting.properties
            assert message.properties["REAL_TOPIC"] == "T"
            assert message.properties["REAL_QID"] == "2"
            assert message.properties["DELAY"] == "1"
            assert message.message_id != answer.fields["msgId"]
            assert service(bench).delivered == 1

    run(scenario)


def test_levels_above_the_last_are_the_last_and_zero_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, fast=False) as bench:
            assert (await bench.client.send(DELAY="99")).code == 0
            assert count(bench, SCHEDULE_TOPIC, 4) == 1
            [message] = bench.broker.store.read(SCHEDULE_TOPIC, 4, 0)
            assert message.properties["DELAY"] == "5"
            assert (await bench.client.send(DELAY="0")).code == 0
            assert count(bench) == 1

    run(scenario)


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("is_crash", [False, True])
def test_what_waits_survives_a_restart_and_comes_once(tmp_path: Path, is_crash: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            for number in range(3):
                await bench.client.send(body=b"%d" % number, DELAY="1")
            clock.advance(1_500)
            service(bench).turn(service(bench).levels[0])
            assert count(bench) == 3
            await bench.client.send(body=b"3", DELAY="1")
            if is_crash:
                await service(bench).stored.save()
                bench.broker.store.flush()
                service(bench).progress()
                assert await service(bench).stored.save_file()
                bench.broker.store.abandon()
        saved = json.loads((tmp_path / "config" / "delayOffset.json").read_bytes())
        assert saved["offsetTable"] == {"1": 3}
        clock.advance(5_000)
        async with running(tmp_path, runtime=runtime) as bench:
            service(bench).turn(service(bench).levels[0])
            assert [m.body for m in bench.broker.store.read("T", 0, 0)] == [b"0", b"1", b"2", b"3"]

    run(scenario)


@pytest.mark.invariant("I8")
def test_offsets_in_the_file_are_never_ahead_of_the_disk(tmp_path: Path) -> None:
    """A power loss may take a copy that was not flushed; the delayed message must then come again."""

    async def scenario() -> None:
        clock = ManualClock()
        store = replace(STORE, flush_interval_ms=10_000_000)
        async with running(tmp_path, store=store, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(DELAY="1")
            clock.advance(1_500)
            service(bench).turn(service(bench).levels[0])
            assert count(bench) == 1
            assert await saved(bench) == {}
            assert service(bench).offsets().offsets == {1: 1}
            bench.broker.store.flush()
            assert await saved(bench) == {"1": 1}

    run(scenario)


@pytest.mark.fault("F10")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_is_set_makes_nothing_early_and_little_late(tmp_path: Path, jump: int) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            level = service(bench).levels[4]  # 5 s

            async def turns(passed_ms: int) -> int:
                clock.advance(passed_ms)
                service(bench).turn(level)
                return count(bench)

            await bench.client.send(body=b"before", DELAY="5")
            clock.jump(jump)
            assert await turns(4_900) == 0
            await bench.client.send(body=b"after", DELAY="5")
            assert await turns(200) == 1
            assert await turns(4_500) == 1
            await bench.client.send(body=b"later", DELAY="5")
            assert await turns(400) == 2
            clock.jump(-jump)
            await bench.client.send(body=b"last", DELAY="5")
            assert await turns(4_000) == 2
            assert await turns(1_000) == 4
            bodies = [m.body for m in bench.broker.store.read("T", 0, 0)]
            assert bodies == [b"before", b"after", b"later", b"last"]

    run(scenario)


@pytest.mark.fault("F10")
def test_messages_stored_by_a_clock_that_was_ahead_wait_one_delay_after_a_restart_at_most(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        clock.jump(HOUR)
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(DELAY="5")
        clock.jump(-HOUR)
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            level = service(bench).levels[4]
            clock.advance(4_900)
            service(bench).turn(level)
            assert count(bench) == 0
            clock.advance(200)
            service(bench).turn(level)
            assert count(bench) == 1

    run(scenario)


def test_a_flood_is_delivered_in_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            total = MESSAGES_PER_TURN * 2 + 5
            for number in range(total):
                await bench.client.send(f"T{number % 3}", DELAY="1")
            clock.advance(2_000)
            level = service(bench).levels[0]
            assert service(bench).deliver(level) == 0
            assert level.offset == MESSAGES_PER_TURN
            assert service(bench).deliver(level) == 0
            assert service(bench).deliver(level) > 0
            assert level.offset == total
            assert sum(count(bench, f"T{topic}") for topic in range(3)) == total

    run(scenario)


def test_a_full_disk_delays_further_and_nothing_comes_twice(tmp_path: Path, monkeypatch) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            for number in range(4):
                await bench.client.send(body=b"%d" % number, DELAY="1")
            clock.advance(2_000)
            store, level = bench.broker.store, service(bench).levels[0]
            original = store.append_group

            def half(requests, **more):
                original(requests[:2], **more)
                raise DiskFullError("no space left", "free some")

            monkeypatch.setattr(store, "append_group", half)
            service(bench).turn(level)
            assert (level.offset, count(bench)) == (2, 2)
            monkeypatch.undo()
            service(bench).turn(level)
            assert [m.body for m in store.read("T", 0, 0)] == [b"0", b"1", b"2", b"3"]

    run(scenario)


def test_a_message_that_cannot_be_delivered_holds_up_nobody(tmp_path: Path, caplog) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        with MessageStore.open(tmp_path, STORE, runtime=runtime) as store:
            from penstock.message import Message

            for topic, queue in (("a/b", "0"), ("T", "x"), ("T", "99999999999"), ("", "0"), ("T", "0")):
                pairs = {"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": queue}
                store.append(
                    Message(SCHEDULE_TOPIC, b"x", {name: value for name, value in pairs.items() if value}), 0
                )
        clock.advance(5_000)
        async with running(tmp_path, runtime=runtime) as bench:
            service(bench).turn(service(bench).levels[0])
            assert count(bench) == 1
            assert service(bench).skipped == 4

    run(scenario)
    assert caplog.text.count("cannot be delivered") == 4


def test_a_message_of_the_largest_size_passes(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            answer = await bench.client.send(body=b"x" * STORE.max_message_size_bytes, DELAY="1")
            assert answer.code == 0
            await bench.client.send(body=b"small", DELAY="1")
            clock.advance(2_000)
            service(bench).turn(service(bench).levels[0])
            service(bench).turn(service(bench).levels[0])
            assert count(bench) == 2

    run(scenario)


def test_the_offsets_can_be_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await bench.client.send(DELAY="2")
            clock.advance(3_000)
            service(bench).turn(service(bench).levels[1])
            answer = await bench.client.call(RequestCode.GET_ALL_DELAY_OFFSET)
            assert answer.code == ResponseCode.SUCCESS
            assert json.loads(answer.body)["offsetTable"] == {"2": 1}
            info = await bench.client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert json.loads(info.body)["table"]["scheduleMessageOffset_2"] == "1,1"

    run(scenario)


def test_eighteen_levels_by_default(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = replace(STORE, delay_levels="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
        broker = Broker(BROKER, store, tmp_path, runtime=Runtime.system())
        await broker.start()
        try:
            assert broker.delay is not None
            assert [level.delay_ms for level in broker.delay.levels][::17] == [1_000, 7_200_000]
            await asyncio.sleep(0)
        finally:
            await broker.stop()

    run(scenario)
