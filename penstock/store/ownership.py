"""Whose a store directory is, and whether its last owner left in order.

`lock` holds a record lock while a broker runs, of either kind; `abort` exists from before the first change until
after the last one of a clean stop, so its presence at open means: recover.
"""

from __future__ import annotations

import os

from penstock.errors import StoreFormatError, StoreLockedError
from penstock.runtime import Disk, FileLock
from penstock.store.layout import StorePaths


class Ownership:
    """Used by the thread that opens and closes the store."""

    def __init__(self, disk: Disk, paths: StorePaths) -> None:
        self._disk = disk
        self._paths = paths
        self._lock: FileLock | None = None

    def take(self) -> None:
        """Take the lock, or say who has it."""
        try:
            self._lock = self._disk.lock(self._paths.lock, b"lock")
        except (BlockingIOError, PermissionError) as error:
            raise StoreLockedError(
                f"{self._paths.root} is in use by another broker",
                "stop it first, or open the store read-only",
            ) from error

    def require_store(self) -> None:
        """Refuse a directory that is no store, instead of showing an empty one."""
        if not self._disk.is_dir(self._paths.commit_log):
            raise StoreFormatError(
                f"{self._paths.root} is not a store", "name a directory that has a commitlog folder"
            )

    def was_clean(self) -> bool:
        """Whether the last owner stopped cleanly."""
        return not self._disk.exists(self._paths.abort)

    def mark_running(self) -> None:
        """The marker exists, durably, before anything else is changed."""
        file = self._disk.open(self._paths.abort, create=True)
        try:
            text = str(os.getpid()).encode()
            file.pwrite(text, 0)
            file.truncate(len(text))
            file.sync()
        finally:
            file.close()
        self._disk.sync_dir(self._paths.root)

    def mark_clean(self) -> None:
        """The very last change of a clean stop."""
        self._disk.remove(self._paths.abort)
        self._disk.sync_dir(self._paths.root)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
