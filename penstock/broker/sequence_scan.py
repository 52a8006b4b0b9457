"""Sequences in the log: which idempotent sends a part of it holds.

A record counts for the queue that its message is meant for: its own, or the one that REAL_TOPIC and REAL_QID name
where it waits in a topic of the broker's (delayed, timed, half of a transaction). What consumers gave back, and dead
letters, are copies in topics of their own and no sends of the producer.

Bytes are copied out of the log a piece at a time: searching them for the property's name costs about as much as
copying, so that a log without such sends is passed at the speed of memory. A position is a record's beginning,
always. Any thread may call this.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from penstock._hot.layout import BLANK, MAGIC_V2
from penstock._hot.mapped import MappedBytes
from penstock._hot.reads import find_record, walk
from penstock.broker import property_text as text
from penstock.broker.sequence_table import Pair
from penstock.message import SystemFlag
from penstock.protocol.topic_names import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    STAGED_TOPIC,
    SYSTEM_PREFIX,
    WHEEL_TIMER_TOPIC,
)
from penstock.store.commit_log import CommitLog

PIECE_BYTES = 256 << 10
SEQUENCE_MAX = 2**62
_SIGN = f"{text.SEQUENCE}\x01".encode()
_WAITING_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC, WHEEL_TIMER_TOPIC)
_OTHER_TOPICS = (RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX)
PRODUCER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# As stored: with access control the user's digest behind it, which no field of a send can hold.
_STORED_NAME = re.compile(rf"{PRODUCER_NAME.pattern}( [0-9a-f]{{16}})?")
_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_BORN_V6, _STORE_V6 = int(SystemFlag.BORN_HOST_V6), int(SystemFlag.STORE_HOST_V6)
_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class Found:
    """An idempotent send in the log."""

    pair: Pair
    sequence: int
    position: int
    store_timestamp: int


def sequence_number(value: str | None) -> int | None:
    """The number that a property or a field holds; None if it is none."""
    if not value or len(value) > _DIGITS_MAX or not value.isascii() or not value.isdigit():
        return None
    number = int(value)
    return number if number <= SEQUENCE_MAX else None


def pair_of(topic: str, queue_id: int, properties: dict[str, str]) -> Pair | None:
    """Whose send a record is, and for which queue; None if it is no idempotent send."""
    producer = properties.get(text.PRODUCER)
    if not producer or _STORED_NAME.fullmatch(producer) is None:
        return None
    if topic in _WAITING_TOPICS:
        real = sequence_number(properties.get(text.REAL_QUEUE_ID))
        topic = properties.get(text.REAL_TOPIC, "")
        if real is None or not topic:
            return None
        queue_id = real
    is_other = topic == STAGED_TOPIC or topic.startswith(_OTHER_TOPICS)
    return None if is_other else Pair(producer, topic, queue_id)


def scan(log: CommitLog, position: int, limit: int) -> tuple[int, list[Found]]:
    """The idempotent sends of the next piece of the log, and where the one after it begins, up to `limit`, where a
    record ends."""
    if position < log.min_offset:
        return min(log.min_offset, limit), []
    following = min(position - position % log.segment_size + log.segment_size, limit)
    size = min(PIECE_BYTES, following - position)
    data = _copy(log, position, size)
    if not data:
        return following, []  # retention took it
    at, why = _walk(data, position)
    if at:
        return position + at, _sends(data, at, position)
    if why == BLANK:
        return following, []
    whole = _I32.unpack_from(data)[0] if len(data) >= 4 else 0
    if size < whole <= following - position:
        data = _copy(log, position, whole)
        at, _ = _walk(data, position) if data else (0, 0)
        if at:
            return position + at, _sends(data, at, position)
    # Damage, which recovery has reported: go on at the next record.
    begin = find_record(MappedBytes(data), 1, len(data), position) if data else -1
    return (position + begin if begin > 0 else min(position + size, following)), []


def _copy(log: CommitLog, position: int, size: int) -> bytes:
    view = log.slice(position, size) if size > 0 else None
    return b"" if view is None else bytes(view)


def _walk(data: bytes, position: int) -> tuple[int, int]:
    """How many bytes of it are whole records, and why it ends there."""
    at, why, _, _ = walk(MappedBytes(data), 0, len(data), position, 0)
    return at, why


def _sends(data: bytes, end: int, position: int) -> list[Found]:
    """Those in `data[:end]`, which is whole records, the first at log position `position`."""
    found: list[Found] = []
    piece, begin, place = MappedBytes(data), 0, 0
    while (place := data.find(_SIGN, place, end)) >= 0:
        _, _, _, begin = walk(piece, begin, place, position, 0)
        size = _I32.unpack_from(data, begin)[0]
        send = _read(data, begin, size, position + begin)
        if send is not None:
            found.append(send)
        begin = place = begin + size
    return found


def _read(data: bytes, at: int, size: int, position: int) -> Found | None:
    """The send in the record at `data[at:]`; None if it is none, whatever its body looks like."""
    flags = data[at + 39]
    queue_id = _I32.unpack_from(data, at + 12)[0]
    store_time = at + 48 + (20 if flags & _BORN_V6 else 8)
    body = store_time + 8 + (20 if flags & _STORE_V6 else 8) + 12
    name = body + 4 + _I32.unpack_from(data, body)[0]
    if _I32.unpack_from(data, at + 4)[0] == MAGIC_V2:
        length, name = _I16.unpack_from(data, name)[0], name + 2
    else:
        length, name = data[name], name + 1
    properties = text.parse(text.decode(data[name + length + 2 : at + size]))
    pair = pair_of(text.decode(data[name : name + length]), queue_id, properties)
    sequence = sequence_number(properties.get(text.SEQUENCE))
    if pair is None or sequence is None:
        return None
    return Found(pair, sequence, position, _I64.unpack_from(data, store_time)[0])
