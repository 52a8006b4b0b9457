"""Messages in flight: the lowest that is not done counts, and pulling pauses before there are too many."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.process_queue import ProcessQueue, QueueLimits
from tests.unit.client.consumer_messages import QUEUE, received


def make(next_offset: int = 0, *, orderly: bool = False, **limits: int) -> ProcessQueue:
    return ProcessQueue(QUEUE, next_offset, QueueLimits(**limits), orderly=orderly)


@pytest.mark.seed("S3-12")
def test_the_lowest_message_that_is_not_done_is_what_is_committed() -> None:
    owner = make(40)
    assert owner.committed == 40
    messages = [received(offset) for offset in range(40, 45)]
    assert owner.put(messages, 45) == messages
    assert owner.committed == 40
    assert owner.done(messages[1:3]) == 40
    assert owner.done(messages[:1]) == 43
    assert owner.done(messages[3:]) == 45
    assert len(owner) == 0
    assert owner.bytes == 0


@pytest.mark.seed("S3-11")
@pytest.mark.seed("S3-13")
def test_pulled_messages_wait_here_whatever_becomes_of_earlier_ones() -> None:
    owner = make()
    first = received(0)
    owner.put([first], 1)
    owner.put([received(1)], 2)
    assert len(owner) == 2
    assert owner.lowest is first
    assert owner.highest_offset == 1


def test_offsets_that_were_filtered_out_are_done_with_once_nothing_is_left() -> None:
    owner = make()
    message = received(3)
    owner.put([message], 10)
    assert owner.committed == 3
    assert owner.done([message]) == 10


def test_what_is_pulled_twice_is_taken_once() -> None:
    owner = make()
    owner.put([received(0), received(1)], 2)
    assert [message.queue_offset for message in owner.put([received(1), received(2)], 3)] == [2]
    assert len(owner) == 3


def test_done_twice_counts_once() -> None:
    owner = make()
    messages = [received(0), received(1)]
    owner.put(messages, 2)
    owner.done(messages[:1])
    assert owner.done(messages[:1]) == 1
    assert len(owner) == 1


@pytest.mark.parametrize("limits", [{"messages": 2}, {"bytes": 150}, {"span": 1}])
def test_pulling_pauses_at_each_limit_and_goes_on_below_it(limits: dict[str, int]) -> None:
    owner = make(**limits)
    messages = [received(0), received(2)]
    owner.put(messages[:1], 2)
    owner.put(messages[1:], 3)
    assert owner.is_full
    woken = []
    owner.when_room(lambda: woken.append(True))
    owner.done(messages[1:] if "span" not in limits else messages[:1])
    assert not owner.is_full
    assert woken == [True]


def test_bytes_are_held_as_long_as_any_message_of_their_pull_is() -> None:
    owner = make()
    messages = [received(0), received(1)]
    owner.put(messages, 2)
    whole = owner.bytes
    assert whole == sum(message.size for message in messages)
    owner.done(messages[1:])
    assert owner.bytes == whole
    owner.done(messages[:1])
    assert owner.bytes == 0


def test_what_is_done_is_not_kept_for_the_sake_of_one_that_hangs() -> None:
    owner = make()
    owner.put([received(0)], 1)
    message = received(1)
    gone = sys.getrefcount(message)
    owner.put([message], 2)
    assert sys.getrefcount(message) > gone
    assert owner.done([message]) == 0
    assert sys.getrefcount(message) == gone


def test_the_defaults_are_those_of_the_reference() -> None:
    limits = QueueLimits()
    assert (limits.messages, limits.bytes, limits.span) == (1_000, 100 * 1024 * 1024, 2_000)


def test_in_order_the_span_does_not_matter() -> None:
    owner = make(orderly=True, span=1)
    owner.put([received(0), received(1000)], 1001)
    assert not owner.is_full


def test_a_retired_queue_still_counts_what_is_in_hand() -> None:
    owner = make()
    messages = [received(0), received(1)]
    owner.put(messages, 2)
    owner.waiting.append(messages[1])
    owner.retire()
    assert not owner.gives_out
    assert owner.in_hand == 1
    idle = []
    owner.when_idle(lambda: idle.append(True))
    assert owner.done(messages[:1]) == 1
    assert idle == [True]


def test_a_dropped_queue_counts_nothing() -> None:
    owner = make()
    message = received(0)
    owner.put([message], 1)
    idle = []
    owner.when_idle(lambda: idle.append(True))
    owner.drop()
    assert idle == [True]
    assert owner.done([message]) == -1
    assert owner.put([received(1)], 2) == []
    assert message not in owner


def test_pausing_keeps_what_is_there() -> None:
    owner = make()
    woken = []
    owner.when_room(lambda: woken.append(True))
    owner.pause()
    assert not owner.gives_out
    owner.resume()
    assert owner.gives_out
    assert woken == [True]


def test_without_its_lock_nothing_is_given_out() -> None:
    owner = make(orderly=True)
    owner.is_locked = False
    assert not owner.gives_out


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_whatever_the_order_nothing_undone_is_ever_committed(steps: list[int], random: object) -> None:
    owner = make()
    offset, messages = 0, []
    for step in steps:
        offset += step
        messages.append(received(offset))
    owner.put(messages, offset + 1)
    left = list(messages)
    random.shuffle(left)  # type: ignore[attr-defined]
    while left:
        message = left.pop()
        committed = owner.done([message])
        assert committed == min((one.queue_offset for one in left), default=offset + 1)
