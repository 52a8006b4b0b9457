"""Nonsense to every metadata request: each is answered, none is a surprise to its handler, nothing grows."""

import logging
import random
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from tests.unit.broker.metadata_bench import MetadataBroker, heartbeat, run

OPTIONS = BrokerOptions(
    broker_name="b-a", cluster_name="c1", auto_topics_max=60, auto_groups_max=60, create_burst=100
)
ROUNDS = 3_000
VALUES = [
    "", " ", "T", "g", "%RETRY%g", "TBW102", "-1", "0", "1", "7", "2147483647", "2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "99999999999999999999999", "1e9", "NaN", "true", "false", "null",
    "../../x", "a\0b", "é", "x" * 300, "T;g;T", "+message.type=FIFO", "+x=,-y", "{}", "[]", "\U0001d7d9", "\ud83d",
]  # fmt: skip
FIELDS = [
    "topic", "group", "groupName", "consumerGroup", "producerGroup", "clientID", "queueId", "commitOffset",
    "timestamp", "offset", "isForce", "isOrder", "srcGroup", "destGroup", "offline", "compareGroup", "filterGroups",
    "topicList", "readQueueNums", "writeQueueNums", "perm", "order", "attributes", "topicFilterType", "defaultTopic",
    "cleanOffset", "readable", "boundaryType", "setZeroIfNotFound", "clientAddr",
]  # fmt: skip
BODIES = [
    b"",
    b"{}",
    heartbeat("c", "g", producers=("p",), expression="a || b"),
    b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b-a","queueId":0,"topic":"T"}]}',
    b'{"topicConfigList":[{"topicName":"T","readQueueNums":1,"writeQueueNums":1,"perm":6}]}',
    b'{"groupName":"g","retryMaxTimes":3,"groupRetryPolicy":{"type":"CUSTOMIZED"},"attributes":{"+a":"b"}}',
    b'{"groupConfigList":[{"groupName":"g"}]}',
    b'{"clientId":"c","group":"g","subscriptionData":{"topic":"T","subString":"a","expressionType":"TAG"}}',
]


def mutated(body: bytes, chance: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(chance.choice((0, 0, 1, 3))):
        if data:
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 4))] = chance.choice(
                (b"", b"\xff", b"[", b"{", b'"', b"-1", b"null", b"9" * 30, b"\\u0000")
            )
    return bytes(data)


@pytest.mark.abuse("A3")
@pytest.mark.abuse("A6")
@pytest.mark.abuse("A14")
@pytest.mark.abuse("A16")
def test_nonsense_is_refused_and_nothing_grows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(20231114)

    async def life() -> None:
        async with MetadataBroker(tmp_path, OPTIONS) as broker:
            broker.put("T", 0, 3)
            caller = broker.client()
            connection = await caller.client.connection(caller.address)
            for _ in range(ROUNDS):
                names = chance.sample(FIELDS, chance.randrange(len(FIELDS)))
                fields = {name: chance.choice(VALUES).encode("utf-8", "replace").decode() for name in names}
                command = Command(
                    chance.choice(broker.table.codes), fields, mutated(chance.choice(BODIES), chance)
                )
                answer = await connection.call(command, 10_000)
                if command.code == RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC:
                    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    continue
                assert answer.code in (0, 1, 2, 13, 14, 16, 17, 22, 26, 29, 206)
            assert len(broker.groups.all()) <= 80
            assert len(broker.topics.all()) <= 200
            assert (await caller.heartbeat("healthy", "g")).code == 0
            assert await broker.topics.save()
            assert await broker.groups.save()
            assert await broker.offsets.save()

    with caplog.at_level(logging.ERROR):
        run(life())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    run(_starts_again(tmp_path))


async def _starts_again(path: Path) -> None:
    """What got through is at least something that can be read back."""
    async with MetadataBroker(path, OPTIONS) as broker:
        assert (await broker.client().heartbeat("healthy", "g")).code == 0
