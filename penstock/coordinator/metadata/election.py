"""Leader election on top of the metadata port, the same for every backend.

    <path>/term      the number of the last leadership, as text; every leadership counts it up by one
    <path>/leader    ephemeral: {"identity":"host:port","term":7}; whoever made it leads

Rules. Taking the lead is one transaction (count the term up by compare-and-set, make the leader's entry), so two
candidates never get the same term and a term never goes back. `is_leader` is true only while the entry is ours
*and* our session certainly lives (`MetadataStore.surely_until_ms`): a leader that was paused, or that hears nothing
from the servers, stops believing in itself before anyone else can be elected. A leadership that only became
uncertain goes on under the same term when the session turns out to live; after a lost session it is a new one.

One task per started election, in the store's event loop. It never decides who would be the better leader: the
first to claim leads until it stops, dies or is cut off.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock.coordinator.metadata.listeners import Listeners
from penstock.coordinator.metadata.port import Check, Create, Delete, MetadataStore, SessionState, Set, Watch
from penstock.errors import (
    EntryExistsError,
    MetadataError,
    MetadataUnknownError,
    NoEntryError,
    VersionConflictError,
)

ElectionListener = Callable[["Election"], None]
# How soon it looks again after the store failed, and at a leadership that became uncertain.
RETRY_MS = 200

_log = logging.getLogger(__name__)


class _Leader(NamedTuple):
    """What the leader's entry says."""

    identity: str
    term: int


class _Standing(NamedTuple):
    """What listeners are told about when it changes."""

    is_leader: bool
    leader: str | None
    term: int


class Election:
    """One candidate. Made by `MetadataStore.election`."""

    def __init__(self, store: MetadataStore, path: str, identity: str) -> None:
        self._store = store
        self._identity = identity
        self._term_path = f"{path}/term"
        self._leader_path = f"{path}/leader"
        # The leader's entry as last read; None when there was none or when our session was lost.
        self._seen: _Leader | None = None
        # The term of our last claim: what tells our own entry from one of an earlier session of ours.
        self._claimed_term = 0
        self._highest_term = 0
        self._announced = _Standing(False, None, 0)
        self._listeners: Listeners[Election] = Listeners()
        self._watches: list[Watch] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads, and surely does so now."""
        return self._holds() and self._store.clock_ms < self._store.surely_until_ms

    @property
    def term(self) -> int:
        """The highest term known: our own while we lead, else that of the last leader seen. 0 before any."""
        return self._highest_term

    @property
    def leader(self) -> str | None:
        """Identity of the leader as last heard of, or None if there is none or nobody can tell."""
        return None if self._seen is None else self._seen.identity

    def on_change(self, listener: ElectionListener) -> Watch:
        """Call `listener(self)` when `is_leader`, `leader` or `term` has changed."""
        return self._listeners.add(listener)

    async def start(self) -> None:
        """Stand as a candidate. Returns at once; `on_change` tells the outcome."""
        if self._task is not None:
            return
        self._watches = [
            self._store.watch(self._leader_path, lambda _path: self._wake.set()),
            self._store.on_state(self._handle_state),
        ]
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"election {self._leader_path}")
        self._wake.set()

    async def stop(self) -> None:
        """Stand no more. A leader takes its entry away, so that the next one need not wait for a timeout."""
        task, self._task = self._task, None
        if task is None:
            return
        for watch in self._watches:
            watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._seen = None
        self._announce()
        # Nobody waits for servers that are away: then the entry goes with the session. Until it does, the claim is
        # kept in mind, so that we recognise it if we stand again.
        if self._claimed_term and self._store.state is SessionState.CONNECTED:
            await self._resign()

    def _holds(self) -> bool:
        return self._task is not None and self._seen == _Leader(self._identity, self._claimed_term)

    def _handle_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            # Whatever entry of ours may still be seen belongs to a session that is over.
            self._seen = None
            self._claimed_term = 0
        self._announce()
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._store.state is not SessionState.CONNECTED:
                continue  # The change of state wakes it again.
            try:
                await self._look()
            except MetadataError as error:
                _log.warning("election at %s: %s; trying again", self._leader_path, error)
                await asyncio.sleep(RETRY_MS / 1000)
                self._wake.set()

    async def _look(self) -> None:
        self._see(await self._read_leader())
        if self._seen is None:
            await self._claim()
            self._see(await self._read_leader())

    async def _read_leader(self) -> _Leader | None:
        entry = await self._store.get(self._leader_path)
        return None if entry is None else _parse(entry.value)

    def _see(self, leader: _Leader | None) -> None:
        self._seen = leader
        if leader is not None:
            self._highest_term = max(self._highest_term, leader.term)
        self._announce()

    async def _claim(self) -> None:
        """One try. Losing it is no error: the entry that is read next says who won."""
        entry = await self._store.get(self._term_path)
        try:
            if entry is None:
                entry = await self._store.create(self._term_path, b"0")
            # The higher of the two: servers that lost their data must not make terms go back.
            term = max(_number(entry.value), self._highest_term) + 1
            self._claimed_term = term
            leader = json.dumps({"identity": self._identity, "term": term}, separators=(",", ":"))
            await self._store.transact(
                [
                    Set(self._term_path, str(term).encode(), entry.version),
                    Create(self._leader_path, leader.encode(), ephemeral=True),
                ]
            )
        except (EntryExistsError, NoEntryError, VersionConflictError):
            return
        except MetadataUnknownError:
            return  # Ours or not, reading tells; `_claimed_term` lets us recognise it.

    async def _resign(self) -> None:
        try:
            term = await self._store.get(self._term_path)
            if term is None or await self._read_leader() != _Leader(self._identity, self._claimed_term):
                return
            # The check makes sure that the entry is still the one of our term when it goes.
            await self._store.transact([Check(self._term_path, term.version), Delete(self._leader_path)])
        except MetadataError as error:
            _log.warning("cannot resign at %s: %s; the entry goes with the session", self._leader_path, error)

    def _announce(self) -> None:
        standing = _Standing(self.is_leader, self.leader, self._highest_term)
        if standing != self._announced:
            self._announced = standing
            self._listeners.call(self)
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        """While we hold the entry, come back when certainty ends, or soon if it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._holds():
            return
        wait_ms = self._store.surely_until_ms - self._store.clock_ms
        if wait_ms < 1 << 40:  # Else it never ends.
            delay_ms = wait_ms if wait_ms > 0 else RETRY_MS
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._announce)


def _parse(value: bytes) -> _Leader:
    try:
        said = json.loads(value)
        return _Leader(str(said["identity"]), int(said["term"]))
    except (ValueError, KeyError, TypeError):
        raise MetadataError(
            f"the leader's entry is none of ours: {value[:100]!r}", "delete it; it is made again"
        ) from None


def _number(value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise MetadataError(
            f"the term is not a number: {value[:100]!r}", "set it to the last one known"
        ) from None
