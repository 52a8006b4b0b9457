"""RocketMQ's controller requests and our beats over sockets, at a coordinator that leads."""

import asyncio
import json

import pytest

from penstock.coordinator.server import Coordinator
from penstock.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    SyncStateSet,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from tests.support.coordinator_wire import QUICK, FakeBroker, beating, body_of, brokers, run
from tests.waiting import until

WHO = {"clusterName": "c", "brokerName": "broker-a"}


def test_a_broker_gets_an_id_registers_and_becomes_master() -> None:
    async def test(server: Coordinator) -> None:
        async with brokers(1, 2) as (one, two):
            answer = await one.ask(server, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **WHO)
            assert answer.fields == {**WHO, "nextBrokerId": "1"}
            registered = await one.ask(
                server, RequestCode.CONTROLLER_REGISTER_BROKER, **WHO, brokerId=1, brokerAddress="10.0.0.1:1"
            )
            assert registered.code == 2010, "it has no id yet"
            applied = await one.ask(
                server,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                **WHO,
                appliedBrokerId=1,
                registerCheckCode="10.0.0.1:10911;1",
            )
            assert (applied.code, applied.fields) == (0, WHO)
            taken = await two.ask(
                server,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                **WHO,
                appliedBrokerId=1,
                registerCheckCode="x",
            )
            assert taken.code == 2014
            answer = await two.ask(server, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, **WHO)
            assert answer.fields["nextBrokerId"] == "2"
            registered = await one.register(server)
            assert registered.fields == {**WHO, "masterEpoch": "0", "syncStateSetEpoch": "0"}
            assert SyncStateSet.decode(registered.body) == SyncStateSet()
            elected = await one.elect(server, 1)
            assert elected.fields == {
                "masterBrokerId": "1",
                "masterAddress": "10.0.0.1:10911",
                "masterEpoch": "1",
                "syncStateSetEpoch": "1",
            }
            body = ElectMasterResponseBody.decode(elected.body)
            assert (body.group.broker_addrs, body.members) == ({1: "10.0.0.1:10911"}, {1})

    run(test)


def test_a_beat_is_answered_with_the_set_and_a_lease() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        answer = await one.beat(server)
        assert answer.fields == {
            "masterBrokerId": "1",
            "masterAddress": "10.0.0.1:10911",
            "masterHaAddress": "10.0.0.1:10912",
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
            "term": "1",
            "leaseMs": str(QUICK["master_lease_ms"]),
        }
        assert SyncStateSet.decode(answer.body) == SyncStateSet(frozenset((1,)), 1)
        assert (await two.state(server)).lease_ms == 0
        unknown = await FakeBroker.beat(two, server, broker_id=9)
        assert unknown.code == 2010
        stranger = await FakeBroker.beat(two, server, broker_name="nobody")
        assert stranger.code == 2010

    run(test, 1, 2)


def test_a_master_changes_its_set_and_is_refused_with_the_present_one() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        await two.beat(server)
        grown = await one.alter(server, 1, 2, epoch=1, set_epoch=1)
        assert (grown.code, grown.fields) == (0, {"newSyncStateSetEpoch": "2"})
        late = await one.alter(server, 1, epoch=1, set_epoch=1)
        assert late.code == 2001
        assert SyncStateSet.decode(late.body) == SyncStateSet(frozenset((1, 2)), 2), "what it missed"
        assert (await two.alter(server, 2, epoch=1, set_epoch=2)).code == 2002
        assert (await one.alter(server, 1, epoch=9, set_epoch=2)).code == 2000
        nobody = await one.ask(
            server,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            b"{}",
            brokerName="nobody",
            masterBrokerId=1,
            masterEpoch=1,
        )
        assert nobody.code == 2010

    run(test, 1, 2)


