"""All groups: modes, limits, and how long a group is remembered; producers."""

from __future__ import annotations

import pytest

from penstock.coordinator.groups import GroupLimits, Groups
from penstock.coordinator.publishers import Publishers
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import ClientBeatBody, SubscriptionMode

P2P, PUBSUB = SubscriptionMode.POINT_TO_POINT, SubscriptionMode.PUBLISH_SUBSCRIBE


def beat(
    groups: Groups,
    client: str,
    group: str = "g",
    *topics: str,
    mode: SubscriptionMode = SubscriptionMode.CLUSTERING,
    sequence: int = 1,
) -> None:
    groups.beat(ClientBeatBody(client, group, mode=mode, topics=topics or ("T",), sequence=sequence), 0)


@pytest.mark.feature("clustering", "fifth-seed")
@pytest.mark.seed("S4-33")
@pytest.mark.seed("S4-34")
@pytest.mark.seed("S4-41")
def test_a_group_is_made_by_its_first_consumer_and_joined_by_others() -> None:
    groups = Groups()
    beat(groups, "a")
    beat(groups, "b")
    group = groups.get("g")
    assert group is not None
    assert set(group.members) == {"a", "b"}
    assert groups.topics == {"T"}
    groups.left("g", "a", 0)
    groups.left("g", "b", 0)
    assert groups.get("g") is None
    assert groups.left("g", "b", 0) == []


@pytest.mark.feature("point-to-point", "fifth-seed")
@pytest.mark.seed("S4-27")
@pytest.mark.seed("S4-28")
@pytest.mark.seed("S4-30")
@pytest.mark.seed("S4-35")
def test_point_to_point_lets_one_group_read_a_topic() -> None:
    groups = Groups()
    beat(groups, "a", "g", mode=P2P)
    beat(groups, "b", "g", mode=P2P)
    with pytest.raises(RequestError, match="read point to point by group g"):
        beat(groups, "c", "h", mode=P2P)
    beat(groups, "c", "h", "U", mode=P2P)
    # The topic's other subscription: any number of groups.
    beat(groups, "d", "i", mode=PUBSUB)
    beat(groups, "e", "j", mode=PUBSUB)
    beat(groups, "f", "k")


@pytest.mark.feature("publish-subscribe", "fifth-seed")
@pytest.mark.seed("S4-36")
def test_publish_subscribe_lets_a_group_have_one_consumer() -> None:
    groups = Groups()
    beat(groups, "a", mode=PUBSUB)
    with pytest.raises(RequestError, match="has its consumer"):
        beat(groups, "b", mode=PUBSUB)
    beat(groups, "a", mode=PUBSUB, sequence=2)
    groups.left("g", "a", 0)
    beat(groups, "b", mode=PUBSUB)


@pytest.mark.seed("S4-57")
def test_a_consumer_may_be_in_several_groups() -> None:
    groups = Groups()
    beat(groups, "a", "g")
    beat(groups, "a", "h")
    assert groups.names == ["g", "h"]


def test_members_of_a_group_have_one_mode() -> None:
    groups = Groups()
    beat(groups, "a")
    with pytest.raises(RequestError, match="same mode"):
        beat(groups, "b", mode=P2P)


@pytest.mark.abuse("A14")
def test_there_are_limits() -> None:
    groups = Groups(limits=GroupLimits(groups_max=1, members_max=2, topics_max=2))
    beat(groups, "a")
    beat(groups, "b")
    with pytest.raises(RequestError, match="is full"):
        beat(groups, "c")
    with pytest.raises(RequestError, match="too many groups"):
        beat(groups, "a", "h")
    with pytest.raises(RequestError, match="3 topics"):
        beat(groups, "a", "g", "T", "U", "V")


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    ("client", "group", "topic"),
    [
        ("", "g", "T"),
        ("a", "", "T"),
        ("a", "g\n", "T"),
        ("a", "g@h", "T"),
        ("a", "x" * 256, "T"),
        ("a", "g", "\0"),
    ],
)
def test_names_that_are_none(client: str, group: str, topic: str) -> None:
    with pytest.raises(RequestError):
        beat(Groups(), client, group, topic)


def test_a_new_term_knows_nobody() -> None:
    groups = Groups(term=1)
    beat(groups, "a")
    groups.lead(2, 5_000)
    assert len(groups) == 0
    beat(groups, "a")
    groups.tick(4_999)
    group = groups.get("g")
    assert group is not None
    assert group.round == 0
    groups.tick(5_500)
    assert group.round == 1


def test_a_group_that_begins_again_is_listened_to_by_who_was_told_things_before() -> None:
    queues = {"T": (MessageQueue("T", "b", 0),)}
    groups = Groups(term=1)
    told = []
    for sequence in (1, 3):
        beat(groups, "a", sequence=sequence)
        groups.seen(queues, frozenset("b"), 0)
        groups.tick(1_000)
        body = ClientBeatBody("a", "g", topics=("T",), sequence=sequence + 1)
        event = groups.beat(body, 1_000)[0].event
        assert event is not None
        told.append(event.rebalance_id)
        groups.left("g", "a", 1_000)
        assert groups.get("g") is None
    assert told[0] < told[1]


@pytest.mark.seed("S0-45")
def test_producers_by_topic() -> None:
    publishers = Publishers(producers_max=2)
    publishers.beat("p", "g", frozenset(("T", "U")))
    publishers.beat("q", "g", frozenset("T"))
    assert (publishers.of("T"), publishers.of("U")) == (["p", "q"], ["p"])
    publishers.beat("p", "g", frozenset("T"))
    assert publishers.of("U") == []
    with pytest.raises(RequestError, match="too many producers"):
        publishers.beat("r", "g", frozenset())
    publishers.release("p")
    publishers.release("p")
    assert publishers.of("T") == ["q"]
    publishers.clear()
    assert len(publishers) == 0
