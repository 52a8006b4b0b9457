"""Producers and consumers that are connected: joining, leaving, expiring, and who is told of it."""

from dataclasses import replace

import pytest

from penstock.broker.channels import Publisher
from penstock.broker.consumers import Consumers
from penstock.broker.options import BrokerOptions
from penstock.broker.producers import Producers
from penstock.protocol.bodies import ConsumerData, HeartbeatData, MessageModel, SubscriptionData
from penstock.protocol.command import Command
from penstock.testing import ManualClock
from tests.unit.broker.metadata_bench import FakeConnection, heartbeat, refused

OPTIONS = BrokerOptions()


class World:
    """Consumers and producers on a clock that a test moves."""

    def __init__(self, options: BrokerOptions = OPTIONS) -> None:
        self.clock = ManualClock()
        self.consumers = Consumers(options, self.clock)
        self.producers = Producers(options, self.clock)

    def consume(self, connection: FakeConnection, group: str = "g", client: str = "", **more: object) -> bool:
        topics = more.pop("topics", ("T",))
        version = more.pop("version", 1)
        expression = more.pop("expression", "*")
        model = more.pop("model", MessageModel.CLUSTERING)
        subscriptions = tuple(
            SubscriptionData.parse(topic, str(expression), sub_version=int(str(version)))
            for topic in topics  # type: ignore[attr-defined]
        )
        data = ConsumerData(group, message_model=model, subscriptions=subscriptions)  # type: ignore[arg-type]
        return self.consumers.heartbeat(
            data,
            connection,  # type: ignore[arg-type]
            client or connection.name,
            "JAVA",
            401,
            **more,  # type: ignore[arg-type]
        )

    def produce(self, connection: FakeConnection, group: str = "p", client: str = "") -> bool:
        name = client or connection.name
        return self.producers.heartbeat(group, connection, name, "GO", 317) is not None  # type: ignore[arg-type]

    def clients(self, group: str = "g") -> list[str]:
        found = self.consumers.group(group)
        return [] if found is None else found.client_ids


# -- consumers -----------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-36")
@pytest.mark.seed("S3-37")
@pytest.mark.seed("S3-38")
@pytest.mark.seed("S3-39")
@pytest.mark.seed("S4-41")
@pytest.mark.seed("S3-81")
def test_the_broker_knows_every_group_its_consumers_and_topics() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    assert world.consume(a)
    assert world.consume(b)
    group = world.consumers.group("g")
    assert group is not None
    assert group.client_ids == ["a", "b"]
    assert [(m.client_id, m.language, m.version) for m in group.members] == [
        ("a", "JAVA", 401),
        ("b", "JAVA", 401),
    ]
    assert set(group.subscriptions) == {"T"}
    assert world.consumers.groups_of_topic("T") == ["g"]
    assert world.consumers.groups_of_topic("U") == []


def test_everybody_is_told_when_a_member_comes() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.consume(a)
    assert a.notices() == ["g"]
    world.consume(b)
    assert (a.notices(), b.notices()) == (["g"], ["g"])
    assert not world.consume(b)  # only another heartbeat
    assert (a.notices(), b.notices()) == ([], [])


def test_the_notice_is_one_way_and_names_the_group() -> None:
    world = World()
    a = FakeConnection("a")
    world.consume(a)
    notice: Command = a.sent[0]
    assert (notice.code, notice.fields, notice.body) == (40, {"consumerGroup": "g"}, b"")


@pytest.mark.seed("S4-47")
def test_the_rest_is_told_at_once_when_a_connection_closes() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    for group in ("g1", "g2"):
        world.consume(a, group)
        world.consume(b, group)
    a.notices()
    b.notices()
    b.is_open = False
    world.consumers.drop_connection(b)  # type: ignore[arg-type]
    assert sorted(a.notices()) == ["g1", "g2"]
    assert b.notices() == []
    assert world.clients("g1") == ["a"]
    world.consumers.drop_connection(b)  # type: ignore[arg-type]
    assert a.notices() == []


