"""Writes the journal of a broker's tables; what is in it, and how it is read, is in `metadata/table_log.py`.

Order of writes. A change is made in memory and written to the journal in one step, before anything is answered or
sent to a replica: it outlives the process. Who needs it to outlive the machine waits for `synced`; all who wait
share one sync. Only then is the change acknowledged. The JSON files come later, and depend on nobody's request
(`stored_table.py`). A journal file is deleted when the JSON files have every change of it and of all before it, and
all of them are after a clean stop.

Failures. An append that fails leaves the file as it was; the table that lost it is told, and from then on counts a
change as saved only once its JSON file is. After a failed sync nobody knows what the file holds, so that is how all
tables go on, and the next change begins a new file. Owned by the event loop; syncs run in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import StoreError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import JsonValue
from penstock.metadata.table_log import (
    TableLog,
    encode_change,
    encode_file,
    encode_files,
    frame,
    frames,
    log_path,
    read_log,
)
from penstock.runtime import Disk
from penstock.runtime.disk import File, make_lasting_dirs

_LOG = logging.getLogger("penstock.broker")
# A longer journal file gets a successor when a JSON file is written next.
LENGTH_MAX = 4 << 20
LONG = 16
# What 0.1 kept for members of a set: the bodies that a master sent, each framed like a record of this journal.
OLD_FILE_NAME = "sideTables.log"
# Of each JSON file the journal knows the content now and the one before, which is its backup.
_FINGERPRINTS = 2


class _LogFile:
    """One journal file: its length, and the tables whose JSON files do not have all its changes."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self.length = length
        self.file: File | None = None
        # Each with the number of its last change in here.
        self.behind: dict[str, int] = {}
        self.is_new = True


