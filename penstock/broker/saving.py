"""Keeps one config file up with one table in memory, without holding up the event loop.

Rules. The owner calls `changed` after each change. A task takes a snapshot in the loop, which must be cheap, and
writes it in a thread; there is never more than one write of a file at a time, because only that task writes.
After a write it pauses, at least ten times as long as the write took, so that a table that changes all the
time costs little. A failing write is logged and tried again; it never ends the task or the broker. `stop`
writes what is left. It never decides what the table holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.errors import PenstockError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import JsonObject
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.broker")
RETRY_MS = 1_000
PAUSE_FACTOR = 10


class Snapshot(Protocol):
    """A table that nobody changes any more; turned into JSON in the writing thread."""

    def to_json(self) -> JsonObject: ...


class TableSaver:
    """One file and the task that writes it. Belongs to the event loop."""

    def __init__(
        self, file: ConfigFile, snapshot: Callable[[], Snapshot], clock: Clock, *, interval_ms: int = 0
    ) -> None:
        self.file = file
        self._snapshot = snapshot
        self._clock = clock
        self._interval_ms = interval_ms
        self._changes = 0
        self._saved = 0
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._wake: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        # What the last write failed with, empty if it did not.
        self.failure = ""
        # Told after each write, whatever came of it, of how many changes were made before it.
        self.on_written: list[Callable[[int], None]] = []

    @property
    def is_clean(self) -> bool:
        """Whether the file holds what the table holds."""
        return self._saved == self._changes

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def changed(self, *, hurry: bool = False) -> int:
        """The table is not what the file says any more; the number of this change. `hurry`: somebody waits."""
        self._changes += 1
        if self._wake is not None and self._hurry is not None:
            self._wake.set()
            if hurry:
                self._hurry.set()
        return self._changes

    def start(self) -> None:
        """Begin to write; what changed before is written at once."""
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._stopping = False
        if not self.is_clean:
            self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"save {self.file.path.name}")

    async def stop(self) -> None:
        """Write what is left and end."""
        task, self._task = self._task, None
        if task is not None and self._wake is not None and self._hurry is not None:
            self._stopping = True
            self._wake.set()
            self._hurry.set()
            await task
        await self._write()
        self._wake = self._hurry = None

    async def save(self) -> bool:
        """Wait until the file holds the table as it is now; False if that failed, and is tried again later."""
        if self.is_clean:
            return True
        if self._task is None or self._wake is None or self._hurry is None:
            return await self._write()
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._changes, waiter))
        self._wake.set()
        self._hurry.set()
        return await waiter

    async def _run(self) -> None:
        if self._wake is None or self._hurry is None:
            return
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            started_ms = self._clock.monotonic_ms()
            if await self._write():
                took_ms = self._clock.monotonic_ms() - started_ms
                pause_ms = max(self._interval_ms, took_ms * PAUSE_FACTOR)
            else:
                pause_ms = max(self._interval_ms, RETRY_MS)
                self._wake.set()
            await self._pause(self._hurry, pause_ms)

    async def _pause(self, hurry: asyncio.Event, pause_ms: int) -> None:
        if not self._waiters:
            hurry.clear()
        if self._stopping:
            return
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await hurry.wait()
        except TimeoutError:
            pass

    async def _write(self) -> bool:
        if self.is_clean:
            return True
        goal = self._changes
        try:
            table = self._snapshot()
            await asyncio.to_thread(lambda: self.file.save(table.to_json()))
        except PenstockError as error:
            self._failed(str(error))
        except Exception as error:
            _LOG.exception("saving %s failed", self.file.path.name)
            self._failed(repr(error))
        else:
            self.failure = ""
            self._saved = goal
        is_saved = not self.failure
        for listener in self.on_written:
            listener(goal)
        waiters, self._waiters = self._waiters, []
        for wanted, waiter in waiters:
            if wanted > goal:
                self._waiters.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(is_saved)
        return is_saved

    def _failed(self, reason: str) -> None:
        if reason != self.failure:  # once for each trouble, not once a second
            _LOG.error("%s; tried again until it works", reason)
        self.failure = reason
