"""Offsets over real sockets: of consumers, of queues, moved by operators (14, 15, 29-32, 43, 208, 222, 223, 303,
308, 314, 317, 353)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.options import BrokerOptions
from penstock.metadata.fastjson import loads
from penstock.metadata.group_table import SubscriptionGroup
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.command import Command
from penstock.remoting import ProcessorTable
from tests.unit.broker.metadata_bench import Caller, MetadataBroker, heartbeat, run
from tests.waiting import until

OPTIONS = BrokerOptions(broker_name="b-a", cluster_name="c1")
QUERY, COMMIT, BY_TIME, MAX, MIN, EARLIEST, ALL = 14, 15, 29, 30, 31, 32, 43
STATS, ALL_STATS, SPAN, CORRECTION, CLONE, FORBID, RESET, STATUS = 208, 317, 303, 308, 314, 353, 222, 223


async def offset(caller: Caller, code: int, **fields: object) -> int | tuple[str, int]:
    """The offset in the answer, or the code."""
    answer = await caller.raw(code, **fields)  # type: ignore[arg-type]
    return int(answer.fields["offset"]) if answer.code == 0 else ("code", answer.code)


def consumer(broker: MetadataBroker, topic: str = "T", queues: int = 2, group: str = "g") -> None:
    broker.topics.ensure(topic, queues)
    broker.groups.get(group)


# -- 14 and 15 -----------------------------------------------------------------------------------------------


def test_commit_and_query(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            caller = broker.client()
            place = {"consumerGroup": "g", "topic": "T", "queueId": 1}
            assert await offset(caller, QUERY, **place) == ("code", 22)  # an empty queue
            assert await caller.code(COMMIT, **place, commitOffset=10) == 0
            assert await offset(caller, QUERY, **place) == 10
            assert await caller.code(COMMIT, **place, commitOffset=4) == 0
            assert await offset(caller, QUERY, **place) == 4
            assert await offset(caller, QUERY, **place, setZeroIfNotFound=False) == 4

    run(life())


def test_a_new_group_starts_at_the_beginning_of_a_young_queue(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.put("T", 0, 3)
            caller = broker.client()
            place = {"consumerGroup": "new", "topic": "T", "queueId": 0}
            assert await offset(caller, QUERY, **place) == 0
            assert await offset(caller, QUERY, **place, setZeroIfNotFound=True) == 0
            assert await offset(caller, QUERY, **place, setZeroIfNotFound=False) == ("code", 22)

    run(life())


def test_a_queue_that_is_out_of_memory_is_not_young(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, replace(OPTIONS, memory_percent=0)) as broker:
            consumer(broker)
            broker.put("T", 0, 3)
            place = {"consumerGroup": "new", "topic": "T", "queueId": 0}
            assert await offset(broker.client(), QUERY, **place) == ("code", 22)

    run(life())


@pytest.mark.abuse("A14")
@pytest.mark.abuse("A16")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consumerGroup": "unknown"}, 26),
        ({"topic": "unknown"}, 17),
        ({"queueId": 2}, 29),
        ({"queueId": -1}, 29),
        ({"queueId": 2**31 - 1}, 29),
        ({"queueId": 2**31}, 1),
        ({"commitOffset": -1}, 29),
        ({"commitOffset": -(2**63)}, 29),
        ({"commitOffset": 2**63}, 1),
        ({"commitOffset": "9" * 5_000}, 1),
        ({"commitOffset": "ten"}, 1),
        ({"commitOffset": 2**63 - 1}, 0),
    ],
)
def test_commits_that_are_refused(tmp_path: Path, changes: dict[str, object], code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1, **changes}
            assert await broker.client().code(COMMIT, **fields) == code
            assert len(list(broker.offsets.all())) == (1 if code == 0 else 0)

    run(life())


def test_a_one_way_commit_is_never_answered(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            caller = broker.client()
            for topic in ("T", "unknown"):
                fields = {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": "9"}
                await caller.client.send(caller.address, Command(COMMIT, fields))
            await until(lambda: broker.offsets.query("g", "T", 0) == 9)
            assert await offset(caller, MAX, topic="T", queueId=0) == 0

    run(life())


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            await broker.client().code(COMMIT, consumerGroup="g", topic="T", queueId=0, commitOffset=42)

    async def second() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            assert await offset(broker.client(), QUERY, consumerGroup="g", topic="T", queueId=0) == 42
            assert broker.topics.get("T") is not None
            assert broker.groups.find("g") is not None

    run(first())
    run(second())


# -- 29 to 32 and 43 -----------------------------------------------------------------------------------------


def test_the_range_of_a_queue(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            place = {"topic": "T", "queueId": 0}
            assert await offset(caller, MAX, **place) == 0
            assert await offset(caller, MIN, **place) == 0
            assert (await caller.raw(EARLIEST, **place)).fields == {"timestamp": "-1"}  # type: ignore[arg-type]
            assert await offset(caller, BY_TIME, **place, timestamp=0) == 0
            broker.put("T", 0, 3)
            stored = [message.store_timestamp for message in broker.store.read("T", 0, 0)]
            assert await offset(caller, MAX, **place, committed=True) == 3
            assert await offset(caller, MIN, **place) == 0
            assert (await caller.raw(EARLIEST, **place)).fields == {"timestamp": str(stored[0])}  # type: ignore[arg-type]
            assert await offset(caller, BY_TIME, **place, timestamp=stored[0]) == 0
            assert await offset(caller, BY_TIME, **place, timestamp=stored[2] + 1) == 3
            assert await offset(caller, BY_TIME, **place, timestamp=stored[2] + 1, boundaryType="upper") == 2
            assert await offset(caller, BY_TIME, **place, timestamp=-1) == 0
            assert await offset(caller, BY_TIME, **place, timestamp=2**63 - 1) == 3
            assert await offset(caller, MAX, topic="../etc", queueId=-7) == 0

    run(life())


def test_all_offsets(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.offsets.commit("g", "T", 0, 5)
            found = await broker.client().json(ALL)
            assert set(found) == {"dataVersion", "offsetTable"}
            assert found["offsetTable"] == {"T@g": {"0": 5}}
            for number in range(600):
                broker.offsets.commit(f"g{number}", "T", 0, number)
            assert len((await broker.client().json(ALL))["offsetTable"]) == 601

    run(life())


# -- progress ------------------------------------------------------------------------------------------------


def test_consume_stats(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.put("T", 0, 5)
            broker.offsets.commit("g", "T", 0, 2)
            broker.offsets.commit_pull("g", "T", 0, 4)
            caller = broker.client()
            stored = broker.store.read("T", 0, 1)[0].store_timestamp
            answer = await caller.raw(STATS, consumerGroup="g")
            assert answer.body == (
                b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:'
                b'{"brokerOffset":5,"consumerOffset":2,"lastTimestamp":%d,"pullOffset":4},'
                b'{"brokerName":"b-a","queueId":1,"topic":"T"}:'
                b'{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}' % stored
            )
            same = await caller.raw(STATS, consumerGroup="g", topic="T")
            assert same.body == answer.body
            # A topic that the group online does not subscribe to is left out, unless it is asked for by list.
            await caller.heartbeat("c", "g", topic="other")
            assert (await caller.json(STATS, consumerGroup="g"))["offsetTable"] == {}
            listed = await caller.raw(STATS, consumerGroup="g", topicList="T;unknown")
            assert listed.body == answer.body
            assert (await caller.json(STATS, consumerGroup="unknown"))["offsetTable"] == {}

    run(life())


def test_consume_stats_of_the_whole_broker(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker, queues=1)
            broker.put("T", 0, 5)
            broker.offsets.commit("g", "T", 0, 2)
            broker.offsets.commit_pull("g", "T", 0, 4)
            caller = broker.client()
            found = await caller.json(ALL_STATS, isOrder=False)
            assert (found["totalDiff"], found["totalInflightDiff"]) == (3, 2)
            assert found["brokerAddr"] == str(broker.server.address)
            by_group = {name: stats for item in found["consumeStatsList"] for name, stats in item.items()}
            assert len(by_group["g"]) == 1
            assert by_group["TOOLS_CONSUMER"] == []
            assert (await caller.json(ALL_STATS, isOrder=True))["totalDiff"] == 0
            broker.topics.update(TopicConfig("T", 1, 1, order=True))
            assert (await caller.json(ALL_STATS, isOrder=True))["totalDiff"] == 3

    run(life())


def test_consume_time_span(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.put("T", 0, 3)
            stored = [message.store_timestamp for message in broker.store.read("T", 0, 0)]
            broker.offsets.commit("g", "T", 0, 2)
            caller = broker.client()
            spans = (await caller.json(SPAN, topic="T", group="g"))["consumeTimeSpanSet"]
            delay = spans[0].pop("delayTime")
            assert 0 <= delay < 60_000
            assert spans[0] == {
                "consumeTimeStamp": stored[1],
                "maxTimeStamp": stored[2],
                "messageQueue": {"brokerName": "b-a", "queueId": 0, "topic": "T"},
                "minTimeStamp": stored[0],
            }
            assert (spans[1]["minTimeStamp"], spans[1]["delayTime"]) == (-1, 0)
            assert await caller.code(SPAN, topic="unknown", group="g") == 17

    run(life())


def test_correction_offsets(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            for group, committed in (("a", 4), ("b", 7), ("slow", 2)):
                broker.offsets.commit(group, "T", 0, committed)
            caller = broker.client()
            answer = await caller.raw(CORRECTION, compareGroup="b", topic="T")
            assert answer.body == b'{"correctionOffsets":{0:2}}'
            found = await caller.json(CORRECTION, compareGroup="b", topic="T", filterGroups="slow,a")
            assert found == {"correctionOffsets": {"0": 7}}
            behind = await caller.json(CORRECTION, compareGroup="slow", topic="T", filterGroups="slow")
            assert behind == {"correctionOffsets": {"0": 2**63 - 1}}

    run(life())


# -- moving --------------------------------------------------------------------------------------------------


def queue_key(queue_id: int) -> str:
    return json.dumps({"brokerName": "b-a", "queueId": queue_id, "topic": "T"}, separators=(",", ":"))


def test_a_reset_is_carried_out_by_the_broker(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.put("T", 0, 5)
            broker.offsets.commit("g", "T", 0, 5)
            caller = broker.client()
            reset = {"topic": "T", "group": "g", "isForce": True}
            answer = await caller.raw(RESET, **reset, timestamp=0)  # type: ignore[arg-type]
            assert answer.code == 0
            assert answer.body == (
                b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:0,'
                b'{"brokerName":"b-a","queueId":1,"topic":"T"}:0}}'
            )
            place = {"consumerGroup": "g", "topic": "T", "queueId": 0}
            assert await offset(caller, QUERY, **place) == 0
            assert await caller.code(COMMIT, **place, commitOffset=5) == 0  # silently dropped
            assert await offset(caller, QUERY, **place) == 0
            assert broker.offsets.take_reset("g", "T", 0) == 0  # the next pull
            assert await caller.code(COMMIT, **place, commitOffset=1) == 0
            assert await offset(caller, QUERY, **place) == 1
            found = await caller.json(RESET, **reset, timestamp=-1)
            assert found["offsetTable"] == {queue_key(0): 5, queue_key(1): 0}
            found = await caller.json(RESET, **reset, timestamp=0, queueId=0, offset=3)
            assert found["offsetTable"] == {queue_key(0): 3}
            found = await caller.json(RESET, **reset, timestamp=-1, queueId=0, offset=-1)
            assert found["offsetTable"] == {queue_key(0): 5}

    run(life())


@pytest.mark.abuse("A16")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, 17),
        ({"group": "unknown"}, 26),
        ({"queueId": 7}, 29),
        ({"queueId": -2}, 29),
        ({"queueId": 0, "offset": 6}, 1),
        ({"queueId": 0, "offset": 2**63 - 1}, 1),
        ({"timestamp": "soon"}, 1),
    ],
)
def test_resets_that_are_refused(tmp_path: Path, changes: dict[str, object], code: int) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.put("T", 0, 5)
            fields: dict[str, Any] = {"topic": "T", "group": "g", "timestamp": 0, "isForce": True, **changes}
            assert await broker.client().code(RESET, **fields) == code
            assert list(broker.offsets.all()) == []

    run(life())


class ResettableClient:
    """A consumer that keeps what it is told, and tells what it has."""

    def __init__(self, broker: MetadataBroker, body: bytes = b"", silent: bool = False) -> None:
        self.pushes: list[Command] = []
        self.asked: list[Command] = []
        self._body, self._silent = body, silent
        table = ProcessorTable()
        table.register(220, self._reset)
        table.register(221, self._status)
        self.call = broker.client(table)

    def _reset(self, _: object, command: Command) -> None:
        assert command.is_oneway
        self.pushes.append(command)

    def _status(self, _: object, command: Command) -> Command | None:
        self.asked.append(command)
        return None if self._silent else command.answer(body=self._body)


CLIENTS_DO_IT = replace(OPTIONS, server_side_reset=False)


def test_clients_are_told_to_reset_where_the_broker_does_not(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, CLIENTS_DO_IT) as broker:
            consumer(broker, queues=1)
            broker.put("T", 0, 5)
            caller = broker.client()
            reset: dict[str, Any] = {"topic": "T", "group": "g", "timestamp": 0, "isForce": True}
            assert await caller.code(RESET, **reset) == 1  # no offset to move
            broker.offsets.commit("g", "T", 0, 4)
            assert await caller.code(RESET, **reset) == 206  # nobody to tell
            java, cpp = ResettableClient(broker), ResettableClient(broker)
            await java.call.heartbeat("java", "g")
            await cpp.call.raw(34, heartbeat("cpp", "g"), language="CPP")
            expected = b'{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:0}}'
            answer = await caller.raw(RESET, **reset)
            assert (answer.code, answer.body) == (0, expected)
            await until(lambda: len(java.pushes) == len(cpp.pushes) == 1)
            assert java.pushes[0].body == expected
            assert java.pushes[0].fields == {
                "topic": "T",
                "group": "g",
                "timestamp": "0",
                "isForce": "true",
                "queueId": "-1",
            }
            assert loads(cpp.pushes[0].body) == {
                "offsetTable": [{"brokerName": "b-a", "offset": 0, "queueId": 0, "topic": "T"}]
            }
            reset.update(isForce=False, timestamp=-1)  # forwards only by force
            assert (await caller.json(RESET, **reset))["offsetTable"] == {queue_key(0): 4}
            old = broker.client()
            await old.raw(34, heartbeat("old", "g"), version=27)
            assert await caller.code(RESET, **reset) == 1

    run(life())


def test_what_consumers_hold_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.processors.offset_admin.STATUS_TIMEOUT_MS", 200)

    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            caller = broker.client()
            assert await caller.code(STATUS, topic="T", group="g") == 1
            held = b'{"messageQueueTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:7}}'
            one = ResettableClient(broker, held)
            garbage = ResettableClient(broker, b"{{{")
            silent = ResettableClient(broker, silent=True)
            for name, client in (("one", one), ("garbage", garbage), ("silent", silent)):
                await client.call.heartbeat(name, "g")
            answer = await caller.raw(STATUS, topic="T", group="g")
            assert answer.code == 0
            assert answer.body == (
                b'{"consumerTable":{"one":{{"brokerName":"b-a","queueId":0,"topic":"T"}:7}}}'
            )
            assert one.asked[0].fields == {"topic": "T", "group": "g"}
            await caller.json(STATUS, topic="T", group="g", clientAddr="one")
            assert (len(one.asked), len(silent.asked)) == (2, 1)

    run(life())


def test_offsets_are_copied_to_another_group(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            consumer(broker, "U")
            broker.offsets.commit("g", "T", 0, 3)
            broker.offsets.commit("g", "U", 1, 4)
            broker.offsets.commit("g", "gone", 0, 5)
            caller = broker.client()
            assert await caller.code(CLONE, srcGroup="g", destGroup="copy", topic="T", offline=True) == 0
            assert broker.offsets.topics_of_group("copy") == ["T"]
            await caller.heartbeat("c", "g", topic="T")
            assert await caller.code(CLONE, srcGroup="g", destGroup="other", offline=False) == 0
            assert broker.offsets.topics_of_group("other") == ["T"]  # the only one it subscribes to
            assert await caller.code(CLONE, srcGroup="g", destGroup="all", offline=True) == 0
            assert sorted(broker.offsets.topics_of_group("all")) == ["T", "U"]
            assert broker.offsets.query("all", "U", 1) == 4
            assert await caller.code(CLONE, srcGroup="g", destGroup="bad group", offline=True) == 29

    run(life())


def test_a_group_is_barred_from_a_topic(tmp_path: Path) -> None:
    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            caller = broker.client()
            answer = await caller.raw(FORBID, group="g", topic="T")
            assert answer.body == b'{"group":"g","readable":true,"topic":"T"}'
            assert (await caller.json(FORBID, group="g", topic="T", readable=False))["readable"] is False
            assert broker.groups.is_read_forbidden("g", "T")
            assert (await caller.json(FORBID, group="g", topic="T"))["readable"] is False
            assert (await caller.json(FORBID, group="g", topic="T", readable=True))["readable"] is True
            assert await caller.code(FORBID, group="g", topic="unknown", readable=False) == 17
            assert await caller.code(FORBID, group="unknown", topic="T", readable=False) == 26

    run(life())


def test_a_reset_group_stays_where_it_is_put(tmp_path: Path) -> None:
    """What an ordered consumer locked, and what a group is set to, have nothing to do with its offsets."""

    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            consumer(broker)
            broker.groups.update(SubscriptionGroup("g", consume_message_orderly=True))
            broker.locks.lock("g", "c", [MessageQueue("T", "b-a", 0)])
            assert await broker.client().code(RESET, topic="T", group="g", timestamp=-1, isForce=True) == 0
            assert broker.offsets.has_reset("g", "T", 0)

    run(life())
