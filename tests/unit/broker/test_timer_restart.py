"""Timers across restarts and crashes at every stage, and with files that are damaged or gone."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.protocol.codes import RequestCode
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.runtime import Runtime
from penstock.store.timer_wheel import SIZE
from penstock.testing import ManualClock
from tests.support.running_broker import STORE, Bench, run, running
from tests.unit.broker.test_timers import bodies, recall_fields, service, work

STAGES = ("stored", "in the wheel", "saved", "loaded", "delivered", "delivered and saved")


async def crash(bench: Bench) -> None:
    """Nothing more is written, as after kill -9."""

    async def nothing() -> None:
        pass

    bench.broker.timer.saver.save = nothing  # type: ignore[union-attr, method-assign]
    bench.broker.store.abandon()


async def reach(bench: Bench, clock: ManualClock, stage: str) -> None:
    """Bring a message that is due in 2 s to a stage."""
    timers = service(bench)
    if stage == "stored":
        # What arrives is taken at once: undo that, as if the crash had come before.
        timers._plan = lambda delay_ms: None  # type: ignore[method-assign]
    await bench.client.send(body=b"m", UNIQ_KEY="M", TIMER_DELAY_MS="2000")
    if stage == "stored":
        assert timers.files.queue_offset == 0
        return
    work(bench)
    assert timers.files.queue_offset == 1
    if stage == "saved":
        await timers.saver.save()
    if stage in STAGES[3:]:
        clock.advance(1_500)
        work(bench)
        assert len(timers.due) == 1
    if stage in STAGES[4:]:
        clock.advance(600)
        work(bench)
        assert bodies(bench) == [b"m"]
    if stage == "delivered and saved":
        await timers.saver.save()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I8")
@pytest.mark.parametrize("is_crash", [False, True], ids=["stop", "crash"])
@pytest.mark.parametrize("stage", STAGES)
def test_what_waits_survives_and_comes_once(tmp_path: Path, stage: str, is_crash: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            await reach(bench, clock, stage)
            if is_crash:
                await crash(bench)
        async with running(tmp_path, runtime=runtime) as bench:
            work(bench)
            before = len(bodies(bench))
            clock.advance(5_000)
            work(bench)
            # Only what was delivered after the last save, and then a crash, comes twice.
            expected = 2 if is_crash and stage == "delivered" else 1
            assert (len(bodies(bench)), service(bench).skipped) == (expected, 0)
            if stage in STAGES[:4]:
                assert before == 0
            await service(bench).saver.save()
        async with running(tmp_path, runtime=runtime) as bench:
            clock.advance(60_000)
            work(bench)
            assert len(bodies(bench)) == expected

    run(scenario)


def remove_wheel(path: Path) -> None:
    (path / "timerwheel").unlink()


def cut_wheel(path: Path) -> None:
    with (path / "timerwheel").open("r+b") as file:
        file.truncate(SIZE - 1)


def remove_log(path: Path) -> None:
    [file] = (path / "timerlog").iterdir()
    file.unlink()


def zero_log(path: Path) -> None:
    [file] = (path / "timerlog").iterdir()
    size = file.stat().st_size
    file.write_bytes(b"")
    with file.open("r+b") as opened:
        opened.truncate(size)


def wild_slots(path: Path) -> None:
    """Every slot in use points somewhere else."""
    with (path / "timerwheel").open("r+b") as file:
        data = bytearray(file.read())
        for at in range(0, len(data), 32):
            if any(data[at : at + 8]):
                struct.pack_into(">q", data, at + 16, 52 * 40)
        file.seek(0)
        file.write(data)


def wild_chain(path: Path) -> None:
    """A record in the middle of the log belongs to another slot."""
    [found] = (path / "timerlog").iterdir()
    with found.open("r+b") as file:
        file.seek(52 * 3 + 24)
        file.write(struct.pack(">i", 123_456))


def other_size(path: Path) -> None:
    [found] = (path / "timerlog").iterdir()
    with found.open("r+b") as file:
        file.truncate(1 << 20)


DAMAGES = (remove_wheel, cut_wheel, remove_log, zero_log, wild_slots, wild_chain, other_size)


@pytest.mark.fault("F7")
@pytest.mark.invariant("I1", "I8", "I12")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_files_are_made_anew_and_nothing_comes_twice(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            for number in range(20):
                ahead = 2_000 + number % 4 * 2_000
                await bench.client.send(body=b"%d" % number, TIMER_DELAY_MS=str(ahead))
            work(bench)
            clock.advance(4_500)
            work(bench)
            assert len(bodies(bench)) == 10
        damage(tmp_path)
        async with running(tmp_path, runtime=runtime) as bench:
            clock.advance(10_000)
            for _ in range(3):
                service(bench).turn()
            work(bench)
            assert sorted(bodies(bench)) == sorted(b"%d" % number for number in range(20))

    run(scenario)
    assert "made anew" in caplog.text


@pytest.mark.fault("F7")
def test_without_a_checkpoint_everything_that_is_kept_comes_again(tmp_path: Path, caplog) -> None:
    """As in RocketMQ: the log says what was sent, and nothing else says what was delivered."""

    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            await bench.client.send(body=b"past", TIMER_DELAY_MS="1000")
            await bench.client.send(body=b"future", TIMER_DELAY_MS="9000")
            clock.advance(3_000)
            work(bench)
        (tmp_path / "config" / "timercheck").unlink()
        async with running(tmp_path, runtime=runtime) as bench:
            work(bench)
            clock.advance(10_000)
            work(bench)
            assert bodies(bench) == [b"past", b"past", b"future"]

    run(scenario)
    assert "there is no timercheck" in caplog.text


def test_a_recall_survives_a_crash(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            answer = await bench.client.send(UNIQ_KEY="M", TIMER_DELAY_MS="9000")
            fields = recall_fields(answer.fields["recallHandle"])
            assert (await bench.client.call(RequestCode.RECALL_MESSAGE, fields)).code == 0
            await crash(bench)
        async with running(tmp_path, runtime=runtime) as bench:
            clock.advance(20_000)
            work(bench)
            assert bodies(bench) == []

    run(scenario)


@pytest.mark.invariant("I8")
def test_progress_in_the_file_is_never_ahead_of_the_disk(tmp_path: Path) -> None:
    """A power loss may take a copy that was not flushed; the message must then come again."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            timers = service(bench)
            timers.saver.confirmed_offset = lambda: 0  # a set in which no replica has anything
            await bench.client.send(TIMER_DELAY_MS="1000")
            clock.advance(3_000)
            work(bench)
            assert len(bodies(bench)) == 1
            await timers.saver.save()
            assert timers.saver.safe.queue_offset == 0
            assert timers.files.checkpoint.master_offset == 0
            timers.saver.confirmed_offset = lambda: 1 << 62
            assert timers.saver.safe.queue_offset == 1

    run(scenario)


