"""The commit log: every message of every topic, in the order of arrival, in segments of one size.

Write order, on which everything else rests:
  1. records are built in memory and written with one `pwrite` at the end of the log;
  2. only then does the end of the log move, and queue offsets stay given out;
  3. a sync makes them durable (`store/flush.py`), dispatch makes them visible (`store/dispatching.py`).
A write that fails moves nothing: the offsets are taken back, and the bytes it may have left behind are zeroed
before anything is appended over them, because a stale record in the right place would pass for a new one.

One writer: the caller holds the store's append lock. Reads go through maps and need no lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import BLANK_SIZE
from penstock._hot.queues import QueueState
from penstock._hot.reads import is_zero
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.errors import (
    CodecError,
    DiskFullError,
    LogPositionError,
    MessageTooLargeError,
    StoreError,
    StoreFailedError,
    invariant,
)
from penstock.runtime import Runtime
from penstock.runtime.disk import NO_SPACE
from penstock.store.findings import Findings
from penstock.store.layout import StorePaths
from penstock.store.options import StoreOptions
from penstock.store.segment import Segment
from penstock.store.segment_table import SegmentTable

_ZEROS = bytes(1 << 20)
WRITE_FAILED = -2


class CommitLog(SegmentTable):
    """Segments by position; the last one that has data is being written, all are read."""

    def __init__(
        self,
        runtime: Runtime,
        paths: StorePaths,
        options: StoreOptions,
        findings: Findings,
        store_host: bytes,
        dispatcher: Dispatcher,
        *,
        read_only: bool,
    ) -> None:
        super().__init__(runtime, paths, options, findings, read_only=read_only)
        self.last_timestamp = 0
        self._dispatcher = dispatcher
        self._active: Segment | None = None
        # The next segment, made ahead and not in the table yet. Whoever makes one holds the lock: an append that
        # needs it sooner waits for what the keeper has begun instead of beginning again. Taken after the append
        # lock, and nothing is taken under it.
        self._prepared: Segment | None = None
        self._making = threading.Lock()
        self._builder = RecordBuilder(store_host, self._largest_body(), options.seal_records)
        self._stale_end = 0
        self._now_ms = runtime.clock.now_ms
        # Where the log was cut since it was opened, newest last. Whoever works without the lock compares the number.
        self.cuts: list[int] = []
        # Called after a write that was not of one run of requests: those the dispatcher saw.
        self.on_built: Callable[[RecordBuilder], None] = lambda builder: None

    def _largest_body(self) -> int:
        return min(self._options.max_message_size_bytes, self.segment_size - BLANK_SIZE)

    @property
    def active(self) -> Segment | None:
        return self._active

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, requests: Sequence[AppendRequest]) -> None:
        """Append many messages, in order, with one write per segment they touch.

        Each request says afterwards where it went; one that no record can hold has size -1 and the rest goes
        on. On an error the requests that were not written have size 0.
        """
        segment, builder = self._active, self._builder
        if segment is not None and not self._stale_end:
            base, position, now = self.max_offset, segment.position, self._now_ms()
            if now > self.last_timestamp:
                self.last_timestamp = now
            else:
                now = self.last_timestamp
            if segment.fd >= 0:
                # Built and written in one compiled call; the rest of this method is what a group costs in Python.
                room = segment.size - position
                used = self._dispatcher.append(builder, requests, base, room, now, segment.fd, position)
                if used == WRITE_FAILED:
                    error = OSError(builder.error, os.strerror(builder.error))
                    raise self._write_failed(segment, builder.used, error)
            else:
                used = builder.build(requests, base, segment.size - position, now)
                if used >= 0:
                    self._write(segment, builder.content(), 0)
                    self._dispatcher.show(requests, base, base + used)
            if used >= 0:
                segment.position = position + used
                self.max_offset = base + used
                return
        self._append_over_segments(requests)
        builder.shrink()

    def append_run(self, build: Callable[[RecordBuilder], int]) -> int:
        """Write what `build` puts into the builder, as far as the segment has room; how many messages."""
        segment, builder = self._active, self._builder
        if segment is None or self._stale_end:
            return 0
        base, position = self.max_offset, segment.position
        builder.begin(base, segment.size - position, self._now())
        count = build(builder)
        used = builder.used
        if not used:
            return count
        if segment.fd < 0:
            self._write(segment, builder.content(), used)
        elif builder.write(segment.fd, position):
            segment.position = position + used
            self.max_offset = base + used
        else:
            raise self._write_failed(segment, used, OSError(builder.error, os.strerror(builder.error)))
        self.on_built(builder)
        return count

    def _append_over_segments(self, requests: Sequence[AppendRequest]) -> None:
        """The same where a segment ends on the way, or something has to be cleared up first."""
        first = 0
        while first < len(requests):
            segment = self._writable()
            self._builder.begin(segment.end, segment.size - segment.position, self._now())
            after = self._builder.add_all(requests, first)
            full = after < len(requests)
            if full and after == first and segment.position == 0:
                requests[after].size = -1
                first = after + 1
                continue
            self._finish_run(segment, full)
            first = after

    def append_batch(
        self, queue: QueueState, batch: bytes, sys_flag: int, born_timestamp: int, born_host: bytes
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Append a client's batch as one unit in one segment: (position and size of each, first queue offset,
        store time)."""
        total = self._builder.measure_batch(queue, batch, len(born_host) + len(self._builder.store_host))
        if total < 0 or not batch:
            raise CodecError("the batch's lengths do not add up, or one of its messages is too large")
        if total + BLANK_SIZE > self.segment_size:
            raise MessageTooLargeError(f"batch takes {total} bytes, a segment has {self.segment_size}")
        segment = self._writable()
        if segment.position + total + BLANK_SIZE > segment.size:
            self._builder.begin(segment.end, 0, self._now())
            self._finish_run(segment, True)
            segment = self._writable()
        first_offset = queue.next_offset
        now = self._now()
        self._builder.begin(segment.end, segment.size - segment.position, now)
        placed = self._builder.add_batch(queue, batch, sys_flag, born_timestamp, born_host)
        self._finish_run(segment, False)
        self._builder.shrink()
        return placed, first_offset, now

    def append_raw(self, data: bytes | memoryview, position: int) -> None:
        """Append a master's bytes, cut anywhere, inside one segment, at the log's end.

        An empty log begins where the first bytes say, which has to be a segment's beginning.
        """
        if self._active is None:
            if position % self.segment_size or position < 0:
                raise LogPositionError(
                    f"a log cannot begin at {position}, inside a segment of {self.segment_size} bytes",
                    "the master's segments have another size",
                )
            self.first_base = position
        segment = self._writable()
        if segment.position == segment.size:
            segment = self._active = self._following(segment)
        if position != segment.end or segment.position + len(data) > segment.size:
            raise LogPositionError(
                f"{len(data)} bytes for position {position} do not continue the log, which ends at "
                f"{segment.end} in a segment that ends at {segment.base + segment.size}",
                "follow the master again from the log's end",
            )
        self.forget_built()
        self._write(segment, data, len(data))
        if segment.position == segment.size:
            try:
                self.roll_if_full()
            except StoreError:
                return  # these bytes are there; the next ones will find out

    def forget_built(self) -> None:
        """What the builder holds has nothing to do with the log's end any more."""
        self._builder.begin(self.max_offset, 0, self.last_timestamp)

    def roll_if_full(self) -> None:
        """Have a segment that takes the next byte: a builder must never meet one that has no room at all."""
        if self._active is not None and self._active.position == self._active.size:
            self._active = self._following(self._active)

    def _now(self) -> int:
        """Store times never go back along the log, whatever the clock does: searches by time rely on it."""
        now = self._now_ms()
        if now > self.last_timestamp:
            self.last_timestamp = now
        return self.last_timestamp

    def _writable(self) -> Segment:
        if self._active is None:
            self._active = self._create(self.first_base)
            self.max_offset = self._active.base
        if self._stale_end > self._active.end:
            self.zero(self._active.end, self._stale_end)
        self._stale_end = 0
        return self._active

    def _finish_run(self, segment: Segment, full: bool) -> None:
        """Write what was built; if the segment is full, end it and go on to the next.

        The next segment is made before this one is ended: without space for it the log stays as it is.
        """
        following: Segment | None = None
        failure: StoreError | None = None
        if full:
            try:
                following = self._following(segment)
            except StoreError as error:
                failure = error
            else:
                self._builder.add_blank(segment.size - segment.position - self._builder.used)
        if self._builder.used:
            # After its blank header a full segment's remaining bytes are not written but count as written.
            room = segment.size - segment.position
            used = self._builder.used
            self._write(segment, self._builder.content(), room if following else used)
            self.on_built(self._builder)
        if following is not None:
            self._active = following
        if failure is not None:
            raise failure

    def _write(self, segment: Segment, data: bytes | memoryview, advance: int) -> None:
        """One write at the end of the log, then, and only then, the end moves."""
        position = segment.position
        try:
            segment.file.pwrite(data, position)
        except OSError as error:
            raise self._write_failed(segment, len(data), error) from error
        segment.position = position + advance
        self.max_offset = segment.base + position + advance

    def _write_failed(self, segment: Segment, size: int, error: OSError) -> StoreError:
        """Nothing moves: the offsets are free again, and the bytes that may be there are remembered."""
        self._stale_end = max(self._stale_end, segment.end + size)
        self._builder.take_back()
        return self._failed("writing to", segment, error)

    def last_built(self) -> RecordBuilder:
        """The newest run of records in memory. Valid until the next append."""
        return self._builder

    def _following(self, segment: Segment) -> Segment:
        """The segment after this one: prepared ahead, or made now."""
        base = segment.base + segment.size
        return self.segment_of(base) or self._create(base)

    def _create(self, base: int) -> Segment:
        with self._making:
            segment, self._prepared = self._prepared, None
            if segment is None:
                try:
                    segment = Segment.create(self._runtime.disk, self._paths, base, self.segment_size)
                except OSError as error:
                    raise self._failed("making the segment after", self._active, error) from error
            invariant(segment.base == base, "only the next segment is prepared")
            self._place(segment)
            return segment

    def _failed(self, what: str, segment: Segment | None, error: OSError) -> DiskFullError | StoreFailedError:
        where = segment.path.name if segment else "the first"
        if error.errno in NO_SPACE:
            return DiskFullError(
                f"no space left {what} segment {where}", "free space; the store goes on by itself"
            )
        return StoreFailedError(f"{what} segment {where} failed: {error}", "check the disk, then restart")

    def prepare(self) -> None:
        """Make the segment that will be needed soon, without the append lock: no append waits for a folder's sync
        that it does not need yet."""
        with self._making:
            active = self._active
            if active is None or active.position * 100 < active.size * self._options.prepare_next_at_percent:
                return
            base = active.base + active.size
            if self._prepared is None and self.segment_of(base) is None:
                self._prepared = Segment.create(self._runtime.disk, self._paths, base, self.segment_size)

    # -- ends ------------------------------------------------------------------------------------------------

    def set_end(self, position: int) -> None:
        """Recovery's result: everything below `position` is the log. Later segments must be empty."""
        for segment in self.segments:
            if segment is not None:
                segment.position = min(max(position - segment.base, 0), segment.size)
                segment.flushed = segment.position
        self.max_offset = position
        self._active = self.segment_of(position)
        if self._active is None and not self._read_only and self.segments:
            self._active = self._create(position - position % self.segment_size)
            self._active.position = self._active.flushed = position % self.segment_size

    def begin_cut(self, position: int) -> None:
        """The log ends here now, as far as anybody can see. `cut` makes the files follow."""
        self.cuts.append(position)
        self.max_offset = position
        for segment in self.segments:
            if segment is not None:
                segment.position = min(segment.position, max(position - segment.base, 0))
                segment.flushed = min(segment.flushed, segment.position)
        self.forget_built()

    def cut(self, position: int) -> None:
        """Take everything from `position` on out of the files, durably.

        Later segments go, newest first; the rest of the one that holds the position becomes zero, because a stale
        record in the right place would pass for a new one.
        """
        with self._making:
            prepared, self._prepared = self._prepared, None
            if prepared is not None:
                prepared.close()
                prepared.remove(self._runtime.disk)
        for segment in [s for s in reversed(self.segments) if s is not None and s.base > position]:
            self.remove_segment(segment)
        while self.segments and self.segments[-1] is None:
            del self.segments[-1], self.views[-1]
        self._active = self.segment_of(position)
        self._stale_end = 0
        if self._active is not None:
            self.zero(position, self._active.base + self._active.size)

    def zero(self, start: int, end: int) -> int:
        """Overwrite what was ever written in [start, end) of one segment with zeros, durably; how much."""
        segment = self.segment_of(start)
        if segment is None:
            return 0
        cleared = 0
        try:
            ranges = list(
                segment.file.data_ranges(start - segment.base, min(end - segment.base, segment.size))
            )
            for low, high in ranges:
                for at in range(low, high, len(_ZEROS)):
                    size = min(len(_ZEROS), high - at)
                    if not is_zero(segment.view, at, at + size):
                        segment.file.pwrite(memoryview(_ZEROS)[:size], at)
                        cleared += size
            if cleared:
                segment.file.sync()
        except OSError as error:
            raise self._failed("clearing the end of", segment, error) from error
        return cleared

    def close(self, *, remove_unused: bool = False) -> None:
        """Close every file; after a clean stop the segments prepared but never used are deleted first."""
        if remove_unused and self._active is not None:
            for segment in [s for s in self.segments if s is not None and s.base > self._active.base]:
                self.remove_segment(segment)
        if self._prepared is not None:
            self._prepared.close()
            if remove_unused:
                self._prepared.remove(self._runtime.disk)
            self._prepared = None
        for present in self.segments:
            if present is not None:
                present.close()
        self.segments, self.views = [], []
        self._active = None