def test_leaving_is_told_to_the_rest_and_ends_an_empty_group() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.consume(a)
    world.consume(b)
    a.notices()
    assert world.consumers.unregister("g", b)  # type: ignore[arg-type]
    assert not world.consumers.unregister("g", b)  # type: ignore[arg-type]
    assert a.notices() == ["g"]
    assert world.consumers.unregister("g", a)  # type: ignore[arg-type]
    assert world.consumers.group("g") is None
    assert not world.consumers.unregister("unknown", a)  # type: ignore[arg-type]


def test_broadcasting_consumers_and_groups_that_do_not_want_it_are_not_told() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.consume(a, "bc", model=MessageModel.BROADCASTING)
    world.consume(b, "quiet", notify=False)
    assert (a.notices(), b.notices()) == ([], [])


@pytest.mark.seed("S2-2")
@pytest.mark.seed("S2-3")
def test_the_silent_are_dropped_after_two_minutes_and_the_rest_told() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.consume(a)
    world.consume(b)
    a.notices()
    world.clock.advance(90_000)
    world.consume(a)
    assert world.consumers.scan() == []
    world.clock.jump(10 * 3_600_000)  # the wall clock has no say in it
    assert world.consumers.scan() == []
    world.clock.advance(30_001)
    assert world.consumers.scan() == [b]
    assert not world.consumers.is_member(b)  # type: ignore[arg-type]
    assert world.consumers.is_member(a)  # type: ignore[arg-type]
    assert a.notices() == ["g"]
    assert world.clients() == ["a"]


def test_a_topic_that_is_not_named_any_more_is_removed() -> None:
    world = World()
    a = FakeConnection("a")
    world.consume(a, topics=("T", "U"))
    a.notices()
    assert world.consume(a, topics=("T",))
    assert a.notices() == ["g"]
    group = world.consumers.group("g")
    assert group is not None
    assert group.subscription("U") is None


def test_an_expression_is_replaced_only_by_a_newer_one() -> None:
    world = World()
    a = FakeConnection("a")
    world.consume(a, version=5, expression="a")
    assert not world.consume(a, version=5, expression="b")
    group = world.consumers.group("g")
    assert group is not None
    found = group.subscription("T")
    assert found is not None
    assert found.sub_string == "a"
    assert not world.consume(a, version=6, expression="b")  # not a change that calls for sharing anew
    found = group.subscription("T")
    assert found is not None
    assert found.sub_string == "b"
    assert found.code_set == {98}


def test_the_short_heartbeat_leaves_subscriptions_alone() -> None:
    world = World()
    a = FakeConnection("a")
    world.consume(a)
    assert not world.consume(a, topics=(), with_subscriptions=False)
    group = world.consumers.group("g")
    assert group is not None
    assert set(group.subscriptions) == {"T"}


def test_a_client_on_two_connections_is_one_member_to_others() -> None:
    """After a reconnect the old connection may linger: counted twice, the client would get two shares."""
    world = World()
    old, new, other = FakeConnection("old"), FakeConnection("new"), FakeConnection("other")
    world.consume(old, client="x")
    world.consume(other, client="y")
    world.consume(new, client="x")
    assert world.clients() == ["x", "y"]
    found = world.consumers.member("g", "x")
    assert found is not None
    assert found.connection is new
    new.is_open = False
    found = world.consumers.member("g", "x")
    assert found is not None
    assert found.connection is old
    assert world.consumers.member("g", "nobody") is None
    assert world.consumers.member("unknown", "x") is None


@pytest.mark.seed("S4-57")
def test_a_client_may_be_in_several_groups_but_not_without_end() -> None:
    world = World(replace(OPTIONS, client_groups_max=2))
    a = FakeConnection("a")
    world.consume(a, "g1")
    world.consume(a, "g2")
    world.consume(a, "g2")
    with refused(29):
        world.consume(a, "g3")
    assert world.consumers.group("g3") is None
    world.consumers.unregister("g1", a)  # type: ignore[arg-type]
    world.consume(a, "g3")


