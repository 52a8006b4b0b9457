"""Appending: what is refused and why, where a record goes, what it looks like, and what the answer promises."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import (
    CodecError,
    DiskFullError,
    MessageError,
    MessageTooLargeError,
    PropertiesTooLargeError,
    StoreClosedError,
    StoreFormatError,
    StoreLockedError,
    TopicNameError,
)
from penstock.message import HostAddress, Message, TransactionKind, encode_properties, parse_message_id
from penstock.store import Durability, FlushMode, GetStatus, MessageStore, PutStatus
from penstock.store.consume_queue import Entry
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import audit, batch_of, body_of, faulty, open_store, small_options

LIMIT = 2048
SEGMENT = 8192
V6 = HostAddress("2001:db8::7", 10911)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    options = small_options(flush_mode=FlushMode.ASYNC)
    with open_store(tmp_path, options, disk=faulty(tmp_path), clock=clock) as opened:
        yield opened


def disk_of(store: MessageStore) -> FaultyDisk:
    disk = store._runtime.disk
    assert isinstance(disk, FaultyDisk)
    return disk


def entry_of(store: MessageStore, topic: str, offset: int) -> Entry:
    queue = store.queues.get(topic, 0)
    assert queue is not None
    entry = queue.entry(offset)
    assert entry is not None
    return entry


def untouched(store: MessageStore, *topics: str) -> bool:
    """Whether nothing was stored and no offset was used."""
    offsets = [store.append(Message.of(topic, b"probe")).queue_offset for topic in topics]
    return offsets == [0] * len(topics)


# -- the way of a message ------------------------------------------------------------------------------------


@pytest.mark.seed("S2-56", "S2-57", "S2-58", "S3-6")
@pytest.mark.invariant("I2")
def test_a_message_becomes_a_record_of_the_log_and_an_entry_of_its_queue(
    store: MessageStore, clock: ManualClock
) -> None:
    host = HostAddress("10.1.2.3", 4567)
    properties = {"TAGS": "TagA", "KEYS": "a b", "colour": "grün"}
    message = Message("orders", b"\x00body\xff", properties, flag=-7)
    result = store.append(message, 3, born_timestamp=123, born_host=host)
    assert (result.status, result.physical_offset, result.queue_offset) == (PutStatus.PUT_OK, 0, 0)
    assert result.store_timestamp == clock.now_ms()
    assert result.size == store.log.max_offset
    stored = store.read("orders", 3, 0)[0]
    assert (stored.topic, stored.queue_id, stored.body) == ("orders", 3, b"\x00body\xff")
    assert (stored.properties, stored.flag) == (properties, -7)
    assert (stored.born_timestamp, stored.born_host) == (123, host)
    assert (stored.store_timestamp, stored.size) == (result.store_timestamp, result.size)
    assert parse_message_id(result.message_id) == (stored.store_host, 0)
    assert stored.message_id == result.message_id
    queue = store.queues.get("orders", 3)
    assert queue is not None
    assert queue.entry(0) == Entry(0, result.size, 2_598_919)  # the hash Java gives "TagA"


@pytest.mark.seed("S4-43", "S4-44")
@pytest.mark.invariant("I3", "I4")
def test_one_log_for_all_queues_in_the_order_of_arrival(store: MessageStore) -> None:
    results = [store.append(Message.of(f"t{i % 3}", b"%d" % i), i % 2) for i in range(30)]
    for before, after in itertools.pairwise(results):
        assert after.physical_offset == before.physical_offset + before.size
    for queue in store.queues:
        found = store.read(queue.topic, queue.queue_id, 0)
        assert [m.queue_offset for m in found] == list(range(5))
        assert [int(m.body) for m in found] == sorted(int(m.body) for m in found)


@pytest.mark.seed("S4-6")
def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    for i in range(3):
        with open_store(tmp_path) as store:
            assert store.append(Message.of("t", b"%d" % i, keys="k")).queue_offset == i
    with open_store(tmp_path) as store:
        assert [m.body for m in store.read("t", 0, 0)] == [b"0", b"1", b"2"]
        assert [m.body for m in store.reader.query("t", "k")] == [b"2", b"1", b"0"]


def test_a_caller_cannot_forge_the_seal(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options(seal_records=True)) as store:
        store.append(Message("t", b"x", {"__CRC32#": "0000000000", "KEYS": "k"}))
        stored = store.read("t", 0, 0)[0]
        assert stored.properties["KEYS"] == "k"
        assert stored.properties["__CRC32#"] != "0000000000"
        assert audit(store).all() == []


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "fits"), [(0, True), (LIMIT - 1, True), (LIMIT, True), (LIMIT + 1, False)])
def test_the_limit_of_a_body(store: MessageStore, size: int, fits: bool) -> None:
    message = Message.of("t", bytes(size))
    if fits:
        store.append(message)
        assert store.read("t", 0, 0)[0].body == bytes(size)
    else:
        with pytest.raises(MessageTooLargeError, match=f"{size} bytes, the limit is {LIMIT}"):
            store.append(message)
        assert store.log.max_offset == 0


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    "topic",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "..\\x",
        "a\0b",
        "\0",
        "a b",
        "a\n",
        "a.b",
        "%2e%2e/x",
        "con:",
        "tópico",
        "主题",
        "a" * 128,
        "a" * 10_000,
        "%RETRY%" + "a" * 249,
        "%DLQ%" + "a" * 251,
        "~",
        "a*",
        "$x",
    ],
)
def test_names_that_are_no_topic(store: MessageStore, tmp_path: Path, topic: str) -> None:
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(TopicNameError) as refused:
        store.append(Message.of(topic, b"x"))
    assert len(str(refused.value)) < 300
    with pytest.raises(TopicNameError):
        store.append_batch(topic, 0, batch_of([1]))
    with pytest.raises(TopicNameError):
        store.queues.get_or_create(topic, 0)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert store.log.max_offset == 0


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    "topic",
    ["a", "A-Z_0-9|x%", "%2e%2e", "CON", "NUL", "a" * 127, "%RETRY%" + "a" * 248, "%DLQ%" + "b" * 250],
)
def test_odd_names_that_are_allowed(tmp_path: Path, topic: str) -> None:
    with open_store(tmp_path) as store:
        store.append(Message.of(topic, b"x", keys="k"))
    with open_store(tmp_path) as store:
        assert [m.topic for m in store.read(topic, 0, 0)] == [topic]
        assert [m.topic for m in store.reader.query(topic, "k")] == [topic]
    assert (tmp_path / "consumequeue" / topic / "0").is_dir()


@pytest.mark.abuse("A6")
def test_names_that_differ_only_in_case_are_two_topics(store: MessageStore) -> None:
    store.append(Message.of("case", b"lower"))
    store.append(Message.of("CASE", b"upper"))
    assert [m.body for m in store.read("case", 0, 0)] == [b"lower"]
    assert [m.body for m in store.read("CASE", 0, 0)] == [b"upper"]


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("queue", [-1, -(2**31), 2**31, 2**63, 2**70])
def test_impossible_queues_are_refused(store: MessageStore, queue: int) -> None:
    with pytest.raises(MessageError, match=f"queue id {queue} is outside"):
        store.append(Message.of("t", b"x"), queue)
    assert len(store.queues) == 0


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("queue", [-1, 2**31])
def test_impossible_queues_are_refused_for_a_batch_too(store: MessageStore, queue: int) -> None:
    with pytest.raises(MessageError):
        store.append_batch("t", queue, batch_of([1]))
    assert len(store.queues) == 0


def test_the_largest_queue_id(store: MessageStore) -> None:
    store.append(Message.of("t", b"x"), 2**31 - 1)
    assert [m.queue_id for m in store.read("t", 2**31 - 1, 0)] == [2**31 - 1]


@pytest.mark.parametrize(("size", "fits"), [(32767, True), (32768, False)])
def test_the_limit_of_the_properties(tmp_path: Path, size: int, fits: bool) -> None:
    value = "v" * (size - len("name\x01\x02"))
    with open_store(tmp_path, small_options(segment_size_bytes=65536)) as store:
        if fits:
            store.append(Message("t", b"x", {"name": value}))
            assert store.read("t", 0, 0)[0].properties == {"name": value}
        else:
            with pytest.raises(PropertiesTooLargeError, match="32768 bytes, at most 32767"):
                store.append(Message("t", b"x", {"name": value}))
            assert store.log.max_offset == 0


def test_properties_that_leave_no_room_for_the_seal(tmp_path: Path) -> None:
    options = small_options(segment_size_bytes=65536, seal_records=True)
    with open_store(tmp_path, options) as store:
        with pytest.raises(PropertiesTooLargeError):
            store.append(Message("t", b"x", {"name": "v" * 32742}))
        assert store.append(Message("t", b"x", {"name": "v" * 32741})).queue_offset == 0


@pytest.mark.parametrize(
    "properties",
    [{"a\x01b": "v"}, {"a": "v\x01w"}, {"a\x02": "v"}, {"a": "\x02"}, {"": "v"}, {"a": ""}, {"a": "\ud800"}],
)
def test_properties_that_could_not_be_read_back(store: MessageStore, properties: dict[str, str]) -> None:
    with pytest.raises(CodecError):
        store.append(Message("t", b"x", properties))
    assert store.log.max_offset == 0


@pytest.mark.abuse("A6")
def test_zero_bytes_in_properties_are_kept_and_do_not_look_like_a_torn_write(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.append(Message("t", b"x", {"a": "\0", "b\0": "c", "KEYS": "k\0"}))
        store.append(Message("t", b"y", {"a": "plain"}))
        store.abandon()
    with open_store(tmp_path) as store:
        first, second = store.read("t", 0, 0)
        assert {k: v for k, v in first.properties.items() if k != "__CRC32#"} == {
            "a": "\0",
            "b\0": "c",
            "KEYS": "k\0",
        }
        assert second.properties == {"a": "plain"}
        assert store.findings.damage() == []


def test_a_record_that_fits_no_segment(tmp_path: Path) -> None:
    """The body is within its limit, the whole record is not."""
    options = small_options(segment_size_bytes=4096, max_message_size_bytes=4096)
    with open_store(tmp_path, options) as store:
        size = store.append(Message.of("t", b"")).size
        largest = 4096 - 8 - size
        with pytest.raises(MessageTooLargeError, match="fits no segment of 4096 bytes"):
            store.append(Message.of("t", bytes(largest + 1)))
        assert store.append(Message.of("t", bytes(largest))).queue_offset == 1
        with pytest.raises(MessageTooLargeError):
            store.append(Message.of("t", bytes(4096)))
        assert store.append(Message.of("t", b"after")).queue_offset == 2
        assert [len(m.body) for m in store.read("t", 0, 0)] == [0, largest, 5]
        assert audit(store).all() == []


# -- groups --------------------------------------------------------------------------------------------------


def test_a_refused_request_does_not_stop_its_group(tmp_path: Path) -> None:
    options = small_options(segment_size_bytes=4096, max_message_size_bytes=4096)
    with open_store(tmp_path, options) as store:
        bodies = [b"a", bytes(4080), b"b", bytes(4096), b"c"]
        requests = [store.request(Message.of("t", body)) for body in bodies]
        store.append_group(requests)
        assert [request.size > 0 for request in requests] == [True, False, True, False, True]
        assert [request.size for request in requests if request.size < 0] == [-1, -1]
        assert [request.queue_offset for request in requests if request.size > 0] == [0, 1, 2]
        assert [m.body for m in store.read("t", 0, 0)] == [b"a", b"b", b"c"]
        assert audit(store).all() == []


@pytest.mark.seed("S3-57", "S4-44")
def test_a_group_is_one_write(store: MessageStore) -> None:
    store.append(Message.of("t", b"first"))
    requests = [store.request(Message.of(f"t{i % 4}", body_of(i)), i % 2) for i in range(30)]
    disk = disk_of(store)
    disk.log.clear()
    start = store.log.max_offset
    store.append_group(requests)
    writes = [entry for entry in disk.log if entry.op == "pwrite"]
    assert [(w.path, w.offset, w.size) for w in writes] == [
        (f"commitlog/{0:020d}", start, sum(request.size for request in requests))
    ]


@pytest.mark.invariant("I3", "I4")
def test_a_group_that_runs_over_segments(store: MessageStore) -> None:
    requests = [store.request(Message.of("t", bytes([i]) * 700)) for i in range(50)]
    disk = disk_of(store)
    disk.log.clear()
    store.append_group(requests)
    writes = [w for w in disk.log if w.op == "pwrite" and w.path.startswith("commitlog/")]
    segments = store.log.max_offset // SEGMENT + 1
    assert len(writes) == segments >= 5
    assert [w.path for w in writes] == [f"commitlog/{i * SEGMENT:020d}" for i in range(segments)]
    assert [m.body[0] for m in store.read("t", 0, 0, 100)] == list(range(50))
    for request in requests:
        base = request.physical_offset - request.physical_offset % SEGMENT
        assert request.physical_offset + request.size + 8 <= base + SEGMENT
    assert audit(store).all() == []


@pytest.mark.parametrize("left", [0, 1, 7])
def test_a_segment_is_filled_to_the_last_byte_that_its_blank_record_leaves(
    store: MessageStore, left: int
) -> None:
    size = store.append(Message.of("t", b"")).size
    while SEGMENT - store.log.max_offset > 2 * LIMIT:
        store.append(Message.of("t", bytes(1000)))
    room = SEGMENT - store.log.max_offset - 8
    half = room // 2
    store.append(Message.of("t", bytes(half - size)))
    result = store.append(Message.of("t", bytes(room - half - size - left)))
    assert result.physical_offset + result.size == SEGMENT - 8 - left
    following = store.append(Message.of("t", b""))
    assert following.physical_offset == SEGMENT
    blank = store.log.segments[0]
    assert blank is not None
    at = SEGMENT - 8 - left
    assert struct.unpack(">iI", blank.view.slice(at, at + 8)) == (8 + left, 0xCBD43194)
    assert audit(store).all() == []


def test_an_empty_group_is_nothing(store: MessageStore) -> None:
    assert store.append_group([]) == (Durability.MEMORY, PutStatus.PUT_OK)
    assert store.log.max_offset == 0


# -- batches -------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I3", "I4")
def test_a_batch_lies_together_with_offsets_in_a_row(store: MessageStore) -> None:
    store.append(Message.of("t", b"before"))
    result = store.append_batch("t", 0, batch_of(range(10, 20)))
    assert (result.first_queue_offset, result.count, len(result.message_ids)) == (1, 10, 10)
    found = store.read("t", 0, 1)
    assert [m.body for m in found] == [body_of(i) for i in range(10, 20)]
    assert [m.message_id for m in found] == list(result.message_ids)
    assert [m.queue_offset for m in found] == list(range(1, 11))
    assert result.size == sum(m.size for m in found)
    assert found[-1].physical_offset + found[-1].size == result.physical_offset + result.size
    assert [m.body for m in store.reader.query("t", "k15")] == [body_of(15)]
    assert {m.tag for m in found} == {"t0", "t1", "t2"}


@pytest.mark.invariant("I3")
def test_a_batch_is_never_split_over_segments(store: MessageStore) -> None:
    batch = batch_of(range(8))
    for _ in range(40):
        result = store.append_batch("t", 0, batch)
        end = result.physical_offset + result.size
        assert result.physical_offset // SEGMENT == (end + 7) // SEGMENT
    assert store.max_offset("t", 0) == 320
    assert store.log.max_offset > 3 * SEGMENT
    assert audit(store).all() == []


def test_a_batch_is_one_write(store: MessageStore) -> None:
    store.append(Message.of("t", b"first"))
    disk = disk_of(store)
    disk.log.clear()
    result = store.append_batch("t", 0, batch_of(range(5)))
    assert [(w.op, w.size) for w in disk.log] == [("pwrite", result.size)]


@pytest.mark.parametrize(("size", "fits"), [(LIMIT, True), (LIMIT + 1, False)])
def test_the_limit_of_a_batch(store: MessageStore, size: int, fits: bool) -> None:
    half = batch_item(bytes(size // 2 - 22)) + batch_item(bytes(size - size // 2 - 22))
    assert len(half) == size
    if fits:
        assert store.append_batch("t", 0, half).count == 2
    else:
        with pytest.raises(MessageTooLargeError):
            store.append_batch("t", 0, half)
        assert untouched(store, "t")


def test_a_batch_that_takes_more_than_a_segment_as_records(tmp_path: Path) -> None:
    options = small_options(segment_size_bytes=4096, max_message_size_bytes=4096)
    with open_store(tmp_path, options) as store:
        with pytest.raises(MessageTooLargeError, match="a segment has 4096"):
            store.append_batch("t", 0, batch_item(b"") * 60)
        assert untouched(store, "t")


def batch_item(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, 5, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


@pytest.mark.abuse("A5")
def test_a_batch_cut_at_any_byte_is_refused_or_ends_with_a_message(store: MessageStore) -> None:
    items = [batch_item(bytes(i), encode_properties({"KEYS": f"k{i}"})) for i in range(4)]
    whole = b"".join(items)
    ends = [sum(len(item) for item in items[:n]) for n in range(1, 5)]
    taken = 0
    for cut in range(len(whole)):
        if cut in ends:
            taken += store.append_batch("t", 0, whole[:cut]).count
            continue
        with pytest.raises(CodecError):
            store.append_batch("t", 0, whole[:cut])
        assert store.max_offset("t", 0) == taken
    assert taken == 1 + 2 + 3
    assert store.append(Message.of("t", b"next")).queue_offset == taken
    assert audit(store).all() == []


@pytest.mark.abuse("A4", "A5")
@pytest.mark.parametrize("field", [0, 16, "properties"])
@pytest.mark.parametrize("value", [-1, -(2**31), 0, 1, 21, 22, 2**15 - 1, 2**31 - 1, "more", "less"])
def test_a_batch_with_lying_lengths_is_refused_whole(
    store: MessageStore, field: int | str, value: int | str
) -> None:
    """The second of three messages lies about its size, its body's length or its properties' length."""
    parts = [batch_item(b"x" * 30, b"a\x01b\x02") for _ in range(3)]
    lying = bytearray(parts[1])
    at, size = (52 - 2, 2) if field == "properties" else (int(field), 4)
    if field == "properties":
        at = 20 + 30
    truth = int.from_bytes(lying[at : at + size], "big")
    number = {"more": truth + 1, "less": truth - 1}.get(str(value), value)
    lie = int(number)
    if size == 2:
        lie = max(min(lie, 2**15 - 1), -(2**15))
    assert lie != truth
    lying[at : at + size] = lie.to_bytes(size, "big", signed=True)
    with pytest.raises(CodecError):
        store.append_batch("t", 0, parts[0] + bytes(lying) + parts[2])
    assert store.log.max_offset == 0
    assert untouched(store, "t")


@pytest.mark.fault("F4")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("sys_flag", [0, 4, 8, 12])
def test_a_batch_that_could_not_be_written_used_no_offsets(store: MessageStore, sys_flag: int) -> None:
    """Messages of a batch that are prepared for a transaction have no offsets that could be taken back."""
    store.append(Message.of("t", b"first"))
    disk_of(store).fail_next("pwrite", errno.ENOSPC, path_contains="commitlog")
    with pytest.raises(DiskFullError):
        store.append_batch("t", 0, batch_of(range(3)), sys_flag=sys_flag)
    assert store.append(Message.of("t", b"second")).queue_offset == 1


@pytest.mark.abuse("A5")
def test_an_empty_batch_is_refused(store: MessageStore) -> None:
    with pytest.raises(CodecError):
        store.append_batch("t", 0, b"")


# -- forms of a record ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "magic"), [(127, 0xDAA320A7), (128, 0xDAA320AB), (255, 0xDAA320AB)])
def test_long_topics_make_records_of_version_2(store: MessageStore, size: int, magic: int) -> None:
    topic = ("%RETRY%" + "g" * 300)[:size]
    for i in range(3):
        store.append(Message.of(topic, b"%d" % i, keys="k", tag="a"))
    data = store.get(topic, 0, 0).data
    assert int.from_bytes(data[4:8], "big") == magic
    assert [m.topic for m in store.read(topic, 0, 0, tags=["a"])] == [topic] * 3
    assert len(store.reader.query(topic, "k")) == 3
    assert store.append_batch(topic, 0, batch_of(range(3))).first_queue_offset == 3
    assert audit(store).all() == []


@pytest.mark.parametrize("born", [HostAddress("1.2.3.4", 5), V6])
@pytest.mark.parametrize("stored", [HostAddress("127.0.0.1", 10911), V6])
def test_addresses_of_both_families(tmp_path: Path, born: HostAddress, stored: HostAddress) -> None:
    with open_store(tmp_path, store_host=stored) as store:
        result = store.append(Message.of("t", b"x", keys="k"), born_host=born)
        store.append_batch("t", 0, batch_of([1, 2]), born_host=born)
        found = store.read("t", 0, 0)
        assert [(m.born_host, m.store_host) for m in found] == [(born, stored)] * 3
        assert [bool(m.sys_flag & 0x10) for m in found] == [":" in born.ip] * 3
        assert [bool(m.sys_flag & 0x20) for m in found] == [":" in stored.ip] * 3
        assert parse_message_id(result.message_id) == (stored, 0)
        assert store.reader.offset_by_time("t", 0, found[0].store_timestamp) == 0
        assert store.reader.offset_by_time("t", 0, found[0].store_timestamp + 1) == 3
        assert audit(store).all() == []


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x30])
def test_a_flag_that_lies_about_the_addresses_is_set_right(store: MessageStore, bits: int) -> None:
    store.append_group([store.request(Message.of("t", b"x"), sys_flag=bits | 0x1)])
    assert [m.sys_flag for m in store.read("t", 0, 0)] == [0x1]


@pytest.mark.parametrize(
    ("kind", "in_queue"),
    [
        (TransactionKind.NONE, True),
        (TransactionKind.PREPARED, False),
        (TransactionKind.COMMIT, True),
        (TransactionKind.ROLLBACK, False),
    ],
)
@pytest.mark.invariant("I9")
def test_kinds_of_transaction(store: MessageStore, kind: TransactionKind, in_queue: bool) -> None:
    """Half and rolled-back messages are in the log and in no queue, and use no offset."""
    request = store.request(Message.of("t", b"it", keys="k"), sys_flag=int(kind), prepared_offset=77)
    store.append_group([request])
    after = store.append(Message.of("t", b"after"))
    assert after.queue_offset == int(in_queue)
    bodies = [m.body for m in store.read("t", 0, 0)]
    assert bodies == ([b"it", b"after"] if in_queue else [b"after"])
    at = store.message_at(request.physical_offset)
    assert at is not None
    assert (at.body, at.prepared_transaction_offset, at.sys_flag) == (b"it", 77, int(kind))
    found = [m.body for m in store.reader.query("t", "k")]
    assert found == ([] if kind is TransactionKind.ROLLBACK else [b"it"])
    assert audit(store).all() == []


@pytest.mark.parametrize(
    ("delay", "expected_ms"),
    [("1", 1_000), ("4", 30_000), ("18", 7_200_000), ("19", 7_200_000), ("999999999", 7_200_000)],
)
@pytest.mark.invariant("I8")
def test_entries_of_delayed_messages_hold_their_time(
    store: MessageStore, delay: str, expected_ms: int
) -> None:
    message = Message("SCHEDULE_TOPIC_XXXX", b"x", {"DELAY": delay, "TAGS": "TagA"})
    result = store.append(message)
    entry = entry_of(store, "SCHEDULE_TOPIC_XXXX", 0)
    assert entry.tags_code == result.store_timestamp + expected_ms


@pytest.mark.parametrize("delay", ["0", "-1", "x", "1x", ""])
def test_entries_of_the_delay_topic_without_a_level_hold_the_tag(store: MessageStore, delay: str) -> None:
    properties = {"DELAY": delay, "TAGS": "TagA"} if delay else {"TAGS": "TagA"}
    store.append(Message("SCHEDULE_TOPIC_XXXX", b"x", properties))
    assert entry_of(store, "SCHEDULE_TOPIC_XXXX", 0).tags_code == 2_598_919


def test_a_delay_means_nothing_in_any_other_topic(store: MessageStore) -> None:
    store.append(Message("t", b"x", {"DELAY": "3", "TAGS": "TagA"}))
    assert entry_of(store, "t", 0).tags_code == 2_598_919


@pytest.mark.fault("F10")
def test_store_times_never_go_back(store: MessageStore, clock: ManualClock) -> None:
    times, bodies = [], []
    for i, jump in enumerate((0, -3_600_000, 5, 3_600_000, -1, -(10**9), 10**9 + 50)):
        clock.jump(jump)
        bodies.append(b"%d" % i)
        times.append(store.append(Message.of("t", bodies[-1])).store_timestamp)
        times.append(store.append_batch("other", 0, batch_of([i])).store_timestamp)
    assert times == sorted(times)
    assert times[-1] == clock.now_ms()
    assert [m.body for m in store.read("t", 0, 0)] == bodies
    assert store.reader.offset_by_time("t", 0, times[0] + 1) == 3


@pytest.mark.fault("F10")
def test_nor_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    for ending in ("close", "abandon"):
        store = open_store(tmp_path, clock=clock)
        before = store.append(Message.of("t", b"x")).store_timestamp
        getattr(store, ending)()
        clock.jump(-3_600_000)
        with open_store(tmp_path, clock=clock) as store:
            assert store.append(Message.of("t", b"y")).store_timestamp >= before


# -- what the answer promises --------------------------------------------------------------------------------


@pytest.mark.seed("S3-52", "S3-53", "S3-54")
@pytest.mark.parametrize(
    ("mode", "asked", "wait", "reached"),
    [
        (FlushMode.ASYNC, None, None, Durability.MEMORY),
        (FlushMode.ASYNC, Durability.MEMORY, None, Durability.MEMORY),
        (FlushMode.ASYNC, Durability.FLUSHED, None, Durability.FLUSHED),
        (FlushMode.SYNC, None, None, Durability.FLUSHED),
        (FlushMode.SYNC, Durability.MEMORY, None, Durability.MEMORY),
        (FlushMode.SYNC, Durability.FLUSHED, None, Durability.FLUSHED),
        (FlushMode.SYNC, None, "true", Durability.FLUSHED),
        (FlushMode.SYNC, None, "false", Durability.MEMORY),
        (FlushMode.SYNC, Durability.FLUSHED, "false", Durability.FLUSHED),
    ],
)
def test_durability(
    tmp_path: Path, mode: FlushMode, asked: Durability | None, wait: str | None, reached: Durability
) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, small_options(flush_mode=mode), disk=disk) as store:
        store.append(Message.of("t", b"first"), durability=Durability.FLUSHED)
        disk.log.clear()
        message = Message("t", b"x", {"WAIT": wait} if wait else {})
        result = store.append(message, durability=asked)
        syncs = [entry.path for entry in disk.log if entry.op == "sync"]
        assert (result.durability, result.status) == (reached, PutStatus.PUT_OK)
        flushed = store.flusher.flushed_offset >= result.physical_offset + result.size
        assert flushed == (reached is Durability.FLUSHED)
        assert len(syncs) == int(flushed)
        visible = mode is FlushMode.ASYNC or flushed
        assert store.max_offset("t", 0) == 1 + visible


@pytest.mark.parametrize(("asked", "reached"), [(None, 1), (Durability.MEMORY, 0), (Durability.FLUSHED, 1)])
def test_durability_of_batches_and_groups(tmp_path: Path, asked: Durability | None, reached: int) -> None:
    with open_store(tmp_path, disk=faulty(tmp_path)) as store:
        assert store.append_batch("t", 0, batch_of([1]), durability=asked).durability == reached
        group = [store.request(Message.of("t", b"x"))]
        assert store.append_group(group, durability=asked) == (reached, PutStatus.PUT_OK)
        assert store.max_offset("t", 0) == 2 * reached


def test_listeners_are_told_once_per_group(store: MessageStore) -> None:
    heard: list[list[bytes]] = []
    store.on_arrival(lambda states: heard.append(sorted(state.topic for state in states)))
    store.append_group([store.request(Message.of(topic, b"x")) for topic in ("b", "a", "b", "a")])
    store.append(Message.of("b", b"x"))
    assert heard == [[b"a", b"b"], [b"b"]]


# -- who may write -------------------------------------------------------------------------------------------


def test_a_second_store_in_this_process_is_refused(store: MessageStore, tmp_path: Path) -> None:
    with pytest.raises(StoreLockedError, match="stop it first"):
        open_store(tmp_path, small_options())
    store.append(Message.of("t", b"still mine"))


def test_a_second_store_in_another_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    other = (
        "import sys; from penstock.errors import StoreLockedError\n"
        "from tests.support.store_checks import open_store; from pathlib import Path\n"
        "try: open_store(Path(sys.argv[1])).close()\n"
        "except StoreLockedError: sys.exit(7)\n"
    )
    command = [sys.executable, "-c", other, str(tmp_path)]
    root = Path(__file__).parents[3]
    with open_store(tmp_path) as store:
        store.append(Message.of("t", b"mine"))
        assert subprocess.run(command, cwd=root, timeout=60, check=False).returncode == 7
        assert [m.body for m in store.read("t", 0, 0)] == [b"mine"]
    assert subprocess.run(command, cwd=root, timeout=60, check=False).returncode == 0


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of everything in a directory."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("ending", ["close", "abandon", "running"])
def test_read_only_changes_nothing(tmp_path: Path, ending: str) -> None:
    owner = open_store(tmp_path)
    for i in range(60):
        owner.append(Message.of("t", body_of(i), keys=f"k{i}"))
        if i == 40:
            owner.keeper.tick()
    if ending != "running":
        getattr(owner, ending)()
    before = tree(tmp_path)
    with open_store(tmp_path, read_only=True) as store:
        assert [m.body for m in store.read("t", 0, 0, 100)] == [body_of(i) for i in range(60)]
        assert store.get("t", 0, 60).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.reader.query("t", "k3") != []
        assert not store.is_writable
        for attempt in (
            lambda: store.append_batch("t", 0, batch_of([1])),
            lambda: store.delete_topics(["t"]),
        ):
            with pytest.raises(StoreClosedError, match="read-only"):
                attempt()
        assert audit(store).all() == []
    assert tree(tmp_path) == before
    if ending == "running":
        assert owner.append(Message.of("t", b"goes on")).queue_offset == 60
        owner.close()


@pytest.mark.parametrize("empty", [True, False])
def test_read_only_refuses_appends(tmp_path: Path, empty: bool) -> None:
    """Also where the log is empty and an append would begin by making a segment."""
    with open_store(tmp_path) as owner:
        if not empty:
            owner.append(Message.of("t", b"x"))
    before = tree(tmp_path)
    store = open_store(tmp_path, read_only=True)
    try:
        with pytest.raises(StoreClosedError, match="read-only"):
            store.append_group([store.request(Message.of("t", b"x"))])
        with pytest.raises(StoreClosedError, match="read-only"):
            store.append(Message.of("t", b"x"))
        assert tree(tmp_path) == before
    finally:
        store.abandon()


def test_read_only_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="not a store"):
        open_store(tmp_path, read_only=True)
    assert os.listdir(tmp_path) == []


def test_a_closed_store_takes_nothing(store: MessageStore) -> None:
    request = store.request(Message.of("t", b"x"))
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.append(Message.of("t", b"x"))
    with pytest.raises(StoreClosedError):
        store.append_group([request])
    with pytest.raises(StoreClosedError):
        store.append_batch("t", 0, batch_of([1]))
    assert request.size == 0
