"""The record codec over random messages: two encoders agree, decoding gives back what went in, damage is noticed."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._hot import bits
from penstock._hot.checks import check, checksum
from penstock._hot.layout import SEAL_SIZE
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.errors import CodecError, CorruptRecordError
from penstock.message import (
    HostAddress,
    StoredMessage,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    pick_properties,
    property_bytes,
    property_keys,
)
from penstock.message.hashing import java_string_hash

TOPIC_LETTERS = "abcXYZ019_-%|"
text = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x00\x01\x02"), min_size=1, max_size=20
)
hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda ip: HostAddress(str(ip), 10911)),
    st.ip_addresses(v=6).map(lambda ip: HostAddress(str(ip), 65535)),
)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    return StoredMessage(
        topic=draw(st.text(TOPIC_LETTERS, min_size=1, max_size=255)),
        body=draw(st.binary(max_size=300)),
        properties=draw(st.dictionaries(text.filter(lambda name: name != "__CRC32#"), text, max_size=5)),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**62)),
        physical_offset=draw(st.integers(0, 2**62)),
        size=0,
        body_crc=0,
        flag=draw(i32),
        sys_flag=draw(st.sampled_from([0, 1, 8, 0x101, 0x300])),
        born_timestamp=draw(i64),
        born_host=draw(hosts),
        store_timestamp=draw(st.integers(0, 2**62)),
        store_host=draw(hosts),
        reconsume_times=draw(i32),
        prepared_transaction_offset=draw(i64),
    )


def build(message: StoredMessage, *, seal: bool = False) -> bytes:
    """The same message through the hot builder."""
    builder = RecordBuilder(message.store_host.encode(), 1 << 20, seal)
    builder.begin(message.physical_offset, 1 << 30, message.store_timestamp)
    queue = QueueState(message.topic.encode(), message.queue_id, message.queue_offset)
    request = AppendRequest(
        queue,
        message.body,
        encode_properties(message.properties),
        message.born_timestamp,
        message.born_host.encode(),
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
    )
    assert builder.add_all([request], 0) == 1
    assert request.physical_offset == message.physical_offset
    assert request.queue_offset == message.queue_offset
    return bytes(builder.content())


@given(stored_messages())
def test_two_encoders_agree_and_decoding_returns_the_message(message: StoredMessage) -> None:
    record = encode_record(message)
    assert build(message) == record
    decoded = decode_record(record, message.physical_offset)
    assert decoded.size == len(record)
    assert decoded.body_crc == (zlib.crc32(message.body) & 0x7FFFFFFF if message.body else 0)
    for name in (
        "topic",
        "body",
        "properties",
        "queue_id",
        "queue_offset",
        "flag",
        "born_timestamp",
        "born_host",
    ):
        assert getattr(decoded, name) == getattr(message, name), name
    for name in ("store_timestamp", "store_host", "reconsume_times", "prepared_transaction_offset"):
        assert getattr(decoded, name) == getattr(message, name), name
    assert decoded.sys_flag & ~0x30 == message.sys_flag


def test_properties_with_a_zero_byte_are_sealed() -> None:
    """What a torn write leaves is zero; a record that may contain zeros there needs another proof."""
    plain = StoredMessage(
        "t",
        b"b",
        {"a": "b"},
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        HostAddress("1.2.3.4", 5),
        1,
        HostAddress("1.2.3.4", 5),
        0,
        0,
    )
    assert len(build(plain)) == len(encode_record(plain))
    zero = replace(plain, properties={"a": "b\0c"})
    record = build(zero)
    assert len(record) == len(encode_record(zero)) + SEAL_SIZE
    assert check(record, 0, len(record), 0, 2) == len(record)
    for cut in range(84, len(record)):
        torn = record[:cut] + bytes(len(record) - cut)
        assert torn == record or check(torn, 0, len(torn), 0, 2) < 0, cut
    for cut in range(1, len(encode_record(plain))):
        torn = encode_record(plain)[:cut] + bytes(len(encode_record(plain)) - cut)
        assert check(torn, 0, len(torn), 0, 2) < 0, cut


@given(stored_messages(), st.data())
def test_every_flipped_bit_of_a_sealed_record_is_noticed(message: StoredMessage, data: st.DataObject) -> None:
    record = bytearray(build(message, seal=True))
    assert check(record, 0, len(record), message.physical_offset) == len(record)
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= 1 << data.draw(st.integers(0, 7))
    if len(record) - SEAL_SIZE <= at < len(record) - SEAL_SIZE + 9 or at == len(record) - 1:
        return  # the seal's own frame: without it the record is an unsealed one, checked by its body only
    with pytest.raises(CorruptRecordError) as caught:
        decode_record(bytes(record), message.physical_offset)
    assert caught.value.position == message.physical_offset


@given(st.binary(max_size=400), st.integers(-1, 100))
def test_no_bytes_crash_the_checker(data: bytes, phy: int) -> None:
    found = check(data, 0, len(data), phy)
    assert found <= len(data)
    if found <= 0:
        with pytest.raises(CorruptRecordError):
            decode_record(data, phy)


@given(stored_messages(), st.integers(0, 90), i32)
def test_a_record_with_lying_lengths_is_refused_or_whole(message: StoredMessage, at: int, value: int) -> None:
    record = bytearray(encode_record(message))
    record[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
    found = check(record, 0, len(record), -1)
    assert found < 0 or found == len(record)


@given(st.dictionaries(text, text, max_size=8))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize("bad", [{"": "x"}, {"a": ""}, {"a\x01": "b"}, {"a": "b\x02"}, {"a": "x" * 40000}])
def test_properties_that_cannot_be_read_back_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises((CodecError, Exception), match=r"empty|contains|take"):
        encode_properties(bad)


@given(st.text(max_size=60), st.text(max_size=20))
def test_java_hash_is_javas(left: str, right: str) -> None:
    def reference(value: str) -> int:
        units = value.encode("utf-16-be", "surrogatepass")
        total = 0
        for i in range(0, len(units), 2):
            total = (31 * total + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
        return total - 2**32 if total >= 2**31 else total

    if any("\ud800" <= c <= "\udfff" for c in left + right):
        return
    assert java_string_hash(left) == reference(left)
    # The hot modules continue a hash from the topic's: the same as hashing the whole.
    state = QueueState(left.encode(), 0)
    data = right.encode()
    assert bits.java_hash(data, 0, len(data), state.key_seed) == reference(f"{left}#{right}")


@given(st.binary(max_size=2000))
def test_checksum_is_zlibs_with_the_top_bit_cleared(data: bytes) -> None:
    assert checksum(data) == zlib.crc32(data) & 0x7FFFFFFF


@given(
    st.lists(
        st.sampled_from([b"a", b"b", b"ab", b"\x01", b"\x02", b"\x01", b"\x02", b"\xff", b"\xe4", b" "]),
        max_size=30,
    )
)
def test_picked_properties_are_the_decoded_ones(parts: list[bytes]) -> None:
    """Whatever the text looks like: pairs without a value, names twice, no end, no text at all."""
    data = b"".join(parts)
    whole = decode_properties(data)
    names = ["a", "b", "ab", "ba", "none"]
    assert pick_properties(data, property_keys(names)) == {n: whole[n] for n in names if n in whole}


@given(stored_messages(), st.data())
def test_the_properties_of_a_record_are_found_without_decoding_it(
    message: StoredMessage, data: st.DataObject
) -> None:
    record = encode_record(message)
    assert property_bytes(memoryview(record)) == encode_properties(message.properties)
    # Lengths that lie are refused or lead to some bytes of the record, never outside it.
    damaged = bytearray(record)
    at = data.draw(st.integers(0, len(record) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    found = property_bytes(memoryview(damaged))
    assert found is None or found in bytes(damaged)
    assert property_bytes(memoryview(record)[:50]) is None
