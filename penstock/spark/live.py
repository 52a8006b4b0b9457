"""Reading from a running cluster: what a task does on an executor, and what the driver asks before.

A task pulls its slices of queues in answers of 4 MiB, decodes one while the next is on its way, and yields
Arrow batches. A read of numbers and bodies alone asks brokers to answer in columns, which are batches already
(docs/decisions/0053); RocketMQ's do not know of that and answer with records. Every offset of a slice ends up in
one of three places: a row, a filter that left it out, or a gap (`gaps`).

Rules: an executor shares nothing with the driver but the options in its task; it knows the address of each broker
from its task and asks a name server only when that fails. A broker that restarts, or hands over to a replica, is
waited for as long as `retryMs` says. Connections are kept for the next task of the same process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.client.access import Access, explaining
from penstock.client.scan import Scan
from penstock.client.scan_results import OffsetRange, Pulled, PullStatus, QueueId
from penstock.errors import CodecError, PenstockError, ResponseError, RouteNotFoundError
from penstock.message.column_answers import NAMES
from penstock.runtime import SystemClock
from penstock.spark.gaps import Gaps, Reason, reason_for
from penstock.spark.options import ReadOptions
from penstock.spark.planning import ROW_BYTES, QueueSlice
from penstock.spark.schema import Selection

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.batches import RecordDecoder

logger = logging.getLogger(__name__)
PULL_ROWS = 65_536
# What the size of a record is judged by.
QUEUES_SAMPLED, ROWS_SAMPLED, BYTES_SAMPLED = 8, 64, 64 << 10
# Between two looks at a queue that has less than was planned.
PAUSE_S = 0.2
_REMOVED = "MESSAGE_WAS_REMOVING"
# The same for all rows of an answer.
KNOWN_HERE = frozenset(("topic", "broker"))

_scans: dict[tuple[tuple[str, ...], int, Access], Scan] = {}
_scans_lock = threading.Lock()


def shared_scan(options: ReadOptions) -> Scan:
    """The connections of this process to a cluster; they outlive a task."""
    key = (options.nameserver, options.retry_ms, options.access)
    with _scans_lock:
        scan = _scans.get(key)
        if scan is None:
            settings = options.access.settings()
            scan = _scans[key] = Scan(options.nameserver, retry_ms=options.retry_ms, **settings)
        return scan


def close_scans() -> None:
    """Drop what `shared_scan` keeps."""
    with _scans_lock:
        kept = list(_scans.values())
        _scans.clear()
    for scan in kept:
        scan.close()


# -- the driver's questions --------------------------------------------------------------------------------------


def find_queues(scan: Scan, options: ReadOptions) -> list[QueueId]:
    """The queues of all topics that are read. RouteNotFoundError for a topic that is named and not there."""
    if options.topic:
        topics = list(options.topic)
    else:
        topics = scan.topics(options.topic_pattern)
    found = scan.queues_of(topics)
    for topic in options.topic:
        if topic not in found:
            raise RouteNotFoundError(
                f"there is no topic {topic!r}{_near_topics(scan, topic)}", _advice(scan, topic)
            )
    return [queue for queues in found.values() for queue in queues]


def _advice(scan: Scan, topic: str) -> str:
    """What to do about a topic without queues, which may be at brokers that are down."""
    try:
        scan.queues(topic)
    except RouteNotFoundError as error:
        return error.hint
    return "it has just come: try again"


def _near_topics(scan: Scan, topic: str) -> str:
    from penstock.spark.options import near_names

    try:
        near = near_names(topic, scan.topics())
    except ResponseError:
        return ""  # who may read some topics need not be told of the others
    return f", did you mean {near.rstrip('?')}" if near else ""


def row_bytes(scan: Scan, slices: Sequence[QueueSlice]) -> int:
    """About how large a record is, by a few from the middle of some queues, each counted by its rows. It ends at the
    first broker that does not answer, with a guess if need be: the plan must not wait, its tasks do."""
    rows = total = 0
    for item in slices[:: max(1, -(-len(slices) // QUEUES_SAMPLED))]:
        try:
            pulled = scan.pull(
                item.queue, (item.start + item.end) // 2, rows=ROWS_SAMPLED, size=BYTES_SAMPLED
            )
        except PenstockError:
            break
        count = pulled.next_offset - pulled.offset
        if pulled.status is PullStatus.FOUND and count > 0:
            rows += item.rows
            total += len(pulled.data) * item.rows // count
    return max(1, total // rows) if rows else ROW_BYTES


# -- a task ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LiveRead:
    """Reads slices; one for each task."""

    scan: Scan
    options: ReadOptions
    selection: Selection
    gaps: Gaps
    # Of the query's filters, beside those of the options.
    tags: tuple[str, ...] = ()
    key: str = ""
    _unfinished: list[QueueSlice] = field(default_factory=list)

    @property
    def _columns(self) -> tuple[str, ...]:
        """What brokers may answer with, instead of records: nothing, where more of a record is needed."""
        names = tuple(name for name in self.selection.names if name not in KNOWN_HERE)
        return names if NAMES.issuperset(names) and not self.tags and not self.key else ()

    def batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """The rows of the slices, each queue's in their order."""
        with explaining():
            yield from self._batches(slices)

    def _batches(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        from penstock.spark.batches import RecordDecoder

        options = self.options
        decoder = RecordDecoder(
            self.selection.names,
            nullable=self.selection.nullable,
            rows=options.batch_rows,
            size=options.batch_bytes,
            tags=self.tags,
            key=self.key,
            verify=options.verify,
        )
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + options.retry_ms
        left: Sequence[QueueSlice] = slices
        while left:
            before = list(left)
            yield from self._round(left, decoder)
            left, self._unfinished = self._unfinished, []
            if left and left != before:
                deadline_ms = clock.monotonic_ms() + options.retry_ms  # it goes on, if slowly
            elif left and clock.monotonic_ms() >= deadline_ms:
                self._lost(left)
                break
            if left:
                clock.sleep(PAUSE_S)
        yield from decoder.finish()

    def _round(self, slices: Sequence[QueueSlice], decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
        """Once through the slices; what a broker has not (yet) got stays in `_unfinished`."""
        todo = iter(slices)
        current = next(todo)
        at = current.start
        for pulled in self.scan.read(
            slices,
            rows=PULL_ROWS,
            size=self.options.pull_bytes,
            tags=" || ".join(self.tags),
            columns=self._columns,
            reuse=True,
        ):
            while pulled.queue != current.queue or not current.start <= pulled.offset < current.end:
                current = next(todo)
                at = current.start
            if pulled.status is PullStatus.FOUND:
                yield from self._decode(pulled, current, decoder)
                at = min(max(pulled.next_offset, at), current.end)
            else:
                at = self._without_records(pulled, current)
            if at < current.end and not pulled.offset < pulled.next_offset:
                self._unfinished.append(QueueSlice(current.queue, at, current.end))

    def _decode(
        self, pulled: Pulled, current: QueueSlice, decoder: RecordDecoder
    ) -> Iterator[pa.RecordBatch]:
        queue = current.queue
        end = min(pulled.next_offset, current.end)
        while True:
            at = stop = min(pulled.next_offset, end)
            if pulled.status is not PullStatus.FOUND:
                at = self._without_records(pulled, QueueSlice(queue, pulled.offset, end))
            else:
                yield from self._feed(pulled, stop, decoder)
                # A run that is given up takes one offset at least with it; the mark may be that of a run before.
                if decoder.cut_short and decoder.next_offset > pulled.offset:
                    at = decoder.next_offset
                elif not self.tags and decoder.next_offset < stop:
                    detail = "the broker left them out"
                    self._gap(queue, decoder.next_offset, stop - 1, Reason.MISSING, detail)
            if at >= end:
                return
            if at <= pulled.offset:
                self._unfinished.append(QueueSlice(queue, at, end))  # it was there, and may be again
                return
            # Behind lengths that make no sense nothing can be found in an answer: ask for what follows, until all
            # is there that the first answer had.
            pulled = self.scan.pull(queue, at, rows=end - at, size=self.options.pull_bytes)

    def _feed(self, pulled: Pulled, end: int, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
        queue = pulled.queue
        decoder.broker = queue.broker
        decoder.forget_damaged()
        if pulled.columns:
            if pulled.columns != self._columns:
                raise CodecError(
                    f"{queue} answers with columns {', '.join(pulled.columns)[:80]}, which nobody wants"
                )
            yield from decoder.feed_columns(pulled.data, pulled.offset, end, self._columns, queue.topic)
        else:
            yield from decoder.feed_run(
                pulled.data,
                pulled.offset,
                end,
                topic=queue.topic.encode(),
                queue_id=queue.queue_id,
                complete=not self.tags,
            )
        for damage in decoder.damaged:
            reason = reason_for(damage.reason)
            self._gap(queue, damage.queue_offset, damage.last_offset, reason, damage.reason)

    def _without_records(self, pulled: Pulled, current: QueueSlice) -> int:
        """An answer without records: what it means for the slice, and where that goes on."""
        queue, offset = current.queue, pulled.offset
        end = min(pulled.next_offset, current.end)
        if pulled.status is PullStatus.SKIPPED and end > offset:
            if not self.tags or pulled.remark == _REMOVED:
                self._gap(queue, offset, end - 1, Reason.MISSING, "the broker has no records for them")
            return end
        if pulled.status is PullStatus.MOVED and end > offset:
            self._gap(queue, offset, end - 1, Reason.DELETED, f"the queue begins at {pulled.min}")
            return end
        return offset

    def _lost(self, slices: Sequence[QueueSlice]) -> None:
        for item in slices:
            ends = self.scan.range(item.queue).max
            detail = f"the queue ends at {ends}"
            self._gap(item.queue, item.start, item.end - 1, Reason.LOST, detail)

    def _gap(self, queue: QueueId, first: int, last: int, reason: Reason, detail: str) -> None:
        self.gaps.found(queue, first, last, reason, detail, where="reading")


def check_beginnings(
    slices: Sequence[QueueSlice], ranges: Mapping[QueueId, OffsetRange], gaps: Gaps
) -> list[QueueSlice]:
    """Slices without what retention has deleted already, which is a gap."""
    kept = []
    for item in slices:
        low = ranges[item.queue].min if item.queue in ranges else 0
        if item.start < low:
            last = min(low, item.end) - 1
            detail = f"the queue begins at {low}"
            gaps.found(item.queue, item.start, last, Reason.DELETED, detail, where="planning")
        left = QueueSlice(item.queue, max(item.start, low), item.end)
        if left.rows > 0:
            kept.append(left)
    return kept
