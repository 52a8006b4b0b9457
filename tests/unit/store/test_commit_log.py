"""The log's segments: prepared ahead, rolled, cleared of stale bytes, left tidy; and what opening reads of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DiskFullError, LogPositionError, StoreFailedError, StoreFormatError
from penstock.message import Message
from penstock.store import FlushMode, MessageStore
from penstock.store.segment import Segment
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import audit, faulty, open_store, small_options

SEGMENT = 8192


def names(*numbers: int) -> list[str]:
    return [f"{number * SEGMENT:020d}" for number in numbers]


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return faulty(tmp_path)


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Iterator[MessageStore]:
    with open_store(tmp_path, small_options(flush_mode=FlushMode.ASYNC), disk=disk) as opened:
        yield opened


def fill_to(store: MessageStore, position: int) -> None:
    while store.log.max_offset < position:
        store.append(Message.of("t", bytes(400)))


def segments_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "commitlog"))


# -- ahead of need -------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-57")
@pytest.mark.parametrize("percent", [50, 75, 100])
def test_the_next_segment_is_prepared_at_a_part_of_the_active_one(tmp_path: Path, percent: int) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, small_options(prepare_next_at_percent=percent), disk=disk) as store:
        size = store.append(Message.of("t", bytes(10))).size
        threshold = SEGMENT * percent // 100
        while store.log.max_offset + size < min(threshold, SEGMENT - 8 - size):
            store.append(Message.of("t", bytes(10)))
        store.keeper.tick()
        assert segments_in(tmp_path) == names(0)
        if percent == 100:
            return
        store.append(Message.of("t", bytes(10)))
        assert store.log.max_offset >= threshold
        store.keeper.tick()
        assert segments_in(tmp_path) == names(0, 1)
        store.keeper.tick()
        assert segments_in(tmp_path) == names(0, 1)


def test_a_prepared_segment_is_used_and_none_is_made_by_the_append(
    store: MessageStore, disk: FaultyDisk, tmp_path: Path
) -> None:
    fill_to(store, SEGMENT * 3 // 4)
    store.keeper.tick()
    disk.log.clear()
    fill_to(store, SEGMENT + 1)
    assert {entry.op for entry in disk.log if entry.path.startswith(("commitlog", "prepare"))} == {"pwrite"}
    assert segments_in(tmp_path) == names(0, 1)
    assert os.listdir(tmp_path / "prepare") == []


@pytest.mark.fault("F4")
def test_no_space_to_prepare_is_no_failure_and_is_tried_again(
    store: MessageStore, disk: FaultyDisk, tmp_path: Path
) -> None:
    fill_to(store, SEGMENT * 3 // 4)
    disk.fail_next("allocate", errno.ENOSPC)
    store.keeper.tick()
    assert segments_in(tmp_path) == names(0)
    store.append(Message.of("t", b"goes on"))
    store.keeper.tick()
    assert segments_in(tmp_path) == names(0, 1)


def test_an_append_waits_for_the_segment_that_is_being_prepared(
    store: MessageStore, disk: FaultyDisk, tmp_path: Path
) -> None:
    """It does not make a second one over it, and nobody waits for anybody twice."""
    fill_to(store, SEGMENT * 3 // 4)
    begun, go_on = threading.Event(), threading.Event()
    made = Segment.create

    def slow(*arguments: object) -> Segment:
        begun.set()
        assert go_on.wait(60)
        return made(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "create", staticmethod(slow))
        keeper = threading.Thread(target=store.log.prepare)
        keeper.start()
        assert begun.wait(60)
        writer = threading.Thread(target=fill_to, args=(store, SEGMENT + 1))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive(), "waits"
        assert store.log.max_offset <= SEGMENT
        go_on.set()
        keeper.join(60)
        writer.join(60)
    made_files = [entry.path for entry in disk.log if entry.op == "allocate" and names(1)[0] in entry.path]
    assert len(made_files) == 1
    assert segments_in(tmp_path) == names(0, 1)
    assert audit(store).all() == []


def test_an_unused_segment_goes_at_a_clean_close_and_half_made_ones_at_the_next_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill_to(store, SEGMENT * 3 // 4)
    store.keeper.tick()
    assert segments_in(tmp_path) == names(0, 1)
    store.close()
    assert segments_in(tmp_path) == names(0)
    (tmp_path / "prepare" / names(1)[0]).write_bytes(b"half")
    (tmp_path / "prepare" / "folder").mkdir()
    open_store(tmp_path).close()
    assert os.listdir(tmp_path / "prepare") == ["folder"]


# -- a write that failed -------------------------------------------------------------------------------------


@pytest.mark.fault("F4")
@pytest.mark.invariant("I11")
def test_stale_bytes_are_zeroed_durably_before_they_are_written_over(
    store: MessageStore, disk: FaultyDisk, tmp_path: Path
) -> None:
    store.append(Message.of("t", b"first"))
    end = store.log.max_offset
    disk.fail_next("pwrite", errno.ENOSPC, partial_bytes=150)
    with pytest.raises(DiskFullError):
        store.append(Message.of("t", b"x" * 500))
    content = (tmp_path / "commitlog" / names(0)[0]).read_bytes()
    assert content[end : end + 150].count(0) < 150
    disk.log.clear()
    store.append(Message.of("t", b"ok"))
    steps = [entry.op for entry in disk.log]
    assert steps[-3:] == ["pwrite", "sync", "pwrite"]
    content = (tmp_path / "commitlog" / names(0)[0]).read_bytes()
    assert content[store.log.max_offset :] == bytes(SEGMENT - store.log.max_offset)
    assert [m.body for m in store.read("t", 0, 0)] == [b"first", b"ok"]


@pytest.mark.fault("F4")
@pytest.mark.invariant("I4")
def test_without_space_for_the_next_segment_what_fits_is_stored(
    store: MessageStore, disk: FaultyDisk
) -> None:
    """The group runs over the end: the first part is in, the rest has size 0 and no offsets."""
    requests = [store.request(Message.of("t", bytes(1500))) for _ in range(8)]
    store.append(Message.of("t", b"first"))
    disk.fail_next("allocate", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        store.append_group(requests)
    stored = [request for request in requests if request.size > 0]
    assert 0 < len(stored) < 8
    assert all(request.size == 0 for request in requests[len(stored) :])
    assert store.max_offset("t", 0) == 1 + len(stored)
    store.append_group(requests[len(stored) :])
    assert [m.queue_offset for m in store.read("t", 0, 0)] == list(range(9))
    assert audit(store).all() == []


@pytest.mark.fault("F8")
def test_any_other_error_of_a_write_is_final(store: MessageStore, disk: FaultyDisk) -> None:
    store.append(Message.of("t", b"first"))
    disk.fail_next("pwrite", errno.EIO)
    with pytest.raises(StoreFailedError, match="writing to segment"):
        store.append(Message.of("t", b"second"))
    with pytest.raises(StoreFailedError):
        store.append(Message.of("t", b"third"))
    assert not store.is_writable
    assert [m.body for m in store.read("t", 0, 0)] == [b"first"]


# -- positions -----------------------------------------------------------------------------------------------


@pytest.mark.abuse("A16")
def test_slices_only_of_what_was_written(store: MessageStore) -> None:
    fill_to(store, SEGMENT + 1000)
    end = store.log.max_offset
    assert len(store.log.slice(0, 4) or b"") == 4
    for position, size in (
        (0, SEGMENT + 1),
        (SEGMENT - 2, 4),
        (end - 1, 2),
        (end, 1),
        (0, -1),
        (-1, 1),
        (2**62, 1),
    ):
        assert store.log.slice(position, size) is None, (position, size)
    view = store.log.slice(end - 1, 1)
    assert view is not None
    assert store.log.segment_of(-1) is None
    assert store.log.segment_of(2 * SEGMENT) is None


@pytest.mark.parametrize("count", [1, 3])
def test_raw_bytes_of_another_log_continue_this_one(tmp_path: Path, count: int) -> None:
    """What a replica does: whole segments and the last part of one, exactly where they were."""
    with open_store(tmp_path / "source") as source:
        fill_to(source, count * SEGMENT + 100)
        end = source.log.max_offset
        with open_store(tmp_path / "copy") as copy:
            for base in range(0, end, SEGMENT):
                segment = source.log.segment_of(base)
                assert segment is not None
                copy.log.append_raw(bytes(segment.view.slice(0, min(SEGMENT, end - base))), base)
            with pytest.raises(LogPositionError, match="do not continue the log"):
                copy.log.append_raw(b"x", end + 1)
            copy.flush()
            assert copy.log.max_offset == end
            assert bytes(copy.get("t", 0, 0, 1000).data) == bytes(source.get("t", 0, 0, 1000).data)
            copy.queues.get_or_create("t", 0).state.next_offset = copy.max_offset("t", 0)


# -- opening -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SEGMENT + 1, 2 * SEGMENT])
def test_a_segment_that_is_too_large_is_refused(tmp_path: Path, size: int) -> None:
    with open_store(tmp_path) as store:
        fill_to(store, SEGMENT + 1)
    path = tmp_path / "commitlog" / names(0)[0]
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    with pytest.raises(StoreFormatError, match=f"segment_size_bytes={size}"):
        open_store(tmp_path)


def test_an_empty_last_segment_is_dropped(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill_to(store, 1000)
    (tmp_path / "commitlog" / names(1)[0]).write_bytes(b"")
    with open_store(tmp_path) as store:
        assert store.findings.damage() == []
        assert segments_in(tmp_path) == names(0)


@pytest.mark.invariant("I14")
def test_after_a_clean_stop_only_the_last_segment_is_read(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill_to(store, 4 * SEGMENT + 100)
    with open_store(tmp_path) as store:
        assert store.report.clean
        assert store.report.start == 4 * SEGMENT
        assert store.report.bytes_read < SEGMENT


@pytest.mark.invariant("I14")
def test_after_a_crash_what_the_checkpoint_vouches_for_is_not_read(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    fill_to(store, 3 * SEGMENT)  # the first record of segment 3 is the last that is old enough
    clock.advance(60_000)
    fill_to(store, 5 * SEGMENT + 100)
    store.keeper.tick()
    store.abandon()
    with open_store(tmp_path, clock=clock) as again:
        assert not again.report.clean
        assert again.report.start == 3 * SEGMENT
        assert again.max_offset("t", 0) == len(again.read("t", 0, 0, 1000))
        assert audit(again).all() == []
