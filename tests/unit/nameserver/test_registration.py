"""What brokers send a name server, over real sockets."""

import asyncio
import json
import logging
import threading
import zlib

import pytest

from penstock.errors import CallTimeoutError
from penstock.message import HostAddress
from penstock.nameserver import NameServer
from penstock.nameserver.processors import brokers, routes
from penstock.protocol.bodies import RegisterBrokerBody, TopicRouteData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.nameserver_brokers import topic, topics, version
from tests.support.nameserver_wire import ANSWER_MS, Peer, name_server, over_sockets, peer, register_command
from tests.waiting import DEADLINE_S, until


@pytest.mark.seed("S1-7")
def test_a_oneway_registration_counts_and_is_not_answered() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register_oneway()
        await until(lambda: bool(server.routes.live))
        command = register_command(broker_addr="nonsense")
        command.flag |= 2
        connection = await broker.client.connection(server.address)
        with pytest.raises(CallTimeoutError):
            await connection.call(command, 200)

    over_sockets(test)


@pytest.mark.parametrize("wire_version", [479, 413, 411, 399])
def test_compressed_bodies(wire_version: int) -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        mappings = {"T": {"topic": "T", "bname": "broker-a", "epoch": 3, "currIdMap": {"0": 0}}}
        answer = await broker.register(is_compressed=True, wire_version=wire_version, mappings=mappings)
        assert answer.code == 0
        route = TopicRouteData.decode((await broker.route()).body)
        assert route.queue_datas[0].read_queue_nums == 4
        wanted = {"broker-a": mappings["T"]} if wire_version >= 413 else None
        assert route.queue_mapping == wanted

    over_sockets(test)


def test_static_topics_in_the_form_of_a_java_broker() -> None:
    """fastjson writes the integer keys of currIdMap bare."""
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,'
        b'"timestamp":1},"topicConfigTable":{"A":{"topicName":"A","readQueueNums":1,"writeQueueNums":1,"perm":6},'
        b'"S":{"topicName":"S","readQueueNums":1,"writeQueueNums":1,"perm":6}},"topicQueueMappingInfoMap":{"S":'
        b'{"bname":"broker-a","currIdMap":{0:1,1:0},"dirty":false,"epoch":7,"topic":"S","totalQueues":2}}}}'
    )

    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register(body=body)).code == 0
        shown = json.loads((await broker.route("S")).body)
        assert shown["topicQueueMappingByBroker"]["broker-a"]["currIdMap"] == {"0": 1, "1": 0}

    over_sockets(test)


def test_bodies_of_old_brokers() -> None:
    """Before 3.0.11 the wrapper came alone; 4.9 leaves new members out; no body means no topics."""
    tables = b'{"T":{"topicName":"T"},"U":{"topicName":"U"}}'
    wrapper = b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":' + tables + b"}"

    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register(body=wrapper, wire_version=36)).code == 0
        assert (await broker.route()).code == 0
        whole = b'{"topicConfigSerializeWrapper":' + wrapper + b"}"
        assert (
            await broker.register(body=whole, wire_version=399, broker_name="b", broker_addr="h:1")
        ).code == 0
        assert set(server.routes.queues["T"]) == {"broker-a", "b"}
        assert (await broker.register(body=b"", broker_name="e", broker_addr="h:2")).code == 0
        assert server.routes.data_version("c", "h:2") == version(0, timestamp=0)

    over_sockets(test)


def test_a_checksum_that_does_not_match_is_refused() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        answer = await broker.register(is_checked=False, body_crc32=12345)
        assert (answer.code, (answer.remark or "").partition(";")[0]) == (1, "crc32 not match")
        assert not server.routes.live
        assert (await broker.register(is_checked=False)).code == 0

    over_sockets(test)


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A5")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"body": b"{"}, 1),
        ({"body": b"[]"}, 1),
        ({"body": b"\xff\xfe"}, 1),
        ({"body": b'{"topicConfigSerializeWrapper":7}'}, 1),
        ({"body": b'{"a":' * 200}, 1),
        ({"body": b"\x78\x9c nothing", "is_compressed": True}, 1),
        ({"body": zlib.compress(bytes(40_000_000)), "is_compressed": True}, 1),
    ],
    ids=["cut", "list", "no text", "wrong type", "deep", "no zlib", "bomb"],
)
def test_bodies_that_are_none_are_refused(changes: dict[str, object], code: int) -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register(**changes)).code == code
        assert not server.routes.live
        assert (await broker.register()).code == 0, "the connection goes on"

    over_sockets(test)


