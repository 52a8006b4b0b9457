"""Messages for arbitrary times: from the timer topic to the wheel, and from the wheel to their own topic when due.

    take    rmq_sys_wheel_timer, queue 0, in its order -> timer log and wheel; too late for that -> delivered at once
    load    the next second's messages are read from the wheel before it begins (`timer_due.py`)
    fire    at its millisecond a message is stored in REAL_TOPIC, REAL_QID; one that has to wait longer than the roll
            window is stored in the timer topic again
    save    log and wheel synced, then the checkpoint

Rules. Never early (I8), by the wall clock of the start moved on by the monotonic one (F10). Nothing is delivered
before all that was stored in the timer topic by then is taken: a recall that was answered in time must not come too
late because a publication, or a set that has to confirm it, keeps it from being read; copies could not be read
either. Progress is a time and a queue offset: a message below the offset that was due by then is delivered. Only
what is on disk, and with the replicas of a set, counts as progress: whatever happens, nothing is lost, and what
comes twice was due between the last progress that was saved and the crash, about two seconds. The files are an index
of the timer topic; damaged ones are made anew. A replica fills its wheel as far as its master has come, and delivers
nothing. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest
from penstock.broker import timer_times as times
from penstock.broker.delay import FAR, LOOK_MS, RETRY_MS, SteadyTime
from penstock.broker.flow_control import BusyError
from penstock.broker.options import BrokerOptions
from penstock.broker.timer_copies import TimerCopies
from penstock.broker.timer_due import DueMessage, DueMessages, topic_hash
from penstock.broker.timer_progress import TimerProgress, TimerSaver
from penstock.broker.timer_records import TimerMessage, timer_message
from penstock.broker.writing import MessageWriter
from penstock.errors import PenstockError
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.layout import StorePaths
from penstock.store.loop_flush import LoopFlusher
from penstock.store.timer_checkpoint import TimerCheckpoint
from penstock.store.timer_log import DEFAULT, DELETE, ROLL
from penstock.store.timer_store import TimerStore
from penstock.store.timer_wheel import NOWHERE, PRECISION_MS, TimerFilesDamagedError, slot_time

_LOG = logging.getLogger("penstock.broker")
_TOPIC_BYTES = WHEEL_TIMER_TOPIC.encode()
MESSAGES_PER_TURN = 64
BYTES_PER_TURN = 1 << 20
# Turns that have something to do follow one another with a pause in which others have their turn.
PAUSE_MS = 1
# How soon files that are just being saved may be made anew.
BUSY_MS = 50
# For how many seconds ahead it can be asked what waits.
AHEAD_S = (60, 3_600, 86_400)


class TimerService:
    """See the module's text. `load`, `run`, then `start` and `pause` as the broker becomes master and stops being it;
    `stop` before the store is closed."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        flusher: LoopFlusher,
        runtime: Runtime,
        paths: StorePaths,
    ) -> None:
        self.options = options
        self._store = store
        self._writer = writer
        self._time = SteadyTime(runtime.clock)
        # Messages move on before retention would want their segment.
        kept_ms = max(store.options.file_reserved_hours * 3_600_000 * 2 // 3, 60 * PRECISION_MS)
        self._window_ms = min(options.timer_roll_window_slots * PRECISION_MS, kept_ms)
        self._rules = times.TimerRules(self._window_ms)
        self.files = TimerStore(runtime.disk, paths, options.timer_log_file_bytes)
        self.due = DueMessages(store, self.files, self._rules, self._is_done)
        self._copies = TimerCopies(store, writer, self.due)
        self.saver = TimerSaver(
            store,
            self.files,
            flusher,
            runtime.clock,
            options.timer_save_interval_ms,
            self._progress,
            self._doubts,
        )
        # What was delivered before this run, or before the wheel was made anew.
        self._done = TimerProgress()
        self._is_leading = False
        # Why the files have to be made anew; empty if they have not.
        self._doubt = ""
        self._reached_ms = 0
        # Slots are loaded when the queue was taken up to here: what the wheel has of it would come twice.
        self._take_first = 0
        # Up to when messages may be delivered; what comes next is a time, and what must be taken before it counts.
        self._cleared_ms = 0
        self._gate: tuple[int, int] | None = None
        # If the last turn could take nothing: up to where there was something.
        self._stuck_before = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._handle: asyncio.TimerHandle | None = None
        self._planned_at = 0.0
        self.enqueued = self.delivered = 0

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    # -- questions -------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The time by which timers are measured."""
        return self._time.now_ms()

    def slot_count(self, due_ms: int) -> int:
        """How many messages wait for the second that a time is in."""
        slot = self.files.wheel.slot(times.out_ms(due_ms))
        return 0 if slot is None else slot.count

    def _progress(self) -> TimerProgress | None:
        """How far everything is, if it is further than it was known to be before."""
        offset = self.files.queue_offset
        if not self._is_leading or offset < max(self._take_first, self._done.queue_offset):
            return None
        return TimerProgress(self._reached_ms, offset)

    def checkpoint(self) -> TimerCheckpoint:
        """What a slave asks for."""
        known, safe = self.files.checkpoint, self.saver.safe
        return TimerCheckpoint(
            safe.read_ms,
            self.files.log.end,
            self.files.queue_offset,
            safe.queue_offset,
            known.state_version,
            known.timestamp_ms,
            known.counter,
        )

    @property
    def counts(self) -> dict[int, int]:
        """How many wait, by the hash of their topic."""
        return self._copies.counts

    def ahead(self) -> Callable[[], dict[str, int]]:
        """A question for a thread: how many records wait for the next minute, hour and day."""
        from_ms, wheel = self.now_ms(), self.files.wheel
        unwritten = wheel.unwritten()

        def count() -> dict[str, int]:
            try:
                counts = wheel.count_ahead(from_ms, AHEAD_S[-1], unwritten)
            except (OSError, ValueError):  # closed, or made anew, meanwhile
                return {}
            return {str(seconds): sum(counts[:seconds]) for seconds in AHEAD_S}

        return count

    @property
    def skipped(self) -> int:
        """Messages that could not be delivered at all."""
        return self._copies.skipped + self.due.lost

    @property
    def recalled(self) -> int:
        return self._copies.recalled

    @property
    def behind_ms(self) -> int:
        """How late the next one is."""
        return max(self.now_ms() - self._reached_ms, 0) if self._is_leading else 0

    @property
    def offset_behind(self) -> int:
        """Messages of the timer topic that are not in the wheel yet."""
        return max(self._range()[1] - self.files.queue_offset, 0)

    def needed(self) -> tuple[int | None, int] | None:
        """Log position of the oldest message that waits in the wheel, and queue offset of the first that is not in it
        for sure; None where there are no timers. Retention asks."""
        if not self._range()[1]:
            return None
        safe = self.saver.safe
        return self.files.oldest_needed(safe.read_ms), min(self.files.queue_offset, safe.queue_offset)

    def _range(self) -> tuple[int, int]:
        store = self._store
        return store.min_offset(WHEEL_TIMER_TOPIC, 0), store.max_offset(WHEEL_TIMER_TOPIC, 0)

    def _is_done(self, due_ms: int, queue_offset: int) -> bool:
        return self._done.covers(due_ms, queue_offset)

    # -- lifecycle -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the files; damaged ones are made anew."""
        problem = ""
        try:
            is_known = self.files.open()
        except (TimerFilesDamagedError, OSError) as error:
            is_known, problem = True, str(error)
        checkpoint = self.files.checkpoint
        self._done = TimerProgress(checkpoint.read_ms, checkpoint.master_offset)
        self.saver.follow(self._done)
        low, high = self._range()
        if not is_known and (high > low or self.files.log.end):
            problem = "there is no timercheck; what was delivered is not known, and comes again"
        elif self.files.queue_offset > high:
            problem = f"the wheel has messages up to {self.files.queue_offset} of {high}"
        if problem:
            self._rebuild(problem)
        self._copies.counts = self.files.counts(slot_time(self._done.read_ms))
        self._store.on_arrival(self._on_arrival)

    def _doubts(self, why: str) -> None:
        """The files are to be made anew, at the next turn that may."""
        self._doubt = why
        self._plan(0)

    def _rebuild(self, why: str) -> None:
        """Every waiting message was stored no longer ago than it may stay in one slot: that much is read again."""
        self._doubt = ""
        if self._is_leading:
            self._done = TimerProgress(
                self._reached_ms, max(self.files.queue_offset, self._done.queue_offset)
            )
        since_ms = self._done.read_ms - 2 * self._window_ms
        offset = self._store.reader.offset_by_time(WHEEL_TIMER_TOPIC, 0, since_ms) if since_ms > 0 else 0
        _LOG.warning("the timer wheel is made anew from queue offset %d on: %s", offset, why)
        self.files.reset(offset)
        self.due.begin(self._reached_ms)
        self._take_first = 0
        self._copies.counts.clear()
        self.saver.changed()

    def run(self) -> None:
        """Begin to fill the wheel and to save."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.saver.start()
        self._plan(0)

    def start(self) -> None:
        """Begin to deliver, from where the progress says."""
        if self._is_leading:
            return
        self._is_leading = True
        self._done = safe = self.saver.safe
        if self.files.queue_offset > self._range()[1]:
            self._doubt = "the log was cut"
        now_ms = self.now_ms()
        self._reached_ms = min(safe.read_ms or now_ms, now_ms)
        self.due.begin(self._reached_ms)
        # What was taken after the last progress may be in the wheel or not: it is taken again, and found there once.
        self._take_first = self.files.queue_offset
        self.files.queue_offset = min(self.files.queue_offset, safe.queue_offset)
        self._cleared_ms, self._gate = 0, None
        self._plan(0)

    def pause(self) -> None:
        """Deliver nothing any more, until the next start."""
        self.saver.note()
        self._done = self.saver.safe
        self._is_leading = False
        self.due.begin(0)

    def follow(self, progress: TimerProgress) -> None:
        """A master has come so far."""
        if not self._is_leading and progress != self.saver.safe:
            self._done = progress
            self.saver.follow(progress)
            self._plan(0)

    async def stop(self) -> None:
        """End and save; what is due later is found again at the next start."""
        self._loop = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        await self.saver.stop()
        self.files.close()

    # -- turns -----------------------------------------------------------------------------------------------

    def _on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Called by the store, in any thread."""
        loop = self._loop
        if loop is None or not any(queue.topic == _TOPIC_BYTES for queue in queues):
            return
        if threading.get_ident() == self._loop_thread:
            self._plan(0)
        else:
            loop.call_soon_threadsafe(self._plan, 0)

    def _plan(self, delay_ms: int) -> None:
        """Have the next turn after this time, or before if it was planned before."""
        if self._loop is None:
            return
        at = self._loop.time() + min(delay_ms, LOOK_MS) / 1000
        if self._handle is not None:
            if self._planned_at <= at:
                return
            self._handle.cancel()
        self._planned_at = at
        self._handle = self._loop.call_at(at, self.turn)

    def turn(self) -> None:
        self._handle = None
        try:
            if self._doubt and not self.saver.is_busy:
                self._rebuild(self._doubt)
            self._plan(BUSY_MS if self._doubt else self.work())
        except TimerFilesDamagedError as error:
            self._doubts(str(error))
        except (PenstockError, OSError) as error:
            _LOG.warning("timers wait: %s", error)
            self._plan(RETRY_MS)
        except Exception:
            _LOG.exception("timers failed; they go on")
            self._plan(RETRY_MS)

    def work(self) -> int:
        """One turn: take some, fire some, load some; how long to wait for the next."""
        has_more = self._take()
        if not self._is_leading:
            return PAUSE_MS if has_more else LOOK_MS
        if self.files.queue_offset < self._take_first:
            return 0 if has_more else RETRY_MS
        due, now_ms = self.due, self.now_ms()
        is_clear = self._clear(now_ms)
        self._fire(self._cleared_ms)
        due.load(MESSAGES_PER_TURN, now_ms + PRECISION_MS)
        self._reached_ms = max(self._reached_ms, due.reached_ms(self._cleared_ms))
        due.forget_recalls(self._reached_ms)
        if not is_clear:
            return 0 if has_more else BUSY_MS
        if has_more or due.loaded_to <= slot_time(now_ms):
            return 0
        if due.is_loading or due.loaded_to <= slot_time(now_ms + PRECISION_MS):
            return PAUSE_MS
        next_ms = due.next_due_ms()
        look_ms = due.loaded_to - PRECISION_MS - now_ms  # when the next slot may be loaded
        return max(min(look_ms, LOOK_MS if next_ms is None else next_ms - now_ms), PAUSE_MS)

    def _clear(self, now_ms: int) -> bool:
        """Let messages be delivered up to a time, if everything is taken that was stored before it; whether that is
        now."""
        if self._gate is None:
            self._gate = (now_ms, self._store.end_offset(WHEEL_TIMER_TOPIC, 0))
        moment_ms, end = self._gate
        end = min(end, self._store.end_offset(WHEEL_TIMER_TOPIC, 0))
        # What there was a turn for, and is not taken, waits for room in the wheel.
        if self.files.queue_offset >= end or self._stuck_before >= end:
            self._cleared_ms, self._gate = max(self._cleared_ms, moment_ms), None
        return self._cleared_ms >= now_ms

    # -- from the queue to the wheel -------------------------------------------------------------------------

    def _take(self) -> bool:
        """Take some messages from the timer topic; whether there are more."""
        files = self.files
        low, high = self._range()
        end = high if self._is_leading else min(high, self._done.queue_offset)
        if files.queue_offset < low:
            if files.queue_offset:
                _LOG.error("timer messages %d to %d are gone", files.queue_offset, low)
            files.queue_offset = low
        offset = files.queue_offset
        entries = self._store.reader.entries(
            WHEEL_TIMER_TOPIC, 0, offset, min(MESSAGES_PER_TURN, end - offset)
        )
        now_ms, count = self.now_ms(), 0
        late: list[tuple[int, TimerMessage, times.Timing]] = []
        added: list[tuple[times.Timing, int, TimerMessage]] = []
        files.begin()
        for entry in entries:
            message = None if entry.is_filler else timer_message(self._store, entry.position)
            timing = (
                None if message is None else self._rules.timing(message.properties, message.store_timestamp)
            )
            if message is None or timing is None:
                self._copies.skip(
                    entry.position, "it cannot be read, or names no time", quiet=entry.is_filler
                )
            elif self._is_done(timing.due_ms, offset + count):
                pass
            elif self._is_leading and timing.due_ms <= self._reached_ms:
                if added:
                    break
                late.append((offset + count, message, timing))
            else:
                place = NOWHERE if late else self._put(message, timing, now_ms)
                if place == NOWHERE:
                    break
                added.append((timing, place, message))
            count += 1
        if late:
            self._deliver_late(late, now_ms)
        if count:
            files.commit(offset + count)
            self.saver.changed()
        for timing, place, message in added:
            self.enqueued += 1
            self._copies.count(topic_hash(message), -1 if timing.recalls else 1)
            if self._is_leading:
                self.due.arrived(timing, place, slot_time(now_ms), message)
        self._stuck_before = 0 if count else end
        return count > 0 and offset + count < end

    def _put(self, message: TimerMessage, timing: times.Timing, now_ms: int) -> int:
        bits = DEFAULT | (ROLL if timing.is_roll else 0) | (DELETE if timing.recalls else 0)
        free_before_ms = slot_time(self._reached_ms if self._is_leading else self._done.read_ms)
        return self.files.put(
            timing.slot_ms,
            bits,
            slot_time(now_ms),
            message.position,
            message.size,
            topic_hash(message),
            free_before_ms,
        )

    def _deliver_late(self, late: list[tuple[int, TimerMessage, times.Timing]], now_ms: int) -> None:
        """Their second is over: there is no slot to wait in. If not all can be stored now, the rest is taken
        again."""
        requests = []
        for _, message, timing in late:
            item = DueMessage(timing.due_ms, 0, 0, FAR, timing.slot_ms, timing.is_roll, 0, message)
            is_recall = bool(timing.recalls) and not timing.is_roll
            requests.append(None if is_recall else self._copies.ready(item, now_ms))
        try:
            self._writer.append_copies([request for request in requests if request is not None])
        except PenstockError:
            stored = [index for index, request in enumerate(requests) if request is None or request.size]
            if stored:
                self.files.queue_offset = late[stored[-1]][0] + 1
            raise
        self.delivered += sum(request is not None and request.size > 0 for request in requests)

    # -- from the wheel to the topic -------------------------------------------------------------------------

    def _fire(self, now_ms: int) -> None:
        """Store what is due, at most so much."""
        due, size = self.due, 0
        fired: list[tuple[DueMessage, AppendRequest | None]] = []
        while len(fired) < MESSAGES_PER_TURN and size < BYTES_PER_TURN:
            item = due.take(now_ms)
            if item is None:
                break
            try:
                request = self._copies.ready(item, now_ms)
            except BusyError:
                due.give_back(item)
                if not fired:
                    raise
                break  # those before it go first
            fired.append((item, request))
            size += 0 if request is None else len(request.body)
        if not fired:
            return
        self.saver.changed()
        try:
            self._writer.append_copies([request for _, request in fired if request is not None])
        finally:
            for item, request in fired:
                if request is not None and request.size == 0:
                    due.give_back(item)
                    continue
                self._copies.count(item.topic_hash, -1)
                if request is not None and request.size > 0:
                    self.delivered += 1
                elif request is not None:
                    self._copies.skip(item.position, "it fits no record")
