"""What replicas have, what that confirms, who waits, and who should be in the set."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from penstock.replication.acks import ALL_IN_SYNC, AckTracker, Proposal, copies_needed
from penstock.replication.options import ReplicationOptions
from penstock.replication.waiting import Outcome, Waiters

OPTIONS = ReplicationOptions()
OK, LATE, OVER = Outcome.REPLICATED, Outcome.TIMED_OUT, Outcome.SUPERSEDED


class Bench:
    """A tracker of node 1 with a log end that a test moves."""

    def __init__(
        self,
        members: set[int] | None = None,
        end: int = 100,
        options: ReplicationOptions = OPTIONS,
        joins_from: int = 0,
        bounds: list[Any] | None = None,
    ) -> None:
        self.end = end
        self.bounds: list[int | None] = [] if bounds is None else bounds
        self.heard: list[tuple[object, Outcome]] = []
        self.now_ms = 1_000_000
        self.tracker = AckTracker(
            1,
            options,
            members=members,
            set_epoch=5,
            joins_from=joins_from,
            read_stored=lambda: self.end,
            on_confirm=self.bounds.append,
            now_ms=self.now_ms,
        )

    def join(self, *replicas: int, tables: bool = False) -> None:
        for replica in replicas:
            self.tracker.joined(replica, self.now_ms, has_tables=tables)

    def ack(self, replica: int, offset: int) -> None:
        self.tracker.acked(replica, offset, self.now_ms)

    def wait(self, position: int, need: int, name: object = None, timeout_ms: int | None = None) -> None:
        named = position if name is None else name
        self.tracker.when_replicated(
            position, need, lambda outcome: self.heard.append((named, outcome)), self.now_ms, timeout_ms
        )

    def review(self, after_ms: int = 0) -> set[int] | None:
        """Time passes as it does for a driver, in small steps, with a review at the end."""
        if after_ms < 2_000:
            self.now_ms += after_ms
        else:
            for _ in range(after_ms // 1_000 - 1):
                self.now_ms += 1_000
                assert self.tracker.review(self.now_ms) is None
            self.now_ms += 1_000 + after_ms % 1_000
        proposal = self.tracker.review(self.now_ms)
        assert proposal is None or proposal.set_epoch == self.tracker.set_epoch
        return None if proposal is None else set(proposal.members)


# -- waiting -----------------------------------------------------------------------------------------------------


def test_waiters_are_called_once_and_in_the_order_of_their_goals() -> None:
    waiters, heard = Waiters(), list[tuple[int, Outcome]]()
    for goal in (30, 10, 20, 10):
        waiters.add(goal, 100 + goal, lambda outcome, goal=goal: heard.append((goal, outcome)))  # type: ignore[misc]
    waiters.reached(20)
    assert heard == [(10, OK), (10, OK), (20, OK)]
    assert len(waiters) == 1
    waiters.expire(129)
    waiters.expire(130)
    waiters.reached(99)
    waiters.end(OVER)
    assert heard[3:] == [(30, LATE)]
    assert len(waiters) == 0


def test_a_waiter_may_add_another() -> None:
    waiters, heard = Waiters(), list[Outcome]()
    waiters.add(1, 10, lambda outcome: waiters.add(2, 10, heard.append))
    waiters.reached(2)
    assert heard == [OK]


# -- classic -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-32", "S1-82")
def test_copies_are_counted_with_the_masters_own() -> None:
    bench = Bench()
    bench.join(7, 8)
    for need in (1, 2, 3):
        bench.wait(50, need, need)
    assert bench.heard == [(1, OK)]
    bench.ack(7, 49)
    assert len(bench.heard) == 1
    bench.ack(7, 50)
    assert bench.heard[1:] == [(2, OK)]
    bench.ack(8, 70)
    assert bench.heard[2:] == [(3, OK)]
    bench.wait(60, 2)
    assert bench.heard[3:] == [(60, OK)]
    assert bench.bounds == [], "a classic master confirms nothing"


def test_a_slave_that_left_is_no_copy_any_more() -> None:
    bench = Bench()
    bench.join(7)
    bench.ack(7, 60)
    bench.tracker.left(7)
    bench.wait(50, 2)
    bench.tracker.acked(7, 90, 0)
    assert bench.heard == []
    bench.tracker.expire(bench.now_ms + 3_000)
    assert bench.heard == [(50, LATE)]


@pytest.mark.fault("F2")
def test_waiting_ends_with_its_time() -> None:
    bench = Bench()
    bench.wait(50, 2, "short", 10)
    bench.wait(50, 2, "ordinary")
    bench.tracker.expire(bench.now_ms + 9)
    assert bench.heard == []
    bench.tracker.expire(bench.now_ms + 10)
    bench.tracker.expire(bench.now_ms + 2_999)
    assert bench.heard == [("short", LATE)]
    bench.tracker.expire(bench.now_ms + 3_000)
    assert bench.heard[1:] == [("ordinary", LATE)]
    assert bench.tracker.waiting == 0


def test_only_slaves_that_are_near_count_as_in_sync() -> None:
    bench = Bench(end=1_000, options=replace(OPTIONS, in_sync_gap_bytes_max=100))
    bench.join(7, 8)
    bench.ack(7, 900)
    bench.ack(8, 901)
    assert bench.tracker.in_sync_count() == 2
    bench.tracker.left(8)
    assert bench.tracker.in_sync_count() == 1


@pytest.mark.parametrize(
    ("wanted", "least", "auto", "in_sync", "copies"),
    [
        (1, 1, False, 1, 1),
        (2, 1, False, 2, 2),
        (2, 1, False, 1, None),
        (3, 2, True, 3, 3),
        (3, 2, True, 2, 2),
        (3, 2, True, 1, None),
        (3, 1, True, 1, 1),
    ],
)
def test_a_master_waits_only_for_replicas_in_sync(
    wanted: int, least: int, auto: bool, in_sync: int, copies: int | None
) -> None:
    options = replace(
        OPTIONS, in_sync_replicas=wanted, min_in_sync_replicas=least, auto_in_sync_replicas=auto
    )
    assert copies_needed(options, in_sync) == copies


# -- confirming --------------------------------------------------------------------------------------------------


def test_a_master_alone_confirms_by_itself_and_is_not_bound() -> None:
    bench = Bench({1})
    assert bench.bounds == [None]
    bench.end = 150
    bench.wait(150, ALL_IN_SYNC)
    bench.wait(151, ALL_IN_SYNC)
    assert bench.heard == [(150, OK)]
    bench.end = 151
    bench.tracker.stored()
    assert bench.heard[1:] == [(151, OK)]
    assert bench.bounds == [None]


@pytest.mark.invariant("I5")
def test_the_confirm_offset_is_the_least_of_the_set_and_never_goes_back() -> None:
    bench = Bench({1, 2, 3}, end=100)
    bench.join(2, 3, 4)
    bench.wait(60, ALL_IN_SYNC)
    bench.ack(2, 80)
    bench.ack(4, 5)
    assert bench.tracker.confirm_offset == 0
    bench.ack(3, 60)
    assert (bench.tracker.confirm_offset, bench.heard) == (60, [(60, OK)])
    bench.join(3)
    bench.ack(3, 20)
    assert bench.tracker.confirm_offset == 60
    bench.ack(3, 200)
    assert bench.tracker.confirm_offset == 80
    bench.ack(2, 200)
    assert bench.tracker.confirm_offset == 100, "never beyond what this node vouches for"
    assert bench.bounds == [0, 60, 80, 100]


def test_what_is_confirmed_is_shown_before_anybody_is_answered() -> None:
    order: list[object] = []
    bench = Bench({1, 2}, bounds=order)
    bench.join(2)
    order.clear()
    bench.tracker.when_replicated(50, ALL_IN_SYNC, order.append, 0)
    bench.ack(2, 50)
    assert order == [50, OK]


@pytest.mark.invariant("I6")
@pytest.mark.fault("F12")
def test_after_the_end_of_a_leadership_nothing_is_confirmed() -> None:
    bench = Bench({1, 2})
    bench.join(2)
    bench.wait(50, ALL_IN_SYNC)
    bench.tracker.when_tables_replicated(3, lambda outcome: bench.heard.append(("tables", outcome)), 0)
    bench.tracker.finish()
    assert bench.heard == [(50, OVER), ("tables", OVER)]
    bench.ack(2, 90)
    bench.tracker.stored()
    bench.wait(10, ALL_IN_SYNC)
    bench.wait(10, 1)
    assert bench.heard[2:] == [(10, OVER), (10, OVER)]
    assert bench.tracker.confirm_offset == 0
    assert bench.review() is None


def test_a_member_that_is_gone_holds_the_set_until_the_coordinator_has_removed_it() -> None:
    bench = Bench({1, 2, 3})
    bench.join(2, 3)
    bench.ack(2, 100)
    bench.ack(3, 40)
    bench.tracker.left(3)
    bench.wait(100, ALL_IN_SYNC)
    assert bench.review() == {1, 2}
    assert bench.tracker.confirm_offset == 40, "a proposal removes nobody"
    assert bench.review() is None, "one at a time"
    bench.tracker.decided({1, 2}, 6)
    assert bench.heard == [(100, OK)]


# -- the set -----------------------------------------------------------------------------------------------------


@pytest.mark.invariant("I1", "I5")
def test_a_replica_that_joins_counts_before_it_is_proposed() -> None:
    bench = Bench({1}, end=100)
    bench.join(2)
    bench.tracker.sent(2, bench.now_ms)
    bench.end = 120
    bench.ack(2, 100)
    assert bench.review() is None
    assert bench.bounds == [None, 120], (
        "what a master alone has shown stays confirmed; from here on two have to have it"
    )
    bench.end = 130
    bench.wait(130, ALL_IN_SYNC)
    assert bench.review(100) is None, "it lacks what was confirmed without it"
    bench.ack(2, 120)
    assert bench.review(100) == {1, 2}
    assert (bench.heard, bench.tracker.confirm_offset) == ([], 120)
    bench.tracker.decided({1, 2}, 6)
    bench.ack(2, 130)
    assert bench.heard == [(130, OK)]


def test_a_replica_under_constant_load_catches_up_with_what_was_there_when_it_was_sent_something() -> None:
    bench = Bench({1}, end=100)
    bench.join(2)
    for _ in range(5):
        bench.tracker.sent(2, bench.now_ms)
        bench.end += 50
        bench.ack(2, bench.end - 50)
        bench.now_ms += 10
    bench.review()
    bench.ack(2, bench.end)
    assert bench.review(10) == {1, 2}


def test_a_replica_that_stops_while_it_joins_does_not_hold_the_set_for_long() -> None:
    bench = Bench({1}, end=100)
    bench.join(2)
    bench.tracker.sent(2, bench.now_ms)
    bench.end = 200
    bench.ack(2, 100)
    bench.review()
    bench.wait(200, ALL_IN_SYNC)
    bench.end = 210
    bench.wait(210, ALL_IN_SYNC)
    assert bench.heard == [(200, OK)]
    assert bench.review(1_000) is None
    assert len(bench.heard) == 1
    assert bench.review(1) is None
    assert bench.heard[1:] == [(210, OK)]
    assert bench.bounds[-1] is None


@pytest.mark.parametrize("reason", ["learner", "before-the-epoch", "never-caught-up", "gone", "tables"])
def test_who_may_not_join(reason: str) -> None:
    bench = Bench({1}, end=100, joins_from=90 if reason == "before-the-epoch" else 0)
    bench.tracker.joined(2, bench.now_ms, is_learner=reason == "learner", has_tables=reason == "tables")
    if reason == "before-the-epoch":
        bench.end = 80
    if reason == "tables":
        bench.tracker.next_tables()
    bench.ack(2, 50 if reason == "never-caught-up" else bench.end)
    if reason == "gone":
        bench.tracker.left(2)
    assert [bench.review(100) for _ in range(3)] == [None, None, None]


def test_a_member_that_does_not_catch_up_is_to_leave() -> None:
    bench = Bench({1, 2}, end=100)
    bench.join(2)
    bench.ack(2, 100)
    assert bench.review(60_000) is None, "there is nothing to catch up with"
    bench.end = 200
    assert bench.review() == {1}
    bench.tracker.refused()
    bench.ack(2, 200)
    bench.end = 300
    assert bench.review(5_000) is None
    assert bench.review(1) == {1}


@pytest.mark.fault("F2")
def test_after_an_own_pause_nobody_is_late_yet() -> None:
    bench = Bench({1, 2}, end=100)
    bench.join(2)
    bench.ack(2, 100)
    bench.end = 200
    bench.now_ms += 30_000
    assert bench.review() is None, "its acknowledgement may be waiting to be read"
    assert bench.review(5_000) is None
    assert bench.review(1) == {1}


@pytest.mark.fault("F6")
def test_a_member_that_comes_back_with_less_than_it_had_is_to_leave_at_once() -> None:
    bench = Bench({1, 2}, end=100)
    bench.join(2)
    bench.ack(2, 90)
    assert bench.tracker.confirm_offset == 90
    bench.join(2)
    assert bench.review() is None, "it has not said anything yet"
    bench.ack(2, 89)
    assert bench.review() == {1}


def test_a_member_has_a_moment_to_connect_when_a_leadership_begins() -> None:
    bench = Bench({1, 2})
    assert bench.review(1_000) is None
    assert bench.review(1) == {1}
    other = Bench({1, 2})
    other.join(2)
    assert other.review(5_000) is None
    assert other.review(1) == {1}


@pytest.mark.invariant("I6")
def test_a_proposal_without_an_answer_counts_until_the_set_has_moved() -> None:
    bench = Bench({1}, end=100)
    bench.join(2)
    bench.ack(2, 100)
    bench.review()
    assert bench.review() == {1, 2}
    bench.tracker.unanswered()
    bench.tracker.left(2)
    bench.end = 200
    bench.wait(200, ALL_IN_SYNC)
    assert bench.review(10) is None, "2 is no member, and cannot join"
    assert bench.heard == [], "but the coordinator may have made it one"
    bench.tracker.decided({1}, 5)
    assert bench.heard == [], "an answer from before says nothing about it"
    bench.tracker.decided({1, 2}, 6)
    assert bench.review() == {1}
    bench.tracker.decided({1}, 7)
    assert bench.heard == [(200, OK)]


def test_an_older_word_on_the_set_is_ignored() -> None:
    bench = Bench({1, 2})
    bench.tracker.decided({1}, 4)
    assert bench.tracker.members == {1, 2}
    assert Proposal(frozenset({1}), 5) == Proposal(frozenset({1}), 5)


# -- side tables -------------------------------------------------------------------------------------------------


def test_side_tables_wait_for_every_member_that_takes_them() -> None:
    bench = Bench({1, 2, 3})
    bench.join(2, tables=True)
    bench.join(3)
    sequence = bench.tracker.next_tables()
    bench.tracker.when_tables_replicated(sequence, lambda outcome: bench.heard.append(("tables", outcome)), 0)
    assert bench.heard == []
    bench.tracker.tables_acked(2, 0)
    assert bench.heard == []
    bench.tracker.tables_acked(2, sequence)
    assert bench.heard == [("tables", OK)]
    bench.tracker.when_tables_replicated(sequence, lambda outcome: bench.heard.append(("again", outcome)), 0)
    assert bench.heard[1:] == [("again", OK)]


def test_side_tables_of_a_master_alone_are_its_own() -> None:
    bench = Bench({1})
    sequence = bench.tracker.next_tables()
    bench.tracker.when_tables_replicated(sequence, lambda outcome: bench.heard.append((sequence, outcome)), 0)
    assert bench.heard == [(1, OK)]


def test_a_replica_joins_with_the_tables_that_were_confirmed_without_it() -> None:
    bench = Bench({1}, end=100)
    bench.join(2, tables=True)
    bench.tracker.next_tables()
    bench.ack(2, 100)
    bench.review()
    later = bench.tracker.next_tables()
    bench.tracker.when_tables_replicated(later, lambda outcome: bench.heard.append((later, outcome)), 0)
    assert bench.review(10) is None
    bench.tracker.tables_acked(2, 1)
    assert bench.review(10) == {1, 2}
    assert bench.heard == []
    bench.tracker.tables_acked(2, 2)
    assert bench.heard == [(2, OK)]


# -- any order ---------------------------------------------------------------------------------------------------


class Set:
    """A master, its replicas and a coordinator whose answers may get lost. The coordinator's set is what it decided,
    whether or not the master has heard of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = Bench({1}, end=0)
        self.copies: dict[int, int] = {}
        self.members = {1}
        self.set_epoch = 5
        # Proposals that may still arrive, each with the set's epoch on which it rests.
        self.under_way: list[tuple[set[int], int]] = []
        self.joins = 0

    def move(self) -> None:
        chance, bench, tracker = self.chance, self.bench, self.bench.tracker
        replica = chance.choice((2, 3))
        what = chance.choice(
            ("grow", "ack", "ack", "ack", "join", "left", "review", "review", "answer", "late")
        )
        if what == "grow":
            bench.end += chance.randint(1, 20)
            tracker.stored()
        elif what == "join":
            had = self.copies.get(replica, 0)
            # Whoever counts loses nothing it had: that is what flushing is for.
            counts = replica in tracker.counted or replica in self.members
            self.copies[replica] = had if counts else max(had - chance.choice((0, 0, 0, 5)), 0)
            bench.join(replica)
        elif what == "ack" and replica in self.copies:
            tracker.sent(replica, bench.now_ms)
            missing = bench.end - self.copies[replica]
            self.copies[replica] += chance.choice((missing, missing // 2))
            bench.ack(replica, self.copies[replica])
        elif what == "left":
            tracker.left(replica)
        elif what == "review":
            proposed = bench.review(chance.choice((1, 100, 1_999)))
            if proposed is not None:
                self.under_way.append((proposed, tracker.set_epoch))
        elif what == "answer" and tracker._proposal is not None:
            self.answer()
        elif what == "late" and chance.random() < 0.3:
            tracker.decided(self.members, self.set_epoch)

    def answer(self) -> None:
        tracker = self.bench.tracker
        fate = self.chance.choice(("applied", "refused", "applied, answer lost", "lost", "delayed"))
        if fate == "refused":
            self.under_way.pop()
            tracker.refused()
            return
        if fate == "lost":
            self.under_way.pop()
        if fate.startswith("applied"):
            self.apply()
        if fate == "applied":
            tracker.decided(self.members, self.set_epoch)
        else:
            tracker.unanswered()

    def apply(self) -> None:
        """One of the proposals under way arrives."""
        members, based_on = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        if based_on == self.set_epoch:
            self.joins += len(members - self.members)
            self.members, self.set_epoch = members, self.set_epoch + 1


@pytest.mark.invariant("I1", "I5", "I6")
def test_whoever_may_be_elected_has_everything_that_was_confirmed() -> None:
    joins = confirmed = 0
    for seed in range(300):
        cluster = Set(seed)
        for _ in range(150):
            cluster.move()
            confirm = cluster.bench.tracker.confirm_offset
            for member in cluster.members - {1}:
                assert cluster.copies.get(member, 0) >= confirm, (seed, member, cluster.members)
        joins += cluster.joins
        confirmed += cluster.bench.tracker.confirm_offset
    assert joins > 100, "replicas did join"
    assert confirmed > 10_000, "and something was confirmed"