# -- producers -----------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-81")
def test_producers_by_group_and_by_client_id() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.produce(a)
    world.produce(b)
    world.produce(a, "p2")
    assert [channel.client_id for channel in world.producers.members("p")] == ["a", "b"]
    assert world.producers.members("unknown") == {}.values() or not world.producers.members("unknown")
    assert {group for group, _ in world.producers.groups()} == {"p", "p2"}
    found = world.producers.by_client_id("a")
    assert found is not None
    assert found.connection is a
    assert world.producers.by_client_id("nobody") is None


def test_producers_are_picked_in_turn() -> None:
    world = World()
    connections = [FakeConnection(name) for name in "abc"]
    for connection in connections:
        world.produce(connection)
    picked = [world.producers.pick("p", "T") for _ in range(6)]
    assert sorted(channel.client_id for channel in picked if channel is not None) == [*"aabbcc"]
    connections[0].is_open = connections[1].is_open = False
    again = world.producers.pick("p", "T")
    assert again is not None
    assert again.client_id == "c"
    assert world.producers.pick("unknown", "T") is None


def test_producers_leave_with_their_connection() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.produce(a, "p1")
    world.produce(a, "p2")
    world.produce(b, "p1")
    assert world.producers.unregister("p2", a)  # type: ignore[arg-type]
    assert not world.producers.unregister("p2", a)  # type: ignore[arg-type]
    assert world.producers.by_client_id("a") is not None  # still in p1
    world.producers.drop_connection(a)  # type: ignore[arg-type]
    assert world.producers.by_client_id("a") is None
    assert [channel.client_id for channel in world.producers.members("p1")] == ["b"]


def test_a_client_that_changes_its_id_is_found_by_the_new_one() -> None:
    world = World()
    a = FakeConnection("a")
    world.produce(a, client="before")
    world.produce(a, client="after")
    assert world.producers.by_client_id("before") is None
    assert world.producers.by_client_id("after") is not None
    assert len(world.producers.members("p")) == 1


def test_silent_producers_are_dropped() -> None:
    world = World()
    a, b = FakeConnection("a"), FakeConnection("b")
    world.produce(a)
    world.produce(a, "p2")
    world.clock.advance(60_000)
    world.produce(b)
    world.clock.advance(60_001)
    assert world.producers.scan() == [a]
    assert not world.producers.is_member(a)  # type: ignore[arg-type]
    assert world.producers.is_member(b)  # type: ignore[arg-type]
    assert [channel.client_id for channel in world.producers.members("p")] == ["b"]
    assert not world.producers.members("p2")


@pytest.mark.abuse("A14")
def test_producer_groups_are_limited() -> None:
    world = World(replace(OPTIONS, producer_groups_max=2, client_groups_max=5))
    assert world.produce(FakeConnection("a"), "p1")
    assert world.produce(FakeConnection("b"), "p2")
    assert not world.produce(FakeConnection("c"), "p3")
    assert world.produce(FakeConnection("c"), "p1")
    world = World(replace(OPTIONS, client_groups_max=1))
    a = FakeConnection("a")
    assert world.produce(a, "p1")
    assert not world.produce(a, "p2")


@pytest.mark.abuse("A14")
def test_user_leaves_room_for_producer_groups_of_others() -> None:
    """An account with one topic could have all groups: no other producer was asked about its transactions then, or
    got replies."""
    world = World(replace(OPTIONS, producer_groups_max=20, client_groups_max=50))

    def produce(user: str, connection: FakeConnection, group: str) -> bool:
        world.producers.identify = lambda: Publisher(user, lambda topic: True)
        return world.produce(connection, group)

    greedy = FakeConnection("greedy")
    assert [produce("greedy", greedy, f"g{number}") for number in range(20)] == [True] * 18 + [False] * 2
    other = FakeConnection("other")
    assert produce("other", other, "payments")
    assert produce("other", FakeConnection("another"), "g0"), "a group that is there has room"
    world.producers.drop_connection(greedy)  # type: ignore[arg-type]
    assert [produce("greedy", greedy, f"g{number}") for number in range(20)].count(True) == 18


def test_the_tests_heartbeat_is_one() -> None:
    data = HeartbeatData.decode(heartbeat("c", "g", producers=("p",), expression="a || b"))
    assert (data.client_id, data.consumers[0].group_name, data.producers[0].group_name) == ("c", "g", "p")
