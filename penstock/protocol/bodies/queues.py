"""Message queues: as values, as keys of maps, and the bodies of queue locks (41, 42) and pushed offsets (220-223).

    MQ             {"brokerName":"b-a","queueId":0,"topic":"T"}
    as a key       {{"brokerName":"b-a","queueId":0,"topic":"T"}:7}          fastjson's own, what Go needs
                   {"{\\"brokerName\\":\\"b-a\\",...}":7}                        quoted, strict JSON

Rule: both forms of keys are read everywhere; the bare one is written, as the reference does, unless the caller
asks for strict JSON with `encode(bare_keys=False)`. Plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self, TypeVar

from penstock.metadata.fastjson import BareKey, JsonObject, JsonValue, dump_compact
from penstock.protocol.bodies.body import (
    INT64_MAX,
    INT64_MIN,
    REQUEST_LOOSE_MAX,
    Body,
    BodyFields,
    without_nulls,
)

V = TypeVar("V")
_KEY_BYTES_MAX = 4096


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorted as in Java: by topic, then broker, then number."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text("topic", ""), fields.text("brokerName", ""), fields.i32("queueId"))

    @classmethod
    def from_key(cls, text: str) -> Self:
        """From a map's key, whichever way it was written."""
        return cls.read(BodyFields.parse(text, "message queue", _KEY_BYTES_MAX))

    def to_json(self) -> JsonObject:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    def to_key(self) -> BareKey:
        return BareKey(dump_compact(self.to_json()).decode())


def by_queue(table: Iterable[tuple[str, V]]) -> dict[MessageQueue, V]:
    """A map whose keys are queues, from one whose keys are their texts."""
    return {MessageQueue.from_key(text): value for text, value in table}


def offsets_by_queue(fields: BodyFields | None) -> dict[MessageQueue, int]:
    """A map from queues to offsets; empty if absent."""
    return {} if fields is None else by_queue(fields.named_integers(INT64_MIN, INT64_MAX).items())


def offsets_to_json(offsets: Mapping[MessageQueue, int]) -> JsonObject:
    return {queue.to_key(): offsets[queue] for queue in sorted(offsets)}


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody(Body):
    """Codes 41 and 42: the queues that a client of a group wants for itself, or gives back."""

    BYTES_MAX: ClassVar[int] = 2 * 1024 * 1024
    OBJECTS_MAX: ClassVar[int] = 10_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    client_id: str
    consumer_group: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            client_id=fields.text("clientId", ""),
            consumer_group=fields.text("consumerGroup", ""),
            queues=tuple(MessageQueue.read(item) for item in fields.object_list("mqSet")),
            only_this_broker=fields.boolean("onlyThisBroker", False),
        )

    def to_json(self) -> JsonObject:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue.to_json() for queue in self.queues],
            "onlyThisBroker": self.only_this_broker,
        }


UnlockBatchRequestBody = LockBatchRequestBody


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody(Body):
    """The queues that were granted."""

    locked: tuple[MessageQueue, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(tuple(MessageQueue.read(item) for item in fields.object_list("lockOKMQSet")))

    def to_json(self) -> JsonObject:
        return {"lockOKMQSet": [queue.to_json() for queue in self.locked]}


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """Where consumption goes on: pushed to clients (220) and the answer of 222.

    A client that says it is CPP gets a list of queues with their offsets (`encode_list`) instead of a map.
    """

    BARE_KEYS: ClassVar[bool] = True

    offsets: dict[MessageQueue, int] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        if fields.is_list("offsetTable"):
            items = fields.object_list("offsetTable")
            return cls({MessageQueue.read(item): item.i64("offset") for item in items})
        return cls(offsets_by_queue(fields.inner("offsetTable")))

    def to_json(self) -> JsonObject:
        return {"offsetTable": offsets_to_json(self.offsets)}

    def encode_list(self) -> bytes:
        listed = [{**queue.to_json(), "offset": self.offsets[queue]} for queue in sorted(self.offsets)]
        return dump_compact({"offsetTable": listed})


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody(Body):
    """Offsets in clients' memory: one client's in the answer of 221, all clients' in that of 223."""

    BARE_KEYS: ClassVar[bool] = True

    queues: dict[MessageQueue, int] | None = None
    clients: dict[str, dict[MessageQueue, int]] | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        queues = offsets_by_queue(fields.inner("messageQueueTable"))
        clients = {name: offsets_by_queue(table) for name, table in fields.table("consumerTable")}
        return cls(
            queues if fields.has("messageQueueTable") else None,
            clients if fields.has("consumerTable") else None,
        )

    def to_json(self) -> JsonObject:
        clients: dict[str, JsonValue] | None = None
        if self.clients is not None:
            clients = {name: offsets_to_json(offsets) for name, offsets in self.clients.items()}
        queues = None if self.queues is None else offsets_to_json(self.queues)
        return without_nulls(consumerTable=clients, messageQueueTable=queues)
