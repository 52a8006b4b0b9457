"""All groups: modes, limits, and how long a group is remembered; producers."""

from __future__ import annotations

import pytest

from penstock.coordinator.explain import explain
from penstock.coordinator.groups import GroupLimits, Groups
from penstock.coordinator.publishers import Publishers
from penstock.coordinator.ring import HashRing
from penstock.coordinator.ring_division import queue_key
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import (
    Binding,
    ClientBeatBody,
    LeasedElsewhere,
    SubscriptionMode,
    subscription_name,
)
from penstock.protocol.bodies.subscriptions import SubscriptionsBody

P2P, PUBSUB = SubscriptionMode.POINT_TO_POINT, SubscriptionMode.PUBLISH_SUBSCRIBE


def beat(
    groups: Groups,
    client: str,
    group: str = "g",
    *topics: str,
    mode: SubscriptionMode = SubscriptionMode.CLUSTERING,
    sequence: int = 1,
    binding: Binding = Binding.EVEN,
) -> None:
    body = ClientBeatBody(
        client, group, mode=mode, topics=topics or ("T",), sequence=sequence, binding=binding
    )
    groups.beat(body, 0)


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


def reported(client: str, group: str, *numbers: int, sequence: int = 1, refused: int = 0) -> ClientBeatBody:
    queues = tuple(MessageQueue("T", "b", number) for number in numbers)
    others = tuple(LeasedElsewhere(MessageQueue("T", "b", -number), "x") for number in range(1, refused + 1))
    return ClientBeatBody(client, group, topics=("T",), queues=queues, refused=others, sequence=sequence)


@pytest.mark.abuse("A14")
def test_queues_that_members_report_are_limited() -> None:
    """Nothing says which there are, and every round looks at all of them: 150 members with 20,000 each stopped the
    coordinator for longer than a master's lease."""
    groups = Groups(limits=GroupLimits(reported_max=20))
    groups.beat(reported("a", "g", *range(10)), 0)
    groups.beat(reported("b", "g", *range(10, 14), refused=4), 0)
    with pytest.raises(RequestError, match="19 queues are reported, 19 of them by group g"):
        groups.beat(reported("c", "g", 20), 0)
    with pytest.raises(RequestError, match="queues are reported"):
        groups.beat(reported("b", "g", *range(10, 15), sequence=2, refused=4), 0)
    groups.beat(reported("d", "h", 1), 0)  # a part is left to others
    groups.beat(reported("b", "g", sequence=3), 0)
    groups.beat(reported("c", "g", *range(14, 21)), 0)
    groups.beat(reported("c", "g", *range(14, 21), sequence=2), 0)
    group = groups.get("g")
    assert group is not None
    assert group.reported == 17


@pytest.mark.abuse("A14")
def test_room_for_reported_queues_returns_with_members_and_terms() -> None:
    groups = Groups(limits=GroupLimits(reported_max=20))
    for _ in range(3):
        groups.beat(reported("a", "g", *range(10), refused=7), 0)
        with pytest.raises(RequestError, match="27 queues are reported"):
            groups.beat(reported("b", "h", *range(10)), 0)
        groups.left("g", "a", 0)
        groups.beat(reported("b", "h", *range(17)), 0)
        groups.lead(groups.term + 1, 0)


@pytest.mark.abuse("A14")
def test_names_of_reported_queues_are_limited() -> None:
    groups = Groups()
    far = MessageQueue("T", "b" * 256, 0)
    for body in (
        ClientBeatBody("a", "g", topics=("T",), queues=(far,)),
        ClientBeatBody("a", "g", topics=("T",), refused=(LeasedElsewhere(far),)),
        ClientBeatBody(
            "a", "g", topics=("T",), refused=(LeasedElsewhere(MessageQueue("T", "b", 0), "x" * 1_025),)
        ),
    ):
        with pytest.raises(RequestError, match=r"brokerName|holder"):
            groups.beat(body, 0)
    assert len(groups) == 0


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


@pytest.mark.seed("S4-27")
@pytest.mark.seed("S4-28")
@pytest.mark.seed("S4-30")
@pytest.mark.seed("S4-35")
@pytest.mark.seed("S4-50")
@pytest.mark.seed("S4-54")
@pytest.mark.seed("S4-55")
@pytest.mark.seed("S4-56")
def test_a_topic_has_a_subscription_for_each_mode_in_which_it_is_read() -> None:
    groups = Groups()
    assert groups.subscriptions("T") == SubscriptionsBody("T", (), "T-point_to_point")
    beat(groups, "a", "g", mode=P2P, binding=Binding.RING)
    beat(groups, "b", "g", mode=P2P, binding=Binding.RING)
    beat(groups, "d", "i", mode=PUBSUB)
    beat(groups, "e", "j", mode=PUBSUB)
    beat(groups, "f", "k", "U")
    found = groups.subscriptions("T")
    assert [(one.name, one.mode, one.option) for one in found.subscriptions] == [
        ("T-point_to_point", P2P, 1),
        ("T-publish_subscribe", PUBSUB, 2),
    ]
    point, publish = found.subscriptions
    assert [(one.group, one.binding, one.consumers) for one in point.groups] == [("g", Binding.RING, 2)]
    assert [(one.group, one.consumers) for one in publish.groups] == [("i", 1), ("j", 1)]
    assert SubscriptionsBody.decode(found.encode()) == found
    assert all(
        0 <= mode.option < 256 and subscription_name("T", mode) == f"T-{mode}" for mode in SubscriptionMode
    )


