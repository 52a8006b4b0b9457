"""Keeping a file up with a table: one write at a time, never in the loop, never fatal, finished on stop."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from penstock.broker.saving import TableSaver
from penstock.errors import DiskFullError
from penstock.metadata.fastjson import JsonObject
from penstock.runtime import SystemClock
from tests.waiting import turns, until


class Table:
    """A number that changes."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def to_json(self) -> JsonObject:
        return {"value": self.value}


class RecordingFile:
    """Keeps what it is told to save; slow and failing on demand."""

    def __init__(self) -> None:
        self.path = Path("table.json")
        self.saved: list[object] = []
        self.threads: set[str] = set()
        # Cleared: a save waits.
        self.may_end = threading.Event()
        self.may_end.set()
        self.error: Exception | None = None
        self.tries = 0
        self.at_once = 0
        self.most_at_once = 0

    def save(self, content: JsonObject) -> None:
        self.tries += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.threads.add(threading.current_thread().name)
        try:
            assert self.may_end.wait(60)
            if self.error is not None:
                raise self.error
            self.saved.append(content["value"])
        finally:
            self.at_once -= 1


class Bench:
    def __init__(self, interval_ms: int = 0) -> None:
        self.table = Table()
        self.file = RecordingFile()
        self.saver = TableSaver(
            self.file,  # type: ignore[arg-type]
            lambda: Table(self.table.value),
            SystemClock(),
            interval_ms=interval_ms,
        )

    def change(self) -> None:
        self.table.value += 1
        self.saver.changed()


def test_a_change_is_saved_soon_and_not_in_the_loop() -> None:
    async def life() -> None:
        bench = Bench()
        bench.saver.start()
        bench.change()
        await until(lambda: bench.file.saved == [1])
        await until(lambda: bench.saver.is_clean)
        assert threading.current_thread().name not in bench.file.threads
        await bench.saver.stop()
        assert bench.file.saved == [1]

    asyncio.run(life())


def test_many_changes_are_few_saves_and_never_two_at_once() -> None:
    async def life() -> None:
        bench = Bench()
        bench.saver.start()
        for _ in range(100):
            bench.change()
            await asyncio.sleep(0)
        assert await bench.saver.save()
        assert bench.file.saved[-1] == 100
        await asyncio.gather(*(bench.saver.save() for _ in range(5)))
        bench.change()
        await asyncio.gather(*(bench.saver.save() for _ in range(5)), bench.saver.stop())
        assert bench.file.saved[-1] == 101
        assert len(bench.file.saved) < 30
        assert bench.file.most_at_once == 1

    asyncio.run(life())


def test_the_loop_goes_on_while_a_slow_disk_is_written() -> None:
    async def life() -> None:
        bench = Bench()
        bench.file.may_end.clear()
        bench.saver.start()
        bench.change()
        # The loop sees the write begin, and not end: the one does not wait for the other.
        await until(lambda: bench.file.at_once == 1)
        assert not bench.saver.is_clean
        bench.file.may_end.set()
        await until(lambda: bench.saver.is_clean)
        await bench.saver.stop()

    asyncio.run(life())


def test_who_waits_is_told_when_the_file_holds_the_change() -> None:
    async def life() -> None:
        bench = Bench(interval_ms=60_000)
        bench.saver.start()
        bench.change()
        assert await bench.saver.save()
        bench.change()  # the pause of a minute does not hold up who waits
        assert await bench.saver.save()
        assert bench.file.saved == [1, 2]
        await bench.saver.stop()

    asyncio.run(life())


def test_between_saves_there_is_the_interval_and_stopping_saves_the_rest() -> None:
    async def life() -> None:
        bench = Bench(interval_ms=60_000)
        bench.saver.start()
        bench.change()
        await until(lambda: bench.saver.is_clean)
        bench.change()
        await turns()
        assert bench.file.saved == [1]
        await bench.saver.stop()
        assert bench.file.saved == [1, 2]

    asyncio.run(life())


@pytest.mark.fault("F4")
def test_a_failing_save_is_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.saving.RETRY_MS", 5)

    async def life() -> None:
        bench = Bench()
        bench.file.error = DiskFullError("no space", "free some")
        bench.saver.start()
        bench.change()
        assert not await bench.saver.save()
        assert "no space" in bench.saver.failure
        before = bench.file.tries
        await until(lambda: bench.file.tries > before + 2)
        bench.file.error = None
        await until(lambda: bench.saver.is_clean)
        assert bench.saver.failure == ""
        assert bench.file.saved == [1]
        await bench.saver.stop()

    with caplog.at_level(logging.WARNING):
        asyncio.run(life())
    assert caplog.text.count("no space") == 1


def test_a_failing_last_save_does_not_hold_up_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def life() -> None:
        bench = Bench()
        bench.saver.start()
        bench.file.error = RuntimeError("broken")
        bench.change()
        await bench.saver.stop()
        assert not bench.saver.is_clean

    asyncio.run(life())
    assert "broken" in caplog.text


def test_without_a_task_saving_works_too() -> None:
    async def life() -> None:
        bench = Bench()
        assert await bench.saver.save()
        bench.change()
        assert await bench.saver.save()
        assert bench.file.saved == [1]
        bench.change()
        bench.saver.start()  # what changed before is written at once
        await until(lambda: bench.saver.is_clean)
        await bench.saver.stop()
        bench.saver.start()
        bench.change()
        await bench.saver.stop()
        assert bench.file.saved == [1, 2, 3]

    asyncio.run(life())
