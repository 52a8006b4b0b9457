"""Writes that reach a new part of a segment fill it up with zeros, so that its pages come in one piece: what is
written where, and that nothing but speed depends on it."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock._hot.bits import AHEAD_BYTES
from penstock._hot.layout import BLANK_SIZE
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.store.layout import StorePaths
from tests.fault.store_checks import audit, message_of, open_store, small_options

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
FILE = 4 * AHEAD_BYTES
STALE = b"\xff"


def built(size: int, room: int, position: int) -> RecordBuilder:
    """One record of exactly so many bytes, ready to be written."""
    builder = RecordBuilder(HOST, FILE)
    builder.begin(position, room, 1_700_000_000_000)
    overhead = 91 + len("T")
    request = AppendRequest(QueueState(b"T", 0), b"b" * (size - overhead), b"", 1_700_000_000_000, HOST)
    assert builder.add_all([request], 0) == 1
    assert builder.used == size
    return builder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in which every byte that is not written stays to be seen."""
    path = tmp_path / "segment"
    path.write_bytes(STALE * FILE)
    return path


def written(path: Path, builder: RecordBuilder, position: int) -> int:
    file = Runtime.system().disk.open(path)
    try:
        builder.write(file.fd, position)
    finally:
        file.close()
    return builder.error


@pytest.mark.parametrize(
    ("position", "size", "zeros_to"),
    [
        (0, 200, AHEAD_BYTES),  # the first write of a file
        (200, 200, 400),  # its part of the file is there
        (AHEAD_BYTES - 200, 200, AHEAD_BYTES),  # ends with its part
        (AHEAD_BYTES - 100, 200, 2 * AHEAD_BYTES),  # reaches into the next
        (AHEAD_BYTES, 200, 2 * AHEAD_BYTES),  # begins the next
        (AHEAD_BYTES + 1, 200, AHEAD_BYTES + 201),
        (AHEAD_BYTES - 100, AHEAD_BYTES + 200, 3 * AHEAD_BYTES),  # more than a part in one write
        (AHEAD_BYTES, AHEAD_BYTES, 2 * AHEAD_BYTES),  # exactly one part
    ],
)
def test_a_write_that_begins_a_part_of_the_file_fills_it_with_zeros(
    path: Path, position: int, size: int, zeros_to: int
) -> None:
    builder = built(size, FILE - position, position)
    assert written(path, builder, position) == 0
    content = path.read_bytes()
    assert len(content) == FILE
    assert content[:position] == STALE * position
    assert content[position : position + size] == builder.content()
    assert content[position + size : zeros_to] == bytes(zeros_to - position - size)
    assert content[zeros_to:] == STALE * (FILE - zeros_to)


def test_zeros_end_with_the_room_that_there_is(path: Path) -> None:
    assert written(path, built(200, 300, 0), 0) == 0
    assert path.read_bytes()[200:400] == bytes(100) + STALE * 100
    # A segment keeps room for its blank record, so this is the least that can be left.
    assert written(path, built(200, 200 + BLANK_SIZE, AHEAD_BYTES), AHEAD_BYTES) == 0
    rest = path.read_bytes()[AHEAD_BYTES + 200 :]
    assert rest[: BLANK_SIZE + 1] == bytes(BLANK_SIZE) + STALE


@contextmanager
def files_end_at(limit: int) -> Iterator[None]:
    """A disk that is full from this position on: writes come out short, and then fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.fault("F5")
@pytest.mark.parametrize("limit", [AHEAD_BYTES + 500, AHEAD_BYTES + 501, AHEAD_BYTES + 4096])
def test_zeros_that_find_no_place_are_no_error(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(AHEAD_BYTES))
    builder = built(500, FILE, AHEAD_BYTES)
    with files_end_at(limit):
        assert written(path, builder, AHEAD_BYTES) == 0
    assert path.read_bytes()[AHEAD_BYTES : AHEAD_BYTES + 500] == builder.content()
    assert path.stat().st_size == limit


@pytest.mark.fault("F5")
def test_records_that_find_no_place_are_one(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(AHEAD_BYTES))
    with files_end_at(AHEAD_BYTES + 499):
        assert written(path, built(500, FILE, AHEAD_BYTES), AHEAD_BYTES) == errno.EFBIG


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("mode", list(FlushMode))
def test_zeros_behind_the_end_are_no_finding_after_a_crash(tmp_path: Path, mode: FlushMode) -> None:
    """The part that the first message began is filled up; recovery takes its zeros for what they are."""
    options = small_options(flush_mode=mode, segment_size_bytes=2 * AHEAD_BYTES)
    store = open_store(tmp_path, options)
    store.append_group([store.request(message, 0) for message in map(message_of, range(5))])
    end = store.log.max_offset
    store.abandon()
    segment = StorePaths(tmp_path).commit_log / f"{0:020}"
    assert any(segment.read_bytes()[:end])
    assert not any(segment.read_bytes()[end:])
    with MessageStore.open(tmp_path, options) as again:
        assert again.log.max_offset == end
        assert (again.report.damage, again.report.bytes_dropped) == ([], 0)
        assert audit(again).total == 0