@pytest.mark.feature("failover", "fifth-seed")
@pytest.mark.seed("S4-21")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I14")
def test_a_master_that_is_gone_is_replaced_and_the_others_are_told() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker, three: FakeBroker) -> None:
        async with beating(server, two, three):
            await until(lambda: server.sets.is_live(server.sets.names()[0]) and len(server.links) == 3)
            for broker in (two, three, one):
                await broker.beat(server)
            assert (await one.alter(server, 1, 2, 3, epoch=1, set_epoch=1)).code == 0
            await one.close()
            await until(lambda: bool(two.notices) and bool(three.notices))
        for broker in (two, three):
            notice = broker.notices[-1]
            assert (notice.master_broker_id, notice.master_epoch, notice.term) == (2, 2, 1)
            assert (notice.master_address, notice.master_ha_address) == ("10.0.0.2:10911", "10.0.0.2:10912")
            assert broker.told[-1] == SyncStateSet(frozenset((2,)), 3)

    run(test, 1, 2, 3)


def test_a_stop_is_followed_by_an_election_at_once() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        await two.beat(server)
        await one.alter(server, 1, 2, epoch=1, set_epoch=1)
        await one.beat(server)
        await two.beat(server)
        await one.beat(server, is_stopping=True)
        await until(lambda: bool(two.notices))
        assert "c/broker-a/1" not in server.heartbeats.brokers

    # With a lease of a minute, waiting for it would be noticed.
    run(test, 1, 2, master_lease_ms=60_000)


def test_an_administrator_designates_a_master() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        async with beating(server, one, two):
            await until(lambda: len(server.heartbeats.brokers) == 2)
            await one.alter(server, 1, 2, epoch=1, set_epoch=1)
            assert (await one.elect(server)).code == 2011
            assert (await one.elect(server, designate=True)).code == 2005
            elected = await one.elect(server, 2, designate=True)
            assert (elected.code, elected.fields["masterBrokerId"]) == (0, "2")

    run(test, 1, 2)


