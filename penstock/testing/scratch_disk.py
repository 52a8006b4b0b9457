"""The machine's files without their syncs, in memory where there is room: for data that dies with its test.

A sync costs milliseconds and guards against power loss, which a directory that is deleted at the end of a test
cannot survive anyway. Everything else, errors of a full disk among them, is the machine's own. Whoever tests
durability uses `FaultyDisk` or a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.runtime.disk import File, SystemDisk, SystemFile

MEMORY_DIRECTORY = Path("/dev/shm")
ROOM_BYTES = 256 << 20


class ScratchFile(SystemFile):
    """A file whose sync is a promise that nobody will need."""

    def sync(self) -> None:
        pass

    def allocate(self, size: int) -> None:
        """Only the length: blocks come as they are written, so that large empty files cost nothing."""
        if size > self.size():
            self.truncate(size)


class ScratchDisk(SystemDisk):
    """The file system of the machine, syncs left out."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return ScratchFile(path, os.open(path, flags, 0o644))

    def sync_dir(self, path: Path) -> None:
        pass

    def sync_all(self, path: Path) -> None:
        pass


def scratch_parent(memory: Path = MEMORY_DIRECTORY) -> Path | None:
    """Where temporary directories are best made: in memory, unless TMPDIR says where; None: wherever usual."""
    if os.environ.get("TMPDIR") or not os.access(memory, os.W_OK | os.X_OK):
        return None
    return memory if SystemDisk().usage(memory).available >= ROOM_BYTES else None
