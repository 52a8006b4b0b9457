"""The disk with faults: errors on order, a full disk, a slow one, counters and the log."""

import errno
from pathlib import Path

import pytest

from penstock.runtime import DiskUsage, SystemDisk
from penstock.testing import FaultyDisk, ManualClock, Operation, PowerLostError


def summary(disk: FaultyDisk) -> list[tuple[str, str]]:
    return [(operation.op, operation.path) for operation in disk.log]


def test_without_faults_it_is_a_disk(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.make_dirs(tmp_path / "a" / "b")
    file = disk.open(tmp_path / "a" / "f", create=True)
    file.allocate(8192)
    file.pwrite(b"hello", 4094)
    mapped = file.map(8192)
    assert mapped[4094:4099] == file.pread(5, 4094) == b"hello"
    file.sync()
    assert (file.size(), file.fd, file.path) == (8192, -1, tmp_path / "a" / "f")
    assert any(start <= 4094 and end >= 4099 for start, end in file.data_ranges(0, 8192))
    mapped.close()
    file.close()
    assert disk.list(tmp_path / "a") == ["b", "f"]
    assert disk.is_dir(tmp_path / "a")
    assert disk.size(tmp_path / "a" / "f") == 8192
    assert disk.modified_ms(tmp_path / "a" / "f") == SystemDisk().modified_ms(tmp_path / "a" / "f")
    disk.rename(tmp_path / "a" / "f", tmp_path / "g")
    assert disk.read(tmp_path / "g")[4094:4099] == b"hello"
    assert disk.usage(tmp_path).total == SystemDisk().usage(tmp_path).total
    disk.remove(tmp_path / "g")
    disk.remove(tmp_path / "g")
    disk.remove_tree(tmp_path / "a")
    assert disk.list(tmp_path) == []
    assert not disk.exists(tmp_path / "g")


def test_the_log_has_every_change_in_order(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.make_dirs(tmp_path / "d")
    file = disk.open(tmp_path / "d" / "f", create=True)
    file.allocate(100)
    file.pwrite(b"abc", 7)
    file.pread(3, 7)
    file.sync()
    file.truncate(9)
    file.close()
    disk.rename(tmp_path / "d" / "f", tmp_path / "d" / "g")
    disk.sync_dir(tmp_path / "d")
    disk.remove(tmp_path / "d" / "g")
    assert list(disk.log) == [
        Operation("make_dirs", "d"),
        Operation("open", "d/f"),
        Operation("allocate", "d/f", size=100),
        Operation("pwrite", "d/f", offset=7, size=3),
        Operation("sync", "d/f"),
        Operation("truncate", "d/f", size=9),
        Operation("rename", "d/f", target="d/g"),
        Operation("sync_dir", "d"),
        Operation("remove", "d/g"),
    ]
    assert disk.calls["pwrite"] == disk.calls["sync"] == disk.calls["pread"] == 1
    assert disk.calls["map"] == 0


@pytest.mark.fault("F4")
def test_an_order_hits_exactly_the_calls_it_names(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log, queue = (disk.open(tmp_path / name, create=True) for name in ("log", "queue"))
    disk.fail_next("pwrite", errno.ENOSPC, path_contains="log", after=2, times=2)
    queue.pwrite(b"x", 0)
    for attempt in range(6):
        if attempt in (2, 3):
            with pytest.raises(OSError) as caught:
                log.pwrite(b"12345678", attempt * 8)
            assert caught.value.errno == errno.ENOSPC
            assert caught.value.filename == str(tmp_path / "log")
        else:
            log.pwrite(b"12345678", attempt * 8)
    queue.pwrite(b"x", 1)
    assert disk.calls["pwrite"] == 8
    assert [(entry.path, entry.error) for entry in disk.log if entry.error] == [("log", errno.ENOSPC)] * 2
    assert log.pread(64, 16) == b"\0" * 16 + b"12345678" * 2
    disk.kill()


@pytest.mark.fault("F4")
def test_a_short_write_before_the_error(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    disk.fail_next("pwrite", errno.ENOSPC, partial_bytes=3)
    with pytest.raises(OSError):
        file.pwrite(b"abcdef", 10)
    assert file.pread(100, 0) == b"\0" * 10 + b"abc"
    disk.fail_next("pwrite", errno.EIO, partial_bytes=100)
    with pytest.raises(OSError):
        file.pwrite(b"xy", 0)
    assert file.size() == 13
    disk.kill()


def test_an_order_without_end_lasts_until_it_is_cleared(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.fail_next("open", errno.EACCES, times=None)
    for _ in range(3):
        with pytest.raises(PermissionError):
            disk.open(tmp_path / "f", create=True)
    assert not (tmp_path / "f").exists()
    disk.clear_faults()
    disk.open(tmp_path / "f", create=True).close()


@pytest.mark.parametrize(
    "op",
    [
        "allocate",
        "map",
        "open",
        "pread",
        "pwrite",
        "read",
        "rename",
        "remove",
        "sync",
        "sync_dir",
        "truncate",
    ],
)
def test_every_operation_can_fail_and_then_works(tmp_path: Path, op: str) -> None:
    (tmp_path / "f").write_bytes(b"content")
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f")
    calls = {
        "allocate": lambda: file.allocate(100),
        "map": lambda: file.map(7).close(),
        "open": lambda: disk.open(tmp_path / "f").close(),
        "pread": lambda: file.pread(1, 0),
        "pwrite": lambda: file.pwrite(b"x", 0),
        "read": lambda: disk.read(tmp_path / "f"),
        "rename": lambda: disk.rename(tmp_path / "f", tmp_path / "g"),
        "remove": lambda: disk.remove(tmp_path / "f"),
        "sync": file.sync,
        "sync_dir": lambda: disk.sync_dir(tmp_path),
        "truncate": lambda: file.truncate(3),
    }
    disk.fail_next(op, errno.EIO)
    with pytest.raises(OSError) as caught:
        calls[op]()
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "f").read_bytes() == b"content", "a call that failed has no effect"
    calls[op]()
    file.close()


def test_an_unknown_operation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fsync"):
        FaultyDisk(tmp_path).fail_next("fsync", errno.EIO)


def test_errors_that_the_real_disk_has(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, lose_directory_entries=True)
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        disk.rename(tmp_path / "absent", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(tmp_path / "absent")
    disk.remove(tmp_path / "absent")
    disk.remove_tree(tmp_path / "absent")
    assert disk.unsynced_entries == 0


@pytest.mark.fault("F4")
def test_a_full_disk_refuses_growth_until_space_returns(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    disk.space_limit_bytes = 10_000
    file.allocate(8_000)
    assert disk.usage(tmp_path) == DiskUsage(total=10_000, used=8_000, available=2_000)
    file.pwrite(b"x" * 8_000, 0)
    with pytest.raises(OSError) as caught:
        file.allocate(10_001)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 8_000

    with pytest.raises(OSError) as caught:
        file.pwrite(b"y" * 4_000, 7_000)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 10_000, "what fits is written, as a real disk does"
    assert file.pread(4_000, 7_000) == b"y" * 3_000
    assert disk.usage(tmp_path).available == 0

    file.pwrite(b"z", 0)
    with pytest.raises(OSError):
        file.pwrite(b"z", 10_000)
    disk.space_limit_bytes = 20_000
    file.pwrite(b"z", 10_000)
    other = disk.open(tmp_path / "g", create=True)
    with pytest.raises(OSError):
        other.allocate(10_000)
    file.truncate(0)
    other.allocate(20_000)
    disk.space_limit_bytes = None
    other.allocate(30_000)
    assert disk.used_bytes == 30_000
    disk.kill()


def test_a_limit_below_what_is_used_still_lets_old_bytes_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    disk = FaultyDisk(tmp_path)
    disk.space_limit_bytes = 10
    file = disk.open(tmp_path / "f")
    file.pwrite(b"y", 99)
    with pytest.raises(OSError):
        file.pwrite(b"y", 100)
    assert disk.usage(tmp_path).used_percent == 100
    disk.kill()


def test_usage_can_be_dictated(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.space_limit_bytes = 1
    disk.usage_override = DiskUsage(total=100, used=86, available=14)
    assert disk.usage(tmp_path).used_percent == 86
    disk.usage_override = None
    assert disk.usage(tmp_path).total == 1


@pytest.mark.fault("F9")
def test_a_slow_disk_sleeps_in_sync_only(tmp_path: Path) -> None:
    clock = ManualClock(start_ms=0)
    disk = FaultyDisk(tmp_path, sleep=clock.sleep)
    disk.sync_delay_s = 2.5
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"x", 0)
    assert clock.now_ms() == 0
    file.sync()
    file.sync()
    assert clock.now_ms() == 5_000
    disk.kill()


def test_two_opens_of_one_file_share_what_is_unsynced(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    writer = disk.open(tmp_path / "f", create=True)
    flusher = disk.open(tmp_path / "f")
    writer.pwrite(b"flushed by the other", 0)
    flusher.sync()
    disk.crash()
    assert (tmp_path / "f").read_bytes() == b"flushed by the other"


def test_a_dead_disk_raises_from_every_call(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f")
    lock = disk.lock(tmp_path / "lock", b"lock")
    disk.crash()
    assert not disk.has_power
    path = tmp_path / "f"
    for call in (
        lambda: disk.open(path),
        lambda: disk.exists(path),
        lambda: disk.is_dir(path),
        lambda: disk.size(path),
        lambda: disk.modified_ms(path),
        lambda: disk.list(tmp_path),
        lambda: disk.read(path),
        lambda: disk.make_dirs(tmp_path / "d"),
        lambda: disk.rename(path, tmp_path / "g"),
        lambda: disk.remove(path),
        lambda: disk.remove_tree(tmp_path),
        lambda: disk.sync_dir(tmp_path),
        lambda: disk.usage(tmp_path),
        lambda: disk.lock(path, b""),
        lambda: file.pwrite(b"x", 0),
        lambda: file.pread(1, 0),
        file.sync,
        file.size,
        lambda: file.truncate(0),
        lambda: file.allocate(100),
        lambda: file.map(1),
        lambda: file.data_ranges(0, 1),
    ):
        with pytest.raises(PowerLostError):
            call()
    file.close()
    lock.release()
    assert path.read_bytes() == b"content"
    with pytest.raises(ValueError, match="ended"):
        disk.crash()


def test_a_crash_frees_the_lock_as_the_end_of_a_process_does(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.lock(tmp_path / "lock", b"lock")
    with pytest.raises((BlockingIOError, PermissionError)):
        SystemDisk().lock(tmp_path / "lock", b"lock")
    disk.crash()
    after = FaultyDisk(tmp_path)
    after.lock(tmp_path / "lock", b"lock").release()


def test_stop_after_counts_changes_and_not_reads(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = disk.open(tmp_path / "f", create=True)
    disk.stop_after(2)
    file.pwrite(b"one", 0)
    file.pread(3, 0)
    disk.exists(tmp_path)
    file.sync()
    with pytest.raises(PowerLostError):
        file.pwrite(b"two", 0)
    with pytest.raises(PowerLostError):
        file.pread(3, 0)
    assert summary(disk)[-2:] == [("pwrite", "f"), ("sync", "f")]
    disk.crash()
    assert (tmp_path / "f").read_bytes() == b"one"
