"""Three ways to dispatch, one outcome: from the requests, from the bytes just built, from the log."""

from __future__ import annotations

import random

import pytest

from penstock._hot.dispatch import Dispatcher
from penstock._hot.layout import DONE
from penstock._hot.mapped import MappedBytes
from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
TOPICS = (b"orders", b"payments", b"SCHEDULE_TOPIC_XXXX", b"%RETRY%group")
PROPERTIES = (
    b"",
    b"TAGS\x01TagA\x02",
    b"KEYS\x01one two  three\x02TAGS\x01t\x02",
    b"UNIQ_KEY\x017F00000100002A9F\x02KEYS\x01k\x02",
    b"DELAY\x013\x02TAGS\x01late\x02",
    b"DELAY\x01x\x02",
    b"KEYS\x01\xc3\xa9t\xc3\xa9\x02no separator",
    b"TAGS\x01first\x02TAGS\x01last\x02",
    b"TAGSX\x01no\x02KEYS",
    b"a\x01zero\0byte\x02",
)


def queues() -> list[QueueState]:
    return [QueueState(topic, number) for topic in TOPICS for number in range(2)]


def outcome(dispatcher: Dispatcher, states: list[QueueState]) -> list[object]:
    found: list[object] = [bytes(dispatcher.keys[: dispatcher.key_count * 20]), dispatcher.key_count]
    found += [(s.tail_bytes(0, s.tail_count), s.max_phy, s.tail_count) for s in states]
    return [
        *found,
        dispatcher.last_timestamp,
        dispatcher.count,
        len(dispatcher.touched),
        len(dispatcher.heavy),
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.invariant("I3")
def test_all_ways_give_the_same_entries_and_keys(seed: int) -> None:
    chance = random.Random(seed)
    written = queues()
    requests = [
        AppendRequest(
            chance.choice(written),
            chance.randbytes(chance.randrange(300)),
            chance.choice(PROPERTIES),
            1_700_000_000_000,
            HOST,
            sys_flag=chance.choice((0, 0, 0, 4, 8, 12)),
        )
        for _ in range(chance.randrange(1, 60))
    ]
    builder = RecordBuilder(HOST, 1 << 20)
    builder.begin(0, 1 << 20, 1_700_000_000_123)
    assert builder.add_all(requests, 0) == len(requests)
    outcomes = []
    for way in ("requests", "built", "mapped"):
        states = written if way == "requests" else queues()
        dispatcher = Dispatcher((1000, 5000, 10_000), True, 5)
        for state in states:
            dispatcher.add_queue(state)
        if way == "requests":
            dispatcher.direct, dispatcher.limit = True, builder.used
            dispatcher.show(requests, 0, builder.used)
            assert dispatcher.offset == builder.used
        elif way == "built":
            assert dispatcher.run_built(builder) == DONE
        else:
            assert dispatcher.run_mapped(MappedBytes(bytes(builder.content())), 0, builder.used, 0) == DONE
        outcomes.append(outcome(dispatcher, states))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.parametrize(
    ("direct", "offset", "limit"), [(False, 0, 1 << 20), (True, 1, 1 << 20), (True, 0, 10)]
)
def test_requests_are_shown_only_where_they_may_be(direct: bool, offset: int, limit: int) -> None:
    """Not under synchronous flush, not while something before them waits, not behind a bound."""
    queue = QueueState(b"orders", 0)
    requests = [AppendRequest(queue, b"x", b"KEYS\x01k\x02", 1_700_000_000_000, HOST)]
    builder = RecordBuilder(HOST, 1 << 20)
    size = builder.build(requests, 0, 1 << 20, 1_700_000_000_123)
    dispatcher = Dispatcher((), True)
    dispatcher.add_queue(queue)
    dispatcher.direct, dispatcher.offset, dispatcher.limit = direct, offset, limit
    dispatcher.show(requests, 0, size)
    assert (dispatcher.offset, dispatcher.count, dispatcher.key_count, queue.tail_count) == (offset, 0, 0, 0)


def test_a_store_without_an_index_keeps_no_room_for_keys() -> None:
    """Ten megabytes that every plan of a read of a store directory would fill with zeros."""
    queue = QueueState(b"orders", 0)
    builder = RecordBuilder(HOST, 1 << 20)
    builder.build([AppendRequest(queue, b"x", b"KEYS\x01k\x02", 1_700_000_000_000, HOST)], 0, 1 << 20, 1)
    for indexed in (True, False):
        dispatcher = Dispatcher((), indexed)
        dispatcher.add_queue(QueueState(b"orders", 0))
        assert dispatcher.run_built(builder) == DONE
        assert dispatcher.key_count == int(indexed)
        taken, count = dispatcher.take_keys()
        assert (bool(len(taken)), count) == (indexed, int(indexed))
        assert bool(len(dispatcher.keys)) == indexed
        dispatcher.give_back(taken)
