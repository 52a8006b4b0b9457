"""One group: who is told what and when; the barrier, lost events, members that go, and what `explain` says of it."""

from __future__ import annotations

import pytest

from penstock.coordinator.balance import (
    Answer,
    BalanceTimes,
    Beat,
    Dropped,
    GroupBalance,
    Instruction,
    Left,
    Nudge,
    QueuesSeen,
    Tick,
)
from penstock.coordinator.events import EventLines
from penstock.coordinator.explain import explain
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import (
    AssignmentEvent,
    ClientBeatBody,
    EventStatus,
    EventType,
    LeasedElsewhere,
)

QUEUES = tuple(MessageQueue("T", "b", number) for number in range(4))
TIMES = BalanceTimes()


class Bench:
    """A group at a time of its own; members hold what the test says."""

    def __init__(self, first_round_ms: int = 0) -> None:
        self.now_ms = 0
        self.group = GroupBalance("g", 3, TIMES, first_round_ms)
        self.held: dict[str, set[MessageQueue]] = {}
        self.sequence = 0
        self.queues(QUEUES)

    def queues(self, queues: tuple[MessageQueue, ...], brokers: str = "b") -> None:
        self.group.handle(QueuesSeen({"T": queues}, frozenset(brokers), self.now_ms))

    def beat(
        self,
        member: str,
        done: AssignmentEvent | None = None,
        *,
        topics: tuple[str, ...] = ("T",),
        refused: tuple[LeasedElsewhere, ...] = (),
        status: EventStatus = EventStatus.DONE,
    ) -> Answer:
        """With `done` the member has carried that event out, and says so."""
        held = self.held.setdefault(member, set())
        result = None
        if done is not None:
            if done.type.is_connect:
                held.update(set(done.queues) - {one.queue for one in refused})
            else:
                held.difference_update(done.queues)
            result = AssignmentEvent(done.rebalance_id, done.type, (), status)
        self.sequence += 1
        body = ClientBeatBody(
            member,
            "g",
            topics=topics,
            queues=tuple(held),
            result=result,
            refused=refused,
            sequence=self.sequence,
        )
        first, *self.rest = self.group.handle(Beat(body, self.now_ms))
        assert isinstance(first, Answer)
        return first

    def after(self, ms: int) -> list[Instruction]:
        self.now_ms += ms
        return self.group.handle(Tick(self.now_ms))

    def event(self, member: str) -> AssignmentEvent:
        event = self.beat(member).event
        assert event is not None
        return event

    def carry_out(self, member: str) -> None:
        """Until there is nothing left to do for the member."""
        event = self.beat(member).event
        while event is not None:
            event = self.beat(member, event).event


def two_of_four() -> Bench:
    """Two members with two queues each."""
    bench = Bench()
    for member in ("a", "b"):
        bench.beat(member)
    bench.after(500)
    for member in ("a", "b"):
        bench.carry_out(member)
    assert [len(bench.held[member]) for member in ("a", "b")] == [2, 2]
    return bench


def test_members_that_come_together_are_divided_together() -> None:
    bench = Bench()
    assert bench.beat("a") == Answer(None, False)
    assert bench.after(499) == []
    bench.beat("b")
    assert bench.after(1) == [Nudge("a"), Nudge("b")]
    event = bench.event("a")
    assert event.type is EventType.ONLY_CONNECT
    assert event.queues == QUEUES[:2]
    assert event.status is EventStatus.PROCESSING
    assert event.term == 3
    assert bench.beat("a", event) == Answer(None, True)


@pytest.mark.feature("coordinator-balancing", "tubemq")
def test_a_new_leader_waits_for_reports_and_then_moves_nothing() -> None:
    bench = Bench(first_round_ms=5_000)
    bench.held = {"a": set(QUEUES[:1]), "b": set(QUEUES[1:3])}
    bench.beat("a")
    bench.after(4_999)
    bench.beat("b")
    assert bench.group.round == 0
    assert "the first round is in" in explain(bench.group, 3, bench.now_ms).state
    bench.after(1)
    # Only the one that nobody reports is given out.
    assert bench.beat("b").event is None
    assert bench.event("a").queues == QUEUES[3:]