@pytest.mark.abuse("A6")
@pytest.mark.abuse("A12")
@pytest.mark.parametrize(
    "changes",
    [
        {"broker_addr": "169.254.169.254:80"},
        {"broker_addr": "no-port"},
        {"broker_addr": "x" * 300 + ":1"},
        {"ha_server_addr": "[fe80::1]:10912"},
        {"broker_addr": "Metadata.Google.Internal:80"},
        {"ha_server_addr": "[::ffff:a9fe:a9fe]:10912"},
        {"broker_name": "../etc"},
        {"broker_name": "a\nb"},
        {"broker_name": ""},
        {"cluster_name": "c" * 256},
        {"broker_id": -1},
        {"zone_name": "a\x00b"},
    ],
    ids=str,
)
def test_names_and_addresses_that_nobody_should_be_given_are_refused(changes: dict[str, object]) -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        answer = await broker.register(**changes)
        assert answer.code == 29
        assert not server.routes.live
        assert server.meters.snapshot()["refused"] == 1

    over_sockets(test)


@pytest.mark.abuse("A6")
def test_topics_that_nobody_should_be_given_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad = {name: topic(name) for name in ("a/b", "x\x00", "n" * 256, "..", "sp ace")}
    tables = {**topics("T", "%RETRY%g+T", "rmq_sys_x.y"), **bad, "Huge": topic("Huge", queues=2**31 - 1)}

    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register(tables=tables)).code == 0
        assert set(server.routes.queues) == {*topics("T"), "%RETRY%g+T", "rmq_sys_x.y"}

    with caplog.at_level(logging.WARNING):
        over_sockets(test)
    assert "6 topics are left out" in caplog.text


def test_the_unspecified_address_is_the_one_that_was_dialled() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register(broker_addr="0.0.0.0:10911", ha_server_addr="0.0.0.0:10912")
        route = TopicRouteData.decode((await broker.route()).body)
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
        slave = await broker.register(broker_addr="10.0.0.2:10911", broker_id=1)
        assert slave.fields == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}

    over_sockets(test)


@pytest.mark.abuse("A12")
def test_only_a_broker_on_this_machine_may_register_it() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        connection = await broker.client.connection(server.address)
        (served,) = server.server.connections
        served.peer = HostAddress("203.0.113.7", 40_000)
        assert connection.is_open
        answer = await broker.register(broker_addr="0.0.0.0:10911")
        assert answer.code == 29
        assert "brokerIP1" in (answer.remark or "")

    over_sockets(test)


def test_a_large_registration_does_not_hold_up_others() -> None:
    tables = {f"topic-{n:06d}": topic(f"topic-{n:06d}") for n in range(5_000)}

    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register()
        async with peer(server) as client:
            large = asyncio.ensure_future(
                broker.register(tables=tables, data_version=version(2), broker_name="b", broker_addr="h:1")
            )
            await client.route()
            assert (await large).code == 0
        assert len(server.routes.queues) == 5_003
        cut = register_command(tables=tables)
        cut.body = cut.body[:-1]
        cut.fields["bodyCrc32"] = "0"
        assert (await broker.client.call(server.address, cut, ANSWER_MS)).code == 1

    over_sockets(test)


