"""An open file of a `FaultyDisk`: the real file, with what a power loss may take from it kept on the side.

Rules: `fd` is -1, so that every sync comes through `sync`; maps and reads are the real file's. A sync that
is delayed sleeps without the disk's lock, and covers what was written before it began; two syncs of one file
come one after the other. `close` always works.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.runtime import File
from penstock.runtime.disk import Bytes
from penstock.testing.unsynced import UnsyncedFile

if TYPE_CHECKING:
    from penstock.testing.disk import FaultyDisk


class FaultyFile:
    """A `runtime.File`; made by `FaultyDisk.open` only."""

    def __init__(self, disk: FaultyDisk, real: File, unsynced: UnsyncedFile) -> None:
        self._disk = disk
        self._gate = disk.gate
        self._real = real
        self._unsynced = unsynced

    @property
    def path(self) -> Path:
        return self._real.path

    @property
    def fd(self) -> int:
        return -1

    def pwrite(self, data: Bytes, offset: int) -> None:
        view = memoryview(data).cast("B")
        with self._gate.guard:
            fault = self._gate.admit("pwrite", self.path)
            if fault is not None:
                fits, error = min(fault.partial_bytes, len(view)), fault.errno
            else:
                # A disk that fills up takes what fits before it says so.
                fits = max(0, self._reachable_end(offset + len(view)) - offset)
                error = errno.ENOSPC if fits < len(view) else 0
            self._unsynced.before_write(self._real, offset, fits, self._disk.next_sequence())
            if fits:
                self._real.pwrite(view[:fits], offset)
            if error:
                self._gate.fail("pwrite", self.path, error, offset=offset, size=len(view))
            self._gate.note("pwrite", self.path, offset=offset, size=len(view))

    def pread(self, size: int, offset: int) -> bytes:
        with self._gate.guard:
            self._gate.enter("pread", self.path, changes=False, size=size)
            return self._real.pread(size, offset)

    def sync(self) -> None:
        with self._unsynced.one_sync:
            with self._gate.guard:
                fault = self._gate.admit("sync", self.path)
                self._unsynced.begin_sync(self._real.size())
            self._disk.delay_sync()
            with self._gate.guard:
                self._gate.check_power(self.path)
                if fault is not None:
                    self._unsynced.fail_sync()
                    self._gate.fail("sync", self.path, fault.errno)
                self._unsynced.end_sync()
                self._disk.file_was_synced(self._unsynced)
                self._gate.note("sync", self.path)

    def size(self) -> int:
        with self._gate.guard:
            self._gate.check_power(self.path)
            return self._real.size()

    def truncate(self, size: int) -> None:
        with self._gate.guard:
            self._gate.enter("truncate", self.path, size=size)
            self._unsynced.before_truncate(self._real, size)
            self._real.truncate(size)
            self._gate.note("truncate", self.path, size=size)

    def allocate(self, size: int) -> None:
        with self._gate.guard:
            self._gate.enter("allocate", self.path, size=size)
            if self._reachable_end(size) < size:
                self._gate.fail("allocate", self.path, errno.ENOSPC, size=size)
            self._real.allocate(size)
            self._gate.note("allocate", self.path, size=size)

    def map(self, size: int) -> mmap.mmap:
        with self._gate.guard:
            self._gate.enter("map", self.path, changes=False, size=size)
            return self._real.map(size)

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        with self._gate.guard:
            self._gate.check_power(self.path)
            return iter(list(self._real.data_ranges(start, end)))

    def close(self) -> None:
        with self._gate.guard:
            self._disk.file_was_closed(self)
            self._real.close()

    def _reachable_end(self, end: int) -> int:
        """How far the file may reach under the disk's limit, when a call wants it to reach `end`."""
        size = self._real.size()
        room = self._disk.room_bytes() if end > size else None
        return end if room is None else min(end, size + room)
