"""What goes to the Java side and what comes back: plain values, and their form as JSON lines.

Rule: a value says what RocketMQ said, nothing is corrected on the way; only IPv6 addresses are brought to one
spelling. No I/O.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """File sizes, small by default so that a few hundred messages roll several files. A reader must be told
    the same sizes as the writer."""

    segment_bytes: int = 1 << 20
    queue_entries: int = 1000
    index_slots: int = 500
    index_entries: int = 2000

    def arguments(self) -> list[str]:
        return [
            *("--segment-bytes", str(self.segment_bytes)),
            *("--queue-entries", str(self.queue_entries)),
            *("--index-slots", str(self.index_slots)),
            *("--index-entries", str(self.index_entries)),
        ]


SMALL_SIZES = StoreSizes()


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A message to be put. Hosts are `1.2.3.4:5` or `[::1]:5`."""

    topic: str
    queue_id: int = 0
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 1_700_000_000_000
    born_host: str = "127.0.0.1:40000"
    store_host: str = "127.0.0.1:10911"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Messages put in one call. Topic, queue, system flag, hosts and times of the first hold for all."""

    messages: tuple[MessageSpec, ...]


@dataclass(frozen=True, slots=True)
class PutResult:
    """What the store answered to one put. Offsets are -1 where nothing was appended."""

    status: str
    queue_offset: int
    physical_offset: int
    size_bytes: int
    message_ids: tuple[str, ...]
    message_count: int
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class WriteResult:
    puts: tuple[PutResult, ...]
    min_physical_offset: int
    max_physical_offset: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record as RocketMQ decoded it; the body is as stored (compressed bodies stay compressed)."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    body_crc: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    message_id: str


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message reached through a consume queue: the offset asked for, the entry found there, the record."""

    logical_offset: int
    entry_physical_offset: int
    entry_size_bytes: int
    tags_code: int
    record: StoredMessage


@dataclass(frozen=True, slots=True)
class QueueRange:
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueGap:
    """A logical offset inside a queue's range at which the store did not return a readable message."""

    topic: str
    queue_id: int
    logical_offset: int
    status: str


@dataclass(frozen=True, slots=True)
class TimeQuestion:
    """Which offset a store time belongs to; the boundary is LOWER or UPPER."""

    topic: str
    queue_id: int
    time_ms: int
    boundary: str


@dataclass(frozen=True, slots=True)
class ReadResult:
    messages: tuple[QueuedMessage, ...]
    queues: tuple[QueueRange, ...]
    gaps: tuple[QueueGap, ...]
    # By topic and key. RocketMQ compares hashes only, so a record with another key may be among them.
    hits: dict[tuple[str, str], tuple[StoredMessage, ...]]
    at: dict[int, StoredMessage | None]
    offset_by_time: dict[TimeQuestion, int]
    min_physical_offset: int
    max_physical_offset: int


def spec_json(spec: MessageSpec | BatchSpec) -> dict[str, Any]:
    if isinstance(spec, BatchSpec):
        return {"batch": [spec_json(message) for message in spec.messages]}
    return {
        "topic": spec.topic,
        "queueId": spec.queue_id,
        "bodyBase64": base64.b64encode(spec.body).decode("ascii"),
        "properties": dict(spec.properties),
        "flag": spec.flag,
        "sysFlag": spec.sys_flag,
        "bornTimestamp": spec.born_timestamp_ms,
        "bornHost": spec.born_host,
        "storeHost": spec.store_host,
        "reconsumeTimes": spec.reconsume_times,
        "preparedTransactionOffset": spec.prepared_transaction_offset,
    }


def put_result(line: dict[str, Any]) -> PutResult:
    message_ids = line.get("msgId")
    return PutResult(
        status=line["status"],
        queue_offset=line.get("queueOffset", -1),
        physical_offset=line.get("wroteOffset", -1),
        size_bytes=line.get("wroteBytes", 0),
        message_ids=tuple(message_ids.split(",")) if message_ids else (),
        message_count=line.get("msgNum", 0),
        store_timestamp_ms=line.get("storeTimestamp", 0),
    )


def _stored_message(line: dict[str, Any]) -> StoredMessage:
    return StoredMessage(
        topic=line["topic"],
        queue_id=line["queueId"],
        queue_offset=line["queueOffset"],
        physical_offset=line["physicalOffset"],
        size_bytes=line["storeSize"],
        body_crc=line["bodyCrc"],
        body=base64.b64decode(line["bodyBase64"]),
        properties=line["properties"],
        flag=line["flag"],
        sys_flag=line["sysFlag"],
        born_timestamp_ms=line["bornTimestamp"],
        born_host=_short_host(line["bornHost"]),
        store_timestamp_ms=line["storeTimestamp"],
        store_host=_short_host(line["storeHost"]),
        reconsume_times=line["reconsumeTimes"],
        prepared_transaction_offset=line["preparedTransactionOffset"],
        message_id=line["msgId"],
    )


def _queued_message(line: dict[str, Any]) -> QueuedMessage:
    return QueuedMessage(
        logical_offset=line["logicalOffset"],
        entry_physical_offset=line["unitPhysicalOffset"],
        entry_size_bytes=line["unitSize"],
        tags_code=line["tagsCode"],
        record=_stored_message(line),
    )


def _queue_range(line: dict[str, Any]) -> QueueRange:
    return QueueRange(line["topic"], line["queueId"], line["minOffset"], line["maxOffset"])


def _queue_gap(line: dict[str, Any]) -> QueueGap:
    return QueueGap(line["topic"], line["queueId"], line["logicalOffset"], line["status"])


def read_result(lines: list[dict[str, Any]]) -> ReadResult:
    """The answer of `read`: lines with one name each, then the bounds of the log."""
    *content, bounds = lines
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in content:
        ((kind, value),) = line.items()
        by_kind.setdefault(kind, []).append(value)
    return ReadResult(
        messages=tuple(map(_queued_message, by_kind.get("message", ()))),
        queues=tuple(map(_queue_range, by_kind.get("queue", ()))),
        gaps=tuple(map(_queue_gap, by_kind.get("gap", ()))),
        hits={
            (query["topic"], query["key"]): tuple(map(_stored_message, query["found"]))
            for query in by_kind.get("query", ())
        },
        at={
            at["position"]: None if at["found"] is None else _stored_message(at["found"])
            for at in by_kind.get("at", ())
        },
        offset_by_time={
            TimeQuestion(time["topic"], time["queueId"], time["time"], time["boundary"]): time["found"]
            for time in by_kind.get("time", ())
        },
        min_physical_offset=bounds["minPhyOffset"],
        max_physical_offset=bounds["maxPhyOffset"],
    )


def _short_host(text: str) -> str:
    """Java prints IPv6 addresses in full; specs and Python use the short form."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return text
    return f"[{ipaddress.ip_address(address[1:-1])}]:{port}"
