"""Reads: by queue offset, by log position, by key, by time.

A read by queue offset chooses 20-byte entries under the append lock and copies records outside it. Damage in
its way is left out, named in the result and reported; the reader goes on behind it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from penstock._hot.columns import Columns
from penstock._hot.layout import ENTRY_SIZE, NO_RECORD
from penstock._hot.mapped import MappedBytes
from penstock._hot.reads import EntrySelection, gather, store_timestamp
from penstock.errors import CodecError
from penstock.message import StoredMessage, decode_record
from penstock.message.column_answers import ColumnAnswer, pack
from penstock.message.hashing import java_string_hash
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Entry
from penstock.store.dispatching import LogDispatch
from penstock.store.filtering import FILTER_BYTES_MAX, RecordFilter, choose
from penstock.store.findings import Finding, Findings
from penstock.store.key_index import QUERY_MAX, KeyIndex
from penstock.store.options import StoreOptions
from penstock.store.queue_table import QueueTable

_LOG = logging.getLogger("penstock.store")
SCAN_BYTES = 16_000
READ_BYTES_MAX = 128 << 20
# Columns of reads up to this size keep their memory for the next one. Memory of some megabytes that is asked for anew
# goes back to the system each time, and to have its pages again takes longer than filling them.
COLUMNS_KEPT_BYTES = 8 << 20
# Records this near to each other are read from disk in one go, and so much of the log at once.
WARM_NEAR_BYTES = 128 << 10
WARM_CHUNK_BYTES = 1 << 20
FAR_FUTURE_MS = (1 << 63) - 1


class GetStatus(Enum):
    """How a read by queue offset ended; RocketMQ's words."""

    FOUND = "FOUND"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"


class TimeBoundary(Enum):
    """Which side of a time a search by time stays on."""

    LOWER = "LOWER"
    UPPER = "UPPER"


