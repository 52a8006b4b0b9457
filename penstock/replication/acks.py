"""What a master knows of its replicas: how far each has the log, what that confirms, and who should be in the set.

One tracker is one leadership: a master of a new epoch gets a new one. Sans I/O; owned by one thread.

The confirm offset is the least of what the members of the sync-state set vouch for, this node included. It never goes
back. Which set counts is decided so that no election can take back what was confirmed:

    counted = decided by the coordinator, and proposed to it without a definite answer yet, and about to be proposed

A replica is *about to be proposed* once it has caught up with where the log ended when it was last sent something.
From then on it is counted, and when it has everything that was confirmed without it, it is proposed. So the confirm
offset need not stand still by chance for a replica to join under load, and whoever the coordinator may elect has
every confirmed byte. A member that leaves counts until the coordinator has said that it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.replication.options import ReplicationOptions
from penstock.replication.waiting import Callback, Outcome, Waiters

# Instead of a number of copies: one at every member of the sync-state set.
ALL_IN_SYNC = -1
OnConfirm = Callable[[int | None], None]


@dataclass(slots=True)
class Replica:
    """One replica as its master sees it."""

    replica_id: int
    is_connected: bool = False
    is_learner: bool = False
    has_tables: bool = False
    # -1: it has not said anything since it connected.
    acked: int = -1
    tables_acked: int = -1
    # When it last had everything that the log held at an earlier moment, and that moment with the log's end then.
    caught_up_ms: int | None = None
    mark_ms: int = 0
    mark_offset: int = -1
    # Since when it is about to be proposed.
    joining_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of the sync-state set that the coordinator should be asked for."""

    members: frozenset[int]
    set_epoch: int


def copies_needed(options: ReplicationOptions, in_sync: int) -> int | None:
    """Copies to wait for with so many replicas in sync, this node included; None if there are not enough."""
    needed = options.in_sync_replicas
    if options.auto_in_sync_replicas:
        needed = max(options.min_in_sync_replicas, min(needed, in_sync))
    return None if needed > max(in_sync, 1) else needed


