"""Messages for arbitrary times: when they come, what they are then, and what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.timer import TimerService
from penstock.errors import DiskFullError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.recall import RecallHandle
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.runtime import Runtime
from penstock.store import FlushMode
from penstock.store.timer_checkpoint import TimerCheckpoint
from penstock.testing import ManualClock
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

HOUR = 3_600_000
DAY = 24 * HOUR


def service(bench: Bench) -> TimerService:
    found = bench.broker.timer
    assert found is not None
    return found


def work(bench: Bench) -> None:
    """Turns until there is nothing more to do now."""
    timers, before = service(bench), None
    for _ in range(10_000):
        after = (timers.files.queue_offset, len(timers.due), timers.due.loaded_to, timers.due.is_loading)
        if after == before:
            return
        before = after
        timers.work()
    raise AssertionError("the timers never rest")


def whole_second(bench: Bench, clock: ManualClock) -> int:
    """Move to the beginning of a second."""
    clock.advance(-service(bench).now_ms() % 1_000)
    return service(bench).now_ms()


def bodies(bench: Bench, topic: str = "T", queue: int = 0) -> list[bytes]:
    store = bench.broker.store
    return [message.body for message in store.read(topic, queue, 0, max_count=1_000)]


async def pulled(bench: Bench, topic: str = "T", queue: int = 0) -> bytes | bytearray:
    while True:
        answer = await bench.client.pull(topic, queue=queue, wait_ms=2_000)
        if answer.code == ResponseCode.SUCCESS:
            return answer.body


# -- delivery --------------------------------------------------------------------------------------------------


@pytest.mark.seed("S2-36")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize("flush", [FlushMode.ASYNC, FlushMode.SYNC])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_comes_at_its_time_as_it_was_sent(tmp_path: Path, flush: FlushMode, name: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path, store=replace(STORE, flush_mode=flush)) as bench:
            started_ms = time.time_ns() // 1_000_000
            value, ahead_ms = {
                "TIMER_DELAY_SEC": (1, 1_000),
                "TIMER_DELAY_MS": (350, 350),
                "TIMER_DELIVER_MS": (started_ms + 1_050, 1_050),
            }[name]
            pairs = {"TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U", name: str(value)}
            answer = await bench.client.call(
                RequestCode.SEND_MESSAGE_V2, send_fields(queue=2, props=properties(**pairs), j=3), b"later"
            )
            assert answer.code == 0
            assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("2", "0")
            [waiting] = bench.broker.store.read(WHEEL_TIMER_TOPIC, 0, 0)
            due_ms = int(waiting.properties["TIMER_DELIVER_MS"])
            out_ms = int(waiting.properties["TIMER_OUT_MS"])
            assert (out_ms % 1_000, out_ms < due_ms <= out_ms + 1_000) == (0, True)
            # The two clocks that are compared may be those of two processors, a moment apart.
            assert due_ms - started_ms >= ahead_ms - 5
            [message] = records(await pulled(bench, queue=2))
            # Clocks of stores are read once per group, so a message may seem to be a moment early by them.
            assert message.store_timestamp - due_ms >= -5
            assert (message.body, message.reconsume_times, message.flag) == (b"later", 3, 7)
            assert message.born_timestamp == waiting.born_timestamp
            found = dict(message.properties)
            assert int(found.pop("TIMER_ENQUEUE_MS")) % 1_000 == 0
            assert int(found.pop("TIMER_DEQUEUE_MS")) >= due_ms
            assert found == waiting.properties
            assert (found["REAL_TOPIC"], found["REAL_QID"], found[name]) == ("T", "2", str(value))
            handle = RecallHandle.decode(answer.fields["recallHandle"])
            assert handle == RecallHandle("T", "broker-a", out_ms + 1, "U")

    run(scenario)


@pytest.mark.invariant("I8")
def test_messages_of_one_second_come_at_their_own_millisecond(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            start_ms = service(bench).now_ms()
            for ahead in (2_900, 2_100, 2_500, 5_000, 2_500):
                await bench.client.send(body=b"%d" % ahead, TIMER_DELIVER_MS=str(start_ms + ahead))
            work(bench)
            for passed, expected in (
                (2_099, 0),
                (1, 1),
                (399, 1),
                (1, 3),
                (399, 3),
                (1, 4),
                (2_099, 4),
                (1, 5),
            ):
                clock.advance(passed)
                work(bench)
                assert len(bodies(bench)) == expected
            assert bodies(bench) == [b"2100", b"2500", b"2500", b"2900", b"5000"]

    run(scenario)


def test_what_is_due_already_is_delivered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for pairs in (
                {"TIMER_DELAY_SEC": "0"},
                {"TIMER_DELIVER_MS": "0"},
                {"TIMER_DELIVER_MS": "1"},
                {"TIMER_DELIVER_MS": "1763280000"},
                {"TIMER_DELIVER_MS": str(int(time.time() * 1000) - DAY)},
            ):
                answer = await bench.client.send(**pairs)
                assert answer.code == 0
                assert "recallHandle" not in answer.fields
            assert len(bodies(bench)) == 5
            assert bench.broker.store.max_offset(WHEEL_TIMER_TOPIC, 0) == 0

    run(scenario)


def test_what_was_delivered_once_is_not_delayed_again(tmp_path: Path) -> None:
    """A consumer that sends a message on, or gives it back, sends all of its properties."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            pairs = {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + DAY), "TIMER_OUT_MS": "1000"}
            assert (await bench.client.send(**pairs)).code == 0
            assert (await bench.client.send(**pairs, DELAY="2")).code == 0
            assert len(bodies(bench)) == 1
            assert bench.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 1) == 1

    run(scenario)


