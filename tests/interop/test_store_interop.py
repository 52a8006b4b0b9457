"""One store, two programs: what either wrote, the other opens, verifies and reads message for message."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store import GetStatus, MessageStore, TimeBoundary
from tests.interop import penstock_side
from tests.interop.conftest import CopyStore, WrittenStore, WrittenStores
from tests.interop.java_messages import StoredMessage
from tests.interop.java_store import JavaStore
from tests.interop.penstock_side import OPTIONS, check_content, check_java_content, java_form
from tests.interop.workload import (
    EVENTS_COUNT,
    STORE_HOST_V6,
    expected_of_java,
    in_queues,
    keys_of,
    more_messages,
    queries,
    with_key,
)


def files_in(directory: Path) -> int:
    return len(list(directory.iterdir()))


def check_keys(store: MessageStore, written: WrittenStore) -> None:
    for topic, key in queries(with_version_2=written.has_version_2):
        found = [java_form(message) for message in store.reader.query(topic, key, 64)]
        assert found == with_key(written.records, topic, key), f"{topic[:40]} {key}"


def check_java_keys(written: WrittenStore, *, complete: bool) -> None:
    """Java compares only hashes, so what it finds is reduced to what has the key."""
    for (topic, key), hits in written.java.hits.items():
        found = [hit for hit in reversed(hits) if hit.topic == topic and key in keys_of(hit)]
        expected = with_key(written.records, topic, key)
        if complete:
            assert found == expected, f"{topic[:40]} {key}"
        else:
            assert all(hit in expected for hit in found), f"{topic[:40]} {key}"


def check_positions_of_java(written: WrittenStore) -> None:
    by_position = {record.physical_offset: record for record in written.records}
    assert len(written.java.at) > 100
    for position, found in written.java.at.items():
        assert found is not None
        penstock_side.same(by_position[position], found, f"position {position}")


# -- Java writes, Penstock reads -------------------------------------------------------------------------------


def test_java_store_is_large_enough_to_prove_something(java_written: WrittenStore) -> None:
    """Guards the workload: several segments, queue files and index files, and every kind of record."""
    directory, records = java_written.directory, java_written.records
    assert len(records) > EVENTS_COUNT + 500
    assert files_in(directory / "commitlog") >= 4
    assert files_in(directory / "consumequeue" / "events" / "0") >= 3
    assert files_in(directory / "index") >= 3
    assert {record.sys_flag & 0xC for record in records} == {0, 0x4, 0x8, 0xC}
    assert {record.sys_flag & 0x30 for record in records} == {0, 0x10, 0x20, 0x30}
    assert {record.size_bytes > 50_000 for record in records} == {True, False}
    assert b"" in {record.body for record in records}
    assert (directory / "abort").exists() is not java_written.is_clean
    check_java_content(java_written.java, records)
    check_positions_of_java(java_written)


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
def test_read_only_penstock_reads_what_java_wrote(java_written: WrittenStore) -> None:
    before = penstock_side.fingerprint(java_written.directory)
    with MessageStore.open(java_written.directory, OPTIONS, read_only=True) as store:
        check_content(store, java_written.records)
        assert store.log.max_offset == java_written.java.max_physical_offset
        assert store.log.min_offset == java_written.java.min_physical_offset
        for (topic, queue_id), messages in penstock_side.by_queue(java_written.java).items():
            assert penstock_side.read_queue(store, topic, queue_id) == messages
        if java_written.is_clean:
            check_keys(store, java_written)
    assert penstock_side.fingerprint(java_written.directory) == before


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I4")
@pytest.mark.fault("F15")
def test_penstock_goes_on_in_a_store_of_java(java_written: WrittenStore, copy_store: CopyStore) -> None:
    directory = copy_store(java_written.directory)
    with MessageStore.open(directory, OPTIONS) as store:
        assert store.report.clean is java_written.is_clean
        assert (store.report.damage, store.report.bytes_dropped) == ([], 0)
        check_content(store, java_written.records)
        check_keys(store, java_written)
    records = java_written.records + penstock_side.write(directory, more_messages(40, "after"))
    with MessageStore.open(directory, OPTIONS, read_only=True) as store:
        check_content(store, records)


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
def test_tags_select_the_same_messages(java_written: WrittenStore) -> None:
    events = in_queues(java_written.records)[("events", 0)]
    with MessageStore.open(java_written.directory, OPTIONS, read_only=True) as store:
        for tags in (["TagA"], ["标签", "😀 tag"], ["polygenelubricants"]):
            found, offset = [], 0
            while offset < len(events):
                result = store.get("events", 0, offset, 500, 64 << 20, tags)
                assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
                found += [java_form(message) for message in result.messages()]
                offset = result.next_offset
            assert found == [event for event in events if event.properties.get("TAGS") in tags]


@pytest.mark.feature("store-files", "rocketmq-5.3")
@pytest.mark.parametrize("writer", ["java-clean", "penstock"])
def test_both_find_the_same_offset_by_time(
    java_5: JavaStore, written_stores: WrittenStores, writer: str
) -> None:
    written = written_stores.get(java_5, writer)
    assert len(written.java.offset_by_time) > 20
    with MessageStore.open(written.directory, OPTIONS, read_only=True) as store:
        for asked, expected in written.java.offset_by_time.items():
            boundary = TimeBoundary(asked.boundary)
            found = store.reader.offset_by_time(asked.topic, asked.queue_id, asked.time_ms, boundary)
            assert found == expected, asked


def test_java_finds_its_own_keys(java_written: WrittenStore) -> None:
    """The oracle of the key tests. After a crash RocketMQ deletes an index file that was not full, and fills a
    new one only from the records it reads again."""
    check_java_keys(java_written, complete=java_written.is_clean)


# -- Penstock writes, Java reads -------------------------------------------------------------------------------


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S2-58")
def test_java_reads_what_penstock_wrote(penstock_written: WrittenStore) -> None:
    directory = penstock_written.directory
    assert files_in(directory / "commitlog") >= 4
    assert files_in(directory / "consumequeue" / "events" / "0") >= 3
    assert files_in(directory / "index") >= 3
    check_java_content(penstock_written.java, penstock_written.records)
    check_positions_of_java(penstock_written)


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
def test_java_finds_the_keys_that_penstock_indexed(penstock_written: WrittenStore) -> None:
    check_java_keys(penstock_written, complete=True)


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
def test_both_compute_the_same_queue_entries(penstock_written: WrittenStore) -> None:
    with MessageStore.open(penstock_written.directory, OPTIONS, read_only=True) as store:
        check_content(store, penstock_written.records)
        check_keys(store, penstock_written)
        for (topic, queue_id), messages in penstock_side.by_queue(penstock_written.java).items():
            assert penstock_side.read_queue(store, topic, queue_id) == messages


@pytest.mark.feature("store-files", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.invariant("I4")
@pytest.mark.fault("F15")
def test_the_store_goes_back_and_forth(
    java: JavaStore, penstock_written: WrittenStore, copy_store: CopyStore
) -> None:
    directory = copy_store(penstock_written.directory)
    records = list(penstock_written.records)
    by_java = more_messages(60, "java")
    records += expected_of_java(by_java, java.write(directory, by_java).puts)
    with MessageStore.open(directory, OPTIONS) as store:
        assert store.report.clean
        check_content(store, records)
        check_keys_of_turns(store, records, "java")
    records += penstock_side.write(directory, more_messages(60, "penstock", STORE_HOST_V6))
    asked = [("orders", "java-59"), ("orders", "penstock-59"), ("orders", "java"), ("orders", "order-17")]
    read = java.read(directory, queries=asked, halt=True)
    check_java_content(read, records)
    for (topic, key), hits in read.hits.items():
        assert list(reversed(hits)) == with_key(records, topic, key)


def check_keys_of_turns(store: MessageStore, records: list[StoredMessage], name: str) -> None:
    for key in (name, f"{name}-0", f"{name}-59", "order-17"):
        found = [java_form(message) for message in store.reader.query("orders", key, 64)]
        assert found == with_key(records, "orders", key), key
