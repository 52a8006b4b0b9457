"""Bodies of POP and of shares that the broker computes (codes 200151, 400, 401, 402).

    batch ack    {"brokerName":"b-a","acks":[{"c":group,"t":topic,"r":"0","so":start,"q":queue,"rq":revive queue,
                  "pt":pop time,"it":invisible time,"b":"AQI="}]}
                 `b` is a set of bits in base64, lowest bit of byte 0 first: bit i acknowledges offset so + i
    assignment   {"clientId","consumerGroup","messageModel","strategyName","topic"}
              -> {"messageQueueAssignments":[{"messageQueue":MQ,"mode":"POP"}]}
    mode         {"topic","consumerGroup","mode":"PULL"|"POP","popShareQueueNum":0}

An absent list of assignments tells a client to keep what it has, an empty one to release all. Plain values.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from penstock.errors import CodecError
from penstock.metadata.fastjson import JsonObject
from penstock.metadata.request_mode_table import RequestMode, RequestModeConfig
from penstock.protocol.bodies.body import REQUEST_LOOSE_MAX, Body, BodyFields, without_nulls
from penstock.protocol.bodies.queues import MessageQueue

# Offsets after the first of one pop that an acknowledgement may name.
BITS_MAX = 32 * 1024
# Messages that all acknowledgements of one request may name: many times what a client takes before it acknowledges.
ACKED_MAX = 32 * 1024
_ANY_BIT = re.compile(rb"[^\0]", re.DOTALL)
_BITS_OF = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


def encode_bits(bits: Iterable[int]) -> str:
    """A set of small numbers as the wire has it."""
    value = 0
    for bit in bits:
        value |= 1 << bit
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def decode_bits(text: str) -> tuple[int, ...]:
    """Raises CodecError for what is no such set."""
    if len(text) > BITS_MAX // 6:
        raise CodecError("an acknowledgement names too many messages", "send several")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"{text[:40]!r} is no set of messages") from error
    # Byte by byte: arithmetic with one large number would take the length of it for each bit.
    return tuple(
        found.start() * 8 + bit for found in _ANY_BIT.finditer(data) for bit in _BITS_OF[data[found.start()]]
    )


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Messages of one pop from one queue that are done. `topic` and `kind` as in a handle: the topic is the one that
    was asked for, the kind says whether its retries are meant."""

    group: str
    topic: str
    kind: str
    start_offset: int
    queue_id: int
    revive_queue: int
    pop_time: int
    invisible_time: int
    places: tuple[int, ...]

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        def either(short: str, long: str) -> str:
            return short if fields.has(short) else long

        return cls(
            fields.text(either("c", "consumerGroup"), ""),
            fields.text(either("t", "topic"), ""),
            fields.text(either("r", "retry"), "0"),
            fields.i64(either("so", "startOffset")),
            fields.i32(either("q", "queueId")),
            fields.i32(either("rq", "reviveQueueId")),
            fields.i64(either("pt", "popTime")),
            fields.i64(either("it", "invisibleTime")),
            decode_bits(fields.text(either("b", "bitSet"), "")),
        )

    def to_json(self) -> JsonObject:
        return {
            "b": encode_bits(self.places),
            "c": self.group,
            "it": self.invisible_time,
            "pt": self.pop_time,
            "q": self.queue_id,
            "r": self.kind,
            "rq": self.revive_queue,
            "so": self.start_offset,
            "t": self.topic,
        }


@dataclass(frozen=True, slots=True)
class BatchAckMessageRequestBody(Body):
    """Code 200151."""

    BYTES_MAX: ClassVar[int] = 4 << 20
    OBJECTS_MAX: ClassVar[int] = 10_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    broker_name: str
    acks: tuple[BatchAck, ...]

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        acks: list[BatchAck] = []
        named = 0
        for item in fields.object_list("acks"):
            acks.append(BatchAck.read(item))
            named += len(acks[-1].places)
            if named > ACKED_MAX:
                fields.fail("acks", f"names more than {ACKED_MAX} messages")
        return cls(fields.text("brokerName", ""), tuple(acks))

    def to_json(self) -> JsonObject:
        return {"acks": [ack.to_json() for ack in self.acks], "brokerName": self.broker_name}


@dataclass(frozen=True, slots=True)
class QueryAssignmentRequestBody(Body):
    """Code 400."""

    BYTES_MAX: ClassVar[int] = 64 * 1024
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("topic", ""),
            fields.text("consumerGroup", ""),
            fields.text("clientId", ""),
            fields.text("strategyName", ""),
            fields.text("messageModel", "CLUSTERING"),
        )

    def to_json(self) -> JsonObject:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "messageModel": self.message_model,
            "strategyName": self.strategy_name,
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class QueryAssignmentResponseBody(Body):
    """The share of a client and how it is to be read; None: keep what you have."""

    queues: tuple[MessageQueue, ...] | None
    mode: RequestMode = RequestMode.PULL

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        if not fields.is_list("messageQueueAssignments"):
            return cls(None)
        queues, mode = [], RequestMode.PULL
        for item in fields.object_list("messageQueueAssignments"):
            inner = item.inner("messageQueue")
            if inner is None:
                raise CodecError("an assignment names no queue")
            queues.append(MessageQueue.read(inner))
            mode = RequestMode(item.choice("mode", mode, tuple(RequestMode)))
        return cls(tuple(queues), mode)

    def to_json(self) -> JsonObject:
        if self.queues is None:
            return {}
        return {
            "messageQueueAssignments": [
                {"messageQueue": queue.to_json(), "mode": str(self.mode)} for queue in self.queues
            ]
        }


@dataclass(frozen=True, slots=True)
class SetMessageRequestModeRequestBody(Body):
    """Code 401."""

    BYTES_MAX: ClassVar[int] = 64 * 1024
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    topic: str
    consumer_group: str
    config: RequestModeConfig

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text("topic", ""), fields.text("consumerGroup", ""), RequestModeConfig.read(fields))

    def to_json(self) -> JsonObject:
        return without_nulls(**self.config.to_json(self.topic, self.consumer_group))
