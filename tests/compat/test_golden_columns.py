"""The example of docs/formats/column-answer.md against the product, byte for byte."""

import struct

from penstock.message.column_answers import ColumnAnswer, pack, unpack
from tests.compat.test_golden_bytes import GOLDEN

NAMES = ("queue_id", "body")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def test_answer_on_the_page_follows_the_rules() -> None:
    head = b"PCOL" + struct.pack("<4I", 1, 2, 1, 5) + struct.pack("<qqi", 1, 1, -9)
    head += struct.pack("<5q", -1, 8, -1, 12, 3)
    ids, ends = struct.pack("<2i", 3, 3), struct.pack("<3i", 0, 2, 3)
    assert b"".join(map(padded, (head, ids, ends, b"abc"))) == GOLDEN["column-answer"]


def test_answer() -> None:
    data = GOLDEN["column-answer"]
    ids, ends = bytearray(struct.pack("<2i", 3, 3)), bytearray(struct.pack("<3i", 0, 2, 3))
    found = {"queue_id": (None, (ids, 8)), "body": (None, (ends, 12), (bytearray(b"abc-"), 3))}
    assert pack(NAMES, ColumnAnswer(2, found, [[1, 1, -9]])) == data
    rows, columns, damaged = unpack(NAMES, data, 3)
    assert (rows, damaged) == (2, [[1, 1, -9]])
    assert columns == {"queue_id": (None, (ids, 8)), "body": (None, (ends, 12), (b"abc", 3))}
