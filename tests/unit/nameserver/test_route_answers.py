"""The route table as clients are shown it."""

import json

import pytest

from penstock.nameserver import route_answers
from penstock.nameserver.route_answers import topic_route, within_zone
from penstock.protocol.bodies.route import TopicRouteData
from tests.support.nameserver_brokers import registration, route_table, topics


def addresses(route: TopicRouteData | None) -> dict[str, dict[int, str]]:
    assert route is not None
    return {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}


def test_a_route_is_what_the_reference_sends() -> None:
    table = route_table()
    table.register(registration("b-a", address="10.0.0.1:10911"), 0)
    table.register(registration("b-a", 1, "10.0.0.2:10911"), 0)
    route = topic_route(table, "T")
    assert route is not None
    assert route.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"b-a",'
        b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_optional_members_are_there_when_they_have_a_value() -> None:
    table = route_table()
    table.register(registration(zone="z1", filter_servers=("f:1",), mappings={"T": {"epoch": 5}}), 0)
    route = topic_route(table, "T")
    assert route is not None
    shown = json.loads(route.encode())
    assert shown["brokerDatas"][0]["zoneName"] == "z1"
    assert shown["filterServerTable"] == {"10.0.0.1:10911": ["f:1"]}
    assert shown["topicQueueMappingByBroker"] == {"broker-a": {"epoch": 5}}


def test_an_unknown_topic_has_no_route() -> None:
    table = route_table()
    assert topic_route(table, "T") is None
    table.register(registration(), 0)
    assert topic_route(table, "Other") is None


def test_two_name_servers_with_the_same_brokers_answer_the_same() -> None:
    one, two = route_table(), route_table()
    registrations = [registration(name, address=f"{name}:10911") for name in ("b-c", "b-a", "b-b")]
    for item in registrations:
        one.register(item, 0)
    for item in reversed(registrations):
        two.register(item, 5)
    assert topic_route(one, "T") == topic_route(two, "T")
    assert route_answers.cluster_info(one).encode() == route_answers.cluster_info(two).encode()


# -- zones ---------------------------------------------------------------------------------------------------


def test_a_zone_hides_the_brokers_of_others_unless_their_master_is_gone() -> None:
    table = route_table()
    table.register(registration("b-a", address="10.0.0.1:10911", zone="z1", filter_servers=("f",)), 0)
    table.register(registration("b-b", address="10.0.0.2:10911", zone="z2", filter_servers=("g",)), 0)
    table.register(registration("b-c", 1, "10.0.0.3:10911", zone="z2", acting_master=False), 0)
    table.register(registration("b-d", address="10.0.0.4:10911"), 0)
    route = topic_route(table, "T")
    assert route is not None
    near = within_zone(route, "z1")
    assert list(addresses(near)) == ["b-a", "b-c"]
    assert [data.broker_name for data in near.queue_datas] == ["b-a", "b-c"]
    assert near.filter_server_table == {"10.0.0.1:10911": ("f",)}
    assert list(addresses(within_zone(route, "z9"))) == ["b-c"]


# -- acting master -------------------------------------------------------------------------------------------


def test_an_acting_master_is_shown_as_the_master() -> None:
    table = route_table()
    names = ("T", "rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    table.register(
        registration(broker_id=2, address="10.0.0.2:10911", topics=topics(*names), acting_master=True), 0
    )
    table.register(
        registration(broker_id=3, address="10.0.0.3:10911", topics=topics(*names), acting_master=True), 0
    )
    as_they_are = {"broker-a": {2: "10.0.0.2:10911", 3: "10.0.0.3:10911"}}
    assert addresses(topic_route(table, "T")) == as_they_are
    acting = {"broker-a": {0: "10.0.0.2:10911", 3: "10.0.0.3:10911"}}
    assert addresses(topic_route(table, "T", acting_master=True)) == acting
    assert addresses(topic_route(table, names[1], acting_master=True)) == as_they_are
    assert addresses(topic_route(table, "T")) == as_they_are, "the table itself is as it was"
    table.add_write_permission("broker-a")
    assert addresses(topic_route(table, "T", acting_master=True)) == as_they_are