# -- refusals --------------------------------------------------------------------------------------------------

HOSTILE = [
    {"TIMER_DELAY_SEC": "-1"},
    {"TIMER_DELAY_MS": "1.5"},
    {"TIMER_DELAY_MS": "\u0661"},
    {"TIMER_DELAY_SEC": "9223372036854775807"},
    {"TIMER_DELAY_MS": "9223372036854775807"},
    {"TIMER_DELIVER_MS": "9223372036854775807"},
    {"TIMER_DELIVER_MS": "9223372036854775808"},
    {"TIMER_DELIVER_MS": "1" * 400},
    {"TIMER_DELIVER_MS": "-5"},
    {"TIMER_DELIVER_MS": "soon"},
    {"TIMER_DELAY_SEC": "259201"},
    {"TIMER_DELAY_SEC": "1", "DELAY": "1"},
    {"TIMER_DELAY_SEC": "9", "TIMER_DEL_UNIQKEY": "other+U"},
]


@pytest.mark.abuse("A18")
@pytest.mark.invariant("I8")
def test_hostile_times_are_refused_and_never_taken_for_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            assert (await bench.client.send()).code == 0  # the compiled way knows the topic from now on
            for pairs in HOSTILE:
                end = bench.broker.store.log.max_offset
                answer = await bench.client.send(**pairs)
                assert (answer.code, pairs) == (ResponseCode.MESSAGE_ILLEGAL, pairs)
                assert any(name in (answer.remark or "") for name in pairs)
                assert bench.broker.store.log.max_offset == end
            assert (await bench.client.send(TIMER_DELAY_SEC="259200")).code == 0
            assert len(bodies(bench)) == 1

    run(scenario)


def test_no_batch_no_transaction_and_nothing_without_timers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, timer_max_delay_s=10) as bench:
            item = batch_item(b"x", properties(TIMER_DELAY_SEC="1"))
            answer = await bench.client.call(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), item)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert (await bench.client.send(TIMER_DELAY_SEC="11")).code == ResponseCode.MESSAGE_ILLEGAL
        async with running(tmp_path, timers=False) as bench:
            answer = await bench.client.send(TIMER_DELAY_SEC="1")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "timerWheelEnable" in (answer.remark or "")
            assert bodies(bench) == []

    run(scenario)


def test_a_second_has_room_for_so_many(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, timer_slot_max=2) as bench:
            due = str(int(time.time() * 1000) // 1_000 * 1_000 + 60_500)
            for _ in range(2):
                assert (await bench.client.send(TIMER_DELIVER_MS=due)).code == 0
                work(bench)
            answer = await bench.client.send(TIMER_DELIVER_MS=due)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "timer_slot_max" in (answer.remark or "")
            assert (await bench.client.send(TIMER_DELIVER_MS=str(int(due) + 1_000))).code == 0

    run(scenario)


# -- recall ----------------------------------------------------------------------------------------------------


def recall_fields(handle: str, topic: str = "T") -> dict[str, str]:
    return {"producerGroup": "producers", "topic": topic, "recallHandle": handle}


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_recalled_message_never_comes(tmp_path: Path, is_loaded: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            start_ms = whole_second(bench, clock)
            handles = []
            for number in range(3):
                answer = await bench.client.send(
                    body=b"%d" % number, UNIQ_KEY=f"U{number}", TIMER_DELIVER_MS=str(start_ms + 10_500)
                )
                handles.append(answer.fields["recallHandle"])
            work(bench)
            if is_loaded:
                clock.advance(9_500)
                work(bench)
                assert len(service(bench).due) == 3
            answer = await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(handles[1]))
            assert (answer.code, answer.fields["msgId"]) == (0, "U1")
            assert answer.fields["MSG_REGION"] == "DefaultRegion"
            clock.advance(11_000)
            work(bench)
            assert bodies(bench) == [b"0", b"2"]
            assert service(bench).recalled == 1
            answer = await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(handles[0]))
            assert answer.code == ResponseCode.ILLEGAL_OPERATION

    run(scenario)


