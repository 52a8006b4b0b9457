"""What clients did and saw, message by message: the record that the checks of `history_checks.py` judge.

Every message has a serial number, and everything about it follows from the number (`store_checks.body_of`), so
whatever a consumer or a store shows can be compared with what was sent, answered or not. An operation is

    ok        the client was told that the message is stored, and where
    failed    the client was told that it is not stored
    unknown   the client was told that nobody knows, or is still waiting
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from penstock import Message
from penstock.client.received import ReceivedMessage
from penstock.client.results import SendResult
from penstock.errors import PenstockError
from tests.support.store_checks import body_of

Place = tuple[int, int]
"""A queue's number and an offset in it."""


def properties_of(serial: int) -> dict[str, str]:
    return {"TAGS": f"t{serial % 3}", "KEYS": f"k{serial}", "serial": str(serial)}


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One message on its way. `lane` names the sends that keep their order: a producer and a queue key."""

    serial: int
    kind: str
    lane: str
    started: float
    ended: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    place: Place | None = None
    attempts: int = 0
    error: str = ""


@dataclass(slots=True)
class Delivery:
    """One message in the hands of one consumer."""

    at: float
    serial: int
    topic: str
    place: Place
    tries: int
    consumer: str
    is_done: bool


@dataclass
class Group:
    """Everything that one consumer group was given, in the order in which it came."""

    deliveries: list[Delivery] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    seen: Counter[tuple[str, Place]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class History:
    """May be written to from any thread."""

    def __init__(self, topic: str, queues: int) -> None:
        self.topic = topic
        self.queues = queues
        self.sends: dict[int, Send] = {}
        self.groups: dict[str, Group] = {}
        self._lock = threading.Lock()
        self._serials = itertools.count(1)

    # -- sends -----------------------------------------------------------------------------------------------

    def begin(self, kind: str, lane: str = "") -> tuple[Send, Message]:
        """A new message, which the caller sends now."""
        with self._lock:
            serial = next(self._serials)
            send = self.sends[serial] = Send(serial, kind, lane, time.monotonic())
        return send, Message(self.topic, body_of(serial), properties_of(serial))

    def stored(self, send: Send, result: SendResult) -> None:
        """The client says that it is stored."""
        assert result.queue.topic == self.topic
        send.place = (result.queue.queue_id, result.queue_offset)
        send.attempts = result.attempts
        send.outcome = Outcome.OK
        send.ended = time.monotonic()

    def not_stored(self, send: Send, error: BaseException) -> None:
        """The client says that it is not, or that nobody knows."""
        if not isinstance(error, PenstockError):
            raise error
        send.error = f"{type(error).__name__}: {error}"
        send.outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED
        send.ended = time.monotonic()

    def of(self, outcome: Outcome) -> list[Send]:
        with self._lock:
            return [send for send in self.sends.values() if send.outcome is outcome]

    @property
    def acknowledged(self) -> set[int]:
        return {send.serial for send in self.of(Outcome.OK)}

    # -- deliveries ------------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        with self._lock:
            return self.groups.setdefault(name, Group())

    def delivered(self, name: str, consumer: str, message: ReceivedMessage, *, done: bool = True) -> None:
        """A consumer has it in hand. `done`: and will not ask for it again."""
        at = time.monotonic()
        serial = int(message.body.split(b"|", 1)[0])
        place = (message.queue.queue_id, message.queue_offset)
        problem = self._problem(serial, message)
        group = self.group(name)
        with self._lock:
            delivery = Delivery(at, serial, message.queue.topic, place, message.tries, consumer, done)
            group.deliveries.append(delivery)
            group.seen[message.queue.topic, place] += 1
            if done:
                group.done.add(serial)
            if problem:
                group.wrong.append(f"{name} {consumer} {message!r}: {problem}")

    def _problem(self, serial: int, message: ReceivedMessage) -> str:
        """What of the message is not as it was sent (I2)."""
        expected = properties_of(serial)
        found = {name: message.properties.get(name) for name in expected}
        if serial not in self.sends:
            return "nobody sent it"
        if message.body != body_of(serial):
            return f"its body is {message.body[:80]!r}"
        if message.topic != self.topic:
            return f"its topic is {message.topic}"
        return "" if found == expected else f"its properties are {found}"

    def is_drained(self, name: str, ends: dict[int, int]) -> bool:
        """Whether the group has seen every queue up to its end, and is done with all that was acknowledged."""
        group = self.group(name)
        acknowledged = self.acknowledged
        with self._lock:
            return acknowledged <= group.done and all(
                (self.topic, (queue, offset)) in group.seen
                for queue, end in ends.items()
                for offset in range(end)
            )

    # -- times -----------------------------------------------------------------------------------------------

    def first_ok_after(self, moment: float) -> float | None:
        """When the first message was acknowledged that was sent after a moment."""
        return min((send.ended for send in self.of(Outcome.OK) if send.started >= moment), default=None)

    def first_delivery_after(self, moment: float, name: str) -> float | None:
        """When a group was first given a message that was sent after a moment."""
        with self._lock:
            times = [
                delivery.at
                for delivery in self.groups.get(name, Group()).deliveries
                if self.sends[delivery.serial].started >= moment
            ]
        return min(times, default=None)

    def longest_gap(self) -> float:
        """The longest time without any acknowledgement, between the first and the last."""
        times = sorted(send.ended for send in self.of(Outcome.OK))
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)
