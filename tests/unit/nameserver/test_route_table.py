"""The route table: registration, liveness, roles, permissions, limits."""

import logging

import pytest

from penstock.errors import RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.nameserver.route_answers import topic_route
from penstock.nameserver.route_table import MinIdChange, Place, Registered, RouteTable
from penstock.protocol.bodies.route import QueueData
from penstock.testing import ManualClock
from tests.support.nameserver_brokers import EXPIRY_MS, registration, route_table, topic, topics, version


def perms(table: RouteTable, name: str = "T") -> dict[str, int]:
    return {broker: data.perm for broker, data in table.queues.get(name, {}).items()}


@pytest.mark.seed("S2-1")
@pytest.mark.seed("S2-7")
@pytest.mark.seed("S2-9")
@pytest.mark.seed("S2-10")
@pytest.mark.seed("S2-11")
@pytest.mark.seed("S2-12")
@pytest.mark.seed("S2-13")
@pytest.mark.seed("S2-14")
@pytest.mark.seed("S3-22")
@pytest.mark.seed("S3-25")
@pytest.mark.seed("S3-72")
@pytest.mark.seed("S3-74")
@pytest.mark.seed("S3-75")
@pytest.mark.seed("S3-76")
@pytest.mark.seed("S3-77")
@pytest.mark.seed("S3-78")
@pytest.mark.seed("S3-79")
def test_a_registration_fills_all_tables() -> None:
    table = route_table()
    table.register(registration(filter_servers=("10.0.0.9:1",), mappings={"T": {"epoch": 1}}), 1_000)
    assert table.queues["T"] == {"broker-a": QueueData("broker-a", 4, 4, 6, 0)}
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    assert table.brokers["broker-a"].cluster == "c"
    assert table.clusters == {"c": {"broker-a"}}
    live = table.live[Place("c", "10.0.0.1:10911")]
    assert (live.connection, live.heard_ms, live.data_version) == (1, 1_000, version())
    assert live.ha_address == "10.0.0.1:10912"
    assert table.filters == {Place("c", "10.0.0.1:10911"): ("10.0.0.9:1",)}
    assert table.mappings == {"T": {"broker-a": {"epoch": 1}}}
    table.validate()


@pytest.mark.seed("S2-8")
def test_a_topic_has_one_entry_per_master() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(broker_id=1, address="10.0.0.2:10911"), 0)
    table.register(registration("broker-b", address="10.0.0.3:10911"), 0)
    assert set(table.queues["T"]) == {"broker-a", "broker-b"}
    table.validate()


def test_a_slave_is_told_its_master() -> None:
    table = route_table()
    slave = registration(broker_id=1, address="10.0.0.2:10911")
    assert table.register(slave, 0) == Registered()
    assert table.register(registration(), 0) == Registered()
    assert table.register(slave, 0) == Registered("10.0.0.1:10911", "10.0.0.1:10912")


