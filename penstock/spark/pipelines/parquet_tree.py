"""A directory of Parquet files that changes by whole commits, for readers that know nothing of it as well.

The steps of a commit, under the tree's lock:

    1. the new files lie in a staging folder, whose name readers pass over, complete and synced
    2. an intent is written and synced: it names every move. From here on the commit will happen
    3. the files are renamed into place, and the folders synced
    4. the intent is renamed to an entry of the manifest

A crash before 2 leaves staged files that nobody sees and the next start sweeps away; a crash after 2 is finished by
whoever takes the lock next. So what a commit holds is decided once, at 2, and no repetition can change it.

A folder is replaced as a whole: its successor is prepared beside it and the two names are exchanged in one step of
the file system; where there is no such step (NFS), the old one is renamed away and the new one into place, and for
that moment the folder is not there. Either way nobody can list old and new files together. The old folder is parked
for a while, so that a reader in the middle of its listing sees it to the end.

Below the root nothing ends in `.parquet` but what belongs to the tree, for the sake of readers that take whatever a
pattern matches. Folders that wait for a swap, and those that were swapped out, lie beside the root (`@beside/` in a
manifest): in a hidden folder next to it, or below the root where that cannot be made.

Runs on the driver, and in the process in which Spark commits a batch; the lock keeps them apart.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import OptionError, StoreError, StoreFormatError, StoreLockedError
from penstock.runtime import FileLock, Runtime
from penstock.runtime.disk import SwappingDisk
from penstock.spark.pipelines.manifest import Entry, Manifest, Move, TreeState

STAGING = "_staging"
BESIDE = "@beside"
PARKED = f"{BESIDE}/replaced"
_BESIDE_INSIDE = "_beside"
COMMIT_LOCK = "commit.lock"
LOCK_WAIT_MS = 60_000
LOCK_POLL_S = 0.02
# How long a replaced folder stays, for readers that began to list it.
PARKED_MS = 15 * 60_000
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EPERM)


class ParquetTree:
    """See the module's text. Readers call `load`; writers change the tree inside `changing`."""

    def __init__(self, root: str | Path, runtime: Runtime | None = None) -> None:
        self.root = Path(root)
        self.runtime = runtime or Runtime.system()
        self._disk = self.runtime.disk
        self.manifest = Manifest(self.root, self._disk)

    def load(self) -> TreeState:
        """The tree as it is now; needs no lock."""
        return self.manifest.load()

    # -- paths -----------------------------------------------------------------------------------------------

    def load_settled(self) -> TreeState:
        """What readers go by. While files are swapped for others the manifest has the old ones until all are: whoever
        does it is waited for, and what a crash left is finished here. Who may not write, or waits in vain, reads what
        there is."""
        with suppress(OSError, StoreError):
            entry = self.manifest.pending()
            if entry is not None and any(move.parked for move in entry.moves):
                with self.changing():
                    pass
        return self.load()

    def resolve(self, path: str) -> Path:
        """Where a path of the manifest is."""
        first, _, rest = path.partition("/")
        return self.beside() / rest if first == BESIDE else self.root / path

    def beside(self) -> Path:
        """The folder beside the root, there or not. Where it had to be inside it stays, and everybody finds it."""
        inside = self.root / _BESIDE_INSIDE
        return inside if self._disk.exists(inside) else self.root.parent / f".{self.root.name}.beside"

    def make_beside(self) -> None:
        """Have such a folder, on the file system of the root: names can only be swapped within one. One that is there
        may be on another since the root was moved: it is left as it is, and not used any more."""
        folder = self.beside()
        is_new = not self._disk.exists(folder)
        try:
            self._disk.make_dirs(folder)
            if os.stat(folder).st_dev == os.stat(self.root).st_dev:
                return
            if is_new:
                self._disk.remove_tree(folder)
        except OSError:
            pass
        self._disk.make_dirs(self.root / _BESIDE_INSIDE)

    # -- locks -----------------------------------------------------------------------------------------------

    def own(self, name: str, doing: str) -> FileLock:
        """Be the only one of a kind on this tree, until released. `doing` is what the other one is told to do."""
        self._disk.make_dirs(self.manifest.folder)
        try:
            return self._lock(name)
        except (BlockingIOError, PermissionError) as error:
            raise StoreLockedError(
                f"another process is {doing} {self.root}{self._holder(name)}",
                "wait for it or stop it; one directory has one of them at a time",
            ) from error

    def _lock(self, name: str) -> FileLock:
        return self._disk.lock(self.manifest.folder / name, b"%-10d\n" % os.getpid())

    def _holder(self, name: str) -> str:
        pid = self._disk.read(self.manifest.folder / name).split()[:1]
        return f" (process {pid[0].decode('ascii', 'replace')[:10]})" if pid else ""

    @contextmanager
    def changing(self) -> Iterator[TreeChange]:
        """Hold the tree's lock, with whatever a crash left unfinished finished."""
        lock = self._wait_for_lock()
        try:
            change = TreeChange(self)
            change.finish_pending()
            yield change
        finally:
            lock.release()

    def _wait_for_lock(self) -> FileLock:
        """Commits are short: who holds it will be done soon, or is dead, which releases it."""
        self._disk.make_dirs(self.manifest.folder)
        clock = self.runtime.clock
        deadline = clock.monotonic_ms() + LOCK_WAIT_MS
        while True:
            try:
                return self._lock(COMMIT_LOCK)
            except (BlockingIOError, PermissionError) as error:
                if clock.monotonic_ms() >= deadline:
                    raise StoreLockedError(
                        f"{self.root} is held by another commit{self._holder(COMMIT_LOCK)}",
                        "see what that process is waiting for",
                    ) from error
            clock.sleep(LOCK_POLL_S)


