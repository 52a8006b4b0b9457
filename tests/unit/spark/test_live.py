"""A task's reading, without Spark: every offset is a row, filtered, or a gap."""

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

import penstock
from penstock.client import read_ahead
from penstock.client.loop_thread import LoopThread
from penstock.client.read_ahead import ReadAhead
from penstock.client.scan import Scan
from penstock.client.scan_results import OffsetRange, PullStatus, QueueId
from penstock.client.scanning import AsyncScan
from penstock.errors import ConnectError, GapError, RouteNotFoundError
from penstock.spark.gaps import Gaps, missing_offsets, read_gaps
from penstock.spark.live import (
    LiveRead,
    check_beginnings,
    close_scans,
    find_queues,
    row_bytes,
    shared_scan,
)
from penstock.spark.options import OnGap, ReadOptions
from penstock.spark.planning import ROW_BYTES, QueueSlice
from penstock.spark.schema import Selection
from penstock.testing import EmbeddedBroker
from penstock.testing.embedded import BROKER
from tests.waiting import PATIENT_SENDS

pytest.importorskip("pyarrow")
COLUMNS = Selection(("topic", "broker", "queue_id", "queue_offset", "body"), frozenset())


class Node:
    """A broker whose files a test may spoil."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.embedded = EmbeddedBroker(directory, broker=BROKER)
        self.thread = LoopThread("test-broker")
        self.thread.run(self.embedded.start())
        self.address = self.embedded.address

    @property
    def store(self):
        return self.embedded.broker.store

    def fill(self, topic, count, queues=1, **parts) -> None:
        with penstock.Admin(self.address) as admin:
            admin.create_topic(topic, queues)
        with penstock.Producer(self.address, **PATIENT_SENDS) as producer:
            for future in [
                producer.send_async(
                    topic, b"%d" % n, queue=penstock.MessageQueue(topic, "test-broker", n % queues), **parts
                )
                for n in range(count)
            ]:
                future.result()

    def spoil(self, topic, offset) -> None:
        """Change a byte of a message's body in the log."""
        (entry,) = self.store.reader.entries(topic, 0, offset, 1)
        with open(self.store.log.segment_of(entry.position).path, "r+b") as file:
            file.seek(entry.position + 88)
            byte = file.read(1)
            file.seek(entry.position + 88)
            file.write(bytes([byte[0] ^ 1]))

    def close(self) -> None:
        try:
            self.thread.run(self.embedded.stop())
        finally:
            self.thread.stop()


@pytest.fixture
def node(tmp_path) -> Iterator[Node]:
    made = Node(tmp_path / "broker")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True, params=[1, 1 << 30], ids=["columns", "records"])
def answers(request, monkeypatch) -> int:
    """From how many rows on brokers are asked for columns."""
    monkeypatch.setattr(read_ahead, "COLUMNS_ROWS_MIN", request.param)
    return request.param


@pytest.fixture
def scan(node) -> Iterator[Scan]:
    with Scan(node.address, retry_ms=300) as made:
        yield made


def options(node, **given) -> ReadOptions:
    return ReadOptions.parse({"nameserver": node.address, "topic": "T", "retryMs": "300", **given})


def reading(node, scan, gaps=None, **given) -> LiveRead:
    found = options(node, **given)
    return LiveRead(scan, found, COLUMNS, gaps or Gaps(found.on_gap, found.gap_table), found.tags, found.key)


def rows(read: LiveRead, *slices: QueueSlice) -> list[tuple[int, int, bytes]]:
    return [
        (row["queue_id"], row["queue_offset"], row["body"])
        for batch in read.batches(slices)
        for row in batch.to_pylist()
    ]


def whole(scan, topic="T") -> list[QueueSlice]:
    return [QueueSlice(queue, *found) for queue, found in scan.ranges(scan.queues(topic)).items()]


def test_all_rows_of_all_slices(node, scan):
    node.fill("T", 100, queues=3)
    found = rows(reading(node, scan, batchRows="7", pullBytes="4096"), *whole(scan))
    assert found == [(q, n, b"%d" % (3 * n + q)) for q in range(3) for n in range(34 if q == 0 else 33)]


def test_answers_are_in_the_form_that_was_asked_for(node, scan, answers, monkeypatch):
    """And rows of both come in their order."""
    forms = []
    feed = LiveRead._feed

    def noted(self, pulled, end, decoder):
        forms.append(bool(pulled.columns))
        return feed(self, pulled, end, decoder)

    monkeypatch.setattr(LiveRead, "_feed", noted)
    node.fill("T", 100, queues=2)
    slices = [part for item in whole(scan) for part in (item._replace(end=1), item._replace(start=1))]
    found = rows(reading(node, scan), *slices)
    assert found == [(q, n, b"%d" % (2 * n + q)) for q in range(2) for n in range(50)]
    assert forms == [answers == 1] * 4


