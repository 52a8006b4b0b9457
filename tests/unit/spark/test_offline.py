"""A store directory read without a broker: clean, crashed, in use, damaged, cut into parts."""

from __future__ import annotations

import os
import pickle  # noqa: TID251 - what Spark does with partitions
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from penstock.errors import OptionError, StoreFormatError
from penstock.message import Message
from penstock.runtime import Runtime
from penstock.spark.batches import Damage, RecordDecoder
from penstock.spark.offline import OfflineStore
from penstock.spark.offline_files import OfflinePartition, QueueRange
from penstock.spark.schema import COLUMNS
from penstock.store import MessageStore, StoreOptions
from penstock.testing import ManualClock
from tests.disk_limits import NO_DISK_LIMITS

OPTIONS = StoreOptions(
    segment_size_bytes=16 << 10,
    queue_file_entries=50,
    index_enabled=False,
    max_message_size_bytes=8 << 10,
    **NO_DISK_LIMITS,
)
START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


def write(store: MessageStore, count: int, clock: ManualClock, queues: int = 3, first: int = 0) -> None:
    for number in range(first, first + count):
        body = f"message {number}".encode() * (number % 5 + 1)
        store.append(Message.of("orders", body, tag="even" if number % 2 == 0 else "odd"), number % queues)
        if number % 4 == 0:
            store.append(Message.of("noise", b"?" * 50))
        clock.advance(10)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    """An open store of several segments and queue files; a test may stop it as it likes."""
    opened = MessageStore.open(tmp_path / "store", OPTIONS, runtime=Runtime(clock=clock), background=False)
    write(opened, 500, clock)
    yield opened
    opened.close()


def expected(store: MessageStore) -> list[tuple[int, int, bytes]]:
    rows = []
    for queue in store.queues:
        if queue.topic == "orders":
            for message in store.read("orders", queue.queue_id, queue.min_offset, 10_000):
                rows.append((queue.queue_id, message.queue_offset, message.body))
    return sorted(rows)


def rows_of(partitions: list[OfflinePartition], **options: Any) -> list[tuple[int, int, bytes]]:
    rows = []
    for partition in partitions:
        partition = pickle.loads(pickle.dumps(partition))
        decoder = RecordDecoder(("queue_id", "queue_offset", "body"), **options)
        for batch in OfflineStore.read(partition, decoder):
            rows += [tuple(item.values()) for item in batch.to_pylist()]
        assert decoder.damaged == []
    return sorted(rows)


def read_all(path: Path, count: int = 4, **options: Any) -> list[tuple[int, int, bytes]]:
    with OfflineStore(path) as offline:
        return rows_of(offline.splits(offline.queues(["orders"]), count), **options)


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


def test_a_clean_store(store: MessageStore) -> None:
    wanted = expected(store)
    assert len(wanted) == 500
    store.close()
    before = snapshot(store.path)
    with OfflineStore(store.path) as offline:
        assert offline.topics() == ["noise", "orders"]
        assert offline.queues(["orders"]) == {
            ("orders", "", 0): (0, 167),
            ("orders", "", 1): (0, 167),
            ("orders", "", 2): (0, 166),
        }
        assert set(offline.queues()) == {("noise", "", 0), *offline.queues(["orders"])}
        assert offline.queues(["nothing"]) == {}
        partitions = offline.splits(offline.queues(["orders"]), 4)
        # All entries are in files: nothing of them travels.
        assert all(part.tail == b"" for partition in partitions for part in partition.ranges)
    assert rows_of(partitions) == wanted
    assert snapshot(store.path) == before


