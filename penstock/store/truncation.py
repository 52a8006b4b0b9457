"""Cutting the log: what a deposed master wrote and nobody confirmed goes, also from all that is derived from the log.

Rule (I11): the cut is on disk before anything new is appended, and a crash at any point of it is finished by the next
open, before recovery looks at anything. So a stale tail can never become valid again. Order:

  1. what the queues and the index hold in memory goes to their files; the queue files are synced;
  2. the manifest says `cutTo`, with the queues' ends as they will be, synced: from here on there is no way back;
  3. in memory the log ends at the cut: flusher, dispatch and readers take note before a byte changes;
  4. the checkpoint promises nothing behind it;
  5. later segments are deleted, the rest of the last one becomes zero, synced;
  6. queue entries become zero, later queue files are deleted, synced; the same with index entries;
  7. the manifest forgets `cutTo`, synced.

The next open does 4 to 7 again if it finds `cutTo`: every step may be done twice. A failure after 2 stops the store,
because only a restart knows what is true.

Needs all locks of the store, in this order: keeper, flusher, index, append lock. Readers in other threads notice the
cut by `CommitLog.cuts` and read again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock._hot.layout import BLANK
from penstock._hot.reads import find_record, store_timestamp, walk
from penstock.errors import DiskFullError, LogPositionError, StoreError, StoreRoleError
from penstock.runtime.disk import NO_SPACE
from penstock.store.checkpoint import Checkpoint
from penstock.store.findings import Finding
from penstock.store.segment import Segment

if TYPE_CHECKING:
    from penstock.store.message_store import MessageStore

QueueEnds = dict[tuple[str, int], int]


class Truncation:
    """Cuts a store's log. Any thread; one cut at a time, because of the locks."""

    def __init__(self, store: MessageStore, lock: threading.RLock) -> None:
        self._store = store
        self._lock = lock

    def run(self, position: int | None) -> int:
        """Cut the log at a record's beginning, or, with None, behind the last whole record; where it ends now."""
        store = self._store
        with store.keeper.working, store.flusher.pausing(), store.index.lock, self._lock:
            store.gate.check_sound()
            if not store.gate.is_replica:
                raise StoreRoleError("only a replica's log may be cut", "call replica_mode(True) first")
            # A master's log counts, and may give the offsets behind the cut to other messages. A record that
            # arrived in part says nothing about them.
            used = {} if position is not None else store.queues.manifest.used
            if position is None:
                # An empty log has no end to cut, wherever it is to begin.
                position = store.replica_side.whole_end() if store.log.active else store.log.max_offset
                if position == store.log.max_offset:
                    return position
            if not store.log.min_offset <= position <= store.log.max_offset:
                raise LogPositionError(
                    f"the log cannot be cut at {position}: it has {store.log.min_offset} to {store.log.max_offset}"
                )
            if position < store.log.max_offset:
                self._cut(position, used)
            return position

    def start_over(self, position: int) -> None:
        """The log is empty and begins at `position`: what queues and index remember of another one behind it goes.

        They are there where a replica has lost its log. Their entries would pass for those of the records to come.
        """
        store = self._store
        with store.keeper.working, store.flusher.pausing(), store.index.lock, self._lock:
            if store.log.active is not None or position % store.log.segment_size:
                return
            store.log.first_base = position
            store.queues.manifest.log_start = position
            for queue in store.queues:
                queue.show_all()
            self._cut(position, {})
            for queue in store.queues:
                queue.correct_min(position)

    def _cut(self, position: int, used: QueueEnds) -> None:
        store = self._store
        points = {(q.topic, q.queue_id): q.cut_point(position) for q in store.queues}
        newest = self._record_before(position, max((at for _, at in points.values()), default=-1))
        try:
            self._prepare()
            ends = {key: end for key, (end, _) in points.items()}
            index_files = store.index.remaining(position)
            store.queues.begin_cut(position, ends, index_files, store.dispatch.offset, used)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFullError("no space left to cut the log", "free space; nothing was cut") from error
            raise store.fail(f"cutting the log at {position} failed: {error}") from error
        try:
            store.flusher.cut(position)
            store.dispatch.cut(position)
            for queue in store.queues:
                queue.hide_from(ends[queue.topic, queue.queue_id])
            self._follow(position, newest, ends)
        except (OSError, StoreError) as error:
            raise store.fail(f"cutting the log at {position} failed: {error}") from error

    def _prepare(self) -> None:
        """Everything that is derived is in its file, so that the files are all there is to cut."""
        store = self._store
        store.absorb_keys()
        store.queues.drain()
        store.queues.sync(store.queues, 0)

    def _follow(self, position: int, newest: int, ends: QueueEnds) -> None:
        """Everything up to the manifest's last word; `newest` is the record before the position, or -1."""
        store = self._store
        timestamp = self._time_of(newest)
        store.log.last_timestamp = timestamp
        store.dispatcher.last_timestamp = min(store.dispatcher.last_timestamp, timestamp)
        store.dispatcher.indexed_to = min(store.dispatcher.indexed_to, position - 1)
        store.keeper.cut(position, timestamp)
        store.log.cut(position)
        for queue in store.queues:
            queue.cut_to(ends[queue.topic, queue.queue_id], position)
        store.queues.end_cut(store.index.cut_entries(position, self._time_of))

    def finish(self) -> None:
        """At open, after loading and before recovery: finish a cut that a crash has interrupted.

        A reader that may change nothing sees the log as it will be.
        """
        store = self._store
        manifest = store.queues.manifest
        position = manifest.cut_to
        if position < 0:
            return
        store.findings.add(Finding("interrupted cut", "the log was being cut here; finished now", position))
        ends, known = {}, -1
        for queue in store.queues:
            # An end that halving found may lie anywhere in a file that is cleared in part: the manifest knows it.
            key = (queue.topic, queue.queue_id)
            ends[key] = manifest.ends.get(key, queue.cut_point(position)[0])
            queue.cut_to(ends[key], position)
            known = max(known, queue.cut_point(position)[1])
        try:
            newest = self._record_before(position, known)
        except LogPositionError:
            newest = -1  # damage: recovery reads the whole log
        if not store.keeper.checkpoint.trusted:
            # What is saved is sealed, and would be believed.
            store.keeper.checkpoint = Checkpoint(trusted=False)
        if store.is_read_only:
            store.log.show_until(position)
            store.keeper.cut(position, self._time_of(newest))
            store.index.cut_entries(position, self._time_of)
        else:
            self._follow(position, newest, ends)

    # -- boundaries ------------------------------------------------------------------------------------------

    def _record_before(self, position: int, known: int) -> int:
        """Where the record before a position begins, -1 if there is none; raises LogPositionError if no record ends
        there. `known` is a place at which a record begins: bytes that merely look like a record may be inside another
        one, so this walks from what is known."""
        log = self._store.log
        segment = log.segment_of(position - 1) if position > log.min_offset else None
        if segment is None:
            if position % log.segment_size:
                raise self._inside(position)
            return -1
        at, stop = max(known - segment.base, 0), position - segment.base
        last, available = -1, segment.available
        while at < stop:
            at, why, _, newest = walk(segment.view, at, stop, segment.base, 0)
            last = newest if newest >= 0 else last
            if at < stop:
                at = segment.size if why == BLANK else self._after_damage(segment, at, available)
        if at != stop:
            raise self._inside(position)
        return segment.base + last if last >= 0 else -1

    @staticmethod
    def _after_damage(segment: Segment, at: int, available: int) -> int:
        found = find_record(segment.view, at + 1, available, segment.base)
        return segment.size if found < 0 else found

    @staticmethod
    def _inside(position: int) -> LogPositionError:
        return LogPositionError(
            f"the log cannot be cut at {position}: no record ends there",
            "the other log is not what it says it is, or one of them is damaged",
        )

    def _time_of(self, position: int) -> int:
        """Store time of the record at a position, 0 if it is not there."""
        segment = self._store.log.segment_of(position) if position >= 0 else None
        return 0 if segment is None else store_timestamp(segment.view, position - segment.base)