@pytest.mark.seed("S2-3")
@pytest.mark.seed("S2-22")
@pytest.mark.seed("S2-23")
@pytest.mark.seed("S2-25")
@pytest.mark.seed("S2-26")
@pytest.mark.seed("S3-24")
@pytest.mark.seed("S3-28")
@pytest.mark.seed("S3-30")
@pytest.mark.seed("S3-32")
def test_a_silent_broker_expires_after_two_minutes(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    table = route_table()
    table.register(registration(), clock.monotonic_ms())
    clock.advance(30_000)
    table.register(registration(), clock.monotonic_ms())
    clock.advance(EXPIRY_MS)
    assert table.expire(clock.monotonic_ms()) == [], "exactly at its time it still lives"
    clock.advance(1)
    with caplog.at_level(logging.WARNING):
        (removed,) = table.expire(clock.monotonic_ms())
    assert (removed.place.address, removed.connection) == ("10.0.0.1:10911", 1)
    assert "10.0.0.1:10911" in caplog.text
    assert "120000" in caplog.text
    assert (table.queues, table.brokers, table.clusters, table.live) == ({}, {}, {}, {})


@pytest.mark.fault("F10")
def test_a_jump_of_the_wall_clock_kills_nobody() -> None:
    clock = ManualClock()
    table = route_table()
    table.register(registration(), clock.monotonic_ms())
    clock.jump(3_600_000)
    assert table.expire(clock.monotonic_ms()) == []
    clock.jump(-7_200_000)
    clock.advance(EXPIRY_MS + 1)
    assert len(table.expire(clock.monotonic_ms())) == 1


def test_a_broker_may_bring_its_own_expiry() -> None:
    table = route_table()
    table.register(registration(expiry_ms=10_000), 0)
    table.register(registration("broker-b", address="10.0.0.2:10911"), 0)
    assert [removed.place.address for removed in table.expire(10_001)] == ["10.0.0.1:10911"]
    assert set(table.queues["T"]) == {"broker-b"}


def test_a_sign_of_life_is_enough() -> None:
    table = route_table()
    table.register(registration(), 0)
    assert table.touch("c", "10.0.0.1:10911", 100_000)
    assert not table.touch("c", "10.0.0.9:10911", 100_000)
    assert not table.touch("other", "10.0.0.1:10911", 100_000)
    assert table.expire(EXPIRY_MS + 1) == []
    assert len(table.expire(100_000 + EXPIRY_MS + 1)) == 1


@pytest.mark.seed("S2-16")
@pytest.mark.seed("S2-27")
@pytest.mark.seed("S3-27")
def test_a_dropped_connection_removes_all_who_registered_over_it() -> None:
    table = route_table()
    table.register(registration(connection=7), 0)
    table.register(registration("broker-b", address="10.0.0.2:10911", connection=7), 0)
    table.register(registration("broker-c", address="10.0.0.3:10911", connection=8), 0)
    removed = table.drop_connection(7)
    assert [item.place.address for item in removed] == ["10.0.0.1:10911", "10.0.0.2:10911"]
    assert set(table.brokers) == {"broker-c"}
    assert table.drop_connection(7) == []
    table.validate()


def test_a_broker_that_came_back_over_a_new_connection_stays() -> None:
    table = route_table()
    table.register(registration(connection=7), 0)
    table.register(registration(connection=8), 0)
    assert table.drop_connection(7) == []
    assert set(table.brokers) == {"broker-a"}


def test_unregistering_one_member_keeps_the_others() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(broker_id=1, address="10.0.0.2:10911"), 0)
    assert table.unregister("c", "broker-a", "10.0.0.2:10911") is not None
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    assert perms(table) == {"broker-a": 6}
    assert table.unregister("c", "broker-a", "10.0.0.2:10911") is None
    assert table.unregister("c", "broker-x", "10.0.0.1:10911") is None, "that address has another name"
    assert table.unregister("c", "broker-a", "10.0.0.1:10911") is not None
    assert table.queues == {}
    table.validate()


# -- when topics are written ---------------------------------------------------------------------------------


def test_topics_change_only_with_the_data_version() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(topics=topics("T", queues=8)), 0)
    assert table.queues["T"]["broker-a"].read_queue_nums == 4
    table.register(registration(topics=topics("T", queues=8), data_version=version(2)), 0)
    assert table.queues["T"]["broker-a"].read_queue_nums == 8
    table.register(registration(topics=topics("T", "U"), data_version=version(2)), 0)
    assert table.queues["T"]["broker-a"].read_queue_nums == 8
    assert "U" in table.queues, "a topic that this broker did not have yet is taken at any version"


def test_an_increment_adds_one_topic_and_keeps_the_others() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(topics={"U": topic("U")}, data_version=version(2)), 0)
    assert {"T", "U", "TBW102"} <= set(table.queues)


def test_an_increment_of_an_unknown_broker_is_refused() -> None:
    table = route_table()
    with pytest.raises(RequestError, match="register broker failed") as caught:
        table.register(registration(topics={"U": topic("U")}), 0)
    assert caught.value.code == 1
    assert (table.queues, table.brokers, table.clusters, table.live) == ({}, {}, {}, {})


