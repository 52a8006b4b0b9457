"""A message's properties as the text they travel and are stored in: read once, changed without touching the rest.

    name 0x01 value 0x02, repeated; the last 0x02 may be missing

Rule: what a client wrote stays as it wrote it, byte for byte; only the properties that are the broker's to set
are taken out and put behind, each as exactly one property whatever its value is. Readers take the last of equal
names. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.errors import CodecError, PropertiesTooLargeError
from penstock.message.properties import NAME_END, PAIR_END, PROPERTIES_SIZE_MAX, PropertyName

KEYS = PropertyName.KEYS
WAIT = PropertyName.WAIT
DELAY = PropertyName.DELAY
UNIQ_KEY = PropertyName.UNIQ_KEY
REAL_TOPIC = PropertyName.REAL_TOPIC
REAL_QUEUE_ID = PropertyName.REAL_QUEUE_ID
SEAL = PropertyName.SEAL
REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
POP_CHECK = "POP_CK"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# Where a dead letter came from, as RocketMQ's broker says it. A sender's own would lead a redrive to another topic.
DEAD_LETTER_ORIGINS = ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID")
TRANSACTION = "TRAN_MSG"
TIMERS = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
# Who sent a message idempotently, and its number: the broker's to set, from the header of the send.
PRODUCER = "PENSTOCK_PRODUCER"
SEQUENCE = "PENSTOCK_SEQUENCE"
# Of a staged record: the user who staged it, if access control was on.
OWNER = "PENSTOCK_OWNER"
# Never stored: properties that live only between a client and its broker.
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
# Set by the broker on every send, or taken out by it.
BROKERS_OWN = frozenset(
    (REGION, TRACE_ON, CLUSTER, POP_CHECK, WAIT, SEAL, PRODUCER, SEQUENCE, REAL_TOPIC, REAL_QUEUE_ID)
)


def parse(text: str) -> dict[str, str]:
    """The pairs; what is no pair is skipped."""
    pairs: dict[str, str] = {}
    for part in text.split(PAIR_END):
        name, separator, value = part.partition(NAME_END)
        if separator and name and value:
            pairs[name] = value
    return pairs


def pair(name: str, value: str) -> str:
    """One property. Raises CodecError if it would be read as another, or as two: values come from requests, too."""
    if PAIR_END in value or PAIR_END in name or NAME_END in name:
        raise CodecError(
            f"property {name[:80]!r} contains 0x01 or 0x02, which separate properties",
            "send names of printable characters",
        )
    return f"{name}{NAME_END}{value}{PAIR_END}"


def without(text: str, names: Collection[str]) -> str:
    """The text without these properties and without those that are never stored, ready for more behind it."""
    parts = [
        part
        for part in text.split(PAIR_END)
        if part
        and (name := part.partition(NAME_END)[0]) not in names
        and not name.startswith(TRANSIENT_PREFIX)
    ]
    return PAIR_END.join(parts) + PAIR_END if parts else ""


def changed(text: str, pairs: dict[str, str], drop: Collection[str], put: dict[str, str]) -> str:
    """The text with some properties gone and some put behind; `pairs` is what `parse` made of it."""
    if any(name in pairs for name in drop) or any(name in pairs for name in put) or TRANSIENT_PREFIX in text:
        text = without(text, {*drop, *put})
    elif text and not text.endswith(PAIR_END):
        text += PAIR_END
    return text + "".join(pair(name, value) for name, value in put.items())


def encode(text: str) -> bytes:
    """As stored; refuses what fits no record."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise CodecError(f"the properties are not text: {error.reason}") from error
    if len(data) > PROPERTIES_SIZE_MAX:
        raise PropertiesTooLargeError(
            f"the properties take {len(data)} bytes with what the broker adds, at most {PROPERTIES_SIZE_MAX} "
            "fit a record",
            "put large values into the body",
        )
    return data


def decode(data: bytes) -> str:
    """Stored properties as text that `encode` turns back into the same bytes, if they are text at all."""
    return data.decode("utf-8", "replace")
