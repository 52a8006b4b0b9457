"""POP over a socket: requests as clients write them, and what they make of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.message import StoredMessage
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pop import UNKNOWN_POP_FIELD, PopMessageResponseHeader
from penstock.protocol.pop_handles import (
    PopHandle,
    parse_message_offset_info,
    parse_start_offset_info,
    real_topic,
    topic_kind,
)
from tests.support.running_broker import Bench, Client, records
from tests.waiting import until

GROUP = "poppers"
BROKER_NAME = "broker-a"


@dataclass(frozen=True)
class Popped:
    """One message and the handle that a client makes for it."""

    message: StoredMessage
    handle: PopHandle
    topic: str
    group: str

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def tries(self) -> int:
        return self.message.reconsume_times

    @property
    def real_topic(self) -> str:
        return real_topic(self.group, self.topic, self.handle.kind)

    def changed(self, answer: Command) -> Popped:
        """With the handle that a change of the invisible time has given."""
        offset = self.handle.offset
        handle = PopHandle(
            offset,
            int(answer.fields["popTime"]),
            int(answer.fields["invisibleTime"]),
            int(answer.fields["reviveQid"]),
            self.handle.kind,
            self.handle.broker_name,
            self.handle.queue_id,
            offset,
        )
        return Popped(self.message, handle, self.topic, self.group)


async def pop(
    client: Client,
    topic: str = "T",
    *,
    most: int = 32,
    queue: int = -1,
    invisible_ms: int = 60_000,
    wait_ms: int = 0,
    group: str = GROUP,
    **more: object,
) -> Command:
    fields: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue,
        "maxMsgNums": most,
        "invisibleTime": invisible_ms,
        "pollTime": wait_ms,
        "bornTime": 0,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        **more,
    }
    return await client.call(
        RequestCode.POP_MESSAGE, {k: str(v) for k, v in fields.items() if v is not None}, timeout_ms=30_000
    )


def popped(answer: Command, topic: str = "T", group: str = GROUP) -> list[Popped]:
    """The messages of an answer, each with its handle: as Java's client makes them."""
    if answer.code != 0:
        return []
    header = PopMessageResponseHeader.decode(answer.fields)
    starts = parse_start_offset_info(header.start_offset_info or "")
    offsets = parse_message_offset_info(header.msg_offset_info or "")
    found = []
    for message in records(answer.body):
        text = message.properties.get("POP_CK")
        if text is not None:
            handle = PopHandle.parse(text)
        else:
            kind = topic_kind(group, message.topic)[0]
            source = (kind, message.queue_id)
            assert message.queue_offset in offsets[source]
            handle = PopHandle(
                starts[source],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                kind,
                BROKER_NAME,
                message.queue_id,
                message.queue_offset,
            )
        found.append(Popped(message, handle, topic, group))
    return found


async def take(client: Client, topic: str = "T", **more: object) -> list[Popped]:
    answer = await pop(client, topic, **more)  # type: ignore[arg-type]
    assert answer.code in (0, 210), answer.remark
    return popped(answer, topic, str(more.get("group", GROUP)))


async def ack(client: Client, one: Popped, **more: object) -> Command:
    fields: dict[str, object] = {
        "consumerGroup": one.group,
        "topic": one.real_topic,
        "queueId": one.handle.queue_id,
        "extraInfo": str(one.handle),
        "offset": one.handle.offset,
        **more,
    }
    return await client.call(RequestCode.ACK_MESSAGE, {k: str(v) for k, v in fields.items()})


def is_effective(answer: Command) -> bool:
    """Whether an acknowledgement or a change was of a pop that the broker waited for."""
    return answer.code == 0 and UNKNOWN_POP_FIELD not in answer.fields


def is_unknown(answer: Command) -> bool:
    """Whether it succeeded without an effect, because the broker knows no pop that waits for it."""
    assert answer.code == 0, answer.remark
    return not is_effective(answer)


async def change(client: Client, one: Popped, invisible_ms: int, **more: object) -> Command:
    fields: dict[str, object] = {
        "consumerGroup": one.group,
        "topic": one.real_topic,
        "queueId": one.handle.queue_id,
        "extraInfo": str(one.handle),
        "offset": one.handle.offset,
        "invisibleTime": invisible_ms,
        **more,
    }
    return await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {k: str(v) for k, v in fields.items()})


async def batch_ack(client: Client, several: Iterable[Popped]) -> Command:
    acks = tuple(
        BatchAck(
            one.group,
            one.topic,
            one.handle.kind,
            one.handle.start_offset,
            one.handle.queue_id,
            one.handle.revive_queue,
            one.handle.pop_time,
            one.handle.invisible_time,
            (one.handle.offset - one.handle.start_offset,),
        )
        for one in several
    )
    body = BatchAckMessageRequestBody(BROKER_NAME, acks).encode()
    return await client.call(RequestCode.BATCH_ACK_MESSAGE, body=body)


async def fill(client: Client, count: int, topic: str = "T", queue: int = 0, **props: str) -> list[bytes]:
    bodies = [f"{topic}-{queue}-{number}".encode() for number in range(count)]
    for body in bodies:
        assert (await client.send(topic, body, queue, **props)).code == 0
    return bodies


def turn(bench: Bench) -> None:
    """What the broker does from time to time, now."""
    assert bench.broker.pop is not None
    bench.broker.pop.service.tick()


async def settled(bench: Bench) -> None:
    """The log is on disk, and what follows from that has been done."""
    bench.broker.store.flush()
    turn(bench)
    await asyncio.sleep(0)


def open_checks(bench: Bench) -> int:
    assert bench.broker.pop is not None
    return len(bench.broker.pop.service.state)


async def held(bench: Bench, count: int, topic: str = "T", group: str = GROUP) -> None:
    """Until so many pops wait."""
    parts = bench.broker.pop
    assert parts is not None
    await until(lambda: parts.polling.held_for(group, topic) == count, f"{count} held pops")
