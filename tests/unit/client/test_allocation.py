"""Who gets which queues: RocketMQ's rules to the letter, and no queue ever with two owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.allocation import (
    STRATEGIES,
    Averagely,
    Circle,
    ConsistentHash,
    FixedQueues,
    MachineRoom,
    RoomNearby,
    allocate,
    find_strategy,
    ring_hash,
)
from penstock.errors import OptionError
from penstock.protocol.bodies import MessageQueue


def queues(count: int, broker: str = "b-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def numbers(share: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in share]


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (4, {"a": [0, 1, 2, 3]}),
        (10, {"a": [0, 1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}),
        (11, {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7], "c": [8, 9, 10]}),
        (2, {"a": [0], "b": [1], "c": []}),
        (3, {"a": [0], "b": [1], "c": [2]}),
        (0, {"a": [], "b": []}),
    ],
)
def test_averagely_gives_consecutive_blocks(count: int, shares: dict[str, list[int]]) -> None:
    for member, expected in shares.items():
        assert numbers(allocate(Averagely(), member, queues(count), shares)) == expected


def test_circle_deals_out_like_cards() -> None:
    members = ["a", "b", "c"]
    shares = [numbers(allocate(Circle(), member, queues(8), members)) for member in members]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_consistent_hash_divides_as_the_reference_does() -> None:
    members = ["10.0.0.1@1", "10.0.0.2@2"]
    first, second = (numbers(allocate(ConsistentHash(), one, queues(12), members)) for one in members)
    assert first == [0, 1, 2, 3, 5, 7, 8]
    assert second == [4, 6, 9, 10, 11]


def test_ring_hash_is_the_first_four_bytes_of_md5() -> None:
    assert ring_hash("") == 0xD41D8CD9


def test_consistent_hash_moves_few_queues_when_a_member_leaves() -> None:
    members = [f"10.0.0.{number}@1" for number in range(10)]
    before = {q: m for m in members for q in allocate(ConsistentHash(), m, queues(200), members)}
    left = members[1:]
    after = {q: m for m in left for q in allocate(ConsistentHash(), m, queues(200), left)}
    moved = [queue for queue in before if before[queue] != after[queue]]
    assert all(before[queue] == members[0] for queue in moved)


def test_machine_room_takes_only_brokers_of_its_rooms() -> None:
    mixed = [*queues(5, "sh@b1"), *queues(5, "hz@b1"), *queues(5, "nowhere"), *queues(2, "a@b@c")]
    share = allocate(MachineRoom(["sh", "hz"]), "only", mixed, ["only"])
    assert {queue.broker_name for queue in share} == {"sh@b1", "hz@b1"}
    assert len(share) == 10


def test_machine_room_deals_out_what_is_left_over() -> None:
    rule, members = MachineRoom("x"), ["a", "b", "c"]
    shares = [numbers(allocate(rule, member, queues(11, "x@b"), members)) for member in members]
    assert shares == [[0, 1, 2, 9], [3, 4, 5, 10], [6, 7, 8]]


def test_room_nearby_keeps_queues_in_their_room() -> None:
    everything = [*queues(4, "sh@b"), *queues(4, "hz@b"), *queues(2, "bj@b")]
    members = ["1@x@sh", "2@x@sh", "3@x@hz"]
    shares = {one: allocate(RoomNearby(), one, everything, members) for one in members}
    assert [str(q.broker_name) for q in shares["3@x@hz"]] == ["hz@b"] * 4
    # Nobody lives in bj: its queues are shared by all.
    assert [(q.broker_name, q.queue_id) for q in shares["1@x@sh"]] == [("bj@b", 0), ("sh@b", 0), ("sh@b", 1)]
    assert [(q.broker_name, q.queue_id) for q in shares["2@x@sh"]] == [("bj@b", 1), ("sh@b", 2), ("sh@b", 3)]
    assert RoomNearby(Circle()).name == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"


def test_config_is_a_fixed_list_for_its_topics() -> None:
    rule = FixedQueues([MessageQueue("T", "b", 3), MessageQueue("other", "b", 0)])
    assert allocate(rule, "a", queues(8, "b"), ["a", "b"]) == [MessageQueue("T", "b", 3)]


def test_no_member_no_queues() -> None:
    assert allocate(Averagely(), "stranger", queues(4), ["a", "b"]) == []


def test_ids_are_sorted_by_utf16_units_as_in_java() -> None:
    # U+1F600 is a surrogate pair (D83D…), below U+FF61 in UTF-16, above it by code point.
    high, low = "\uff61", "\U0001f600"
    assert numbers(allocate(Averagely(), low, queues(2), [high, low])) == [0]


def test_order_and_repetition_of_the_input_do_not_matter() -> None:
    share = allocate(Averagely(), "b", [*reversed(queues(5)), *queues(5)], ["c", "b", "a", "b"])
    assert numbers(share) == [2, 3]


def test_strategies_are_found_by_name() -> None:
    assert [find_strategy(name).name for name in STRATEGIES] == [
        "AVG",
        "AVG_BY_CIRCLE",
        "CONSISTENT_HASH",
        "MACHINE_ROOM_NEARBY-AVG",
    ]
    rule = MachineRoom(["a"])
    assert find_strategy(rule) is rule
    with pytest.raises(OptionError, match="averagely, circle"):
        find_strategy("avrgely")
    with pytest.raises(OptionError):
        MachineRoom([])
    with pytest.raises(OptionError):
        ConsistentHash(0)


MEMBERS = st.sets(
    st.from_regex(r"10\.0\.0\.[0-9]{1,2}@[0-9]{1,3}(@[ab])?", fullmatch=True), min_size=1, max_size=12
)
BROKERS = st.sampled_from(["a@b1", "a@b2", "b@b1", "c@b1", "plain"])
QUEUES = st.sets(st.builds(MessageQueue, st.just("T"), BROKERS, st.integers(0, 15)))


@pytest.mark.invariant("I10")
@given(MEMBERS, QUEUES, st.sampled_from(sorted(STRATEGIES)))
def test_every_queue_has_exactly_one_owner(
    members: set[str], all_queues: set[MessageQueue], name: str
) -> None:
    shares = [allocate(find_strategy(name), member, all_queues, members) for member in members]
    dealt = [queue for share in shares for queue in share]
    assert len(dealt) == len(set(dealt))
    assert set(dealt) == all_queues


@given(MEMBERS, QUEUES)
def test_machine_room_never_gives_a_queue_twice(members: set[str], all_queues: set[MessageQueue]) -> None:
    rule = MachineRoom(["a", "b"])
    dealt = [queue for member in members for queue in allocate(rule, member, all_queues, members)]
    assert sorted(dealt) == sorted(q for q in all_queues if q.broker_name[:2] in ("a@", "b@"))


@given(MEMBERS, QUEUES)
def test_averages_differ_by_one_at_most(members: set[str], all_queues: set[MessageQueue]) -> None:
    for rule in (Averagely(), Circle()):
        sizes = [len(allocate(rule, member, all_queues, members)) for member in members]
        assert max(sizes) - min(sizes) <= 1