@dataclass(frozen=True, slots=True)
class GetResult:
    """Records as one run of bytes, ready for the wire, and where to read next."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: bytearray = field(default_factory=bytearray)
    count: int = 0
    # Queue offsets in the range read whose records are damaged or gone; none of them is in `data`.
    damaged: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    # Of an answer in columns: how many bytes its records have. `data` is what `column_answers` packs then.
    stored_bytes: int = 0

    def messages(self) -> list[StoredMessage]:
        """The records decoded."""
        decoded, at, view = [], 0, memoryview(self.data)
        while at < len(self.data):
            decoded.append(decode_record(view[at:], -1, verify=False))
            at += decoded[-1].size
        return decoded


def tag_codes(tags: Iterable[str | int] | None) -> frozenset[int] | None:
    """What the queue entries hold for these tags; codes stay what they are, None means every message."""
    if tags is None:
        return None
    return frozenset(tag if isinstance(tag, int) else java_string_hash(tag) for tag in tags)


def _selection(
    max_count: int, max_bytes: int, tags: frozenset[int] | None, wanted: RecordFilter | None
) -> EntrySelection:
    """What a read looks at: with a filter, more than it may take."""
    if wanted is None:
        return EntrySelection(max_count, max_bytes, tags)
    return EntrySelection(max(SCAN_BYTES // 20, max_count), max(max_bytes, FILTER_BYTES_MAX), tags)


class _Chosen(NamedTuple):
    """What a read has to know of the moment in which its entries were chosen. `cuts`: those of a replica's log; one
    more by the end, and what was copied may be half gone."""

    queue: ConsumeQueue
    first_base: int
    views: list[MappedBytes | None]
    low: int
    high: int
    cuts: int


class _PackedBody(Exception):
    """A body that has to be unpacked before it can be a value."""


def _refuse_packed(body: bytes, flags: int) -> bytes:
    raise _PackedBody


class StoreReader:
    """The read side of a store. Any thread may call it."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        dispatch: LogDispatch,
        options: StoreOptions,
        findings: Findings,
        lock: threading.RLock,
        absorb_keys: Callable[[], None],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._options = options
        self._findings = findings
        self._lock = lock
        self._absorb_keys = absorb_keys
        self._reported: set[int] = set()
        self._columns_kept: tuple[tuple[str, ...], Columns] | None = None

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        max_bytes: int = 256 << 10,
        tags: frozenset[int] | None = None,
        wanted: RecordFilter | None = None,
    ) -> GetResult:
        """Up to `max_count` records from a queue offset on; `tags` are codes from `tag_codes`."""
        max_count = max(max_count, 1)
        max_bytes = min(max(max_bytes, 100), READ_BYTES_MAX)
        selection = _selection(max_count, max_bytes, tags, wanted)
        chosen = self._choose(topic, queue_id, offset, selection, max(SCAN_BYTES // 20, max_count))
        if isinstance(chosen, GetResult):
            return chosen
        queue, first_base, views, low, high, cuts = chosen
        following = selection.scanned_to
        if wanted is not None:
            selection, following = choose(
                selection, views, first_base, self._log.segment_size, wanted, max_count, max_bytes
            )
        data, damaged, missing = gather(
            selection,
            views,
            first_base,
            self._log.segment_size,
            queue.state.topic,
            queue_id,
            self._options.verify_reads,
        )
        if cuts != len(self._log.cuts):
            # A replica's log was cut while records were copied from it: they may be half gone.
            return self.get(topic, queue_id, offset, max_count, max_bytes, tags, wanted)
        for i in damaged:
            self._report(topic, queue_id, selection.offset(i), selection.position(i))
        count = selection.count - len(damaged) - len(missing)
        if count:
            status = GetStatus.FOUND
        elif selection.count:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            status = GetStatus.NO_MATCHED_MESSAGE
        return GetResult(
            status,
            following,
            low,
            high,
            data,
            count,
            tuple(selection.offset(i) for i in damaged),
            tuple(selection.offset(i) for i in missing),
        )

    def get_columns(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        names: Sequence[str],
    ) -> GetResult | None:
        """The same records taken apart: columns of these names, with limits that count whole records. None if one of
        the bodies is packed: whoever wants it unpacks it, not the broker."""
        max_count = max(max_count, 1)
        selection = EntrySelection(max_count, min(max(max_bytes, 100), READ_BYTES_MAX), None)
        chosen = self._choose(topic, queue_id, offset, selection, max_count)
        if isinstance(chosen, GetResult):
            return chosen
        queue, first_base, views, low, high, cuts = chosen
        columns = self._columns_for(names, selection.count)
        try:
            self._take(columns, selection, views, first_base, queue.state.topic, queue_id)
        except _PackedBody:
            return None
        if cuts != len(self._log.cuts):
            return self.get_columns(topic, queue_id, offset, max_count, max_bytes, names)
        for first, last, why in columns.damaged:
            for lost in range(first, last + 1) if why != NO_RECORD else ():
                self._report(topic, queue_id, lost, selection.position(lost - offset))
        damaged, columns.damaged = columns.damaged, []
        rows, found = columns.take(keep=True)
        if not rows:
            return GetResult(GetStatus.MESSAGE_WAS_REMOVING, selection.scanned_to, low, high)
        data = pack(names, ColumnAnswer(rows, found, damaged))
        if selection.total_bytes <= COLUMNS_KEPT_BYTES:
            self._columns_kept = (tuple(names), columns)
        return GetResult(
            *(GetStatus.FOUND, selection.scanned_to, low, high, data, rows),
            stored_bytes=selection.total_bytes,
        )

    def _columns_for(self, names: Sequence[str], count: int) -> Columns:
        """Those of the read before, if they have the same names and room for as many rows; else new ones. Who has
        them has them alone."""
        with self._lock:
            kept, self._columns_kept = self._columns_kept, None
        if kept is not None and kept[0] == tuple(names) and kept[1].rows_max >= count:
            return kept[1]
        return Columns(
            names,
            b"",
            1 << (count - 1).bit_length(),  # the next one may have a few more
            2 * READ_BYTES_MAX,
            (),
            b"",
            True,  # whatever `verify_reads` says: the checksum does not travel
            _refuse_packed,
            bytes,
        )

    def _choose(
        self, topic: str, queue_id: int, offset: int, selection: EntrySelection, scan_max: int
    ) -> _Chosen | GetResult:
        """Choose entries under the lock; the answer itself where there are none."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            outside = self._outside(queue, offset)
            if queue is None or outside is not None:
                return outside or GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            low, high = queue.min_offset, queue.max_offset
            queue.select(selection, offset, scan_max)
            log = self._log
            chosen = _Chosen(queue, log.first_base, list(log.views), low, high, len(log.cuts))
        if selection.scanned_to < 0:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, high, low, high)
        return chosen

    def _take(
        self,
        columns: Columns,
        selection: EntrySelection,
        views: list[MappedBytes | None],
        first_base: int,
        topic: bytes,
        queue_id: int,
    ) -> None:
        """Segment by segment, as entries lead; those of segments that are gone have no record."""
        entries, size, first = selection.entries(), self._log.segment_size, selection.offset(0)
        at = 0
        while at < selection.count:
            number = (selection.position(at) - first_base) // size
            view = views[number] if 0 <= number < len(views) else None
            was = at
            if view is not None and view.size:
                base = first_base + number * size
                at = columns.take_entries(view, base, entries, at, first, topic, queue_id, False)
            if at == was:
                columns.note(first + at, first + at, NO_RECORD)
                at += 1

    def warm(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
        wanted: RecordFilter | None = None,
    ) -> None:
        """Have the system read from disk what `get` would copy next; for a thread that nobody waits for.

        `get` reads through maps: a page that is not in memory would hold up the whole process.
        """
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None or self._outside(queue, offset) is not None:
                return
            max_count, max_bytes = max(max_count, 1), min(max(max_bytes, 100), READ_BYTES_MAX)
            selection = _selection(max_count, max_bytes, tags, wanted)
            queue.select(selection, offset, max(SCAN_BYTES // 20, max_count))
        spans: list[tuple[int, int]] = []
        for i in range(selection.count):
            start = selection.position(i)
            end = start + selection.size(i)
            if spans and spans[-1][0] <= start <= spans[-1][1] + WARM_NEAR_BYTES:
                spans[-1] = (spans[-1][0], max(spans[-1][1], end))
            else:
                spans.append((start, end))
        for start, end in spans:
            self._read_ahead(start, end)

    def _read_ahead(self, start: int, end: int) -> None:
        while start < end:
            segment = self._log.segment_of(start)
            if segment is None:
                return
            stop = min(end, start + WARM_CHUNK_BYTES, segment.base + segment.size)
            try:
                segment.file.pread(stop - start, start - segment.base)
            except (OSError, ValueError):
                return  # retention took the segment; whoever reads it will be told
            start = stop

    @staticmethod
    def _outside(queue: ConsumeQueue | None, offset: int) -> GetResult | None:
        """The answer when nothing can be read at this offset."""
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        return None

    def slices(self, topic: str, queue_id: int, offset: int, max_count: int = 32) -> list[memoryview]:
        """Records as views into the maps, without a copy and without a check: for local readers that decode.

        A view keeps its segment mapped, also when retention deletes the file; release it soon.
        """
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None or self._outside(queue, offset) is not None:
                return []
            selection = EntrySelection(max(max_count, 1), READ_BYTES_MAX, None)
            queue.select(selection, offset, max_count)
            found = []
            for i in range(selection.count):
                view = self._log.slice(selection.position(i), selection.size(i))
                if view is not None:
                    found.append(view)
            return found

    def entries(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[Entry]:
        """Queue entries from an offset on; none if the queue does not reach there."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None or not queue.min_offset <= offset < queue.max_offset:
                return []
            data = queue.entry_bytes(offset, min(offset + max_count, queue.max_offset))
        return [Entry.decode(data[at : at + ENTRY_SIZE]) for at in range(0, len(data), ENTRY_SIZE)]

    def _report(self, topic: str, queue_id: int, offset: int, position: int) -> None:
        """Once for each place: a consumer that polls it again and again must not drown other findings."""
        if position not in self._reported:
            self._reported.add(position)
            self._findings.add(
                Finding(
                    "damaged record",
                    f"{topic}/{queue_id} offset {offset} cannot be read; left out of the answer",
                    position,
                )
            )

    def message_at(self, position: int) -> StoredMessage | None:
        """The message whose record begins at a log position; None if there is none.

        Raises CorruptRecordError if there is one and it is damaged.
        """
        cuts = len(self._log.cuts)
        try:
            found = self._message_at(position)
        except CodecError:
            if cuts == len(self._log.cuts):
                raise
        else:
            if cuts == len(self._log.cuts):
                return found
        with self._lock:  # a replica's log was cut while this looked at it
            return self._message_at(position)

    def _message_at(self, position: int) -> StoredMessage | None:
        head = self._log.slice(position, 4)
        if head is None:
            return None
        size = int.from_bytes(head, "big", signed=True)
        visible = size > 0 and position + size <= self._dispatch.offset
        record = self._log.slice(position, size) if visible else None
        if record is None:
            return None
        return decode_record(record, position)

    def query(
        self, topic: str, key: str, limit: int = 32, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> list[StoredMessage]:
        """Messages of a topic with a key, newest first."""
        return list(islice(self.matches(topic, key, begin_ms, end_ms), min(max(limit, 1), QUERY_MAX)))

    def matches(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
    ) -> Iterator[StoredMessage]:
        """The same one after the other, each read when it is asked for, so that a caller keeps what it wants; the
        index compares hashes, this compares the keys."""
        try:
            self._absorb_keys()
        except OSError as error:
            # The newest keys stay in memory until the disk takes them; older ones can be found all the same.
            _LOG.warning("keys of the newest messages are not indexed yet: %s", error)
        cuts = len(self._log.cuts)
        for position in dict.fromkeys(self._index.find(topic, key, QUERY_MAX * 4, begin_ms, end_ms)):
            try:
                message = self.message_at(position)
            except CodecError as error:
                if cuts != len(self._log.cuts):
                    continue  # the log was cut since, and another master's record may reach over this position
                self._findings.add(Finding("damaged record", f"found by key: {error}", position))
                continue
            if message is None or message.topic != topic or key not in message.keys:
                continue
            if self._queues.was_deleted(topic, position):
                continue
            if begin_ms <= message.store_timestamp <= end_ms:
                yield message

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: TimeBoundary = TimeBoundary.LOWER
    ) -> int:
        """Queue offset for a store time, by halving.

        LOWER: the first message stored at or after it, or the end. UPPER: the last stored at or before it, or
        the first message kept.
        """
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                return 0
            low, high = queue.min_offset, queue.max_offset
            first, last = low, high
            while low < high:
                middle = (low + high) // 2
                time_ms = self._time_near(queue, middle)
                before = time_ms < timestamp_ms if boundary is TimeBoundary.LOWER else time_ms <= timestamp_ms
                if before:
                    low = middle + 1
                else:
                    high = middle
            return min(low, last) if boundary is TimeBoundary.LOWER else max(low - 1, first)

    def _time_near(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time at an offset; where that record is gone, of the next one that is there."""
        while offset < queue.max_offset:
            entry = queue.entry(offset)
            if entry is not None and not entry.is_filler:
                record = self._log.slice(entry.position, entry.size)
                segment = self._log.segment_of(entry.position)
                if record is not None and segment is not None and entry.size >= 91:
                    return store_timestamp(segment.view, entry.position - segment.base)
            offset += 1
        return FAR_FUTURE_MS
