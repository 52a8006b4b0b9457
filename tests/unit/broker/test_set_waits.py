"""What a member of a set may store and acknowledge: as master, with replicas, with a lease, without."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.membership import Beaten, Led, Membership, Notified, Registered, Superseded, Tick, View
from penstock.broker.set_waits import SetReplicas
from penstock.protocol.codes import ResponseCode
from penstock.replication import AckTracker, Outcome, ReplicationOptions
from penstock.store import Durability
from penstock.testing import ManualClock

LEASE_MS = 2_000
DEMANDS = (None, Durability.MEMORY, Durability.FLUSHED, Durability.REPLICATED)


class Server:
    """As much of an HaServer as is asked for: a real tracker of acknowledgements."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.end = 100
        self.tracker: AckTracker | None = AckTracker(
            1, ReplicationOptions(), members=(1,), set_epoch=1, read_stored=lambda: self.end
        )

    def appended(self) -> None:
        assert self.tracker is not None
        self.tracker.stored()

    def when_replicated(self, position: int, need: int, callback: Any) -> None:
        assert self.tracker is not None
        self.tracker.when_replicated(position, need, callback, self._clock.monotonic_ms())


class Member:
    def __init__(self, min_in_sync: int = 1) -> None:
        self.clock = ManualClock()
        self.membership = Membership(1)
        self.waits = SetReplicas("set-a", min_in_sync, self.clock)
        self.server = Server(self.clock)
        self.waits.server = self.server  # type: ignore[assignment]
        self.waits.membership = self.membership

    def tell(self, *events: Any) -> None:
        for event in events:
            self.membership.handle(event, self.clock.monotonic_ms())

    def lead(self) -> None:
        self.tell(Tick(), Registered(), Notified(View(1, 1, 1, frozenset((1,)), 1)), Led(1))

    def join(self, *others: int) -> None:
        assert self.server.tracker is not None
        self.server.tracker.decided((1, *others), 2)

    def lease(self) -> None:
        sent_ms = self.clock.monotonic_ms()
        self.tell(Beaten(View(1, 1, 2, frozenset((1, 2)), 1), sent_ms, LEASE_MS))

    def refusals(self) -> list[int | None]:
        found = [self.waits.refusal(demand) for demand in DEMANDS]
        return [None if error is None else error.code for error in found]


UNAVAILABLE, NOT_ENOUGH = int(ResponseCode.SERVICE_NOT_AVAILABLE), int(ResponseCode.SYSTEM_ERROR)


@pytest.mark.invariant("I6")
def test_who_is_not_master_stores_nothing() -> None:
    member = Member()
    assert member.refusals() == [UNAVAILABLE] * 4
    assert member.waits.lapsed() is not None
    member.lead()
    member.tell(Superseded(2))
    assert member.refusals() == [UNAVAILABLE] * 4
    outcomes: list[Outcome] = []
    member.waits.when_replicated(100, None, outcomes.append)
    assert outcomes == [Outcome.SUPERSEDED]


def test_a_broker_that_does_not_know_who_it_is_yet_stores_nothing() -> None:
    waits = SetReplicas("set-a", 1, ManualClock())
    assert waits.refusal(None) is not None
    assert not waits.waits
    assert waits.lapsed() is not None
    waits.appended()


def test_a_master_that_is_the_whole_set_needs_no_lease() -> None:
    """Nobody else can be elected."""
    member = Member()
    member.lead()
    assert member.refusals() == [None, None, None, NOT_ENOUGH]  # one copy is no replica
    assert not member.waits.waits
    assert member.waits.lapsed() is None


@pytest.mark.invariant("I1")
def test_what_others_lack_is_acknowledged_under_a_lease_only() -> None:
    member = Member()
    member.lead()
    member.join(2)
    assert member.waits.waits
    assert member.refusals() == [None, UNAVAILABLE, UNAVAILABLE, None]
    assert member.waits.lapsed() is not None
    member.lease()
    assert member.refusals() == [None] * 4
    assert member.waits.lapsed() is None
    member.clock.advance(LEASE_MS - 1)
    assert member.waits.lapsed() is None
    member.clock.advance(1)
    assert member.refusals() == [None, UNAVAILABLE, UNAVAILABLE, None]
    lapsed = member.waits.lapsed()
    assert lapsed is not None
    assert lapsed.code == UNAVAILABLE
    assert str(lapsed).startswith("[REJECTREQUEST]")  # clients ask for the route and wait


def test_a_replica_that_is_about_to_join_counts_already() -> None:
    """It may be in the set by the coordinator's word before this broker hears of it."""
    member = Member()
    member.lead()
    assert member.server.tracker is not None
    tracker = member.server.tracker
    tracker.joined(2, 0)
    tracker.acked(2, 100, 1)
    tracker.review(2)
    assert member.waits.waits
    assert member.waits.lapsed() is not None


@pytest.mark.parametrize("others", [(), (2,)])
def test_fewer_in_sync_than_wanted_stores_nothing(others: tuple[int, ...]) -> None:
    member = Member(min_in_sync=3)
    member.lead()
    member.join(*others)
    member.lease()
    assert member.refusals() == [NOT_ENOUGH] * 4
    member.server.tracker.decided((1, 2, 3), 3)  # type: ignore[union-attr]
    assert member.refusals() == [None] * 4


def test_a_message_waits_for_every_member() -> None:
    member = Member()
    member.lead()
    member.join(2, 3)
    assert member.server.tracker is not None
    tracker = member.server.tracker
    outcomes: list[Outcome] = []
    member.server.end = 150
    member.waits.appended()
    member.waits.when_replicated(150, None, outcomes.append)
    for replica in (2, 3):
        tracker.joined(replica, 0)
        assert outcomes == []
        tracker.acked(replica, 150, 1)
    assert outcomes == [Outcome.REPLICATED]
