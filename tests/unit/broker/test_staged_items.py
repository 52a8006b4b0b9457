"""The compiled side of staging: items checked, counted, copied a run at a time, found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._hot.mapped import MappedBytes
from penstock._hot.records import RecordBuilder
from penstock._hot.staged import CopyTargets, StagedItems, count_copies
from penstock.errors import CodecError
from penstock.message import Message, decode_record
from penstock.protocol.bodies.staged import QUEUES_MAX, decode_head, encode_head, encode_item
from penstock.store import MessageStore, StoreOptions
from tests.support.staged import body_of, item

HOST = b"\x7f\0\0\x01\0\0\0\x07"
OPTIONS = StoreOptions(segment_size_bytes=64 * 1024, queue_file_entries=1000, max_message_size_bytes=8 * 1024)
SUFFIX = b"CLUSTER\x01c\x02"


def items_of(data: bytes) -> StagedItems:
    return StagedItems(MappedBytes(b"head" + data), 4, 4 + len(data))


def opened(path: Path) -> MessageStore:
    return MessageStore.open(path, OPTIONS, background=False)


def targets_in(store: MessageStore, count: int = 2, prepared: int = 77) -> CopyTargets:
    queues = [store.request(Message("T", b""), number).queue for number in range(count)]
    levels = [store.request(Message("SCHEDULE_TOPIC_XXXX", b""), number).queue for number in range(3)]
    places = [b"REAL_TOPIC\x01T\x02REAL_QID\x01%d\x02" % number for number in range(count)]
    return CopyTargets(queues, [0] * count, places, levels, SUFFIX, prepared)


def test_counts_of_checked_items() -> None:
    items = items_of(b"".join(item(n, n % 3, level=n % 2 * 70, size=n) for n in range(9)))
    assert items.check(5, 1000) == 0
    assert items.used() == [(0, 3), (1, 3), (2, 3)]
    assert (items.count, items.row, items.levels) == (9, 0, 1 << 62)
    assert items.largest == max(len(item(n, size=n)) - 22 for n in range(9))


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_judged_without_harm(data: bytes, targets: int) -> None:
    items = items_of(data)
    why = items.check(targets, 100)
    assert 0 <= why <= 7
    assert why or not data


@given(st.data())
def test_one_changed_byte_is_judged_without_harm(data: st.DataObject) -> None:
    good = bytearray(b"".join(item(n, n % 2) for n in range(3)))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    items = items_of(bytes(good))
    if items.check(2, 1000) == 0:
        assert sum(count for _, count in items.used()) == items.count
        assert items.skip(10) == items.count


def test_bounds_are_kept(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        StagedItems(MappedBytes(b"abc"), 0, 4)
    with pytest.raises(IndexError):
        StagedItems(MappedBytes(b"abc"), 2, 1)
    with pytest.raises(IndexError):
        items_of(b"").properties()
    with pytest.raises(IndexError):
        items_of(b"").request()
    with pytest.raises(ValueError, match="each target"):
        CopyTargets([], [0], [], [], b"", 0)
    # Not checked, and not begun: there are no targets, whatever the items say.
    with opened(tmp_path) as store:
        items = items_of(item(0, 1))
        items.begin(CopyTargets([], [], [], [], b"", 0), 1, HOST, 100, 100)
        store.append(Message("T", b"first"))
        with pytest.raises(IndexError):
            store.append_run(items.build)


def test_copies_are_made_in_runs_and_again_after_a_rewind(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(Message("T", b"first"), 1)
        items = items_of(b"".join(item(n, n % 2) for n in range(10)))
        assert items.check(2, 1000) == 0
        items.begin(targets_in(store), 123, HOST, 1 << 20, 4)
        assert items.skip(1) == 1
        store.append_run(items.build)
        assert items.row == 5
        start = items.pos

        def failing(builder: RecordBuilder) -> int:
            items.build(builder)
            builder.take_back()
            return 0

        store.append_run(failing)
        assert items.row == 9
        items.rewind()
        assert (items.row, items.pos) == (5, start)
        while not items.is_done:
            store.append_run(items.build)
        assert [m.body for m in store.read("T", 0, 0)] == [body_of(n) for n in (2, 4, 6, 8)]
        copies = store.read("T", 1, 1)
        assert [m.body for m in copies] == [body_of(n) for n in (1, 3, 5, 7, 9)]
        assert {m.prepared_transaction_offset for m in copies} == {77}
        assert {m.born_timestamp for m in copies} == {123}
        assert copies[0].properties == {"UNIQ_KEY": "U1", "KEYS": "k1", "CLUSTER": "c"}
        items.restart()
        assert items.properties() == b"UNIQ_KEY\x01U0\x02KEYS\x01k0\x02"


def test_runs_end_at_their_limit_of_bytes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(Message("T", b"first"))
        items = items_of(b"".join(item(n, size=500) for n in range(10)))
        assert items.check(1, 1000) == 0
        items.begin(targets_in(store), 1, HOST, 1_000, 100)
        store.append_run(items.build)
        assert items.row == 2


def test_a_request_is_the_same_copy(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        items = items_of(item(1, 0, TAGS="x") + item(2, 1, level=2))
        assert items.check(2, 1000) == 0
        items.begin(targets_in(store), 5, HOST, 100, 100)
        plain, delayed = items.request(), items.request()
        assert plain is not None
        assert delayed is not None
        assert items.is_done
        store.append_group([plain, delayed])
        [message] = store.read("T", 0, 0)
        assert message.properties == {"UNIQ_KEY": "U1", "KEYS": "k1", "TAGS": "x", "CLUSTER": "c"}
        assert (message.prepared_transaction_offset, message.born_timestamp) == (77, 5)
        [waiting] = store.read("SCHEDULE_TOPIC_XXXX", 1, 0)
        assert (waiting.properties["DELAY"], waiting.properties["REAL_QID"]) == ("2", "1")


def test_items_of_a_topic_that_is_gone_are_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(Message("T", b"first"))
        queue = store.request(Message("T", b"")).queue
        items = items_of(b"".join(item(n, n % 2, level=n % 3) for n in range(6)))
        assert items.check(2, 1000) == 0
        items.begin(CopyTargets([None, queue], [0, 0], [b"", b""], [], b"", 9), 1, HOST, 1 << 20, 100)
        store.append_run(items.build)
        assert [m.body for m in store.read("T", 0, 1)] == [body_of(n) for n in (1, 3, 5)]
        items.restart()
        assert items.request() is None


def test_copies_are_found_by_what_decided_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(Message("T", b"first"))
        for prepared, count in ((77, 5), (78, 3), (77, 2)):
            items = items_of(b"".join(item(n) for n in range(count)))
            assert items.check(1, 1000) == 0
            items.begin(targets_in(store, prepared=prepared), 1, HOST, 1 << 20, 100)
            store.append_run(items.build)
        segment = store.log.segments[0]
        assert segment is not None
        end = store.log.max_offset
        stop, why, count, last = count_copies(segment.view, 0, end, 0, 77)
        assert (stop, why, count) == (end, 0, 7)
        assert decode_record(segment.view.slice(last, end)).body == body_of(1)
        assert count_copies(segment.view, 0, end, 0, 78)[2] == 3
        assert count_copies(segment.view, 0, end, 0, 1)[2:] == (0, -1)
        assert count_copies(segment.view, 1, end, 0, 77)[1] < 0
        with pytest.raises(IndexError):
            count_copies(segment.view, 0, segment.view.size + 1, 0, 77)


def test_heads() -> None:
    topics = [("orders", 8), ("%weird|-_", 1)]
    data = encode_head(topics) + encode_item(0, b"", b"")
    assert decode_head(data) == (topics, len(encode_head(topics)))
    for bad in ([("t", QUEUES_MAX), ("u", 1)], [(f"t{n}", 1) for n in range(1001)], [("t" * 70_000, 1)]):
        with pytest.raises(CodecError):
            encode_head(bad)
    with pytest.raises(CodecError, match="32767"):
        encode_item(0, b"", bytes(32768))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_head_or_an_error(data: bytes) -> None:
    try:
        topics, at = decode_head(data)
    except CodecError:
        return
    assert encode_head(topics) == data[:at] or b"\x010" in data  # 04 queues are 4
