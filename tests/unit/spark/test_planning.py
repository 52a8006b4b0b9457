"""Slices, tasks and shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.scan_results import QueueId
from penstock.spark.planning import (
    BYTES_OF_A_TASK,
    ROW_BYTES,
    ROWS_WORTH_A_STREAM_TASK,
    ROWS_WORTH_A_TASK,
    QueueSlice,
    batch_count,
    batch_tasks,
    share,
    stream_tasks,
)


def slices(*rows: int, start: int = 0) -> list[QueueSlice]:
    return [QueueSlice(QueueId("T", "b", n), start, start + count) for n, count in enumerate(rows)]


def covered(tasks) -> dict[int, list[tuple[int, int]]]:
    """Ranges per queue, joined; fails if any offset is in two tasks."""
    found: dict[int, list[tuple[int, int]]] = {}
    for item in sorted(item for task in tasks for item in task):
        ranges = found.setdefault(item.queue.queue_id, [])
        assert item.start < item.end
        if ranges and ranges[-1][1] >= item.start:
            assert ranges[-1][1] == item.start, "an offset is read twice"
            ranges[-1] = (ranges[-1][0], item.end)
        else:
            ranges.append((item.start, item.end))
    return found


counts = st.lists(st.integers(0, 300_000), max_size=8)


@given(counts, st.integers(0, 40), st.integers(1, 16), st.integers(0, 10_000))
def test_every_offset_is_planned_once(rows, least, cores, start):
    wanted = {n: [(start, start + count)] for n, count in enumerate(rows) if count}
    for plan in (batch_tasks, stream_tasks):
        tasks = plan(slices(*rows, start=start), least, cores)
        assert covered(tasks) == wanted
        assert all(tasks)
        assert tasks == plan(slices(*rows, start=start), least, cores)


@given(counts, st.integers(1, 40))
def test_batch_tasks_are_even(rows, least):
    sizes = [sum(item.rows for item in task) for task in batch_tasks(slices(*rows), least, 2)]
    assert len(sizes) == min(least, sum(rows))
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_small_batch_is_one_task_and_a_large_one_keeps_every_core_busy():
    assert len(batch_tasks(slices(10, 20), 0, 8)) == 1
    assert len(batch_tasks(slices(ROWS_WORTH_A_TASK * 3), 0, 8)) == 3
    assert len(batch_tasks(slices(ROWS_WORTH_A_TASK * 10), 0, 8)) == 8
    assert len(batch_tasks(slices(BYTES_OF_A_TASK // ROW_BYTES * 9), 0, 8)) == 16, "whole rounds"
    assert batch_tasks([], 0, 8) == []


def test_small_records_make_fewer_tasks_and_large_ones_more():
    rows = BYTES_OF_A_TASK // ROW_BYTES * 16
    assert batch_count(rows, 0, 2, ROW_BYTES) == 16
    assert batch_count(rows, 0, 2, ROW_BYTES // 4) == 4
    assert batch_count(rows, 0, 2, ROW_BYTES // 16) == 2, "a task for each core"
    assert batch_count(100, 0, 2, BYTES_OF_A_TASK // 10) == 10
    assert batch_count(3, 0, 2, BYTES_OF_A_TASK * 2) == 3, "no more tasks than rows"


def test_a_micro_batch_is_packed_into_few_tasks():
    assert len(stream_tasks(slices(*[10] * 8), 0, 4)) == 1
    tasks = stream_tasks(slices(*[ROWS_WORTH_A_STREAM_TASK] * 8), 0, 2)
    assert [sum(item.rows for item in task) for task in tasks] == [ROWS_WORTH_A_STREAM_TASK * 4] * 2
    assert len(stream_tasks(slices(10_000_000), 0, 4)) == 1, "queues are not cut"


def test_packing_puts_the_largest_first():
    tasks = stream_tasks(slices(900_000, 300_000, 300_000, 300_000), 0, 2)
    assert sorted(sum(item.rows for item in task) for task in tasks) == [900_000, 900_000]


def test_min_partitions_cuts_streams_at_round_offsets():
    tasks = stream_tasks(slices(100_000, start=1_234), 4, 2)
    assert len(tasks) == 4
    inner = {item.start for task in tasks for item in task} - {1_234}
    assert inner
    assert all(start % 4_096 == 0 for start in inner)
    other = {item.start for task in stream_tasks(slices(100_000, start=1_234), 4, 16) for item in task}
    assert other == inner | {1_234}


def test_neighbours_in_one_task_are_one_slice():
    (task,) = stream_tasks([*slices(100), QueueSlice(QueueId("T", "b", 0), 100, 150)], 1, 1)
    assert task == (QueueSlice(QueueId("T", "b", 0), 0, 150),)


# -- limits ------------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_by_lag():
    assert share(100, {"a": 900, "b": 100, "c": 0}) == {"a": 90, "b": 10}
    assert share(1_000, {"a": 900, "b": 100}) == {"a": 900, "b": 100}
    assert share(10, {"a": 1_000_000, "b": 1}) == {"a": 9, "b": 1}
    assert share(1, {"a": 5, "b": 5, "c": 5}) == {"a": 1, "b": 1, "c": 1}, "nobody waits for ever"


@given(st.integers(1, 10**6), st.dictionaries(st.integers(0, 30), st.integers(-5, 10**9), max_size=20))
def test_shares_are_within_the_limit_but_for_the_ones(limit, lags):
    found = share(limit, lags)
    assert all(1 <= found[key] <= lags[key] for key in found)
    assert {key for key, lag in lags.items() if lag > 0} == set(found)
    assert sum(found.values()) <= limit + len(found)


@pytest.mark.parametrize("plan", [batch_tasks, stream_tasks])
def test_more_tasks_than_rows_are_not_made(plan):
    assert len(plan(slices(3), 10, 2)) <= 3
