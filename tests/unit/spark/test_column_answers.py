"""Answers in columns: the rows that the records would have become, whatever they are; nothing else is let in."""

import random
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock._hot.layout import BAD_CHECKSUM
from penstock.errors import CodecError
from penstock.message import HostAddress, Message
from penstock.message.column_answers import NAMES, ColumnAnswer, pack, unpack
from penstock.spark.schema import COLUMNS
from penstock.store import GetStatus, MessageStore, StoreOptions

pytest.importorskip("pyarrow")
from penstock.spark.batches import RecordDecoder

ALL = tuple(name for name in COLUMNS if name in NAMES)
COUNT = 300


@pytest.fixture
def store(tmp_path) -> Iterator[MessageStore]:
    """Two queues in turn over several segments, with all that a record may have."""
    chooser = random.Random(5)
    options = StoreOptions(
        segment_size_bytes=1 << 16,
        max_message_size_bytes=1 << 15,
        queue_file_entries=100,
        index_enabled=False,
        scrub_bytes_per_second=0,
    )
    with MessageStore.open(tmp_path, options, background=False) as opened:
        for number in range(2 * COUNT):
            properties = {"UNIQ_KEY": f"{number:032X}", "a": "ä" * (1 + number % 5)}
            if number % 3:
                properties["TAGS"] = chooser.choice(["red", "blue"])
            if number % 7:
                properties["KEYS"] = f"k{number} k"
            host = HostAddress("2001:db8::7" if number % 5 == 0 else "10.0.0.1", number)
            body = chooser.randbytes(chooser.choice([0, 1, 100, 400, 3_000]))
            born = -1 if number % 11 == 0 else 1_700_000_000_000 + number
            message = Message("T", body, properties)
            opened.append(message, number % 2, born_host=host, born_timestamp=born)
        yield opened


def as_records(store, names, start=0, end=COUNT, **limits):
    """Rows and damage, from records."""
    decoder = RecordDecoder(names, broker="b", rows=64)
    rows = []
    while start < end:
        found = store.get("T", 0, start, end - start, **limits)
        following = min(found.next_offset, end)
        if found.status is GetStatus.FOUND:
            feed = decoder.feed_run(found.data, start, following, topic=b"T", queue_id=0, complete=True)
            rows += [row for batch in feed for row in batch.to_pylist()]
        start = following
    rows += [row for batch in decoder.finish() for row in batch.to_pylist()]
    return rows, [damage.queue_offset for damage in decoder.damaged]


def as_columns(store, names, start=0, end=COUNT, max_bytes=1 << 20):
    """The same from columns."""
    decoder = RecordDecoder(names, broker="b", rows=64)
    rows = []
    while start < end:
        found = store.reader.get_columns("T", 0, start, end - start, max_bytes, names)
        assert (found.status, found.stored_bytes > 0) == (GetStatus.FOUND, True)
        feed = decoder.feed_columns(found.data, start, found.next_offset, names, "T")
        rows += [row for batch in feed for row in batch.to_pylist()]
        start = decoder.next_offset
    return rows, [damage.queue_offset for damage in decoder.damaged]


def test_the_columns_are_some_of_sparks():
    assert set(ALL) == NAMES


@pytest.mark.parametrize("max_bytes", [100, 5_000, 1 << 20])
def test_rows_are_those_of_the_records(store, max_bytes):
    wanted, _ = as_records(store, ALL)
    assert len(wanted) == COUNT
    assert as_columns(store, ALL, max_bytes=max_bytes) == (wanted, [])


@pytest.mark.parametrize("names", [("body",), ("queue_id", "body"), ("size",), ("store_time", "born_time")])
def test_some_columns_in_any_order(store, names):
    for some in (names, names[::-1]):
        assert as_columns(store, some, 10, 200) == as_records(store, some, 10, 200)


def test_topic_and_broker_are_known_here(store):
    names = ("broker", "body", "topic")
    found = store.reader.get_columns("T", 0, 0, COUNT, 1 << 20, ("body",))
    decoder = RecordDecoder(names, broker="b", rows=64)
    rows = [
        row
        for batch in decoder.feed_columns(found.data, 0, found.next_offset, ("body",), "T")
        for row in batch.to_pylist()
    ]
    assert rows == as_records(store, names, 0, found.next_offset)[0]