def test_no_acting_master_where_there_is_a_master_or_it_was_not_asked_for() -> None:
    table = route_table()
    table.register(registration("b-a", acting_master=True), 0)
    table.register(registration("b-a", 1, "10.0.0.2:10911", acting_master=True), 0)
    table.register(registration("b-b", 1, "10.0.0.3:10911", acting_master=False), 0)
    table.wipe_write_permission("b-b")
    assert addresses(topic_route(table, "T", acting_master=True)) == {
        "b-a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
        "b-b": {1: "10.0.0.3:10911"},
    }


# -- the address that was dialled ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registered", "dialled", "given"),
    [
        ("0.0.0.0:10911", "192.168.1.5", "192.168.1.5:10911"),
        ("0.0.0.0:10911", "127.0.0.1", "127.0.0.1:10911"),
        ("[::]:10911", "::1", "[::1]:10911"),
        (":::10911", "10.1.1.1", "10.1.1.1:10911"),
        ("10.0.0.1:10911", "192.168.1.5", "10.0.0.1:10911"),
        ("broker.example:10911", "192.168.1.5", "broker.example:10911"),
    ],
)
def test_clients_are_given_the_address_that_they_dialled(registered: str, dialled: str, given: str) -> None:
    table = route_table()
    table.register(registration(address=registered), 0)
    assert addresses(topic_route(table, "T", dialled)) == {"broker-a": {0: given}}
    assert route_answers.cluster_info(table, dialled).broker_addr_table["broker-a"].master == given
    assert route_answers.member_group(table, "c", "broker-a", dialled).broker_addrs == {0: given}
    assert route_answers.system_topics(table, dialled).broker_addr == given


# -- lists ---------------------------------------------------------------------------------------------------


def test_lists() -> None:
    table = route_table()
    table.register(registration("b-a", address="10.0.0.1:10911", topics=topics("T", "Unit", sys_flag=1)), 0)
    table.register(
        registration("b-b", address="10.0.0.2:10911", cluster="d", topics=topics("Sub", sys_flag=2)), 0
    )
    table.register(
        registration("b-c", address="10.0.0.3:10911", cluster="d", topics=topics("Both", sys_flag=3)), 0
    )
    own = ("SELF_TEST_TOPIC", "TBW102")
    assert route_answers.all_topics(table).topics == ("Both", "SELF_TEST_TOPIC", "Sub", "T", "TBW102", "Unit")
    assert route_answers.topics_of_cluster(table, "c").topics == (*own[:1], "T", own[1], "Unit")
    assert route_answers.topics_of_cluster(table, "nowhere").topics == ()
    assert route_answers.system_topics(table).topics == ("b-a", "b-b", "b-c", "c", "d")
    assert route_answers.system_topics(table).broker_addr == "10.0.0.1:10911"
    assert "Unit" in route_answers.unit_topics(table).topics
    assert "Sub" not in route_answers.unit_topics(table).topics
    assert {"Sub", "Both"} <= set(route_answers.unit_subscribed_topics(table).topics)
    assert "Sub" in route_answers.unit_subscribed_other_topics(table).topics
    assert "Both" not in route_answers.unit_subscribed_other_topics(table).topics


def test_empty_tables_have_empty_answers() -> None:
    table = route_table()
    assert json.loads(route_answers.system_topics(table).encode()) == {"topicList": []}
    assert json.loads(route_answers.cluster_info(table).encode()) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }
    group = {"brokerMemberGroup": {"brokerAddrs": {}, "brokerName": "b", "cluster": "c"}}
    assert json.loads(route_answers.member_group(table, "c", "b").encode()) == group


def test_members_of_a_name_in_another_cluster_are_nobody() -> None:
    table = route_table()
    table.register(registration(), 0)
    assert route_answers.member_group(table, "c", "broker-a").broker_addrs == {0: "10.0.0.1:10911"}
    assert route_answers.member_group(table, "d", "broker-a").broker_addrs == {}
