"""The machine's disk through the door: whole writes, holes, maps, directories, locks."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.runtime import DiskUsage, SeededEntropy, SystemDisk
from penstock.runtime.disk import write_atomically
from penstock.testing import (
    FaultyDisk,
    Keep,
    PowerLostError,
    keep_random_blocks,
    keep_unsynced,
    lose_unsynced,
)

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 90
MIB = 1 << 20

TAKES_OUR_LOCK = """
import sys
from pathlib import Path
from penstock.runtime import SystemDisk
SystemDisk().lock(Path(sys.argv[1]), b"lock")
print("locked", flush=True)
sys.stdin.read()
"""
TAKES_RECORD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""
WRITES_OVER_ITS_LIMIT = """
import resource, sys
from pathlib import Path
from penstock.runtime import SystemDisk
file = SystemDisk().open(Path(sys.argv[1]), create=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    file.pwrite(b"x" * 300, 50)
except OSError as error:
    print(error.errno, file.size())
"""


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


def started(script: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def other_process() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.communicate(timeout=LIMIT_S)


def test_bytes_are_where_they_were_written(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.pwrite(b"world", 6)
    file.pwrite(bytearray(b"hello "), 0)
    file.pwrite(memoryview(b"!"), 11)
    file.sync()
    assert file.pread(100, 0) == b"hello world!"
    assert file.pread(5, 6) == b"world"
    assert file.size() == disk.size(file.path) == 12
    file.close()
    file.close()
    assert disk.read(tmp_path / "f") == b"hello world!"


def test_short_writes_are_completed(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite, sizes = os.pwrite, []

    def seven_at_most(fd: int, data: bytes, offset: int) -> int:
        sizes.append(len(data))
        return real_pwrite(fd, memoryview(data)[:7], offset)

    file = disk.open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "pwrite", seven_at_most)
    file.pwrite(bytes(range(20)), 3)
    monkeypatch.undo()
    assert sizes == [20, 13, 6]
    assert file.pread(100, 0) == b"\0\0\0" + bytes(range(20))
    file.close()


@pytest.mark.fault("F4")
def test_a_write_that_cannot_be_completed_raises(tmp_path: Path) -> None:
    """A real short write: the process may write files of 100 bytes only."""
    done = subprocess.run(
        [sys.executable, "-c", WRITES_OVER_ITS_LIMIT, str(tmp_path / "f")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.split() == [str(errno.EFBIG), "100"]


@pytest.mark.fault("F4")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_says_so(disk: SystemDisk) -> None:
    file = disk.open(Path("/dev/full"))
    with pytest.raises(OSError) as caught:
        file.pwrite(b"x", 0)
    file.close()
    assert caught.value.errno == errno.ENOSPC


def test_read_only_and_missing_files(disk: SystemDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "absent")
    (tmp_path / "f").write_bytes(b"kept")
    file = disk.open(tmp_path / "f", write=False)
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    file.close()
    assert disk.read(tmp_path / "f") == b"kept"


def test_allocation_and_truncation_set_the_size(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.allocate(MIB)
    assert file.size() == MIB
    assert os.stat(file.path).st_blocks * 512 >= MIB
    assert file.pread(10, MIB - 5) == b"\0" * 5
    file.truncate(100)
    assert file.size() == 100
    file.truncate(200)
    assert file.pread(300, 0) == b"\0" * 200
    file.close()


def test_a_map_shows_what_is_written_later_and_cannot_be_written(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "f", create=True)
    file.truncate(8192)
    mapped = file.map(8192)
    file.pwrite(b"late", 4100)
    assert mapped[4100:4104] == b"late"
    with pytest.raises(TypeError):
        mapped[0] = 1
    mapped.close()
    file.close()


def has_holes(path: Path) -> bool:
    with open(path, "wb") as file:
        file.truncate(MIB)
        try:
            return os.lseek(file.fileno(), 0, os.SEEK_DATA) != 0
        except OSError:
            return True


def test_data_ranges_leave_out_what_was_never_written(disk: SystemDisk, tmp_path: Path) -> None:
    if not has_holes(tmp_path / "probe"):
        pytest.skip("this file system reports holes as data")
    file = disk.open(tmp_path / "f", create=True)
    file.truncate(4 * MIB)
    assert list(file.data_ranges(0, 4 * MIB)) == []
    file.pwrite(b"x", MIB)
    file.pwrite(b"y" * 10, 3 * MIB + 5)
    ranges = list(file.data_ranges(0, 4 * MIB))
    assert any(start <= MIB < end for start, end in ranges)
    assert any(start <= 3 * MIB + 5 and end >= 3 * MIB + 15 for start, end in ranges)
    assert sum(end - start for start, end in ranges) < MIB
    assert list(file.data_ranges(MIB, MIB + 1)) == [(MIB, MIB + 1)]
    assert list(file.data_ranges(0, MIB)) == []
    assert list(file.data_ranges(MIB + 2, MIB + 2)) == []
    file.close()


def test_directories(disk: SystemDisk, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert disk.list(folder) == []
    disk.make_dirs(folder)
    disk.make_dirs(folder)
    for name in ("2", "10", "1"):
        disk.open(folder / name, create=True).close()
    disk.sync_dir(folder)
    assert disk.list(folder) == ["1", "10", "2"]
    assert disk.is_dir(folder)
    assert not disk.is_dir(folder / "1")
    disk.rename(folder / "1", folder / "3")
    disk.remove(folder / "2")
    disk.remove(folder / "2")
    assert disk.list(folder) == ["10", "3"]
    disk.remove_tree(tmp_path / "a")
    disk.remove_tree(tmp_path / "a")
    assert not disk.exists(folder)
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(folder)


def test_modification_time_is_the_wall_clock(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert abs(disk.modified_ms(tmp_path / "f") - time.time_ns() // 1_000_000) < 60_000
    os.utime(tmp_path / "f", ns=(0, 1_700_000_000_123_456_789))
    assert disk.modified_ms(tmp_path / "f") == 1_700_000_000_123


def test_usage_of_the_file_system(disk: SystemDisk, tmp_path: Path) -> None:
    usage = disk.usage(tmp_path)
    assert 0 < usage.available <= usage.total
    assert 0 <= usage.used_percent <= 100


@pytest.mark.parametrize(
    ("used", "available", "percent"),
    [(0, 0, 0), (0, 100, 0), (1, 999, 1), (85, 15, 85), (8501, 1499, 86), (100, 0, 100)],
)
def test_used_percent_is_rounded_up(used: int, available: int, percent: int) -> None:
    assert DiskUsage(total=1_000_000, used=used, available=available).used_percent == percent


def test_the_lock_excludes_a_second_open_in_this_process(disk: SystemDisk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = disk.lock(path, b"lock")
    assert disk.read(path) == b"lock"
    with pytest.raises((BlockingIOError, PermissionError)):
        disk.lock(path, b"lock")
    # With a plain record lock, closing any descriptor of the file would have dropped it.
    disk.open(path).close()
    with pytest.raises((BlockingIOError, PermissionError)):
        disk.lock(path, b"lock")
    first.release()
    first.release()
    disk.lock(path, b"lock").release()


def test_the_lock_excludes_another_process_until_that_ends(
    disk: SystemDisk, tmp_path: Path, other_process: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "lock"
    process = started(TAKES_OUR_LOCK, path)
    other_process.append(process)
    assert process.stdout.readline() == "locked\n"
    with pytest.raises((BlockingIOError, PermissionError)):
        disk.lock(path, b"lock")
    process.kill()
    process.wait(LIMIT_S)
    disk.lock(path, b"lock").release()


def test_the_lock_and_a_jvms_record_lock_exclude_each_other(
    disk: SystemDisk, tmp_path: Path, other_process: list[subprocess.Popen[str]]
) -> None:
    path = tmp_path / "lock"
    ours = disk.lock(path, b"lock")
    refused = started(TAKES_RECORD_LOCK, path)
    other_process.append(refused)
    assert refused.stdout.readline() == "refused\n"
    ours.release()

    holder = started(TAKES_RECORD_LOCK, path)
    other_process.append(holder)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises((BlockingIOError, PermissionError)):
        disk.lock(path, b"lock")


OLD, NEW = b"old content", b"new content, longer than a block: " * 200
SURVIVAL: dict[str, Callable[[int], Keep]] = {
    "nothing": lambda _seed: lose_unsynced,
    "everything": lambda _seed: keep_unsynced,
    "random": lambda seed: keep_random_blocks(SeededEntropy(seed)),
}


@pytest.mark.fault("F5")
@pytest.mark.fault("F6")
@pytest.mark.parametrize("lose_names", [False, True], ids=["names kept", "names lost"])
@pytest.mark.parametrize("survivors", SURVIVAL)
@pytest.mark.parametrize("old", [OLD, None], ids=["replace", "first"])
def test_write_atomically_at_every_step(
    tmp_path: Path, lose_names: bool, survivors: str, old: bytes | None
) -> None:
    completed = False
    for steps in range(10):
        root = tmp_path / str(steps)
        root.mkdir()
        path = root / "f"
        if old is not None:
            path.write_bytes(old)
        faulty = FaultyDisk(root, lose_directory_entries=lose_names)
        faulty.stop_after(steps)
        try:
            write_atomically(faulty, path, NEW)
        except PowerLostError:
            completed = False
        else:
            completed = True
        faulty.crash(SURVIVAL[survivors](steps))
        found = path.read_bytes() if path.exists() else None
        assert found in ((NEW,) if completed else (old, NEW)), f"after {steps} changes"
    assert completed


@pytest.mark.fault("F4")
@pytest.mark.fault("F8")
def test_a_sync_reaches_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would notice a sync that is left out: only a power loss tells."""
    synced: list[str] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    file = SystemDisk().open(tmp_path / "a", create=True)
    file.pwrite(b"x", 0)
    file.sync()
    file.close()
    assert synced == [str(tmp_path / "a")]


@pytest.mark.parametrize("op", ["open", "truncate", "pwrite", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_write_atomically_reports_each_failure_and_keeps_a_whole_file(
    tmp_path: Path, op: str, error: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    faulty = FaultyDisk(tmp_path, lose_directory_entries=True)
    faulty.fail_next(op, error, partial_bytes=5)
    with pytest.raises(OSError) as caught:
        write_atomically(faulty, path, NEW)
    assert caught.value.errno == error
    faulty.crash()
    assert path.read_bytes() == OLD