def test_parts_of_a_queue_in_one_task(node, scan):
    node.fill("T", 50)
    queue = scan.queues("T")[0]
    found = rows(
        reading(node, scan), QueueSlice(queue, 0, 5), QueueSlice(queue, 20, 22), QueueSlice(queue, 49, 50)
    )
    assert [row[1] for row in found] == [0, 1, 2, 3, 4, 20, 21, 49]


def test_filters_are_exact(node, scan):
    node.fill("T", 10, tag="A")
    # Aa and BB have the same hash, by which the broker filters.
    node.fill("T", 3, tag="Aa")
    node.fill("T", 2, tag="BB")
    assert len(rows(reading(node, scan, tags="BB"), *whole(scan))) == 2
    assert len(rows(reading(node, scan, tags="Aa || A"), *whole(scan))) == 13


def test_batches_name_the_broker(node, scan):
    node.fill("T", 1)
    (batch,) = reading(node, scan).batches(whole(scan))
    assert batch.column("broker").to_pylist() == ["test-broker"]
    assert batch.column("topic").to_pylist() == ["T"]


# -- gaps --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_damaged_records_are_a_gap(node, scan, tmp_path):
    node.fill("T", 20)
    for offset in (0, 5, 6, 19):
        node.spoil("T", offset)
    with pytest.raises(GapError, match=r"1 message of topic T, broker test-broker, queue 0, offsets 0 to 0"):
        rows(reading(node, scan), *whole(scan))
    found = rows(reading(node, scan, onGap="skip"), *whole(scan))
    assert [row[1] for row in found] == [n for n in range(20) if n not in (0, 5, 6, 19)]
    table = str(tmp_path / "gaps")
    for _ in range(2):
        rows(reading(node, scan, onGap="report", gapTable=table, pullBytes="4096"), *whole(scan))
    assert list(missing_offsets(read_gaps(table)).values()) == [[(0, 1), (5, 7), (19, 20)]]
    assert {gap.where for gap in read_gaps(table)} == {"reading"}


@pytest.mark.fault("F7")
def test_nothing_but_damage(node, scan):
    node.fill("T", 3)
    for offset in range(3):
        node.spoil("T", offset)
    assert rows(reading(node, scan, onGap="skip"), *whole(scan)) == []
    with pytest.raises(GapError, match=r"3 messages .* offsets 0 to 2: missing"):
        rows(reading(node, scan), *whole(scan))


def spoil_sizes(monkeypatch, *offsets) -> None:
    """Records say that they are larger than any, as they come: brokers of another make send what their logs have."""

    def spoiled(pulled):
        data, at = bytearray(pulled.data), 0
        while at < len(data):
            size, offset = struct.unpack_from(">i16xq", data, at)
            if offset in offsets:
                struct.pack_into(">i", data, at, 1 << 30)
            at += size
        return replace(pulled, data=bytes(data))

    read, pull = ReadAhead.next, AsyncScan.pull

    async def pull_spoiled(*asked, **given):
        return spoiled(await pull(*asked, **given))

    monkeypatch.setattr(ReadAhead, "next", lambda self: spoiled(read(self)))
    monkeypatch.setattr(AsyncScan, "pull", pull_spoiled)


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("pull_bytes", ["65536", "4194304"])
def test_behind_a_record_without_a_size_everything_is_read(node, scan, tmp_path, monkeypatch, pull_bytes):
    """However many answers it takes: what a broker has is no gap."""
    node.fill("T", 2000, properties={"padding": "x" * 1000})
    bad = (0, 10, 11, 700, 1999)
    spoil_sizes(monkeypatch, *bad)
    table = str(tmp_path / "gaps")
    found = options(node, onGap="report", gapTable=table, pullBytes=pull_bytes)
    # No broker has properties as columns.
    selection = Selection(("queue_offset", "properties"), frozenset())
    read = LiveRead(scan, found, selection, Gaps(found.on_gap, found.gap_table))
    offsets = [n for batch in read.batches(whole(scan)) for n in batch.column("queue_offset").to_pylist()]
    assert offsets == [n for n in range(2000) if n not in bad]
    assert list(missing_offsets(read_gaps(table)).values()) == [[(0, 1), (10, 12), (700, 701), (1999, 2000)]]


def test_what_follows_such_a_record_is_waited_for(node, scan, monkeypatch):
    """A broker that has it no more when it is asked again may have been replaced by one that lags behind."""
    node.fill("T", 20)
    spoil_sizes(monkeypatch, 3)
    pull, asked = scan.pull, []

    def behind(queue, offset, **given):
        asked.append(offset)
        found = pull(queue, offset, **given)
        nothing = replace(found, status=PullStatus.NOTHING, next_offset=offset, data=b"")
        return nothing if len(asked) == 1 else found

    monkeypatch.setattr(scan, "pull", behind)
    read = reading(node, scan, onGap="skip")
    read.selection = Selection(("queue_offset", "properties"), frozenset())
    offsets = [n for batch in read.batches(whole(scan)) for n in batch.column("queue_offset").to_pylist()]
    assert offsets == [n for n in range(20) if n != 3]
    assert asked == [4], "the next round reads it with the others"


