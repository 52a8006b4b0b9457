"""Files of consume queues, opened when they are needed and closed again, so that a store may have many more.

At most `open_max` files are open at once, each with at most two descriptors (one to write, one that its map holds)
and one map; the one that was not used for longest is closed. Opening one takes some 50 microseconds, and no send
needs one: entries wait in memory and go to their files in runs.

A file is closed only by the thread that uses another one, under the store's append lock, under which all of them
are read and written; nobody keeps a view of a map beyond that lock. The one use without it is a sync by the keeper,
and a file that is being synced is pinned. A file may be closed before it is synced: its pages are the system's by
then, and it is opened again for the sync. Should the system lose them meanwhile, the queue ends before its entry in
the manifest, and is built again from the log.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from penstock._hot.mapped import MappedBytes
from penstock.runtime import Disk, File


class OpenFiles:
    """Which queue files are open, the least recently used first. Shared by all queues of a store."""

    def __init__(self, disk: Disk, open_max: int = 512, *, read_only: bool = False) -> None:
        self.open_max = max(open_max, 1)
        self._disk = disk
        self._read_only = read_only
        # Files are opened and closed under this lock alone: a descriptor that is closed may be another file's at
        # once.
        self._lock = threading.Lock()
        self._open: OrderedDict[QueueFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def file(self, queue_file: QueueFile) -> File:
        """The file, opened if it is not. Under the append lock."""
        with self._lock:
            self._touch(queue_file)
            return queue_file.open_file(self._disk, self._read_only)

    def view(self, queue_file: QueueFile) -> MappedBytes:
        """The whole file, mapped if it is not. Under the append lock, and not to be kept beyond it."""
        with self._lock:
            self._touch(queue_file)
            return queue_file.open_view(self._disk, self._read_only)

    def _touch(self, queue_file: QueueFile) -> None:
        """A file is used: it is the last one to be closed. The first one that is not pinned is, if there are too
        many."""
        if queue_file in self._open:
            self._open.move_to_end(queue_file)
            return
        if len(self._open) >= self.open_max:
            idle = next((candidate for candidate in self._open if not candidate.pins), None)
            if idle is not None:
                del self._open[idle]
                idle.release()
        self._open[queue_file] = None

    def forget(self, queue_file: QueueFile) -> None:
        """A file is closed for good."""
        with self._lock:
            self._open.pop(queue_file, None)
            queue_file.release()

    @contextmanager
    def pinned(self, queue_file: QueueFile) -> Iterator[File]:
        """The file, open and kept open: for a sync without the append lock. Closes no other file: it may be in
        use."""
        with self._lock:
            file = queue_file.open_file(self._disk, self._read_only)
            queue_file.pins += 1
        try:
            yield file
        finally:
            with self._lock:
                queue_file.pins -= 1
                if not queue_file.pins and queue_file not in self._open:
                    queue_file.release()


class Home(Protocol):
    """Says where a queue's files are."""

    @property
    def folder(self) -> Path: ...


class QueueFile:
    """One file; `first` is the queue offset of its first entry, `dirty` whether it has what is not synced."""

    __slots__ = ("_file", "_home", "_name", "_open_files", "_size", "_view", "dirty", "first", "pins")

    def __init__(self, open_files: OpenFiles, home: Home, name: str, first: int, size: int) -> None:
        self._open_files = open_files
        self._home = home
        # Of 100,000 queues most have one file, all of the same name.
        self._name = sys.intern(name)
        self._size = size
        self._file: File | None = None
        self._view: MappedBytes | None = None
        self.first = first
        self.dirty = False
        # Syncs that are under way.
        self.pins = 0

    @property
    def path(self) -> Path:
        return self._home.folder / self._name

    @property
    def file(self) -> File:
        return self._open_files.file(self)

    @property
    def view(self) -> MappedBytes:
        return self._open_files.view(self)

    def close(self) -> None:
        self._open_files.forget(self)

    # -- for OpenFiles -----------------------------------------------------------------------------------------

    def open_file(self, disk: Disk, read_only: bool) -> File:
        if self._file is None:
            self._file = disk.open(self.path, write=not read_only)
        return self._file

    def open_view(self, disk: Disk, read_only: bool) -> MappedBytes:
        if self._view is None:
            self._view = MappedBytes(self.open_file(disk, read_only).map(self._size))
        return self._view

    def release(self) -> None:
        """Give up descriptors and map until the next use."""
        view, self._view = self._view, None
        file, self._file = self._file, None
        if view is not None:
            view.release()
        if file is not None:
            file.close()