@pytest.mark.fault("F7")
def test_damage_is_told_with_its_reason_and_reported(store):
    for offset in (0, 50, 51, COUNT - 1):
        (entry,) = store.reader.entries("T", 0, offset, 1)
        segment = store.log.segment_of(entry.position)
        with open(segment.path, "r+b") as file:
            file.seek(entry.position - segment.base + 4)
            file.write(b"\0")
    found, lost = as_columns(store, ALL)
    assert lost == [0, 50, COUNT - 1]  # neighbours are told as one
    assert found == as_records(store, ALL)[0]
    assert len(found) == COUNT - 4
    assert sum(finding.kind == "damaged record" for finding in store.findings.all()) == 4


@pytest.mark.fault("F7")
def test_checksums_are_compared_whatever_the_options_say(tmp_path):
    """They do not travel, so the reader cannot."""
    with MessageStore.open(tmp_path, StoreOptions(segment_size_bytes=8 << 20, verify_reads=False)) as store:
        for _ in range(3):
            store.append(Message("T", b"hello"), 0)
        (entry,) = store.reader.entries("T", 0, 1, 1)
        with open(store.log.segments[0].path, "r+b") as file:
            file.seek(entry.position + 88)
            file.write(b"j")
        names = ("body",)
        found = store.reader.get_columns("T", 0, 0, 3, 1 << 20, names)
        assert unpack(names, found.data, 3).damaged == [[1, 1, BAD_CHECKSUM]]


def test_batches_have_as_many_bytes_as_they_may(store):
    found = store.reader.get_columns("T", 0, 0, 200, 1 << 20, ("body",))
    decoder = RecordDecoder(("body",), size=20_000)
    batches = list(decoder.feed_columns(found.data, 0, found.next_offset, ("body",), "T"))
    assert sum(batch.num_rows for batch in batches) == 200
    assert len(batches) > 5
    assert max(batch.nbytes for batch in batches) < 3 * 20_000  # by the mean size of a row


def test_segments_that_are_gone_are_gaps(store):
    store.log.views[1] = None
    found, lost = as_columns(store, ALL, max_bytes=1 << 20)
    store.log.views[1] = store.log.segments[1].view
    assert 0 < len(found) < COUNT
    assert len(lost) == 1


@pytest.mark.parametrize("offset", [-1, COUNT, COUNT + 1, 1 << 40])
def test_where_there_is_nothing_the_answer_is_that_of_records(store, offset):
    for queue_id in (0, 9):
        wanted = store.get("T", queue_id, offset)
        assert store.reader.get_columns("T", queue_id, offset, 32, 1 << 20, ALL) == wanted


def test_packed_bodies_are_not_unpacked_here(store):
    request = store.request(Message("T", b"x" * 100), 0)
    request.sys_flag |= 1
    store.append_group([request])
    assert store.reader.get_columns("T", 0, 0, COUNT + 1, 1 << 30, ("body",)) is None
    found = store.reader.get_columns("T", 0, COUNT, 1, 1 << 20, ("queue_offset",))
    assert found.count == 1  # who does not want bodies may have columns


# -- memory that serves again ------------------------------------------------------------------------------------


def random_reads(store, seed: int) -> list[tuple[tuple, bytes]]:
    """What to read, and the answer of columns that were never used before."""
    chooser = random.Random(seed)
    reads = []
    for _ in range(60):
        names = chooser.choice([ALL, ("body",), ("queue_id", "body"), ("born_time", "store_time")])
        start = chooser.randrange(COUNT)
        what = (
            "T",
            chooser.randrange(2),
            start,
            chooser.randint(1, COUNT),
            chooser.choice([100, 9_000, 1 << 20]),
        )
        store.reader._columns_kept = None
        reads.append(((*what, names), bytes(store.reader.get_columns(*what, names).data)))
    return reads


def test_no_read_shows_what_another_left_behind(store):
    """More and fewer rows, others' names, bodies that are shorter, rows with and without a time."""
    reads = random_reads(store, 1)
    memory, turns = set(), random.Random(2).sample(reads, len(reads)) * 2
    for what, wanted in turns:
        assert bytes(store.reader.get_columns(*what).data) == wanted
        memory.add(id(store.reader._columns_kept[1]))
    assert len(memory) < len(turns), "some were used again"


@pytest.mark.fault("F7")
def test_damage_and_packed_bodies_leave_nothing_to_the_next_read(store):
    names = ("queue_id", "body")
    whole = bytes(store.reader.get_columns("T", 0, 0, 40, 1 << 20, names).data)
    request = store.request(Message("T", b"x" * 100), 1)
    request.sys_flag |= 1
    store.append_group([request])
    (entry,) = store.reader.entries("T", 0, 50, 1)
    segment = store.log.segment_of(entry.position)
    with open(segment.path, "r+b") as file:
        file.seek(entry.position - segment.base + 4)
        file.write(b"\0")
    for _ in range(2):
        assert store.reader.get_columns("T", 1, COUNT - 20, 21, 1 << 20, names) is None
        assert bytes(store.reader.get_columns("T", 0, 0, 40, 1 << 20, names).data) == whole
        broken = store.reader.get_columns("T", 0, 40, 20, 1 << 20, names).data
        assert [item[:2] for item in unpack(names, broken, 20).damaged] == [[50, 50]]
        assert bytes(store.reader.get_columns("T", 0, 0, 40, 1 << 20, names).data) == whole


