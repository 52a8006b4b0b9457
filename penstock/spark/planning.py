"""Planning: ranges of queues become tasks, and limits of a micro-batch become ranges.

    batch      slices are filled into tasks one after the other and cut where a task is full: every core has work
    stream     whole slices are packed into few tasks, largest first, because each task costs tens of milliseconds;
               only `minPartitions` cuts them, and then at round offsets, the same ones however often it is planned

Rules: what is planned covers every offset of the input once; the same input gives the same plan. Pure functions.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.client.scan_results import QueueId

K = TypeVar("K")
# A batch task with fewer rows costs more to start than it reads.
ROWS_WORTH_A_TASK = 16_384
# A batch task with more takes long to repeat when it fails. With less, starting it shows: 40 ms in the JVM, and a
# core that waits until the first rows have come through Python. A segment of the log is read in a second or two.
BYTES_OF_A_TASK = 1 << 30
# What a record is taken for where nobody can tell.
ROW_BYTES = 1024
# A micro-batch below this is read by one task.
ROWS_WORTH_A_STREAM_TASK = 32_768
STREAM_CUT_MIN = 4_096


class QueueSlice(NamedTuple):
    """Offsets [start, end) of a queue."""

    queue: QueueId
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


Task = tuple[QueueSlice, ...]


def cores() -> int:
    """Cores of this machine that may be used: what a local master has, and a first guess for a cluster."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


# -- batch -------------------------------------------------------------------------------------------------------


def batch_tasks(
    slices: Iterable[QueueSlice], min_partitions: int, core_count: int, row_bytes: int = ROW_BYTES
) -> list[Task]:
    """Tasks of about equal numbers of rows."""
    wanted = sorted(item for item in slices if item.rows > 0)
    total = sum(item.rows for item in wanted)
    return _fill(wanted, batch_count(total, min_partitions, core_count, row_bytes))


def batch_count(total: int, min_partitions: int, core_count: int, row_bytes: int = ROW_BYTES) -> int:
    """How many tasks so many rows of this size are worth."""
    if min_partitions:
        return min(total, min_partitions)
    few = min(core_count, _ceil(total, ROWS_WORTH_A_TASK))
    rows_of_a_task = max(1, BYTES_OF_A_TASK // row_bytes)
    # Whole rounds: a last round with one task would leave the other cores idle.
    many = _ceil(_ceil(total, rows_of_a_task), core_count) * core_count if total > rows_of_a_task else 0
    return min(total, max(few, many))


def _fill(slices: Sequence[QueueSlice], count: int) -> list[Task]:
    total = sum(item.rows for item in slices)
    tasks: list[Task] = []
    current: list[QueueSlice] = []
    done = 0
    for item in slices:
        start = item.start
        while start < item.end:
            # Where the current task ends, counted in rows of all slices; shares differ by one row at most.
            limit = (len(tasks) + 1) * total // count
            end = min(item.end, start + limit - done)
            current.append(QueueSlice(item.queue, start, end))
            done += end - start
            start = end
            if done == limit:
                tasks.append(tuple(current))
                current = []
    return tasks


# -- stream ------------------------------------------------------------------------------------------------------


def stream_tasks(slices: Iterable[QueueSlice], min_partitions: int, core_count: int) -> list[Task]:
    """As few tasks as pay off, with whole slices unless more tasks are asked for than there are slices."""
    wanted = sorted(item for item in slices if item.rows > 0)
    total = sum(item.rows for item in wanted)
    count = min_partitions or min(core_count, _ceil(total, ROWS_WORTH_A_STREAM_TASK))
    if min_partitions > len(wanted):
        wanted = _cut(wanted, total, min_partitions)
    return _pack(wanted, count)


def _cut(slices: Sequence[QueueSlice], total: int, count: int) -> list[QueueSlice]:
    """Cut at multiples of a power of two."""
    step = STREAM_CUT_MIN
    while step * 2 * count <= total:
        step *= 2
    pieces = []
    for item in slices:
        start = item.start
        while start < item.end:
            end = min((start // step + 1) * step, item.end)
            pieces.append(QueueSlice(item.queue, start, end))
            start = end
    return pieces


def _pack(slices: Sequence[QueueSlice], count: int) -> list[Task]:
    count = min(count, len(slices))
    if count <= 1:
        return [_joined(slices)] if slices else []
    bins: list[list[QueueSlice]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for item in sorted(slices, key=lambda item: (-item.rows, item)):
        rows, number = heapq.heappop(heap)
        bins[number].append(item)
        heapq.heappush(heap, (rows + item.rows, number))
    return [_joined(some) for some in bins]


def _joined(slices: Iterable[QueueSlice]) -> Task:
    """In order, with neighbours made one."""
    joined: list[QueueSlice] = []
    for item in sorted(slices):
        is_next = bool(joined) and joined[-1].queue == item.queue and joined[-1].end == item.start
        start = joined.pop().start if is_next else item.start
        joined.append(QueueSlice(item.queue, start, item.end))
    return tuple(joined)


# -- limits ------------------------------------------------------------------------------------------------------


def share(limit: int, lags: Mapping[K, int]) -> dict[K, int]:
    """How much of a limit each gets: in proportion to its lag, at least 1 where there is any, never more than it."""
    behind = {key: lag for key, lag in lags.items() if lag > 0}
    total = sum(behind.values())
    if total <= limit:
        return behind
    return {key: max(1, limit * lag // total) for key, lag in behind.items()}


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
