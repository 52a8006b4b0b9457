"""The keeper: what a store does on its own, at its own pace.

One thread calls `tick`; what is due is decided by the clock that the store was given. In this order: flush the
log (async mode), move queue entries and keys to their files, sync them and save the checkpoint, prepare the
next segment, retention, scrubbing. Long work (syncs, scans) is done without the append lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.runtime import Runtime
from penstock.store.audit import LogAudit
from penstock.store.checkpoint import Checkpoint
from penstock.store.options import FlushMode
from penstock.store.retention import MANUAL_ROUNDS, Needed, RetentionPlan, SegmentAge, plan_round

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore

_LOG = logging.getLogger("penstock.store")
PAGE = 4096
SCRUB_STEP_MS = 100
KEYS_PENDING_MAX = 1 << 18
SAY_AGAIN_MS = 60_000
# Between two lines about a segment that cannot be prepared: doubled with each, up to this.
PREPARE_SAY_MAX_MS = 3_600_000


class Keeper:
    """Owned by the keeper thread, except `settle` and `finish`, which the owner calls before and after it."""

    def __init__(self, store: MessageStore, runtime: Runtime, lock: threading.RLock) -> None:
        self._store = store
        self._runtime = runtime
        self._lock = lock
        self._options = store.options
        self.checkpoint = Checkpoint()
        self.disk_refusal: str | None = None
        self.used_percent = 0
        self.last_plan: RetentionPlan | None = None
        self._manual_rounds = 0
        # With groups to wait for nothing is deleted before the broker has said how far they are.
        self._needed = Needed(everything=bool(self._options.retention_groups))
        self._due: dict[str, int] = {}
        self._said, self._say_again_ms = "", 0
        # Since the next segment cannot be prepared: attempts, when to say so again, and how long after that.
        self._unprepared, self._say_unprepared_ms, self._say_after_ms = 0, 0, SAY_AGAIN_MS
        self.audit = LogAudit(
            store.log, store.queues, store.findings, lock, repair=True, dispatch=store.dispatch
        )
        # Held for a round, and by whoever cuts the log: what a round has captured must not be saved after a cut.
        # Taken before any other lock.
        self.working = threading.RLock()

    def settle(self) -> None:
        """After recovery: begin. What it rebuilt is synced by the first round; until then the old checkpoint
        stands, and a crash would only rebuild it again."""
        now = self._runtime.clock.monotonic_ms()
        options = self._options
        self._due = {
            "flush": now + options.flush_interval_ms,
            "thorough_flush": now + options.flush_thorough_interval_ms,
            "queues": now,
            "thorough_queues": now,
            "clean": now + options.clean_interval_ms,
            "scrub": now + SCRUB_STEP_MS,
        }
        self._look_at_disk()

    def finish(self) -> None:
        """Before a clean close: flush and sync everything, save the checkpoint."""
        self._store.flush()
        self.sync_derived(0)

    def failed(self, error: BaseException) -> None:
        """A round failed. Appends find out by themselves; here it is only said: the same thing once a minute."""
        now, text = self._runtime.clock.monotonic_ms(), str(error)
        if text != self._said or now >= self._say_again_ms:
            _LOG.error("background work of the store failed, and is tried again: %s", text)
            self._said, self._say_again_ms = text, now + SAY_AGAIN_MS

    def tick(self) -> None:
        """Do what is due. After a failure nothing is: what the disk holds is not known, and must not be promised."""
        with self.working:
            if not self._store.has_failed:
                self._round()

    def _round(self) -> None:
        # First: a flush of all that is dirty may take longer than the rest of the segment lasts.
        self._prepare()
        if self._is_due("flush", self._options.flush_interval_ms):
            self._flush()
        if self._is_due("queues", self._options.queue_flush_interval_ms):
            thorough = self._is_due("thorough_queues", self._options.queue_thorough_interval_ms)
            self.sync_derived(0 if thorough else self._options.queue_flush_least_pages)
        elif self._store.dispatcher.key_count > KEYS_PENDING_MAX:
            self._store.absorb_keys()
        if self._is_due("clean", self._options.clean_interval_ms):
            self.clean()
        if self._options.scrub_bytes_per_second and self._is_due("scrub", SCRUB_STEP_MS):
            self.audit.step(self._options.scrub_bytes_per_second * SCRUB_STEP_MS // 1000)

    def _is_due(self, name: str, interval_ms: int) -> bool:
        now = self._runtime.clock.monotonic_ms()
        if now < self._due[name]:
            return False
        self._due[name] = now + interval_ms
        return True

    # -- durability ------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Async flush: enough pages, or enough time. Sync mode: what nobody waited for."""
        store = self._store
        thorough = self._is_due("thorough_flush", self._options.flush_thorough_interval_ms)
        end, flushed = store.log.max_offset, store.flusher.flushed_offset
        pages = end // PAGE - flushed // PAGE
        sync_mode = self._options.flush_mode is FlushMode.SYNC
        if end > flushed and (thorough or sync_mode or pages >= self._options.flush_least_pages):
            store.flush(end)

    def sync_derived(self, least_pages: int) -> None:
        """Queue entries and keys to their files; with 0 pages everything is synced and the checkpoint moves.

        Order: capture how far dispatch is, write, sync, and only then promise it in the checkpoint.
        """
        store = self._store
        with self._lock:
            dispatched = store.dispatcher.last_timestamp
            log_time, log_end = store.log.last_timestamp, store.log.max_offset
            dispatched_to = store.dispatch.offset
            queues = store.queues.take_recent()
        if not least_pages:
            queues = list(store.queues)
        ends = store.queues.drain_gently(queues, self._lock)
        with store.index.lock:
            store.absorb_keys()
            if not least_pages:
                store.index.write_slots()
        try:
            store.queues.sync(queues, least_pages)
            index_end = store.index.sync() if not least_pages else -1
        except OSError as error:
            # As with the log: what a failed sync left behind cannot be known. The files are rebuilt by a restart.
            raise store.fail(f"syncing queue or index files failed: {error}") from error
        if not least_pages:
            if dispatched:
                self.checkpoint.logics_timestamp = dispatched
            names, start, flushed = store.index.names(), store.log.min_offset, store.certain_offset
            store.queues.save_manifest(ends, index_end, names, start, flushed, dispatched_to)
        self._save_checkpoint(log_time, log_end)

    def _save_checkpoint(self, log_time: int, log_end: int) -> None:
        flushed = self._store.certain_offset
        self.checkpoint.flushed_offset = flushed
        # Never more than what is on disk: behind a confirmed position nothing else may come to stand.
        self.checkpoint.confirm_offset = min(flushed, self._store.dispatch.offset)
        if flushed >= log_end:
            self.checkpoint.physic_timestamp = log_time
        self.checkpoint.index_timestamp = max(
            self.checkpoint.index_timestamp, self._store.index.full_timestamp
        )
        self._store.checkpoint_file.save(self.checkpoint)

    def cut(self, position: int, timestamp: int) -> None:
        """The log is cut here; its last record has this store time. Promise no more than that, from now on."""
        checkpoint = self.checkpoint
        checkpoint.flushed_offset = min(checkpoint.flushed_offset, position)
        checkpoint.confirm_offset = min(checkpoint.confirm_offset, position)
        checkpoint.physic_timestamp = min(checkpoint.physic_timestamp, timestamp)
        checkpoint.logics_timestamp = min(checkpoint.logics_timestamp, timestamp)
        checkpoint.index_timestamp = min(checkpoint.index_timestamp, timestamp)
        self.audit.restart()
        if not self._store.is_read_only:
            self._store.checkpoint_file.save(checkpoint)

    def _prepare(self) -> None:
        """Make the next segment while nobody waits for it."""
        try:
            self._store.log.prepare()
        except OSError as error:
            self._unprepared += 1
            now = self._runtime.clock.monotonic_ms()
            if self._unprepared > 1 and now < self._say_unprepared_ms:
                return
            _LOG.warning("Next segment cannot be prepared (%d attempts): %s", self._unprepared, error)
            self._say_unprepared_ms = now + self._say_after_ms
            self._say_after_ms = min(self._say_after_ms * 2, PREPARE_SAY_MAX_MS)
        else:
            self._unprepared, self._say_after_ms = 0, SAY_AGAIN_MS

    # -- retention -------------------------------------------------------------------------------------------

    def request_clean(self) -> None:
        """Delete expired segments now and in the next rounds, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def keep(self, needed: Needed) -> None:
        """What has to stay from now on, until told otherwise. Any thread may say so."""
        self._needed = needed

    def _needed_from(self) -> int | None:
        """Log position of the oldest record that is needed, None if there is none."""
        needed = self._needed
        if needed.everything:
            return 0
        by_topic: dict[str, list[Mapping[int, int]]] = {}
        for topic, offsets in needed.offsets:
            by_topic.setdefault(topic, []).append(offsets)
        if not by_topic:
            return needed.position
        with self._lock:
            found = [
                queue.position_from(min(offsets.get(queue.queue_id, 0) for offsets in by_topic[queue.topic]))
                for queue in self._store.queues
                if queue.topic in by_topic
            ]
        return min((position for position in (*found, needed.position) if position is not None), default=None)

    def _look_at_disk(self) -> None:
        self.last_plan = self._plan(())
        self._apply_limits(self.last_plan)

    def _plan(self, segments: tuple[SegmentAge, ...]) -> RetentionPlan:
        clock = self._runtime.clock
        return plan_round(
            self._options,
            self._runtime.disk.usage(self._store.path),
            clock.now_ms(),
            clock.local_hour(),
            self._manual_rounds > 0,
            segments,
            self._needed_from() if segments else None,
        )

    def _apply_limits(self, plan: RetentionPlan) -> None:
        was_refusing = self.disk_refusal is not None
        self.used_percent = plan.used_percent
        self.disk_refusal = None
        if plan.refuse_writes:
            self.disk_refusal = (
                f"disk is {plan.used_percent} % full, over the limit of "
                f"{self._options.disk_refuse_writes_percent} %"
            )
        self._store.gate.refuse_writes(self.disk_refusal)
        if plan.critical:
            _LOG.critical("disk of %s is %d %% full", self._store.path, plan.used_percent)
        if plan.refuse_writes and not was_refusing:
            _LOG.error("writes to %s are refused: %s", self._store.path, self.disk_refusal)
        elif was_refusing and not plan.refuse_writes:
            _LOG.warning("writes to %s are accepted again", self._store.path)

    def clean(self) -> int:
        """One round of retention; how many segments were deleted."""
        with self.working:
            return self._clean()

    def _clean(self) -> int:
        store = self._store
        active = store.log.active
        candidates = tuple(
            SegmentAge(segment.base, self._runtime.disk.modified_ms(segment.path), segment.size)
            for segment in list(store.log.segments)
            # Never one that is being written, nor one that a flush may still be working on.
            if segment is not None
            and active is not None
            and segment.base < active.base
            and segment.base + segment.size <= min(store.flusher.flushed_offset, store.dispatch.offset)
        )
        plan = self._plan(candidates)
        self._manual_rounds = max(self._manual_rounds - 1, 0)
        if plan.needed:
            _LOG.error(
                "disk of %s is %d %% full: %d segments are deleted that %s has not taken yet",
                store.path,
                plan.used_percent,
                len(plan.needed),
                ", ".join(self._options.retention_groups) or "somebody",
            )
        if plan.delete:
            with self._lock:
                store.queues.expect_start(plan.delete[-1] + store.log.segment_size)
        for base in plan.delete:
            with self._lock:
                segment = store.log.segment_of(base)
                if segment is not None:
                    store.log.forget_segment(segment)
            if segment is not None:
                # Freeing a gigabyte and syncing its folder takes a while: not while appends wait.
                segment.remove(self._runtime.disk)
        if plan.delete:
            _LOG.info("retention deleted %d segments of %s", len(plan.delete), store.path)
            self._follow(store.log.min_offset)
            with self._lock:
                store.queues.manifest.index_files = store.index.names()
                store.queues.expect_start(store.log.min_offset)
            plan_after = self._plan(())
            self._apply_limits(plan_after)
        else:
            self._apply_limits(plan)
        self.last_plan = plan
        return len(plan.delete)

    def _follow(self, log_min: int) -> None:
        """Queues and index give up what the log no longer has."""
        for queue in self._store.queues:
            with self._lock:
                queue.delete_before(log_min)
        with self._lock:
            self._store.queues.forget_deleted(log_min)
        self._store.index.delete_before(log_min)