def test_threads_that_read_at_once_share_no_memory(store):
    reads = random_reads(store, 3)

    def read_all(seed: int) -> int:
        order = random.Random(seed).sample(reads, len(reads)) * 3
        return sum(bytes(store.reader.get_columns(*what).data) == wanted for what, wanted in order)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(read_all, range(4))) == [3 * len(reads)] * 4


def test_memory_of_large_reads_is_not_kept(store, monkeypatch):
    monkeypatch.setattr("penstock.store.reading.COLUMNS_KEPT_BYTES", 5_000)
    for size, is_kept in ((1 << 20, False), (4_000, True), (1 << 20, False)):
        assert store.reader.get_columns("T", 0, 0, 100, size, ALL).count
        assert (store.reader._columns_kept is not None) == is_kept


# -- what a peer may send ----------------------------------------------------------------------------------------


@pytest.fixture
def answer(store) -> bytes:
    return bytes(store.reader.get_columns("T", 0, 0, 40, 1 << 20, ALL).data)


def read(data, names=ALL, count=40):
    decoder = RecordDecoder(names, broker="b")
    return [row for batch in decoder.feed_columns(data, 0, count, names, "T") for row in batch.to_pylist()]


@pytest.mark.abuse("A1")
def test_an_answer_that_is_cut_short_is_refused(answer):
    assert len(read(answer)) == 40
    for size in (*range(400), *range(400, len(answer) - 64, 97)):
        with pytest.raises(CodecError):
            read(answer[:size])


@pytest.mark.abuse("A1")
def test_answers_with_other_bytes_are_refused_or_rows(answer):
    """Never anything else, and never what lies behind a buffer."""
    chooser = random.Random(3)
    refused = 0
    for _ in range(1_500):
        data = bytearray(answer)
        for _ in range(chooser.randrange(1, 4)):
            at = chooser.randrange(400) if chooser.random() < 0.5 else chooser.randrange(len(data) - 8)
            struct.pack_into(
                "<i", data, at, chooser.choice([-1, 0, 1, 255, 1 << 30, chooser.getrandbits(31)])
            )
        try:
            assert (
                sum(batch.num_rows for batch in RecordDecoder(ALL).feed_columns(data, 0, 40, ALL, "T")) <= 40
            )
        except CodecError:
            refused += 1
    assert refused > 300


@pytest.mark.abuse("A1")
def test_answers_to_other_questions_are_refused(answer):
    with pytest.raises(CodecError, match="buffers"):
        read(answer, ("body",))
    with pytest.raises(CodecError, match="rows"):
        read(answer, count=39)
    with pytest.raises(CodecError, match="leaves out"):
        read(answer, count=41)
    with pytest.raises(CodecError, match="another form"):
        read(b"PCOM" + answer[4:])
    empty = pack(("queue_id",), ColumnAnswer(0, {"queue_id": (None, (bytearray(), 0))}, [[0, 39, -9]]))
    assert read(empty, ("queue_id",)) == []
    assert unpack(("queue_id",), empty, 40).damaged == [[0, 39, -9]]
    for damaged in ([[0, 1 << 40, -9], [(1 << 40) + 40, 0, -9]], [[5, 2, -9]], [[-1, 38, -9]], [[1, 40, -9]]):
        wild = pack(("queue_id",), ColumnAnswer(0, {"queue_id": (None, (bytearray(), 0))}, damaged))
        with pytest.raises(CodecError, match="tells of damage"):
            read(wild, ("queue_id",))
    nulls = pack(("size",), ColumnAnswer(1, {"size": (bytearray(1), (bytearray(4), 4))}, []))
    with pytest.raises(CodecError, match="sizes"):
        unpack(("size",), nulls, 40)
    many = pack(("size",), ColumnAnswer(0, {"size": (None, (bytearray(), 0))}, [[0, 0, -9]] * 41))
    with pytest.raises(CodecError, match="41 damages"):
        unpack(("size",), many, 40)
    none = pack(("queue_id",), ColumnAnswer(1, {"queue_id": (None, (bytearray(2), 2))}, []))
    with pytest.raises(CodecError, match="sizes"):
        unpack(("queue_id",), none, 40)
