"""Making the log durable.

Group commit without a thread: whoever needs its bytes on disk takes the flush lock; who gets it first syncs
for everybody who wrote before, and the others find their work done when their turn comes. An event loop uses
`store/loop_flush.py`, which has a thread do the same.

Rule: a failed sync is final. The kernel may have marked the lost pages clean, so a second try could succeed
without the data; therefore the flushed position never moves again, every waiter gets the error, and only a
restart, which reads and rewrites the uncertain tail, clears it.

A replica's log may be cut (`store/truncation.py`). What a sync that began before the cut covered says nothing about
the bytes that come after it: each piece of work belongs to the log as it was after so many cuts.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from penstock.errors import FlushFailedError, FlushTimeoutError, LogPositionError
from penstock.runtime import Clock
from penstock.store.commit_log import CommitLog
from penstock.store.segment import Segment
from penstock.telemetry import Meters


class LogFlusher:
    """Knows how far the log is on disk. Any thread may call it."""

    def __init__(self, log: CommitLog, clock: Clock, meters: Meters) -> None:
        self._log = log
        self._clock = clock
        self._meters = meters
        self._lock = threading.Lock()
        # Two threads may finish a sync at once (a waiter's and the event loop's): the position must not go back.
        self._moving = threading.Lock()
        self.failure: FlushFailedError | None = None
        self.flushed_offset = 0

    def recovered(self, position: int) -> None:
        """Recovery has synced everything below `position`."""
        self.flushed_offset = position

    def check(self) -> None:
        """Raise if a sync has failed."""
        if self.failure is not None:
            raise self.failure

    def flush_to(self, position: int, timeout_ms: int = -1) -> int:
        """Return once the disk has everything below `position`; how far it really has it.

        Raises FlushFailedError if a sync failed, FlushTimeoutError if others' syncs took longer than allowed.
        """
        if self.flushed_offset >= position:
            return self.flushed_offset
        if not self._lock.acquire(timeout=-1 if timeout_ms < 0 else timeout_ms / 1000):
            raise FlushTimeoutError(
                f"not flushed within {timeout_ms} ms", "the message is stored; the disk is slow or stuck"
            )
        try:
            self.check()
            if self.flushed_offset < position:
                self._sync(self._log.max_offset)
            if self.flushed_offset < position and self._log.cuts:
                raise self.was_cut(position)
            return self.flushed_offset
        finally:
            self._lock.release()

    def was_cut(self, position: int) -> LogPositionError:
        """What somebody is told who waits for bytes that are gone."""
        return LogPositionError(
            f"the log ends at {self._log.max_offset} and was cut before it was flushed to {position}",
            "what was behind that is not stored any more: send it to the master",
        )

    def pausing(self) -> AbstractContextManager[object]:
        """While this is held no waiting thread syncs."""
        return self._lock

    def cut(self, position: int) -> None:
        """The log ends here now. Taken note of before a byte is changed, so that no sync promises what is gone."""
        with self._moving:
            self._log.begin_cut(position)
            self.flushed_offset = min(self.flushed_offset, position)

    def take_work(self) -> list[tuple[Segment, int]]:
        """What has to be synced to have all of the log on disk, for a thread of its own: give each piece back with
        `done`, `fail` or `drop`."""
        with self._moving:
            work = self.unflushed(self._log.max_offset)
            for segment, _ in work:
                segment.pin()
            return work

    def drop(self, segment: Segment) -> None:
        """A piece of work is over, or not wanted any more."""
        with self._moving:
            segment.unpin()

    def unflushed(self, position: int) -> list[tuple[Segment, int]]:
        """Segments that have to be synced, oldest first, to have the log on disk up to `position`."""
        work = []
        # From the newest back, over a copy: retention may shorten the list at its other end meanwhile.
        for segment in reversed(list(self._log.segments)):
            if segment is None or segment.base >= position:
                continue
            if segment.base + segment.size <= self.flushed_offset:
                break
            target = min(position - segment.base, segment.size)
            if segment.flushed < target:
                work.append((segment, target))
        work.reverse()
        return work

    def done(self, segment: Segment, target: int, cuts: int) -> None:
        """One segment was synced, as the log was after so many cuts. Called in order, so the flushed position has no
        holes below it."""
        with self._moving:
            if cuts != len(self._log.cuts) or self.failure is not None:
                return
            segment.flushed = max(segment.flushed, target)
            self.flushed_offset = max(self.flushed_offset, segment.base + target)

    def fail(self, segment: Segment, error: OSError) -> FlushFailedError:
        """Remember a failed sync for ever."""
        if self.failure is None:
            self.failure = FlushFailedError(
                f"fsync of segment {segment.path.name} failed: {error}",
                "nothing after the last flush counts as written; check the disk, then restart",
            )
        return self.failure

    def _sync(self, position: int) -> None:
        cuts = len(self._log.cuts)
        for segment, target in self.unflushed(position):
            started = self._clock.monotonic_ns()
            try:
                segment.file.sync()
            except OSError as error:
                raise self.fail(segment, error) from error
            self._meters.record("flush_ns", self._clock.monotonic_ns() - started)
            self._meters.add("flushes")
            self.done(segment, target, cuts)