def test_rows_that_claim_too_much_are_no_larger_than_the_log(store: MessageStore) -> None:
    queues = {("orders", "", 0): (0, 167)}
    log_bytes = store.log.max_offset - store.log.min_offset
    store.close()
    file = sorted((store.path / "consumequeue" / "orders" / "0").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[28:32] = (1 << 30).to_bytes(4, "big")
    file.write_bytes(data)
    with OfflineStore(store.path) as offline:
        assert offline.row_bytes(queues) == log_bytes // 167


def test_the_size_of_rows_is_their_mean_and_queues_count_by_their_rows(tmp_path: Path) -> None:
    """So that as many tasks are planned as there are bytes, however few of the rows have most of them."""
    small, large = 200, 1000
    with MessageStore.open(tmp_path / "store", OPTIONS, background=False) as store:
        for number in range(90):
            store.append(Message("orders", b"s" * (small if number % 3 else large)), 0)
        for _ in range(10):
            store.append(Message("orders", b"l" * large), 1)
        log_bytes = store.log.max_offset
    with OfflineStore(store.path) as offline:
        found = offline.row_bytes(offline.queues(["orders"]))
    overhead = 91 + len("orders")
    mean = (60 * small + 40 * large) // 100 + overhead
    assert abs(found - mean) <= 2
    assert found * 100 <= log_bytes


def test_all_columns_of_one_message(store: MessageStore) -> None:
    store.close()
    with OfflineStore(store.path) as offline:
        one = {("orders", "", 1): (5, 6)}
        (partition,) = offline.splits(one, 1)
        row_bytes = offline.row_bytes(one)
    (batch,) = OfflineStore.read(partition, RecordDecoder(tuple(COLUMNS)))
    (found,) = batch.to_pylist()
    assert (found["topic"], found["broker"], found["queue_id"], found["queue_offset"]) == ("orders", "", 1, 5)
    assert found["size"] == row_bytes
    assert found["store_time"].timestamp() * 1000 == START_MS + 160
    assert found["tags"] == "even"
    assert found["message_id"].startswith("7F00000100002A9F")


@pytest.mark.fault("F1")
@pytest.mark.invariant("I2")
def test_a_store_that_a_crash_left_behind(store: MessageStore, clock: ManualClock) -> None:
    """Entries that never reached a file travel inside the partitions; no task recovers anything."""
    for _ in range(3):
        store.keeper.tick()
        clock.advance(11_000)
    write(store, 40, clock, first=500)
    wanted = expected(store)
    store.abandon()
    before = snapshot(store.path)
    with OfflineStore(store.path) as offline:
        partitions = offline.splits(offline.queues(["orders"]), 3)
    carried = sum(len(part.tail) // 20 for partition in partitions for part in partition.ranges)
    assert 0 < carried <= 540
    assert rows_of(partitions) == wanted
    assert len(wanted) == 540
    assert snapshot(store.path) == before


@pytest.mark.fault("F1")
def test_entries_that_are_in_files_do_not_travel_although_recovery_built_them_again(
    store: MessageStore,
) -> None:
    wanted = expected(store)
    store.queues.drain()
    store.abandon()  # no checkpoint was written: recovery begins at the first segment
    with OfflineStore(store.path) as offline:
        partitions = offline.splits(offline.queues(["orders"]), 2)
    assert all(part.tail == b"" for partition in partitions for part in partition.ranges)
    assert rows_of(partitions) == wanted


def test_a_store_in_use(store: MessageStore, clock: ManualClock) -> None:
    """The owner goes on writing; what was planned stays what was there then."""
    wanted = expected(store)
    with OfflineStore(store.path) as offline:
        partitions = offline.splits(offline.queues(["orders"]), 2)
        write(store, 200, clock, first=500)
        store.queues.drain()
        assert rows_of(partitions) == wanted
    assert len(read_all(store.path)) == 700


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 1000])
def test_splits_cover_everything_once(store: MessageStore, count: int) -> None:
    wanted = expected(store)
    store.close()
    with OfflineStore(store.path) as offline:
        partitions = offline.splits(offline.queues(["orders"]), count)
        assert len(partitions) <= count
        assert count > 7 or len(partitions) == count
        assert rows_of(partitions, rows=7) == wanted
        assert sum(partition.rows for partition in partitions) == 500
        if count == 7:
            # Cut along the log: each part reads its own stretch of it, and about as much as the others.
            assert all(60 <= partition.rows <= 80 for partition in partitions)
            assert all(len(partition.ranges) == 3 for partition in partitions)


def test_parts_of_queues(store: MessageStore) -> None:
    wanted = expected(store)
    store.close()
    ranges = {("orders", "", 0): (20, 90), ("orders", "", 1): (160, 167), ("orders", "", 2): (4, 4)}
    with OfflineStore(store.path) as offline:
        partitions = offline.splits(ranges, 3)
        assert offline.row_bytes({}) == 1
        assert offline.splits({}, 3) == []
        with pytest.raises(OptionError, match="at least one"):
            offline.splits(ranges, 0)
        with pytest.raises(OptionError, match="has no queue 9 of topic 'orders'"):
            offline.splits({("orders", "", 9): (0, 5)}, 1)
        with pytest.raises(OptionError, match="it has noise, orders"):
            offline.partition([(("none", "", 0), 0, 5)])
        one = offline.partition([(("orders", "", 0), 20, 90), (("orders", "", 1), 160, 167)])
    inside = [
        item
        for item in wanted
        if ranges[("orders", "", item[0])][0] <= item[1] < ranges[("orders", "", item[0])][1]
    ]
    assert rows_of(partitions) == rows_of([one]) == inside


@pytest.mark.parametrize("unclean", [False, True])
def test_offset_by_time(store: MessageStore, unclean: bool) -> None:
    queue = ("orders", "", 1)
    times = [message.store_timestamp for message in store.read("orders", 1, 0, 1000)]
    if unclean:
        store.abandon()
    else:
        store.close()
    with OfflineStore(store.path) as offline:
        assert offline.offset_by_time(queue, 0) == 0
        assert offline.offset_by_time(queue, times[40]) == 40
        assert offline.offset_by_time(queue, times[40] + 1) == 41
        assert offline.offset_by_time(queue, times[-1] + 1) == 167


