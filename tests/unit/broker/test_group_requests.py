"""Groups and connections over real sockets, as mqadmin asks (200, 225, 201, 352, 207, 203, 204, 328)."""

import json
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.metadata.group_table import SubscriptionGroup, SubscriptionGroupTable
from penstock.protocol.bodies import MessageQueue
from tests.unit.broker.metadata_bench import MetadataBroker, heartbeat, kept, run

OPTIONS = BrokerOptions(broker_name="b-a", cluster_name="c1")
CREATE, CREATE_LIST, ALL, ONE, DELETE, CONSUMERS, PRODUCERS, ALL_PRODUCERS = (
    200, 225, 201, 352, 207, 203, 204, 328,
)  # fmt: skip
# As RocketMQ 4.9 sends it, without the members that 5.x added.
OLD = (
    b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    b'"groupName":"g","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":2,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)


def test_create_describe_delete(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(ONE, group="g") == 26
            assert broker.groups.find("g") is None  # asking creates nothing
            assert await caller.code(CREATE, OLD) == 0
            assert broker.groups.find("g") == SubscriptionGroup("g", retry_max_times=3, retry_queue_nums=2)
            answer = await caller.raw(ONE, group="g")
            assert answer.body == (
                b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
                b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
                b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
                b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":3,"retryQueueNums":2,'
                b'"whichBrokerWhenConsumeSlowly":1}'
            )
            assert kept(broker, SubscriptionGroupTable).groups["g"].retry_max_times == 3
            broker.offsets.commit("g", "T", 0, 4)
            broker.locks.lock("g", "c", [MessageQueue("T", "b-a", 0)])
            assert await caller.code(DELETE, groupName="g", cleanOffset=False) == 0
            assert broker.groups.find("g") is None
            assert not broker.locks.is_locked("g")
            assert broker.offsets.query("g", "T", 0) == 4
            assert await caller.code(DELETE, groupName="g", cleanOffset=True) == 0
            assert broker.offsets.query("g", "T", 0) == -1
            assert await caller.code(DELETE, groupName="TOOLS_CONSUMER") == 29

    run(life())


def test_attributes_lose_their_sign(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(CREATE, b'{"groupName":"g","attributes":{"+a":"1","+b":"2"}}') == 0
            assert await caller.code(CREATE, b'{"groupName":"g","attributes":{"-a":"","+b":"3"}}') == 0
            config = broker.groups.find("g")
            assert config is not None
            assert config.attributes == {"b": "3"}

    run(life())


@pytest.mark.abuse("A6")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"groupName":""}', 29),
        (b"{}", 29),
        (b'{"groupName":"a b"}', 29),
        (b'{"groupName":"../g"}', 29),
        (b'{"groupName":"%s"}' % (b"g" * 121), 29),
        (b'{"groupName":"g","retryQueueNums":2147483647}', 29),
        (b'{"groupName":"g","retryQueueNums":-1}', 1),
        (b'{"groupName":"g","padding":"%s"}' % (b"x" * 10_000), 29),
        (b'{"groupName":"g","consumeEnable":[]}', 1),
        (b"", 1),
        (b"null", 1),
    ],
)
def test_what_no_group_may_be(tmp_path: Path, body: bytes, code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            before = dict(broker.groups.all())
            assert await broker.client().code(CREATE, body) == code
            assert dict(broker.groups.all()) == before

    run(life())


def test_lists(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            both = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}'
            assert await caller.code(CREATE_LIST, both) == 0
            assert (
                await caller.code(CREATE_LIST, b'{"groupConfigList":[{"groupName":"c"},{"groupName":""}]}')
                == 29
            )
            assert broker.groups.find("c") is None
            answer = await caller.raw(ALL)
            assert "totalGroupNum" not in answer.fields
            found = json.loads(answer.body)
            assert set(found) == {"dataVersion", "forbiddenTable", "subscriptionGroupTable"}
            assert {"a", "b", "TOOLS_CONSUMER"} <= set(found["subscriptionGroupTable"])

    run(life())


def test_who_is_connected(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            java, go = broker.client(), broker.client()
            assert await java.code(CONSUMERS, consumerGroup="g") == 206
            assert await java.code(PRODUCERS, producerGroup="p") == 1
            await java.heartbeat("10.0.0.1@1", "g", producers=("p",))
            await go.raw(34, heartbeat("10.0.0.2@2", "g", producers=("p",)), version=317, language="KLINGON")
            found = await java.json(CONSUMERS, consumerGroup="g")
            ours = (await java.client.connection(java.address)).local
            assert found["connectionSet"][0] == {
                "clientAddr": str(ours),
                "clientId": "10.0.0.1@1",
                "language": "JAVA",
                "penstockTerms": "clustering: T (*)",
                "version": 401,
            }
            assert found["connectionSet"][1]["language"] == "OTHER"
            assert found["connectionSet"][1]["version"] == 317
            assert {key: found[key] for key in found if key != "connectionSet"} == {
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionTable": {
                    "T": {
                        "classFilterMode": False,
                        "codeSet": [],
                        "expressionType": "TAG",
                        "subString": "*",
                        "subVersion": 1,
                        "tagsSet": [],
                        "topic": "T",
                    }
                },
            }
            connected = await java.json(PRODUCERS, producerGroup="p")
            assert [item["clientId"] for item in connected["connectionSet"]] == ["10.0.0.1@1", "10.0.0.2@2"]
            producers = await java.json(ALL_PRODUCERS)
            assert set(producers["data"]) == {"p"}
            assert set(producers["data"]["p"][0]) == {
                "clientId",
                "language",
                "lastUpdateTimestamp",
                "remoteIP",
                "version",
            }
            assert producers["data"]["p"][0]["lastUpdateTimestamp"] > 1_600_000_000_000

    run(life())