def test_what_mqadmin_asks() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        await one.beat(server)
        about = await one.ask(server, RequestCode.CONTROLLER_GET_METADATA_INFO)
        assert about.fields == {
            "group": "penstock",
            "controllerLeaderId": "n0",
            "controllerLeaderAddress": server.address,
            "isLeader": "true",
            "peers": f"n0-{server.address}",
        }
        data = await one.ask(server, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a","nobody"]')
        found = BrokerReplicasInfo.decode(data.body).sets
        assert list(found) == ["broker-a"]
        info = found["broker-a"]
        assert (info.master_broker_id, info.master_address, info.master_epoch) == (1, "10.0.0.1:10911", 1)
        assert info.in_sync == (ReplicaIdentity("broker-a", 1, "10.0.0.1:10911", True),)
        assert [one.broker_id for one in info.not_in_sync] == [2]
        assert json.loads(data.body)["replicasInfoTable"]["broker-a"]["inSyncReplicas"][0] == {
            "alive": True,
            "brokerAddress": "10.0.0.1:10911",
            "brokerId": 1,
            "brokerName": "broker-a",
        }
        replicas = await one.ask(server, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="broker-a")
        assert replicas.fields == {
            "masterBrokerId": "1",
            "masterAddress": "10.0.0.1:10911",
            "masterEpoch": "1",
        }
        missing = await one.ask(server, RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="nobody")
        assert missing.code == 2008
        config = await one.ask(server, RequestCode.GET_CONTROLLER_CONFIG)
        assert b"master_lease_ms=800\n" in config.body
        assert (await one.ask(server, RequestCode.UPDATE_CONTROLLER_CONFIG, b"a=b")).code == 16

    run(test, 1, 2)


def test_brokers_that_will_not_come_back_are_cleaned() -> None:
    async def clean(server: Coordinator, broker: FakeBroker, ids: str, **fields: object) -> int:
        answer = await broker.ask(
            server, RequestCode.CLEAN_BROKER_DATA, **WHO, brokerControllerIdsToClean=ids, **fields
        )
        return answer.code

    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        await one.beat(server)
        assert await clean(server, one, "1") == 2009, "it lives"
        assert await clean(server, one, "9") == 2009
        assert await clean(server, one, "2", isCleanLivingBroker=True) == 0
        assert await clean(server, one, "x") == 1
        data = await one.ask(server, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["broker-a"]')
        assert BrokerReplicasInfo.decode(data.body).sets["broker-a"].not_in_sync == ()
        assert await clean(server, one, "", isCleanLivingBroker=True) == 0
        assert server.sets.names() == []
        assert await clean(server, one, "1") == 2009
        await one.join(server)

    run(test, 1, 2)


def test_rocketmqs_heartbeat_keeps_its_brokers_alive() -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        one.incarnation = 0
        await one.register(server)
        fields = {
            **WHO,
            "brokerAddr": one.address,
            "brokerId": 1,
            "epoch": -1,
            "maxOffset": 5,
            "confirmOffset": 5,
        }
        answer = await one.ask(server, RequestCode.BROKER_HEARTBEAT, **fields, heartbeatTimeoutMills=10_000)
        assert answer.code == 0
        await asyncio.sleep(1.2)
        name = server.sets.names()[0]
        assert server.sets.is_live(name), "for as long as it said"
        one_set = server.sets.get(name)
        assert one_set is not None
        assert one_set.record is not None
        assert one_set.record.master_epoch == 1, "nobody is elected over an epoch that it does not tell"
        unknown = await one.ask(server, RequestCode.BROKER_HEARTBEAT, **{**fields, "brokerId": 7})
        assert unknown.code == 2010
        assert "c/broker-a/1" in server.heartbeats.brokers

    async def go(server: Coordinator) -> None:
        async with brokers(1) as (one,):
            one.incarnation = 0
            await one.join(server)
            await test(server, one)

    run(go)


def test_a_broker_name_belongs_to_one_cluster() -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        other = await one.ask(
            server,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            clusterName="other",
            brokerName="broker-a",
            appliedBrokerId=1,
            registerCheckCode="x",
        )
        assert other.code == 2014
        assert "cluster c" in (other.remark or "")

    run(test, 1)


@pytest.mark.abuse("A14")
def test_there_are_so_many_sets_at_most_and_refused_ones_take_no_room() -> None:
    async def apply(server: Coordinator, broker: FakeBroker, name: str, broker_id: int = 1) -> int:
        answer = await broker.ask(
            server,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            clusterName="c",
            brokerName=name,
            appliedBrokerId=broker_id,
            registerCheckCode="x",
        )
        return answer.code

    async def test(server: Coordinator, one: FakeBroker) -> None:
        for number in range(10):
            assert await apply(server, one, f"refused-{number}", broker_id=5) == 2014
        assert len(server.sets.names()) == 1
        assert await apply(server, one, "second") == 0
        assert await apply(server, one, "third") == 2014

    run(test, 1, sets_max=2)


@pytest.mark.abuse("A6", "A12")
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"broker_name": "../x"}, "no broker name"),
        ({"cluster_name": "a/b"}, "no cluster name"),
        ({"broker_address": "169.254.169.254:80"}, "no address"),
        ({"ha_address": "224.0.0.1:80"}, "no address"),
        ({"broker_address": "METADATA.google.internal:80"}, "no address"),
        ({"ha_address": "[64:ff9b::a9fe:a9fe]:80"}, "no address"),
        ({"incarnation": 0}, "incarnation is 0"),
    ],
)
def test_names_and_addresses_are_checked(changes: dict[str, object], complaint: str) -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        answer = await one.beat(server, **changes)
        assert answer.code != 0
        assert complaint in (answer.remark or "")

    run(test, 1)


