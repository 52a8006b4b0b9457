"""Records become Arrow batches: the same values as the codec in plain Python, whatever the bytes are."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from penstock._hot.mapped import MappedBytes
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.client.compression import pack
from penstock.client.options import Compression
from penstock.errors import OptionError
from penstock.spark.batches import Damage, RecordDecoder, arrow_schema
from penstock.spark.schema import COLUMNS
from tests.support.random_messages import PLAIN, numbered, plain, records, row

ALL = tuple(COLUMNS)
END = 1 << 62


def decoded(
    decoder: RecordDecoder, data: bytes, start: int = 0, end: int = END, **more: Any
) -> list[dict[str, Any]]:
    rows = []
    for batch in [*decoder.feed_run(data, start, end, **more), *decoder.finish()]:
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(decoder.columns))
        rows += batch.to_pylist()
    return rows


def entries_of(found: list[bytes], base: int = 0) -> tuple[bytes, bytes]:
    """A segment with these records, and the queue entries that lead to them."""
    segment, entries = b"", b""
    for record in found:
        position = base + len(segment)
        record = record[:28] + position.to_bytes(8, "big") + record[36:]
        entries += position.to_bytes(8, "big") + len(record).to_bytes(4, "big") + bytes(8)
        segment += record
    return segment, entries


@given(st.lists(records(), max_size=8), st.integers(1, 5), st.sampled_from([1, 400, 1 << 20]))
def test_rows_are_what_the_codec_in_plain_python_says(found: list[bytes], rows: int, size: int) -> None:
    found = numbered(found)
    decoder = RecordDecoder(ALL, broker="broker-ü", rows=rows, size=size)
    batches = [*decoder.feed_run(b"".join(found), 0, END), *decoder.finish()]
    assert [item for batch in batches for item in batch.to_pylist()] == [row(r, "broker-ü") for r in found]
    assert all(batch.num_rows <= rows for batch in batches)
    assert decoder.next_offset == len(found)
    assert decoder.damaged == []
    for batch in batches:
        batch.validate(full=True)


@given(st.lists(records(), max_size=4), st.sets(st.sampled_from(ALL), min_size=1))
def test_any_columns_in_any_order(found: list[bytes], columns: set[str]) -> None:
    found = numbered(found, 7)
    wanted = tuple(columns)
    rows = decoded(RecordDecoder(wanted), b"".join(found), 7)
    assert rows == [{name: row(record)[name] for name in wanted} for record in found]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 14))
def test_only_offsets_in_the_range(count: int, start: int, end: int) -> None:
    decoder = RecordDecoder(("queue_offset",), rows=3)
    rows = decoded(decoder, b"".join(plain(n) for n in range(count)), start, end)
    assert [item["queue_offset"] for item in rows] == list(range(start, min(end, count)))
    assert decoder.next_offset == max(start, min(end, count))


@given(records(), st.integers(1, 5), st.sampled_from([0, 1 << 30]))
def test_entries_lead_to_the_same_rows(record: bytes, rows: int, base: int) -> None:
    wanted = row(record)
    segment, entries = entries_of(numbered([record] * 3, 5), base)
    decoder = RecordDecoder(ALL, rows=rows)
    place = {"topic": wanted["topic"].encode(), "queue_id": wanted["queue_id"]}
    batches = list(decoder.feed_entries(MappedBytes(segment), base, entries, 5, **place))
    got = [item for batch in [*batches, *decoder.finish()] for item in batch.to_pylist()]
    assert decoder.next_offset == 8
    size = len(record)
    assert got == [row(segment[n * size : (n + 1) * size]) for n in range(3)]


def test_rows_of_several_feeds_share_a_batch() -> None:
    decoder = RecordDecoder(("queue_offset", "broker"), rows=4, broker="a")
    first = list(decoder.feed_run(plain(0) + plain(1) + plain(2), 0, END))
    decoder.broker = "b"
    second = list(decoder.feed_run(memoryview(plain(9) + plain(10)), 9, END))
    assert first == []
    assert [batch.to_pylist() for batch in [*second, *decoder.finish()]] == [
        [
            {"queue_offset": 0, "broker": "a"},
            {"queue_offset": 1, "broker": "a"},
            {"queue_offset": 2, "broker": "a"},
            {"queue_offset": 9, "broker": "b"},
        ],
        [{"queue_offset": 10, "broker": "b"}],
    ]
    assert list(decoder.finish()) == []


def test_a_batch_that_was_handed_out_never_changes() -> None:
    decoder = RecordDecoder(ALL, rows=2)
    kept = [*decoder.feed_run(b"".join(plain(n, body=bytes([n]) * 50) for n in range(21)), 0, END)]
    assert [item["body"] for batch in kept for item in batch.to_pylist()] == [
        bytes([n]) * 50 for n in range(20)
    ]


def test_batches_are_bounded_by_bytes() -> None:
    record = plain(0, body=bytes(1000))
    decoder = RecordDecoder(("body",), size=3 * len(record))
    batches = [*decoder.feed_run(b"".join(numbered([record] * 10)), 0, END), *decoder.finish()]
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]


def test_the_row_of_a_usual_message() -> None:
    (found,) = decoded(RecordDecoder(ALL, broker="broker-a"), plain(12))
    assert found["message_id"] == "U0"
    assert found["keys"] == "k1 k2"
    assert found["tags"] == "red"
    assert found["body"] == b"hello"
    assert found["properties"] == [("TAGS", "red"), ("KEYS", "k1 k2"), ("UNIQ_KEY", "U0")]
    assert found["born_host"] == "10.1.2.3:40000"
    assert found["born_time"].isoformat() == "2023-11-14T22:13:20.123000+00:00"


def test_without_keys_and_unique_key() -> None:
    (found,) = decoded(RecordDecoder(ALL), plain(0, properties=b""))
    assert (found["keys"], found["tags"], found["properties"]) == (None, None, [])
    assert found["message_id"] == "0A09080700002A9F0000000000001000"


def test_of_equal_names_the_last_counts() -> None:
    text = b"a\x011\x02b\x012\x02a\x013\x02\xff\x014\x02\xfe\x015\x02TAGS\x01x\x02TAGS\x01y\x02"
    (found,) = decoded(RecordDecoder(ALL), plain(0, properties=text))
    assert found["properties"] == [("a", "3"), ("b", "2"), ("\ufffd", "5"), ("TAGS", "y")]
    assert found["tags"] == "y"


def test_bytes_that_are_no_text_do_not_break_columns() -> None:
    text = b"KEYS\x01k\xff\xfe\x02TAGS\x01\xe4\xb8\x02UNIQ_KEY\x01\xed\xa0\x80\x02\xf0\x90\x01\xf5v\x02ok\x01\xc3\xa4"
    (found,) = decoded(RecordDecoder(ALL), plain(0, properties=text))
    assert found == row(plain(0, properties=text))
    assert found["keys"] == "k\ufffd\ufffd"


def test_bad_bytes_everywhere_need_more_room_than_the_record_has() -> None:
    text = (
        b"KEYS\x01"
        + b"\xff" * 9000
        + b"\x02UNIQ_KEY\x01"
        + b"\xfe" * 9000
        + b"\x02a\x01\xff\x02a\x01"
        + b"\xff" * 4000
    )
    data = b"".join(plain(n, properties=text) for n in range(60))
    rows = decoded(RecordDecoder(ALL), data)
    assert rows == [row(plain(n, properties=text)) for n in range(60)]


@pytest.mark.abuse("A5")
def test_very_many_properties_are_read_in_time() -> None:
    text = b"".join(b"%d\x01v\x02" % n for n in range(4000))[:32760]
    data = b"".join(plain(n, properties=text) for n in range(50))
    rows = decoded(RecordDecoder(("properties",)), data)
    assert rows == [{"properties": row(plain(0, properties=text))["properties"]}] * 50


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_packed_bodies_are_unpacked(kind: Compression) -> None:
    if kind is not Compression.ZLIB:
        pytest.importorskip("lz4.frame" if kind is Compression.LZ4 else "zstandard")
    flag = {Compression.LZ4: 0x101, Compression.ZSTD: 0x201, Compression.ZLIB: 0x301}[kind]
    bodies = [b"x" * 10_000, b"", b"plain", b"y" * 30]
    data = b"".join(
        plain(n, body=pack(body, kind), sys_flag=flag) if n % 2 == 0 else plain(n, body=body)
        for n, body in enumerate(bodies)
    )
    rows = decoded(RecordDecoder(("body", "queue_offset")), data)
    assert rows == [{"body": body, "queue_offset": n} for n, body in enumerate(bodies)]
    assert [item["size"] for item in decoded(RecordDecoder(("size",)), data)][1] == len(plain(1, body=b""))


def test_old_clients_set_no_kind_of_packing() -> None:
    (found,) = decoded(RecordDecoder(("body",)), plain(0, body=zlib.compress(b"abc"), sys_flag=1))
    assert found == {"body": b"abc"}


@pytest.mark.abuse("A5")
def test_a_bomb_and_a_body_that_is_not_packed_are_damage() -> None:
    bomb = plain(1, body=zlib.compress(bytes(1 << 20)), sys_flag=1)
    wrong = plain(2, body=b"not packed", sys_flag=1)
    unknown = plain(3, body=b"?", sys_flag=0x701)
    decoder = RecordDecoder(("body", "queue_offset"), unpacked_max=1000)
    rows = decoded(decoder, plain(0) + bomb + wrong + unknown + plain(4))
    assert [item["queue_offset"] for item in rows] == [0, 4]
    assert decoder.damaged == [Damage(1, "its body cannot be unpacked", 3)]
    assert decoder.next_offset == 5
    # Who does not want the body does not pay for it.
    assert len(decoded(RecordDecoder(("queue_offset",)), plain(0) + bomb + wrong + plain(4))) == 4


def test_sealed_records_are_checked_and_shown_as_the_message_shows_them() -> None:
    builder = RecordBuilder(PLAIN.store_host.encode(), 1 << 20, True)
    builder.begin(4096, 1 << 30, PLAIN.store_timestamp)
    queue = QueueState(b"orders", 3, 0)
    requests = [
        AppendRequest(queue, b"hello", b"TAGS\x01red\x02", 5, PLAIN.born_host.encode()) for _ in range(2)
    ]
    assert builder.add_all(requests, 0) == 2
    data = bytes(builder.content())
    size = len(data) // 2
    assert decoded(RecordDecoder(ALL), data) == [row(data[:size]), row(data[size:])]
    altered = bytearray(data)
    altered[12] ^= 1  # the queue id, which only the seal covers
    decoder = RecordDecoder(ALL)
    assert len(decoded(decoder, bytes(altered))) == 1
    assert decoder.damaged == [Damage(0, "checksum mismatch", 0)]


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_a_record_with_a_wrong_checksum_is_left_out_and_named() -> None:
    data = bytearray(plain(0) + plain(1) + plain(2))
    at = len(plain(0))
    data[at + 90] ^= 0xFF  # inside the body
    decoder = RecordDecoder(("queue_offset",))
    assert [item["queue_offset"] for item in decoded(decoder, bytes(data))] == [0, 2]
    assert decoder.damaged == [Damage(1, "checksum mismatch", 1)]
    assert not decoder.cut_short
    decoder.forget_damaged()
    assert decoder.damaged == []
    trusting = RecordDecoder(("queue_offset",), verify=False)
    assert len(decoded(trusting, bytes(data))) == 3


def test_behind_lengths_that_make_no_sense_nothing_is_guessed() -> None:
    data = bytearray(plain(5) + plain(6) + plain(7))
    data[len(plain(5)) : len(plain(5)) + 4] = (1 << 30).to_bytes(4, "big")
    decoder = RecordDecoder(("queue_offset",))
    assert [item["queue_offset"] for item in decoded(decoder, bytes(data), 5)] == [5]
    assert decoder.damaged == [Damage(6, "impossible record size", 6)]
    assert decoder.cut_short
    assert decoder.next_offset == 7
    assert [item["queue_offset"] for item in decoded(decoder, plain(7), 7)] == [7]
    assert not decoder.cut_short


@given(st.lists(records(), min_size=1, max_size=3), st.data())
def test_any_altered_byte_is_survived(found: list[bytes], data: st.DataObject) -> None:
    run = bytearray(b"".join(numbered(found)))
    for _ in range(data.draw(st.integers(1, 4))):
        run[data.draw(st.integers(0, len(run) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(run)))
    for verify in (True, False):
        decoder = RecordDecoder(ALL, rows=2, verify=verify)
        rows = decoded(decoder, bytes(run[:cut]))
        offsets = [item["queue_offset"] for item in rows]
        assert offsets == sorted(set(offsets))


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(data: bytes) -> None:
    decoder = RecordDecoder(ALL)
    assert decoded(decoder, data) == []
    count = len(data) // 20
    list(decoder.feed_entries(MappedBytes(plain(0)), 0, data, 0, topic=b"orders", queue_id=3))
    assert decoder.next_offset <= count


@pytest.mark.abuse("A26")
def test_a_record_of_another_queue_is_damage() -> None:
    decoder = RecordDecoder(("queue_offset",))
    data = plain(0) + plain(1, topic="other") + plain(2, queue_id=4) + plain(3, topic="order") + plain(4)
    rows = decoded(decoder, data, topic=b"orders", queue_id=3)
    assert [item["queue_offset"] for item in rows] == [0, 4]
    reason = "its queue entry leads to a record of another place"
    assert decoder.damaged == [Damage(1, reason, 3)]
    assert len(decoded(RecordDecoder(("queue_offset",)), data)) == 5


def test_repeated_and_backward_offsets_give_no_second_row() -> None:
    decoder = RecordDecoder(("queue_offset",))
    data = plain(3) + plain(3) + plain(2) + plain(5) + plain(4)
    assert [item["queue_offset"] for item in decoded(decoder, data)] == [3, 5]


@pytest.mark.invariant("I12")
def test_offsets_left_out_of_a_complete_run_are_damage() -> None:
    data = plain(3) + plain(4) + plain(7) + plain(9)
    decoder = RecordDecoder(("queue_offset",), rows=1)
    assert [item["queue_offset"] for item in decoded(decoder, data, 2, complete=True)] == [3, 4, 7, 9]
    reason = "this offset has no record"
    assert decoder.damaged == [Damage(2, reason, 2), Damage(5, reason, 6), Damage(8, reason, 8)]
    filtered = RecordDecoder(("queue_offset",))
    assert len(decoded(filtered, data, 2)) == 4
    assert filtered.damaged == []


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_entries_that_lead_nowhere_are_damage() -> None:
    segment, entries = entries_of([plain(n) for n in range(6)], 1000)
    size = len(plain(0))
    entry = [bytearray(entries[n * 20 : n * 20 + 20]) for n in range(6)]
    entry[0] = bytearray(bytes(8) + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8))  # filler
    entry[1] = bytearray(20)  # never written
    entry[2][8:12] = (50).to_bytes(4, "big")
    entry[3][0:8] = (1000 + 4 * size).to_bytes(8, "big")  # the record of offset 4
    entry[4][8:12] = (1 << 29).to_bytes(4, "big")
    decoder = RecordDecoder(("queue_offset",))
    fed = list(
        decoder.feed_entries(MappedBytes(segment), 1000, b"".join(entry), 0, topic=b"orders", queue_id=3)
    )
    assert fed == []
    (batch,) = decoder.finish()
    assert batch.to_pylist() == [{"queue_offset": 5}]
    assert decoder.damaged == [
        Damage(0, "this offset has no record", 1),
        Damage(2, "impossible record size", 2),
        Damage(3, "its queue entry leads to a record of another place", 3),
        Damage(4, "impossible record size", 4),
    ]


def test_entries_end_at_the_first_that_leads_out_of_the_segment() -> None:
    segment, entries = entries_of([plain(n) for n in range(4)], 1000)
    decoder = RecordDecoder(("queue_offset",))
    cut = MappedBytes(segment[: len(plain(0)) * 2])
    list(decoder.feed_entries(cut, 1000, entries, 0, topic=b"orders", queue_id=3))
    assert decoder.next_offset == 2
    rest = MappedBytes(segment[len(plain(0)) * 2 :])
    list(decoder.feed_entries(rest, 1000 + 2 * len(plain(0)), entries[40:], 2, topic=b"orders", queue_id=3))
    assert decoder.next_offset == 4
    (batch,) = decoder.finish()
    assert batch.num_rows == 4


def tagged(n: int, tag: str, keys: str = "", unique: str = "") -> bytes:
    pairs = [("TAGS", tag), ("KEYS", keys), ("UNIQ_KEY", unique)]
    return plain(n, properties="".join(f"{k}\x01{v}\x02" for k, v in pairs if v).encode())


def test_rows_are_filtered_by_tag() -> None:
    data = b"".join(tagged(n, tag) for n, tag in enumerate(["red", "blue", "", "red", "re", "redd", "grün"]))
    decoder = RecordDecoder(("queue_offset",), tags=["red", "grün"])
    assert [item["queue_offset"] for item in decoded(decoder, data)] == [0, 3, 6]
    assert decoder.next_offset == 7
    assert decoder.damaged == []


def test_rows_are_filtered_by_key() -> None:
    found = [("k1", ""), ("k2 k1", ""), ("k11", "k1"), ("k11 k", ""), ("", ""), ("x  k1 ", "y"), ("", "k1")]
    data = b"".join(tagged(n, "t", keys, unique) for n, (keys, unique) in enumerate(found))
    decoder = RecordDecoder(("queue_offset",), key="k1")
    assert [item["queue_offset"] for item in decoded(decoder, data)] == [0, 1, 2, 5, 6]
    both = RecordDecoder(("queue_offset",), key="k1", tags=["other"])
    assert decoded(both, data) == []


def test_entries_are_passed_over_by_the_hash_of_their_tag() -> None:
    from penstock.message.hashing import java_string_hash

    tags = ["AaAa", "BBBB", "red", "AaAa"]  # the first two have one hash
    segment, entries = entries_of([tagged(n, tag) for n, tag in enumerate(tags)])
    coded = b"".join(
        entries[n * 20 : n * 20 + 12] + java_string_hash(tag).to_bytes(8, "big", signed=True)
        for n, tag in enumerate(tags)
    )
    damaged = bytearray(segment)
    damaged[2 * len(tagged(0, "AaAa")) + 90] ^= 1  # the red one, which is not looked at
    decoder = RecordDecoder(("queue_offset",), tags=["AaAa"])
    list(decoder.feed_entries(MappedBytes(bytes(damaged)), 0, coded, 0, topic=b"orders", queue_id=3))
    (batch,) = decoder.finish()
    assert batch.to_pylist() == [{"queue_offset": 0}, {"queue_offset": 3}]
    assert decoder.damaged == []
    other = RecordDecoder(("queue_offset",), tags=["AaAa"])
    list(other.feed_entries(MappedBytes(segment), 0, entries, 0, topic=b"orders", queue_id=3, by_code=False))
    assert next(other.finish()).num_rows == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "0 rows"),
        ({"rows": 1 << 30}, "rows"),
        ({"size": 0}, "0 bytes"),
        ({"size": 1 << 40}, "bytes"),
    ],
)
def test_limits_of_batches(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RecordDecoder(ALL, **options)
    with pytest.raises(OptionError, match="no column"):
        RecordDecoder(["nothing"])