@pytest.mark.feature("coordinator-balancing", "tubemq")
def test_every_disconnect_is_finished_before_any_connect() -> None:
    bench = two_of_four()
    bench.queues((*QUEUES, MessageQueue("T", "b", 4), MessageQueue("T", "b", 5)))
    bench.beat("c")
    bench.held["c"] = set()
    bench.after(500)
    # Two new queues for c: nobody has to let go.
    assert bench.event("c").type is EventType.ONLY_CONNECT
    bench.carry_out("c")
    bench.group.handle(Left("c", bench.now_ms))
    bench.held.pop("c")
    bench.after(500)
    for member in ("a", "b"):
        bench.carry_out(member)
    bench.beat("d")
    bench.beat("e")
    bench.held.update(d=set(), e=set())
    nudged = bench.after(500)
    assert nudged == [Nudge("a"), Nudge("b")], "d and e have to wait"
    first, second = bench.event("a"), bench.event("b")
    assert first.type is second.type is EventType.ONLY_DISCONNECT
    assert bench.beat("d").event is None
    assert bench.beat("a", first).event is None
    # b has not let go: not even what a gave up is given to anybody.
    assert bench.beat("d").event is None
    assert bench.beat("e").event is None
    bench.beat("b", second)
    assert bench.rest == [Nudge("d"), Nudge("e")]
    assert bench.event("d").type is EventType.ONLY_CONNECT


def test_giving_up_and_taking_over_in_one_round_come_in_this_order() -> None:
    lines = EventLines()
    lines.put("a", 1, QUEUES[:1], QUEUES[1:2])
    nobody = lambda member, queues: False  # noqa: E731
    first = lines.deliver("a", nobody)
    assert first is not None
    assert (first.type, first.queues) == (EventType.DISCONNECT, QUEUES[:1])
    assert lines.deliver("a", nobody) == first
    assert lines.finish("a", first) is not None
    second = lines.deliver("a", nobody)
    assert second is not None
    assert (second.type, second.queues) == (EventType.CONNECT, QUEUES[1:2])
    assert lines.finish("a", first) is None, "a result that came twice"
    assert lines.finish("a", second) is not None
    assert len(lines) == 0


def test_a_connect_waits_for_whoever_still_says_to_have_the_queue() -> None:
    lines = EventLines()
    lines.put("a", 1, (), QUEUES[:1])
    assert lines.deliver("a", lambda member, queues: True) is None
    assert lines.deliver("a", lambda member, queues: False) is not None
    lines.put("b", 1, (), QUEUES[1:2])
    assert lines.given_to_others("b", QUEUES[:1])
    assert not lines.given_to_others("a", QUEUES[:1])
    lines.forget("a")
    assert not lines.given_to_others("b", QUEUES[:1])


@pytest.mark.fault("F3")
def test_an_event_is_told_again_until_its_result_is_there() -> None:
    bench = Bench()
    bench.beat("a")
    bench.after(500)
    event = bench.event("a")
    assert bench.event("a") == event
    bench.beat("a", event)
    # The answer to the result was lost: the member says it once more, and nothing comes of it.
    assert bench.beat("a", event) == Answer(None, True)


def test_a_beat_that_was_overtaken_changes_nothing() -> None:
    bench = two_of_four()
    old = ClientBeatBody("a", "g", topics=("T",), sequence=1)
    assert bench.group.handle(Beat(old, bench.now_ms)) == [Answer(None, False)]
    assert len(bench.group.members["a"].held) == 2


@pytest.mark.fault("F1")
def test_a_member_whose_connection_dropped_may_come_back() -> None:
    bench = two_of_four()
    bench.group.handle(Dropped("b", bench.now_ms))
    bench.after(2_999)
    assert "b" in bench.group.members
    assert "its connection dropped" in explain(bench.group, 3, bench.now_ms).members[1].state
    bench.beat("b")
    bench.after(10_000)
    assert "b" in bench.group.members
    bench.group.handle(Dropped("b", bench.now_ms))
    bench.after(3_000)
    assert "b" not in bench.group.members
    assert bench.event("a").queues == QUEUES[2:]


def test_what_a_member_could_not_take_over_is_given_out_again() -> None:
    bench = Bench()
    bench.beat("a")
    bench.after(500)
    event = bench.event("a")
    refused = LeasedElsewhere(QUEUES[0], "somebody", 700)
    bench.beat("a", event, refused=(refused,))
    assert (
        "the broker leases it to somebody for up to 700 ms"
        in explain(bench.group, 3, bench.now_ms).queues[0].why
    )
    assert bench.after(999) == []
    assert bench.after(1) == [Nudge("a")]
    assert bench.event("a").queues == QUEUES[:1]


def test_a_queue_that_a_member_lost_is_given_out_again() -> None:
    bench = two_of_four()
    lost = bench.held["a"].pop()
    bench.beat("a")
    bench.after(1_000)
    assert bench.event("a").queues == (lost,)


