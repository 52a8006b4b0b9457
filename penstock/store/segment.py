"""One file of the commit log: written by position, read through a map.

A segment's bytes exist in full from the moment it has its name: it is made and preallocated elsewhere in the
directory and moved into place, so that a crash never leaves a short file that a Java broker would refuse.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from penstock._hot.mapped import MappedBytes
from penstock.runtime import Disk, File
from penstock.store.layout import StorePaths, position_name


class Segment:
    """`position` is where the next byte goes, `flushed` up to where the disk has it; both within the file."""

    def __init__(self, base: int, size: int, file: File, view: MappedBytes, available: int) -> None:
        self.base = base
        self.size = size
        self.file = file
        # For the compiled writer; -1 where every write has to go through `file`.
        self.fd = file.fd
        self.view = view
        # Bytes that the file really has; less than `size` only for a damaged file opened read-only.
        self.available = available
        self.position = 0
        self.flushed = 0
        # Syncs that a thread without the interpreter lock has begun or will begin: its descriptor must stay its own.
        self._pins = 0
        self._is_closing = False

    @property
    def end(self) -> int:
        """Log position of the next byte."""
        return self.base + self.position

    @property
    def path(self) -> Path:
        return self.file.path

    @staticmethod
    def open(disk: Disk, path: Path, base: int, size: int, *, read_only: bool) -> Segment:
        """Open an existing file; a short one is filled up with zeros, or read as far as it goes. Filled up means
        allocated: reading a hole through the map would be a SIGBUS on a full tmpfs."""
        file = disk.open(path, write=not read_only)
        available = file.size()
        if available < size and not read_only:
            try:
                file.allocate(size)
                file.sync()
            except OSError:
                file.close()
                raise
            available = size
        available = min(available, size)
        source = file.map(available) if available else b"\0"
        return Segment(base, size, file, MappedBytes(source), available)

    @staticmethod
    def make(disk: Disk, paths: StorePaths, base: int, size: int) -> Path:
        """A preallocated file, on disk, not yet in its place."""
        if not disk.is_dir(paths.prepare):
            disk.make_dirs(paths.prepare)
            disk.sync_dir(paths.root)
        path = paths.prepare / position_name(base)
        file = disk.open(path, create=True)
        try:
            file.truncate(0)
            file.allocate(size)
            file.sync()
        except OSError:
            file.close()
            disk.remove(path)
            raise
        file.close()
        return path

    @staticmethod
    def remove_half_made(disk: Disk, paths: StorePaths) -> None:
        """What a crash left of segments that never got to their place."""
        for name in disk.list(paths.prepare):
            if not disk.is_dir(paths.prepare / name):
                disk.remove(paths.prepare / name)

    @staticmethod
    def create(disk: Disk, paths: StorePaths, base: int, size: int) -> Segment:
        """The segment that begins at `base`. Order: allocate, sync, move into place, sync both folders."""
        source = Segment.make(disk, paths, base, size)
        target = paths.commit_log / position_name(base)
        disk.rename(source, target)
        disk.sync_dir(paths.commit_log)
        disk.sync_dir(paths.prepare)
        return Segment.open(disk, target, base, size, read_only=False)

    def pin(self) -> None:
        """Keep the descriptor until `unpin`, also if the segment is closed meanwhile. Under the flusher's lock."""
        self._pins += 1

    def unpin(self) -> None:
        self._pins -= 1
        if self._is_closing and not self._pins:
            self.file.close()

    def leave_pages(self) -> None:
        """What was read of the map stays in the system's cache, and counts no more as memory of this process."""
        source = self.view.source
        if isinstance(source, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            source.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.view.release()
        self._is_closing = True
        if not self._pins:
            self.file.close()

    def remove(self, disk: Disk) -> None:
        """Delete the file of a closed segment."""
        disk.remove(self.path)
        disk.sync_dir(self.path.parent)
