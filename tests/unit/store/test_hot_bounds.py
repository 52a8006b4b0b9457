"""What the hot modules refuse instead of computing with it: numbers, counts and kinds that no caller should pass."""

from __future__ import annotations

import struct

import pytest

from penstock._hot.buffers import Content, Numbers
from penstock._hot.columns import Columns
from penstock._hot.decode import encode_items
from penstock._hot.dispatch import Dispatcher
from penstock._hot.encode import Column, RowEncoder
from penstock._hot.frames import TopicQueues
from penstock._hot.index import SlotTable, find_key
from penstock._hot.layout import DONE, POSITION_MAX
from penstock._hot.mapped import MappedBytes
from penstock._hot.queues import QueueState
from penstock._hot.reads import EntrySelection, find_record, gather, walk
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock._hot.sends import SendPath
from penstock._hot.staged import StagedItems
from tests.support.send_frames import BINARY, HEAD, SUFFIX, send
from tests.support.staged import item as staged_item
from tests.unit.store.guarded_parsers import HOST, NOW, columns, records

LAST = 2**63 - 1


def test_a_queue_drops_no_more_entries_than_wait() -> None:
    queue = QueueState(b"orders", 0)
    queue.add_entry(0, 100, 0)
    for count in (2, -1):
        with pytest.raises(IndexError):
            queue.drop_tail(count)
    queue.drop_tail(1)
    assert (queue.tail_first, queue.tail_count) == (1, 0)


def test_an_entry_at_the_last_position_does_not_overflow() -> None:
    queue = QueueState(b"orders", 0)
    queue.add_entry(LAST, 0x7FFFFFFF, 0)
    assert queue.max_phy == POSITION_MAX
    assert queue.tail_bytes(0, 1) == struct.pack(">qiq", LAST, 0x7FFFFFFF, 0)


@pytest.mark.parametrize("store_time", [LAST, -LAST - 1])
def test_a_delayed_record_at_the_end_of_all_times_is_dispatched(store_time: int) -> None:
    """No checksum covers a record's store time, so a flipped bit there must not end recovery."""
    queue = QueueState(b"SCHEDULE_TOPIC_XXXX", 1)
    builder = RecordBuilder(HOST, 1 << 20)
    builder.begin(0, 1 << 20, store_time)
    assert builder.add_all([AppendRequest(queue, b"x", b"DELAY\x012\x02", NOW, HOST)], 0) == 1
    data = MappedBytes(bytes(builder.content()))
    found = QueueState(b"SCHEDULE_TOPIC_XXXX", 1)
    dispatcher = Dispatcher((1_000, 5_000), True)
    dispatcher.add_queue(found)
    assert dispatcher.run_mapped(data, 0, data.size, 0) == DONE
    assert found.tail_count == 1


@pytest.mark.parametrize("base", [-1, POSITION_MAX + 1])
def test_a_log_position_has_its_bounds(base: int) -> None:
    data = MappedBytes(records())
    with pytest.raises(IndexError):
        walk(data, 0, data.size, base, 0)
    with pytest.raises(IndexError):
        find_record(data, 0, data.size, base)
    with pytest.raises(IndexError):
        Dispatcher((), False).run_mapped(data, 0, data.size, base)


def test_a_log_without_a_segment_size_gathers_nothing() -> None:
    """A division by zero in C ends the process."""
    selection = EntrySelection(10, 1 << 20, None)
    selection.scan_bytes(struct.pack(">qiq", 0, 100, 0), 0)
    for low, segment in ((0, 0), (-1, 100)):
        with pytest.raises(ValueError, match="segments"):
            gather(selection, [None], low, segment, b"orders", 0, True)


def test_slots_fit_their_memory() -> None:
    for memory, slots in ((bytearray(), 0), (bytearray(8), 3), (bytearray(8), 0), (bytearray(8), -1)):
        with pytest.raises(ValueError, match="slots"):
            SlotTable(memory, slots, 10)
    file = MappedBytes(bytes(200))
    for slots, next_entry in ((0, 2), (-1, 2), (2, LAST), (LAST, 2)):
        assert find_key(file, None, slots, next_entry, NOW, 1, 0, LAST, 10) == []


@pytest.mark.parametrize("begin", [LAST, -LAST - 1])
def test_index_times_do_not_overflow(begin: int) -> None:
    table = SlotTable(bytearray(20), 5, 10)
    table.put_keys(
        bytearray(struct.pack(">iqq", 3, 100, begin) + struct.pack(">iqq", 3, 200, -1 - begin)), 0, 2
    )
    assert table.next_entry == 3
    file = MappedBytes(
        bytes(40) + bytes(table.memory) + bytes(20) + struct.pack(">iqii", 3, 100, 0x7FFFFFFF, 0) * 2
    )
    assert set(find_key(file, None, 5, 3, begin, 3, 0, LAST, 10)) <= {100}