@pytest.mark.abuse("A3", "A14")
@pytest.mark.parametrize(
    ("code", "body", "fields"),
    [
        (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b"{}", {}),
        (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b"[1]", {}),
        (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b"[" * 100, {}),
        (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, json.dumps(["x"] * 1_001).encode(), {}),
        (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, b"[]", {"masterBrokerId": 1, "masterEpoch": 1}),
        (
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            json.dumps({"syncStateSet": list(range(2_000))}).encode(),
            {"masterBrokerId": 1, "masterEpoch": 1},
        ),
        (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, b'{"syncStateSet":["x"]}', {"masterBrokerId": "x"}),
        (RequestCode.CONTROLLER_ELECT_MASTER, b"", {"brokerId": 2**70}),
        (RequestCode.CONTROLLER_APPLY_BROKER_ID, b"", {"appliedBrokerId": 1, "registerCheckCode": "a\nb"}),
        (RequestCode.CLEAN_BROKER_DATA, b"", {"brokerControllerIdsToClean": "1;" * 2_000}),
    ],
)
def test_nonsense_is_refused(code: RequestCode, body: bytes, fields: dict[str, object]) -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        answer = await one.ask(server, code, body, **{**WHO, **fields})
        assert answer.code != 0
        assert answer.remark
        assert (await one.state(server)).lease_ms > 0, "nothing else is disturbed"

    run(test, 1)


# -- topics and status ---------------------------------------------------------------------------------------


def test_a_master_tells_its_topics_once_and_again_when_they_change() -> None:
    async def test(server: Coordinator, one: FakeBroker, two: FakeBroker) -> None:
        assert (await one.state(server, topics_version=7)).topics_version is None
        told = await one.state(server, topics={"T": (4, 4, 6), "U": (8, 2, 4)}, topics_version=7)
        assert told.topics_version == 7
        assert server.topics.existing("T") == {"broker-a": 4}
        assert server.topics.loads() == {"broker-a": 6}
        replica = await two.state(server, topics={"X": (1, 1, 6)}, topics_version=1)
        assert replica.topics_version == 1, "it need not send them again"
        assert server.topics.topic_names() == {"T", "U"}, "a replica's do not count"
        bad = await one.beat(server, topics={"T": (1, 2)}, topics_version=8)
        assert bad.code == 1
        hostile = await one.state(server, topics={"a/b": (1, 1, 6), "V": (1, 1, 6)}, topics_version=9)
        assert hostile.topics_version == 9
        assert server.topics.topic_names() == {"V"}
        await one.alter(server, 1, 2, epoch=1, set_epoch=1)
        await one.beat(server, is_stopping=True)
        await until(lambda: bool(two.notices))
        assert (await two.state(server, master_epoch=2)).topics_version is None, "a new master is asked"

    run(test, 1, 2)


def test_status_says_how_things_are() -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        await one.beat(server, max_offset=123)
        status = body_of(await one.ask(server, RequestCode.COORDINATOR_STATUS))
        assert (status["isLeader"], status["leader"], status["term"]) == (True, server.address, 1)
        assert status["metadata"] == "memory:"
        assert (status["brokers"], status["consumers"], status["producers"]) == (1, 0, 0)
        found = status["brokerSets"]["broker-a"]
        assert (found["masterId"], found["syncStateSet"]) == (1, [1])
        assert 0 < found["leaseMs"] <= QUICK["master_lease_ms"] + QUICK["lease_margin_ms"]
        assert found["members"]["1"]["maxOffset"] == 123

    run(test, 1)


def test_a_master_can_be_asked_over_the_connection_that_it_opened() -> None:
    async def test(server: Coordinator, one: FakeBroker) -> None:
        await one.beat(server)
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
        answer = await server.links.call_master(server.sets, "broker-a", command)
        assert (answer.code, one.created) == (0, [{"topic": "T"}])
        with pytest.raises(Exception, match="no master of nobody"):
            server.links.master(server.sets, "nobody")

    run(test, 1)
