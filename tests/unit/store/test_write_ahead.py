"""Writes that reach a new part of a segment fill it up with zeros, so that its pages come in one piece: what is
written where, and that nothing but speed depends on it."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock._hot import form
from penstock._hot.bits import AHEAD_BYTES
from penstock._hot.layout import BLANK_SIZE
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.errors import DiskFullError, StoreError, StoreFailedError
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.store.layout import StorePaths
from tests.support.store_checks import audit, body_of, message_of, open_store, place_of, small_options

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
FILE = 4 * AHEAD_BYTES
SEGMENT = 4 * AHEAD_BYTES
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


def parts_begun(store: MessageStore) -> int:
    """Up to where the active segment was ever written."""
    segment = store.log.active
    assert segment is not None
    return max(high for _, high in segment.file.data_ranges(0, segment.size))


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("mode", list(FlushMode))
def test_zeros_behind_the_end_are_no_finding_after_a_crash(tmp_path: Path, mode: FlushMode) -> None:
    """The part that a message began is filled up; recovery takes its zeros for what they are."""
    options = small_options(flush_mode=mode, segment_size_bytes=SEGMENT, max_message_size_bytes=AHEAD_BYTES)
    store = open_store(tmp_path, options)
    serial = 0
    while store.log.max_offset < AHEAD_BYTES:
        store.append(message_of(serial, 2000), place_of(serial)[1])
        serial += 1
    end = store.log.max_offset
    assert AHEAD_BYTES < end < 2 * AHEAD_BYTES == parts_begun(store)
    store.abandon()
    segment = StorePaths(tmp_path).commit_log / f"{0:020}"
    assert not any(segment.read_bytes()[end:])
    with open_store(tmp_path, options) as again:
        assert again.log.max_offset == end
        assert (again.report.damage, again.report.bytes_dropped) == ([], 0)
        assert audit(again).total == 0


class FullDisk:
    """Stands in for the system call of the pure form: `fits` bytes of the next write find a place, then none."""

    def __init__(self, fits: int) -> None:
        self.fits = fits
        self._real = os.pwritev

    def __call__(self, fd: int, parts: Sequence[Any], position: int) -> int:
        if not self.fits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, self.fits = b"".join(parts)[: self.fits], 0
        return self._real(fd, [data], position)


@contextmanager
def filling_up(end: int, fits: int) -> Iterator[type[StoreError]]:
    """The disk takes so many bytes behind the log's end and no more, whichever form of the writer runs; how the store
    calls that. A full disk it waits for; a file that may not be written is a broken disk to it, and it stops."""
    if form() == "compiled":
        with files_end_at(end + fits):
            yield StoreFailedError
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "pwritev", FullDisk(fits))
            yield DiskFullError


@pytest.mark.fault("F5")
@pytest.mark.invariant("I1", "I11")
@pytest.mark.parametrize("fits", [0, 1, 100, 700])
@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("way", ["append", "group"])
def test_the_writer_of_production_on_a_disk_that_fills_up(
    tmp_path: Path, mode: FlushMode, fits: int, way: str
) -> None:
    """A descriptor of the machine's, not the door that tests with faults have: what was written in part is refused,
    takes no offset, and is gone before the next append, also when the process dies right after that."""
    options = small_options(flush_mode=mode, segment_size_bytes=SEGMENT)
    store = open_store(tmp_path, options)
    topic, queue = place_of(0)
    store.append(message_of(0), queue)
    end = store.log.max_offset
    # Of the same topic and queue; larger than what fits.
    serials, size = ([6, 12, 18, 24], 300) if way == "group" else ([6], 900)
    with filling_up(end, fits) as error, pytest.raises(error):
        store.append_group([store.request(message_of(serial, size), queue) for serial in serials])
    assert store.log.max_offset == end
    kept = [body_of(0)]
    if error is StoreFailedError:
        store.abandon()
        store = open_store(tmp_path, options)
        # Whole records of a write that failed may come back, nothing else.
        found = [message.body for message in store.read(topic, queue, 0, 100)]
        assert found == (kept + [body_of(serial, size) for serial in serials])[: len(found)]
        kept, end = found, store.log.max_offset
    result = store.append(message_of(30, 10), queue)
    assert (result.queue_offset, result.physical_offset) == (len(kept), end)
    store.flush()
    end = store.log.max_offset
    store.abandon()
    with open_store(tmp_path, options) as again:
        assert again.log.max_offset == end
        assert again.report.damage == []
        assert [message.body for message in again.read(topic, queue, 0, 100)] == [*kept, body_of(30, 10)]
        assert audit(again).total == 0
