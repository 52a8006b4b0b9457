"""What a broker set is asked (requests) and what it wants done (instructions). Plain values, no behaviour.

A request that is answered later carries a `token`, which comes back in its `Answer`; what a token is decides whoever
drives the set.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.set_record import SetRecord

# -- requests ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApplyId:
    """1013: a broker wants this id. The same check code may ask again."""

    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class Register:
    """1003: a broker says where it is. One of ours adds its `incarnation`, a number that it keeps beside its data
    and counts up at every start; a higher one than before says that the process before is gone."""

    broker_id: int
    address: str
    ha_address: str | None = None
    incarnation: int = 0
    # False after a crash that may have taken the end of the log: power loss without synchronous flush.
    is_log_intact: bool = True
    epoch: int = 0
    max_offset: int = 0
    connection: int = 0


@dataclass(frozen=True, slots=True)
class AlterSyncSet:
    """1001: a master proposes another sync-state set."""

    master_id: int
    master_epoch: int
    set_epoch: int
    members: frozenset[int]


@dataclass(frozen=True, slots=True)
class Elect:
    """1002: a broker without a master asks for one, or an administrator for a certain one (`is_designated`).
    None: the coordinator's own wish."""

    broker_id: int | None = None
    is_designated: bool = False


@dataclass(frozen=True, slots=True)
class Clean:
    """1011: forget these brokers; None is all of them."""

    broker_ids: frozenset[int] | None
    is_living_allowed: bool = False


Request = ApplyId | Register | AlterSyncSet | Elect | Clean


@dataclass(frozen=True, slots=True)
class Beat:
    """9020, or 904 from a broker of RocketMQ (`hold_ms` is then its own timeout, and no lease is promised)."""

    broker_id: int
    connection: int = 0
    address: str = ""
    ha_address: str | None = None
    incarnation: int = 0
    # The epoch in which it acts since it was started; 0 while it does not know its role.
    epoch: int = 0
    # The last one in its log, where that is told; a broker of RocketMQ tells nothing else.
    log_epoch: int = 0
    max_offset: int = 0
    confirm_offset: int = 0
    priority: int = 2**31 - 1
    is_stopping: bool = False
    hold_ms: int | None = None


# -- instructions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Write the entry by compare-and-set and report `written`, `conflict`, `unknown` or `failed`. A `version` of None
    creates it, a `record` of None deletes it. At most one is under way for a set."""

    path: str
    record: SetRecord | None
    version: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """Read the entry and report `loaded`, or `failed`."""

    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request. `code` is the response code; `record` the set as it is now, None if there is none.
    `lease_ms` is what a beat's sender may count from the moment it sent it."""

    token: object
    code: int
    remark: str = ""
    record: SetRecord | None = None
    lease_ms: int = 0


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell every live member of the set at once: it has another master (1008)."""

    record: SetRecord
    # (broker id, connection) of whoever is there.
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Deposed:
    """A later leader wrote the entry: this coordinator must not act on it any more."""

    term: int


Instruction = Write | Read | Answer | Notify | Deposed

# -- inside a set ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is not decided yet. `token` is None where nobody waits for an answer."""

    token: object
    request: Request
    expires_ms: int
    # A write for it was sent, and nobody knows what became of it.
    is_uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A write under way, and what it is to grant."""

    record: SetRecord | None
    asked: Asked | None
