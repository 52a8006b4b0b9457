"""Keeps one table of a broker on disk: a JSON file that RocketMQ reads, and the journal of what changed since.

    change      in memory, then in the journal (`table_journal.py`), in one step of the event loop
    answer      after `save`: the journal is on disk. It costs what the change costs, however large the table is
    JSON file   when the table has changed: soon, then at most once in `interval_ms`, and at a clean stop

Writing the file does not hold up the loop: the task takes a few rows at a time from the table, a thread makes text
of them, and between two lots the task pauses. Rows taken early may have changed when the file is complete; the
journal has those changes. Before the file replaces the one before, the journal knows its fingerprint:

    1. write and sync .tmp     2. fingerprint into the journal, sync     3. main -> .bak, .tmp -> main
    4. delete journal files that no JSON file needs any more

A table whose changes the message log has (publications) does without the journal. Where the journal cannot be
written, `save` waits for the JSON file instead, as 0.1 always did. A failing write is logged and tried again; it
never ends the task or the broker. Owned by the event loop. What the table holds is its owner's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.table_journal import TableJournal
from penstock.errors import PenstockError, StoreError
from penstock.metadata.config_files import ConfigDraft
from penstock.metadata.fastjson import JsonValue
from penstock.metadata.table_json import Members, Piece, table_pieces
from penstock.metadata.table_log import JournaledTable, load_table
from penstock.runtime import Clock

_LOG = logging.getLogger("penstock.broker")
RETRY_MS = 1_000
# A table that changes all the time costs this part of one processor at most.
PAUSE_FACTOR = 20
PAUSE_MAX_MS = 600_000
# Between two pieces the task waits so many times as long as a piece took: others need the interpreter, too.
PIECE_PAUSE_FACTOR = 3
PIECE_PAUSE_MAX_S = 0.05
T = TypeVar("T", bound=JournaledTable)


class StoredTable:
    """See the module's text. `load` first; `start` and `stop` run the writing of the file."""

    def __init__(
        self,
        journal: TableJournal,
        name: str,
        members: Callable[[], Members],
        clock: Clock,
        *,
        interval_ms: int = 0,
        is_journaled: bool = True,
    ) -> None:
        self.file = journal.file(name)
        self._journal = journal
        self._name = name
        self._members = members
        self._clock = clock
        self._interval_ms = interval_ms
        self._is_journaled = is_journaled
        self._changes = self._saved = 0
        # The last change that the journal may not have.
        self._lost = 0
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._wake: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        # What the last write of the file failed with, empty if it did not.
        self.failure = ""
        journal.on_loss.append(self._lost_journal)

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self, kind: type[T]) -> T | None:
        """The table as it was; None if there never was one.

        Raises CodecError if there is a file and none is readable.
        """
        found = load_table(self.file, kind, self._journal.read(), _LOG.warning)
        if self._is_journaled:
            try:
                self._journal.loaded(self._name, found.fingerprint, is_foreign=found.is_foreign)
            except StoreError:
                self._lost_journal()
        if found.is_behind:
            self._changes += 1
        return found.value

    # -- changes ---------------------------------------------------------------------------------------------

    @property
    def is_clean(self) -> bool:
        """Whether the JSON file has what the table holds."""
        return self._saved == self._changes

    @property
    def is_kept(self) -> bool:
        """Whether all changes would survive the end of this process."""
        return self._lost <= self._saved

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def changed(self, *changes: JsonValue) -> None:
        """The table was changed, and this is what the journal has to know; nothing for a table without one."""
        self._changes += 1
        if changes:
            try:
                self._journal.append(self._name, list(changes))
            except StoreError:
                self._lost = self._changes
        if self._wake is not None:
            self._wake.set()

    def _lost_journal(self) -> None:
        if not self.is_clean:
            self._lost = self._changes

    async def save(self) -> bool:
        """Wait until all changes so far would survive a power loss; False if that failed, and is tried again
        later."""
        goal = self._changes
        if self._is_journaled and self.is_kept and await self._journal.synced():
            return True
        if self._saved >= goal:
            return True
        return await self.save_file()

    def once_saved(self, action: Callable[[], None]) -> None:
        """Do something when all changes so far would survive a power loss, or cannot be saved now."""
        if self.is_kept:
            self._journal.once_synced(lambda _is_synced: action())
            return
        written = asyncio.get_running_loop().create_task(self.save_file(), name=f"save {self._name}")
        written.add_done_callback(lambda _task: action())

    # -- the JSON file ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write the file; what changed before is written at once."""
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._stopping = False
        if not self.is_clean:
            self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"save {self._name}")

    async def stop(self) -> None:
        """Write what is left and end."""
        task, self._task = self._task, None
        if task is not None and self._wake is not None and self._hurry is not None:
            self._stopping = True
            self._wake.set()
            self._hurry.set()
            await task
        await self._write()
        self._wake = self._hurry = None

    async def save_file(self) -> bool:
        """Wait until the JSON file has the table as it is now; False if that failed, and is tried again later."""
        if self.is_clean:
            return True
        if self._task is None or self._wake is None or self._hurry is None:
            return await self._write()
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._changes, waiter))
        self._wake.set()
        self._hurry.set()
        return await waiter

    async def _run(self) -> None:
        if self._wake is None or self._hurry is None:
            return
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            if self.is_clean:
                continue
            started_ms = self._clock.monotonic_ms()
            if await self._write():
                took_ms = self._clock.monotonic_ms() - started_ms
                rest_ms = (
                    0
                    if self._journal.is_long
                    else min(took_ms * PAUSE_FACTOR // (1 + PIECE_PAUSE_FACTOR), PAUSE_MAX_MS)
                )
                pause_ms = max(self._interval_ms, rest_ms)
            else:
                pause_ms = max(self._interval_ms, RETRY_MS)
                self._wake.set()
            await self._pause(self._hurry, pause_ms)

    async def _pause(self, hurry: asyncio.Event, pause_ms: int) -> None:
        if not self._waiters:
            hurry.clear()
        if self._stopping:
            return
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await hurry.wait()
        except TimeoutError:
            pass

    async def _write(self) -> bool:
        if self.is_clean:
            return True
        goal = self._changes
        try:
            await self._replace()
        except PenstockError as error:
            self._failed(str(error))
        except Exception as error:
            _LOG.exception("saving %s failed", self._name)
            self._failed(repr(error))
        else:
            self.failure = ""
            self._saved = goal
        is_saved = not self.failure
        waiters, self._waiters = self._waiters, []
        for wanted, waiter in waiters:
            if wanted > goal:
                self._waiters.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(is_saved)
        return is_saved

    async def _replace(self) -> None:
        number, before = self._journal.begin_save(), self._changes
        draft = await asyncio.to_thread(self.file.begin)
        try:
            for piece in table_pieces(self._members()):
                started_ns = self._clock.monotonic_ns()
                await asyncio.to_thread(_add, draft, piece)
                if not self._stopping and not self._waiters:
                    took_s = (self._clock.monotonic_ns() - started_ns) / 1e9
                    await asyncio.sleep(min(took_s * PIECE_PAUSE_FACTOR, PIECE_PAUSE_MAX_S))
            fingerprint = await asyncio.to_thread(draft.seal)
        except BaseException:
            draft.drop()
            raise
        if self._is_journaled:
            is_complete = self._changes == before
            if not await self._journal.replacing(self._name, fingerprint, is_complete=is_complete):
                self._lost = self._changes
        await asyncio.to_thread(self.file.replace)
        if self._is_journaled:
            self._journal.end_save(self._name, number)

    def _failed(self, reason: str) -> None:
        if reason != self.failure:  # once for each trouble, not once a second
            _LOG.error("%s; tried again until it works", reason)
        self.failure = reason


def _add(draft: ConfigDraft, piece: Piece) -> None:
    draft.add(piece())
