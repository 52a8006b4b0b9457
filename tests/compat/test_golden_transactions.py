"""The example of docs/formats/transactions.md against the product, byte for byte."""

from __future__ import annotations

import struct
import zlib

from penstock._hot.queues import QueueState
from penstock._hot.records import RecordBuilder
from penstock.broker.half_messages import mark, marked
from penstock.message import HostAddress, decode_record
from tests.compat.test_golden_bytes import GOLDEN

BODY, TOPIC = b"12,13,40,", b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
PROPERTIES = b"TAGS\x01d\x02UNIQ_KEY\x01M1\x02"
HOST = HostAddress("127.0.0.1", 10911)
BORN, STORED = 1_700_000_000_000, 1_700_000_000_123


def test_the_mark_follows_the_rules() -> None:
    host = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
    head = struct.pack(">iiiqqiq", zlib.crc32(BODY) % 2**31, 0, 0, 0, 0, 0, BORN) + host
    tail = struct.pack(">q", STORED) + host + struct.pack(">iqi", 0, 0, len(BODY)) + BODY
    tail += bytes([len(TOPIC)]) + TOPIC + struct.pack(">h", len(PROPERTIES)) + PROPERTIES
    record = b"\xda\xa3\x20\xa7" + head + tail
    assert struct.pack(">i", 4 + len(record)) + record == GOLDEN["transaction-mark"]


def test_the_mark_is_what_is_written_and_read() -> None:
    request = mark([12, 13, 40], QueueState(TOPIC, 0, 0), "M1", BORN, HOST.encode())
    builder = RecordBuilder(HOST.encode(), 1_000)
    builder.begin(0, 4_096, STORED)
    assert builder.add_all([request], 0) == 1
    assert bytes(builder.content()) == GOLDEN["transaction-mark"]
    assert marked(decode_record(GOLDEN["transaction-mark"], 0)) == ([12, 13, 40], False)
