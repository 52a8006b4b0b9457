"""Random stored messages, and the row that each of them has to become."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from penstock.client.compression import unpack
from penstock.message import HostAddress, StoredMessage, decode_record, encode_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_1_MS, YEAR_9999_MS = -62135596800000, 253402300799999

hosts = st.one_of(
    st.builds(HostAddress, st.ip_addresses(v=4).map(str), st.integers(0, 65535)),
    st.builds(HostAddress, st.ip_addresses(v=6).map(str), st.integers(0, 65535)),
)
names = st.one_of(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "KEY", "KEYSX", "UNIQ_KEYS", "TAG", "__CRC32", "a"]),
    st.text(max_size=8),
)
words = st.one_of(st.text(max_size=12), st.sampled_from(["red", "blue", "k1 k2", "k2", "", " "]))
# What is between and around properties may be missing or doubled, and bytes need not be text.
marks = st.sampled_from([b"\x01", b"\x02", b"", b"\x01\x02", b"\x02\x02"])
noise = st.binary(max_size=6)


@st.composite
def property_texts(draw: st.DrawFn) -> bytes:
    parts = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.integers(0, 9))
        if kind < 7:
            parts.append(draw(names).encode() + b"\x01" + draw(words).encode() + b"\x02")
        elif kind < 8:
            parts.append(draw(noise) + draw(marks) + draw(noise) + draw(marks))
        else:
            parts.append(draw(names).encode() + draw(noise) + b"\x01" + draw(noise) + draw(words).encode())
    return b"".join(parts)


times = st.one_of(
    st.integers(0, 4_102_444_800_000),
    st.sampled_from([YEAR_1_MS - 1, YEAR_1_MS, YEAR_9999_MS, YEAR_9999_MS + 1, -1, -(2**63), 2**63 - 1]),
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One stored record; the queue offset is put in later."""
    message = StoredMessage(
        topic=draw(
            st.one_of(st.just("orders"), st.text(max_size=130).filter(lambda t: len(t.encode()) < 256))
        ),
        body=draw(st.binary(max_size=300)),
        properties={},
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=0,
        physical_offset=draw(st.integers(0, 2**62)),
        size=0,
        body_crc=0,
        flag=0,
        sys_flag=draw(st.sampled_from([0, 2, 8, 0x40])),
        born_timestamp=draw(times),
        born_host=draw(hosts),
        store_timestamp=draw(times),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(-(2**31), 2**31 - 1)),
        prepared_transaction_offset=0,
    )
    return encode_record(message, draw(property_texts()))


def numbered(found: list[bytes], first: int = 0) -> list[bytes]:
    """The same records with ascending queue offsets."""
    return [
        record[:20] + (first + number).to_bytes(8, "big") + record[28:] for number, record in enumerate(found)
    ]


def row(record: bytes, broker: str = "") -> dict[str, Any]:
    """What the record has to become, from the codec in plain Python."""
    message = decode_record(record, verify=False)
    properties = dict(message.properties)
    return {
        "topic": message.topic,
        "broker": broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": properties.get("UNIQ_KEY") or message.message_id,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": unpack(message.body, message.sys_flag),
        "properties": list(properties.items()),
        "born_time": moment(message.born_timestamp),
        "store_time": moment(message.store_timestamp),
        "born_host": str(message.born_host),
        "reconsume_times": message.reconsume_times,
        "physical_offset": message.physical_offset,
        "size": message.size,
    }


def moment(time_ms: int) -> datetime | None:
    if not YEAR_1_MS <= time_ms <= YEAR_9999_MS:
        return None
    return EPOCH + timedelta(milliseconds=time_ms)


PLAIN = StoredMessage(
    topic="orders",
    body=b"hello",
    properties={"TAGS": "red", "KEYS": "k1 k2", "UNIQ_KEY": "U0"},
    queue_id=3,
    queue_offset=0,
    physical_offset=4096,
    size=0,
    body_crc=0,
    flag=0,
    sys_flag=0,
    born_timestamp=1_700_000_000_123,
    born_host=HostAddress("10.1.2.3", 40000),
    store_timestamp=1_700_000_000_456,
    store_host=HostAddress("10.9.8.7", 10911),
    reconsume_times=1,
    prepared_transaction_offset=0,
)


def plain(offset: int = 0, properties: bytes | None = None, **changes: Any) -> bytes:
    """A usual record, with what is to be different."""
    return encode_record(replace(PLAIN, queue_offset=offset, **changes), properties)
