"""`spark.readStream.format("penstock")`: offsets, micro-batches and progress of a stream.

    initialOffset     startingPosition, resolved when the query starts for the first time
    latestOffset      the end of the next micro-batch: what can be read now, within the limits
    partitions        the slices between two offsets, packed into few tasks
    read              a task, on an executor (`live`)

Rules: Spark's checkpoint is the truth. The start that Spark hands to `latestOffset` is the end of everything that is
completed, so the group's offsets are committed there: also the last batch of an AvailableNow run and a stream that
idles show no lag that is none. The end of the first micro-batch says where that began: Spark does not keep it, and
run again the batch must begin there, not where `startingPosition` leads by then. Offsets have sorted keys (Spark
compares their text) and never name a message that is not yet there for everybody. One process on the driver calls
everything but `read`, one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.access import explaining
from penstock.client.scan import Scan
from penstock.runtime import SystemClock
from penstock.spark.batch import LivePartition
from penstock.spark.gaps import Gaps
from penstock.spark.group_progress import GroupProgress
from penstock.spark.live import LiveRead, check_beginnings, shared_scan
from penstock.spark.options import ReadOptions
from penstock.spark.planning import cores, stream_tasks
from penstock.spark.positions import Offsets, resolve, sorted_offsets, split_beginning, with_beginning
from penstock.spark.schema import Selection
from penstock.spark.tracking import QueueTracker

if TYPE_CHECKING:
    import pyarrow as pa

# An idle query asks again at once; so the answer waits a little for news.
IDLE_WAIT_S = 0.1
IDLE_PAUSE_S = 0.02
FINISH_S = 5.0


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text. A copy of it goes to every task; that one only reads."""

    def __init__(self, options: ReadOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._gaps = Gaps(options.on_gap, options.gap_table)
        self._scan: Scan | None = None
        self._tracker: QueueTracker | None = None
        self._progress: GroupProgress | None = None
        # With AvailableNow: where to stop.
        self._target: Offsets | None = None
        self._latest: Offsets = {}
        # What Spark was told as the start of a query without a checkpoint.
        self._initial: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: connections stay here."""
        return {**self.__dict__, "_scan": None, "_tracker": None, "_progress": None}

    def _started(self) -> QueueTracker:
        if self._tracker is None:
            settings = self._options.access.settings()
            self._scan = Scan(self._options.nameserver, retry_ms=self._options.retry_ms, **settings)
            self._tracker = QueueTracker(self._scan, self._options, self._gaps)
            self._progress = GroupProgress(self._scan, self._options.group)
        return self._tracker

    # -- offsets ---------------------------------------------------------------------------------------------

    @explaining()
    def initialOffset(self) -> Offsets:  # noqa: N802
        tracker = self._started()
        assert self._scan is not None
        tracker.all_ranges()
        found = resolve(
            self._options.starting_position,
            "startingPosition",
            tracker.known_ranges(),
            self._scan.offsets_by_time,
        )
        self._initial = sorted_offsets({queue.key: offset for queue, offset in found.items()})
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows_per_trigger:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @explaining()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        tracker = self._started()
        self._target = {key: item.max for key, item in tracker.all_ranges().items()}

    @explaining()
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        tracker = self._started()
        self._commit(start)
        at, _ = split_beginning(start)
        end = self._end_from(tracker, at, limit)
        if end == at:
            return start  # to the letter: any other text is a new place for Spark
        return with_beginning(end, at) if start == self._initial else end

    def _end_from(self, tracker: QueueTracker, start: Offsets, limit: ReadLimit) -> Offsets:
        if self._target is None:
            ends = self._wait_for_news(tracker, start)
        else:
            known = tracker.known_ranges()
            # Spark asks where to stop before it asks for the start, so `latest` may lie behind it: the queue did not
            # get shorter, unless what it has now says so.
            ranges = {
                queue.key: item._replace(
                    max=max(self._target[queue.key], min(item.max, start.get(queue.key, 0)))
                )
                for queue, item in known.items()
                if queue.key in self._target
            }
            ends = tracker.ends(start, ranges, patient=False)
            if ends == start and self._progress is not None:
                # The run is over, and Spark does not wait for `stop`.
                self._progress.finish(FINISH_S)
        self._latest = ends
        if isinstance(limit, ReadAllAvailable):
            return tracker.limited(start, ends, 0, 0)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows_per_trigger
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger
        return tracker.limited(start, ends, rows, size)

    def _wait_for_news(self, tracker: QueueTracker, start: Offsets) -> Offsets:
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + IDLE_WAIT_S * 1000
        while True:
            ends = tracker.ends(start, tracker.ranges(), patient=True)
            if ends != start or clock.monotonic_ms() >= until_ms:
                return ends
            clock.sleep(IDLE_PAUSE_S)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """How far the queues reach: with the end of a batch, Spark's own figure of the lag."""
        return self._latest or None

    def commit(self, end: Offsets) -> None:
        self._commit(end)

    def _commit(self, offsets: Offsets) -> None:
        tracker = self._started()
        if self._progress is not None and self._options.group:
            own, _ = split_beginning(offsets)
            self._progress.moved({tracker.queue(key): offset for key, offset in own.items()})

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.finish(FINISH_S)
        scan, self._scan, self._tracker, self._progress = self._scan, None, None, None
        if scan is not None:
            scan.close()

    # -- micro-batches ---------------------------------------------------------------------------------------

    @explaining()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[LivePartition]:
        tracker = self._started()
        if start == end:
            return []  # nothing, also where the end tells of a beginning: that is of the batch before
        stop, began = split_beginning(end)
        begin = began or split_beginning(start)[0]
        slices = check_beginnings(tracker.slices(begin, stop), tracker.known_ranges(), self._gaps)
        tasks = stream_tasks(slices, self._options.min_partitions, self._options.cores or cores())
        return [LivePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LivePartition):
            return iter(())  # Spark has one task with nothing to do where there is no partition
        options = self._options
        reading = LiveRead(
            shared_scan(options), options, self._selection, self._gaps, options.tags, options.key
        )
        return reading.batches(partition.task)
