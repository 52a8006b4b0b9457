"""A store directory without a broker: what is in it, and how its reading is divided among tasks.

The driver opens the directory read-only, once: no lock, no change, also on one that a broker owns or that a crash
left behind; what recovery finds out about the end of the log stays in memory. Tasks get ranges and read the files
themselves (`offline_files.py`): they recover nothing. Entries that are in memory only travel inside the partition.

Partitions are cut along the log, not along queues: a task reads all wanted queues over its own part of the log, so
every byte of it is read by one task. Inside a task each queue is read in its order.

    with OfflineStore("/data/store") as store:
        parts = store.splits(store.queues(["orders"]), 8)

Runs on the driver. Never writes to the directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from penstock._hot.layout import ENTRY_SIZE
from penstock.errors import OptionError, StoreFormatError
from penstock.runtime import Disk, Runtime
from penstock.spark.batches import RecordDecoder
from penstock.spark.offline_files import (
    OfflinePartition,
    OnDamage,
    QueueRange,
    StoreFiles,
    read_partition,
)
from penstock.store import MessageStore
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.layout import StorePaths
from penstock.store.queue_table import Manifest
from penstock.store.sizes import GivenSizes, detect_sizes

# (topic, broker, queue id); the broker is "" because the files do not say whose they are.
QueueKey = tuple[str, str, int]
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
ROWS_SAMPLED = 256
Ranges = Mapping[QueueKey, tuple[int, int]]


class OfflineStore:
    """See the module's text. Opens the directory when it is first asked something; a pickled one opens anew."""

    def __init__(self, path: str | Path, given: GivenSizes | None = None) -> None:
        self.path = str(path)
        self._given = given or GivenSizes()
        self._opened: MessageStore | None = None
        self._tails: dict[QueueKey, tuple[int, bytes]] = {}

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return OfflineStore, (self.path, self._given)

    def close(self) -> None:
        store, self._opened = getattr(self, "_opened", None), None
        if store is not None:
            store.close()

    def _store(self) -> MessageStore:
        if self._opened is None:
            runtime, path = Runtime.system(), Path(self.path)
            if not runtime.disk.is_dir(StorePaths(path).commit_log):
                raise StoreFormatError(
                    f"{self.path} is not a store",
                    "name a directory that has a commitlog folder, and that every executor sees under this path",
                )
            sizes = detect_sizes(runtime.disk, StorePaths(path), self._known_sizes(runtime.disk))
            options = replace(sizes.options(), index_enabled=False)
            self._opened = MessageStore.open(path, options, runtime=runtime, read_only=True, background=False)
        return self._opened

    def _known_sizes(self, disk: Disk) -> GivenSizes:
        """What the caller said, and what a directory of Penstock's says of itself: an empty one has no files."""
        paths, given = StorePaths(Path(self.path)), self._given
        try:
            manifest = Manifest.decode(disk.read(paths.manifest))
        except (OSError, ValueError):
            return given
        return replace(
            given,
            segment_size_bytes=given.segment_size_bytes or manifest.segment_size_bytes or None,
            queue_file_entries=given.queue_file_entries or manifest.queue_file_entries or None,
        )

    # -- what is there ---------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Every topic that has a queue, also those of brokers' own."""
        return sorted({queue.topic for queue in self._store().queues})

    def queues(self, topics: Iterable[str] | None = None) -> dict[QueueKey, tuple[int, int]]:
        """(first offset that is there, next offset) of the queues of these topics, or of all."""
        wanted = None if topics is None else frozenset(topics)
        found = {
            (queue.topic, "", queue.queue_id): (queue.min_offset, queue.max_offset)
            for queue in self._store().queues
            if wanted is None or queue.topic in wanted
        }
        return dict(sorted(found.items()))

    def offset_by_time(self, queue: QueueKey, time_ms: int) -> int:
        """The first offset stored at this time or later; the end if there is none."""
        topic, _, queue_id = queue
        return self._store().reader.offset_by_time(topic, queue_id, time_ms)

    # -- dividing --------------------------------------------------------------------------------------------

    def partition(self, ranges: Iterable[tuple[QueueKey, int, int]]) -> OfflinePartition:
        """What one task needs to read these ranges: (queue, start, end)."""
        options = self._store().options
        parts = tuple(self._range(queue, start, end) for queue, start, end in ranges if start < end)
        return OfflinePartition(self.path, options.segment_size_bytes, options.queue_file_entries, parts)

    def splits(self, ranges: Ranges, count: int) -> list[OfflinePartition]:
        """The ranges in at most `count` partitions, cut at places in the log that halve the largest queue evenly."""
        if count < 1:
            raise OptionError(f"{count} partitions", "ask for at least one")
        wanted = {key: (start, end) for key, (start, end) in ranges.items() if start < end}
        if not wanted:
            return []
        starts = {key: start for key, (start, _) in wanted.items()}
        partitions = []
        for cut in [*self._cuts(wanted, count), None]:
            ends = {}
            for key, (_, end) in wanted.items():
                ends[key] = end if cut is None else max(starts[key], self._offset_at(key, cut, end))
            part = [(key, starts[key], ends[key]) for key in wanted if starts[key] < ends[key]]
            if part:
                partitions.append(self.partition(part))
            starts = ends
        return partitions

    def row_bytes(self, ranges: Ranges) -> int:
        """About how large a record is, by some of every queue, each queue counted by its rows. All of them together
        are no larger than the log: a damaged entry that claims a gigabyte must not turn every row into a task."""
        rows = total = 0
        each = max(1, ROWS_SAMPLED // max(1, len(ranges)))
        for key, (start, end) in ranges.items():
            queue, step = self._queue(key), max(1, (end - start) // each)
            entries = (queue.entry(offset) for offset in range(start, end, step))
            sizes = [entry.size for entry in entries if entry and entry.is_valid and not entry.is_filler]
            if sizes:
                rows += end - start
                total += sum(sizes) * (end - start) // len(sizes)
        log = self._store().log
        return max(1, min(total, log.max_offset - log.min_offset) // rows) if rows else 1

    def _cuts(self, ranges: Ranges, count: int) -> list[int]:
        """Log positions between partitions, ascending."""
        largest = max(ranges, key=lambda key: ranges[key][1] - ranges[key][0])
        start, end = ranges[largest]
        queue = self._queue(largest)
        cuts = set()
        for number in range(1, count):
            entry = queue.entry(start + (end - start) * number // count)
            if entry is not None and entry.is_valid and not entry.is_filler:
                cuts.add(entry.position)
        return sorted(cuts)

    def _offset_at(self, key: QueueKey, position: int, end: int) -> int:
        """The first offset before `end` whose record is at or behind a log position. Offsets without a record count
        as those before them: all that matters is that every partition says the same."""
        queue = self._queue(key)
        low, high = queue.min_offset, min(end, queue.max_offset)
        while low < high:
            middle = (low + high) // 2
            probe = middle
            entry = queue.entry(probe)
            while probe + 1 < high and (entry is None or entry.is_filler):
                probe += 1
                entry = queue.entry(probe)
            if entry is None or entry.is_filler or entry.position >= position:
                high = middle
            else:
                low = probe + 1
        return low

    def _queue(self, key: QueueKey) -> ConsumeQueue:
        topic, _, queue_id = key
        queue = self._store().queues.get(topic, queue_id)
        if queue is None:
            raise OptionError(f"{self.path} has no queue {queue_id} of topic {topic!r}", self._known())
        return queue

    def _known(self) -> str:
        topics = self.topics()
        more = f" and {len(topics) - 10} more" if len(topics) > 10 else ""
        return f"it has {', '.join(topics[:10])}{more}" if topics else "it has no topics"

    def _range(self, key: QueueKey, start: int, end: int) -> QueueRange:
        (topic, _, queue_id), coded = key, self._is_coded(key[0])
        tail_first, tail = self._tail(key)
        if end <= tail_first:
            return QueueRange(topic, queue_id, start, end, end, coded=coded)
        first = max(start, tail_first)
        data = tail[(first - tail_first) * ENTRY_SIZE : (end - tail_first) * ENTRY_SIZE]
        return QueueRange(topic, queue_id, start, end, first, data, coded)

    def _is_coded(self, topic: str) -> bool:
        """Whether entries of a topic hold hashes of tags: those of delayed messages hold times, and RocketMQ's
        extension puts places of its own files there."""
        extended = Path(self.path) / "consumequeue_ext" / topic
        return topic != SCHEDULE_TOPIC and not Runtime.system().disk.is_dir(extended)

    def _tail(self, key: QueueKey) -> tuple[int, bytes]:
        """Entries that tasks will not find in files, and the offset of the first of them."""
        if key not in self._tails:
            queue, options = self._queue(key), self._store().options
            first, last = queue.state.tail_first, queue.max_offset
            entries = queue.entry_bytes(first, last)
            # A crash, or a broker at work, makes recovery build entries again that are in the files all the same.
            files = StoreFiles(Path(self.path), options.segment_size_bytes, options.queue_file_entries)
            same = _same_entries(entries, files.entries(key[0], key[2], first, last))
            self._tails[key] = (first + same, entries[same * ENTRY_SIZE :])
        return self._tails[key]

    # -- reading ---------------------------------------------------------------------------------------------

    @staticmethod
    def read(
        partition: OfflinePartition, decoder: RecordDecoder, on_damage: OnDamage | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; for executors, which need nothing else of this class."""
        return read_partition(partition, decoder, on_damage)


def _same_entries(one: bytes, other: bytes) -> int:
    """How many entries both have in common from the first on."""
    low, high = 0, min(len(one), len(other)) // ENTRY_SIZE
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * ENTRY_SIZE : middle * ENTRY_SIZE] == other[low * ENTRY_SIZE : middle * ENTRY_SIZE]:
            low = middle
        else:
            high = middle - 1
    return low
