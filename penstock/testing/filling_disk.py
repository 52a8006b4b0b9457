"""The machine's file system, full for as long as a file of a given name exists.

For processes of their own, which a test cannot reach in any other way. While the mark is there nothing gets space:
no write, no allocation, no new file; what exists is read, synced, renamed and removed as ever. A write fails whole,
also into space that was allocated before: file systems that copy on write refuse those too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from penstock.runtime.disk import Bytes, File, SystemDisk, SystemFile


class FillingFile(SystemFile):
    """Every write comes through here: the compiled writer has no descriptor to go past it."""

    def __init__(self, path: Path, fd: int, mark: Path) -> None:
        super().__init__(path, fd)
        self._mark = mark

    @property
    def fd(self) -> int:
        return -1

    def pwrite(self, data: Bytes, offset: int) -> None:
        require_space(self._mark, self.path)
        super().pwrite(data, offset)

    def allocate(self, size: int) -> None:
        require_space(self._mark, self.path)
        super().allocate(size)


class FillingDisk(SystemDisk):
    """See the module's text."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        if create and not path.exists():
            require_space(self._mark, path)
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        return FillingFile(path, os.open(path, flags, 0o644), self._mark)

    def make_dirs(self, path: Path) -> None:
        if not path.is_dir():
            require_space(self._mark, path)
        super().make_dirs(path)


def require_space(mark: Path, path: Path) -> None:
    if mark.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
