"""One pass over the log: every record checked, and dispatched a second time, into memory only.

What comes out (queue entries, index keys, per-queue counts) is what the queue and index files should hold. The
pass goes in chunks; within a chunk the compiled walk and dispatcher do the work. A chunk in which a record got
no entry although it should have is taken back and done again record by record, to find out which and why.

Damage is reported once with its place, and remembered, because what is missing elsewhere may follow from it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import BAD_CHECKSUM, BLANK, ENTRY_SIZE, GAP, NEW_QUEUE, REASONS
from penstock._hot.queues import QueueState
from penstock._hot.reads import store_timestamp, walk
from penstock.message import StoredMessage, TransactionKind, decode_record
from penstock.message.message import SystemFlag
from penstock.store.dispatching import OFFSET_MAX
from penstock.store.inspection.log_scan import after_damage
from penstock.store.inspection.report import LogTotals
from penstock.store.inspection.view import StoreView
from penstock.store.recovery import Progress
from penstock.store.segment import Segment

CHUNK = 8 << 20
_ENTRY = struct.Struct(">qiq")
_IN_QUEUE = (int(TransactionKind.NONE), int(TransactionKind.COMMIT))


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [first, last) that no record has; the log has the queue's neighbours at [after, before]."""

    first: int
    last: int
    after: int
    before: int


@dataclass(slots=True, eq=False)
class QueueTrack:
    """One queue as the log has it."""

    topic: str
    queue_id: int
    first: int
    state: QueueState
    # Whether `first` is a record's: half messages of transactions name a queue and have no place in it.
    entered: bool = True
    messages: int = 0
    bytes: int = 0
    begun_anew: int = 0
    holes: list[Hole] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        """One past the newest offset."""
        return self.state.end_offset

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.queue_id}"


EntrySink = Callable[[QueueTrack, int, bytes], None]
KeySink = Callable[[bytearray, int], None]