class TableJournal:
    """See the module's text."""

    def __init__(self, disk: Disk, config: Path, length_max: int = LENGTH_MAX) -> None:
        self._disk = disk
        self._config = config
        self._length_max = length_max
        self._read: TableLog | None = None
        # All that exist, oldest first; the last one is written if it has a file open.
        self._files: list[_LogFile] = []
        self._number = 0
        self._known: dict[str, list[str]] = {}
        # Tables without a JSON file, and the last change of each: every journal file begins with them.
        self._carried: dict[str, bytes] = {}
        self._sequence = self._synced = 0
        self._waiters: list[tuple[int, Callable[[bool], None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._old: Path | None = None
        # Told that what was appended may not be kept.
        self.on_loss: list[Callable[[], None]] = []
        # What the last append or sync failed with, empty if it did not.
        self.failure = ""

    def file(self, name: str) -> ConfigFile:
        """The JSON file of a table."""
        return ConfigFile(self._disk, self._config / name)

    @property
    def length(self) -> int:
        """Bytes in all files."""
        return sum(file.length for file in self._files)

    @property
    def is_long(self) -> bool:
        """Whether a start would read more than it should: the JSON files are to be written without a rest."""
        return self.length > LONG * self._length_max

    # -- start -----------------------------------------------------------------------------------------------

    def read(self) -> TableLog:
        """What an earlier run has left; read once."""
        if self._read is None:
            self._read = log = read_log(self._disk, self._config)
            for number in log.numbers:
                path = log_path(self._config, number)
                self._files.append(_LogFile(path, self._disk.size(path)))
            self._number = max(log.numbers, default=0)
            self._known = {
                name: found.fingerprints[-_FINGERPRINTS:]
                for name, found in log.tables.items()
                if found.fingerprints
            }
        return self._read

    def loaded(self, name: str, fingerprint: str, *, is_foreign: bool) -> None:
        """A table was loaded from a JSON file with this fingerprint, and its changes in the journal were taken over
        or, if another program wrote the file since, left out for good."""
        found = self.read().tables.pop(name, None)
        if found is not None and found.changes:
            for file in self._files:
                file.behind.setdefault(name, 0)
        if is_foreign:
            self._known[name] = [fingerprint]
            self._put(encode_file(name, fingerprint, "alone"))
        elif fingerprint not in self._known.get(name, ()):
            self._know(name, fingerprint)

    def carried(self, name: str) -> list[JsonValue]:
        """Changes of a table without a JSON file, from the run before; they are kept until the next ones."""
        found = self.read().tables.pop(name, None)
        changes = [] if found is None else found.changes
        if changes:
            self._carried[name] = body = encode_change(name, changes[-1])
            if self._is_begun:
                self._put(body)
        return changes

    def left_by_0_1(self) -> Iterator[bytes]:
        """Changes that a member of a set took over and 0.1 did not get into the JSON files; taken over here, they are
        in this journal, and the old one goes with the first sync of it or with a clean stop."""
        path = self._config / OLD_FILE_NAME
        if self._disk.exists(path):
            yield from frames(self._disk.read(path), path.name)
            self._old = path

    @property
    def _is_begun(self) -> bool:
        return bool(self._files) and self._files[-1].file is not None

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, name: str, changes: list[JsonValue]) -> None:
        """Keep changes that were made in a table. Raises StoreError if they are not kept."""
        self._put(b"".join(frame(encode_change(name, change)) for change in changes), is_framed=True)
        self._files[-1].behind[name] = self._sequence

    def carry(self, name: str, change: JsonValue) -> None:
        """Keep the one value of a table without a JSON file. Raises StoreError if it is not kept."""
        body = encode_change(name, change)
        if self._carried.get(name) != body:
            self._carried[name] = body
            self._put(body)

    def _know(self, name: str, fingerprint: str, flag: str = "") -> None:
        self._known[name] = [*self._known.get(name, ()), fingerprint][-_FINGERPRINTS:]
        if self._is_begun:
            self._put(encode_file(name, fingerprint, flag))

    def _put(self, data: bytes, *, is_framed: bool = False) -> None:
        record = data if is_framed else frame(data)
        try:
            last = self._files[-1] if self._is_begun else self._begin()
            if last.file is not None:
                last.file.pwrite(record, last.length)
        except OSError as error:
            raise self._failed(error) from error
        last.length += len(record)
        self._sequence += 1
        self.failure = ""

    def _begin(self) -> _LogFile:
        """A new journal file; those before it are only read from now on."""
        self.read()
        make_lasting_dirs(self._disk, self._config)
        started = _LogFile(log_path(self._config, self._number + 1))
        head = b"".join(map(frame, (encode_files(self._known), *self._carried.values())))
        started.file = self._disk.open(started.path, create=True)
        try:
            started.file.truncate(0)
            started.file.pwrite(head, 0)
        except OSError:
            started.file.close()
            raise
        self._number += 1
        started.length = len(head)
        self._files.append(started)
        self._sequence += 1
        return started

    def _failed(self, error: OSError) -> StoreError:
        reason = f"writing the journal of the tables failed: {error.strerror or error}"
        if reason != self.failure:  # once for each trouble
            _LOG.error("%s; changes wait for the tables' own files", reason)
        self.failure = reason
        return StoreError(reason, "check the disk")

    # -- syncs -----------------------------------------------------------------------------------------------

    def once_synced(self, action: Callable[[bool], None]) -> None:
        """Call it when all changes so far are on disk, or (False) when that failed; at once if they are."""
        if self._synced >= self._sequence:
            action(True)
            return
        self._waiters.append((self._sequence, action))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sync table journal")

    def sync_soon(self) -> None:
        """Have what was not worth waiting for, committed offsets, on disk before long."""
        self.once_synced(_ignore)

    async def synced(self) -> bool:
        """Wait until all changes so far are on disk; False if that failed."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(is_synced: bool) -> None:
            if not done.done():
                done.set_result(is_synced)

        self.once_synced(settle)
        return await done

    async def _run(self) -> None:
        while self._waiters:
            goal, files = self._sequence, [file for file in self._files if file.file is not None]
            is_synced = True
            try:
                await asyncio.to_thread(self._sync, files)
            except OSError as error:
                is_synced = False
                self._failed(error)
                self._abandon()
            else:
                self._synced = max(self._synced, goal)
                self._close_all(files[:-1])
                self._remove_old()
            reached = [action for wanted, action in self._waiters if wanted <= goal]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > goal]
            for action in reached:
                try:
                    action(is_synced)
                except Exception:
                    _LOG.exception("what waited for the journal of the tables failed")
        self._task = None

    def _remove_old(self) -> None:
        old, self._old = self._old, None
        if old is not None:
            self._disk.remove(old)

    def _sync(self, files: list[_LogFile]) -> None:
        """In a thread: the files stay open while a sync is under way, because only `_run` and `close` close them."""
        for file in files:
            if file.file is not None:
                file.file.sync()
        if any(file.is_new for file in files):
            self._disk.sync_dir(self._config)
            for file in files:
                file.is_new = False

    def _abandon(self) -> None:
        """What is in the file is not known any more; what is appended next goes to a new one."""
        self._close_all(self._files)
        self._synced = self._sequence
        for listener in self.on_loss:
            listener()

    def abandon(self) -> None:
        """Let go of the files as the end of the process would."""
        self._close_all(self._files)

    def _close_all(self, files: list[_LogFile]) -> None:
        for file in files:
            if file.file is not None:
                file.file.close()
                file.file = None

    # -- JSON files ------------------------------------------------------------------------------------------

    def begin_save(self) -> int:
        """A JSON file is about to be written; the number of the last change that it has for certain."""
        if self._is_begun and self._files[-1].length > self._length_max:
            try:
                self._begin()
            except OSError as error:
                self._failed(error)
        return self._sequence

    async def replacing(self, name: str, fingerprint: str, *, is_complete: bool) -> bool:
        """A JSON file is complete and about to replace the one before: the journal has to know it first, or it would
        take it for another program's. False if that could not be kept."""
        try:
            self._know(name, fingerprint, "complete" if is_complete else "")
        except StoreError:
            return False
        return await self.synced()

    def end_save(self, name: str, number: int) -> None:
        """The JSON file has replaced the one before. Journal files that no table needs any more go, the oldest
        first: an old change must not come back for want of a newer one."""
        for file in self._files:
            if file.behind.get(name, number + 1) <= number:
                del file.behind[name]
        while len(self._files) > 1 and not self._files[0].behind and self._files[0].file is None:
            self._disk.remove(self._files.pop(0).path)

    async def close(self, *, is_saved: bool) -> None:
        """At the end; `is_saved`: the JSON files have everything, and the journal goes."""
        if self._task is not None:
            await self._task
        self._close_all(self._files)
        if is_saved and (self._files or self._old is not None):
            self._remove_old()
            for file in self._files:
                self._disk.remove(file.path)
            self._disk.sync_dir(self._config)
            self._files = []


def _ignore(_is_synced: bool) -> None:
    pass
