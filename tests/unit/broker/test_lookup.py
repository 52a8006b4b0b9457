"""Looking messages up by key, by place and by queue entry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.message.hashing import java_string_hash
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from tests.support.running_broker import Bench, records, run, running

FAR = 2**63 - 1


async def query(bench: Bench, key: str, topic: str = "T", **more: object) -> Command:
    fields = {"topic": topic, "key": key, "maxNum": 10, "beginTimestamp": 0, "endTimestamp": FAR, **more}
    return await bench.client.call(RequestCode.QUERY_MESSAGE, {k: str(v) for k, v in fields.items()})


@pytest.mark.feature("look-up", "fifth-seed")
@pytest.mark.seed("S3-9")
@pytest.mark.seed("S4-19")
def test_messages_are_found_by_any_of_their_keys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send(body=b"one", KEYS="k1 k2", UNIQ_KEY="U1")
            await bench.client.send(body=b"two", KEYS="k2", UNIQ_KEY="U2")
            await bench.client.send("Other", b"other", KEYS="k2")
            for key, found in (("k1", [b"one"]), ("k2", [b"one", b"two"]), ("U2", [b"two"])):
                answer = await query(bench, key)
                assert answer.code == 0
                assert [m.body for m in records(answer.body)] == found
                assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
                assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0
            # Of more than wanted, the newest; RocketMQ sorts what it found by place.
            assert [m.body for m in records((await query(bench, "k2", maxNum=1)).body)] == [b"two"]
            answer = await query(bench, "U1", maxNum=0, _UNIQUE_KEY_QUERY="true")
            assert [m.body for m in records(answer.body)] == [b"one"]

    run(scenario)


def test_a_key_that_is_not_there_in_that_time_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send(KEYS="k")
            time = records((await query(bench, "k")).body)[0].store_timestamp
            for more in (
                {"key": "x"},
                {"key": "k", "topic": "None"},
                {"key": "k", "endTimestamp": time - 1},
                {"key": "k", "beginTimestamp": time + 1},
                {"key": "k", "beginTimestamp": -5, "endTimestamp": -1},
            ):
                answer = await query(bench, **more)  # type: ignore[arg-type]
                assert answer.code == ResponseCode.QUERY_NOT_FOUND, more
                assert "indexLastUpdateTimestamp" in answer.fields
            assert (await query(bench, "k", beginTimestamp=time, endTimestamp=time)).code == 0

    run(scenario)


def test_a_message_is_found_by_its_offset_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await bench.client.send(body=b"zero")
            ids = (await bench.client.send(body=b"one")).fields["msgId"]
            offset = int(ids[-16:], 16)
            answer = await bench.client.call(
                RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset), "topic": "T"}
            )
            assert answer.code == 0
            [message] = records(answer.body)
            assert (message.body, message.message_id) == (b"one", ids)
            for wrong in (offset + 1, offset + 10_000, -1, FAR, 3):
                answer = await bench.client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(wrong)})
                assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")

    run(scenario)


def test_queue_entries_can_be_looked_at(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            for number in range(5):
                await bench.client.send(TAGS="a", UNIQ_KEY=f"U{number}")
            await bench.client.heartbeat(group="g", expression="a")

            async def entries(**more: object) -> dict:
                fields = {"topic": "T", "queueId": 0, "index": 1, "count": 2, "consumerGroup": "g", **more}
                answer = await bench.client.call(
                    RequestCode.QUERY_CONSUME_QUEUE, {k: str(v) for k, v in fields.items()}
                )
                assert answer.code == 0, answer.remark
                return json.loads(answer.body)

            found = await entries()
            assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 5)
            assert [entry["msg"] for entry in found["queueData"]] == ["U1", "U2"]
            assert {entry["tagsCode"] for entry in found["queueData"]} == {java_string_hash("a")}
            assert found["queueData"][0]["physicSize"] > 0
            assert found["subscriptionData"]["subString"] == "a"
            assert len((await entries(index=-5, count=2**31 - 1))["queueData"]) == 5
            assert (await entries(index=5))["queueData"] == []
            assert (await entries(count=-1))["queueData"] == []
            answer = await bench.client.call(
                RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": "3", "index": "0", "count": "1"}
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR

    run(scenario)
