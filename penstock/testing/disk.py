"""A disk that fails on order and forgets what was not synced when the power goes.

`FaultyDisk` is a `runtime.Disk` over a real directory: files, sizes, maps and locks are real, only durability
is played. Nothing is synced for real; instead each file remembers what it held at its last sync
(`unsynced.py`), and on request so do directories (`directory_entries.py`).

    crash()                    power loss: the directory becomes what a disk could hold, this object is dead
    kill()                     the process dies, the machine lives: nothing is lost, this object is dead
    stop_after(n)              the power goes before the n+1st change; then crash() decides what is left
    fail_next(...)             errors on order
    space_limit_bytes          a full disk; usage_override: what usage() answers; sync_delay_s: a slow disk

Rules: change files only through this door while it is alive. After a failed sync its writes are not dirty any
more, so a later sync that succeeds does not make them durable (F8). A dead disk raises `PowerLostError` from
every call except `close` and `release`, which still work. Any thread may call; one lock orders the calls, and
a slow sync sleeps outside it.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from penstock.runtime import DiskUsage, File, FileLock, SystemClock, SystemDisk
from penstock.runtime.disk import Entries
from penstock.testing.directory_entries import DirectoryEntries
from penstock.testing.faults import Fault
from penstock.testing.file import FaultyFile
from penstock.testing.gate import Gate, Operation
from penstock.testing.unsynced import Keep, UnsyncedFile, UnsyncedWrite, keep_unsynced, lose_unsynced


class FaultyDisk:
    """A `runtime.Disk` with faults behind it, all of them off at first."""

    def __init__(
        self,
        root: Path,
        *,
        lose_directory_entries: bool = False,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.root = root
        self.gate = Gate(root)
        self.sync_delay_s = 0.0
        self.space_limit_bytes: int | None = None
        self.usage_override: DiskUsage | None = None
        self._sleep = sleep if sleep is not None else SystemClock().sleep
        self._real = SystemDisk()
        self._has_ended = False
        self._files: dict[Path, UnsyncedFile] = {}
        self._entries = DirectoryEntries(root, self._moved) if lose_directory_entries else None
        self._open_files: set[FaultyFile] = set()
        self._locks: list[FileLock] = []
        self._sequence = 0

    # Dials and what they show.

    def fail_next(
        self,
        op: str,
        error: int,
        *,
        path_contains: str = "",
        after: int = 0,
        times: int | None = 1,
        partial_bytes: int = 0,
    ) -> None:
        """Let `after` matching calls pass, then fail `times` of them (None: until `clear_faults`); a pwrite
        transfers its first `partial_bytes` before it fails."""
        with self.gate.guard:
            self.gate.orders.add(Fault(op, error, path_contains, after, times, partial_bytes))

    def clear_faults(self) -> None:
        """Forget all errors on order."""
        with self.gate.guard:
            self.gate.orders.clear()

    def stop_after(self, changes: int) -> None:
        """Cut the power once `changes` more changes (syncs included) have been made."""
        with self.gate.guard:
            self.gate.changes_left = changes

    @property
    def has_power(self) -> bool:
        return self.gate.has_power

    @property
    def calls(self) -> Counter[str]:
        """Calls by operation, failed ones included."""
        return self.gate.calls

    @property
    def log(self) -> deque[Operation]:
        """What changed the disk, or failed to, in order."""
        return self.gate.log

    @property
    def used_bytes(self) -> int:
        """Sum of the file sizes below the root: what `space_limit_bytes` limits. Sparse files count whole."""
        return sum(
            os.lstat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(self.root)
            for name in names
        )

    @property
    def unsynced_entries(self) -> int:
        """How many changes of names a crash may take back."""
        return len(self._entries) if self._entries is not None else 0

    def last_unsynced_write(self, path_contains: str = "") -> UnsyncedWrite | None:
        """The newest write that no sync covers: the one that `crash(torn_at=...)` cuts."""
        with self.gate.guard:
            file = self._file_to_tear(path_contains)
            return file.last_write if file is not None else None

    # The end.

    def crash(
        self,
        keep: Keep | None = None,
        *,
        torn_at: int | None = None,
        torn_path_contains: str = "",
        kept_entries: int = 0,
    ) -> None:
        """Cut the power (if `stop_after` has not) and leave what a disk could hold.

        `keep` decides block by block; by default nothing un-synced survives. With `torn_at` the newest
        un-synced write (of the files named so) keeps its first `torn_at` bytes, and by default everything
        before it survives. Of un-synced changes of names the oldest `kept_entries` survive.
        """
        with self.gate.guard:
            torn = self._file_to_tear(torn_path_contains) if torn_at is not None else None
            if torn_at is not None:
                write = torn.last_write if torn is not None else None
                if write is None or not 0 <= torn_at <= write.size:
                    raise ValueError(f"no un-synced write that could be cut at byte {torn_at}: {write}")
            self._end()
            chosen = keep or (lose_unsynced if torn_at is None else keep_unsynced)
            for path in sorted(self._files):
                file = self._files[path]
                file.settle(self._real, chosen, torn_at if file is torn else None)
            if self._entries is not None:
                self._entries.lose(kept_entries)

    def kill(self) -> None:
        """End as a killed process does: the page cache stays, so nothing is lost, not even after F8."""
        with self.gate.guard:
            self._end()
            if self._entries is not None:
                self._entries.clear()

    def _end(self) -> None:
        if self._has_ended:
            raise ValueError("this disk has ended already; open a new one on the same directory")
        self._has_ended = True
        self.gate.has_power = False
        for file in list(self._open_files):
            file.close()
        for lock in self._locks:
            lock.release()

    def _file_to_tear(self, path_contains: str) -> UnsyncedFile | None:
        writes = [
            (file.last_write.sequence, file)
            for path, file in self._files.items()
            if file.last_write is not None and path_contains in str(path)
        ]
        return max(writes, key=lambda write: write[0])[1] if writes else None

    # runtime.Disk

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        with self.gate.guard:
            creates = create and not self._real.exists(path)
            self.gate.enter("open", path, changes=creates)
            real = self._real.open(path, create=create, write=write)
            known = None if creates else self._files.get(path)
            if known is None:
                known = self._files[path] = UnsyncedFile(path, real.size())
            if creates:
                self.gate.note("open", path)
                if self._entries is not None:
                    self._entries.created_file(path, known)
            file = FaultyFile(self, real, known)
            self._open_files.add(file)
            return file

    def exists(self, path: Path) -> bool:
        self.gate.check_power(path)
        return self._real.exists(path)

    def is_dir(self, path: Path) -> bool:
        self.gate.check_power(path)
        return self._real.is_dir(path)

    def size(self, path: Path) -> int:
        self.gate.check_power(path)
        return self._real.size(path)

    def modified_ms(self, path: Path) -> int:
        self.gate.check_power(path)
        return self._real.modified_ms(path)

    def list(self, path: Path) -> list[str]:
        self.gate.check_power(path)
        return self._real.list(path)

    def entries(self, path: Path) -> Entries:
        self.gate.check_power(path)
        return self._real.entries(path)

    def read(self, path: Path) -> bytes:
        with self.gate.guard:
            self.gate.enter("read", path, changes=False)
            return self._real.read(path)

    def make_dirs(self, path: Path) -> None:
        with self.gate.guard:
            missing = [folder for folder in (path, *path.parents) if not folder.exists()]
            self.gate.enter("make_dirs", path, changes=bool(missing))
            self._real.make_dirs(path)
            for folder in reversed(missing):
                self.gate.note("make_dirs", folder)
                if self._entries is not None:
                    self._entries.created_directory(folder)

    def rename(self, source: Path, target: Path) -> None:
        with self.gate.guard:
            self.gate.enter("rename", source)
            if not source.exists():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
            if self._entries is not None:
                self._entries.before_rename(source, target)
            self._real.rename(source, target)
            self._moved(target, None)
            self._moved(source, target)
            self.gate.note("rename", source, target=target)

    def remove(self, path: Path) -> None:
        self._remove("remove", path, self._real.remove, can_come_back=path.is_file())

    def remove_tree(self, path: Path) -> None:
        self._remove("remove_tree", path, self._real.remove_tree, can_come_back=path.exists())

    def _remove(self, op: str, path: Path, really: Callable[[Path], None], *, can_come_back: bool) -> None:
        with self.gate.guard:
            self.gate.enter(op, path)
            if self._entries is not None and can_come_back:
                self._entries.bury(path)
            else:
                really(path)
                self._moved(path, None)
            self.gate.note(op, path)

    def sync_dir(self, path: Path) -> None:
        with self.gate.guard:
            self.gate.enter("sync_dir", path)
            if not path.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if self._entries is not None:
                self._entries.synced_directory(path)
            self.gate.note("sync_dir", path)

    def usage(self, path: Path) -> DiskUsage:
        self.gate.check_power(path)
        if self.usage_override is not None:
            return self.usage_override
        limit = self.space_limit_bytes
        if limit is None:
            return self._real.usage(path)
        used = self.used_bytes
        return DiskUsage(total=max(limit, used), used=used, available=max(0, limit - used))

    def lock(self, path: Path, content: bytes) -> FileLock:
        """The real lock. The lock file is not part of what a crash may lose."""
        with self.gate.guard:
            self.gate.enter("lock", path, changes=False)
            lock = self._real.lock(path, content)
            self._locks.append(lock)
            return lock

    # For FaultyFile.

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def room_bytes(self) -> int | None:
        """Bytes left under the limit, or None without one."""
        limit = self.space_limit_bytes
        return None if limit is None else max(0, limit - self.used_bytes)

    def delay_sync(self) -> None:
        if self.sync_delay_s > 0:
            self._sleep(self.sync_delay_s)

    def file_was_synced(self, file: UnsyncedFile) -> None:
        if self._entries is not None:
            self._entries.synced_file(file)

    def file_was_closed(self, file: FaultyFile) -> None:
        self._open_files.discard(file)

    def _moved(self, old: Path, new: Path | None) -> None:
        """A file, or all files of a directory, have another path now, or none."""
        for path in [path for path in self._files if path == old or old in path.parents]:
            file = self._files.pop(path)
            file.path = new / path.relative_to(old) if new is not None else None
            if file.path is not None:
                self._files[file.path] = file
