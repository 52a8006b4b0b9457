"""From the log to what readers see: drives the hot dispatcher and answers its questions.

Visibility rule: a record is dispatched when the log is confirmed up to its end. Confirmed means flushed under
synchronous flush, written otherwise. Nothing else makes a message visible, so nobody can read what a crash may
take back.

A bound adds what a crash of the whole machine may take back: nothing at or behind it is dispatched, whatever this
disk holds. With replicas it is the position that all of them have, and so nobody reads what an election may take
back. A bound, and what a replica has received so far, may lie inside a record: that record waits for its rest. It
is not damage.

A hold keeps part of that back: what lies behind its position is not dispatched, confirmed or not, until it is
released, and then all of it is dispatched in one go, under the lock that every reader takes. That is how many
messages become visible at once. Records before the position are not touched by it, nor is anything that is
written or flushed: a hold is not on disk, and after a restart there is none.

Runs under the store's append lock.
"""

from __future__ import annotations

from penstock._hot.checks import check
from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import (
    BLANK,
    BLANK_SIZE,
    DAMAGED,
    DONE,
    END_OF_SEGMENT,
    ENTRY_SIZE,
    GAP,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NEW_QUEUE,
    POSITION_MAX,
    RECORD_SIZE_MIN,
)
from penstock._hot.reads import find_record
from penstock._hot.records import RecordBuilder
from penstock.errors import StoreFormatError, TopicNameError, invariant
from penstock.message import StoredMessage, decode_record
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.findings import Finding, Findings
from penstock.store.queue_table import QueueTable
from penstock.store.segment import Segment

# More offsets than this missing in one place are not a gap but a damaged offset.
GAP_MAX = 1_000_000
NOT_HELD = 1 << 62
# Where this entry would be in its queue no file can be.
OFFSET_MAX = POSITION_MAX // ENTRY_SIZE


def raise_end(queue: ConsumeQueue, end: int) -> None:
    """Let a queue go on from an offset: those before it are used, and their records are lost."""
    missing = end - queue.max_offset
    if missing > GAP_MAX or (missing > 0 and queue.max_offset == 0):
        queue.start_at(end)
    elif missing > 0:
        queue.fill(missing)


class RescanNeeded(Exception):
    """A queue's older entries are missing although the log may still have them."""