def test_topics_that_a_broker_no_longer_has_stay_unless_asked_for() -> None:
    table = route_table()
    table.register(registration(topics=topics("T", "U")), 0)
    table.register(registration("broker-b", address="10.0.0.2:10911", topics=topics("U")), 0)
    fewer = registration(data_version=version(2))
    table.register(fewer, 0)
    assert set(table.queues["U"]) == {"broker-a", "broker-b"}
    table.register(fewer, 0, delete_missing=True)
    assert set(table.queues["U"]) == {"broker-b"}
    table.register(registration(topics={"V": topic("V")}, data_version=version(3)), 0, delete_missing=True)
    assert set(table.queues["T"]) == {"broker-a"}, "an increment deletes nothing"
    table.validate()


def test_a_registration_without_topics_is_one() -> None:
    table = route_table()
    table.register(registration(topics={}), 0)
    assert set(table.brokers) == {"broker-a"}
    assert table.queues == {}


# -- roles and conflicts -------------------------------------------------------------------------------------


@pytest.mark.seed("S1-26")
def test_a_set_has_one_master_and_any_number_of_slaves() -> None:
    table = route_table()
    table.register(registration(), 0)
    slaves = {number: f"10.0.0.{number + 1}:10911" for number in range(1, 5)}
    for number, address in slaves.items():
        table.register(registration(broker_id=number, address=address), 0)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911", **slaves}
    # A second master does not stand beside the first one.
    table.register(registration(address="10.0.0.9:10911", connection=9), 0)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.9:10911", **slaves}
    table.validate()


def test_a_slave_that_became_master_has_one_id() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(broker_id=1, address="10.0.0.2:10911"), 0)
    table.unregister("c", "broker-a", "10.0.0.1:10911")
    table.register(registration(address="10.0.0.2:10911", data_version=version(state=1)), 0)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.2:10911"}
    table.validate()


@pytest.mark.abuse("A13")
def test_an_older_epoch_does_not_take_an_id(caplog: pytest.LogCaptureFixture) -> None:
    table = route_table()
    table.register(registration(data_version=version(state=2)), 0)
    late = registration(address="10.0.0.2:10911", topics=topics("Mine"), data_version=version(9, state=1))
    assert table.register(late, 0) == Registered()
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    assert Place("c", "10.0.0.2:10911") not in table.live
    assert "Mine" not in table.queues
    assert "state version 2 > 1" in caplog.text
    table.validate()


def test_a_slave_of_an_older_epoch_that_claims_to_be_master_leaves_the_routes() -> None:
    table = route_table()
    table.register(registration(data_version=version(state=2)), 0)
    table.register(registration(broker_id=1, address="10.0.0.2:10911"), 0)
    table.register(registration(address="10.0.0.2:10911", data_version=version(state=1)), 0)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    table.validate()


def test_the_same_or_a_newer_epoch_takes_the_id(caplog: pytest.LogCaptureFixture) -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(address="10.0.0.2:10911", topics=topics("T", queues=2), connection=2), 0)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.2:10911"}
    assert table.queues["T"]["broker-a"].read_queue_nums == 2
    assert "takes the place of 10.0.0.1:10911" in caplog.text
    table.validate()
    table.drop_connection(1)
    assert table.brokers["broker-a"].broker_addrs == {0: "10.0.0.2:10911"}, (
        "the one displaced takes nothing along"
    )
    table.validate()


def test_a_displaced_broker_that_returns_brings_its_own_topics() -> None:
    table = route_table()
    table.register(registration(), 0)
    table.register(registration(address="10.0.0.2:10911", topics=topics("T", queues=2)), 0)
    table.register(registration(), 0)
    assert table.queues["T"]["broker-a"].read_queue_nums == 4


@pytest.mark.abuse("A13")
def test_a_broker_name_belongs_to_one_cluster(caplog: pytest.LogCaptureFixture) -> None:
    table = route_table()
    table.register(registration(), 0)
    with pytest.raises(RequestError, match="belongs to cluster 'c'"):
        table.register(registration(address="10.6.6.6:10911", cluster="evil"), 0)
    assert table.clusters == {"c": {"broker-a"}}
    assert "10.6.6.6:10911" in caplog.text
    table.drop_connection(1)
    table.register(registration(cluster="evil"), 0)
    assert table.clusters == {"evil": {"broker-a"}}


