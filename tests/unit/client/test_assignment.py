"""What a coordinator told a consumer: one event at a time, told twice, too late, refused."""

from __future__ import annotations

import pytest

from penstock.client.assignment import Assignment
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import AssignmentEvent, EventStatus, EventType, LeasedElsewhere

A, B, C = (MessageQueue("T", "b", number) for number in range(3))


def connect(number: int, *queues: MessageQueue) -> AssignmentEvent:
    return AssignmentEvent(number, EventType.CONNECT, queues)


def disconnect(number: int, *queues: MessageQueue) -> AssignmentEvent:
    return AssignmentEvent(number, EventType.DISCONNECT, queues)


@pytest.fixture
def assignment() -> Assignment:
    return Assignment()


def test_an_event_is_done_when_it_is_carried_out(assignment: Assignment) -> None:
    assert assignment.told(connect(1, A, B))
    assert assignment.wanted == (A, B)
    assert not assignment.look([A, B], [A])
    assert assignment.look([A, B], [A, B])
    assert assignment.working is None
    done = assignment.result
    assert done == AssignmentEvent(1, EventType.CONNECT, (), EventStatus.DONE)
    assert not assignment.look([A, B], [A, B]), "said once"
    assignment.heard(None)
    assert assignment.result == done
    assignment.heard(done)
    assert assignment.result is None


def test_a_disconnect_is_done_when_the_queue_is_in_no_state_any_more(assignment: Assignment) -> None:
    assignment.told(connect(1, A, B))
    assignment.look([A, B], [A, B])
    assert assignment.told(disconnect(2, A))
    assert assignment.wanted == (B,)
    # Being released: reported still, so that nobody is given it.
    assert assignment.report([A, B]) == (A, B)
    assert not assignment.look([A, B], [B])
    assert assignment.look([B], [B])
    assert assignment.report([B]) == (B,)


@pytest.mark.fault("F3")
def test_what_was_told_already_is_not_begun_again(assignment: Assignment) -> None:
    assert assignment.told(disconnect(2, A))
    assert not assignment.told(disconnect(2, A))
    assert assignment.told(connect(2, B))
    assert not assignment.told(connect(2, B))
    assert not assignment.told(disconnect(2, A))
    assert not assignment.told(connect(1, C))
    assert assignment.wanted == (B,)
    assert assignment.told(disconnect(3, B))


def test_a_leader_of_an_earlier_term_is_not_listened_to(assignment: Assignment) -> None:
    assert assignment.is_news(1)
    assert assignment.is_news(2)
    assert not assignment.is_news(1)
    assert assignment.is_news(2)


def test_a_queue_that_others_have_is_dropped_and_said_to_be(assignment: Assignment) -> None:
    assignment.told(connect(1, A, B))
    elsewhere = LeasedElsewhere(A, "somebody", 5)
    assignment.dropped([A], [elsewhere])
    assert assignment.refused == {A: elsewhere}
    assert assignment.look([B], [B])
    assert assignment.report([B]) == (B,)
    assignment.told(connect(2, A))
    assert assignment.refused == {}


def test_only_topics_that_are_subscribed_are_wanted(assignment: Assignment) -> None:
    other = MessageQueue("U", "b", 0)
    assignment.told(connect(1, A, other))
    assignment.keep_topics(["T"])
    assert assignment.wanted == (A,)
    assert assignment.look([A], [A])
