"""A log whose beginning is gone: both sides agree which offsets of each queue are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.store import MessageStore
from tests.interop import penstock_side
from tests.interop.conftest import CopyStore, WrittenStore, WrittenStores
from tests.interop.java_messages import SMALL_SIZES, ReadResult, StoredMessage
from tests.interop.java_store import JavaStore
from tests.interop.penstock_side import OPTIONS, by_queue, read_queue
from tests.interop.workload import QueueKey, expected_of_java, in_queues, more_messages

DELETED = 2


def ranges_left(records: Sequence[StoredMessage], log_min: int) -> dict[QueueKey, tuple[int, int]]:
    """First offset whose record is still there, and the end, of every queue that ever was."""
    return {
        key: (sum(record.physical_offset < log_min for record in queue), len(queue))
        for key, queue in in_queues(records).items()
    }


def check_java(java: JavaStore, read: ReadResult, records: Sequence[StoredMessage], log_min: int) -> None:
    """The 4 line does not move the beginning of a queue that has nothing left; its reads say so then."""
    assert read.min_physical_offset == log_min
    ranges = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in read.queues}
    expected = ranges_left(records, log_min)
    empty = {key for key, (first, end) in expected.items() if first == end}
    assert empty
    if java.version.startswith("4."):
        assert {(gap.topic, gap.queue_id) for gap in read.gaps} == empty
        for key in empty:
            expected[key] = (0, expected[key][1])
    else:
        assert read.gaps == ()
    assert ranges == expected


def check_penstock(store: MessageStore, records: Sequence[StoredMessage], log_min: int) -> None:
    penstock_side.audited(store)
    assert store.log.min_offset == log_min
    left = ranges_left(records, log_min)
    assert {key: (store.min_offset(*key), store.max_offset(*key)) for key in left} == left


def delete_oldest(directory: Path) -> None:
    """As RocketMQ's retention leaves a store: segments are gone, and queue files that point only to them."""
    log_min = DELETED * SMALL_SIZES.segment_bytes
    for path in sorted((directory / "commitlog").iterdir())[:DELETED]:
        path.unlink()
    for queue in (directory / "consumequeue").glob("*/*"):
        for path in sorted(queue.iterdir())[:-1]:
            last_entry = path.read_bytes()[-20:]
            if int.from_bytes(last_entry[:8], "big") < log_min:
                path.unlink()


@pytest.mark.feature("store-retention", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I4")
def test_both_begin_where_the_log_of_java_begins(
    java: JavaStore, written_stores: WrittenStores, copy_store: CopyStore
) -> None:
    written = written_stores.get(java, "java-clean")
    directory = copy_store(written.directory)
    delete_oldest(directory)
    assert not (directory / "consumequeue" / "events" / "0" / f"{0:020d}").exists()
    log_min = DELETED * SMALL_SIZES.segment_bytes
    read = java.read(copy_store(directory), halt=True)
    check_java(java, read, written.records, log_min)
    with MessageStore.open(directory, OPTIONS, read_only=True) as store:
        check_penstock(store, written.records, log_min)
        for key, messages in by_queue(read).items():
            assert read_queue(store, *key) == messages
    records = written.records + penstock_side.write(directory, more_messages(8, "after"))
    with MessageStore.open(directory, OPTIONS) as store:
        check_penstock(store, records, log_min)


@pytest.mark.feature("store-retention", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-42")
def test_both_begin_where_penstock_deleted(
    java: JavaStore, penstock_written: WrittenStore, copy_store: CopyStore
) -> None:
    directory = copy_store(penstock_written.directory)
    records = list(penstock_written.records)
    options = replace(OPTIONS, file_reserved_hours=0, delete_batch_max=DELETED)
    log_min = DELETED * SMALL_SIZES.segment_bytes
    with MessageStore.open(directory, options, background=False) as store:
        store.keeper.request_clean()
        assert store.keeper.clean() == DELETED
        check_penstock(store, records, log_min)
    more = more_messages(8, "java")
    records += expected_of_java(more, java.write(directory, more).puts)
    check_java(java, java.read(copy_store(directory), halt=True), records, log_min)
    with MessageStore.open(directory, OPTIONS) as store:
        check_penstock(store, records, log_min)