@pytest.mark.seed("S4-33")
@pytest.mark.seed("S4-34")
def test_whoever_names_no_group_is_in_the_one_that_reads_the_topic_point_to_point_or_in_a_new_one() -> None:
    groups = Groups()
    created = groups.subscriptions("T").join
    assert created == "T-point_to_point"
    beat(groups, "a", created, mode=P2P)
    assert groups.subscriptions("T").join == created
    with pytest.raises(RequestError, match=f"by group {created}.*join {created}, name no group"):
        beat(groups, "b", "other", mode=P2P)
    groups.left(created, "a", 0)
    beat(groups, "b", "other", mode=P2P)
    assert groups.subscriptions("T").join == "other"
    # Another mode does not hold the topic.
    beat(groups, "c", "many", "U")
    assert groups.subscriptions("U").join == "U-point_to_point"
    for name in ("", "x" * 256, "\0"):
        with pytest.raises(RequestError, match="topic is"):
            groups.subscriptions(name)


@pytest.mark.seed("S4-48")
@pytest.mark.seed("S4-49")
def test_a_group_knows_its_consumers_whether_they_are_there_and_their_topics() -> None:
    """O-7: a group may cover several topics, and is in one subscription of each."""
    groups = Groups()
    beat(groups, "a", "g", "T", "U")
    beat(groups, "b", "g", "T")
    groups.dropped("g", "b", 0)
    group = groups.get("g")
    assert group is not None
    assert {name: member.dropped_ms is None for name, member in group.members.items()} == {
        "a": True,
        "b": False,
    }
    said = explain(group, 1, 10)
    assert said.subscriptions == ("T-clustering", "U-clustering")
    assert (said.mode, said.binding) == ("clustering", "even")
    assert [one.consumers for one in groups.subscriptions("U").subscriptions[0].groups] == [1]


def test_members_of_a_group_are_bound_in_one_way() -> None:
    groups = Groups()
    beat(groups, "a", binding=Binding.RING)
    with pytest.raises(RequestError, match="in the way ring, this consumer wants even"):
        beat(groups, "b")
    beat(groups, "b", binding=Binding.RING)
    groups.left("g", "b", 0)
    # Alone, it may change its mind, and its mode as well.
    beat(groups, "a", sequence=2, mode=P2P)
    group = groups.get("g")
    assert group is not None
    assert (group.binding, group.mode) == (Binding.EVEN, P2P)


@pytest.mark.seed("S4-54")
@pytest.mark.seed("S4-61")
def test_who_is_idle_on_the_ring_is_told_why() -> None:
    queue = MessageQueue("T", "b", 0)
    groups = Groups()
    for name in "abc":
        beat(groups, name, binding=Binding.RING)
    groups.seen({"T": (queue,)}, frozenset("b"), 0)
    groups.tick(1_000)
    group = groups.get("g")
    assert group is not None
    owner = HashRing("abc").owner(queue_key(queue))
    said = explain(group, 1, 1_000)
    assert [
        (one.wanted, "falls to it on the ring, with 1 of 1 among 3" in one.why) for one in said.queues
    ] == [(owner, True)]
    states = {member.client_id: member.state for member in said.members}
    assert states.pop(str(owner)) == "is to take over 1 queues"
    assert set(states.values()) == {"settled; no queue falls to it on the ring"}


@pytest.mark.feature("clustering", "fifth-seed")
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


@pytest.mark.parametrize("mode", [P2P, PUBSUB])
def test_who_held_queues_before_this_term_comes_before_who_was_only_quicker(mode: SubscriptionMode) -> None:
    queues = (MessageQueue("T", "b", 0),)
    group = "h" if mode is P2P else "g"
    holder = ClientBeatBody("a", "g", mode=mode, topics=("T",), queues=queues, sequence=9)
    groups = Groups(term=1)
    groups.lead(2, 5_000)
    beat(groups, "x", group, mode=mode)
    groups.beat(holder, 100)
    found = groups.get("g")
    assert (groups.names, found is not None and set(found.members)) == (["g"], {"a"})
    # Who holds queues is displaced by nobody, and after the first round everybody is a newcomer.
    late = ClientBeatBody("y", group, mode=mode, topics=("T",), queues=queues, sequence=9)
    with pytest.raises(RequestError):
        groups.beat(late, 200)
    groups.lead(3, 5_000)
    beat(groups, "x", group, mode=mode)
    with pytest.raises(RequestError):
        groups.beat(holder, 5_000)


def test_a_group_whose_members_hold_queues_is_bound_in_their_way() -> None:
    groups = Groups(term=1, first_round_ms=5_000)
    beat(groups, "x", binding=Binding.RING)
    for number, name in enumerate("ab"):
        queues = (MessageQueue("T", "b", number),)
        groups.beat(ClientBeatBody(name, "g", topics=("T",), queues=queues, sequence=9), 100)
    group = groups.get("g")
    assert group is not None
    assert (group.binding, set(group.members)) == (Binding.EVEN, {"a", "b"})


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