@pytest.mark.abuse("A18")
def test_recalls_that_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send(TIMER_DELAY_SEC="60")
            soon = int(time.time() * 1000) + 60_000
            good = RecallHandle("T", "broker-a", soon, "U").encode()
            cases = [
                ("no handle", "T", 604),
                ("", "T", 604),
                ("a" * 5_000, "T", 604),
                (good.rstrip("="), "T", 604 if good.endswith("=") else 0),
                (RecallHandle("T", "broker-a", soon, "").encode(), "T", 604),
                (RecallHandle("U", "broker-a", soon, "U").encode(), "T", 604),
                (RecallHandle("T", "broker-b", soon, "U").encode(), "T", 604),
                (RecallHandle("T", "broker-a", 5, "U").encode(), "T", 604),
                (RecallHandle("T", "broker-a", soon + 4 * DAY, "U").encode(), "T", 604),
                (good, "unknown", 17),
                (good, WHEEL_TIMER_TOPIC, 17),
                (good, "T", 0),
            ]
            for handle, topic, code in cases:
                answer = await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(handle, topic))
                assert (answer.code, handle[:20]) == (code, handle[:20])
            bench.broker.reconfigure(replace(bench.broker.options, recall=False))
            answer = await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(good))
            assert answer.code == ResponseCode.NO_PERMISSION
            bench.broker.reconfigure(replace(bench.broker.options, recall=True, broker_id=1))
            answer = await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(good))
            assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE

    run(scenario)


# -- far ahead -------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I8")
def test_what_waits_longer_than_the_window_is_stored_again_on_the_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime, timer_roll_window_slots=10) as bench:
            start_ms = whole_second(bench, clock)
            answer = await bench.client.send(
                body=b"far", UNIQ_KEY="F", TIMER_DELIVER_MS=str(start_ms + 35_250)
            )
            await bench.client.send(body=b"never", UNIQ_KEY="N", TIMER_DELIVER_MS=str(start_ms + 35_250))
            handle = RecallHandle("T", "broker-a", start_ms + 35_001, "N").encode()
            assert (await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(handle))).code == 0
            assert answer.code == 0
            work(bench)
            for _ in range(35):
                clock.advance(1_000)
                work(bench)
            assert bodies(bench) == []
            clock.advance(249)
            work(bench)
            assert bodies(bench) == []
            clock.advance(1)
            work(bench)
            assert bodies(bench) == [b"far"]
            stored = bench.broker.store.read(WHEEL_TIMER_TOPIC, 0, 0, max_count=100)
            rolls = [m.properties.get("TIMER_ROLL_TIMES") for m in stored if m.body == b"far"]
            assert rolls == [None, "1", "2", "3"]

    run(scenario)


# -- clocks, full disks, floods --------------------------------------------------------------------------------


@pytest.mark.fault("F10")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_is_set_makes_nothing_early(tmp_path: Path, jump: int) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            await bench.client.send(body=b"before", TIMER_DELAY_MS="5000")
            clock.jump(jump)
            await bench.client.send(body=b"after", TIMER_DELAY_MS="5000")
            clock.advance(4_990)
            work(bench)
            assert bodies(bench) == []
            clock.advance(20)
            work(bench)
            assert bodies(bench) == [b"before", b"after"]
            await service(bench).saver.save()
        # The next run begins with the clock as it is: what was delivered does not come again.
        async with running(tmp_path, runtime=runtime) as bench:
            await bench.client.send(body=b"later", TIMER_DELAY_MS="5000")
            clock.advance(4_990)
            work(bench)
            assert bodies(bench) == [b"before", b"after"]
            clock.advance(20)
            work(bench)
            assert bodies(bench) == [b"before", b"after", b"later"]

    run(scenario)


