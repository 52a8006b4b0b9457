"""Group commit for an event loop: callbacks instead of waiting, one thread that only syncs.

The loop asks with `when_flushed`; a thread runs fdatasync without the interpreter lock and wakes the loop through
a descriptor. While a sync runs, further requests gather; the next sync serves them all. No future and no task is
made per message: a caller registers one callback for everything it appended.

Owned by the loop's thread. A failed sync is final here as everywhere (`store/flush.py`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable

from penstock._hot.flush import SyncThread
from penstock.errors import StoreClosedError, StoreError
from penstock.store.message_store import MessageStore
from penstock.store.segment import Segment

Callback = Callable[[StoreError | None], None]


class LoopFlusher:
    """`start` and `stop` are called in the loop that uses it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        # Position, how often the log had been cut then, and whom to tell.
        self._waiting: deque[tuple[int, int, Callback]] = deque()
        self._work: list[tuple[Segment, int]] = []
        self._cuts = 0
        self._busy: tuple[Segment, int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = self._done = -1
        self._sync: SyncThread | None = None
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake, self._done = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
        self._sync = SyncThread(self._wake, self._done)
        self._loop.add_reader(self._done, self._finished)
        self._thread = threading.Thread(target=self._run, name="penstock-group-commit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; callbacks still waiting are told that the store is closed."""
        if self._loop is None or self._sync is None or self._thread is None:
            return
        self._sync.stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._loop.remove_reader(self._done)
        os.close(self._wake)
        os.close(self._done)
        self._loop = None
        self._drop_work()
        if self._busy is not None:
            self._store.flusher.drop(self._busy[0])
            self._busy = None
        waiting, self._waiting = self._waiting, deque()
        for _, _, callback in waiting:
            callback(StoreClosedError("the store was closed before the flush", "the outcome is unknown"))

    def when_flushed(self, position: int, callback: Callback) -> None:
        """Call back in the loop once the log is on disk up to `position`, with None, or with the failure."""
        flusher = self._store.flusher
        if flusher.failure is not None:
            callback(flusher.failure)
        elif flusher.flushed_offset >= position:
            callback(None)
        elif self._store.log.cuts and position > self._store.log.max_offset:
            callback(flusher.was_cut(position))
        elif self._loop is None:
            callback(StoreClosedError("group commit is not running", "call start first"))
        else:
            self._waiting.append((position, len(self._store.log.cuts), callback))
            self._next()

    def flushed(self, position: int) -> asyncio.Future[None]:
        """The same as a future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: StoreError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_flushed(position, settle)
        return future

    def _next(self) -> None:
        """Hand the next segment to the thread, if it is idle and there is one."""
        if self._busy is not None or self._sync is None:
            return
        if not self._work and self._waiting:
            self._cuts = len(self._store.log.cuts)
            self._work = self._store.flusher.take_work()
            if not self._work and self._loop is not None:
                # Another thread has synced what they wait for, since they asked. Never from inside `when_flushed`.
                self._loop.call_soon(self._serve)
        if self._work:
            self._busy = self._work.pop(0)
            self._sync.fd = self._busy[0].file.fd
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        """The thread: compiled and without the interpreter lock, unless syncs have to go through the disk door
        (fault injection has no descriptor to give away)."""
        os.eventfd_read(self._wake)
        if self._sync is not None and (self._busy is None or self._busy[0].file.fd >= 0):
            os.eventfd_write(self._wake, 1)  # only looked at: it is the compiled loop's to take
            self._sync.run()
            return
        while self._sync is not None and not self._sync.stopping and self._busy is not None:
            try:
                self._busy[0].file.sync()
            except OSError as error:
                self._error = error
            os.eventfd_write(self._done, 1)
            os.eventfd_read(self._wake)

    def _finished(self) -> None:
        """In the loop: a sync is over. Tell everybody it served, then start the next one."""
        os.eventfd_read(self._done)
        if self._busy is None or self._sync is None:
            return
        segment, target = self._busy
        self._busy = None
        flusher = self._store.flusher
        error = self._error or (
            OSError(self._sync.error, os.strerror(self._sync.error)) if self._sync.error else None
        )
        flusher.drop(segment)
        if error is not None:
            flusher.fail(segment, error)
        else:
            flusher.done(segment, target, self._cuts)
        self._serve()

    def _serve(self) -> None:
        """Tell everybody whose bytes are on disk by now, whoever synced them; then go on."""
        if self._loop is None:
            return
        failure, cuts = self._store.flusher.failure, len(self._store.log.cuts)
        if failure is not None:
            self._drop_work()
            waiting, self._waiting = self._waiting, deque()
            for _, _, callback in waiting:
                callback(failure)
            return
        if self._cuts != cuts or (self._waiting and self._waiting[0][1] != cuts):
            self._after_cut()
        self._store.confirm()
        flushed = self._store.flusher.flushed_offset
        while self._waiting and self._waiting[0][0] <= flushed:
            self._waiting.popleft()[2](None)
        self._next()

    def _drop_work(self) -> None:
        work, self._work = self._work, []
        for segment, _ in work:
            self._store.flusher.drop(segment)

    def _after_cut(self) -> None:
        """The log was cut while a sync ran: who waits for what is gone is told, the others wait for the next sync."""
        self._drop_work()
        cuts = self._store.log.cuts
        waiting, self._waiting = self._waiting, deque()
        for position, known, callback in waiting:
            if known < len(cuts) and position > min(cuts[known:]):
                callback(self._store.flusher.was_cut(position))
            else:
                self._waiting.append((position, len(cuts), callback))