@pytest.mark.abuse("A13")
def test_an_address_has_one_broker_name() -> None:
    table = route_table()
    table.register(registration(), 0)
    with pytest.raises(RequestError, match="registered as broker 'broker-a'"):
        table.register(registration("broker-b", connection=2), 0)
    assert set(table.brokers) == {"broker-a"}
    table.register(registration("broker-b", connection=1), 0)
    assert set(table.brokers) == {"broker-b"}, "the process itself may change its name"
    table.validate()


# -- acting master -------------------------------------------------------------------------------------------


def test_a_prime_slave_brings_topics_while_there_is_no_master() -> None:
    table = route_table()
    table.register(registration(broker_id=2, address="10.0.0.2:10911", acting_master=True), 0)
    assert perms(table) == {"broker-a": 4}, "nobody may write to it"
    table.register(
        registration(broker_id=3, address="10.0.0.3:10911", topics=topics("U"), acting_master=True), 0
    )
    assert "U" not in table.queues, "not the smallest id"
    table.register(registration(acting_master=True), 0)
    assert perms(table) == {"broker-a": 6}
    table.validate()


def test_an_old_slave_brings_no_topics() -> None:
    table = route_table()
    table.register(registration(broker_id=1), 0)
    assert table.queues == {}
    assert set(table.brokers) == {"broker-a"}


def test_a_slave_without_acting_master_brings_topics_as_they_are() -> None:
    table = route_table()
    table.register(registration(broker_id=1, acting_master=False), 0)
    assert perms(table) == {"broker-a": 6}


@pytest.mark.parametrize(("acting", "left"), [(True, 4), (False, 6), (None, 6)])
def test_when_only_the_master_leaves_nobody_writes_to_an_acting_master(
    acting: bool | None, left: int
) -> None:
    table = route_table()
    table.register(registration(acting_master=acting), 0)
    table.register(registration(broker_id=1, address="10.0.0.2:10911", acting_master=acting, connection=2), 0)
    table.drop_connection(1)
    assert perms(table) == {"broker-a": left}
    table.register(registration(acting_master=acting), 0)
    assert perms(table) == {"broker-a": 6}, "the master is back with the version it had"


def test_members_hear_of_a_smaller_id_that_joined() -> None:
    table = route_table()
    for broker_id in (2, 3):
        address = f"10.0.0.{broker_id}:10911"
        result = table.register(
            registration(broker_id=broker_id, address=address, acting_master=True, connection=broker_id), 0
        )
        assert result.notice is None
    result = table.register(registration(acting_master=True, connection=9), 0)
    assert result.notice == MinIdChange("broker-a", 0, "10.0.0.1:10911", (2, 3), ha_address="10.0.0.1:10912")


def test_members_hear_of_the_smallest_id_that_left() -> None:
    table = route_table()
    for broker_id in (0, 2, 3):
        address = f"10.0.0.{broker_id}:10911"
        table.register(
            registration(broker_id=broker_id, address=address, acting_master=True, connection=broker_id), 0
        )
    (removed,) = table.drop_connection(3)
    assert removed.notice is None, "not the smallest"
    (removed,) = table.drop_connection(0)
    assert removed.notice == MinIdChange(
        "broker-a", 2, "10.0.0.2:10911", (2,), offline_address="10.0.0.0:10911"
    )


def test_brokers_without_acting_master_hear_nothing() -> None:
    table = route_table()
    table.register(registration(broker_id=2, address="10.0.0.2:10911"), 0)
    assert table.register(registration(connection=2), 0).notice is None
    (removed,) = table.drop_connection(2)
    assert removed.notice is None


# -- administration ------------------------------------------------------------------------------------------


