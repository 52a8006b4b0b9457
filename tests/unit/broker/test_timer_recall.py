"""A recall that was answered comes in time, whatever keeps it from being read: publications, floods, new starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.timer import MESSAGES_PER_TURN, TimerService
from penstock.protocol.codes import RequestCode
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.running_broker import Bench, run, running
from tests.unit.broker.test_timers import bodies, recall_fields, service, whole_second, work


async def send(bench: Bench, body: bytes, due_ms: int) -> str:
    """The handle to recall it by."""
    answer = await bench.client.send(body=body, UNIQ_KEY=body.decode(), TIMER_DELIVER_MS=str(due_ms))
    assert answer.code == 0
    return answer.fields["recallHandle"]


async def recall(bench: Bench, handle: str) -> None:
    assert (await bench.client.call(RequestCode.RECALL_MESSAGE, recall_fields(handle))).code == 0


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("is_taken", [True, False])
def test_a_publication_under_way_does_not_make_a_recall_too_late(tmp_path: Path, is_taken: bool) -> None:
    """Whether the message was there before it, or is held back as well."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            store, due_ms = bench.broker.store, whole_second(bench, clock) + 5_500
            if not is_taken:
                store.hold()
            handle = await send(bench, b"recalled", due_ms)
            await send(bench, b"kept", due_ms)
            work(bench)
            if is_taken:
                clock.advance(5_000)
                work(bench)
                assert len(service(bench).due) == 2
                store.hold()
            await recall(bench, handle)
            clock.advance(6_000)
            work(bench)
            assert bodies(bench) == []
            store.release()
            work(bench)
            assert bodies(bench) == [b"kept"]
            assert service(bench).recalled == 1
            # And things go on.
            await send(bench, b"later", service(bench).now_ms() + 2_000)
            clock.advance(2_500)
            work(bench)
            assert bodies(bench) == [b"kept", b"later"]

    run(scenario)


@pytest.mark.invariant("I8")
def test_a_flood_before_a_recall_does_not_make_it_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            due_ms = whole_second(bench, clock) + 3_500
            handle = await send(bench, b"recalled", due_ms)
            clock.advance(2_600)
            work(bench)
            assert len(service(bench).due) == 1
            turns, take = [0], TimerService._take
            # More than one turn takes is stored before anybody has the next.
            monkeypatch.setattr(TimerService, "_take", lambda self: False)
            for number in range(MESSAGES_PER_TURN + 6):
                await send(bench, b"other %d" % number, due_ms + 60_000)
            await recall(bench, handle)
            monkeypatch.setattr(TimerService, "_take", lambda self: turns.append(1) or take(self))
            clock.advance(2_000)
            work(bench)
            assert len(turns) > 2
            assert bodies(bench) == []
            assert service(bench).recalled == 1

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I8")
def test_a_recall_that_nobody_had_read_before_the_end_counts_after_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            due_ms = whole_second(bench, clock) + 3_000
            handle = await send(bench, b"recalled", due_ms)
            work(bench)
            with monkeypatch.context() as patch:
                patch.setattr(TimerService, "_take", lambda self: False)
                for number in range(MESSAGES_PER_TURN + 6):
                    await send(bench, b"other %d" % number, due_ms + 60_000)
                await recall(bench, handle)
                await bench.broker.timer.saver.stop()  # type: ignore[union-attr]
        clock.advance(10_000)
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            work(bench)
            assert bodies(bench) == []
            assert service(bench).recalled == 1

    run(scenario)
