"""A broker that lives shorter than the interval in which it writes its tables' files, and is killed each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from tests.effort import by_length
from tests.support.broker_set import raw
from tests.support.server_processes import ServerProcess, broker, options

LIVES = by_length(3, 30)
NEVER = options("broker", offset_save_interval_ms=3_600_000, table_save_interval_ms=3_600_000)
GROUP, TOPIC = "workers", "orders"
# Where the queue moves to in each life: back too, as an operator may move it.
OFFSETS = (7, 40, 3)


def accepted(node: ServerProcess, command: Command) -> Command:
    answer = raw(node.address, command, 60_000)
    assert answer.code == 0, answer.remark
    return answer


def create(node: ServerProcess, topic: str, group: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    accepted(node, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    body = json.dumps({"groupName": group}).encode()
    accepted(node, Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))


def commit(node: ServerProcess, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset
    )
    accepted(node, Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()))


def committed(node: ServerProcess) -> int:
    header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0)
    return int(accepted(node, Command(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())).fields["offset"])


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I8")
def test_a_commit_that_was_answered_survives_a_kill(tmp_path: Path) -> None:
    """In 0.1 only what was committed before the last save of the file did: up to five seconds were gone."""
    node = broker(tmp_path, "127.0.0.1:1", *NEVER)
    try:
        for life in range(LIVES):
            node.start()
            if life:
                assert committed(node) == OFFSETS[(life - 1) % 3] + life - 1
            create(node, TOPIC if not life else f"topic-{life}", GROUP if not life else f"group-{life}")
            commit(node, 1_000)
            commit(node, OFFSETS[life % 3] + life)
            node.kill()
        node.start()
        assert committed(node) == OFFSETS[(LIVES - 1) % 3] + LIVES - 1
        node.stop()
        config = node.data / "config"
        assert not list(config.glob("tables.*")), "a clean stop leaves the files of RocketMQ alone"
        topics = json.loads((config / "topics.json").read_bytes())["topicConfigTable"]
        groups = json.loads((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
        assert {TOPIC, *(f"topic-{life}" for life in range(1, LIVES))} <= topics.keys()
        assert {GROUP, *(f"group-{life}" for life in range(1, LIVES))} <= groups.keys()
    finally:
        node.put_down()
