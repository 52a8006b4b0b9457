"""POP across restarts and kill -9: nothing popped is lost, nothing acknowledged comes again that need not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.pop_service import LAG_MAX, REVIVE_GROUP
from penstock.protocol.codes import RequestCode
from penstock.runtime import Runtime
from penstock.runtime.clock import SystemClock
from penstock.testing import ManualClock
from tests.support.popping import (
    GROUP,
    Popped,
    ack,
    batch_ack,
    change,
    fill,
    is_unknown,
    open_checks,
    settled,
    take,
    turn,
)
from tests.support.running_broker import Client, run, running
from tests.waiting import until

ROOT = Path(__file__).parents[3]
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


@asynccontextmanager
async def killed(path: Path, *arguments: str) -> AsyncIterator[Client]:
    """A broker process that ends with kill -9."""
    script = ROOT / "tests" / "unit" / "broker" / "popped_broker.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(path),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    client = Client((await process.stdout.readline()).decode().strip())
    try:
        yield client
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await client.close()


class LaterClock(SystemClock):
    """The machine's time and some more."""

    def __init__(self, seconds: int) -> None:
        super().__init__()
        self._more_ms = seconds * 1_000

    def now_ms(self) -> int:
        return super().now_ms() + self._more_ms


def later(seconds: int) -> Runtime:
    """For a broker that starts so long after the one before it."""
    return Runtime(clock=LaterClock(seconds))


def saved_offset(path: Path, group: str = GROUP) -> int:
    """What the file has for queue 0; -1: nothing."""
    file = path / "config" / "consumerOffset.json"
    if not file.exists():
        return -1
    table = json.loads(file.read_bytes())["offsetTable"]
    return int(table.get(f"T@{group}", {}).get("0", -1))


async def everything(client: Client, count: int) -> list[Popped]:
    """So many messages, and that nothing comes behind them; all of them are acknowledged."""
    found: list[Popped] = []
    while len(found) < count:
        more = await take(client, wait_ms=5_000)
        assert (await batch_ack(client, more)).code == 0
        found += more
    assert await take(client, wait_ms=300) == []
    return found


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.parametrize("buffer", [(), ("buffer",)])
@pytest.mark.parametrize("is_saved", [False, True])
def test_killed_when_messages_are_popped(tmp_path: Path, buffer: tuple[str, ...], is_saved: bool) -> None:
    """If the offsets are in their file already, the pop is not lost for that."""

    async def scenario() -> None:
        async with killed(tmp_path, *buffer) as client:
            bodies = await fill(client, 5)
            assert len(await take(client, invisible_ms=7_000 if buffer else 2_000, most=3)) == 3
            if is_saved and not buffer:
                await until(lambda: saved_offset(tmp_path) == 3)
            elif is_saved:
                # The offsets are saved after the pop: the file has what was committed later.
                await client.heartbeat("other")
                fields = {"topic": "T", "queueId": "0", "consumerGroup": "other", "commitOffset": "1"}
                assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
                await until(lambda: saved_offset(tmp_path, "other") == 1)
        async with running(tmp_path, runtime=later(10)) as bench:
            rest = await everything(bench.client, 5)
            assert sorted(one.body for one in rest) == bodies
            if not buffer:
                # The log has the pop, so what it took comes as a retry and no sooner than it may.
                assert sorted(one.tries for one in rest) == [0, 0, 1, 1, 1]

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I13")
def test_killed_when_some_are_acknowledged_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with killed(tmp_path) as client:
            bodies = await fill(client, 6)
            found = await take(client, invisible_ms=8_000, most=6)
            assert (await ack(client, found[0])).code == 0
            assert (await batch_ack(client, found[1:3])).code == 0
            changed = found[3].changed(await change(client, found[3], 60_000))
        async with running(tmp_path, runtime=later(10)) as bench:
            # What waits for its acknowledgement can still be acknowledged.
            assert (await ack(bench.client, changed)).code == 0
            rest = await everything(bench.client, 2)
            assert [one.body for one in rest] == bodies[4:]
            assert {one.tries for one in rest} == {1}
            assert open_checks(bench) == 0

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_killed_when_acknowledged_in_memory_only(tmp_path: Path) -> None:
    """What `pop_buffer` costs: messages come again, and none is lost."""

    async def scenario() -> None:
        async with killed(tmp_path, "buffer") as client:
            bodies = await fill(client, 4)
            found = await take(client, invisible_ms=20_000, most=4)
            assert (await ack(client, found[0])).code == 0
        async with running(tmp_path, runtime=later(30)) as bench:
            rest = await take(bench.client)
            assert [one.body for one in rest] == bodies
        async with killed(tmp_path / "other", "buffer") as client:
            await fill(client, 4)
            found = await take(client, invisible_ms=20_000, most=4)
            assert (await batch_ack(client, found)).code == 0
            # All of it is done: the offset is committed, and nothing was written.
            await until(lambda: saved_offset(tmp_path / "other") == 4)
        async with running(tmp_path / "other", runtime=later(30)) as bench:
            assert bench.broker.store.max_offset(REVIVE, 0) == 0
            assert await take(bench.client) == []

    run(scenario)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_killed_when_messages_went_back(tmp_path: Path) -> None:
    """The retry and the end of its check point are one write: it does not come back twice."""

    async def scenario() -> None:
        async with killed(tmp_path) as client:
            bodies = await fill(client, 3)
            assert len(await take(client, invisible_ms=1_000)) == 3
            again = await take(client, wait_ms=25_000, most=1, invisible_ms=60_000)
            assert len(again) == 1
        async with running(tmp_path) as bench:
            assert bench.broker.store.max_offset(f"%RETRY%{GROUP}_T", 0) == 3
            rest = await everything(bench.client, 2)
            assert [one.body for one in rest] == bodies[1:]
            assert (await ack(bench.client, again[0])).code == 0

    run(scenario)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime, pop_buffer=True) as bench:
            await fill(bench.client, 4)
            found = await take(bench.client, invisible_ms=30_000)
            assert (await ack(bench.client, found[2])).code == 0
            clock.advance(10_000)
        async with running(tmp_path, runtime=runtime) as bench:
            assert open_checks(bench) == 1
            assert bench.broker.offsets.query(GROUP, "T", 0) == 4
            assert await take(bench.client) == []
            assert (await ack(bench.client, found[0])).code == 0
            clock.advance(19_990)
            turn(bench)
            assert await take(bench.client) == []
            clock.advance(10)
            turn(bench)
            rest = await take(bench.client)
            assert [one.body for one in rest] == [found[1].body, found[3].body]

    run(scenario)


