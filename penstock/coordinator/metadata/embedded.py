"""The metadata store of a single node: a tree in memory, every change of which is in SQLite before it is seen.

    metadata.db         table entries(path, value, version); WAL, synchronous FULL: a commit is on the disk
    metadata.db.lock    held while a process owns the file; a killed process lets go of it

Rules. One process owns the file; a second one is refused. A change is planned on the tree, committed by one thread,
then applied and told, one change after the other: what a reader sees is on the disk. Ephemeral entries live in
memory only, since their session is this process. A commit that fails for lack of space changed nothing, and the next
one may succeed; any other failure leaves it open what is on the disk, so the store stops and a restart finds out
(as for a failed fsync, F8).

Reads are answered by the event loop. SQLite does its own reading and writing of files: of the runtime's disk only
the lock, the directory and its sync are used.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.coordinator.metadata.listeners import Listeners
from penstock.coordinator.metadata.paths import check_path
from penstock.coordinator.metadata.port import (
    FOR_EVER_MS,
    Create,
    Delete,
    Entry,
    MetadataStore,
    Operation,
    PathListener,
    SessionState,
    Set,
    StateListener,
    Watch,
)
from penstock.coordinator.metadata.tree import Node, Plan, Tree
from penstock.coordinator.metadata.watchers import PathWatchers
from penstock.errors import (
    MetadataClosedError,
    MetadataError,
    MetadataFormatError,
    MetadataLockedError,
    MetadataUnavailableError,
    MetadataUnknownError,
)
from penstock.runtime import FileLock, Runtime

Result = TypeVar("Result")

# "PNSK": tells our file from any other SQLite file.
APPLICATION_ID = 0x504E534B
FORMAT_VERSION = 1

_OWNER = 1
_SCHEMA = """
CREATE TABLE entries (
    path    TEXT    NOT NULL PRIMARY KEY,
    value   BLOB    NOT NULL,
    version INTEGER NOT NULL
) WITHOUT ROWID
"""
_log = logging.getLogger(__name__)


class EmbeddedMetadata(MetadataStore):
    """A `MetadataStore` in one file."""

    def __init__(self, path: Path | str, runtime: Runtime | None = None) -> None:
        self._path = Path(path)
        self._runtime = Runtime.system() if runtime is None else runtime
        self._tree = Tree()
        self._watchers = PathWatchers()
        self._state_listeners: Listeners[SessionState] = Listeners()
        self._state = SessionState.LOST
        self._lock: FileLock | None = None
        self._database: sqlite3.Connection | None = None
        # The one thread that touches the database.
        self._writer: ThreadPoolExecutor | None = None
        # One change at a time, in the order of asking.
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Plan]] = set()
        self._failure: str = ""

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._runtime.disk.make_dirs(self._path.parent)
        try:
            self._lock = self._runtime.disk.lock(self._path.with_name(self._path.name + ".lock"), b"")
        except (BlockingIOError, PermissionError) as error:
            raise MetadataLockedError(
                f"{self._path} belongs to another process",
                "stop it first; several coordinators share ZooKeeper, not a file",
            ) from error
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="penstock-metadata")
        try:
            rows = await self._in_writer(self._open)
            self._tree.load(rows)
        except BaseException as error:
            await self._close()
            if isinstance(error, sqlite3.Error):
                raise self._open_error(error) from error
            if isinstance(error, MetadataError) and not isinstance(error, MetadataFormatError):
                raise MetadataFormatError(
                    f"{self._path} is damaged: {error.message}",
                    "restore a copy, or move it away to start empty",
                ) from error
            raise
        _log.info("metadata: %d entries in %s", len(self._tree), self._path)
        self._become(SessionState.CONNECTED)

    async def stop(self) -> None:
        # Whoever has its turn finishes; whoever waits for it is refused.
        self._become(SessionState.LOST)
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            database, self._database = self._database, None
            if database is not None:
                await asyncio.get_running_loop().run_in_executor(writer, database.close)
            writer.shutdown()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    # -- reading ---------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Entry | None:
        self._check_open()
        return self._tree.get(path)

    async def children(self, path: str) -> tuple[str, ...]:
        self._check_open()
        return self._tree.children(path)

    # -- changing --------------------------------------------------------------------------------------------

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Entry:
        await self.transact([Create(path, value, ephemeral)])
        return Entry(path, value, 0, ephemeral)

    async def set(self, path: str, value: bytes, version: int | None = None) -> Entry:
        plan = await self._change([Set(path, value, version)])
        node = plan.nodes[path]
        assert node is not None  # It was just set.
        return Entry(path, value, node.version, node.owner is not None)

    async def delete(self, path: str, version: int | None = None) -> None:
        await self.transact([Delete(path, version)])

    async def transact(self, operations: Sequence[Operation]) -> None:
        await self._change(operations)

    async def _change(self, operations: Sequence[Operation]) -> Plan:
        # Shielded: a caller that is cancelled must not leave the file and the tree apart.
        task = asyncio.get_running_loop().create_task(self._change_in_turn(tuple(operations)))
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Plan]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it, or was cancelled and asks no more

    async def _change_in_turn(self, operations: Sequence[Operation]) -> Plan:
        async with self._turn:
            self._check_open()
            plan = self._tree.plan(operations, _OWNER)
            changed, gone = self._rows_of(plan)
            if changed or gone:
                await self._commit(changed, gone)
            self._tree.apply(plan)
        for path in plan.told:
            self._watchers.tell(path)
        return plan

    def _rows_of(self, plan: Plan) -> tuple[list[tuple[str, bytes, int]], list[tuple[str]]]:
        """What SQLite must be told: not the ephemeral ones, and not those that only got or lost a child."""
        changed: list[tuple[str, bytes, int]] = []
        gone: list[tuple[str]] = []
        for path, node in plan.nodes.items():
            before = self._tree.node(path)
            if _row(before) == _row(node):
                continue
            if node is None or node.owner is not None:
                gone.append((path,))
            else:
                changed.append((path, node.value, node.version))
        return changed, gone

    async def _commit(self, changed: list[tuple[str, bytes, int]], gone: list[tuple[str]]) -> None:
        try:
            await self._in_writer(self._write, changed, gone)
        except sqlite3.Error as error:
            if _changed_nothing(error):
                raise MetadataUnavailableError(
                    f"{self._path} cannot be written: {error}",
                    "free some space, end whoever else has the file open; nothing was changed",
                ) from error
            self._failure = str(error)
            _log.error("metadata: writing to %s failed: %s; nothing is accepted any more", self._path, error)
            self._become(SessionState.LOST)
            raise MetadataUnknownError(
                f"writing to {self._path} failed: {error}",
                "check the disk and restart: the file is read anew",
            ) from error

    # -- in the writer's thread ------------------------------------------------------------------------------

    def _open(self) -> list[tuple[str, bytes, int]]:
        is_new = not self._runtime.disk.exists(self._path)
        # Used in the writer's thread only; closed there too.
        database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._database = database
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        is_empty = database.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if is_empty and _pragma(database, "application_id") == 0:
            # Also a file whose making was cut short before its first commit.
            database.execute("BEGIN IMMEDIATE")
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            database.execute("COMMIT")
        self._check_format(database)
        if is_new:
            self._runtime.disk.sync_dir(self._path.parent)
        return [
            (str(row[0]), bytes(row[1]), int(row[2])) for row in database.execute("SELECT * FROM entries")
        ]

    def _check_format(self, database: sqlite3.Connection) -> None:
        if _pragma(database, "application_id") != APPLICATION_ID:
            raise MetadataFormatError(f"{self._path} is no metadata file", "name another path")
        version = _pragma(database, "user_version")
        if version != FORMAT_VERSION:
            raise MetadataFormatError(
                f"{self._path} has format {version}, this Penstock reads {FORMAT_VERSION}",
                "use the Penstock that wrote it, or move it away to start empty",
            )
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise MetadataFormatError(
                f"{self._path} is damaged: {problem}", "restore a copy, or move it away to start empty"
            )

    def _write(self, changed: list[tuple[str, bytes, int]], gone: list[tuple[str]]) -> None:
        database = self._database
        assert database is not None  # Whoever writes has checked that the store is open.
        database.execute("BEGIN IMMEDIATE")
        try:
            database.executemany("DELETE FROM entries WHERE path = ?", gone)
            database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", changed)
            database.execute("COMMIT")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    async def _in_writer(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *arguments)

    # -- watching --------------------------------------------------------------------------------------------

    def watch(self, path: str, listener: PathListener) -> Watch:
        return self._watchers.add(check_path(path), listener)

    def on_state(self, listener: StateListener) -> Watch:
        return self._state_listeners.add(listener)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def surely_until_ms(self) -> int:
        """For ever while the file is ours: nobody can take it from a process that lives."""
        return FOR_EVER_MS if self._state is SessionState.CONNECTED else 0

    @property
    def clock_ms(self) -> int:
        return self._runtime.clock.monotonic_ms()

    @property
    def address(self) -> str:
        return f"sqlite:{self._path}"

    def _become(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._state_listeners.call(state)

    def _check_open(self) -> None:
        if self._state is SessionState.CONNECTED:
            return
        if self._failure:
            raise MetadataUnavailableError(
                f"{self._path} failed: {self._failure}", "check the disk and restart: the file is read anew"
            )
        raise MetadataClosedError(
            f"{self.address} is not open", "start it first, and use it before it is stopped"
        )

    def _open_error(self, error: sqlite3.Error) -> MetadataError:
        if isinstance(error, sqlite3.OperationalError):
            return MetadataUnavailableError(
                f"{self._path} cannot be opened: {error}", "check the directory, its rights and its space"
            )
        return MetadataFormatError(
            f"{self._path} is no metadata file, or damaged: {error}",
            "restore a copy, or move it away to start empty",
        )


def _row(node: Node | None) -> tuple[bytes, int] | None:
    return None if node is None or node.owner is not None else (node.value, node.version)


def _changed_nothing(error: sqlite3.Error) -> bool:
    """A full disk rolls back, a file that a curious operator has open cannot be begun on: both are clean."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])
