"""Which members of a broker set are there, and until when its master may acknowledge on its own.

Why a lease. A master that keeps messages in memory only, or writes them without waiting for its replicas,
acknowledges without asking anyone. If another master were elected meanwhile, those messages would be lost. So
it acknowledges like that only while it holds a lease, and nobody else is elected before the lease has run out.

Why it is safe. The broker counts its lease from the moment it *sent* a beat, the coordinator from the moment it
*received* it, which is later, and adds a margin for clocks that run at different speeds. Hence the lease is
over at the broker before it is over here. A dropped connection shortens nothing: the broker may live behind it.
Two things end a lease early: a clean stop, said by the process that holds it and that acknowledges nothing
afterwards; and the start of its successor, which owns the data directory now. Both name their incarnation, a
number that grows with every start, so that a message which was delayed from an earlier process can end nothing.

A coordinator that begins to lead knows of no lease and of every possible one: it holds them all for one full time.

A lease is only needed where others could be elected. A master that is alone in its sync-state set, or that
acknowledges a message only when every member of the set has it, is safe without one: whoever is elected has the
message. So a broker whose lease has run out goes on in that way (docs/coordinator/README.md).

Sans-I/O, one owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.coordinator.set_messages import Beat, Register


@dataclass(slots=True)
class Member:
    """What one broker of a set said last."""

    broker_id: int
    heard_ms: int
    silent_ms: int
    connection: int = 0
    # Grows with every start of the broker; 0 where it is not told (RocketMQ's brokers).
    incarnation: int = 0
    # The epoch in which it acts, and the last one that its log knows of.
    epoch: int = 0
    log_epoch: int = 0
    max_offset: int = 0
    confirm_offset: int = 0
    priority: int = 2**31 - 1
    is_stopping: bool = False
    is_dropped: bool = False

    def is_alive(self, now_ms: int) -> bool:
        """Whether it may be given work: heard of lately, over a connection that is open."""
        return not (self.is_stopping or self.is_dropped) and now_ms - self.heard_ms < self.silent_ms


class Members:
    """The brokers of one set that were heard of."""

    def __init__(self, silent_ms: int) -> None:
        self._silent_ms = silent_ms
        self._known: dict[int, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._known.values())

    def get(self, broker_id: int) -> Member | None:
        return self._known.get(broker_id)

    def is_alive(self, broker_id: int | None, now_ms: int) -> bool:
        member = None if broker_id is None else self._known.get(broker_id)
        return member is not None and member.is_alive(now_ms)

    def alive(self, now_ms: int) -> dict[int, Member]:
        return {member.broker_id: member for member in self._known.values() if member.is_alive(now_ms)}

    def is_outdated(self, broker_id: int, incarnation: int) -> bool:
        """Whether this comes from a process that has a successor already: it was delayed on the way."""
        member = self._known.get(broker_id)
        return member is not None and incarnation < member.incarnation

    def heard(self, beat: Beat, now_ms: int) -> Member:
        """A beat came in."""
        before = self._known.get(beat.broker_id)
        member = Member(
            beat.broker_id,
            heard_ms=now_ms,
            silent_ms=self._silent_ms if beat.hold_ms is None else beat.hold_ms,
            connection=beat.connection,
            incarnation=beat.incarnation,
            epoch=beat.epoch,
            log_epoch=max(beat.log_epoch, beat.epoch, before.log_epoch if before is not None else 0)
            if beat.hold_ms is None
            else beat.log_epoch,
            max_offset=beat.max_offset,
            confirm_offset=beat.confirm_offset,
            priority=beat.priority,
            is_stopping=beat.is_stopping,
        )
        self._known[beat.broker_id] = member
        return member

    def registered(self, request: Register, now_ms: int) -> Member:
        """A process of ours has started; it acts in no epoch yet, but can be elected by what its log holds."""
        member = Member(
            request.broker_id,
            heard_ms=now_ms,
            silent_ms=self._silent_ms,
            connection=request.connection,
            incarnation=request.incarnation,
            log_epoch=request.epoch,
            max_offset=request.max_offset,
        )
        self._known[request.broker_id] = member
        return member

    def dropped(self, connection: int) -> list[int]:
        """A connection is gone: who reported over it is not there until it reports again."""
        lost = [member for member in self._known.values() if member.connection == connection]
        for member in lost:
            member.is_dropped = True
        return [member.broker_id for member in lost]

    def forget(self, broker_id: int) -> None:
        self._known.pop(broker_id, None)

    def refresh(self, now_ms: int) -> None:
        """Beats could not be taken for a while, which says nothing about anybody."""
        for member in self._known.values():
            member.heard_ms = now_ms


class MasterLease:
    """Until when nobody but the holder may be made master of a set."""

    def __init__(self, lease_ms: int, margin_ms: int) -> None:
        self.lease_ms = lease_ms
        self._full_ms = lease_ms + margin_ms
        self.holder: int | None = None
        self.until_ms = 0
        # The process to which it was granted; 0 while it is only held back for whoever may have one.
        self.incarnation = 0
        # False for a broker of RocketMQ, which knows no leases and acknowledges as it likes.
        self._is_promised = True

    def has_run_out(self, now_ms: int) -> bool:
        return now_ms >= self.until_ms

    def hold(self, holder: int | None, now_ms: int) -> None:
        """Whoever this is may have a lease of which nothing is known here: wait for it."""
        self.holder = holder
        self.incarnation = 0
        self._is_promised = True
        self.until_ms = max(self.until_ms, now_ms + self._full_ms)

    def begin(self, holder: int, now_ms: int) -> None:
        """A new master was elected, after the lease of the one before had run out: time for it to report."""
        self.holder = holder
        self.incarnation = 0
        self._is_promised = True
        self.until_ms = now_ms + self._full_ms

    def grant(self, beat: Beat, now_ms: int) -> int:
        """The holder reported: what it may count from when it sent the report."""
        self.holder = beat.broker_id
        self.incarnation = beat.incarnation
        self._is_promised = beat.hold_ms is None
        hold_ms = self._full_ms if beat.hold_ms is None else beat.hold_ms
        self.until_ms = max(self.until_ms, now_ms + hold_ms)
        return self.lease_ms if beat.hold_ms is None else 0

    def give_back(self, broker_id: int, incarnation: int, now_ms: int) -> bool:
        """The holder stopped cleanly. Only the process that was granted the lease can say so."""
        if self.holder != broker_id or self.incarnation != incarnation:
            return False
        self.until_ms = min(self.until_ms, now_ms)
        return True

    def end_before(self, broker_id: int, incarnation: int, now_ms: int) -> bool:
        """A later process of the holder has started: the one to which the lease was granted is gone."""
        if self.holder != broker_id or not 0 < self.incarnation < incarnation:
            return False
        self.until_ms = min(self.until_ms, now_ms)
        return True

    def connection_dropped(self, broker_ids: list[int], now_ms: int) -> None:
        """Says nothing about a lease; but where there is none RocketMQ's controller elects at once, and so do we."""
        if self.holder in broker_ids and not self._is_promised:
            self.until_ms = min(self.until_ms, now_ms)