def test_a_repeated_body_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    decode = RegisterBrokerBody.decode_for.__func__  # type: ignore[attr-defined]

    def counted(cls: type, data: bytes, **how: object) -> RegisterBrokerBody:
        read.append(len(data))
        return decode(cls, data, **how)  # type: ignore[no-any-return]

    monkeypatch.setattr(RegisterBrokerBody, "decode_for", classmethod(counted))

    async def test(server: NameServer, broker: Peer) -> None:
        for _ in range(3):
            assert (await broker.register()).code == 0
        assert len(read) == 1
        first = (await broker.route()).body
        await broker.register(data_version=version(2))
        assert len(read) == 2
        await broker.ask(216, topic="T")
        assert (await broker.route()).code == 17
        await broker.register(data_version=version(2))
        assert len(read) == 3
        assert (await broker.route()).body == first, "the topic is back although nothing was said anew"
        slave = {"broker_id": 1, "broker_addr": "10.0.0.2:10911"}
        await broker.register(**slave)
        assert (await broker.register(**slave)).fields["masterAddr"] == "10.0.0.1:10911"
        assert len(read) == 4

    over_sockets(test)


def test_a_body_that_another_one_displaced_is_read_again() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register()
        await broker.register(broker_addr="10.0.0.2:10911", tables=topics("T", queues=9))
        assert TopicRouteData.decode((await broker.route()).body).queue_datas[0].read_queue_nums == 9
        await broker.register()
        assert TopicRouteData.decode((await broker.route()).body).queue_datas[0].read_queue_nums == 4

    over_sockets(test)


def test_a_whole_table_is_compared_each_time_where_missing_topics_are_deleted() -> None:
    by_hand = b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":2,"writeQueueNums":2,"perm":6}]}'

    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register()
        await broker.ask(217, by_hand, topic="New")
        await broker.register()
        assert (await broker.route("New")).code == 17
        assert (await broker.route("T")).code == 0

    over_sockets(test, delete_topics_on_register=True)


def test_a_kept_route_is_never_an_old_one() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        async def perm() -> list[int]:
            return [data.perm for data in TopicRouteData.decode((await client.route()).body).queue_datas]

        await client.register()
        assert await perm() == [6]
        await client.ask(205, brokerName="broker-a")
        assert await perm() == [4]
        await client.ask(327, brokerName="broker-a")
        assert await perm() == [6]
        await client.register(broker_name="b", broker_addr="h:1")
        assert await perm() == [6, 6]
        await client.register(data_version=version(2), tables=topics("T", perm=4))
        assert await perm() == [6, 4]
        await client.ask(104, brokerName="b", brokerAddr="h:1", clusterName="c", brokerId=0)
        assert await perm() == [4]
        await client.register(data_version=version(2), tables=topics("T", perm=4), zone_name="z")
        assert b"zoneName" in (await client.route()).body
        hand = b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":2,"writeQueueNums":2,"perm":1}]}'
        await client.ask(217, hand, topic="T")
        assert await perm() == [1]

    over_sockets(test)


def test_only_so_many_routes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEPT_ROUTES_MAX", 3)

    async def test(server: NameServer, client: Peer) -> None:
        names = [f"T{number}" for number in range(8)]
        await client.register(tables=topics(*names))
        for name in names * 2:
            assert (await client.route(name)).code == 0
        assert len(server._route_processor._kept) <= 3

    over_sockets(test)


@pytest.mark.abuse("A14")
def test_only_a_few_large_registrations_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "LARGE_BODY_BYTES", 1)
    monkeypatch.setattr(brokers, "LARGE_WAITING_MAX", 2)
    may_read, decode = threading.Event(), RegisterBrokerBody.decode_for.__func__  # type: ignore[attr-defined]

    def slow(cls: type, data: bytes, **how: object) -> RegisterBrokerBody:
        may_read.wait(DEADLINE_S)
        return decode(cls, data, **how)  # type: ignore[no-any-return]

    monkeypatch.setattr(RegisterBrokerBody, "decode_for", classmethod(slow))

    async def test(server: NameServer, broker: Peer) -> None:
        asked = [asyncio.ensure_future(broker.register()) for _ in range(6)]
        await until(lambda: sum(one.done() for one in asked) >= 4)
        assert [one.result().code for one in asked if one.done()] == [2] * 4
        may_read.set()
        codes = [(await one).code for one in asked]
        assert codes.count(0) == 2

    over_sockets(test)


