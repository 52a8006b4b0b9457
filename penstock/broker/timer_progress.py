"""How far timers have come for sure, and saving it.

Progress is a time and a queue offset: a message of the timer topic below the offset that was due by the time is
delivered; no other is known to be. It is noted every second together with the end of the log, and safe when the log
is on disk up to there and, in a set, with the replicas. Only safe progress is saved and told to replicas. Owned by
the event loop; the files are synced in a thread, and are not to be closed meanwhile (`is_busy`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.delay import FAR
from penstock.errors import StoreError
from penstock.runtime import Clock
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher
from penstock.store.timer_store import TimerStore

_LOG = logging.getLogger("penstock.broker")
_ROOM_MAY_RETURN = (errno.ENOSPC, errno.EDQUOT)


# A disk that takes longer has its progress saved later.
FLUSH_WAIT_S = 5.0


class TimerProgress(NamedTuple):
    """Messages below the offset that were due by the time are delivered."""

    read_ms: int = 0
    queue_offset: int = 0

    def covers(self, due_ms: int, queue_offset: int) -> bool:
        """Whether a message is delivered for sure."""
        return queue_offset < self.queue_offset and due_ms <= self.read_ms


class TimerSaver:
    """`reached` says how far everything is, None while that cannot be said; `doubt` is told when the files are not
    to be relied on any more."""

    def __init__(
        self,
        store: MessageStore,
        files: TimerStore,
        flusher: LoopFlusher,
        clock: Clock,
        interval_ms: int,
        reached: Callable[[], TimerProgress | None],
        doubt: Callable[[str], None],
    ) -> None:
        self._store = store
        self._files = files
        self._flusher = flusher
        self._clock = clock
        self._interval_ms = interval_ms
        self._reached = reached
        self._doubt = doubt
        self._safe = TimerProgress()
        # What is safe once the log is, up to a position, if it was not cut meanwhile: how often it had been then.
        self._unsafe: deque[tuple[int, int, TimerProgress]] = deque()
        # How far the log is safe in whatever else holds it; a member of a set says how far it is confirmed.
        self.confirmed_offset: Callable[[], int] = lambda: FAR
        self._is_dirty = False
        self.is_busy = False
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def safe(self) -> TimerProgress:
        """What is safe by now."""
        edge = min(self._store.flusher.flushed_offset, self.confirmed_offset())
        cuts = len(self._store.log.cuts)
        while self._unsafe and (self._unsafe[0][0] <= edge or self._unsafe[0][1] != cuts):
            _, known, progress = self._unsafe.popleft()
            if known == cuts:
                self._safe = progress
        return self._safe

    def follow(self, progress: TimerProgress) -> None:
        """Somebody else says how far everything is."""
        self._unsafe.clear()
        self._safe = progress
        self.changed()

    def note(self) -> None:
        """So far everything is; it is safe when the log is. Nothing is noted where nothing came or went."""
        reached = self._reached() if self._is_dirty else None
        if reached is not None:
            self._unsafe.append((self._store.log.max_offset, len(self._store.log.cuts), reached))

    def changed(self) -> None:
        """There is something to save."""
        self._is_dirty = True

    def start(self) -> None:
        self._stopping.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="save timers")

    async def stop(self) -> None:
        """Save what is left and end."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await task
            if self._is_dirty or self._unsafe:
                await self.save()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            if not self._stopping.is_set() and (self._is_dirty or self._unsafe):
                await self.save()

    async def save(self) -> None:
        """Note the progress, have the log synced as far as it rests on it, and save what is safe."""
        self.note()
        self._is_dirty = False
        if self._unsafe:
            try:
                async with asyncio.timeout(FLUSH_WAIT_S):
                    await self._flusher.flushed(self._unsafe[-1][0])
            except (StoreError, TimeoutError) as error:
                _LOG.warning("timer messages may be delivered again: %s", error)
        self.is_busy = True
        try:
            self._files.begin_save(*self.safe, self._clock.now_ms())
            await asyncio.to_thread(self._files.save)
            self._files.end_save()
        except OSError as error:
            self._is_dirty = True
            _LOG.error("saving the timers failed, and is tried again: %s", error)
            if error.errno not in _ROOM_MAY_RETURN:
                # What a failed sync has lost nobody knows.
                self._doubt("a sync failed")
        finally:
            self.is_busy = False
