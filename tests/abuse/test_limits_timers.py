"""Limits of messages that name their time, each over a socket: over it nothing is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.recall import RecallHandle
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.abuse.limits import limit
from tests.support.running_broker import run, running


@limit("broker.timer_slot_max")
@pytest.mark.abuse("A14")
def test_messages_for_one_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = Runtime(clock=ManualClock())
        async with running(tmp_path, runtime=runtime, timer_slot_max=3) as bench:
            timers = bench.broker.timer
            assert timers is not None
            due_ms = timers.now_ms() // 1_000 * 1_000 + 60_500
            for wanted in (0, 0, 0, ResponseCode.SYSTEM_ERROR):
                answer = await bench.client.send(TIMER_DELIVER_MS=str(due_ms))
                assert answer.code == wanted
                timers.work()
            assert "timer_slot_max" in (answer.remark or "")
            assert (await bench.client.send(TIMER_DELIVER_MS=str(due_ms + 1_000))).code == 0

    run(scenario)


@pytest.mark.abuse("A18")
def test_how_far_ahead_a_time_may_be(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = Runtime(clock=ManualClock())
        async with running(tmp_path, runtime=runtime, timer_max_delay_s=100) as bench:
            timers = bench.broker.timer
            assert timers is not None
            for name, fine, far in (
                ("TIMER_DELAY_SEC", 100, 101),
                ("TIMER_DELAY_MS", 100_000, 100_001),
                ("TIMER_DELIVER_MS", timers.now_ms() + 100_000, timers.now_ms() + 100_001),
            ):
                end = bench.broker.store.log.max_offset
                answer = await bench.client.send(**{name: str(far)})  # type: ignore[arg-type]
                assert (answer.code, "timer_max_delay_s" in (answer.remark or "")) == (13, True)
                assert bench.broker.store.log.max_offset == end
                assert (await bench.client.send(**{name: str(fine)})).code == 0  # type: ignore[arg-type]
            handle = RecallHandle("T", "broker-a", timers.now_ms() + 100_001, "U").encode()
            answer = await bench.client.call(
                RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": handle}
            )
            assert answer.code == ResponseCode.ILLEGAL_OPERATION

    run(scenario)
