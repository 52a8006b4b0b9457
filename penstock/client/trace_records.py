"""What is written to the trace topic about messages, byte for byte as RocketMQ's clients write it.

    body      records, each ended by 0x02, fields separated by 0x01; a value that is missing is the text null
    Pub             time, region, group, topic, id, tag, keys, store host, body length, cost, type, offset id,
                    success, client
    SubBefore       time, region, group, request, id, tries, keys
    SubAfter        request, id, cost, success, keys, code, time, group
    EndTransaction  time, region, group, topic, id, tag, keys, store host, type, transaction id, state, from check
    Recall          time, region, group, topic, id, success

A request is one delivery to one consumer: it ties a SubAfter to its SubBefore. Rules: the reader takes what older
clients left out, and skips what is no record, because anybody may write to the topic. Times and costs are
milliseconds. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
FIELD_END = "\x01"
RECORD_END = "\x02"
NULL = "null"
_SEPARATORS = str.maketrans({FIELD_END: " ", RECORD_END: " "})
_INT64 = range(-(2**63), 2**63)


class TraceKind(StrEnum):
    """What happened."""

    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageKind(IntEnum):
    """What sort of message it was, by its number on the wire."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4


class ConsumeCode(IntEnum):
    """How a delivery ended, by its number on the wire."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    NOTHING_RETURNED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One thing that happened to one message; fields that its kind does not have are empty."""

    kind: TraceKind
    msg_id: str
    time_ms: int = 0
    region: str = ""
    group: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    store_host: str = ""
    body_size: int = 0
    cost_ms: int = 0
    message_kind: int = MessageKind.NORMAL
    offset_msg_id: str = ""
    is_success: bool = True
    client_host: str = ""
    request_id: str = ""
    tries: int = 0
    code: int = ConsumeCode.SUCCESS
    transaction_id: str = ""
    state: str = ""
    from_check: bool = False


def encode(record: TraceRecord) -> str:
    """A record with its end."""
    return FIELD_END.join(_text(value) for value in _values(record)) + RECORD_END


def _values(r: TraceRecord) -> tuple[object, ...]:
    match r.kind:
        case TraceKind.PUB:
            how = (r.body_size, r.cost_ms, int(r.message_kind), r.offset_msg_id, r.is_success, r.client_host)
            return (*_place(r), *how)
        case TraceKind.SUB_BEFORE:
            return (r.kind, r.time_ms, r.region, r.group, r.request_id, r.msg_id, r.tries, r.keys)
        case TraceKind.SUB_AFTER:
            result = (r.kind, r.request_id, r.msg_id, r.cost_ms, r.is_success, r.keys, int(r.code))
            return (*result, r.time_ms, r.group)
        case TraceKind.END_TRANSACTION:
            return (*_place(r), int(r.message_kind), r.transaction_id, r.state, r.from_check)
        case TraceKind.RECALL:
            return (r.kind, r.time_ms, r.region, r.group, r.topic, r.msg_id, r.is_success)


def _place(r: TraceRecord) -> tuple[object, ...]:
    return (r.kind, r.time_ms, r.region, r.group, r.topic, r.msg_id, r.tag, r.keys, r.store_host)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_SEPARATORS) or NULL


def decode(body: str) -> list[TraceRecord]:
    """The records of a body; what is none is skipped."""
    records: list[TraceRecord] = []
    for text in body.split(RECORD_END):
        fields = [("" if field == NULL else field) for field in text.split(FIELD_END)]
        try:
            record = _record(fields)
        except (IndexError, ValueError):
            continue
        if record is not None:
            records.append(record)
    return records


def _record(f: list[str]) -> TraceRecord | None:
    match f[0]:
        case TraceKind.PUB:
            record = replace(
                _placed(TraceKind.PUB, f),
                body_size=_number(f[9]),
                cost_ms=_number(f[10]),
                message_kind=_number(f[11]),
            )
            if len(f) == 13:  # before 4.4 there was no offset id
                return replace(record, is_success=_truth(f[12]))
            if len(f) >= 14:
                host = f[14] if len(f) > 14 else ""
                return replace(record, offset_msg_id=f[12], is_success=_truth(f[13]), client_host=host)
            return record
        case TraceKind.SUB_BEFORE:
            found = TraceRecord(TraceKind.SUB_BEFORE, f[5], _number(f[1]), f[2], f[3], request_id=f[4])
            return replace(found, tries=_number(f[6]), keys=f[7] if len(f) > 7 else "")
        case TraceKind.SUB_AFTER:
            found = TraceRecord(TraceKind.SUB_AFTER, f[2], request_id=f[1], cost_ms=_number(f[3]))
            found = replace(found, is_success=_truth(f[4]), keys=f[5] if len(f) > 5 else "")
            if len(f) > 6:
                found = replace(found, code=_number(f[6] or "0"))
            if len(f) > 8:
                found = replace(found, time_ms=_number(f[7]), group=f[8])
            return found
        case TraceKind.END_TRANSACTION:
            return replace(
                _placed(TraceKind.END_TRANSACTION, f),
                message_kind=_number(f[9]),
                transaction_id=f[10],
                state=f[11],
                from_check=_truth(f[12]),
            )
        case TraceKind.RECALL:
            time_ms, success = _number(f[1]), _truth(f[6])
            return TraceRecord(TraceKind.RECALL, f[5], time_ms, f[2], f[3], f[4], is_success=success)
    return None


def _placed(kind: TraceKind, f: list[str]) -> TraceRecord:
    """What two kinds begin with."""
    return TraceRecord(kind, f[5], _number(f[1]), f[2], f[3], f[4], f[6], f[7], f[8])


def _number(text: str) -> int:
    number = int(text)
    if number not in _INT64:
        raise ValueError(text)
    return number


def _truth(text: str) -> bool:
    return text.lower() == "true"


def completed(records: Iterable[TraceRecord]) -> list[TraceRecord]:
    """In the order of time, each once; a SubAfter without a group or a time has those of its SubBefore."""
    unique = dict.fromkeys(records)
    begun = {record.request_id: record for record in unique if record.kind is TraceKind.SUB_BEFORE}
    found = []
    for record in unique:
        before = begun.get(record.request_id) if record.kind is TraceKind.SUB_AFTER else None
        found.append(record if before is None else _joined(record, before))
    # What happened in one millisecond happened in the order of the kinds.
    order = list(TraceKind)
    return sorted(found, key=lambda record: (record.time_ms, order.index(record.kind)))


def _joined(after: TraceRecord, before: TraceRecord) -> TraceRecord:
    return replace(
        after,
        group=after.group or before.group,
        time_ms=after.time_ms or before.time_ms + after.cost_ms,
        tries=before.tries,
    )
