"""Reading the log against everything derived from it: the scrubber's step, and `verify`'s whole walk.

The log is dispatched a second time into memory and the outcome compared, byte for byte, with the queue files.
A record that fails its checks is reported once with its position; a queue entry that differs from what the log
says is reported and, where allowed, written anew, because the log is right.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import BAD_CHECKSUM, BLANK, ENTRY_SIZE, GAP, NEW_QUEUE, REASONS
from penstock._hot.queues import QueueState
from penstock._hot.reads import find_record, walk
from penstock.message import decode_record
from penstock.message.record import topic_bytes
from penstock.store.commit_log import CommitLog
from penstock.store.dispatching import OFFSET_MAX, LogDispatch
from penstock.store.findings import Finding, Findings
from penstock.store.queue_table import QueueTable
from penstock.store.segment import Segment

WHOLE_SEGMENT = 1 << 62


@dataclass(slots=True)
class AuditTotals:
    """What an audit has seen so far."""

    records: int = 0
    bytes: int = 0
    entries: int = 0
    damaged_records: int = 0
    damaged_bytes: int = 0
    wrong_entries: int = 0
    rounds: int = 0


class LogAudit:
    """Goes round the log, a step at a time. Used by one thread."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        findings: Findings,
        lock: threading.RLock,
        *,
        repair: bool,
        dispatch: LogDispatch | None = None,
    ) -> None:
        self._log = log
        self._queues = queues
        self.findings = findings
        self._lock = lock
        self._repair = repair
        # A store's own audit ends with what is visible: a replica's last record may not have arrived yet.
        self._dispatch = dispatch
        self._reported: set[int] = set()
        self.totals = AuditTotals()
        self.restart()

    def restart(self) -> None:
        """Forget how far it was: the log was cut."""
        self._dispatcher = Dispatcher((), False)
        self._states: dict[tuple[bytes, int], QueueState] = {}
        self.position = -1

    @property
    def _end(self) -> int:
        return self._log.max_offset if self._dispatch is None else self._dispatch.offset

    def step(self, budget: int) -> int:
        """Read up to `budget` bytes, at most to the end of a segment; how many were read.

        Starts again at the beginning after the end.
        """
        end = self._end
        if self.position < self._log.min_offset or self.position >= end:
            if self.position >= end > self._log.min_offset:
                self.totals.rounds += 1
            self.position = self._log.min_offset
        segment = self._log.segment_of(self.position)
        if segment is None or segment.view.size == 0:
            self.position += self._log.segment_size - self.position % self._log.segment_size
            return 0
        start = self.position - segment.base
        visible = min(end - segment.base, segment.available)
        stop, why, count, _ = walk(segment.view, start, min(start + budget, visible), segment.base, 1)
        self.totals.records += count
        self.totals.bytes += stop - start
        self._compare(segment, start, stop)
        self.position = segment.base + stop
        if why == BLANK or stop >= segment.available:
            self.position = segment.base + segment.size
        elif why and stop < visible:
            self._damage(segment, stop, visible, why)
        return self.position - segment.base - start

    def run(self) -> AuditTotals:
        """One whole round."""
        self.position = self._log.min_offset
        while self.position < self._end:
            self.step(WHOLE_SEGMENT)
        return self.totals

    def _damage(self, segment: Segment, at: int, visible: int, why: int) -> None:
        following = -1
        if why == BAD_CHECKSUM:
            following = at + int.from_bytes(segment.view.slice(at, at + 4), "big")
        else:
            following = find_record(segment.view, at + 1, visible, segment.base)
        following = visible if following < 0 else following
        position = segment.base + at
        self.totals.damaged_records += 1
        self.totals.damaged_bytes += following - at
        if position not in self._reported:
            self._reported.add(position)
            self.findings.add(Finding("damaged record", REASONS[why], position, following - at))
        self.position = (
            segment.base + following if following < segment.available else segment.base + segment.size
        )

    def _compare(self, segment: Segment, start: int, stop: int) -> None:
        """Dispatch records again and compare what comes out with the queues."""
        at = start
        while at < stop:
            status = self._dispatcher.run_mapped(segment.view, at, stop, segment.base)
            at = self._dispatcher.position
            if status not in (NEW_QUEUE, GAP):
                break
            at = self._enter(segment, at)
        touched = self._dispatcher.touched
        self._dispatcher.next_round()
        for state in touched:
            self._compare_queue(state)
            state.drop_tail(state.tail_count)

    def _enter(self, segment: Segment, at: int) -> int:
        """Follow a queue from the offset that this record has, if it can have it; where to go on."""
        view = segment.view.slice(at, segment.available)
        record = decode_record(view, -1, verify=False)
        if record.queue_offset > OFFSET_MAX:
            return at + record.size
        # The bytes, not the text: a damaged topic may be no text at all, and has to be recognised all the same.
        key = (topic_bytes(view), record.queue_id)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = QueueState(*key)
            self._dispatcher.add_queue(state)
        elif state.tail_count:
            self._compare_queue(state)
        queue = self._queues.get(record.topic, record.queue_id)
        state.restart(record.queue_offset, queue.born_at if queue else -1)
        return at

    def _compare_queue(self, state: QueueState) -> None:
        topic = state.topic.decode("utf-8", "replace")
        first, count = state.tail_first, state.tail_count
        expected = state.tail_bytes(first, first + count)
        with self._lock:
            queue = self._queues.get(topic, state.queue_id)
            if queue is None:
                return  # a deleted topic: its records wait for retention
            count = min(count, queue.max_offset - first)
            # From the first entry that has a place: a damaged one at the beginning passes for a record that is gone.
            low = max(queue.first_offset - first, 0)
            actual = queue.entry_bytes(first + low, first + count) if count > low else b""
            self.totals.entries += max(count - low, 0)
            if actual == expected[low * ENTRY_SIZE : max(count, low) * ENTRY_SIZE]:
                return
            for i in range(low, count):
                wanted = expected[i * ENTRY_SIZE : (i + 1) * ENTRY_SIZE]
                found = actual[(i - low) * ENTRY_SIZE : (i - low + 1) * ENTRY_SIZE]
                if wanted[:12] == found[:12] and (state.scheduled or _is_extension(found)):
                    continue
                if wanted != found:
                    self.totals.wrong_entries += 1
                    self.findings.add(
                        Finding(
                            "damaged queue" if not self._repair else "queue entry repaired",
                            f"{topic}/{state.queue_id} offset {first + i} does not match the log",
                            int.from_bytes(wanted[:8], "big"),
                        )
                    )
                    if self._repair:
                        queue.replace(first + i, wanted)


def _is_extension(entry: bytes) -> bool:
    """Whether the tags code is an address in an extension file, which only RocketMQ writes, and not a hash."""
    return int.from_bytes(entry[12:20], "big", signed=True) < -(1 << 31)
