"""Transactions at a running broker: a producer that prepares, ends and is asked, and what is in the three queues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from penstock.message import StoredMessage, TransactionKind, parse_message_id
from penstock.protocol.bodies import HeartbeatData, ProducerData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC
from penstock.remoting import Connection
from tests.support.running_broker import Bench, Client, properties, send_fields

COMMIT, ROLLBACK, UNKNOWN = TransactionKind.COMMIT, TransactionKind.ROLLBACK, TransactionKind.NONE
GROUP = "producers"


@dataclass
class Half:
    """What a producer knows of a half message."""

    unique: str
    offset: int
    position: int
    group: str = GROUP

    def end(self, kind: int, **more: object) -> dict[str, str]:
        """The header that ends it."""
        fields: dict[str, object] = {
            "producerGroup": self.group,
            "tranStateTableOffset": self.offset,
            "commitLogOffset": self.position,
            "commitOrRollback": int(kind),
            "fromTransactionCheck": "false",
            "msgId": self.unique,
            "transactionId": self.unique,
            **more,
        }
        return {name: str(value) for name, value in fields.items() if value is not None}


def half_fields(
    unique: str, topic: str = "T", queue: int = 0, group: str = GROUP, **more: str
) -> dict[str, str]:
    """A V2 send header of a half message, as Java's producer writes it."""
    props = properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY=unique, **more)
    return send_fields(topic, queue, props, f=int(TransactionKind.PREPARED), a=group)


async def prepare(
    client: Client, unique: str, body: bytes = b"half", topic: str = "T", queue: int = 0, **more: str
) -> Half:
    """Store a half message."""
    group = more.pop("group", GROUP)
    fields = half_fields(unique, topic, queue, group, **more)
    answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == 0, answer.remark
    assert answer.fields["transactionId"] == unique
    assert answer.fields["queueId"] == str(queue)
    _, position = parse_message_id(answer.fields["msgId"])
    return Half(unique, int(answer.fields["queueOffset"]), position, group)


async def end(client: Client, half: Half, kind: int, **more: object) -> Command:
    """End a transaction and wait for the answer."""
    return await client.call(RequestCode.END_TRANSACTION, half.end(kind, **more))


@dataclass
class Asked:
    """A producer that is asked: the questions, and how to wait for them."""

    questions: list[Command] = field(default_factory=list)
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def handle(self, connection: Connection, command: Command) -> None:
        self.questions.append(command)
        self._event.set()

    async def wait(self, count: int = 1) -> list[Command]:
        """The questions, once there are so many."""
        while len(self.questions) < count:
            self._event.clear()
            await self._event.wait()
        return self.questions


def half_of(question: Command) -> Half:
    """The half message that a question is about."""
    fields = question.fields
    offset, position = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
    return Half(fields["msgId"], offset, position)


async def producer(bench: Bench, group: str = GROUP, client_id: str = "producer@1") -> tuple[Client, Asked]:
    """A client that the broker may ask about transactions of a group."""
    asked = Asked()
    client = bench.connect({int(RequestCode.CHECK_TRANSACTION_STATE): asked.handle})
    beat = HeartbeatData(client_id, (ProducerData(group),), ())
    answer = await client.call(RequestCode.HEART_BEAT, body=beat.encode())
    assert answer.code == 0
    return client, asked


def stored(bench: Any, topic: str = "T", queue: int = 0) -> list[StoredMessage]:
    """Everything that a consumer of a queue would see."""
    store = bench.broker.store
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue)
    while offset < store.max_offset(topic, queue):
        result = store.reader.get(topic, queue, offset)
        found += result.messages()
        offset = max(result.next_offset, offset + 1)
    return found


def halves(bench: Any) -> list[StoredMessage]:
    return stored(bench, HALF_TOPIC)


def marks(bench: Any) -> list[bytes]:
    return [message.body for message in stored(bench, HALF_DONE_TOPIC)]


def parked(bench: Any) -> list[StoredMessage]:
    return stored(bench, CHECK_MAX_TOPIC)
