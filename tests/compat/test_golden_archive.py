"""The examples of docs/formats/archive.md against the product, byte for byte."""

import json
import zlib

import pytest

from penstock.spark.pipelines.archive_names import ArchivedFile, parse_path
from penstock.spark.pipelines.manifest import Entry, Move, TreeState
from tests.compat.test_golden_bytes import GOLDEN

FILE = ArchivedFile(
    "orders", "2023-11-14", "broker-a", 1, 0, 1, 2, 3456, 1_700_000_000_123, 1_700_000_002_123
)
ENTRY = Entry(
    (FILE.record(),),
    moves=(Move("_staging/q-0-0-0-5eed/000000.tmp", FILE.path),),
    query="7f1d2c3b-0000-4000-8000-000000000001",
    batch=0,
    written_at=1_700_000_003_000,
    sequence=1,
)


@pytest.mark.parametrize("name", ["archive-entry", "archive-snapshot"])
def test_the_second_line_is_the_checksum_of_the_first(name: str) -> None:
    line, checksum = GOLDEN[name].split(b"\n")
    assert checksum == b"crc32 %08x" % zlib.crc32(line)
    assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() == line


def test_entry() -> None:
    data = GOLDEN["archive-entry"] + b"\n"
    assert ENTRY.encode() == data
    assert Entry.decode(data) == ENTRY
    assert parse_path(ENTRY.add[0].path) is not None


def test_snapshot() -> None:
    state = TreeState()
    state.apply(ENTRY)
    data = GOLDEN["archive-snapshot"] + b"\n"
    assert state.encode() == data
    assert TreeState.decode(data) == state
