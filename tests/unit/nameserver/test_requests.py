"""What clients and administrators ask a name server, over real sockets."""

import asyncio
import json

import pytest

from penstock.nameserver import NameServer
from penstock.protocol.bodies import ClusterInfo, TopicRouteData
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.nameserver_brokers import topic, topics
from tests.support.nameserver_wire import Peer, name_server, over_sockets, peer, register_command

CODES = (*range(100, 107), 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904)


@pytest.mark.parametrize("wire_version", [0, 317, 399, 401, 479])
def test_keys_are_quoted_for_clients_of_every_version(wire_version: int) -> None:
    async def test(server: NameServer, client: Peer) -> None:
        await client.register()
        answer = await client.ask(105, version=wire_version, topic="T", acceptStandardJsonOnly="true")
        assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in answer.body
        assert b" " not in answer.body

    over_sockets(test)


def test_order_of_a_topic_is_filled_in_when_turned_on() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        await client.register()
        await client.ask(100, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
        assert b"orderTopicConf" not in (await client.route()).body
        await client.ask(318, b"orderMessageEnable=true")
        assert json.loads((await client.route()).body)["orderTopicConf"] == "broker-a:4"
        assert b"orderTopicConf" not in (await client.route("TBW102")).body

    over_sockets(test)


def test_zone_mode_and_acting_master() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        await client.register(zone_name="z1")
        await client.register(broker_name="b", broker_addr="h:1", zone_name="z2")
        near = TopicRouteData.decode((await client.route(__ZONE_MODE="true", __ZONE_NAME="z2")).body)
        assert [data.broker_name for data in near.broker_datas] == ["b"]
        for fields in ({"__ZONE_NAME": "z2"}, {"__ZONE_MODE": "true"}):
            assert len(TopicRouteData.decode((await client.route(**fields)).body).broker_datas) == 2
        await client.register(
            broker_name="s", broker_addr="h:2", broker_id=1, enable_acting_master=True, tables=topics("S")
        )
        assert TopicRouteData.decode((await client.route("S")).body).broker_datas[0].broker_addrs == {
            1: "h:2"
        }
        await client.ask(318, b"supportActingMaster=true")
        assert TopicRouteData.decode((await client.route("S")).body).broker_datas[0].broker_addrs == {
            0: "h:2"
        }

    over_sockets(test)


def test_routes_may_have_to_wait_after_the_start() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with name_server(Runtime(clock=clock), wait_for_service=True) as server, peer(server) as client:
            await client.register()
            answer = await client.route()
            assert answer.code == 1
            assert "name server not ready" in (answer.remark or "")
            clock.advance(45_000)
            assert (await client.route()).code == 0

    asyncio.run(run())


def test_cluster_info_members_and_lists() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        await client.register(tables=topics("T"))
        await client.register(
            broker_name="b",
            broker_addr="h:1",
            cluster_name="d",
            tables={"U": topic("U", sys_flag=3), "V": topic("V")},
        )
        info = ClusterInfo.decode((await client.ask(106)).body)
        assert info.cluster_addr_table == {"c": ("broker-a",), "d": ("b",)}
        assert info.broker_addr_table["b"].broker_addrs == {0: "h:1"}
        members = json.loads((await client.ask(901, clusterName="d", brokerName="b")).body)
        assert members == {
            "brokerMemberGroup": {"brokerAddrs": {"0": "h:1"}, "brokerName": "b", "cluster": "d"}
        }
        lists = {
            206: ["SELF_TEST_TOPIC", "T", "TBW102", "U", "V"],
            224: ["U", "V"],
            304: ["b", "broker-a", "c", "d"],
            311: ["U"],
            312: ["U"],
            313: [],
        }
        for code, wanted in lists.items():
            assert json.loads((await client.ask(code, cluster="d")).body)["topicList"] == wanted
        assert json.loads((await client.ask(304)).body)["brokerAddr"] == "h:1"
        await client.ask(318, b"enableAllTopicList=false\nenableTopicList=false")
        for code in (206, 224, 311, 312, 313):
            answer = await client.ask(code, cluster="d")
            assert (answer.code, (answer.remark or "").partition(";")[0]) == (1, "disable")

    over_sockets(test)


# -- administration ------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-80")
def test_kv_config() -> None:
    async def test(server: NameServer, admin: Peer) -> None:
        entry = {"namespace": "n", "key": "k"}
        assert (await admin.ask(101, **entry)).code == 22
        assert (await admin.ask(219, namespace="n")).code == 22
        assert (await admin.ask(102, **entry)).code == 0
        assert (await admin.ask(100, **entry, value="v")).code == 0
        assert (await admin.ask(101, **entry)).fields == {"value": "v"}
        assert json.loads((await admin.ask(219, namespace="n")).body) == {"table": {"k": "v"}}
        assert (await admin.ask(100, namespace="n", value="v")).code == 1
        assert (await admin.ask(100, key="n", value="v")).code == 1
        assert (await admin.ask(102, **entry)).code == 0
        assert (await admin.ask(101, **entry)).code == 22

    over_sockets(test)


def test_write_permission_and_topics_by_hand() -> None:
    async def test(server: NameServer, admin: Peer) -> None:
        await admin.register()
        assert (await admin.ask(205, brokerName="broker-a")).fields == {"wipeTopicCount": "3"}
        assert TopicRouteData.decode((await admin.route()).body).queue_datas[0].perm == 4
        assert (await admin.ask(327, brokerName="broker-a")).fields == {"addTopicCount": "3"}
        assert TopicRouteData.decode((await admin.route()).body).queue_datas[0].perm == 6
        by_hand = b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":2,"writeQueueNums":2,"perm":6}]}'
        assert (await admin.ask(217, by_hand, topic="New")).code == 0
        assert (await admin.route("New")).code == 0
        assert (await admin.ask(217, by_hand.replace(b"broker-a", b"nobody"), topic="Newer")).code == 0
        assert (await admin.route("Newer")).code == 17
        assert (await admin.ask(217, by_hand.replace(b":2", b":99999"), topic="Big")).code == 29
        assert (await admin.ask(217, b"{", topic="New")).code == 1
        assert (await admin.ask(217, topic="New")).code == 0
        assert (await admin.ask(216, topic="New")).code == 0
        assert (await admin.route("New")).code == 17
        assert (await admin.ask(216, topic="T", clusterName="elsewhere")).code == 0
        assert (await admin.route()).code == 0
        assert (await admin.ask(216, topic="T", clusterName="c")).code == 0
        assert (await admin.route()).code == 17

    over_sockets(test)


@pytest.mark.abuse("A8")
def test_configuration_is_an_allow_list() -> None:
    async def test(server: NameServer, admin: Peer) -> None:
        shown = (await admin.ask(319)).body.decode()
        assert "orderMessageEnable=false\n" in shown
        assert "scanNotActiveBrokerInterval=10000\n" in shown
        assert "kvConfig" not in shown
        for key in (
            "kvConfigPath",
            "configStorePath",
            "configBlackList",
            "rocketmqHome",
            "listenPort",
            "nonsense",
        ):
            answer = await admin.ask(318, f"orderMessageEnable=true\n{key}=x".encode())
            assert answer.code == 16
            assert key in (answer.remark or "")
        assert (await admin.ask(318, b"scanNotActiveBrokerInterval=1")).code == 29
        assert (await admin.ask(319)).body.decode() == shown, "all or nothing"
        assert (await admin.ask(318, b"scanNotActiveBrokerInterval=5000")).code == 0
        assert "scanNotActiveBrokerInterval=5000\n" in (await admin.ask(319)).body.decode()

    over_sockets(test, kv_config_path="")


def test_every_code_of_a_name_server_is_there_and_no_other() -> None:
    async def test(server: NameServer, client: Peer) -> None:
        for code in CODES:
            assert (await client.ask(code)).code != 3, code
        for code in (10, 34, 105_000, 905, 17, 9_000):
            answer = await client.ask(code)
            assert answer.code == 3
            assert answer.remark == f" request type {code} not supported"
        for code in (100, 101, 102, 103, 104, 105, 205, 216, 217, 219, 224, 322, 327, 901, 904):
            answer = await client.ask(code)
            assert answer.code == 1, f"{code} without its mandatory fields"
            assert "mandatory" in (answer.remark or "")

    over_sockets(test)


def test_binary_headers_are_answered_in_kind() -> None:
    async def test(server: NameServer, broker: Peer) -> None:
        command = register_command()
        command.binary = True
        answer = await broker.client.call(server.address, command)
        assert (answer.code, answer.binary) == (0, True)
        route = Command(105, {"topic": "T"}, binary=True)
        answer = await broker.client.call(server.address, route)
        assert (answer.code, answer.binary) == (0, True)

    over_sockets(test)