class AckTracker:
    """See the module's text. Without `members` it is a classic master's: nothing is confirmed, copies are counted."""

    def __init__(
        self,
        own_id: int,
        options: ReplicationOptions,
        *,
        members: Iterable[int] | None = None,
        set_epoch: int = 0,
        joins_from: int = 0,
        read_stored: Callable[[], int] = lambda: 0,
        on_confirm: OnConfirm = lambda offset: None,
        now_ms: int = 0,
    ) -> None:
        self.own_id = own_id
        self._options = options
        self._is_coordinated = members is not None
        self.members = frozenset(members or ()) | {own_id}
        self.set_epoch = set_epoch
        self._joins_from = joins_from
        self._on_confirm = on_confirm
        self.replicas: dict[int, Replica] = {}
        # How far this node vouches for its own log. Asked for anew before anything is confirmed: a master that is
        # alone shows messages without asking here, and must not be bound behind what it has shown.
        self._read_stored = read_stored
        self._started_ms = self._reviewed_ms = now_ms
        self.stored_offset = read_stored()
        self.confirm_offset = 0
        self.tables_sequence = 0
        self.tables_confirmed = 0
        self._proposal: Proposal | None = None
        # Members of proposals whose outcome nobody knows; they count until the set's epoch moves.
        self._unanswered: frozenset[int] = frozenset()
        self._joining: frozenset[int] = frozenset()
        self._copies: dict[int, Waiters] = {}
        self._tables = Waiters()
        self._bounded_at: int | None = -1
        self.is_over = False
        if self._is_coordinated:
            self._confirm()

    # -- who counts ------------------------------------------------------------------------------------------

    @property
    def counted(self) -> frozenset[int]:
        """Everybody whose acknowledgement the confirm offset waits for."""
        proposed = self._proposal.members if self._proposal is not None else frozenset()
        return self.members | proposed | self._unanswered | self._joining

    @property
    def is_alone(self) -> bool:
        """Whether this node confirms by itself."""
        return len(self.counted) == 1

    def decided(self, members: Iterable[int], set_epoch: int) -> None:
        """The coordinator's word on the set; an older one is ignored."""
        if set_epoch < self.set_epoch:
            return
        if set_epoch > self.set_epoch:
            self._proposal = None
            self._unanswered = frozenset()
        self.set_epoch = set_epoch
        self.members = frozenset(members) | {self.own_id}
        self._joining -= self.members
        self._confirm()

    def refused(self) -> None:
        """The coordinator did not do what was proposed, and never will."""
        self._proposal = None
        self._confirm()

    def unanswered(self) -> None:
        """Nobody knows what became of the proposal: it counts on, and another may be made."""
        if self._proposal is not None:
            self._unanswered |= self._proposal.members
            self._proposal = None

    def review(self, now_ms: int) -> Proposal | None:
        """Whether the set should change; the proposal counts as made. One at a time."""
        if not self._is_coordinated or self.is_over or self._proposal is not None:
            return None
        self._forgive_own_sleep(now_ms)
        self._confirm()
        staying = {member for member in self.members if not self._is_lagging(member, now_ms)}
        ready = set()
        joining = set()
        for replica in self.replicas.values():
            if replica.replica_id in self.members or not self._may_join(replica, now_ms):
                replica.joining_ms = None
            elif self._has_confirmed(replica) and replica.joining_ms is not None:
                ready.add(replica.replica_id)
            else:
                if replica.joining_ms is None:
                    replica.joining_ms = now_ms
                joining.add(replica.replica_id)
        self._joining = frozenset(joining | ready)
        wanted = frozenset(staying | ready)
        if wanted != self.members:
            self._proposal = Proposal(wanted, self.set_epoch)
        self._confirm()
        return self._proposal

    def _forgive_own_sleep(self, now_ms: int) -> None:
        """After a pause of this process, acknowledgements that came meanwhile wait to be read: nobody is late yet."""
        if now_ms - self._reviewed_ms > self._options.in_sync_lag_ms_max // 2:
            for replica in self.replicas.values():
                if replica.caught_up_ms is not None:
                    replica.caught_up_ms = now_ms
        self._reviewed_ms = now_ms

    def _is_lagging(self, member: int, now_ms: int) -> bool:
        if member == self.own_id:
            return False
        replica = self.replicas.get(member)
        if replica is None:
            return now_ms - self._started_ms > self._options.join_timeout_ms
        if not replica.is_connected or 0 <= replica.acked < self.confirm_offset:
            return True  # in the second case it came back with less than it had acknowledged
        if replica.acked >= self.stored_offset:
            return False
        return now_ms - (replica.caught_up_ms or 0) > self._options.in_sync_lag_ms_max

    def _may_join(self, replica: Replica, now_ms: int) -> bool:
        options = self._options
        if not replica.is_connected or replica.is_learner or replica.caught_up_ms is None:
            return False
        is_behind = replica.acked < self.stored_offset
        if is_behind and now_ms - replica.caught_up_ms > options.in_sync_lag_ms_max:
            return False
        if replica.acked < self._joins_from:
            return False
        if replica.joining_ms is not None and now_ms - replica.joining_ms > options.join_timeout_ms:
            # It stopped just then. Confirming goes on without it until it has caught up once more.
            replica.caught_up_ms = None
            return False
        return True

    def _has_confirmed(self, replica: Replica) -> bool:
        if replica.has_tables and replica.tables_acked < self.tables_confirmed:
            return False
        return replica.acked >= self.confirm_offset

    # -- what comes in ---------------------------------------------------------------------------------------

    def joined(
        self, replica_id: int, now_ms: int, *, is_learner: bool = False, has_tables: bool = False
    ) -> None:
        """A replica has connected. What it had before is forgotten: its log may be shorter now."""
        self.replicas[replica_id] = Replica(
            replica_id, True, is_learner, has_tables, caught_up_ms=self._last_caught_up(replica_id, now_ms)
        )

    def _last_caught_up(self, replica_id: int, now_ms: int) -> int | None:
        """A member that comes back is not given more time by it; whoever is none has to catch up first."""
        if replica_id not in self.members:
            return None
        known = self.replicas.get(replica_id)
        return now_ms if known is None else known.caught_up_ms

    def left(self, replica_id: int) -> None:
        """Its connection is gone. A member counts on, with what it had, until the coordinator has removed it."""
        replica = self.replicas.get(replica_id)
        if replica is None:
            return
        if self._is_coordinated:
            replica.is_connected = False
        else:
            del self.replicas[replica_id]

    def sent(self, replica_id: int, now_ms: int) -> None:
        """Log bytes, or word that there are none, went to a replica."""
        replica = self.replicas.get(replica_id)
        if replica is not None and replica.mark_offset < 0:
            replica.mark_offset, replica.mark_ms = self.stored_offset, now_ms

    def acked(self, replica_id: int, offset: int, now_ms: int) -> None:
        """A replica has the log up to `offset`."""
        replica = self.replicas.get(replica_id)
        if replica is None:
            return
        replica.acked = offset
        if offset >= self.stored_offset:
            replica.caught_up_ms, replica.mark_offset = now_ms, -1
        elif 0 <= replica.mark_offset <= offset:
            replica.caught_up_ms, replica.mark_offset = replica.mark_ms, -1
        self._advance()

    def tables_acked(self, replica_id: int, sequence: int) -> None:
        """A replica has applied side tables up to `sequence`."""
        replica = self.replicas.get(replica_id)
        if replica is not None:
            replica.tables_acked = sequence
            self._confirm_tables()

    def stored(self) -> None:
        """This node may vouch for more of its log."""
        if self._is_coordinated:
            self._confirm()
        else:
            self.stored_offset = self._read_stored()

    def next_tables(self) -> int:
        """The number of one more change of the side tables."""
        self.tables_sequence += 1
        self._confirm_tables()
        return self.tables_sequence

    # -- waiting ---------------------------------------------------------------------------------------------

    def when_replicated(
        self, position: int, need: int, callback: Callback, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Call back once `need` copies, this node's included, or all of the set have the log up to `position`."""
        if need == ALL_IN_SYNC:
            self._confirm()
        if self.is_over:
            callback(Outcome.SUPERSEDED)
        elif self._reached(need) >= position:
            callback(Outcome.REPLICATED)
        else:
            waiters = self._copies.get(need)
            if waiters is None:
                waiters = self._copies[need] = Waiters()
            waiters.add(position, now_ms + self._timeout(timeout_ms), callback)

    def when_tables_replicated(
        self, sequence: int, callback: Callback, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Call back once all of the set have applied the side tables up to `sequence`."""
        if self.is_over:
            callback(Outcome.SUPERSEDED)
        elif self.tables_confirmed >= sequence:
            callback(Outcome.REPLICATED)
        else:
            self._tables.add(sequence, now_ms + self._timeout(timeout_ms), callback)

    def expire(self, now_ms: int) -> None:
        """Tell those whose time is over."""
        for waiters in list(self._copies.values()):
            waiters.expire(now_ms)
        self._tables.expire(now_ms)

    def finish(self) -> None:
        """This node is not master any more: nothing is confirmed, and nobody is told that something was copied."""
        self.is_over = True
        for waiters in [*self._copies.values(), self._tables]:
            waiters.end(Outcome.SUPERSEDED)

    @property
    def bound(self) -> int | None:
        """Up to where the log may be seen; None where nobody else is in the set."""
        return None if len(self.counted) == 1 else self.confirm_offset

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._copies.values())) + len(self._tables)

    def in_sync_count(self) -> int:
        """This node and the connected replicas that are not far behind."""
        near = self.stored_offset - self._options.in_sync_gap_bytes_max
        return 1 + sum(
            one.is_connected and one.acked >= 0 and one.acked > near for one in self.replicas.values()
        )

    def _timeout(self, timeout_ms: int | None) -> int:
        return self._options.replica_timeout_ms if timeout_ms is None else timeout_ms

    # -- consequences ----------------------------------------------------------------------------------------

    def _reached(self, need: int) -> int:
        """The position up to which there are so many copies."""
        if need == ALL_IN_SYNC:
            return self.confirm_offset
        if need <= 1:
            return 1 << 63
        acks = sorted((one.acked for one in self.replicas.values() if one.is_connected), reverse=True)
        return acks[need - 2] if len(acks) > need - 2 else -1

    def _advance(self) -> None:
        if self._is_coordinated:
            self._confirm()
        if not self.is_over:
            for need, waiters in list(self._copies.items()):
                if waiters:
                    waiters.reached(self._reached(need))

    def _confirm(self) -> None:
        """Move the confirm offset up as far as everybody who counts allows, and tell before anybody is answered."""
        if self.is_over:
            return
        counted = self.counted
        least = self.stored_offset = max(self.stored_offset, self._read_stored())
        for member in counted:
            if member != self.own_id:
                replica = self.replicas.get(member)
                least = min(least, replica.acked if replica is not None else 0)
        self.confirm_offset = max(self.confirm_offset, least)
        bound = self.bound
        if bound != self._bounded_at:
            self._bounded_at = bound
            self._on_confirm(bound)
        waiters = self._copies.get(ALL_IN_SYNC)
        if waiters:
            waiters.reached(self.confirm_offset)
        self._confirm_tables()

    def _confirm_tables(self) -> None:
        if self.is_over:
            return
        least = self.tables_sequence
        for member in self.counted:
            if member != self.own_id:
                replica = self.replicas.get(member)
                if replica is None:
                    least = min(least, 0)
                elif replica.has_tables:
                    least = min(least, replica.tables_acked)
        self.tables_confirmed = max(self.tables_confirmed, least)
        self._tables.reached(self.tables_confirmed)