class LogPass:
    """Made for one `run`. `entries` gets the entries of a queue from an offset on, `keys` pending index keys."""

    def __init__(
        self,
        view: StoreView,
        *,
        checksums: bool,
        entries: EntrySink | None = None,
        keys: KeySink | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._view = view
        self._log = view.log
        self._end = view.end.position
        self._issues = view.issues
        self._checksums = checksums
        self._entries = entries
        self._keys = keys
        self._progress = progress or (lambda done, total: None)
        self._dispatcher = Dispatcher(view.options.delays_ms, keys is not None)
        self._dispatcher.next_round()
        self._chunk: list[tuple[QueueTrack, int, bytes]] = []
        self._chunk_holes: list[tuple[QueueTrack, Hole]] = []
        self._chunk_issues: list[Callable[[], None]] = []
        self.tracks: dict[tuple[bytes, int], QueueTrack] = {}
        # Parts of the log without a readable record: (position, end), ascending.
        self.damaged: list[tuple[int, int]] = []
        self._records = self._bytes = self._damaged_records = self._damaged_bytes = 0
        self._first_time = self._last_time = 0

    def run(self) -> None:
        """Read the whole log."""
        start = position = self._log.min_offset
        while position < self._end:
            segment = self._log.segment_of(position)
            boundary = position - position % self._log.segment_size + self._log.segment_size
            if segment is None or position - segment.base >= segment.available:
                # A missing or short file; loading it has said so.
                self._lost(position, min(boundary, self._end))
                position = boundary
                continue
            local = position - segment.base
            visible = min(self._end - segment.base, segment.available)
            limit = min(local + CHUNK, visible)
            stop, why, count, last = walk(segment.view, local, limit, segment.base, self._checksums)
            self._records += count
            self._bytes += stop - local
            if count:
                self._note_times(segment, local, last)
                self._take(segment, local, stop)
            position = segment.base + stop
            if why == BLANK:
                position = boundary
            elif why and stop < visible:
                position = segment.base + self._damage(segment, stop, visible, why)
            self._progress(min(position, self._end) - start, self._end - start)

    def totals(self) -> LogTotals:
        return LogTotals(
            segments=sum(segment is not None for segment in self._log.segments),
            start=self._log.min_offset,
            end=self._end,
            records=self._records,
            bytes=self._bytes,
            damaged_records=self._damaged_records,
            damaged_bytes=self._damaged_bytes,
            first_timestamp=self._first_time,
            last_timestamp=self._last_time,
        )

    def is_lost(self, first: int, last: int) -> bool:
        """Whether some part of [first, last) is damaged or missing."""
        return any(low < last and first < high for low, high in self.damaged)

    def _note_times(self, segment: Segment, first: int, last: int) -> None:
        if not self._first_time:
            self._first_time = store_timestamp(segment.view, first)
        self._last_time = store_timestamp(segment.view, last)

    def _lost(self, position: int, end: int) -> None:
        self.damaged.append((position, end))

    def _damage(self, segment: Segment, local: int, visible: int, why: int) -> int:
        following = after_damage(segment, local, visible, why)
        reason = REASONS[why]
        if why == BAD_CHECKSUM:  # its lengths add up, so it can say which message is lost
            record = self._record(segment, local)
            reason += f" in {record.topic[:80]}/{record.queue_id} offset {record.queue_offset}"
        self._report(segment, local, following - local, reason)
        return following

    def _report(self, segment: Segment, local: int, length: int, reason: str) -> None:
        position = segment.base + local
        self._damaged_records += 1
        self._damaged_bytes += length
        self._lost(position, position + length)
        self._issues.damage(
            "damaged record", reason, position=position, length=length, path=str(segment.path), at=local
        )

    # -- dispatching again -----------------------------------------------------------------------------------

    def _take(self, segment: Segment, start: int, stop: int) -> None:
        """Dispatch the sound records of a chunk and hand on what comes out."""
        before = {track: (track.next_offset, track.state.max_phy) for track in self.tracks.values()}
        indexed_to, count = self._dispatcher.indexed_to, self._dispatcher.count
        self._dispatch(segment, start, stop)
        added = sum(len(data) for _, _, data in self._chunk) // ENTRY_SIZE
        added += sum(track.state.tail_count for track in self.tracks.values())
        if self._dispatcher.count - count != added:
            for track in self.tracks.values():
                track.state.restart(*before.get(track, (track.first, -1)))
            self._forget_chunk()
            self._dispatcher.indexed_to = indexed_to
            self._take_singly(segment, start, stop)
        for track in self.tracks.values():
            self._cut_tail(track)
        for tell in self._chunk_issues:
            tell()
        for track, first, data in self._chunk:
            track.messages += len(data) // ENTRY_SIZE
            track.bytes += sum(size for _, size, _ in _ENTRY.iter_unpack(data))
            if self._entries is not None:
                self._entries(track, first, data)
        for track, hole in self._chunk_holes:
            track.holes.append(hole)
        if self._keys is not None:
            self._keys(self._dispatcher.keys, self._dispatcher.key_count)
        self._forget_chunk()

    def _forget_chunk(self) -> None:
        self._chunk.clear()
        self._chunk_holes.clear()
        self._chunk_issues.clear()
        self._dispatcher.key_count = 0

    def _dispatch(self, segment: Segment, start: int, stop: int) -> None:
        at = start
        while at < stop:
            status = self._dispatcher.run_mapped(segment.view, at, stop, segment.base)
            at = self._dispatcher.position
            if status == NEW_QUEUE:
                at = self._enter(segment, at)
            elif status == GAP:
                at = self._bridge(segment, at)
            elif at < stop:
                return  # cannot be after a walk; the rest would only be guessed

    def _cut_tail(self, track: QueueTrack) -> None:
        """Move what the dispatcher left in a queue's tail to the chunk's list."""
        state = track.state
        if state.tail_count:
            first = state.tail_first
            self._chunk.append((track, first, state.tail_bytes(first, first + state.tail_count)))
            state.drop_tail(state.tail_count)

    def _record(self, segment: Segment, at: int) -> StoredMessage:
        return decode_record(segment.view.slice(at, segment.available), -1, verify=False)

    def _enter(self, segment: Segment, at: int) -> int:
        """Follow a queue from the offset that this record has; where to go on."""
        record = self._record(segment, at)
        if not _is_possible(record):
            return self._refuse(
                segment, at, record, f"impossible topic, queue id or offset: {record.topic[:80]!r}"
            )
        key = (record.topic.encode(), record.queue_id)
        state = QueueState(*key)
        state.restart(record.queue_offset, -1)
        track = QueueTrack(record.topic, record.queue_id, record.queue_offset, state, _is_in_queue(record))
        self.tracks[key] = track
        self._dispatcher.add_queue(state)
        queue = self._view.queues.get((record.topic, record.queue_id))
        if queue is not None:
            first = queue.first_at_or_after(self._log.min_offset)
            if first != record.queue_offset and self._queue_position(track, first) == record.physical_offset:
                track.first = first
                state.restart(first, -1)
                return self._wrong_offset(segment, at, record, track)
        return at

    def _bridge(self, segment: Segment, at: int) -> int:
        """A record is ahead of its queue: offsets are missing, or its own offset is wrong."""
        record = self._record(segment, at)
        if not _is_possible(record):
            return self._refuse(segment, at, record, f"impossible queue offset: {record.queue_offset}")
        track = self.tracks[(record.topic.encode(), record.queue_id)]
        expected = track.next_offset
        if not (track.entered or track.messages or track.state.tail_count):
            track.first, track.entered = record.queue_offset, True
            track.state.restart(record.queue_offset, -1)
            return at
        if self._queue_position(track, expected) == record.physical_offset:
            return self._wrong_offset(segment, at, record, track)
        self._cut_tail(track)
        hole = Hole(expected, record.queue_offset, track.state.max_phy, record.physical_offset)
        self._chunk_holes.append((track, hole))
        track.state.restart(record.queue_offset, track.state.max_phy)
        return at

    def _refuse(self, segment: Segment, at: int, record: StoredMessage, reason: str) -> int:
        """A record that is whole but cannot be right; where to go on."""
        self._chunk_issues.append(lambda: self._report(segment, at, record.size, reason))
        return at + record.size

    def _queue_position(self, track: QueueTrack, offset: int) -> int:
        """Where the queue's own file says the record of an offset is; -1 if it does not say."""
        queue = self._view.queues.get((track.topic, track.queue_id))
        if queue is None or not queue.first <= offset < queue.end:
            return -1
        entry = queue.entry(offset)
        return entry.position if entry.is_valid and not entry.is_filler else -1

    def _wrong_offset(self, segment: Segment, at: int, record: StoredMessage, track: QueueTrack) -> int:
        expected = track.next_offset
        self._cut_tail(track)
        track.state.restart(expected + 1, record.physical_offset + record.size)
        detail = f"claims offset {record.queue_offset} of {track.name}, where its queue has it at {expected}"
        return self._refuse(segment, at, record, detail)

    def _take_singly(self, segment: Segment, start: int, stop: int) -> None:
        """The same as `_dispatch`, with a look at every record before it is dispatched."""
        at = start
        while at < stop:
            record = self._record(segment, at)
            after = at + record.size
            track = self.tracks.get((record.topic.encode(), record.queue_id))
            if track is not None and _is_in_queue(record) and record.queue_offset < track.next_offset:
                if self._queue_position(track, track.next_offset) == record.physical_offset:
                    at = self._wrong_offset(segment, at, record, track)
                    continue
                self._repeat(segment, at, record, track)
            self._dispatch(segment, at, after)
            at = after

    def _repeat(self, segment: Segment, at: int, record: StoredMessage, track: QueueTrack) -> None:
        """An offset comes a second time: the topic was deleted and made again, or two messages share it."""
        if (
            record.queue_offset == 0
            or self._queue_position(track, record.queue_offset) == record.physical_offset
        ):
            self._cut_tail(track)
            track.state.restart(record.queue_offset, track.state.max_phy)
            track.begun_anew += 1
        elif (track.topic, track.queue_id) in self._view.queues:
            detail = f"{track.name} offset {record.queue_offset} is claimed by a second record"
            position, path = record.physical_offset, str(segment.path)
            self._chunk_issues.append(
                lambda: self._issues.damage(
                    "damaged queue", detail, position=position, length=record.size, path=path, at=at
                )
            )


def _is_in_queue(record: StoredMessage) -> bool:
    return record.sys_flag & int(SystemFlag.TRANSACTION_MASK) in _IN_QUEUE


def _is_possible(record: StoredMessage) -> bool:
    """Whether topic, queue id and offset could have been stored; no checksum of RocketMQ's covers them."""
    topic = record.topic
    if not (topic and topic.isascii() and topic.isprintable() and "/" not in topic):
        return False
    return record.queue_id >= 0 and 0 <= record.queue_offset <= OFFSET_MAX