@pytest.mark.fault("F10")
def test_a_clock_that_was_set_back_does_not_keep_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        runtime = Runtime(clock=clock)
        async with running(tmp_path, runtime=runtime) as bench:
            await fill(bench.client, 1)
            await take(bench.client, invisible_ms=30_000)
        clock.jump(-3_600_000)
        async with running(tmp_path, runtime=runtime) as bench:
            clock.advance(30_000)
            turn(bench)
            assert len(await take(bench.client)) == 1

    run(scenario)


def test_offsets_are_committed_when_the_pop_is_on_disk(tmp_path: Path) -> None:
    """Else a power loss could take the pop and leave the offset: the messages would be lost."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 3)
            bench.broker.store.flush()
            found = await take(bench.client)
            store = bench.broker.store
            turn(bench)
            committed = bench.broker.offsets.query(GROUP, "T", 0)
            if store.flusher.flushed_offset < store.log.max_offset:  # nobody has flushed in between
                assert committed == 0
            await settled(bench)
            assert bench.broker.offsets.query(GROUP, "T", 0) == 3
            queue = found[0].handle.revive_queue
            assert bench.broker.offsets.query(REVIVE_GROUP, REVIVE, queue) == -1
            assert (await batch_ack(bench.client, found)).code == 0
            turn(bench)
            await settled(bench)
            # RocketMQ's way: the last record that is done with.
            last = store.max_offset(REVIVE, queue) - 1
            assert bench.broker.offsets.query(REVIVE_GROUP, REVIVE, queue) == last

    run(scenario)


def test_one_long_pop_does_not_keep_all_records_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LAG_MAX >= 1_000
    monkeypatch.setattr("penstock.broker.pop_service.LAG_MAX", 10)

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 100)
            old = await take(bench.client, most=3, invisible_ms=3_600_000)
            assert (await ack(bench.client, old[1])).code == 0
            for _ in range(97):
                [one] = await take(bench.client, most=1)
                assert (await ack(bench.client, one)).code == 0
                turn(bench)
            await settled(bench)
            await settled(bench)
            queue, store = old[0].handle.revive_queue, bench.broker.store
            committed = bench.broker.offsets.query(REVIVE_GROUP, REVIVE, queue)
            assert store.max_offset(REVIVE, queue) - committed <= 13
        async with running(tmp_path) as bench:
            assert open_checks(bench) == 1
            assert (await ack(bench.client, old[0])).code == 0
            assert is_unknown(await ack(bench.client, old[1]))
            shorter = await change(bench.client, old[2], 1_000)
            assert shorter.code == 0
            [last] = await take(bench.client, wait_ms=25_000)
            assert last.body == bodies[2]

    run(scenario)


def test_a_reset_outlives_a_restart(tmp_path: Path) -> None:
    """What was popped before it says nothing about where the group is."""

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            bodies = await fill(bench.client, 4)
            assert len(await take(bench.client)) == 4
            bench.broker.offsets.assign_reset(GROUP, "T", 0, 0)
            assert [one.body for one in await take(bench.client, most=1)] == bodies[:1]
        async with running(tmp_path) as bench:
            assert [one.body for one in await take(bench.client)] == bodies[1:]

    run(scenario)


def test_a_deleted_topic_takes_its_pops_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 5)
            assert len(await take(bench.client)) == 5
            assert (await bench.client.call(215, {"topic": "T"})).code == 0
            assert open_checks(bench) == 0
            await bench.client.send(body=b"new")
            assert [one.body for one in await take(bench.client)] == [b"new"]
        async with running(tmp_path) as bench:
            assert open_checks(bench) == 1
            await bench.client.send(body=b"newer")
            assert [one.body for one in await take(bench.client)] == [b"newer"]

    run(scenario)
