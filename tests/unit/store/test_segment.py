"""A segment file: whole from the moment it has its name, short ones filled up, nothing left behind on failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.store.layout import StorePaths
from penstock.store.segment import Segment
from tests.support.store_checks import faulty

SIZE = 8192
NAME = f"{3 * SIZE:020d}"


def paths_in(folder: Path) -> StorePaths:
    paths = StorePaths(folder)
    paths.commit_log.mkdir(parents=True)
    return paths


def test_made_elsewhere_then_moved_into_place(tmp_path: Path) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    segment = Segment.create(disk, paths, 3 * SIZE, SIZE)
    done = [(entry.op, entry.target or entry.path) for entry in disk.log]
    made, moved = done.index(("allocate", f"prepare/{NAME}")), done.index(("rename", f"commitlog/{NAME}"))
    synced = done.index(("sync", f"prepare/{NAME}"))
    assert made < synced < moved
    assert ("sync_dir", "commitlog") in done[moved:]
    assert ("sync_dir", "prepare") in done[moved:]
    assert (segment.base, segment.size, segment.end, segment.available) == (3 * SIZE, SIZE, 3 * SIZE, SIZE)
    assert segment.path == paths.commit_log / NAME
    assert os.listdir(paths.prepare) == []
    assert (paths.commit_log / NAME).read_bytes() == bytes(SIZE)
    segment.close()


@pytest.mark.fault("F4")
@pytest.mark.parametrize("op", ["open", "truncate", "allocate", "sync", "rename"])
def test_a_failure_on_the_way_leaves_no_segment(tmp_path: Path, op: str) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    disk.fail_next(op, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        Segment.create(disk, paths, 3 * SIZE, SIZE)
    assert os.listdir(paths.commit_log) == []
    Segment.create(disk, paths, 3 * SIZE, SIZE).close()
    assert os.listdir(paths.commit_log) == [NAME]


def test_what_an_earlier_try_left_in_the_same_place_is_not_taken_over(tmp_path: Path) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    paths.prepare.mkdir()
    (paths.prepare / NAME).write_bytes(b"stale" * 5000)
    segment = Segment.create(disk, paths, 3 * SIZE, SIZE)
    assert (paths.commit_log / NAME).read_bytes() == bytes(SIZE)
    segment.close()


@pytest.mark.fault("F7")
@pytest.mark.parametrize("size", [1, 4096, SIZE - 1])
def test_a_short_file_is_filled_up_durably(tmp_path: Path, size: int) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    path = paths.commit_log / NAME
    path.write_bytes(b"x" * size)
    segment = Segment.open(disk, path, 3 * SIZE, SIZE, read_only=False)
    assert segment.available == SIZE
    assert path.read_bytes() == b"x" * size + bytes(SIZE - size)
    assert [entry.op for entry in disk.log] == ["allocate", "sync"], "a hole would not be safe to read"
    segment.close()


@pytest.mark.fault("F7")
@pytest.mark.parametrize("size", [0, 1, 4096, SIZE - 1])
def test_read_only_a_short_file_is_read_as_far_as_it_goes(tmp_path: Path, size: int) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    path = paths.commit_log / NAME
    path.write_bytes(b"x" * size)
    segment = Segment.open(disk, path, 3 * SIZE, SIZE, read_only=True)
    assert segment.available == size
    assert bytes(segment.view.slice(0, size)) == b"x" * size
    with pytest.raises(IndexError):
        segment.view.slice(0, max(size, 1) + 1)
    assert path.stat().st_size == size
    segment.close()


@pytest.mark.seed("S3-56")
def test_what_is_written_by_position_is_seen_through_the_map(tmp_path: Path) -> None:
    paths, disk = paths_in(tmp_path), faulty(tmp_path)
    segment = Segment.create(disk, paths, 3 * SIZE, SIZE)
    segment.file.pwrite(b"hello", 100)
    assert bytes(segment.view.slice(99, 106)) == b"\0hello\0"
    view = segment.view.slice(100, 105)
    segment.close()
    assert bytes(view) == b"hello"
    view.release()