def test_a_chunk_is_scanned_from_inside_and_built_once() -> None:
    path = SendPath(SUFFIX, HEAD, BINARY, 1 << 24, 1 << 16)
    path.put_topic(TopicQueues(b"T", [QueueState(b"T", number) for number in range(4)]))
    with pytest.raises(IndexError):
        path.scan(send(), -4)
    assert path.scan(send(), 0) == len(send())
    builder = RecordBuilder(HOST, 1 << 16)
    builder.begin(0, 1 << 20, NOW)
    assert path.build(builder, HOST) == 1
    with pytest.raises(AssertionError, match="built once"):
        path.build(builder, HOST)


def test_answers_have_room_for_long_fields() -> None:
    """The fields that a broker adds to each answer have any length, in either form of the header."""
    for head, binary in (
        (b"", b"\x00\x01x" + b"\x00\x00\x27\x10" + b"v" * 10_000),
        (b'"x":"%s",' % (b"v" * 10_000), b""),
    ):
        path = SendPath(SUFFIX, head, binary, 1 << 24, 1 << 16)
        path.put_topic(TopicQueues(b"T", [QueueState(b"T", number) for number in range(4)]))
        frame = send(binary=bool(binary))
        assert path.scan(frame, 0) == len(frame)
        builder = RecordBuilder(HOST, 1 << 16)
        builder.begin(0, 1 << 20, NOW)
        path.build(builder, HOST)
        assert b"v" * 10_000 in path.answers(b"7F000001")


def test_a_batch_that_was_not_measured_is_not_added() -> None:
    builder = RecordBuilder(HOST, 1 << 16)
    builder.begin(0, 1 << 20, NOW)
    for batch in (b"x", bytes(30), struct.pack(">iiiii", 22, 0, 0, 0, 0x7FFFFFFF) + b"\0\0"):
        assert builder.measure_batch(QueueState(b"T", 0), batch, 16) == -1
        with pytest.raises(AssertionError, match="not measured"):
            builder.add_batch(QueueState(b"T", 0), batch, 0, NOW, HOST)


def test_a_batch_item_has_three_parts() -> None:
    for message in ((b"body",), (b"body", b"p\x01v\x02"), (b"body", b"", 0, 1)):
        with pytest.raises(ValueError, match="a body, properties and a flag"):
            encode_items([message])


def test_columns_have_a_possible_number_of_rows() -> None:
    for rows in (-1, -5, 1 << 40):
        with pytest.raises(ValueError, match="so many rows"):
            Numbers(8, rows)
        with pytest.raises(ValueError, match="so many rows"):
            Content(rows)


def test_rows_of_a_failed_block_are_not_read_in_other_bytes() -> None:
    """The block keeps positions in the bytes that it came from: after an error these may be gone."""

    def failing(body: bytes, flags: int) -> bytes | None:
        raise MemoryError

    rows = Columns(("body",), b"b", 64, 1 << 20, [], b"", True, failing, lambda host: b"")
    with pytest.raises(MemoryError):
        rows.take_run(MappedBytes(records()), 0, 0, LAST, b"", -1, False)
    with pytest.raises(RuntimeError, match="block before failed"):
        rows.take_run(MappedBytes(b"\0"), 0, 0, LAST, b"", -1, False)
    with pytest.raises(RuntimeError, match="block before failed"):
        rows.take_entries(MappedBytes(b"\0"), 0, b"", 0, 0, b"", -1, False)
    assert columns().take_run(MappedBytes(records()), 0, 0, LAST, b"orders", 1, False) == len(records())


def test_a_column_of_numbers_is_not_read_as_one_of_content() -> None:
    numbers = Column(struct.pack("=2i", 0, 1), None, None, 0, 2)
    content = Column(struct.pack("=3i", 0, 1, 2), b"ab", None, 0, 2)
    for given in ({"body": numbers}, {"body": content, "keys": numbers}, {"body": content, "delay": content}):
        with pytest.raises(ValueError, match="column of another kind"):
            RowEncoder(100).load(2, given)
    with pytest.raises(IndexError):
        Column(struct.pack("=2i", 0, 1), None, None, 1 << 61, 1)


def test_released_content_is_not_read() -> None:
    data = staged_item(1)
    content = MappedBytes(data)
    items = StagedItems(content, 0, len(data))
    assert items.check(1, 100) == 0
    content.release()
    for step in (items.properties, items.request, lambda: items.skip(1), lambda: items.check(1, 100)):
        with pytest.raises(IndexError):
            step()
