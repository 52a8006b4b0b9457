"""The disk: files written by position and read through maps, and the few directory operations a store needs.

Rules: a write either transfers every byte or raises; nothing here retries an fsync; nothing writes through
a map (a full disk would be a SIGBUS, and `mmap.flush` holds the interpreter lock). `penstock.testing.disk`
has the same door with faults behind it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

Bytes = bytes | bytearray | memoryview
# What a directory holds: names, and sizes of files or -1.
Entries = list[tuple[str, int]]
# Error numbers of a write for which the disk, or the quota of its user, has no room.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_AT_WORKING_DIRECTORY = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Space of the file system that holds a path, in bytes."""

    total: int
    used: int
    available: int

    @property
    def used_percent(self) -> int:
        """Used part of what this process could use, rounded up to a whole percent as RocketMQ does."""
        usable = self.used + self.available
        return -(-self.used * 100 // usable) if usable else 0


class File(Protocol):
    """One open file. `fd` is the descriptor that a thread without the interpreter lock may sync
    directly, or -1 where every sync has to come through `sync`."""

    @property
    def path(self) -> Path: ...

    @property
    def fd(self) -> int: ...

    def pwrite(self, data: Bytes, offset: int) -> None: ...

    def pread(self, size: int, offset: int) -> bytes: ...

    def sync(self) -> None: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None: ...

    def map(self, size: int) -> mmap.mmap: ...

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]: ...

    def close(self) -> None: ...


class FileLock(Protocol):
    """Exclusive ownership, until released or the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The operations of a file system that a store needs."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File: ...

    def exists(self, path: Path) -> bool: ...

    def is_dir(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def modified_ms(self, path: Path) -> int: ...

    def list(self, path: Path) -> list[str]: ...

    def entries(self, path: Path) -> Entries: ...

    def read(self, path: Path) -> bytes: ...

    def make_dirs(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def sync_dir(self, path: Path) -> None: ...

    def usage(self, path: Path) -> DiskUsage: ...

    def lock(self, path: Path, content: bytes) -> FileLock: ...


@runtime_checkable
class SwappingDisk(Protocol):
    """What some disks can do besides: a second name for a file, and two names swapped in one step. Both raise
    OSError where the file system cannot."""

    def link(self, source: Path, target: Path) -> None: ...

    def exchange(self, first: Path, second: Path) -> None: ...


@runtime_checkable
class BulkSyncDisk(Protocol):
    """What some disks can do besides: sync everything that was written to the file system of a path, in one step.
    Raises OSError if anything could not be written since the last one."""

    @property
    def can_sync_all(self) -> bool: ...

    def sync_all(self, path: Path) -> None: ...


class SystemFile:
    """A file of the machine."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @property
    def path(self) -> Path:
        return self._path

    @property
    def fd(self) -> int:
        return self._fd

    def pwrite(self, data: Bytes, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        # A short write is how a disk that fills up says so: the next call brings the error itself.
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def map(self, size: int) -> mmap.mmap:
        return mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of [start, end) that were ever written; preallocated and sparse parts are left out."""
        while start < end:
            try:
                start = os.lseek(self._fd, start, os.SEEK_DATA)
                stop = min(end, os.lseek(self._fd, start, os.SEEK_HOLE))
            except OSError:  # ENXIO: nothing but holes from here on
                return
            if start >= end:
                return
            yield start, stop
            start = stop

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemFileLock:
    """A record lock on byte 0, the lock a JVM takes, so that brokers of both kinds exclude each other.

    Linux's open-file-description form is used where there is one: it also excludes a second open in the
    same process, and closing an unrelated descriptor of the file does not drop it.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if hasattr(fcntl, "F_OFD_SETLK"):
                wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
                fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, wanted)
            else:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError:
            os.close(self._fd)
            raise
        os.pwrite(self._fd, content, 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SystemDisk:
    """The machine's file system."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return SystemFile(path, os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted; an absent directory is an empty one."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def entries(self, path: Path) -> Entries:
        """Names in a directory, sorted, with the size of each file and -1 for a directory. An absent directory is an
        empty one."""
        try:
            with os.scandir(path) as found:
                return sorted((entry.name, -1 if entry.is_dir() else entry.stat().st_size) for entry in found)
        except FileNotFoundError:
            return []

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def make_dirs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def exchange(self, first: Path, second: Path) -> None:
        """Linux's renameat2: whoever lists one of two directories sees it as it was before or as it is after."""
        import ctypes

        swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if swap is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(first))
        here = _AT_WORKING_DIRECTORY
        if swap(here, os.fsencode(first), here, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(first))

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @property
    def can_sync_all(self) -> bool:
        """Linux has syncfs; before 5.8 it did not report writes that failed."""
        return sys.platform == "linux" and _kernel() >= (5, 8)

    def sync_all(self, path: Path) -> None:
        """Linux's syncfs, without the interpreter lock."""
        import ctypes

        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), str(path))
        finally:
            os.close(fd)

    def usage(self, path: Path) -> DiskUsage:
        stat = os.statvfs(path)
        block = stat.f_frsize
        return DiskUsage(
            total=stat.f_blocks * block,
            used=(stat.f_blocks - stat.f_bfree) * block,
            available=stat.f_bavail * block,
        )

    def lock(self, path: Path, content: bytes) -> FileLock:
        """Raises BlockingIOError or PermissionError when another process holds it."""
        return SystemFileLock(path, content)


def _kernel() -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))


def make_lasting_dirs(disk: Disk, path: Path) -> None:
    """Make a directory with those above it. A power loss must not take it away again with all that is synced in it:
    each name is on disk when the directory it stands in is."""
    missing = [folder for folder in (path, *path.parents) if not disk.exists(folder)]
    if missing:
        disk.make_dirs(path)
        for folder in reversed(missing):
            disk.sync_dir(folder.parent)


def write_atomically(disk: Disk, path: Path, data: bytes) -> None:
    """Replace a small file so that a crash leaves the old content or the new, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(path.parent)


def write_in_sector(disk: Disk, path: Path, data: bytes, size: int) -> None:
    """Overwrite the beginning of a file of `size` bytes, made when it is not there. What fits into one disk sector is
    written whole or not at all, which saves the second file and the rename."""
    created = not disk.exists(path)
    if created:
        make_lasting_dirs(disk, path.parent)
    file = disk.open(path, create=True)
    try:
        if file.size() != size:
            file.truncate(size)
        file.pwrite(data, 0)
        file.sync()
    finally:
        file.close()
    if created:
        disk.sync_dir(path.parent)