class TreeChange:
    """The tree while its lock is held."""

    def __init__(self, tree: ParquetTree) -> None:
        self.tree = tree
        self._root = tree.root
        self._disk = tree.runtime.disk
        self._clock = tree.runtime.clock
        self._manifest = tree.manifest
        self.state = tree.load()

    def _at(self, path: str) -> Path:
        return self.tree.resolve(path)

    def finish_pending(self) -> None:
        """Do what a commit had promised before it was cut short."""
        entry = self._manifest.pending()
        if entry is not None:
            self._carry_out(entry)

    def commit(self, entry: Entry) -> Entry:
        """Make it happen; everything staged is complete and synced. Raises before anything is changed, or not at all
        except for a disk that fails, after which the next `changing` finishes."""
        missing = [move.staged for move in entry.moves if not self._disk.exists(self._at(move.staged))]
        if missing:
            raise StoreFormatError(
                f"{missing[0]} of a commit is not in {self._root}",
                "driver and executors must share the directory; if they do, another process has swept it",
            )
        self._require_names(entry)
        for folder in self._folders_up(self._at(move.staged) for move in entry.moves):
            self._disk.sync_dir(folder)
        announced = self._manifest.announce(entry, self.state, self._clock.now_ms())
        self._carry_out(announced)
        return announced

    def _require_names(self, entry: Entry) -> None:
        """A name that the file system does not take would stop this commit behind its intent, and all after it."""
        most = os.pathconf(self._root, "PC_NAME_MAX")
        for move in entry.moves:
            for name in move.place.split("/"):
                if len(os.fsencode(name)) > most:
                    raise OptionError(
                        f"{move.place} cannot be in {self._root}: a name there has {most} bytes at most",
                        "leave out what it is named after, or use another file system",
                    )

    def _carry_out(self, entry: Entry) -> None:
        touched: set[Path] = set()
        for move in entry.moves:
            touched |= self._replace(move) if move.parked else self._place(move)
        for folder in sorted(touched, reverse=True):
            self._disk.sync_dir(folder)
        self._manifest.settle(entry)
        self.state.apply(entry)
        self._manifest.tidy(self.state)

    # -- moves -----------------------------------------------------------------------------------------------

    def _place(self, move: Move) -> set[Path]:
        staged, place = self._at(move.staged), self._at(move.place)
        if self._disk.exists(staged):
            touched = self._make_parents(place)
            self._disk.rename(staged, place)
            return touched | {staged.parent, place.parent}
        if not self._disk.exists(place):
            raise _lost(self._root, move)
        return {place.parent}

    def _replace(self, move: Move) -> set[Path]:
        """Each step is taken only if it has not been: a crash may have come between any two."""
        disk = self._disk
        staged, place, parked = self._at(move.staged), self._at(move.place), self._at(move.parked)
        touched = self._make_parents(parked) | self._make_parents(place)
        if not disk.exists(place / move.holds):
            if not disk.exists(staged / move.holds):
                raise _lost(self._root, move)
            if not disk.exists(place):
                disk.rename(staged, place)
            elif not self._exchange(staged, place):
                disk.rename(place, parked)
                disk.rename(staged, place)
        if disk.exists(staged):
            disk.rename(staged, parked)
        return touched | {staged.parent, place.parent, parked.parent}

    def _exchange(self, staged: Path, place: Path) -> bool:
        if not isinstance(self._disk, SwappingDisk):
            return False
        try:
            self._disk.exchange(staged, place)
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            return False
        return True

    def _make_parents(self, path: Path) -> set[Path]:
        """Folders whose entries have to be synced because a folder was made in them."""
        folder, touched = path.parent, set[Path]()
        while not self._disk.exists(folder):
            touched.add(folder.parent)
            folder = folder.parent
        if touched:
            self._disk.make_dirs(path.parent)
        return touched

    # -- tidying ---------------------------------------------------------------------------------------------

    def park_name(self, place: str) -> str:
        """Where a replaced folder goes; the name says since when."""
        return f"{PARKED}/{self._clock.now_ms():013d}-{self.state.sequence + 1}/{place}"

    def sweep(self, folder: str, keep: Iterable[str] = ()) -> int:
        """Remove what lies in a staging folder, except for these names; how many there were."""
        kept, removed = frozenset(keep), 0
        for name in self._disk.list(self._at(folder)):
            if name not in kept:
                self._disk.remove_tree(self._at(folder) / name)
                removed += 1
        return removed

    def sweep_parked(self, older_than_ms: int = PARKED_MS) -> int:
        """Remove folders that were replaced long enough ago; how many."""
        removed, now = 0, self._clock.now_ms()
        for name in self._disk.list(self._at(PARKED)):
            since = name.partition("-")[0]
            if since.isdigit() and now - int(since) >= older_than_ms:
                self._disk.remove_tree(self._at(PARKED) / name)
                removed += 1
        return removed

    def _folders_up(self, paths: Iterable[Path]) -> list[Path]:
        """The folders of these paths, deepest first, up to the root or to the one that holds it."""
        folders: set[Path] = set()
        for path in paths:
            folder = path.parent
            while folder not in folders:
                folders.add(folder)
                if folder in (self._root, self._root.parent):
                    break
                folder = folder.parent
        return sorted(folders, key=lambda folder: len(folder.parts), reverse=True)


def _lost(root: Path, move: Move) -> StoreFormatError:
    return StoreFormatError(
        f"{move.place} of a commit that was under way is neither staged nor in place in {root}",
        "it was removed by hand: put it back as one of the two, or delete the .intent file and archive again",
    )
