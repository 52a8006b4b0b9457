"""Dividing queues among members: one owner each, level within one, and nothing moves without need."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.division import Cause, Division, divide
from penstock.protocol.bodies import MessageQueue

MEMBERS = [f"m{number}" for number in range(7)]
TOPICS = ["A", "B", "%RETRY%g"]
Situation = tuple[dict[str, set[str]], dict[str, set[MessageQueue]], dict[str, tuple[MessageQueue, ...]]]


def queues_of(topic: str, count: int) -> tuple[MessageQueue, ...]:
    """On two brokers, as real ones are."""
    return tuple(MessageQueue(topic, f"b-{number % 2}", number // 2) for number in range(count))


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
some_members = st.sets(st.sampled_from(MEMBERS), min_size=1)


@st.composite
def situations(draw: st.DrawFn, *, alike: bool = True) -> Situation:
    """Topics by member, what each holds, and the queues there are; some holders and queues may be gone."""
    queues = {topic: queues_of(topic, count) for topic, count in draw(counts).items()}
    members = sorted(draw(some_members))
    topics = {member: set(TOPICS) if alike else draw(st.sets(st.sampled_from(TOPICS))) for member in members}
    held: dict[str, set[MessageQueue]] = {member: set() for member in members}
    for queue in [*(q for found in queues.values() for q in found), MessageQueue("A", "gone", 0)]:
        owner = draw(st.sampled_from([None, *members]))
        if owner is not None:
            held[owner].add(queue)
    return topics, held, queues


def loads(division: Division, topic: str | None = None) -> Counter[str]:
    found: Counter[str] = Counter()
    for member, share in division.shares.items():
        found[member] = sum(1 for queue in share if topic is None or queue.topic == topic)
    return found


def moved(division: Division, held: dict[str, set[MessageQueue]]) -> int:
    """Queues that have a holder now and get another."""
    return sum(1 for member, queues in held.items() for queue in queues - division.shares[member])


@pytest.mark.feature("coordinator-balancing", "tubemq")
@given(situations(alike=False))
def test_every_queue_has_exactly_one_owner_who_subscribes(situation: Situation) -> None:
    topics, held, queues = situation
    division = divide(topics, held, queues)
    given_out = [queue for share in division.shares.values() for queue in share]
    assert len(given_out) == len(set(given_out))
    wanted = {topic for member in topics.values() for topic in member}
    assert set(given_out) == {q for topic, found in queues.items() if topic in wanted for q in found}
    for member, share in division.shares.items():
        assert {queue.topic for queue in share} <= topics[member]
    for queue, reason in division.reasons.items():
        assert (reason.cause is Cause.UNWANTED) == (queue.topic not in wanted)
        assert reason.owner == "" or queue in division.shares[reason.owner]


@pytest.mark.feature("coordinator-balancing", "tubemq")
@given(situations())
def test_level_within_one_for_each_topic_and_over_all(situation: Situation) -> None:
    topics, held, queues = situation
    division = divide(topics, held, queues)
    for topic in [None, *queues]:
        found = loads(division, topic).values()
        assert max(found) - min(found) <= 1, topic


@given(situations(alike=False))
def test_members_that_differ_are_level_where_they_could_share(situation: Situation) -> None:
    topics, held, queues = situation
    division = divide(topics, held, queues)
    totals = loads(division)
    for topic in queues:
        found = loads(division, topic)
        able = [member for member in topics if topic in topics[member]]
        if able:
            assert max(found[m] for m in able) - min(found[m] for m in able) <= 1
        for one, other in product(able, able):
            # A queue that could go from one to the other without unsettling its topic would have gone.
            if found[one] > found[other]:
                assert totals[one] - totals[other] <= 1


@given(situations(alike=False))
def test_what_is_divided_already_stays(situation: Situation) -> None:
    topics, held, queues = situation
    division = divide(topics, held, queues)
    again = divide(topics, division.shares, queues)
    assert again.shares == division.shares
    assert all(reason.cause in (Cause.KEPT, Cause.UNWANTED) for reason in again.reasons.values())


@given(st.integers(0, 24), st.lists(st.integers(0, 6), min_size=1, max_size=7), st.data())
def test_one_topic_moves_as_little_as_possible(count: int, want: list[int], data: st.DataObject) -> None:
    members = MEMBERS[: len(want)]
    queues = queues_of("A", count)
    held: dict[str, set[MessageQueue]] = {member: set() for member in members}
    for queue in queues:
        owner = data.draw(st.sampled_from([None, *members]))
        if owner is not None:
            held[owner].add(queue)
    division = divide({member: {"A"} for member in members}, held, {"A": queues})
    # Everybody may keep `base`, and the `odd` largest holders one more: nobody can do better.
    base, odd = divmod(count, len(members))
    over = sorted((max(0, len(held[member]) - base) for member in members), reverse=True)
    spared = sum(1 for number in over[:odd] if number)
    assert moved(division, held) == sum(over) - spared


@given(situations())
def test_several_topics_move_little_more_than_the_best_possible(situation: Situation) -> None:
    """Compared with every choice of odd queues there is; the greedy one may need a few moves more, for the sum."""
    topics, held, queues = situation
    members = sorted(topics)
    real = {member: {q for q in held[member] if q in queues.get(q.topic, ())} for member in members}
    division = divide(topics, real, queues)
    best = min(_moves(choice, members, real, queues) for choice in _choices(members, queues))
    assert best <= moved(division, real) <= best + len(queues)


def _choices(
    members: list[str], queues: dict[str, tuple[MessageQueue, ...]]
) -> list[tuple[frozenset[str], ...]]:
    per_topic = [
        [frozenset(lucky) for lucky in combinations(members, len(found) % len(members))]
        for found in queues.values()
    ]
    level = []
    for choice in product(*per_topic):
        extra = [sum(member in lucky for lucky in choice) for member in members]
        if max(extra) - min(extra) <= 1:
            level.append(choice)
    return level


def _moves(
    choice: tuple[frozenset[str], ...],
    members: list[str],
    held: dict[str, set[MessageQueue]],
    queues: dict[str, tuple[MessageQueue, ...]],
) -> int:
    total = 0
    for (topic, found), lucky in zip(queues.items(), choice, strict=True):
        base = len(found) // len(members)
        for member in members:
            mine = sum(1 for queue in held[member] if queue.topic == topic)
            total += max(0, mine - base - (member in lucky))
    return total


@pytest.mark.feature("coordinator-balancing", "tubemq")
@pytest.mark.seed("S0-39")
def test_the_first_division_hands_out_blocks_of_neighbours() -> None:
    queues = tuple(MessageQueue("A", "b", number) for number in range(8))
    division = divide({member: {"A"} for member in MEMBERS[:3]}, {}, {"A": queues})
    assert [sorted(division.shares[member]) for member in MEMBERS[:3]] == [
        list(queues[0:3]),
        list(queues[3:6]),
        list(queues[6:8]),
    ]
    assert {reason.cause for reason in division.reasons.values()} == {Cause.GIVEN}


def test_a_member_that_joins_takes_its_share_and_nobody_else_moves() -> None:
    queues = queues_of("A", 12)
    two = divide({"m0": {"A"}, "m1": {"A"}}, {}, {"A": queues})
    three = divide({m: {"A"} for m in ("m0", "m1", "m2")}, two.shares, {"A": queues})
    assert {m: len(share) for m, share in three.shares.items()} == {"m0": 4, "m1": 4, "m2": 4}
    assert moved(three, two.shares | {"m2": set()}) == 4
    assert three.shares["m0"] < two.shares["m0"]


def test_of_two_who_say_that_they_hold_a_queue_one_is_believed() -> None:
    (queue,) = queues_of("A", 1)
    division = divide({"m0": {"A"}, "m1": {"A"}}, {"m0": {queue}, "m1": {queue}}, {"A": (queue,)})
    assert division.shares == {"m0": {queue}, "m1": set()}
