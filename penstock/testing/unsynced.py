"""What a power loss may take from one file: the blocks written since its last successful sync.

The model is the page cache. A file has 4 KiB blocks; the first write to a block after a sync remembers what
the block held before, and that is what a crash puts back:

    dirty      written since the last sync began          a sync makes it durable, a crash may lose it
    syncing    covered by a sync that is under way        the same, until the sync ends
    dropped    covered by a sync that failed              gone: the kernel called the pages clean, so a later
                                                          sync skips them; only writing the block again helps
    (others)   as on the disk                             never lost

Rules: memory holds one old copy per block (zeros at the end of it are not stored) and the old bytes of the
last write, however often a block is written. Length is one more thing that may be lost, as `SIZE`. A crash
never touches the file that was open: it builds another one and renames it over, so that a map still held by
an abandoned store goes on showing the bytes it showed and cannot raise SIGBUS.
`FaultyDisk` holds its lock around every call; `one_sync` lets one sync at a time be under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from penstock.runtime import Disk, Entropy, File

BLOCK_BYTES = 4096
SIZE = -1
_COPY_BYTES = 1 << 20


class UnsyncedBlock(NamedTuple):
    """A block that a crash may lose. `number` counts blocks of 4 KiB, or is `SIZE` for the file's length."""

    path: Path
    number: int


Keep = Callable[[UnsyncedBlock], bool]


def lose_unsynced(_block: UnsyncedBlock) -> bool:
    """Power loss at its worst: nothing survives that was not synced."""
    return False


def keep_unsynced(_block: UnsyncedBlock) -> bool:
    """Everything had reached the disk by luck, except what a failed sync dropped."""
    return True


def keep_random_blocks(entropy: Entropy, kept_fraction: float = 0.5) -> Keep:
    """Blocks reach the disk in any order, so any subset of them may survive."""
    return lambda _block: entropy.fraction() < kept_fraction


@dataclass(frozen=True, slots=True)
class UnsyncedWrite:
    """The newest write of a file, as long as no sync covers it. `sequence` orders writes of all files."""

    sequence: int
    path: Path
    offset: int
    size: int
    old_bytes: bytes
    old_file_size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class UnsyncedFile:
    """The record of one file. `path` follows renames and is None once the file is gone for good."""

    def __init__(self, path: Path, durable_size: int) -> None:
        self.path: Path | None = path
        self.durable_size = durable_size
        self.last_write: UnsyncedWrite | None = None
        self.one_sync = Lock()
        self._dirty: dict[int, bytes] = {}
        self._syncing: dict[int, bytes] = {}
        self._syncing_size = durable_size
        self._syncing_write: UnsyncedWrite | None = None
        self._dropped: dict[int, bytes] = {}

    def before_write(self, file: File, offset: int, size: int, sequence: int) -> None:
        """Remember what a write is about to cover."""
        if size == 0:
            return
        self._remember(file, offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES)
        old_bytes = file.pread(size, offset).rstrip(b"\0")
        self.last_write = UnsyncedWrite(sequence, file.path, offset, size, old_bytes, file.size())

    def before_truncate(self, file: File, size: int) -> None:
        """Remember what a cut is about to take away; holes read as zeros before and after."""
        self.last_write = None
        for start, end in file.data_ranges(size, file.size()):
            self._remember(file, start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES)

    def begin_sync(self, size: int) -> None:
        """What is dirty now is covered by the sync; what is written from now on is not."""
        self._syncing, self._dirty = self._dirty, {}
        self._syncing_size = size
        self._syncing_write = self.last_write

    def end_sync(self) -> None:
        """The sync succeeded."""
        for number in self._syncing:
            self._dropped.pop(number, None)
        self._syncing = {}
        self.durable_size = self._syncing_size
        # A length that is on the disk has also cut what a failed sync left behind it.
        for number in list(self._dropped):
            self._dropped[number] = self._dropped[number][: max(0, self.durable_size - number * BLOCK_BYTES)]
        if self.last_write is self._syncing_write:
            self.last_write = None

    def fail_sync(self) -> None:
        """The sync failed: its blocks are clean to the kernel and old on the disk."""
        for number, old in self._syncing.items():
            self._dropped.setdefault(number, old)
        self._syncing = {}
        if self.last_write is self._syncing_write:
            self.last_write = None

    def settle(self, disk: Disk, keep: Keep, torn_at: int | None = None) -> None:
        """Make the file what the power loss left of it; `torn_at` cuts the last write first."""
        path = self.path
        if path is None or not disk.exists(path):
            return
        source = disk.open(path, write=False)
        try:
            size = source.size()
            if size == self.durable_size and not (self._dirty or self._syncing or self._dropped):
                return
            remains = path.with_name(path.name + ".settling")
            target = disk.open(remains, create=True)
            try:
                _copy(source, target, size)
                self._put_back(target, path, size, keep, torn_at)
            finally:
                target.close()
        finally:
            source.close()
        times = path.stat()
        os.utime(remains, ns=(times.st_atime_ns, times.st_mtime_ns))
        disk.rename(remains, path)

    def _put_back(self, target: File, path: Path, size: int, keep: Keep, torn_at: int | None) -> None:
        if torn_at is not None and self.last_write is not None:
            size = _tear(target, self.last_write, size, torn_at)
        keeps_size = size == self.durable_size or keep(UnsyncedBlock(path, SIZE))
        for number in sorted({*self._dirty, *self._syncing, *self._dropped}):
            if number * BLOCK_BYTES >= size:
                survives = keeps_size  # cut off by a truncation, which is lost or kept as a whole
            elif number in self._dirty or number in self._syncing:
                survives = keep(UnsyncedBlock(path, number))
            else:
                survives = False
            if not survives:
                target.pwrite(self._durable_block(number), number * BLOCK_BYTES)
        target.truncate(size if keeps_size else self.durable_size)

    def _durable_block(self, number: int) -> bytes:
        for older_first in (self._dropped, self._syncing, self._dirty):
            if number in older_first:
                return older_first[number].ljust(BLOCK_BYTES, b"\0")
        raise KeyError(number)

    def _remember(self, file: File, first: int, last: int) -> None:
        for number in range(first, last + 1):
            if number not in self._dirty:
                self._dirty[number] = file.pread(BLOCK_BYTES, number * BLOCK_BYTES).rstrip(b"\0")


def _copy(source: File, target: File, size: int) -> None:
    target.truncate(0)
    for start, end in source.data_ranges(0, size):
        for position in range(start, end, _COPY_BYTES):
            target.pwrite(source.pread(min(_COPY_BYTES, end - position), position), position)
    target.truncate(size)


def _tear(target: File, write: UnsyncedWrite, size: int, torn_at: int) -> int:
    """Undo the write from byte `torn_at` on and return the file's size then."""
    target.pwrite(write.old_bytes.ljust(write.size, b"\0")[torn_at:], write.offset + torn_at)
    if size == write.end > write.old_file_size:  # the write itself had made the file longer
        return max(write.old_file_size, write.offset + torn_at)
    return size
