"""Delayed messages: kept in the schedule topic, one queue per delay level, stored again when they are due.

    DELAY=n  ->  SCHEDULE_TOPIC_XXXX, queue n-1; the queue entry holds the due time instead of a tag code
    due      ->  REAL_TOPIC, REAL_QID; body, properties, born time and tries as they were

Rules. Never early (I8): the time is the wall clock of the start moved on by the monotonic clock, and where the
store's clock was set while it ran, its messages are measured by what it said then (F10). One timer per level;
each turn stores a bounded number of messages, so that a flood of due messages is no pause for others. How far
each level has come is saved every few seconds, and only what is on disk is called done: a crash delivers
again what it has to, and loses nothing. A message that cannot be read or stored is skipped and said so; it
never holds up those behind it. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest
from penstock.broker.delayed_copies import copy_of
from penstock.broker.flow_control import BusyError
from penstock.broker.options import BrokerOptions
from penstock.broker.record_gate import record_of_entry
from penstock.broker.stored_table import StoredTable
from penstock.broker.table_journal import TableJournal
from penstock.broker.writing import MessageWriter
from penstock.errors import PenstockError, StoreError
from penstock.metadata.offset_table import DelayOffsetTable
from penstock.metadata.table_json import Members
from penstock.protocol.topic_names import SCHEDULE_TOPIC
from penstock.runtime import Clock, Runtime
from penstock.store import MessageStore
from penstock.store.consume_queue import Entry
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.broker")
MESSAGES_PER_TURN = 64
BYTES_PER_TURN = 1 << 20
RETRY_MS = 1_000
# A level is looked at this often even if nothing seems due: clocks may be set.
LOOK_MS = 10_000
# A store's clock that is ahead by no more than this is taken for right; one that is behind never is.
SHIFT_MS = 500
FAR = 1 << 62


class SteadyTime:
    """The wall clock as it would be if nobody had set it since the start; rounded so that it is never ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_ms = clock.now_ms() - clock.monotonic_ms() - 1

    def now_ms(self) -> int:
        return self._base_ms + self._clock.monotonic_ms()


class Level:
    """One delay level: its queue, how far it has come, and when the store's clock was off."""

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = 0
        self.timer: asyncio.TimerHandle | None = None
        # Messages below this offset were there at the start, and are due one delay after it at the latest.
        self.known = 0
        self.known_due_ms = 0
        # Messages below this offset may be looked at: it is known by which clock they were stored.
        self.seen = 0
        # (first offset, how far the store's clock was ahead of steady time for messages from there on)
        self._shifts: deque[tuple[int, int]] = deque()

    @property
    def queue_id(self) -> int:
        return self.number - 1

    def begin(self, offset: int, end: int, now_ms: int) -> None:
        """Take up where the last run ended; the queue has messages up to `end`."""
        self.offset, self.known, self.seen = offset, end, end
        self._shifts.clear()
        self.known_due_ms = now_ms + self.delay_ms

    def due_ms(self, offset: int, entry: Entry) -> int:
        """When the message at an offset is due, in steady time. Asked in the order of offsets."""
        shifts = self._shifts
        while len(shifts) > 1 and shifts[1][0] <= offset:
            shifts.popleft()
        due_ms = entry.tags_code - (shifts[0][1] if shifts and shifts[0][0] <= offset else 0)
        return min(due_ms, self.known_due_ms) if offset < self.known else due_ms

    def note(self, end: int, shift_ms: int) -> None:
        """Messages up to `end` have arrived while the store's clock was ahead by so much."""
        last = self._shifts[-1][1] if self._shifts else 0
        if end > self.seen and (shift_ms < last or shift_ms > last + SHIFT_MS):
            self._shifts.append((self.seen, shift_ms))
        self.seen = max(self.seen, end)


