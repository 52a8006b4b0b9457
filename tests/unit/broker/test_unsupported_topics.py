"""Kinds of topics that Penstock does not have: their creation and their use are refused by name."""

from __future__ import annotations

from pathlib import Path

from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from tests.support.popping import pop
from tests.support.running_broker import run, running


def test_static_topics_and_queues_of_batches_are_refused_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            fields = {"topic": "S", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
            fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            static = await bench.client.call(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, b"{}")
            assert static.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "does not support static topics" in (static.remark or "")
            assert bench.broker.topics.get("S") is None
            made = await bench.client.call(17, {**fields, "attributes": "+queue.type=BatchCQ"})
            assert made.code == ResponseCode.INVALID_PARAMETER
            assert "queue.type cannot be 'BatchCQ'; use SimpleCQ" in (made.remark or "")
            # One that RocketMQ has left in the directory is neither written nor read as another kind.
            bench.broker.topics.update(TopicConfig("B", 4, 4, attributes={"queue.type": "BatchCQ"}))
            for answer in (
                await bench.client.send("B"),
                await bench.client.send("B"),
                await bench.client.pull("B"),
                await pop(bench.client, "B"),
            ):
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert "queue.type=BatchCQ, which Penstock does not support" in (answer.remark or "")
            assert bench.broker.store.max_offset("B", 0) == 0

    run(scenario)