def test_a_change_while_events_are_under_way_is_not_forgotten() -> None:
    bench = Bench()
    bench.beat("a")
    bench.after(500)
    event = bench.event("a")
    bench.beat("b")
    assert bench.after(500) == []
    bench.beat("a", event)
    # Made up for as soon as the event is done, long before the timer.
    bench.after(0)
    assert bench.event("a").type is EventType.ONLY_DISCONNECT


@pytest.mark.feature("coordinator-balancing", "tubemq")
def test_unfinished_events_are_dropped_after_ten_rounds() -> None:
    bench = two_of_four()
    bench.beat("c")
    bench.after(500)
    stuck = bench.event("b")
    for number in range(9):
        bench.after(TIMES.interval_ms)
        assert bench.group.unfinished_rounds == number + 1
    text = explain(bench.group, 3, bench.now_ms).state
    assert "waiting for b, for 9 rounds" in text
    before = bench.group.round
    bench.after(TIMES.interval_ms)
    assert bench.group.round == before + 1
    again = bench.event("b")
    assert again.rebalance_id > stuck.rebalance_id


@pytest.mark.fault("F3")
def test_a_connect_that_nobody_was_told_of_does_not_wait_for_ever() -> None:
    bench = Bench()
    bench.beat("a")
    bench.after(500)
    bench.carry_out("a")
    bench.beat("b")
    bench.after(500)
    # a is to let go and b to take over; but a is gone before it heard of it, and comes back with all it had.
    bench.group.handle(Dropped("a", bench.now_ms))
    bench.after(3_000)
    bench.beat("a")
    assert bench.beat("b").event is None
    bench.after(500)
    assert bench.event("a").type is EventType.ONLY_DISCONNECT


@pytest.mark.fault("F3")
def test_a_connect_whose_answer_was_lost_waits_for_who_came_back_meanwhile() -> None:
    bench = Bench()
    bench.held["a"] = set(QUEUES)
    bench.beat("b")
    bench.after(500)
    # b is told to take everything over and never hears it; then a is there, and has all of it.
    assert bench.event("b").type is EventType.ONLY_CONNECT
    bench.beat("a")
    bench.after(500)
    assert bench.beat("b").event is None
    bench.after(0)
    assert bench.event("a").type is EventType.ONLY_DISCONNECT
    bench.carry_out("a")
    assert len(bench.event("b").queues) == 2


def test_queues_of_a_broker_that_has_not_reported_are_left_alone() -> None:
    bench = two_of_four()
    bench.queues((), brokers="x")
    bench.after(500)
    assert bench.beat("a").event is None
    bench.queues((), brokers="b")
    bench.after(500)
    assert bench.event("a").type is EventType.ONLY_DISCONNECT


def test_whether_a_member_has_its_share() -> None:
    bench = two_of_four()
    assert bench.beat("a") == Answer(None, True)
    bench.beat("c")
    assert bench.beat("a") == Answer(None, False), "a round is due"
    bench.after(500)
    assert bench.beat("c") == Answer(None, False), "it waits for b"
    bench.carry_out("b")
    bench.carry_out("c")
    assert bench.beat("c") == Answer(None, True)
    bench.beat("c", topics=("T", "U"))
    assert bench.beat("c", topics=("T", "U")).is_divided is False


def test_every_reason_is_said() -> None:
    bench = Bench()
    bench.held["a"] = {QUEUES[0]}
    bench.beat("a")
    bench.after(500)
    bench.carry_out("a")
    kept, given = (item for item in explain(bench.group, 3, bench.now_ms).queues[:2])
    assert kept.why == "was a's before round 1 and stays: its share is 4 of 4 among 1 member"
    assert given.why == "was free and went to a in round 1: its share is 4 of 4 among 1 member"
    bench.beat("b")
    bench.after(500)
    moving = explain(bench.group, 3, bench.now_ms).queues[-1]
    assert (moving.owner, moving.wanted) == ("a", "b")
    assert "moved from a to b in round 2" in moving.why
    assert "a will be told to give it up; b will be told to take it over" in moving.why
    states = [member.state for member in explain(bench.group, 3, bench.now_ms).members]
    assert states == ["is to give up 2 queues", "is to take over 2 queues"]
    bench.carry_out("a")
    bench.carry_out("b")
    bench.after(TIMES.interval_ms)
    settled = explain(bench.group, 3, bench.now_ms)
    assert settled.state == "settled; divided 0 ms ago"
    assert "moved from a to b in round 2" in settled.queues[-1].why
    bench.beat("a", topics=())
    bench.beat("b", topics=())
    bench.after(500)
    assert "no member subscribes" in explain(bench.group, 3, bench.now_ms).queues[0].why
