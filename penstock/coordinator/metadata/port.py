"""The metadata port: a small tree of versioned entries that outlives every process, with three backends behind it.

    /brokers/main/broker-a      an entry: a value of bytes, and a version that counts its changes
    /live/broker-a-0            an ephemeral entry: it goes when the session of whoever made it ends

Rules, the same for memory, SQLite and ZooKeeper (tests/unit/coordinator/metadata/test_contract.py holds all three
to them):

- A path is absolute and below the backend's own root. A version is 0 after `create` and one more after each `set`;
  an entry that was deleted and made again starts at 0 again.
- A change is made wholly or not at all, and is durable when the call returns. An error with `outcome_unknown` is
  the one exception: read the entry before deciding again.
- Everything is called in the event loop that ran `start`, and every listener is called there.
- A watch says *that* something changed, never what: its owner reads, in the listener or later. Changes that come
  close together may be one call. A call without a change is possible.
- Nothing read here is a promise that outlives `surely_until_ms`: who acts as an owner or a leader asks it first.

It never retries a change on its own: whoever asked knows whether doing it twice does harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.coordinator.metadata.election import Election

# ZooKeeper refuses frames over 1 MiB. The same limit everywhere: what one node has learned can move to a cluster.
VALUE_BYTES_MAX = 1_000_000
# `surely_until_ms` of a store that cannot lose its session.
FOR_EVER_MS = 1 << 62

PathListener = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it was read."""

    path: str
    value: bytes
    version: int
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Part of a transaction: the entry is not there, and is made."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Part of a transaction: the entry is there (at this version, if one is given) and gets a new value."""

    path: str
    value: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Part of a transaction: the entry is there (at this version, if one is given), has no children, and goes."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Part of a transaction: the entry is there (at this version, if one is given). Nothing changes."""

    path: str
    version: int | None = None


Operation = Create | Set | Delete | Check


class SessionState(Enum):
    """What an owner of ephemeral entries may still believe.

    SUSPENDED: the servers are out of reach; the entries may live or not, so act safely. It ends in CONNECTED (the
    session went on) or in LOST and then CONNECTED (it expired).
    LOST: the session expired, or the store was stopped: the ephemeral entries are gone. Their owner makes them
    again when CONNECTED comes; nothing makes them on its own.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


StateListener = Callable[[SessionState], None]


class Watch(Protocol):
    """A listener that is being called."""

    def cancel(self) -> None:
        """Not called any more, from this moment on. May be called twice."""


class MetadataStore(ABC):
    """The port. A backend is made with its options, then started, used and stopped, once."""

    @abstractmethod
    async def start(self) -> None:
        """Connect or open. MetadataUnavailableError names the address that cannot be reached, MetadataLockedError the
        file that another process owns, MetadataFormatError one that is none of ours."""

    @abstractmethod
    async def stop(self) -> None:
        """End the session: its ephemeral entries are gone when this returns (as far as the servers could be reached).
        May be called twice, and after a start that failed. Elections are stopped by their owner before this."""

    @abstractmethod
    async def get(self, path: str) -> Entry | None:
        """The entry, or None if it is not there."""

    @abstractmethod
    async def children(self, path: str) -> tuple[str, ...]:
        """Names (not paths) of the entries right below, sorted; empty when there is nothing. "/" lists the top."""

    @abstractmethod
    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Entry:
        """Make it, and its missing parents as plain entries without a value. EntryExistsError if it is there;
        MetadataError if a parent is ephemeral, which may have no children."""

    @abstractmethod
    async def set(self, path: str, value: bytes, version: int | None = None) -> Entry:
        """Replace the value; with a version only if that is still the current one. NoEntryError,
        VersionConflictError."""

    @abstractmethod
    async def delete(self, path: str, version: int | None = None) -> None:
        """NoEntryError, VersionConflictError, NotEmptyError if there are entries below."""

    @abstractmethod
    async def transact(self, operations: Sequence[Operation]) -> None:
        """All of them in their order, or none. The error is that of the first one that failed, with its path.

        Parents that a `Create` lacks, and that the same transaction does not make, are made beforehand and stay
        whatever becomes of it.
        """

    @abstractmethod
    def watch(self, path: str, listener: PathListener) -> Watch:
        """Call `listener(path)` after changes: the entry made, changed or deleted, or an entry right below it made or
        deleted. It is called once at first, when the watch is in force, and once after each new session: an owner
        that reads only in its listener misses nothing. The entry need not be there."""

    @abstractmethod
    def on_state(self, listener: StateListener) -> Watch:
        """Call `listener(state)` at every change of the session's state. The first state is read from `state`."""

    @property
    @abstractmethod
    def state(self) -> SessionState:
        """The session's state; LOST before `start` and after `stop`."""

    @property
    @abstractmethod
    def surely_until_ms(self) -> int:
        """Monotonic time until which this session certainly lives, and with it our ephemeral entries. Counted from
        the sending of the last change that was answered, less a margin: it may lie in the past."""

    @property
    @abstractmethod
    def clock_ms(self) -> int:
        """Now, on the clock of `surely_until_ms`."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the entries are, for messages and logs: `sqlite:PATH`, `zookeeper:HOSTS`, `memory:`."""

    def election(self, path: str, identity: str) -> Election:
        """A candidate, not started yet, for the leadership that is kept at `path`. `identity` is what others see in
        `leader`; no two candidates have the same."""
        from penstock.coordinator.metadata.election import Election

        return Election(self, path, identity)
