"""Half messages: what a prepared message is stored as, and what is made of it later.

    prepared   RMQ_SYS_TRANS_HALF_TOPIC, queue 0, no transaction bits; REAL_TOPIC, REAL_QID, __transactionId__, PGROUP
    put back   the same again at the end of that queue, with one check more counted
    committed  REAL_TOPIC, REAL_QID, transaction bits "commit", prepared offset = the half message's log position
    parked     TRANS_CHECK_MAX_TIME_TOPIC, queue 0
    mark       RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag `d`, body: half-queue offsets that are done with, and commas

All of it in RocketMQ's form: a Java broker goes on with the directory, and the reverse. Two things are ours. A copy
that was put back always says which offset the transaction began at (RocketMQ only says so for immune ones), so that
an answer to an older copy ends the newest. And it says when the first one was stored: times count from there by this
broker's clock, not from the client's. Pure functions and plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.record_gate import StoredRecord
from penstock.message import StoredMessage, SystemFlag, TransactionKind
from penstock.protocol.topic_names import HALF_TOPIC
from penstock.store.layout import is_topic
from penstock.store.limits import QUEUE_ID_MAX

HALF_QUEUE = 0
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
# Ours: when the first copy was stored.
FIRST_STORED = "PENSTOCK_PREPARED_MS"
# Ours, of marks: what they name was put back, and goes on as a copy.
PUT_BACK = "PENSTOCK_PUT_BACK"
MARK_TAG = "d"
_NO_TRANSACTION = ~int(SystemFlag.TRANSACTION_MASK)
_DIGITS_MAX = 19
_SECONDS_MAX = 10**9


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that was read, and what its properties say."""

    record: StoredRecord
    group: str
    topic: str
    queue_id: int
    unique: str
    # Where in the half queue the transaction began: this copy, or one that it was put back for.
    origin: int
    checks: int
    first_stored_ms: int
    # Put back by a Java broker, which does not say what it is a copy of.
    is_foreign_copy: bool = False

    @property
    def message(self) -> StoredMessage:
        return self.record.message

    @property
    def offset(self) -> int:
        """In the half queue."""
        return self.message.queue_offset

    @property
    def has_immunity(self) -> bool:
        return IMMUNITY_SECONDS in self.message.properties

    def immunity_ms(self, timeout_ms: int) -> int:
        """How old it has to be before anybody is asked; what is no number of seconds counts as not there."""
        seconds = number(self.message.properties.get(IMMUNITY_SECONDS), _SECONDS_MAX)
        return max(timeout_ms, -1 if seconds is None else seconds * 1000)


def is_same(one: Half, other: Half) -> bool:
    """Whether two half messages are of one transaction. A program may send one message, with one id, in several;
    those were born at different times, and each began with a half message of its own."""
    if one.unique != other.unique or one.group != other.group:
        return False
    is_foreign = one.is_foreign_copy or other.is_foreign_copy
    return one.origin == other.origin or (
        is_foreign and one.message.born_timestamp == other.message.born_timestamp
    )


def number(value: str | None, most: int = 2**63 - 1) -> int | None:
    """A number that a property holds; None if it holds none."""
    if not value or len(value) > _DIGITS_MAX or not value.isascii() or not value.isdigit():
        return None
    return min(int(value), most)


def read_half(record: StoredRecord) -> Half | None:
    """The half message in a record; None if it is none that could ever be committed."""
    message, found = record.message, record.message.properties
    queue_id = number(found.get(text.REAL_QUEUE_ID))
    topic, group = found.get(text.REAL_TOPIC, ""), found.get(PRODUCER_GROUP, "")
    if message.topic != HALF_TOPIC or message.queue_id != HALF_QUEUE or queue_id is None:
        return None
    if queue_id > QUEUE_ID_MAX or not is_topic(topic):
        return None
    first = number(found.get(FIRST_OFFSET))
    checks = number(found.get(CHECK_TIMES)) or 0
    # A copy that a Java broker put back does not say when its first was stored; born is nearer than this copy's time.
    is_copy = first is not None or checks > 0
    stored_ms = number(found.get(FIRST_STORED))
    if stored_ms is None:
        stored_ms = message.born_timestamp if is_copy else message.store_timestamp
    return Half(
        record,
        group,
        topic,
        queue_id,
        found.get(text.UNIQ_KEY, ""),
        message.queue_offset if first is None else first,
        checks,
        stored_ms,
        is_foreign_copy=first is None and checks > 0,
    )


