"""What happens to a core of replication, and what it wants done: its events and its instructions.

`core.handle(event, now_ms)` returns instructions, to be carried out in their order by whoever owns the connection. A
core never waits, and knows neither sockets nor threads; the same cores run in servers and in simulations.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.replication.options import ReplicationOptions

# -- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is there (replica's side)."""


@dataclass(frozen=True, slots=True)
class Received:
    """Bytes came, cut anywhere."""

    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Ready:
    """The connection takes so many more bytes, and there may be something to send (master's side)."""

    room: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """`stored_offset` of the log may have moved: a sync is over (replica's side)."""


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """Side tables have changed and are to be sent (master's side)."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class TablesDone:
    """What an `ApplyTables` asked for is done (replica's side)."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Follow:
    """The set has a newer epoch (replica's side)."""

    epoch: int


SenderEvent = Received | Ready | Tick | TablesChanged
ReceiverEvent = Connected | Received | Tick | Stored | TablesDone | Follow

# -- instructions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Write these parts, one behind the other."""

    parts: tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection. `retry_ms`: wait so long before the next one, if the ordinary time is not right."""

    reason: str
    retry_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """A replica has said who it is (master's side)."""

    replica_id: int
    is_learner: bool
    has_tables: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """The replica has the log up to here (master's side)."""

    offset: int


@dataclass(frozen=True, slots=True)
class TablesAcked:
    """The replica has applied side tables up to here (master's side)."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """The replica follows a newer epoch: this node is no master any more (master's side)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ApplyTables:
    """Side tables came; say `TablesDone` when they are applied (replica's side)."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Following:
    """The handshake is done: the log is a prefix of the master's of this epoch (replica's side)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that only a person can mend; said once for a connection."""

    text: str


SenderInstruction = Send | Close | Joined | Acked | TablesAcked | Superseded | Trouble
ReceiverInstruction = Send | Close | ApplyTables | Following


def has_slept(ticked_ms: int, now_ms: int, options: ReplicationOptions) -> bool:
    """Whether this process stood still since its last tick: what the peer said meanwhile was not read yet, so its
    silence proves nothing."""
    return now_ms - ticked_ms > options.housekeeping_interval_ms // 2
