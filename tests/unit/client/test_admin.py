"""The admin client against a real broker in this process."""

import asyncio
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.admin import Admin, AsyncAdmin
from penstock.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    OptionError,
    ResponseError,
    RouteNotFoundError,
    TopicNameError,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode
from penstock.testing import broker
from tests.waiting import wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker() as found:
        yield found


@pytest.fixture
def admin(address) -> Iterator[Admin]:
    with Admin(address) as client:
        yield client


def produce(address, topic, count, **parts):
    with penstock.Producer(address) as producer:
        return [producer.send(topic, b"%d" % n, **parts) for n in range(count)]


# -- topics --------------------------------------------------------------------------------------------------


def test_a_topic_is_created_described_and_deleted(admin, address):
    admin.create_topic("Made", 3, attributes={"message.type": "NORMAL"})
    assert "Made" in admin.list_topics()
    assert len(admin.queues("Made")) == 3
    produce(address, "Made", 7)
    found = admin.describe_topic("Made")
    assert (found.name, found.messages, len(found.queues)) == ("Made", 7, 3)
    assert list(found.brokers) == ["test-broker"]
    assert found.permissions == {"test-broker": 6}
    assert found.attributes == {"test-broker": {"message.type": "NORMAL"}}
    assert all(item.last_update_ms > 0 for item in found.queues if item.messages)
    admin.create_topic("Made", 5, permission=4)
    changed = admin.describe_topic("Made")
    assert (len(changed.queues), changed.permissions) == (5, {"test-broker": 4})
    admin.delete_topic("Made")
    assert "Made" not in admin.list_topics()
    for call in (admin.describe_topic, admin.delete_topic, admin.queues, admin.groups_of_topic):
        with pytest.raises(RouteNotFoundError):
            call("Made")


def test_the_systems_own_topics_are_shown_only_if_asked_for(admin):
    shown, all_names = admin.list_topics(), admin.list_topics(internal=True)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "test-broker", "DefaultCluster"} <= set(all_names) - set(shown)


def test_a_name_that_cannot_be_is_refused(admin):
    with pytest.raises(TopicNameError, match="invalid topic name 'not a name'"):
        admin.create_topic("not a name")


def test_an_unknown_cluster_is_named_with_those_there_are(admin):
    with pytest.raises(ConnectError, match="DefaultCluster"):
        admin.create_topic("X", cluster="nowhere")
    admin.create_topic("InCluster", cluster="DefaultCluster", order=True)
    assert "InCluster" in admin.list_topics()


# -- groups and offsets --------------------------------------------------------------------------------------


def test_a_group_is_created_described_and_deleted(admin):
    admin.create_group("made-group", retry_max_times=3)
    assert "made-group" in admin.list_groups()
    assert set(admin.list_groups()) <= set(admin.list_groups(internal=True))
    found = admin.describe_group("made-group")
    assert (found.name, found.members, found.is_online, found.lag) == ("made-group", (), False, 0)
    assert found.retry_max_times == 3
    admin.delete_group("made-group")
    assert "made-group" not in admin.list_groups()
    with pytest.raises(ResponseError, match="no broker knows group"):
        admin.describe_group("made-group")


def test_offsets_are_committed_and_lag_is_what_is_left(admin, address):
    admin.create_topic("Lag", 2)
    admin.create_group("lag-group")
    (queue, _) = admin.queues("Lag")
    with penstock.Producer(address) as producer:
        for number in range(10):
            producer.send("Lag", b"%d" % number, queue=queue)
    assert (admin.min_offset(queue), admin.max_offset(queue)) == (0, 10)
    assert admin.offset_at(queue, 0) == 0
    assert admin.offset_at(queue, 2**62) == 10
    admin.commit_offset("lag-group", queue, 4)
    assert admin.offsets("lag-group")[queue] == 4
    assert admin.offsets("lag-group", "Lag")[queue] == 4
    assert admin.describe_group("lag-group").lag == 6
    assert admin.groups_of_topic("Lag") == ["lag-group"]


def test_a_group_is_moved_to_first_last_time_and_offset(admin, address):
    admin.create_topic("Reset", 1)
    admin.create_group("reset-group")
    produce(address, "Reset", 5)
    (queue,) = admin.queues("Reset")
    assert admin.reset_offsets("reset-group", "Reset", "last") == {queue: 5}
    assert admin.reset_offsets("reset-group", "Reset", "first") == {queue: 0}
    assert admin.reset_offsets("reset-group", "Reset", 2**62) == {queue: 5}
    assert admin.reset_offsets("reset-group", "Reset", offsets={queue: 3}) == {queue: 3}
    assert admin.offsets("reset-group")[queue] == 3
    for wrong in ("middle", -5, True, 2**63):
        with pytest.raises(OptionError):
            admin.reset_offsets("reset-group", "Reset", wrong)
    with pytest.raises(OptionError):
        admin.reset_offsets("reset-group", "Reset", offsets={MessageQueue("Other", "x", 0): 1})
    with pytest.raises(RouteNotFoundError):
        admin.commit_offset("reset-group", MessageQueue("Reset", "nobody", 0), 1)


