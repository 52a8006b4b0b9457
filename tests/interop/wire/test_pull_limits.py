"""How much one answer to a pull has, whatever is asked for: at RocketMQ 5.3.3 and at Penstock the same."""

from __future__ import annotations

import pytest

from tests.interop.wire.frames import Wire
from tests.interop.wire.peer import Peer, Server
from tests.interop.wire.records import take_apart

pytestmark = pytest.mark.feature("pull", "rocketmq-5.3")
INT32_MAX = 2**31 - 1
SEND = {
    "producerGroup": "limits",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}


@pytest.mark.parametrize(
    ("size", "count", "asked", "got"),
    [
        (1, 40, {"maxMsgNums": 40}, 32),
        (1, 40, {"maxMsgNums": INT32_MAX, "maxMsgBytes": INT32_MAX}, 32),
        (1, 40, {"maxMsgNums": 5}, 5),
        # 256 KiB of records, each with some 200 bytes beside its body.
        (20_000, 20, {"maxMsgNums": 32}, 12),
        (20_000, 20, {"maxMsgNums": 32, "maxMsgBytes": INT32_MAX}, 12),
    ],
)
def test_one_answer(server: Server, size: int, count: int, asked: dict[str, int], got: int) -> None:
    topic = Peer.fresh("topic")
    fields = {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    with Wire(server.broker) as wire:
        for _ in range(count):
            # Not by a client, which would compress it.
            assert wire.call(10, {**SEND, "topic": topic}, b"x" * size).code == 0
        answer = wire.call(11, {**fields, **{name: str(value) for name, value in asked.items()}})
    assert (answer.code, answer.fields["nextBeginOffset"]) == (0, str(got))
    assert len(take_apart(answer.body)) == got