@pytest.mark.abuse("A14")
def test_a_registration_has_a_size_limit() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        assert (await broker.register()).code == 1
        assert not server.routes.live

    over_sockets(test, registration_bytes_max=100)


def test_a_slave_learns_its_master_and_brokers_the_order_config() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        await broker.register()
        slave = {"broker_id": 1, "broker_addr": "10.0.0.2:10911"}
        answer = await broker.register(**slave)
        assert answer.fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
        await broker.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        answer = await broker.register(**slave)
        assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}
        await broker.ask(318, b"returnOrderTopicConfigToBroker=false")
        assert (await broker.register(**slave)).body == b""

    over_sockets(test)


def test_unregister_version_query_and_heartbeat() -> None:
    who = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": 0}

    async def run() -> None:
        clock = ManualClock()
        async with name_server(Runtime(clock=clock)) as server, peer(server) as broker:
            same = b'{"counter":1,"stateVersion":0,"timestamp":1700000000000}'
            answer = await broker.ask(322, same, **who)
            assert (answer.fields, answer.body) == ({"changed": "true"}, b""), "nothing is stored"
            await broker.register()
            answer = await broker.ask(322, same, **who)
            assert (answer.fields, answer.body) == ({"changed": "false"}, same)
            answer = await broker.ask(322, same.replace(b":1,", b":2,"), **who)
            assert (answer.fields, answer.body) == ({"changed": "true"}, same)
            assert (await broker.ask(322, b"{", **who)).code == 1
            for code in (322, 904):
                clock.advance(100_000)
                assert (await broker.ask(code, **who)).code == 0
                assert server.housekeeping.scan() == [], "it was a sign of life"
            assert (await broker.ask(904, **{**who, "brokerAddr": "10.9.9.9:1"})).code == 0
            assert (await broker.ask(104, **who)).code == 0
            assert (await broker.ask(104, **who)).code == 0, "also when it is gone"
            assert (await broker.route()).code == 17
            assert server.meters.snapshot()["left"] == 1

    asyncio.run(run())


def test_members_of_an_acting_master_broker_are_told_where_that_is_on() -> None:
    async def run() -> None:
        heard: list[Command] = []

        def remember(connection: Connection, command: Command) -> None:
            heard.append(command)

        table = ProcessorTable()
        table.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, remember)
        slave = {"broker_id": 2, "broker_addr": "10.0.0.2:10911", "enable_acting_master": True}
        async with name_server(notify_min_broker_id=True) as server, peer(server, table=table) as second:
            await second.register(**slave)
            async with peer(server) as first:
                await first.register(enable_acting_master=True)
                await until(lambda: len(heard) == 1)
            await until(lambda: len(heard) == 2)
            joined, left = heard
            assert joined.is_oneway
            assert joined.fields == {
                "minBrokerId": "0",
                "brokerName": "broker-a",
                "minBrokerAddr": "10.0.0.1:10911",
                "haBrokerAddr": "10.0.0.1:10912",
            }
            assert left.fields == {
                "minBrokerId": "2",
                "brokerName": "broker-a",
                "minBrokerAddr": "10.0.0.2:10911",
                "offlineBrokerAddr": "10.0.0.1:10911",
            }
            await second.ask(318, b"notifyMinBrokerIdChanged=false")
            async with peer(server) as first:
                await first.register(enable_acting_master=True)
            await until(lambda: len(server.routes.live) == 1)
            await second.route()
            assert len(heard) == 2

    asyncio.run(run())


@pytest.mark.abuse("A12")
def test_filter_servers_are_addresses_that_clients_may_be_given() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        given = ("10.0.0.9:1", "169.254.169.254:80", "metadata:80", "a" * 300)
        answer = await broker.register(body=RegisterBrokerBody(filter_servers=given).encode())
        assert answer.code == 0, answer.remark
        assert [*server.routes.filters.values()] == [("10.0.0.9:1",)]

    over_sockets(test)
