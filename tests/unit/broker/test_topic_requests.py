"""Topics over real sockets, as mqadmin asks (17, 18, 21, 202, 215, 300, 305, 316, 343, 345, 351)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.errors import DiskFullError
from penstock.metadata.topic_table import TopicConfig, TopicTable
from tests.unit.broker.metadata_bench import Caller, MetadataBroker, kept, run

OPTIONS = BrokerOptions(broker_name="b-a", cluster_name="c1")
CREATE, CREATE_LIST, ALL, STATS, DELETE, BY_WHO, SYSTEM, CLEAN, BY_CONSUMER, SUBSCRIPTION, CONFIG = (
    17, 18, 21, 202, 215, 300, 305, 316, 343, 345, 351,
)  # fmt: skip


def creation(topic: str = "T", **changes: object) -> dict[str, object]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 8,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }


def test_create_describe_change_delete(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(CONFIG, topic="T") == 17
            assert await caller.code(CREATE, **creation()) == 0
            answer = await caller.raw(CONFIG, topic="T", lo=True)
            assert answer.body == (
                b'{"attributes":{},"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG",'
                b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
            )
            # It is on disk when it is answered.
            assert kept(broker, TopicTable).topics["T"].read_queue_nums == 8
            assert await caller.code(CREATE, **creation(perm=4, order=True, readQueueNums=16)) == 0
            assert broker.topics.get("T") == TopicConfig("T", 16, 4, 4, order=True)  # type: ignore[arg-type]
            broker.put("T", 0, 3)
            broker.offsets.commit("g", "T", 0, 2)
            broker.topics.ensure("%RETRY%g_T", 1)
            assert await caller.code(DELETE, topic="T") == 0
            assert broker.topics.get("T") is None
            assert broker.topics.get("%RETRY%g_T") is None
            assert broker.store.max_offset("T", 0) == 0
            assert broker.offsets.query("g", "T", 0) == -1
            assert await caller.code(DELETE, topic="T") == 0

    run(life())


@pytest.mark.abuse("A6")
@pytest.mark.abuse("A7")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": ""}, 29),
        ({"topic": "a b"}, 29),
        ({"topic": "../T"}, 29),
        ({"topic": "x" * 128}, 29),
        ({"topic": "TBW102"}, 29),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 29),
        ({"topic": "rmq_sys_x"}, 29),
        ({"topic": "c1"}, 29),
        ({"topic": "b-a"}, 29),
        ({"readQueueNums": -1}, 29),
        ({"writeQueueNums": 2**31 - 1}, 29),
        ({"writeQueueNums": 2**31}, 1),
        ({"perm": 16}, 29),
        ({"perm": -1}, 29),
        ({"topicFilterType": "NONE"}, 29),
        ({"attributes": "+message.type=MIXED"}, 29),
        ({"attributes": "+message.type=SOMETHING"}, 29),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 29),
        ({"attributes": "+queue.type=BatchCQ"}, 29),
        ({"attributes": "message.type=FIFO"}, 1),
        ({"attributes": "+unknown=1"}, 1),
        ({"attributes": "-message.type"}, 1),
        ({"attributes": "+message.type"}, 1),
        ({"attributes": "+message.type=FIFO,+message.type=FIFO"}, 1),
    ],
)
def test_what_no_topic_may_be(tmp_path: Path, changes: dict[str, object], code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            before = dict(broker.topics.all())
            assert await broker.client().code(CREATE, **creation(**{"topic": "T", **changes})) == code
            assert dict(broker.topics.all()) == before

    run(life())


def test_attributes(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()

            async def change(attributes: str) -> tuple[int, dict[str, str]]:
                code = await caller.code(CREATE, **creation(attributes=attributes))
                config = broker.topics.get("T")
                return code, dict(config.attributes) if config else {}

            made = {"message.type": "FIFO", "queue.type": "SimpleCQ"}
            assert await change("+message.type=FIFO, +queue.type=SimpleCQ") == (0, made)
            assert await change("") == (0, made)
            assert await change("+message.type=DELAY") == (0, {**made, "message.type": "DELAY"})
            assert await change("+queue.type=SimpleCQ") == (0, {**made, "message.type": "DELAY"})
            assert (await change("-queue.type"))[0] == 1  # fixed at creation
            assert await change("-message.type,+reserve.time=3600000") == (
                0,
                {"queue.type": "SimpleCQ", "reserve.time": "3600000"},
            )
            assert (await change("+reserve.time=soon"))[0] == 29
            assert (await change("-cleanup.policy"))[0] == 1
            assert (await change("+cleanup.policy=DELETE"))[0] == 1

    run(life())


def test_of_a_list_all_or_none(tmp_path: Path) -> None:
    def listed(*names: str) -> bytes:
        topics = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in names]
        return json.dumps({"topicConfigList": topics}).encode()

    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(CREATE_LIST, listed("A", "B")) == 0
            assert broker.topics.get("A") == TopicConfig("A", 2, 2)
            assert await caller.code(CREATE_LIST, listed("C", "bad name")) == 29
            assert broker.topics.get("C") is None
            assert await caller.code(CREATE_LIST, b'{"topicConfigList":[7]}') == 1
            extra = json.loads(listed("D"))
            extra["topicConfigList"][0]["padding"] = "x" * 10_000
            assert await caller.code(CREATE_LIST, json.dumps(extra).encode()) == 29

    run(life())


@pytest.mark.fault("F4")
def test_who_changes_a_topic_is_told_that_it_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            assert await broker.topics.save()

            def full(*_: object) -> None:
                raise DiskFullError("no space", "free some")

            monkeypatch.setattr(broker.journal, "append", full)
            monkeypatch.setattr(broker.topics.stored.file, "begin", full)
            answer = await broker.client().raw(CREATE, **creation())  # type: ignore[arg-type]
            assert answer.code == 1
            assert "no space" in (answer.remark or "")
            assert broker.topics.get("T") is not None
            monkeypatch.undo()
            assert await broker.topics.save()

    run(life())


def test_all_topics_at_once(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            answer = await caller.raw(ALL)
            assert "totalTopicNum" not in answer.fields
            found = json.loads(answer.body)  # strict JSON
            assert set(found) == {
                "dataVersion",
                "mappingDataVersion",
                "topicConfigTable",
                "topicQueueMappingDetailMap",
                "topicQueueMappingInfoMap",
            }
            assert set(found["topicConfigTable"]) == set(broker.topics.all())
            for number in range(600):
                broker.topics.update(TopicConfig(f"many-{number}", 1, 1))
            again = await caller.json(ALL, topicSeq=0, maxTopicNum=100)  # large tables come from a thread
            assert len(again["topicConfigTable"]) == len(broker.topics.all())

    run(life())


def test_topic_stats(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.topics.update(TopicConfig("T", 1, 2))
            broker.put("T", 1, 5)
            caller = broker.client()
            newest = broker.store.read("T", 1, 4)[0].store_timestamp
            answer = await caller.raw(STATS, topic="T")
            assert answer.body == (
                b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:'
                b'{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0},'
                b'{"brokerName":"b-a","queueId":1,"topic":"T"}:'
                b'{"lastUpdateTimestamp":%d,"maxOffset":5,"minOffset":0}},"topicPutTps":2.5}' % newest
            )
            assert await caller.code(STATS, topic="unknown") == 17

    run(life())


@pytest.mark.parametrize(
    "topic", ["", "  ", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "c1", "b-a"]
)
def test_reserved_topics_stay(tmp_path: Path, topic: str) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            before = set(broker.topics.all())
            assert await broker.client().code(DELETE, topic=topic) == 29
            assert set(broker.topics.all()) == before

    run(life())


def test_who_consumes_what(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            await caller.heartbeat("c", "online")
            broker.offsets.commit("offline", "T", 0, 1)
            broker.offsets.commit("offline", "U", 0, 1)
            assert await caller.json(BY_WHO, topic="T") == {"groupList": ["offline", "online"]}
            assert await caller.json(BY_WHO, topic="unknown") == {"groupList": []}
            assert await caller.json(BY_CONSUMER, group="offline") == {
                "brokerAddr": str(broker.server.address),
                "topicList": ["T", "U"],
            }
            answer = await caller.raw(SUBSCRIPTION, group="online", topic="T")
            assert answer.body == (
                b'{"group":"online","subscriptionData":{"classFilterMode":false,"codeSet":[],'
                b'"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"T"},"topic":"T"}'
            )
            assert await caller.json(SUBSCRIPTION, group="offline", topic="T") == {
                "group": "offline",
                "topic": "T",
            }

    run(life())


def test_system_topics(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            found = await broker.client().json(SYSTEM)
            assert {"TBW102", "c1", "b-a", "SCHEDULE_TOPIC_XXXX", "c1_REPLY_TOPIC"} <= set(found["topicList"])
            broker.topics.ensure("T", 1)
            assert "T" not in (await broker.client().json(SYSTEM))["topicList"]

    run(life())


def test_queues_without_topics_are_cleaned_away(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.topics.ensure("kept", 1)
            for topic in ("kept", "orphan", "SCHEDULE_TOPIC_XXXX"):
                broker.put(topic)
            assert await broker.client().code(CLEAN) == 0
            assert broker.store.max_offset("orphan", 0) == 0
            assert broker.store.max_offset("kept", 0) == 1
            assert broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1

    run(life())


async def missing_fields(caller: Caller, code: int) -> int:
    return await caller.code(code)


@pytest.mark.parametrize("code", [CREATE, STATS, DELETE, BY_WHO, BY_CONSUMER, SUBSCRIPTION, CONFIG])
def test_a_missing_field_is_answered_and_named(tmp_path: Path, code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, replace(OPTIONS)) as broker:
            answer = await broker.client().raw(code)
            assert answer.code == 1
            assert "mandatory" in (answer.remark or "")

    run(life())
