"""Power loss with timers: before any change of the disk, whatever survives of it.

A store with its timer service, without sockets: messages for four moments, one of them recalled, saves in between.
After each cut the next life must deliver what was acknowledged, at its time and not before, nothing more than twice,
and once what was delivered before a save; and never what was recalled. No test here waits for anything.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import timer_times as times
from penstock.broker.flow_control import FlowControl
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.timers import RECALL_TAG
from penstock.broker.statistics import Statistics
from penstock.broker.timer import TimerService
from penstock.broker.writing import MessageWriter
from penstock.errors import PenstockError
from penstock.message import Message
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.runtime import Disk, Runtime, SeededEntropy
from penstock.store import Durability, FlushMode, MessageStore
from penstock.store.layout import StorePaths
from penstock.store.loop_flush import LoopFlusher
from penstock.testing import FaultyDisk, Keep, ManualClock, keep_random_blocks, lose_unsynced
from penstock.testing.scratch_disk import ScratchDisk
from tests.support.store_checks import faulty, small_options

TOPIC = "orders"
DUE_MS = {b"first": 2_500, b"second": 4_200, b"recalled": 4_700, b"far": 100_000}
TURNS_MAX = 1_000


@dataclass
class Program:
    """What a program knows: what it was told is stored or recalled, and what it saw delivered before a save."""

    stored: set[bytes] = field(default_factory=set)
    has_recalled: bool = False
    settled: set[bytes] = field(default_factory=set)


class Life:
    """One life of a store with its timers, on a clock that goes on from life to life."""

    def __init__(self, folder: Path, clock: ManualClock, disk: Disk | None = None) -> None:
        runtime = Runtime(clock=clock, disk=disk or ScratchDisk())
        options = BrokerOptions(port=0, timer_log_file_bytes=5_200)
        store_options = small_options(flush_mode=FlushMode.SYNC, max_message_size_bytes=4_000)
        self.clock = clock
        self.store = MessageStore.open(folder, store_options, runtime=runtime, background=False)
        try:
            self.flusher = LoopFlusher(self.store)
            flow = FlowControl(options, store_options, clock)
            writer = MessageWriter(self.store, self.flusher, flow, Statistics(clock, "c"), clock)
            paths = StorePaths(folder)
            self.timers = TimerService(options, self.store, writer, self.flusher, runtime, paths)
            self.timers.load()
        except BaseException:
            self.store.abandon()
            raise

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def inside() -> None:
            self.flusher.start()
            try:
                self.timers.start()
                await work()
            finally:
                self.flusher.stop()

        try:
            asyncio.run(inside())
        finally:
            self.timers.files.close()
            self.store.abandon()

    def put(self, body: bytes, due_ms: int, **properties: str) -> None:
        pairs = {**properties, **times.waiting(due_ms, TOPIC, 0)}
        self.store.append(Message(WHEEL_TIMER_TOPIC, body, pairs), durability=Durability.FLUSHED)

    def turns(self, advance_ms: int = 0) -> None:
        """What is to be done at this time."""
        self.clock.advance(advance_ms)
        timers, before = self.timers, None
        for _ in range(TURNS_MAX):
            after = (timers.files.queue_offset, len(timers.due), timers.due.loaded_to, timers.delivered)
            if after == before:
                self.store.flush()
                return
            before = after
            timers.work()
        raise AssertionError("the timers never rest")

    def delivered(self, start_ms: int) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        for message in self.store.read(TOPIC, 0, 0, 1_000):
            assert message.store_timestamp >= start_ms + DUE_MS[message.body], "it came early"
            found[message.body] += 1
        return found


async def save(life: Life, program: Program, start_ms: int) -> None:
    """What was delivered before a save that worked must not come again."""
    delivered = life.delivered(start_ms).keys()
    await life.timers.saver.save()
    if not life.timers.saver._is_dirty:
        program.settled |= delivered


async def live(life: Life, program: Program, start_ms: int) -> None:
    for body, after_ms in DUE_MS.items():
        life.put(body, start_ms + after_ms, UNIQ_KEY=body.decode())
        program.stored.add(body)
    life.turns()
    await save(life, program, start_ms)
    life.turns(2_000)
    life.turns(1_000)
    await save(life, program, start_ms)
    key = times.recall_key(TOPIC, "recalled")
    life.put(b"0", start_ms + DUE_MS[b"recalled"], TAGS=RECALL_TAG, UNIQ_KEY="R", **{times.RECALLS: key})
    program.has_recalled = True
    life.turns(500)
    await save(life, program, start_ms)
    life.turns(1_000)
    life.turns(1_000)
    await save(life, program, start_ms)


def check(folder: Path, clock: ManualClock, program: Program, start_ms: int) -> None:
    """The next life, and one more after it."""

    async def go_on() -> None:
        for _ in range(4):
            life.turns(3_000)
        found = life.delivered(start_ms)
        for body in program.stored - {b"recalled", b"far"}:
            assert 1 <= found[body] <= 2, (body, found)
        for body in program.settled:
            assert found[body] == 1, (body, found)
        if program.has_recalled:
            assert found[b"recalled"] == 0, found
        assert found[b"far"] == 0
        assert life.timers.skipped == 0
        await life.timers.saver.save()

    async def end() -> None:
        while clock.now_ms() < start_ms + DUE_MS[b"far"] + 2_000:
            life.turns(20_000)
        again = life.delivered(start_ms)
        assert (b"far" in again) or b"far" not in program.stored
        assert again[b"far"] <= 1
        # What was saved does not come again.
        assert {body: count for body, count in again.items() if body != b"far"} == before

    life = Life(folder, clock)
    life.run(go_on)
    life = Life(folder, clock)
    before = {body: count for body, count in life.delivered(start_ms).items() if body != b"far"}
    life.run(end)


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1", "I8")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("keep", "names_are_lost"),
    [(lose_unsynced, True), (None, False)],
    ids=["lose-names", "random"],
)
def test_the_power_may_go_before_any_change_of_the_disk(
    tmp_path: Path, keep: Keep | None, names_are_lost: bool
) -> None:
    failures: dict[int, str] = {}
    changes, seen = 0, set()
    while True:
        folder, program, clock = tmp_path / str(changes), Program(), ManualClock()
        start_ms = clock.now_ms()
        disk: FaultyDisk = faulty(folder, lose_directory_entries=names_are_lost)
        disk.stop_after(changes)
        try:
            life = Life(folder, clock, disk)
            life.run(lambda life=life, program=program, at=start_ms: live(life, program, at))  # type: ignore[misc]
        except (PenstockError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        disk.crash(keep or keep_random_blocks(SeededEntropy(changes)))
        seen.add((len(program.stored), program.has_recalled, len(program.settled)))
        try:
            check(folder, clock, program, start_ms)
        except Exception as error:
            failures[changes] = f"{type(error).__name__}: {error}"[:400]
        shutil.rmtree(folder, ignore_errors=True)
        if finished:
            break
        changes += 1
    assert not failures, f"{len(failures)} of {changes} cuts: {dict(list(failures.items())[:5])}"
    assert {(0, False, 0), (4, False, 0), (4, True, 1), (4, True, 2)} <= seen
    assert changes > 20