def test_what_retention_takes_while_a_task_waits_is_a_gap(node, scan):
    node.fill("T", 20)
    slices = whole(scan)
    node.store.queues.get("T", 0).min_offset = 8
    with pytest.raises(GapError, match="offsets 0 to 7: deleted: the queue begins at 8"):
        rows(reading(node, scan), *slices)
    assert [row[1] for row in rows(reading(node, scan, onGap="skip"), *slices)] == list(range(8, 20))
    node.store.queues.get("T", 0).min_offset = 20
    assert rows(reading(node, scan, onGap="skip"), *slices) == []


def test_a_queue_that_ends_early_is_waited_for_and_then_lost(node, scan):
    node.fill("T", 5)
    queue = scan.queues("T")[0]
    with pytest.raises(GapError, match="offsets 5 to 8: lost: the queue ends at 5"):
        rows(reading(node, scan), QueueSlice(queue, 3, 9))
    assert [row[1] for row in rows(reading(node, scan, onGap="skip"), QueueSlice(queue, 3, 9))] == [3, 4]
    with pytest.raises(GapError, match="offsets 7 to 8: lost"):
        rows(reading(node, scan), QueueSlice(queue, 7, 9))


def test_messages_that_come_while_a_task_waits_are_read(node, scan):
    node.fill("T", 5)
    slices = [QueueSlice(scan.queues("T")[0], 0, 8)]
    with Scan(node.address) as patient:
        batches = reading(node, patient, retryMs="20000", batchRows="4").batches(slices)
        assert next(batches).num_rows == 4
        node.fill("T", 3)
        assert sum(batch.num_rows for batch in batches) == 4


def test_a_broker_that_is_gone_fails_the_task(node, scan):
    node.fill("T", 5)
    slices = whole(scan)
    node.thread.run(node.embedded.broker.stop())
    with pytest.raises(ConnectError, match=r"reading T/test-broker/0 at offset 0 failed for 0.3 s"):
        rows(reading(node, scan), *slices)


# -- planning ----------------------------------------------------------------------------------------------------


def test_beginnings_that_are_deleted(tmp_path):
    one, two = QueueId("T", "b", 0), QueueId("T", "b", 1)
    slices = [QueueSlice(one, 5, 20), QueueSlice(two, 0, 4)]
    ranges = {one: OffsetRange(10, 20), two: OffsetRange(6, 9)}
    with pytest.raises(GapError, match=r"5 messages .* offsets 5 to 9"):
        check_beginnings(slices, ranges, Gaps(OnGap.FAIL))
    table = str(tmp_path)
    assert check_beginnings(slices, ranges, Gaps(OnGap.REPORT, table)) == [QueueSlice(one, 10, 20)]
    assert missing_offsets(read_gaps(table)) == {one: [(5, 10)], two: [(0, 4)]}
    assert check_beginnings(slices, {}, Gaps(OnGap.FAIL)) == slices, "nobody could be asked"


def test_topics_that_are_there(node, scan):
    node.fill("T", 1, queues=2)
    node.fill("Orders", 1)
    assert [queue.key for queue in find_queues(scan, options(node))] == ["T/test-broker/0", "T/test-broker/1"]
    with pytest.raises(RouteNotFoundError, match="there is no topic 'Order', did you mean Orders"):
        find_queues(scan, options(node, topic="Order"))
    pattern = ReadOptions.parse({"nameserver": node.address, "topicPattern": "Or.*"})
    assert [queue.topic for queue in find_queues(scan, pattern)] == ["Orders"]


def test_connections_are_kept_for_the_next_task(node):
    found = options(node)
    try:
        assert shared_scan(found) is shared_scan(options(node))
        node.fill("T", 1)
        assert len(rows(reading(node, shared_scan(found)), *whole(shared_scan(found)))) == 1
    finally:
        close_scans()


# -- sizes -------------------------------------------------------------------------------------------------------


def test_sizes_of_records_are_judged_by_some_of_each_queue(node):
    with penstock.Admin(node.address) as admin:
        admin.create_topic("T", 2)
    with penstock.Producer(node.address, **PATIENT_SENDS) as producer:
        for number in range(120):
            queue = penstock.MessageQueue("T", "test-broker", number % 3 // 2)
            producer.send("T", b"x" * (100 if queue.queue_id == 0 else 3_000), queue=queue)
    with Scan(node.address, retry_ms=0) as scan:
        slices = [QueueSlice(queue, 0, found.max) for queue, found in scan.ranges(scan.queues("T")).items()]
        assert [item.rows for item in slices] == [80, 40]
        small, large = (row_bytes(scan, [item]) for item in slices)
        assert 180 < small < 320
        assert 3_080 < large < 3_220
        assert abs(row_bytes(scan, slices) - (2 * small + large) / 3) <= 2


def test_sizes_are_a_guess_where_nobody_answers(node):
    with Scan(node.address, retry_ms=0) as scan:
        assert row_bytes(scan, []) == ROW_BYTES
        gone = QueueId("T", "nobody", 0, "127.0.0.1:1")
        assert row_bytes(scan, [QueueSlice(gone, 0, 10)]) == ROW_BYTES