def test_filters_while_reading(store: MessageStore) -> None:
    wanted = [item for item in expected(store) if int(item[2].split(b"message")[1]) % 2 == 0]
    store.close()
    assert read_all(store.path, tags=["even"]) == wanted
    assert len(wanted) == 250


def test_entries_without_hashes_of_tags_are_filtered_all_the_same(store: MessageStore) -> None:
    """RocketMQ's extension keeps other things in the entries; rows are compared with the tag itself then."""
    store.close()
    for queue in range(3):
        for file in (store.path / "consumequeue" / "orders" / str(queue)).iterdir():
            content = bytearray(file.read_bytes())
            for at in range(0, len(content), 20):
                content[at + 12 : at + 20] = b"\x80extens!"
            file.write_bytes(content)
    assert read_all(store.path, tags=["even"]) == []
    (store.path / "consumequeue_ext" / "orders").mkdir(parents=True)
    assert len(read_all(store.path, tags=["even"])) == 250


def test_a_clean_store_is_opened_without_reading_its_last_segment(store: MessageStore) -> None:
    store.close()
    with OfflineStore(store.path) as offline:
        assert len(offline.queues()) == 4
        assert offline._store().report.records < 10


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_damage_is_named_with_its_queue(store: MessageStore) -> None:
    target = store.reader.entries("orders", 2, 30, 1)[0]
    wanted = [item for item in expected(store) if item[:2] != (2, 30)]
    store.close()
    segment = store.path / "commitlog" / f"{target.position // (16 << 10) * (16 << 10):020d}"
    content = bytearray(segment.read_bytes())
    content[target.position % (16 << 10) + 90] ^= 1
    segment.write_bytes(content)
    found: list[tuple[QueueRange, list[Damage]]] = []
    rows = []
    with OfflineStore(store.path) as offline:
        for partition in offline.splits(offline.queues(["orders"]), 2):
            decoder = RecordDecoder(("queue_id", "queue_offset", "body"))
            for batch in OfflineStore.read(
                partition, decoder, lambda part, damage: found.append((part, damage))
            ):
                rows += [tuple(item.values()) for item in batch.to_pylist()]
            assert decoder.damaged == []
    assert sorted(rows) == wanted
    ((part, damage),) = found
    assert (part.topic, part.queue_id) == ("orders", 2)
    assert damage == [Damage(30, "checksum mismatch", 30)]


@pytest.mark.fault("F7")
def test_files_that_went_away_after_planning_are_gaps(store: MessageStore) -> None:
    first = [store.reader.entries("orders", 0, n, 1)[0].position for n in range(167)]
    store.close()
    with OfflineStore(store.path) as offline:
        partition = offline.partition([(("orders", "", 0), 0, 167)])
    (store.path / "commitlog" / f"{0:020d}").unlink()
    (store.path / "consumequeue" / "orders" / "0" / f"{100 * 20:020d}").unlink()
    decoder = RecordDecoder(("queue_offset",))
    offsets = [
        item["queue_offset"] for batch in OfflineStore.read(partition, decoder) for item in batch.to_pylist()
    ]
    gone = sum(position < 16 << 10 for position in first)
    assert offsets == [*range(gone, 100), *range(150, 167)]
    assert decoder.damaged == [
        Damage(0, "its part of the log is not there any more", gone - 1),
        Damage(100, "this offset has no record", 149),
    ]


def test_retention_has_taken_the_beginning(store: MessageStore) -> None:
    store.close()
    (store.path / "commitlog" / f"{0:020d}").unlink()
    (store.path / "penstock.manifest.json").unlink()
    with OfflineStore(store.path) as offline:
        ranges = offline.queues(["orders"])
        low, high = ranges[("orders", "", 0)]
        assert 0 < low < high == 167
        rows = rows_of(offline.splits(ranges, 3))
    assert min(item[1] for item in rows if item[0] == 0) == low


def test_what_is_no_store_is_said_so(tmp_path: Path) -> None:
    with OfflineStore(tmp_path) as offline, pytest.raises(StoreFormatError, match="every executor sees"):
        offline.queues()


def test_an_empty_store(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, OPTIONS, background=False).close()
    with OfflineStore(tmp_path) as offline:
        assert offline.queues() == {}
        assert offline.splits(offline.queues(), 5) == []


def test_it_can_be_pickled_and_forgotten(store: MessageStore) -> None:
    store.close()
    offline = OfflineStore(store.path)
    assert len(offline.queues()) == 4
    copy = pickle.loads(pickle.dumps(offline))
    assert copy.queues() == offline.queues()
    del offline, copy  # no descriptor stays behind; the leak check of every test says so
