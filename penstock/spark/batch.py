"""Batch reads: what is covered is fixed once, divided into tasks, and read.

    snapshot      when `load()` makes the source: which queues, from which offset to which
    partitions    when Spark plans an action: the snapshot, in tasks
    read          a task, on an executor: from brokers (`live`), or from the files of a store directory (`offline`)

Rules: a DataFrame and all that are derived from it read one snapshot, however late they are planned. What retention
deletes in between is a gap. Spark applies the filters of a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.access import explaining
from penstock.client.async_admin import is_internal_topic
from penstock.client.scan import Scan
from penstock.client.scan_results import OffsetRange, QueueId
from penstock.errors import OptionError, RouteNotFoundError
from penstock.spark.gaps import Gaps, reason_for
from penstock.spark.live import LiveRead, check_beginnings, find_queues, row_bytes, shared_scan
from penstock.spark.options import ReadOptions, near_names
from penstock.spark.packs import packed
from penstock.spark.planning import ROW_BYTES, QueueSlice, Task, batch_count, batch_tasks, cores
from penstock.spark.positions import check_ends, check_order, resolve
from penstock.spark.schema import Selection
from penstock.spark.settling import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.batches import Damage
    from penstock.spark.offline import OfflineStore
    from penstock.spark.offline_files import OfflinePartition, QueueRange

ByTime = Callable[[Mapping[QueueId, int]], Mapping[QueueId, int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a batch read covers: queues with their ranges then, and the slices between the two positions."""

    ranges: tuple[tuple[QueueId, OffsetRange], ...]
    slices: tuple[QueueSlice, ...]


def snapshot(options: ReadOptions) -> Snapshot:
    """Ask what there is and fix what is read of it."""
    if options.is_offline:
        from penstock.spark.offline import OfflineStore

        with OfflineStore(options.path) as store:
            return _between(options, store_ranges(store, options), store_times(store))
    with explaining(), Scan(options.nameserver, **options.access.settings()) as scan:
        queues = find_queues(scan, options)
        if not queues:
            raise RouteNotFoundError(
                f"no topic matches {options.topic_pattern!r}",
                "`penstock topic list` shows those that there are",
            )
        return _between(options, scan.ranges(queues), scan.offsets_by_time)


def _between(options: ReadOptions, ranges: Mapping[QueueId, OffsetRange], by_time: ByTime) -> Snapshot:
    starting, ending = options.starting_position, options.ending_position
    starts = resolve(starting, "startingPosition", ranges, by_time)
    ends = resolve(ending, "endingPosition", ranges, by_time)
    check_ends(ending, ends, ranges)
    check_order(starting, ending, starts, ends)
    slices = (QueueSlice(queue, starts[queue], ends[queue]) for queue in sorted(ranges))
    return Snapshot(tuple(sorted(ranges.items())), tuple(item for item in slices if item.rows > 0))


class BatchReader(DataSourceReader):
    """What both kinds have in common. Planned on the driver, copied to every task."""

    def __init__(self, options: ReadOptions, selection: Selection, taken: Snapshot) -> None:
        self._options = options
        self._selection = selection
        self._taken = taken
        self._gaps = Gaps(options.on_gap, options.gap_table)

    def _wanted(self) -> list[QueueSlice]:
        """What retention leaves of the snapshot."""
        return check_beginnings(self._taken.slices, dict(self._taken.ranges), self._gaps)

    def _handed_over(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed(batches) if self._options.packed else batches


# -- live --------------------------------------------------------------------------------------------------------


class LivePartition(InputPartition):
    """The slices of one task, of a batch or a stream."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class LiveReader(BatchReader):
    """Reads from brokers."""

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with explaining(), Scan(options.nameserver, retry_ms=0, **options.access.settings()) as scan:
            slices = self._wanted()
            size = ROW_BYTES if options.min_partitions else row_bytes(scan, slices)
        tasks = batch_tasks(slices, options.min_partitions, options.cores or cores(), size)
        settle()
        return [LivePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LivePartition):
            return iter(())  # Spark has one task with nothing to do where there is no partition
        options = self._options
        scan = shared_scan(options)
        reading = LiveRead(scan, options, self._selection, self._gaps, options.tags, options.key)
        return self._handed_over(reading.batches(partition.task))


# -- offline -----------------------------------------------------------------------------------------------------


class StorePartition(InputPartition):
    """What one task reads of a store directory."""

    def __init__(self, part: OfflinePartition) -> None:
        super().__init__(None)
        self.part = part


class StoreReader(BatchReader):
    """Reads the files of a store directory."""

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.offline import OfflineStore

        options = self._options
        with OfflineStore(options.path) as store:
            slices = self._wanted()
            ranges = {(item.queue.topic, "", item.queue.queue_id): (item.start, item.end) for item in slices}
            total = sum(item.rows for item in slices)
            row_bytes = store.row_bytes(ranges)
            count = batch_count(total, options.min_partitions, options.cores or cores(), row_bytes)
            parts = store.splits(ranges, count) if count else []
        settle()
        return [StorePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.batches import RecordDecoder
        from penstock.spark.offline import OfflineStore

        if not isinstance(partition, StorePartition):
            return iter(())
        decoder = RecordDecoder(
            self._selection.names,
            nullable=self._selection.nullable,
            rows=self._options.batch_rows,
            size=self._options.batch_bytes,
            tags=self._options.tags,
            key=self._options.key,
            verify=self._options.verify,
        )
        return self._handed_over(OfflineStore.read(partition.part, decoder, self._damaged))

    def _damaged(self, part: QueueRange, damages: list[Damage]) -> None:
        queue = QueueId(part.topic, "", part.queue_id)
        for item in damages:
            reason = reason_for(item.reason)
            self._gaps.found(queue, item.queue_offset, item.last_offset, reason, item.reason, where="reading")


def store_ranges(store: OfflineStore, options: ReadOptions) -> dict[QueueId, OffsetRange]:
    """The queues that are read of a directory: those of the topics named, or of all that are not internal."""
    known = store.topics()
    if options.topic:
        for name in options.topic:
            if name not in known:
                near = near_names(name, known)
                raise OptionError(
                    f"{options.path} has no topic {name!r}",
                    f"did you mean {near}" if near else f"it has: {', '.join(known[:20]) or 'none'}",
                )
        topics: Iterable[str] = options.topic
    elif options.topic_pattern:
        topics = [name for name in known if re.fullmatch(options.topic_pattern, name)]
    else:
        topics = [name for name in known if not is_internal_topic(name)]
    return {QueueId(*place): OffsetRange(*found) for place, found in store.queues(topics).items()}


def store_times(store: OfflineStore) -> ByTime:
    def by_time(times: Mapping[QueueId, int]) -> dict[QueueId, int]:
        return {
            queue: store.offset_by_time((queue.topic, "", queue.queue_id), at) for queue, at in times.items()
        }

    return by_time
