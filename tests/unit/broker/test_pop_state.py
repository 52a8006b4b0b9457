"""The decisions of POP without a broker, and the records from which they are made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.pop_records import (
    Acknowledged,
    CheckKey,
    CheckPoint,
    Moved,
    QueueKey,
    ack_record,
    check_point_record,
    read_record,
    reset_record,
)
from penstock.broker.pop_state import PopState
from penstock.errors import CodecError
from penstock.message import HostAddress, StoredMessage, decode_properties

QUEUE = QueueKey("T", "g", 0)
SAFE = 1 << 40
HOST = HostAddress("127.0.0.1", 10911)


def check(start: int, *offsets: int, time: int = 1_000, revive_queue: int = 0, due_ms: int = 0) -> CheckPoint:
    return CheckPoint(CheckKey(QUEUE, start, time), 60_000, revive_queue, offsets, due_ms=due_ms)


def stored(record: tuple[bytes, bytes], queue_offset: int = 0, position: int = 0) -> StoredMessage:
    """A record as it is read from the revive topic."""
    body, properties = record
    return StoredMessage(
        "revive", body, decode_properties(properties), 0, queue_offset, position, 100, 0, 0, 0, 0, HOST, 0, HOST, 0, 0
    )  # fmt: skip


def bodied(tag: str, **body: Any) -> StoredMessage:
    return replace(stored((json.dumps(body).encode(), b"")), properties={"TAGS": tag})


# -- records -----------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**40),
    st.sets(st.integers(0, 800), min_size=1, max_size=32),
    st.integers(0, 2**32 - 1),
)
def test_a_check_point_is_read_as_it_was_written(start: int, distances: set[int], bits: int) -> None:
    offsets = tuple(start + distance for distance in sorted(distances))
    written = check(start, *offsets, time=1_700_000_000_000)
    written.acked = bits & ((1 << len(offsets)) - 1)
    found = read_record(stored(check_point_record(written, "b"), 7, 500))
    assert isinstance(found, CheckPoint)
    assert (found.key, found.offsets, found.acked) == (written.key, offsets, written.acked)
    assert (found.invisible_ms, found.revive_offset, found.log_end) == (60_000, 7, 600)


def test_acknowledgements_and_moves_are_read_as_they_were_written() -> None:
    written = check(5, 5, 6, 9)
    for offsets in ((6,), (5, 9)):
        found = read_record(stored(ack_record(written, offsets, "b")))
        assert found == Acknowledged(written.key, offsets)
    assert read_record(stored(reset_record(QUEUE, 3, "b", 1))) == Moved(QUEUE, 3)


def test_what_rocketmq_writes_is_read() -> None:
    """Its long names, check points without distances, and those that only move an offset."""
    long = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "startOffset": 5,
        "popTime": 9,
        "brokerName": "b",
    }
    assert read_record(bodied("ack", ackOffset=7, **long)) == Acknowledged(CheckKey(QUEUE, 5, 9), (7,))
    short = {"c": "g", "t": "T", "q": 0, "so": 5, "pt": 9, "bn": "b"}
    found = read_record(bodied("ck", n=3, it=1, bm=-1, reviveTime=10, **short))
    assert isinstance(found, CheckPoint)
    assert (found.offsets, found.is_done) == ((5, 6, 7), True)
    assert read_record(bodied("ck", n=0, d=[], it=1, **short)) is None
    assert read_record(bodied("something new", **short)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"so": -1},
        {"so": 2**63},
        {"n": 33},
        {"n": 3, "d": [0, 0, 1]},
        {"n": 2, "d": [1, 0]},
        {"d": [*range(33)]},
        {"d": "0,1"},
        {"q": -1},
        {"q": {}},
    ],
)
def test_a_check_point_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    body = {"c": "g", "t": "T", "q": 0, "so": 5, "pt": 9, "n": 1, "d": [0], "it": 1, **wrong}
    with pytest.raises(CodecError):
        read_record(bodied("ck", **body))


# -- state -------------------------------------------------------------------------------------------------------


def committed(state: PopState, safe: int = SAFE) -> int | None:
    return dict(state.settle(safe)).get(QUEUE)


def hand_out(state: PopState, one: CheckPoint, offset: int, log_end: int) -> CheckPoint:
    state.add(one)
    state.advance(one.key.queue, one.end, one)
    state.stored(one, offset, log_end)
    return one


def test_an_offset_is_committed_in_order_and_when_it_is_safe() -> None:
    state = PopState(1)
    first = hand_out(state, check(0, 0, 1), 0, 100)
    hand_out(state, check(2, 2, 3), 1, 200)
    assert (state.position(QUEUE, -1), state.position(QUEUE, 9)) == (4, 9)
    assert committed(state, 99) is None
    assert committed(state, 100) == 2
    assert committed(state, 100) is None
    # All acknowledged is as good as safe.
    third = hand_out(state, check(4, 4), 2, 300)
    state.ack(third, 1)
    assert committed(state, 150) is None  # the second is still before it
    assert committed(state, 200) == 5
    assert state.queues == {}
    state.ack(first, 3)
    assert len(state) == 1


def test_what_took_the_place_of_a_pop_must_be_safe_too() -> None:
    state = PopState(1)
    old = check(0, 0)
    state.add(old)
    state.advance(QUEUE, 1, old)  # never stored: kept in memory
    old.done_at = 500
    state.ack(old, 1)
    assert committed(state, 499) is None
    assert committed(state, 500) == 1


def test_the_floor_is_the_first_open_record() -> None:
    state = PopState(2)
    first = hand_out(state, check(0, 0), 10, 1)
    second = hand_out(state, check(1, 1), 11, 2)
    assert (state.floor(0), state.lag(0), state.floor(1)) == (10, 2, 0)
    state.ack(second, 1)
    assert state.floor(0) == 10
    state.stored(first, 12, 3)  # written again
    assert (state.floor(0), state.oldest(0)) == (12, first)
    state.ack(first, 1)
    assert (state.floor(0), state.oldest(0)) == (13, None)


def test_times_that_are_over_come_once_and_in_order() -> None:
    state = PopState(1)
    checks = [hand_out(state, check(n, n, due_ms=due), n, n) for n, due in enumerate((30, 10, 20))]
    state.ack(checks[2], 1)
    assert state.due(9, 10) == []
    assert state.due(30, 1) == [checks[1]]
    assert state.due(30, 10) == [checks[0]]
    assert state.due(99, 10) == []
    state.again(checks[0], 99)
    assert state.due(99, 10) == [checks[0]]


def test_a_move_forgets_positions_and_nothing_else() -> None:
    state = PopState(1)
    one = hand_out(state, check(0, 0, 1), 0, 1)
    state.replay(Moved(QUEUE, 0), lambda _: 0)
    assert state.position(QUEUE, 0) == 0
    assert state.find(one.key) is one


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["pop", "ack", "change", "rewrite"]), st.integers(0, 30)), max_size=60)
)
def test_a_replay_comes_to_the_same_state(steps: list[tuple[str, int]]) -> None:
    """Whatever is done, whoever reads the records from the floor on knows what is open and where the group is."""
    state, position = PopState(1), 0
    log: list[StoredMessage] = []

    def write(record: tuple[bytes, bytes]) -> int:
        log.append(stored(record, len(log), 100 * len(log)))
        state.applied(0, len(log) - 1)
        return len(log) - 1

    for time, (step, number) in enumerate(steps):
        known = list(state.open.values())
        if step == "pop":
            one = check(position, *range(position, position + number % 4 + 1), time=time)
            position = one.end
            hand_out(state, one, (at := write(check_point_record(one, "b"))), 100 * at + 100)
        elif known and step == "ack":
            one = known[number % len(known)]
            offset = one.left()[0]
            write(ack_record(one, [offset], "b"))
            state.ack(one, one.bits([offset]))
        elif known and step == "change":
            one = known[number % len(known)]
            offset = one.left()[-1]
            new = check(offset, offset, time=time)
            state.add(new)
            state.stored(new, (at := write(check_point_record(new, "b"))), 100 * at + 100)
            write(ack_record(one, [offset], "b"))
            state.ack(one, one.bits([offset]))
        elif known:
            one = known[number % len(known)]
            state.stored(one, (at := write(check_point_record(one, "b"))), 100 * at + 100)
    offset = committed(state) or -1
    again = PopState(1)
    no_time: Callable[[CheckPoint], int] = lambda _: 0  # noqa: E731
    for message in log[state.floor(0) :]:
        again.applied(0, message.queue_offset)
        record = read_record(message)
        assert record is not None
        again.replay(record, no_time)
    assert {key: one.left() for key, one in again.open.items()} == {
        key: one.left() for key, one in state.open.items()
    }
    assert again.position(QUEUE, offset) == (position if log else offset)
    assert again.floor(0) == state.floor(0) or not state.open
