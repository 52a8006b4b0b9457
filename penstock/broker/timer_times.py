"""Messages with a time of their own: what they may ask for, which slot of the wheel they get, when exactly they are
due.

    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS     the first that is there counts; no level beside it
    due          the millisecond that was asked for; kept as TIMER_DELIVER_MS
    TIMER_OUT_MS the second before it: floored, and a whole second is moved one back, so that a broker which delivers
                 a second when it is over, as RocketMQ does, is never early and at most a second late
    far ahead    a time further away than the roll window: the message is looked at again before, and stored anew
    recall       the handle that a send is answered with (`protocol/recall.py`)

Rules: what is no number, negative, or further away than allowed is refused with 13, never taken for "now" (A18). A
time that has passed, however long ago, is now, as in RocketMQ. Values only, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.broker import property_text as text
from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.recall import RecallHandle
from penstock.protocol.topic_names import RETRY_PREFIX
from penstock.store.timer_wheel import PRECISION_MS, slot_time

OUT_MS = "TIMER_OUT_MS"
DELIVER_MS = "TIMER_DELIVER_MS"
ENQUEUE_MS = "TIMER_ENQUEUE_MS"
DEQUEUE_MS = "TIMER_DEQUEUE_MS"
ROLL_TIMES = "TIMER_ROLL_TIMES"
RECALLS = "TIMER_DEL_UNIQKEY"
_UNITS_MS = {"TIMER_DELAY_SEC": 1_000, "TIMER_DELAY_MS": 1, DELIVER_MS: 0}
ASKING = tuple(_UNITS_MS)
_DIGITS_MAX = 19
_INT64_MAX = 2**63 - 1


class Timing(NamedTuple):
    """When a stored message of the timer topic is due."""

    due_ms: int
    # The slot it is in; with `is_roll` only to be looked at again.
    slot_ms: int
    is_roll: bool
    # `topic+unique id` of the message that this one recalls; empty if it is none of that kind.
    recalls: str


def asked_ms(pairs: Mapping[str, str], now_ms: int, delay_max_ms: int) -> int:
    """When a message wants to be delivered; 0 for at once. Raises RequestError 13 for what is no such time."""
    for name, unit_ms in _UNITS_MS.items():
        asked = pairs.get(name)
        if asked is None:
            continue
        if not asked.isascii() or not asked.isdigit() or len(asked) > _DIGITS_MAX or int(asked) > _INT64_MAX:
            raise _illegal(f"{name} is {asked[:40]!r}", "use a whole number that is not negative")
        number = int(asked)
        due_ms = now_ms + number * unit_ms if unit_ms else number
        if due_ms - now_ms > delay_max_ms:
            raise _illegal(
                f"{name} is {number}: that is more than {delay_max_ms // 1_000} s ahead",
                "use a time that is nearer, or raise timer_max_delay_s (timerMaxDelaySec)",
            )
        return due_ms if due_ms > now_ms else 0
    return 0


def check_not_both(pairs: Mapping[str, str], level: int) -> None:
    """A level and a time are two answers to one question. What a timer delivered once may be tried again with a
    level."""
    named = next((name for name in _UNITS_MS if name in pairs), None)
    if level and named is not None and OUT_MS not in pairs:
        raise _illegal(f"the message has both {text.DELAY} and {named}", "use one of them")


def check_recalls(pairs: Mapping[str, str], topic: str) -> None:
    """Nobody recalls messages of another topic than he sends to."""
    if RECALLS in pairs and not pairs[RECALLS].startswith(f"{topic}+"):
        raise _illegal(f"{RECALLS} names no message of topic {topic}", f"use {topic}+<unique id>")


def out_ms(due_ms: int) -> int:
    """What RocketMQ calls the time of a timer message: its slot."""
    return slot_time(due_ms - 1)


def waiting(due_ms: int, topic: str, queue_id: int) -> dict[str, str]:
    """The properties of a message that waits in the timer topic."""
    return {
        DELIVER_MS: str(due_ms),
        OUT_MS: str(out_ms(due_ms)),
        text.REAL_TOPIC: topic,
        text.REAL_QUEUE_ID: str(queue_id),
    }


@dataclass(frozen=True, slots=True)
class TimerRules:
    """What is set once for a broker."""

    roll_window_ms: int

    def timing(self, properties: Mapping[str, str], stored_ms: int) -> Timing | None:
        """When a message is due that was stored in the timer topic; None if it does not say so. The same for the same
        message whenever it is asked: a wheel that is made anew is the one that was lost."""
        out = _number(properties.get(OUT_MS, ""))
        if out is None or text.REAL_TOPIC not in properties:
            return None
        slot_ms = slot_time(out)
        exact = _number(properties.get(DELIVER_MS, ""))
        due_ms = slot_ms + PRECISION_MS
        if exact is not None and slot_ms < exact <= due_ms:
            due_ms = exact
        recalls = properties.get(RECALLS, "")
        ahead_ms = slot_ms - slot_time(stored_ms)
        window_ms = self.roll_window_ms
        if ahead_ms < window_ms:
            return Timing(due_ms, slot_ms, False, recalls)
        # One that is just over the window would be rolled twice in short order: it is rolled half way.
        step_ms = window_ms // 2 if ahead_ms - window_ms < window_ms // 3 else window_ms
        roll_ms = slot_time(stored_ms + step_ms)
        return Timing(roll_ms + PRECISION_MS, roll_ms, True, recalls)


def recall_key(topic: str, unique: str) -> str:
    """How a recall names the message it recalls."""
    return f"{topic}+{unique}"


def handle_for(put: Mapping[str, str], broker_name: str, unique: str) -> str:
    """The handle that a stored timer message is answered with; empty where it cannot be recalled."""
    topic = put.get(text.REAL_TOPIC, "")
    if OUT_MS not in put or not topic or topic.startswith(RETRY_PREFIX):
        return ""
    return RecallHandle(topic, broker_name, int(put[OUT_MS]) + 1, unique).encode()


def _number(value: str) -> int | None:
    is_number = value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
    return int(value) if is_number and int(value) <= _INT64_MAX else None


def _illegal(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, message, hint)