def test_a_broker_that_resets_only_who_is_online_has_the_offsets_committed():
    """As RocketMQ 4.9 does, and newer brokers with the server-side reset switched off."""
    from tests.unit.client.producer_cluster import cluster

    async def main():
        async with cluster(queues=1) as fake:
            told = fake.brokers[0]
            commits = []

            def commit(connection, request):
                commits.append((request.fields["queueId"], request.fields["commitOffset"]))
                return request.answer()

            told.table.register(222, lambda _, request: request.answer(206, "not online"))
            told.table.register(15, commit)
            told.table.register(29, lambda _, request: request.answer(fields={"offset": "7"}))
            told.table.register(30, lambda _, request: request.answer(fields={"offset": "9"}))
            async with AsyncAdmin(fake.address) as client:
                queue = MessageQueue("T", "broker-a", 0)
                assert await client.reset_offsets("g", "T", 1000) == {queue: 7}
                assert await client.reset_offsets("g", "T", "last") == {queue: 9}
                assert await client.reset_offsets("g", "T", offsets={queue: 5}) == {queue: 5}
                assert commits == [("0", "7"), ("0", "9"), ("0", "5")]

    asyncio.run(main())


def test_members_of_a_group_are_listed(admin, address):
    admin.create_topic("Online", 1)
    with penstock.Consumer(address, group="online-group") as consumer:
        consumer.subscribe("Online", "a || b")
        wait_until(
            lambda: (
                "online-group" in admin.list_groups() and admin.describe_group("online-group").subscriptions
            )
        )
        found = admin.describe_group("online-group")
        (member,) = found.members
        assert (member.language, found.message_model) == ("PYTHON", "CLUSTERING")
        assert found.subscriptions["Online"] == "a || b"
        assert found.is_online


# -- messages ------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_either_id(admin, address):
    (result,) = produce(address, "Found", 1, keys="order-1", tag="a")
    for message in (
        admin.get_message(result.msg_id, "Found"),
        admin.get_message(result.msg_id),
        admin.get_message(result.offset_msg_id),
        admin.get_message(result.offset_msg_id.lower()),
        admin.get_message(result.offset_msg_id, "Found"),
    ):
        assert (message.body, message.msg_id, message.queue) == (b"0", result.msg_id, result.queue)
        assert message.offset_msg_id == result.offset_msg_id


@pytest.mark.abuse("A12")
@pytest.mark.parametrize("wrong", ["", "x", "0" * 32, "7F0000010000000100000000000000FF", "F" * 32, "0" * 56])
def test_an_id_of_no_message_is_an_error_and_no_address_in_it_is_called(admin, wrong):
    with pytest.raises(ClientError, match="no message has the id"):
        admin.get_message(wrong)
    with pytest.raises(ClientError, match="no message has the id"):
        admin.get_message(wrong, "Unknown")


def test_messages_are_found_by_key(admin, address):
    first = produce(address, "ByKey", 3, keys="blue green")
    produce(address, "ByKey", 2, keys="red")
    found = admin.query_messages("ByKey", "green")
    assert [message.msg_id for message in found] == [result.msg_id for result in first]
    assert len(admin.query_messages("ByKey", "blue", limit=2)) == 2
    assert admin.query_messages("ByKey", "yellow") == []
    assert admin.query_messages("ByKey", "blue", begin_ms=2**61) == []
    with pytest.raises(RouteNotFoundError):
        admin.query_messages("Nowhere", "blue")
    with pytest.raises(OptionError):
        admin.query_messages("ByKey", "")


def test_a_queue_is_read_from_any_offset(admin, address):
    admin.create_topic("Read", 1)
    produce(address, "Read", 80)
    (queue,) = admin.queues("Read")
    assert [m.body for m in admin.read_messages(queue, 5, limit=60)] == [b"%d" % n for n in range(5, 65)]
    assert [m.body for m in admin.read_messages(queue, 78)] == [b"78", b"79"]
    assert admin.read_messages(queue, 80) == []
    with pytest.raises(OptionError, match="use 0 to 80"):
        admin.read_messages(queue, 500)
    with pytest.raises(RouteNotFoundError):
        admin.read_messages(queue._replace(broker_name="nobody"), 0)


# -- health --------------------------------------------------------------------------------------------------


def test_the_status_of_a_cluster(admin, address):
    found = admin.cluster_status()
    assert found.name_servers == {address: True}
    (member,) = found.brokers
    assert (member.name, member.broker_id, member.cluster, member.error) == (
        "test-broker",
        0,
        "DefaultCluster",
        "",
    )
    assert member.version
    assert "bootTimestamp" in member.figures
    assert found.is_healthy


def test_who_does_not_answer_is_listed_with_the_reason(address):
    with Admin(f"{address};127.0.0.1:1") as client:
        found = client.cluster_status()
        assert found.name_servers == {address: True, "127.0.0.1:1": False}
        assert not found.is_healthy


def test_a_brokers_configuration(admin):
    found = admin.broker_config("test-broker")
    assert found["brokerName"] == "test-broker"
    with pytest.raises(RouteNotFoundError, match="known brokers: test-broker"):
        admin.broker_config("nobody")


def test_a_closed_admin_says_so(address):
    client = Admin(address)
    client.list_topics()
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.list_topics()

    async def main():
        with pytest.raises(ClientClosedError, match="start"):
            await AsyncAdmin(address).list_topics()

    asyncio.run(main())


def test_a_name_server_without_brokers_is_explained():
    from tests.unit.client.producer_cluster import FakeNameServer

    async def main():
        server = FakeNameServer()
        empty = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
        server.table.register(
            int(RequestCode.GET_BROKER_CLUSTER_INFO), lambda _, request: request.answer(body=empty)
        )
        await server.start()
        async with AsyncAdmin(server.address) as client:
            with pytest.raises(ConnectError, match="knows no broker"):
                await client.create_topic("T")
        await server.stop()

    asyncio.run(main())
