"""Reading a part of a store directory in a task: queue files and segments, opened when they are needed.

A partition names what to read and carries what the files do not hold: entries of messages that were only in the
log when the driver looked. Nothing is recovered, repaired or locked, and nothing is written; a file that retention
took meanwhile is a gap with a reason, not an error.

Runs in an executor's task, in one thread. It needs the directory under the same path as on the driver, and no more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock._hot.layout import ENTRY_SIZE, FILLER_SIZE, GONE, NO_RECORD
from penstock._hot.mapped import MappedBytes
from penstock.runtime import Disk, Runtime
from penstock.spark.batches import Damage, RecordDecoder
from penstock.store.layout import StorePaths, position_name

# Entries read at once: 640 KiB, a few dozen megabytes of messages.
ENTRIES_AT_ONCE = 32_768
# Mapped at once by a task: it seldom reads more of the log than two segments, and each is 1 GiB of addresses.
SEGMENTS_MAPPED = 4
_ENTRY = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [start, end) of a queue. From `tail_first` on the entries are in `tail`, before it in files."""

    topic: str
    queue_id: int
    start: int
    end: int
    tail_first: int
    tail: bytes = b""
    # Whether its entries hold the hashes of tags, by which rows can be passed over.
    coded: bool = True

    @property
    def rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    """What one task reads of a store directory; travels to an executor."""

    path: str
    segment_size: int
    queue_file_entries: int
    ranges: tuple[QueueRange, ...]

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.ranges)


OnDamage = Callable[[QueueRange, list[Damage]], None]


class StoreFiles:
    """The files of a directory, by position. Keeps a few segments mapped; close it when done."""

    def __init__(
        self, path: Path, segment_size: int, queue_file_entries: int, disk: Disk | None = None
    ) -> None:
        self._paths = StorePaths(path)
        self._segment_size = segment_size
        self._per_file = queue_file_entries
        self._disk = disk or Runtime.system().disk
        # Log position of the segment in hand, -1 where there is none.
        self.base = -1
        # By where they begin, the one that was used last at the end. A task reads queue after queue over the same
        # part of the log: a segment that is mapped anew has to fault in every page again.
        self._segments: dict[int, MappedBytes | None] = {}

    def entries(self, topic: str, queue_id: int, first: int, last: int) -> bytes:
        """Entries [first, last) as the files have them; zeros where a file is missing or short."""
        parts = []
        while first < last:
            file_first = first - first % self._per_file
            stop = min(last, file_first + self._per_file)
            path = self._paths.queue(topic, queue_id) / position_name(file_first * ENTRY_SIZE)
            size = (stop - first) * ENTRY_SIZE
            found = self._part_of(path, (first - file_first) * ENTRY_SIZE, size)
            parts.append(found + bytes(size - len(found)))
            first = stop
        return b"".join(parts)

    def _part_of(self, path: Path, at: int, size: int) -> bytes:
        try:
            file = self._disk.open(path, write=False)
        except FileNotFoundError:
            return b""
        try:
            return file.pread(size, at)
        finally:
            file.close()

    def segment_at(self, position: int) -> MappedBytes | None:
        """The segment that has a log position, None if there is none; `base` is where it begins."""
        base = position - position % self._segment_size
        if base != self.base:
            segment = self._segments.pop(base) if base in self._segments else self._map(base)
            if len(self._segments) >= SEGMENTS_MAPPED:
                self._release(next(iter(self._segments)))
            self._segments[base], self.base = segment, base
        segment = self._segments[base]
        return segment if segment is not None and position - base < segment.size else None

    def _map(self, base: int) -> MappedBytes | None:
        try:
            file = self._disk.open(self._paths.commit_log / position_name(base), write=False)
        except FileNotFoundError:
            return None
        try:
            # A file longer than a segment, or shorter, is damaged: no further than both agree.
            size = min(file.size(), self._segment_size)
            return MappedBytes(file.map(size)) if size else None
        finally:
            file.close()

    def _release(self, base: int) -> None:
        segment = self._segments.pop(base)
        if segment is not None:
            segment.release()

    def close(self) -> None:
        for base in list(self._segments):
            self._release(base)
        self.base = -1


def read_partition(
    partition: OfflinePartition, decoder: RecordDecoder, on_damage: OnDamage | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a partition. With `on_damage`, what gave no row is told per range; else it is in the decoder."""
    files = StoreFiles(Path(partition.path), partition.segment_size, partition.queue_file_entries)
    try:
        for part in partition.ranges:
            yield from read_range(files, part, decoder)
            if on_damage is not None and decoder.damaged:
                on_damage(part, decoder.damaged)
                decoder.forget_damaged()
        yield from decoder.finish()
    finally:
        files.close()


def read_range(files: StoreFiles, part: QueueRange, decoder: RecordDecoder) -> Iterator[pa.RecordBatch]:
    """The rows of one range that fill batches; the rest waits in the decoder."""
    first = part.start
    while first < part.end:
        last = min(first + ENTRIES_AT_ONCE, part.end)
        in_files = min(last, max(first, part.tail_first))
        entries = files.entries(part.topic, part.queue_id, first, in_files)
        entries += part.tail[
            max(in_files - part.tail_first, 0) * ENTRY_SIZE : max(last - part.tail_first, 0) * ENTRY_SIZE
        ]
        yield from _feed(files, part, decoder, entries, first)
        first = last


def _feed(
    files: StoreFiles, part: QueueRange, decoder: RecordDecoder, entries: bytes, first: int
) -> Iterator[pa.RecordBatch]:
    """Segment by segment: each feed ends at the first entry that leads out of the segment in hand."""
    topic = part.topic.encode()
    count, at = len(entries) // ENTRY_SIZE, 0
    while at < count:
        position, size = _entry(entries, at)
        segment = files.segment_at(position) if size not in (0, FILLER_SIZE) and position >= 0 else None
        if segment is None:
            decoder.note_missing(first + at, GONE if size not in (0, FILLER_SIZE) else NO_RECORD)
            at += 1
            continue
        yield from decoder.feed_entries(
            segment,
            files.base,
            entries[at * ENTRY_SIZE :] if at else entries,
            first + at,
            topic=topic,
            queue_id=part.queue_id,
            by_code=part.coded,
        )
        at = decoder.next_offset - first


def _entry(entries: bytes, number: int) -> tuple[int, int]:
    """Log position and record size of an entry."""
    position, size = _ENTRY.unpack_from(entries, number * ENTRY_SIZE)
    return position, size