def prepared(topic: str, queue_id: int, unique: str, group: str, pairs: dict[str, str]) -> dict[str, str]:
    """Properties that make a half message of one that is sent; what only copies have, a sender cannot give it."""
    put = {text.REAL_TOPIC: topic, text.REAL_QUEUE_ID: str(queue_id), TRANSACTION_ID: unique}
    if not pairs.get(PRODUCER_GROUP):
        put[PRODUCER_GROUP] = group
    return put


# What the broker counts with: a sender's own are taken out.
COUNTED_BY_BROKER = (CHECK_TIMES, FIRST_OFFSET, FIRST_STORED)


def committed(half: Half, queue: QueueState, put: dict[str, str]) -> AppendRequest:
    """The message itself; `put` are properties that its delay asks for."""
    kind = half.message.sys_flag & _NO_TRANSACTION | TransactionKind.COMMIT
    return _copy(half, queue, kind, put, (text.SEAL, FIRST_STORED), half.message.physical_offset)


def put_back(half: Half, queue: QueueState, checks: int) -> AppendRequest:
    """The half message again, behind the others."""
    put = {FIRST_OFFSET: str(half.origin), FIRST_STORED: str(half.first_stored_ms)}
    if checks:
        put[CHECK_TIMES] = str(checks)
    return _copy(half, queue, half.message.sys_flag & _NO_TRANSACTION, put, (text.SEAL,), 0)


def parked(half: Half, queue: QueueState) -> AppendRequest:
    """The half message as it is, where operators find it."""
    return _copy(half, queue, half.message.sys_flag & _NO_TRANSACTION, {}, (text.SEAL,), 0)


def resumed(record: StoredRecord, queue: QueueState) -> AppendRequest:
    """A parked message as a half message that nobody was asked about yet."""
    return _again(
        record, queue, record.message.sys_flag & _NO_TRANSACTION, {}, (text.SEAL, *COUNTED_BY_BROKER), 0
    )


def _copy(
    half: Half, queue: QueueState, sys_flag: int, put: dict[str, str], drop: Sequence[str], prepared_at: int
) -> AppendRequest:
    return _again(half.record, queue, sys_flag, put, drop, prepared_at)


def _again(
    record: StoredRecord,
    queue: QueueState,
    sys_flag: int,
    put: dict[str, str],
    drop: Sequence[str],
    prepared_at: int,
) -> AppendRequest:
    message = record.message
    properties = text.decode(record.properties)
    return AppendRequest(
        queue,
        message.body,
        text.encode(text.changed(properties, dict(message.properties), drop, put)),
        message.born_timestamp,
        message.born_host.encode(),
        message.flag,
        sys_flag,
        message.reconsume_times,
        prepared_at,
    )


def mark(
    offsets: Iterable[int],
    queue: QueueState,
    unique: str,
    now_ms: int,
    host: bytes,
    *,
    is_put_back: bool = False,
) -> AppendRequest:
    """The message that says that these half messages are over, or go on as copies behind them."""
    properties = text.pair("TAGS", MARK_TAG) + text.pair(text.UNIQ_KEY, unique)
    if is_put_back:
        properties += text.pair(PUT_BACK, "true")
    body = "".join(f"{offset}," for offset in offsets).encode()
    return AppendRequest(queue, body, properties.encode(), now_ms, host)


def marked(message: StoredMessage) -> tuple[list[int], bool]:
    """The offsets in a mark, and whether they were put back; RocketMQ before 5.0 wrote one, without a comma."""
    parts = message.body.decode("ascii", "replace").split(",")
    found = [offset for part in parts if (offset := number(part.strip())) is not None]
    return found, PUT_BACK in message.properties
