"""What a broker that stores messages asks of its replicas: whether it may, whether it may still say so, and when they
have them.

    refusal          before anything is stored: too few replicas in sync, or this broker may not acknowledge
    appended         the log has grown, or more of it is on disk: replicas may be sent it
    when_replicated  how waiting for the copies ended: once, at once or later
    lapsed           right before anything is acknowledged that the replicas do not have: it may not be any more

`writing.py` asks, for every way in which messages come in. A classic master's answers are here; a member of a
coordinated set has its own. Without replicas there is nobody to ask, and nothing that costs. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.broker.options import BrokerOptions
from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode
from penstock.replication import HaServer, Outcome, ReplicationOptions, copies_needed
from penstock.store import Durability

Replicated = Callable[[Outcome], None]
# RocketMQ's word for it, in the remark; its code is the general one.
NOT_ENOUGH = "[IN_SYNC_REPLICAS_NOT_ENOUGH]"


def replication_options(options: BrokerOptions) -> ReplicationOptions:
    """What a broker's options say of its replicas; all else is as replication has it."""
    return ReplicationOptions(
        in_sync_gap_bytes_max=options.ha_max_gap_not_in_sync_bytes,
        replica_timeout_ms=options.slave_timeout_ms,
        in_sync_replicas=options.in_sync_replicas,
        min_in_sync_replicas=options.min_in_sync_replicas,
        auto_in_sync_replicas=options.auto_in_sync_replicas,
    )


class ReplicaWait(Protocol):
    """See the module's text."""

    @property
    def waits(self) -> bool:
        """Whether a send that demands nothing waits for replicas at the moment."""

    def refusal(self, demand: Durability | None) -> RequestError | None:
        """Why a message with this demand must not be stored now, None if it may be."""

    def appended(self) -> None:
        """The log has grown, or more of it is on disk."""

    def when_replicated(self, end: int, demand: Durability | None, callback: Replicated) -> None:
        """Call back when the replicas that this demand needs have the log up to `end`, or when that took too long."""

    def lapsed(self) -> RequestError | None:
        """Why nothing may be acknowledged now, None if it may be; the outcome of what was stored is then unknown."""


class ClassicReplicas:
    """A classic master's: copies are counted, whoever holds them."""

    def __init__(self, server: HaServer, options: ReplicationOptions, *, is_sync: bool) -> None:
        self._server = server
        self._options = options
        self._is_sync = is_sync

    @property
    def waits(self) -> bool:
        return self._needed(None) > 1

    def refusal(self, demand: Durability | None) -> RequestError | None:
        needed = self._needed(demand)
        if needed <= 1:
            return None
        found = self._in_sync()
        if needed <= found:
            return None
        return RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"{NOT_ENOUGH}{needed} copies are wanted, and {found} brokers of the set are in sync, this one included; "
            "nothing is stored",
            "start its slaves, wait until they have caught up, or demand less",
        )

    def appended(self) -> None:
        self._server.appended()

    def when_replicated(self, end: int, demand: Durability | None, callback: Replicated) -> None:
        self._server.when_replicated(end, self._needed(demand), callback)

    def lapsed(self) -> RequestError | None:
        return None

    def _needed(self, demand: Durability | None) -> int:
        """Copies that a message with this demand gets before it is answered, this broker's included."""
        if demand is Durability.REPLICATED:
            return max(2, self._options.in_sync_replicas)
        if demand is not None or not self._is_sync:
            return 1
        least = self._options.min_in_sync_replicas
        return copies_needed(self._options, self._in_sync()) or max(least, self._options.in_sync_replicas)

    def _in_sync(self) -> int:
        tracker = self._server.tracker
        return 1 if tracker is None else tracker.in_sync_count()