@pytest.mark.invariant("I8")
def test_retention_leaves_what_timers_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = replace(
            STORE, segment_size_bytes=1 << 16, max_message_size_bytes=1 << 15, file_reserved_hours=0
        )
        runtime = Runtime(clock=clock)
        async with running(tmp_path, store=store, runtime=runtime, timer_log_file_bytes=4_096) as bench:
            timers, keeper = service(bench), bench.broker.store.keeper
            assert bench.broker.retention is not None

            async def clean() -> None:
                """One round now; the store's own, which the clock makes due, may come before it."""
                await timers.saver.save()
                bench.broker.store.flush()
                assert bench.broker.retention is not None
                bench.broker.retention.tell()
                for path in (tmp_path / "commitlog").iterdir():
                    os.utime(path, (1_000, 1_000))
                keeper.request_clean()
                keeper.clean()

            async def fill() -> None:
                for _ in range(5):
                    await bench.client.send("U", body=b"x" * 30_000)

            await fill()
            await bench.client.send(body=b"kept", TIMER_DELAY_MS="30000")
            await fill()
            for _ in range(200):  # the timer log has several files by then
                await bench.client.send("V", TIMER_DELAY_MS="1000")
            clock.advance(5_000)
            work(bench)
            for _ in range(5):
                await clean()
            low = bench.broker.store.log.min_offset
            assert low > 0  # what was before it may go
            assert len(list((tmp_path / "timerlog").iterdir())) > 1
            [waiting] = [m for m in bench.broker.store.read(WHEEL_TIMER_TOPIC, 0, 0) if m.body == b"kept"]
            assert low <= waiting.physical_offset
            clock.advance(30_000)
            work(bench)
            assert bodies(bench) == [b"kept"]
            await fill()
            await clean()
            assert bench.broker.store.log.min_offset > waiting.physical_offset
            assert len(list((tmp_path / "timerlog").iterdir())) == 1

    run(scenario)


@pytest.mark.invariant("I8")
def test_a_long_rest_is_made_up_for(tmp_path: Path) -> None:
    """A broker that was down for more than the wheel is long has everything that was due meanwhile."""

    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            for number in range(5):
                await bench.client.send(body=b"%d" % number, TIMER_DELAY_MS=str(5_000 + number * 1_000))
            work(bench)
        clock.advance(15 * 86_400_000)
        async with running(tmp_path, runtime=runtime) as bench:
            await bench.client.send(body=b"new", TIMER_DELAY_MS="2000")
            work(bench)
            clock.advance(3_000)
            work(bench)
            assert bodies(bench) == [b"0", b"1", b"2", b"3", b"4", b"new"]

    run(scenario)