class DelayService:
    """See the module's text. `load`, then `start`; `stop` before the store is closed."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        flusher: LoopFlusher,
        runtime: Runtime,
        journal: TableJournal,
    ) -> None:
        self._store = store
        self._writer = writer
        self._flusher = flusher
        self._time = SteadyTime(runtime.clock)
        self._table = DelayOffsetTable()
        self._wall = runtime.clock
        self.levels = [Level(place + 1, delay_ms) for place, delay_ms in enumerate(store.options.delays_ms)]
        # What the file may say, and what it may say once the log is on disk up to a position: level and offset.
        self._safe: dict[int, int] = {}
        self._unsafe: deque[tuple[int, int, int]] = deque()
        # How far the log is safe in whatever else holds it; a member of a set says how far it is confirmed.
        self.confirmed_offset: Callable[[], int] = lambda: FAR
        # Set while messages are delivered: a replica leaves that to its master.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self.delivered = 0
        self.skipped = 0
        self.stored = StoredTable(
            journal,
            DelayOffsetTable.FILE_NAME,
            self._to_save,
            runtime.clock,
            interval_ms=options.delay_save_interval_ms,
        )

    # -- lifecycle -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read how far each level had come. Raises CodecError if there is a file but none readable."""
        loaded = self.stored.load(DelayOffsetTable)
        if loaded is not None:
            self._table = loaded
        self._store.on_arrival(self._on_arrival)
        self._begin_levels()

    def _begin_levels(self) -> None:
        for level in self.levels:
            end = self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)
            level.begin(max(self._table.offsets.get(level.number, 0), 0), end, self._time.now_ms())
        self._safe = dict(self._table.offsets)
        self._unsafe.clear()

    def follow(self, table: DelayOffsetTable) -> None:
        """A master has come so far; nothing is delivered here meanwhile."""
        if table.offsets != self._table.offsets or table.data_version != self._table.data_version:
            self._table = DelayOffsetTable(table.data_version, dict(table.offsets), self._table.extra)
            self._safe = dict(table.offsets)
            self.stored.changed(self._table.change_of())

    def start(self) -> None:
        """Begin to deliver, from where the table says."""
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._begin_levels()
        if not self.stored.is_running:
            self.stored.start()
        for level in self.levels:
            self._plan(level, 0)

    def pause(self) -> None:
        """Deliver nothing any more, until the next start."""
        self._loop = None
        self._table.offsets = {**self._table.offsets, **self._reached()}
        for level in self.levels:
            if level.timer is not None:
                level.timer.cancel()
                level.timer = None

    async def stop(self) -> None:
        """End and save; what is due later is found again at the next start."""
        if self._loop is not None:
            self.pause()
        if self._unsafe:
            try:
                await self._flusher.flushed(self._unsafe[-1][0])
                self.stored.changed()
            except StoreError as error:
                _LOG.warning("delayed messages may be delivered again: %s", error)
        self._settle()
        await self.stored.stop()

    def _to_save(self) -> Members:
        """What is on disk; the rest is looked at again a little later."""
        table = self._table
        self._settle()
        if self._unsafe and self._loop is not None:
            self._loop.call_later(RETRY_MS / 1000, self.stored.changed)
        if not self.stored.is_clean and self._loop is not None:
            table.data_version = table.data_version.next(self._wall.now_ms())
        table.offsets = dict(self._safe)
        return table.members()

    def offsets(self) -> DelayOffsetTable:
        """How far each level has come now."""
        current = self._reached() if self._loop is not None else {}
        return DelayOffsetTable(
            self._table.data_version, {**self._table.offsets, **current}, self._table.extra
        )

    def progress(self) -> DelayOffsetTable:
        """How far each level has come for sure: whoever has the log so far need not deliver that again."""
        self._settle()
        return DelayOffsetTable(self._table.data_version, dict(self._safe), self._table.extra)

    def _reached(self) -> dict[int, int]:
        return {level.number: level.offset for level in self.levels if level.offset}

    # -- arrivals --------------------------------------------------------------------------------------------

    def _on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Called by the store, in any thread."""
        for queue in queues:
            if queue.scheduled and self._loop is not None:
                stored_ms, end = self._store.log.last_timestamp, queue.end_offset
                if threading.get_ident() == self._loop_thread:
                    self._arrived(queue.queue_id, end, stored_ms)
                else:
                    self._loop.call_soon_threadsafe(self._arrived, queue.queue_id, end, stored_ms)

    def _arrived(self, queue_id: int, end: int, stored_ms: int) -> None:
        if self._loop is None or queue_id >= len(self.levels):
            return
        level = self.levels[queue_id]
        was_empty = level.offset >= level.seen
        level.note(end, stored_ms - self._time.now_ms())
        if was_empty:
            self._plan(level, 0)

    # -- turns -----------------------------------------------------------------------------------------------

    def _plan(self, level: Level, delay_ms: int) -> None:
        if self._loop is None:
            return
        if level.timer is not None:
            level.timer.cancel()
        level.timer = self._loop.call_later(min(delay_ms, LOOK_MS) / 1000, self.turn, level)

    def turn(self, level: Level) -> None:
        """Store what is due of one level, at most so much, and plan the next turn."""
        level.timer = None
        try:
            self._plan(level, self.deliver(level))
        except PenstockError as error:
            _LOG.warning("delay level %d waits: %s", level.number, error)
            self._plan(level, RETRY_MS)
        except Exception:
            _LOG.exception("delay level %d failed; it goes on", level.number)
            self._plan(level, RETRY_MS)

    def deliver(self, level: Level) -> int:
        """How long to wait for the next turn."""
        low, high = self._store.min_offset(SCHEDULE_TOPIC, level.queue_id), level.seen
        if level.offset < low:
            _LOG.warning("delay level %d: offsets %d to %d are gone", level.number, level.offset, low)
            level.offset = low
        if level.offset > high:
            _LOG.warning("delay level %d had come to %d of %d", level.number, level.offset, high)
            level.offset = high
        wanted = min(MESSAGES_PER_TURN, high - level.offset)
        entries = self._store.reader.entries(SCHEDULE_TOPIC, level.queue_id, level.offset, wanted)
        now_ms, size = self._time.now_ms(), 0
        wait_ms = LOOK_MS if not entries or level.offset + len(entries) >= high else 0
        due: list[AppendRequest | None] = []
        for place, entry in enumerate(entries):
            due_ms = now_ms if entry.is_filler else level.due_ms(level.offset + place, entry)
            size += 0 if entry.is_filler else entry.size
            if due_ms > now_ms or (due and size > BYTES_PER_TURN):
                wait_ms = max(due_ms - now_ms, 0)
                break
            try:
                due.append(self._ready(entry, level))
            except BusyError:
                if not due:
                    raise
                wait_ms = 0
                break  # those before it go first
        self._store_again(level, due)
        return wait_ms

    def _ready(self, entry: Entry, level: Level) -> AppendRequest | None:
        """The message of an entry made ready for its real topic; None if there is none that could be stored."""
        record = record_of_entry(self._store, entry, SCHEDULE_TOPIC, level.queue_id)
        if record is None:
            self.skipped += 1
            if not entry.is_filler:
                _LOG.error("the delayed message at log position %d cannot be read; skipped", entry.position)
            return None
        try:
            return copy_of(record, self._writer)
        except BusyError:
            raise  # there is no room for its queue now; there may be later
        except (PenstockError, ValueError) as error:
            self.skipped += 1
            _LOG.error("the delayed message %s cannot be delivered: %s", record.message.message_id, error)
            return None

    def _store_again(self, level: Level, due: list[AppendRequest | None]) -> None:
        """One write for all. If it fails, the level moves on past those that were stored, and no others: what was
        delivered is not delivered again."""
        try:
            self._writer.append_copies([request for request in due if request is not None])
        finally:
            stored = 0
            for request in due:
                if request is not None and request.size == 0:
                    break
                stored += 1
                if request is not None and request.size > 0:
                    self.delivered += 1
                elif request is not None:
                    self.skipped += 1
                    _LOG.error("a message of delay level %d fits no record; skipped", level.number)
            if stored:
                level.offset += stored
                self._unsafe.append((self._store.log.max_offset, level.number, level.offset))
                self._settle()
                self.stored.changed()

    def _settle(self) -> None:
        """What the log has by now on disk, and with its replicas, the file may say."""
        safe = min(self._store.flusher.flushed_offset, self.confirmed_offset())
        is_further = False
        while self._unsafe and self._unsafe[0][0] <= safe:
            _, number, offset = self._unsafe.popleft()
            self._safe[number] = offset
            is_further = True
        if is_further:
            known = DelayOffsetTable(self._table.data_version, self._safe)
            self.stored.changed(known.change_of())