class LogDispatch:
    """`offset` is the log position up to which records are visible."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, dispatcher: Dispatcher, findings: Findings
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._findings = findings
        # Nothing at or behind this position is dispatched. A record ends here, or nothing is held.
        self.held_at = NOT_HELD
        self.bounded_at = NOT_HELD
        # The nearer of both is the dispatcher's, where an append pays for one comparison.
        dispatcher.limit = NOT_HELD
        # Whether what there is to dispatch always ends with a record; a replica's log, or a bound, may end anywhere.
        self.ends_whole = True
        # There is nothing to do before so much of the log may be seen: a record that was cut by its limit ends there.
        self._waits_for = 0
        # Recovery sets this while it reads only the end of the log: a hole then means reading all of it.
        self.rescan_on_gap = False

    @property
    def offset(self) -> int:
        return self._dispatcher.offset

    @offset.setter
    def offset(self, position: int) -> None:
        self._dispatcher.offset = position

    @property
    def limit(self) -> int:
        """Nothing that ends behind it is dispatched."""
        return self._dispatcher.limit

    def hold(self, position: int) -> int:
        """Dispatch nothing from `position` on until `release`; the position."""
        invariant(self.held_at == NOT_HELD, "there is one hold at a time")
        self.held_at = position
        self._dispatcher.limit = min(self.held_at, self.bounded_at)
        return position

    def release(self) -> None:
        """What was held may be dispatched again; `catch_up` does it."""
        self.held_at = NOT_HELD
        self._dispatcher.limit = self.bounded_at

    def bound(self, position: int) -> None:
        """Dispatch nothing that ends behind `position`; NOT_HELD takes the bound away."""
        self.bounded_at = position
        self._dispatcher.limit = min(self.held_at, self.bounded_at)

    def restart(self, offset: int) -> None:
        """Go on from here: the log was cut, or begins here."""
        self.offset = offset
        self._waits_for = 0

    def cut(self, position: int) -> None:
        """The log ends here now, and so does all that was ever to be seen of it."""
        self.restart(min(self.offset, position))
        self.held_at = self.held_at if self.held_at == NOT_HELD else min(self.held_at, position)
        self.bound(self.bounded_at if self.bounded_at == NOT_HELD else min(self.bounded_at, position))

    def written(self, built: RecordBuilder) -> None:
        """Dispatch a run straight from the buffer it was built in, if nothing before it is waiting.

        Where the run holds more than records (the segment ended in it), `catch_up` does it from the map.
        """
        end = built.base + built.used
        if not built.used or built.base != self.offset or end > self.limit:
            return
        if self._dispatcher.run_built(built) == DONE:
            self.offset = end

    def catch_up(self, limit: int) -> None:
        """Dispatch from the maps the records that end up to a log position, or to where the rest is held."""
        limit = min(limit, self.limit)
        if limit < self._waits_for:
            return
        while self.offset < limit:
            segment = self._log.segment_of(self.offset)
            if segment is None:
                self.offset += self._log.segment_size - self.offset % self._log.segment_size
                continue
            start = self.offset - segment.base
            end = min(limit - segment.base, segment.available)
            if start >= end:
                self.offset = segment.base + segment.size
                continue
            status = self._dispatcher.run_mapped(segment.view, start, end, segment.base)
            self.offset = segment.base + self._dispatcher.position
            if status == END_OF_SEGMENT:
                self._check_blank(segment)
                self.offset = segment.base + segment.size
            elif status in (NEW_QUEUE, GAP):
                self._answer(segment, status)
            elif status == DAMAGED or self._dispatcher.position < end:
                if not self.ends_whole and self._is_cut(segment, end):
                    return
                self._skip_damage(segment, end)
                if self._waits_for:
                    return

    def _check_blank(self, segment: Segment) -> None:
        """A blank record reaches to the end of its segment, unless the master that sent it has segments of another
        size: then nothing that follows would be found."""
        start = self.offset - segment.base
        size = int.from_bytes(segment.view.slice(start, start + 4), "big")
        if not self.ends_whole and start + size != segment.size and self._log.max_offset:
            raise StoreFormatError(
                f"a segment of the master ends at {self.offset + size}, one of this store at "
                f"{segment.base + segment.size}",
                "give master and replicas the same segment_size_bytes",
            )

    def _is_cut(self, segment: Segment, end: int) -> bool:
        """Whether a record begins here whose rest lies behind the limit, or has not arrived yet."""
        start = self.offset - segment.base
        # Recovery looks at all that the file has: it does not know the log's end yet.
        known = min(self._log.max_offset - segment.base, segment.available)
        known = segment.available if not self._log.max_offset else known
        if end >= segment.size:
            return False
        if known - start < BLANK_SIZE:
            self._waits_for = self.offset + BLANK_SIZE
            return True
        size = int.from_bytes(segment.view.slice(start, start + 4), "big", signed=True)
        magic = int.from_bytes(segment.view.slice(start + 4, start + 8), "big", signed=True)
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
            return False
        if not (BLANK_SIZE if magic == MAGIC_BLANK else RECORD_SIZE_MIN) <= size <= segment.size - start:
            return False
        if start + size <= known:
            found = check(segment.view.source, start, start + size, self.offset, 0)
            if start + size <= end or (found <= 0 and found != BLANK):
                return False
        self._waits_for = self.offset + size
        return True

    def _answer(self, segment: Segment, status: int) -> None:
        """Make the queue, or bridge the hole, that the dispatcher stopped at."""
        at = self.offset - segment.base
        record = decode_record(segment.view.slice(at, segment.available), -1, verify=False)
        if self._queues.was_deleted(record.topic, self.offset):
            self.offset += record.size
            return
        try:
            queue = self._queues.get_or_create(record.topic, record.queue_id)
            invariant(record.queue_id >= 0, "a queue id is not negative")
        except (TopicNameError, AssertionError):
            self._skip_record(record, "its topic or queue id is impossible")
            return
        if record.queue_offset > OFFSET_MAX:
            self._skip_record(record, f"its queue offset {record.queue_offset} is impossible")
            return
        missing = record.queue_offset - queue.max_offset
        if status == NEW_QUEUE or missing <= 0:
            return
        if self.rescan_on_gap:
            raise RescanNeeded
        if queue.max_offset == 0 and not queue.has_files:
            queue.start_at(record.queue_offset)
        elif missing > GAP_MAX:
            self._skip_record(
                record, f"its queue offset {record.queue_offset} is {missing} ahead of its queue"
            )
        else:
            self._findings.add(
                Finding(
                    "offsets without messages",
                    f"{missing} messages of {queue.topic}/{queue.queue_id} from offset {queue.max_offset} on "
                    "are not in the log; their offsets stay unused",
                    self.offset,
                )
            )
            queue.fill(missing)

    def _skip_record(self, record: StoredMessage, why: str) -> None:
        self._findings.add(Finding("damaged record", f"not dispatched: {why}", self.offset, record.size))
        self.offset += record.size

    def _skip_damage(self, segment: Segment, end: int) -> None:
        """Go on at the next record that can be recognised; recovery has reported what is between."""
        start = self.offset - segment.base
        self._waits_for = 0
        following = find_record(segment.view, start + 1, end, segment.base)
        if following < 0 and not self.ends_whole and end < segment.size:
            # The next record may have arrived in part: what follows will tell where it begins.
            self._waits_for = segment.base + end + 1
            return
        self.offset = segment.base + (following if following >= 0 else end)