@pytest.mark.fault("F4")
def test_a_full_disk_delays_further_and_nothing_comes_twice(tmp_path: Path, monkeypatch) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            for number in range(4):
                await bench.client.send(body=b"%d" % number, TIMER_DELAY_MS="2000")
            clock.advance(500)
            work(bench)
            store = bench.broker.store
            original = store.append_group

            def half(requests, **more):
                original(requests[:2], **more)
                raise DiskFullError("no space left", "free some")

            monkeypatch.setattr(store, "append_group", half)
            clock.advance(2_000)
            service(bench).turn()
            assert len(bodies(bench)) == 2
            monkeypatch.undo()
            work(bench)
            assert bodies(bench) == [b"0", b"1", b"2", b"3"]

    run(scenario)


def test_a_flood_is_delivered_in_turns_in_order_and_beyond_the_memory_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            service(bench).due.held_bytes_max = 5_000
            due = str(service(bench).now_ms() + 5_000)
            for number in range(300):
                await bench.client.send(body=b"%d" % number, TIMER_DELIVER_MS=due)
            work(bench)
            clock.advance(10_000)
            work(bench)
            assert bodies(bench) == [b"%d" % number for number in range(300)]
            assert service(bench).due.held_bytes == 0
            assert service(bench).counts == {}

    run(scenario)


def test_a_message_that_cannot_be_delivered_holds_up_nobody(tmp_path: Path, caplog) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            store = bench.broker.store
            from penstock.message import Message

            out = str(service(bench).now_ms() // 1_000 * 1_000 + 2_000)
            for pairs in (
                {"TIMER_OUT_MS": out, "REAL_TOPIC": "a/b", "REAL_QID": "0"},
                {"TIMER_OUT_MS": out, "REAL_TOPIC": "T", "REAL_QID": "x"},
                {"TIMER_OUT_MS": "x", "REAL_TOPIC": "T", "REAL_QID": "0"},
                {"REAL_TOPIC": "T", "REAL_QID": "0"},
                {"TIMER_OUT_MS": out, "REAL_TOPIC": "T", "REAL_QID": "0"},
            ):
                store.append(Message(WHEEL_TIMER_TOPIC, b"x", pairs), 0)
            work(bench)
            clock.advance(5_000)
            work(bench)
            assert len(bodies(bench)) == 1
            assert service(bench).skipped == 4

    run(scenario)
    assert caplog.text.count("is skipped") == 4


def test_a_message_of_the_largest_size_passes(tmp_path: Path) -> None:
    """rocketmq #9654: one such message held up the whole timer."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            large = {"N": "v" * (32_767 - 260), "UNIQ_KEY": "U", "TIMER_DELAY_MS": "1000"}
            answer = await bench.client.send(body=b"x" * STORE.max_message_size_bytes, **large)
            assert answer.code == 0
            await bench.client.send(body=b"small", TIMER_DELAY_MS="1000")
            clock.advance(3_000)
            work(bench)
            assert [len(body) for body in bodies(bench)] == [STORE.max_message_size_bytes, 5]

    run(scenario)


# -- questions -------------------------------------------------------------------------------------------------


def test_what_waits_can_be_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for topic in ("T", "T", "U"):
                await bench.client.send(topic, TIMER_DELAY_SEC="60")
            work(bench)
            answer = await bench.client.call(RequestCode.GET_TIMER_METRICS)
            counts = json.loads(answer.body)["timingCount"]
            assert {name: value["count"] for name, value in counts.items()} == {"T": 2, "U": 1}
            await service(bench).saver.save()
            answer = await bench.client.call(RequestCode.GET_TIMER_CHECK_POINT)
            assert len(answer.body) == 56
            found = TimerCheckpoint.decode(bytes(answer.body))
            assert found is not None
            assert (found.queue_offset, found.master_offset, found.read_ms % 1_000) == (3, 3, 0)
            info = await bench.client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(info.body)["table"]
            assert (table["timerCongestNum"], table["timerOffsetBehind"]) == ("3", "0")
        await asyncio.sleep(0)
        async with running(tmp_path) as bench:
            answer = await bench.client.call(RequestCode.GET_TIMER_METRICS)
            counts = json.loads(answer.body)["timingCount"]
            assert {name: value["count"] for name, value in counts.items()} == {"T": 2, "U": 1}

    run(scenario)
