"""How queues change hands: one step after the other, never held twice, dropped before others are taken."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.client.allocation import Averagely
from penstock.client.rebalance import (
    Announce,
    Assigned,
    Changed,
    Lock,
    LockAnswered,
    QueueState,
    Rebalance,
    Release,
    Released,
    Start,
    Started,
    StartFailed,
    Stopped,
    Stuck,
    TopicLeft,
    TopicSeen,
    TryAgain,
)
from penstock.protocol.bodies import MessageQueue

ME, OTHER = "10.0.0.1@1", "10.0.0.2@1"
Q = [MessageQueue("T", "b", number) for number in range(4)]


def make(*, orderly: bool = False, broadcasting: bool = False) -> Rebalance:
    return Rebalance(ME, Averagely(), orderly=orderly, broadcasting=broadcasting)


def seen(*members: str, queues: list[MessageQueue] | None = None) -> TopicSeen:
    return TopicSeen("T", tuple(Q if queues is None else queues), members)


def hold(core: Rebalance, queues: list[MessageQueue]) -> None:
    for queue in queues:
        assert core.handle(Started(queue)) == []


@pytest.mark.seed("S3-18")
def test_alone_in_the_group_it_starts_every_queue() -> None:
    core = make()
    assert core.handle(seen(ME)) == [*(Start(queue) for queue in Q), Changed("T", tuple(Q))]
    assert not core.is_settled
    hold(core, Q)
    assert core.is_settled
    assert core.handle(seen(ME)) == []


@pytest.mark.seed("S3-17")
def test_a_second_member_gets_half_and_the_change_is_told() -> None:
    core = make()
    core.handle(seen(ME))
    hold(core, Q)
    assert core.handle(seen(ME, OTHER)) == [Release(Q[2]), Release(Q[3]), Changed("T", tuple(Q[:2]))]
    assert core.handle(Released(Q[2])) == []
    assert core.handle(Released(Q[3])) == []
    assert core.is_settled


def test_releases_come_before_what_is_taken_over() -> None:
    core = make()
    core.handle(seen(ME, queues=Q[:2]))
    hold(core, Q[:2])
    steps = core.handle(seen(ME, queues=Q[2:]))
    assert steps == [Release(Q[0]), Release(Q[1]), Start(Q[2]), Start(Q[3]), Changed("T", (Q[2], Q[3]))]


def test_without_a_member_list_nothing_changes() -> None:
    core = make()
    core.handle(seen(ME))
    hold(core, Q)
    assert core.handle(TopicSeen("T", tuple(Q), None)) == []
    assert core.is_settled


def test_a_consumer_that_its_group_does_not_list_waits_one_round_before_it_lets_go() -> None:
    core = make()
    core.handle(seen(ME))
    hold(core, Q)
    assert core.handle(seen(OTHER)) == [Announce(), TryAgain(1_000)]
    steps = core.handle(seen(OTHER))
    assert [step for step in steps if isinstance(step, Release)] == [Release(queue) for queue in Q]
    assert Announce() in steps
    for queue in Q:
        core.handle(Released(queue))
    assert Start(Q[0]) in core.handle(seen(ME, OTHER))


def test_a_queue_wanted_again_while_it_is_released_waits_for_that() -> None:
    core = make()
    core.handle(seen(ME))
    hold(core, Q)
    core.handle(seen(ME, OTHER))
    assert core.state(Q[3]) is QueueState.RELEASING
    assert core.handle(seen(ME)) == [Changed("T", tuple(Q))]
    assert core.handle(Released(Q[3])) == [Start(Q[3])]


def test_broadcasting_takes_every_queue_whoever_else_is_there() -> None:
    core = make(broadcasting=True, orderly=True)
    assert core.handle(TopicSeen("T", tuple(Q))) == [*(Start(queue) for queue in Q), Changed("T", tuple(Q))]


def test_in_order_locks_come_first_and_a_refused_one_is_tried_again() -> None:
    core = make(orderly=True)
    assert core.handle(seen(ME, queues=Q[:2])) == [Lock((Q[0], Q[1])), Changed("T", (Q[0], Q[1]))]
    steps = core.handle(LockAnswered((Q[0], Q[1]), frozenset([Q[0]])))
    assert steps == [Start(Q[0]), TryAgain(1_000)]
    assert core.handle(seen(ME, queues=Q[:2])) == [Lock((Q[1],))]


def test_a_lock_that_is_granted_too_late_is_given_back() -> None:
    core = make(orderly=True)
    core.handle(seen(ME, queues=Q[:1]))
    assert core.handle(TopicLeft("T")) == [Changed("T", ())]
    assert core.handle(LockAnswered((Q[0],), frozenset([Q[0]]))) == [Release(Q[0])]
    assert core.handle(Released(Q[0])) == []
    assert core.states == {}


def test_a_start_that_failed_is_not_repeated_at_once() -> None:
    core = make()
    core.handle(seen(ME, queues=Q[:1]))
    assert core.handle(StartFailed(Q[0])) == [Release(Q[0])]
    assert core.handle(Released(Q[0])) == [TryAgain(1_000)]
    assert core.handle(seen(ME, queues=Q[:1])) == [Start(Q[0])]


def test_a_stuck_queue_begins_anew() -> None:
    core = make()
    core.handle(seen(ME, queues=Q[:1]))
    assert core.handle(Stuck(Q[0])) == []  # not held yet
    hold(core, Q[:1])
    assert core.handle(Stuck(Q[0])) == [Release(Q[0])]
    assert core.handle(Released(Q[0])) == [Start(Q[0])]


@pytest.mark.seed("S3-15")
def test_assigned_queues_are_the_users_own_choice() -> None:
    core = make()
    other = MessageQueue("U", "b", 0)
    first = core.handle(Assigned((Q[0], other)))
    assert [step for step in first if isinstance(step, Start)] == [Start(Q[0]), Start(other)]
    hold(core, [Q[0], other])
    second = core.handle(Assigned((Q[1],)))
    assert [step for step in second if not isinstance(step, Changed)] == [
        Release(Q[0]),
        Release(other),
        Start(Q[1]),
    ]


def test_stopping_lets_go_of_everything_and_wants_nothing_more() -> None:
    core = make()
    core.handle(seen(ME))
    hold(core, Q[:2])
    assert core.handle(Stopped()) == [Release(queue) for queue in Q]
    assert core.handle(seen(ME)) == []
    assert core.handle(Released(Q[0])) == []


class TwoMembers(RuleBasedStateMachine):
    """Two orderly consumers, a broker that grants each lock once, and events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cores = {
            name: Rebalance(name, Averagely(), orderly=True, broadcasting=False) for name in (ME, OTHER)
        }
        self.members = [ME]
        self.locks: dict[MessageQueue, str] = {}
        self.held: dict[str, set[MessageQueue]] = {ME: set(), OTHER: set()}
        self.pending: dict[str, list[object]] = {ME: [], OTHER: []}

    def give(self, name: str, event: object) -> None:
        core = self.cores[name]
        steps = core.handle(event)  # type: ignore[arg-type]
        core.validate()
        kinds = [isinstance(step, Lock | Start) for step in steps if isinstance(step, Lock | Start | Release)]
        assert kinds == sorted(kinds), "a queue was taken over before another was dropped"
        self.pending[name] += [step for step in steps if isinstance(step, Release | Lock | Start)]

    @rule(both=st.booleans())
    def membership(self, both: bool) -> None:
        self.members = [ME, OTHER] if both else [ME]

    @rule(name=st.sampled_from([ME, OTHER]))
    def look(self, name: str) -> None:
        if name in self.members:
            self.give(name, seen(*self.members))
        else:
            self.give(name, TopicLeft("T"))

    @precondition(lambda self: any(self.pending.values()))
    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([n for n, steps in self.pending.items() if steps]))
        # In the order of their giving for one queue, any order among queues; the first is always allowed.
        step = self.pending[name].pop(0)
        match step:
            case Lock(queues):
                granted = frozenset(q for q in queues if self.locks.get(q, name) == name)
                self.locks.update(dict.fromkeys(granted, name))
                self.give(name, LockAnswered(queues, granted))
            case Start(queue):
                if self.cores[name].state(queue) is QueueState.STARTING:
                    if data.draw(st.booleans()):
                        self.held[name].add(queue)
                        self.give(name, Started(queue))
                    else:
                        self.give(name, StartFailed(queue))
            case Release(queue):
                self.held[name].discard(queue)
                if self.locks.get(queue) == name:
                    del self.locks[queue]
                self.give(name, Released(queue))

    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        assert not self.held[ME] & self.held[OTHER]

    @invariant()
    def what_is_held_is_locked(self) -> None:
        for name, queues in self.held.items():
            for queue in queues:
                assert self.locks.get(queue) == name

    def teardown(self) -> None:
        """I10: once nothing changes any more, every queue has exactly one owner."""
        for _ in range(50):
            for name in (ME, OTHER):
                if name in self.members:
                    self.give(name, seen(*self.members))
                else:
                    self.give(name, TopicLeft("T"))
                while self.pending[name]:
                    step = self.pending[name].pop(0)
                    match step:
                        case Lock(queues):
                            granted = frozenset(q for q in queues if self.locks.get(q, name) == name)
                            self.locks.update(dict.fromkeys(granted, name))
                            self.give(name, LockAnswered(queues, granted))
                        case Start(queue):
                            if self.cores[name].state(queue) is QueueState.STARTING:
                                self.held[name].add(queue)
                                self.give(name, Started(queue))
                        case Release(queue):
                            self.held[name].discard(queue)
                            if self.locks.get(queue) == name:
                                del self.locks[queue]
                            self.give(name, Released(queue))
        assert self.held[ME] | self.held[OTHER] == set(Q)
        for name in self.members:
            assert self.cores[name].is_settled


TestTwoMembers = pytest.mark.invariant("I10")(TwoMembers.TestCase)
TestTwoMembers.settings = settings(stateful_step_count=30)
