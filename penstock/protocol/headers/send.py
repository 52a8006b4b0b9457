"""Headers of sends, recalls and their answers (codes 10, 310, 320, 324, 325, 326, 370).

A send has two spellings of the same fields: V1 with full names, V2 with one letter each. Both are read; V2 is
what goes out. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

from penstock.protocol.headers.header import I32, I64, Header, WireField, read, wire_fields, write

# What a Penstock client demands of a send, and what a Penstock broker says it reached: `memory`, `flushed` or
# `replicated`. RocketMQ knows no such field and ignores it.
DURABILITY_FIELD = "durability"
# In a Penstock broker's refusal of a send: `unknown` where the message may be stored all the same.
OUTCOME_FIELD = "penstockOutcome"
OUTCOME_UNKNOWN = "unknown"
# Of an idempotent send, beside its header: who sends, and the number of this message, or of the first of a batch,
# among all that it sends. The broker stores both with the message, as properties. A field, and no property of the
# client's, because whoever passes a message on copies its properties, and means another message.
PRODUCER_FIELD = "penstockProducer"
SEQUENCE_FIELD = "penstockSequence"
# In the answer to one: `true` if the message was stored before, else `false`. A broker that says neither keeps no
# sequences.
REPEATED_FIELD = "penstockRepeated"

_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeader(Header):
    """One message, or with `batch` many; a negative `queue_id` lets the broker choose."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname", "durability": DURABILITY_FIELD}

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64
    flag: I32 = 0
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = None
    durability: str | None = None

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """From either spelling; a V2 header has `b` where V1 has `topic`."""
        return cls.decode_v2(ext) if "b" in ext and "topic" not in ext else cls.decode_v1(ext)

    @classmethod
    def decode_v1(cls, ext: Mapping[str, str]) -> Self:
        return read(cls, wire_fields(cls), ext)

    @classmethod
    def decode_v2(cls, ext: Mapping[str, str]) -> Self:
        return read(cls, _v2_fields(), ext)

    def encode(self) -> dict[str, str]:
        """In V2's letters, for codes 310, 320 and 325."""
        return write(self, _v2_fields())

    def encode_v1(self) -> dict[str, str]:
        """In full names, for codes 10 and 324."""
        return write(self, wire_fields(type(self)))


@cache
def _v2_fields() -> tuple[WireField, ...]:
    specs = wire_fields(SendMessageRequestHeader)
    return tuple(spec._replace(name=_LETTERS.get(spec.name, spec.name)) for spec in specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseHeader(Header):
    """Where a message was stored; `msg_id` is the offset id, for a batch all of them joined by commas."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {
        "region_id": "MSG_REGION",
        "trace_on": "TRACE_ON",
        "durability": DURABILITY_FIELD,
    }

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = None
    trace_on: bool | None = None
    durability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageRequestHeader(Header):
    """Take back a message that waits for its time (370); the answer names its unique id as `msgId`."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}

    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerMetricsRequestHeader(Header):
    """What waits for its time (61). `penstock_ahead`, ours: also by how long from now."""

    penstock_ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMessageRequestHeader(Header):
    """A reply on its way from the broker to the client that asked (326)."""

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 = 0
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: I64
