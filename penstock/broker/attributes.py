"""Attributes of topics as operators change them: `+key=value,-key`.

Rules, RocketMQ's: `+` sets, `-` removes; a key and its value must be known; at creation nothing can be removed;
some can be set only at creation. What this broker cannot do is refused, not stored and ignored: queues of
batches and compaction. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.codes import ResponseCode

MESSAGE_TYPE = "message.type"
QUEUE_TYPE, BATCH_QUEUES = "queue.type", "BatchCQ"
_MESSAGE_TYPES = frozenset(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"))
_MILLISECONDS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Attribute:
    is_allowed: Callable[[str], bool]
    allowed: str
    is_changeable: bool


def _is_time(text: str) -> bool:
    digits = text.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 19
    return is_number and -1 <= int(text) <= _MILLISECONDS_MAX


def require_plain_queues(config: TopicConfig) -> None:
    """Refuse the use of a topic whose queues hold batches, as a directory of RocketMQ may have one."""
    if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"topic {config.name} has {QUEUE_TYPE}={BATCH_QUEUES}, which Penstock does not support",
            "use a topic with queue.type=SimpleCQ",
        )


_KNOWN = {
    QUEUE_TYPE: _Attribute(lambda text: text == "SimpleCQ", "SimpleCQ", False),
    "cleanup.policy": _Attribute(lambda text: text == "DELETE", "DELETE", False),
    MESSAGE_TYPE: _Attribute(lambda text: text in _MESSAGE_TYPES, ", ".join(sorted(_MESSAGE_TYPES)), True),
    "reserve.time": _Attribute(_is_time, "milliseconds, or -1 for the store's own time", True),
}


def parse_changes(text: str) -> dict[str, str]:
    """`+key=value,-key` as a map of signed keys."""
    changes: dict[str, str] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = part.partition("=")
        key, value = key.strip(), value.strip()
        is_set, is_removal = key.startswith("+") and value, key.startswith("-") and not equals
        if not (is_set or is_removal) or len(key) < 2:
            raise _refusal(f"{part[:80]!r} changes no attribute", "write +key=value or -key")
        if key in changes:
            raise _refusal(f"attribute {key[1:80]!r} is named twice", "name it once")
        changes[key] = value
    return changes


def alter(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """The attributes after the changes, whose keys carry a sign; `current` is None where the topic is new."""
    altered = dict(current or {})
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        attribute = _KNOWN.get(key)
        if sign not in ("+", "-") or attribute is None:
            raise _refusal(f"no attribute {signed[:80]!r}", f"known are {', '.join(_KNOWN)}")
        if sign == "-":
            if key not in altered:
                raise _refusal(f"there is no attribute {key} to remove", "leave it out")
            if not attribute.is_changeable:
                raise _refusal(f"attribute {key} cannot be changed", "set it when the topic is created")
            del altered[key]
            continue
        if not attribute.is_allowed(value):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"attribute {key} cannot be {value[:80]!r}",
                f"use {attribute.allowed}",
            )
        if current is not None and not attribute.is_changeable and altered.get(key) != value:
            raise _refusal(f"attribute {key} cannot be changed", "set it when the topic is created")
        altered[key] = value
    return altered


def _refusal(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, message, hint)