def test_wiping_and_adding_write_permission() -> None:
    table = route_table()
    table.register(registration(topics=topics("T", "U", perm=7)), 0)
    table.register(registration("broker-b", address="10.0.0.2:10911"), 0)
    assert table.wipe_write_permission("broker-a") == 4
    assert perms(table) == {"broker-a": 5, "broker-b": 6}
    table.register(registration(topics=topics("T", "U", perm=7)), 0)
    assert perms(table)["broker-a"] == 5, "an unchanged registration does not undo it"
    assert table.add_write_permission("broker-a") == 4
    assert perms(table)["broker-a"] == 6, "exactly read and write: inherit is lost"
    assert table.wipe_write_permission("broker-a") == 4
    table.register(registration(topics=topics("T", "U", perm=7), data_version=version(2)), 0)
    assert perms(table)["broker-a"] == 7, "a changed one does"
    assert table.wipe_write_permission("nobody") == 0


def test_deleting_a_topic() -> None:
    table = route_table()
    table.register(registration(mappings={"T": {"epoch": 1}}), 0)
    table.register(registration("broker-b", address="10.0.0.2:10911", cluster="d"), 0)
    table.delete_topic("T", "c")
    assert set(table.queues["T"]) == {"broker-b"}
    assert table.mappings == {}
    table.delete_topic("T", "nowhere")
    assert set(table.queues["T"]) == {"broker-b"}
    table.delete_topic("T")
    table.delete_topic("T")
    assert "T" not in table.queues
    table.validate()


def test_registering_a_topic_needs_every_broker_known() -> None:
    table = route_table()
    table.register(registration(), 0)
    known, unknown = QueueData("broker-a", 2, 2, 6), QueueData("broker-x", 2, 2, 6)
    assert not table.register_topic("New", [known, unknown])
    assert not table.register_topic("New", [])
    assert "New" not in table.queues
    assert table.register_topic("New", [known])
    assert table.queues["New"] == {"broker-a": known}


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.abuse("A14")
@pytest.mark.parametrize(
    ("option", "limit", "changes"),
    [
        ("brokers_max", 1, {}),
        ("clusters_max", 1, {"cluster": "d"}),
        ("topics_max", 3, {"topics": topics("T", "One more")}),
    ],
)
def test_limits_refuse_what_is_new_and_change_nothing(
    option: str, limit: int, changes: dict[str, object]
) -> None:
    table = route_table(**{option: limit})
    table.register(registration(), 0)
    before = (dict(table.queues), dict(table.brokers), dict(table.live))
    with pytest.raises(RequestError, match=option) as caught:
        table.register(registration("broker-b", address="10.0.0.2:10911", **changes), 0)
    assert caught.value.code == 1
    assert (table.queues, table.brokers, table.live) == before
    table.register(registration(data_version=version(2)), 0)
    table.validate()


def test_topics_that_an_administrator_names_count_too() -> None:
    table = route_table(topics_max=3)
    table.register(registration(), 0)
    with pytest.raises(RequestError, match="topics_max"):
        table.register_topic("New", [QueueData("broker-a", 2, 2, 6)])


def test_static_topic_mappings_are_kept_and_leave_with_their_broker() -> None:
    table = route_table()
    one = registration(mappings={"T": {"epoch": 1}, "unknown": {}})
    table.register(one, 0)
    table.register(
        registration("broker-b", address="10.0.0.2:10911", mappings={"T": {"epoch": 2}}, connection=2), 0
    )
    route = topic_route(table, "T")
    assert route is not None
    assert route.queue_mapping == {"broker-a": {"epoch": 1}, "broker-b": {"epoch": 2}}
    table.drop_connection(1)
    assert table.mappings == {"T": {"broker-b": {"epoch": 2}}}
    table.drop_connection(2)
    assert table.mappings == {}


def test_a_config_of_its_own_queue_counts() -> None:
    table = route_table()
    own = {**topics(), "T": TopicConfig("T", read_queue_nums=8, write_queue_nums=2, sys_flag=3)}
    table.register(registration(topics=own), 0)
    assert table.queues["T"]["broker-a"] == QueueData("broker-a", 8, 2, 6, 3)
