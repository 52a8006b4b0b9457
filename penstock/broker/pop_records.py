"""What the revive topic holds: check points of what was popped, and acknowledgements
(`docs/formats/revive-topic.md`).

    ck     a pop handed out messages of one queue: who, from where, which, when, and for how long
    ack    one of them is done;  bAck: several are
    rst    ours: an operator moved a group; what was popped before says no more where it is
    ock    ours: a pop in order handed out messages, or the time of one of them has changed
    oack   ours: some of them are done

Bodies are RocketMQ's JSON with its short names; what it wrote can be read, also its longer names. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.broker import property_text as text
from penstock.errors import CodecError
from penstock.message import StoredMessage
from penstock.metadata.fastjson import JsonObject, JsonValue, loads
from penstock.metadata.json_fields import INT32_MAX, INT64_MAX
from penstock.protocol.bodies import BodyFields

CHECK_POINT, ACK, BATCH_ACK, RESET = "ck", "ack", "bAck", "rst"
ORDERED, ORDERED_ACK = "ock", "oack"
_TAGS = frozenset((CHECK_POINT, ACK, BATCH_ACK, RESET, ORDERED, ORDERED_ACK))
DELIVER_MS = "TIMER_DELIVER_MS"
TAGS = "TAGS"
# Bits of an acknowledgement's set, and so messages of one check point.
MESSAGES_MAX = 32
_EARLIER_MS = 1_000
_BODY_BYTES_MAX = 64 * 1024
# What a message may lie behind the first offset that a pop looked at.
_SPAN_MAX = 1 << 20


class QueueKey(NamedTuple):
    """One queue as one group reads it."""

    topic: str
    group: str
    queue_id: int


class PopRun(Protocol):
    """Messages of one queue that a pop found."""

    @property
    def queue(self) -> QueueKey: ...
    @property
    def start_offset(self) -> int: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def next_offset(self) -> int: ...


class CheckKey(NamedTuple):
    """What names a check point; a handle has all of it but the group and the topic."""

    queue: QueueKey
    start_offset: int
    pop_time: int


@dataclass(slots=True, eq=False)
class CheckPoint:
    """Messages of one queue that were popped together and are not all acknowledged."""

    key: CheckKey
    invisible_ms: int
    revive_queue: int
    # Queue offsets of the messages, rising; bit i of `acked` stands for the i-th.
    offsets: tuple[int, ...]
    acked: int = 0
    # When they are to be seen again, by the monotonic clock.
    due_ms: int = 0
    # Where the record is in the revive queue, and where it ends in the log; -1 while it is only in memory.
    revive_offset: int = -1
    log_end: int = -1
    # Nobody can acknowledge it any more: all done, or given back.
    is_closed: bool = False
    # How far the log must be safe before it may be forgotten that this was ever popped: copies of messages, and check
    # points that took their place, count only then.
    done_at: int = 0
    # With `pop_buffer`: until when it may stay in memory.
    store_by_ms: int = field(default=0)

    @property
    def end(self) -> int:
        """The queue offset behind the last message."""
        return self.offsets[-1] + 1

    @property
    def is_done(self) -> bool:
        return self.acked == (1 << len(self.offsets)) - 1

    def left(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for place, offset in enumerate(self.offsets) if not self.acked >> place & 1]

    def bits(self, offsets: Sequence[int]) -> int:
        """The bits of these offsets, without those that are none of it or acknowledged already."""
        wanted = set(offsets)
        found = sum(1 << place for place, offset in enumerate(self.offsets) if offset in wanted)
        return found & ~self.acked


@dataclass(frozen=True, slots=True)
class OrderedNotes:
    """What a pop in order has beside a check point: by message, for how long after the pop it is invisible and how
    often it was popped before; and what the client calls this attempt."""

    spans: tuple[int, ...] = ()
    tries: tuple[int, ...] = ()
    attempt: str = ""


# -- writing -----------------------------------------------------------------------------------------------------


def check_point_record(check: CheckPoint, broker: str) -> tuple[bytes, bytes]:
    """Body and properties of a check point."""
    queue, start, popped = check.key
    unique = f"{queue.topic}@{queue.queue_id}@{start}@{queue.group}@{popped}@{broker}@ck"
    body = _dump(_check_point_body(check, broker))
    return body, _properties(CHECK_POINT, unique, popped + check.invisible_ms - _EARLIER_MS)


def ordered_record(check: CheckPoint, notes: OrderedNotes, broker: str) -> tuple[bytes, bytes]:
    """Body and properties of a lot that is popped in order."""
    queue, start, popped = check.key
    unique = f"{queue.topic}@{queue.queue_id}@{start}@{queue.group}@{popped}@{broker}@ock"
    body: JsonObject = {
        **_check_point_body(check, broker),
        "ot": [*notes.spans],
        "oc": [*notes.tries],
        "a": notes.attempt,
    }
    return _dump(body), _properties(ORDERED, unique, popped + max(notes.spans))


def _check_point_body(check: CheckPoint, broker: str) -> JsonObject:
    queue, start, popped = check.key
    return {
        "bm": _signed(check.acked),
        "bn": broker,
        "c": queue.group,
        "d": [offset - start for offset in check.offsets],
        "it": check.invisible_ms,
        "n": len(check.offsets),
        "pt": popped,
        "q": queue.queue_id,
        "ro": 0,
        "so": start,
        "t": queue.topic,
    }


def ack_record(check: CheckPoint, offsets: Sequence[int], broker: str) -> tuple[bytes, bytes]:
    """Body and properties of an acknowledgement of some messages of a check point."""
    queue, start, popped = check.key
    body: JsonObject = {
        "bn": broker,
        "c": queue.group,
        "pt": popped,
        "q": queue.queue_id,
        "so": start,
        "t": queue.topic,
    }
    name = f"{queue.topic}@{queue.queue_id}@{{}}@{queue.group}@{popped}@{broker}@ack"
    due = popped + check.invisible_ms
    if len(offsets) == 1:
        return _dump({**body, "ao": offsets[0]}), _properties(ACK, name.format(offsets[0]), due)
    return _dump({**body, "ao": -1, "aol": [*offsets]}), _properties(BATCH_ACK, name.format(-1), due)


def ordered_ack_record(check: CheckPoint, offsets: Sequence[int], broker: str) -> tuple[bytes, bytes]:
    """Body and properties of an acknowledgement of some messages of an ordered lot."""
    queue, start, popped = check.key
    body: JsonObject = {
        "bn": broker,
        "c": queue.group,
        "pt": popped,
        "q": queue.queue_id,
        "so": start,
        "t": queue.topic,
        "aol": [*offsets],
    }
    name = f"{queue.topic}@{queue.queue_id}@{offsets[0]}@{queue.group}@{popped}@{broker}@oack"
    return _dump(body), _properties(ORDERED_ACK, name, popped)


def reset_record(queue: QueueKey, target: int, broker: str, now_ms: int) -> tuple[bytes, bytes]:
    body: JsonObject = {"bn": broker, "c": queue.group, "q": queue.queue_id, "so": target, "t": queue.topic}
    name = f"{queue.topic}@{queue.queue_id}@{target}@{queue.group}@{now_ms}@{broker}@rst"
    return _dump(body), _properties(RESET, name, now_ms)


def _properties(tag: str, unique: str, due_ms: int) -> bytes:
    pairs = ((TAGS, tag), (text.UNIQ_KEY, unique), (DELIVER_MS, str(due_ms)))
    return text.encode("".join(text.pair(name, value) for name, value in pairs))


def _dump(body: JsonObject) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _signed(bits: int) -> int:
    """As Java writes 32 bits."""
    return bits - (1 << 32) if bits >> 31 else bits


# -- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledged:
    key: CheckKey
    offsets: tuple[int, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class Ordered:
    """A lot as it was written."""

    check: CheckPoint
    notes: OrderedNotes


@dataclass(frozen=True, slots=True)
class Moved:
    queue: QueueKey
    target: int


Record = CheckPoint | Acknowledged | Moved | Ordered


def read_record(message: StoredMessage) -> Record | None:
    """What a message of the revive topic says; None for a kind nobody knows. Raises CodecError for what is none."""
    tag = message.properties.get(TAGS, "")
    if tag not in _TAGS:
        return None
    value: JsonValue = loads(message.body, source=f"revive record {tag}", max_bytes=_BODY_BYTES_MAX)
    fields = BodyFields(value, f"revive record {tag}")

    def either(short: str, long: str) -> str:
        return short if fields.has(short) else long

    def offset(short: str, long: str, low: int = 0) -> int:
        return fields.integer(either(short, long), low, low, INT64_MAX)

    queue = QueueKey(
        fields.text(either("t", "topic"), ""),
        fields.text(either("c", "consumerGroup"), fields.text("cid", "")),
        fields.integer(either("q", "queueId"), 0, 0, INT32_MAX),
    )
    start = offset("so", "startOffset")
    if tag == RESET:
        return Moved(queue, start)
    key = CheckKey(queue, start, offset("pt", "popTime"))
    if tag == CHECK_POINT:
        return _check_point(fields, key, message)
    if tag == ORDERED:
        return _ordered(fields, _check_point(fields, key, message), message)
    if tag == ACK:
        return Acknowledged(key, (offset("ao", "ackOffset"),))
    offsets = fields.integer_list(either("aol", "ackOffsetList"), 0, INT64_MAX)
    return Acknowledged(key, offsets, is_ordered=tag == ORDERED_ACK)


def _ordered(fields: BodyFields, check: CheckPoint | None, message: StoredMessage) -> Ordered:
    spans, tries = fields.integer_list("ot", 0, INT64_MAX), fields.integer_list("oc", 0, INT32_MAX)
    if check is None or not len(spans) == len(tries) == len(check.offsets):
        raise CodecError(f"a lot without the times of its messages at log position {message.physical_offset}")
    return Ordered(check, OrderedNotes(spans, tries, fields.text("a", "")))


def _check_point(fields: BodyFields, key: CheckKey, message: StoredMessage) -> CheckPoint | None:
    count = fields.integer("n", 0, 0, MESSAGES_MAX)
    # Before there were distances the messages of a check point were neighbours.
    distances = fields.integer_list("d", 0, _SPAN_MAX) if fields.has("d") else tuple(range(count))
    if len(distances) > MESSAGES_MAX or list(distances) != sorted(set(distances)):
        raise CodecError(
            f"a check point of {len(distances)} messages at log position {message.physical_offset}"
        )
    invisible_ms = fields.integer("it", 0, 0, INT64_MAX)
    offsets = tuple(key.start_offset + distance for distance in distances)
    if not offsets:
        return None  # RocketMQ's way to move an offset over messages that did not match
    acked = fields.i32("bm") & ((1 << len(offsets)) - 1)
    check = CheckPoint(key, invisible_ms, message.queue_id, offsets, acked)
    check.revive_offset = message.queue_offset
    check.log_end = message.physical_offset + message.size
    return check
