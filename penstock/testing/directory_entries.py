"""Which names a power loss may take back: creations, renames and removals that no directory sync covers.

Rules, on the careful side of what file systems do:

    creation     lost unless the parent was synced, or the file itself (journalling file systems do that);
                 the undoing of an older change of the same name takes it away all the same
    rename       lost unless the parents of both names were synced; what it replaced comes back
    removal      lost unless the parent was synced: the file comes back
    new folder   lost, with all that is in it, unless its parent was synced

What is lost is undone newest first, so that the names are always those of some moment in the past. Replaced
and removed files wait in a graveyard beside the root, on the same file system, as the files they were: no
bytes are copied and open files stay usable. `FaultyDisk` holds its lock around every call.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.testing.unsynced import UnsyncedFile

Move = Callable[[Path, Path | None], None]


@dataclass(slots=True)
class _Change:
    """One change of names that may still be lost."""

    waits_for: set[Path]
    undo: Callable[[], None]
    created: UnsyncedFile | None = None
    grave: Path | None = None


class DirectoryEntries:
    """The changes of names since they were last synced; `move` tells the disk a file's new path, or None when
    it cannot come back any more."""

    def __init__(self, root: Path, move: Move) -> None:
        self._root = root
        self._move = move
        self._changes: list[_Change] = []
        self._graveyard: Path | None = None
        self._buried = 0

    def __len__(self) -> int:
        return len(self._changes)

    def created_file(self, path: Path, file: UnsyncedFile) -> None:
        change = _Change({path.parent}, lambda: path.unlink(missing_ok=True), created=file)
        self._changes.append(change)

    def created_directory(self, path: Path) -> None:
        self._changes.append(_Change({path.parent}, lambda: shutil.rmtree(path, ignore_errors=True)))

    def before_rename(self, source: Path, target: Path) -> None:
        """Note a rename that is about to happen, and keep what it replaces."""
        grave = self._new_grave() if target.exists() else None
        if grave is not None:
            os.link(target, grave)
            self._move(target, grave)

        def undo() -> None:
            os.rename(target, source)
            self._move(target, source)
            if grave is not None:
                self._dig_up(grave, target)

        self._changes.append(_Change({source.parent, target.parent}, undo, grave=grave))

    def bury(self, path: Path) -> None:
        """Remove a file or a whole directory, so that it can come back."""
        grave = self._new_grave()
        os.rename(path, grave)
        self._move(path, grave)
        change = _Change({path.parent}, lambda: self._dig_up(grave, path), grave=grave)
        self._changes.append(change)

    def synced_directory(self, path: Path) -> None:
        for change in self._changes:
            change.waits_for.discard(path)
        self._forget_durable()

    def synced_file(self, file: UnsyncedFile) -> None:
        for change in self._changes:
            if change.created is file:
                change.waits_for.clear()
        self._forget_durable()

    def lose(self, kept: int) -> None:
        """Undo all changes but the oldest `kept`, newest first."""
        while len(self._changes) > kept:
            self._changes.pop().undo()
        self.clear()

    def clear(self) -> None:
        """What happened has happened: nothing can be undone any more."""
        self._changes.clear()
        if self._graveyard is not None:
            shutil.rmtree(self._graveyard)
            self._graveyard = None

    def _forget_durable(self) -> None:
        for change in self._changes:
            if not change.waits_for and change.grave is not None:
                _erase(change.grave)
                self._move(change.grave, None)
        self._changes = [change for change in self._changes if change.waits_for]

    def _dig_up(self, grave: Path, path: Path) -> None:
        os.rename(grave, path)
        self._move(grave, path)

    def _new_grave(self) -> Path:
        if self._graveyard is None:
            self._graveyard = Path(
                tempfile.mkdtemp(prefix=f".{self._root.name}-removed-", dir=self._root.parent)
            )
        self._buried += 1
        return self._graveyard / str(self._buried)


def _erase(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
