"""Judges what consumers in order were given: one message swapped with its neighbour must not pass.

A history is the list of all deliveries of a group in the order in which they began. Rules, for each queue:

    first time     offsets come for the first time one after the other: none is jumped over, none comes early
    in a row       of two deliveries in a row to the same consumer, the second is the next one, or one that came
                   before (it lost the queue, and goes on at what was committed)
    one at a time  a delivery begins when the one before it has ended (not judged where a failover loses locks)

and for each key: its numbers come for the first time as they were sent, one after the other; a number that a
producer sent again, because it had no answer, may be there twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message in the hands of one consumer."""

    queue: int
    offset: int
    key: str
    number: int
    consumer: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class OrderFigures:
    """What a history came to."""

    deliveries: int
    again: int
    changes: int

    def __str__(self) -> str:
        return f"{self.deliveries} deliveries, {self.again} of them again, {self.changes} changes of owner"


def check_order(history: Sequence[Delivery], *, one_at_a_time: bool = True) -> OrderFigures:
    """The figures; AssertionError names the first thing that is wrong."""
    queues: dict[int, list[Delivery]] = {}
    for delivery in history:
        queues.setdefault(delivery.queue, []).append(delivery)
    again = changes = 0
    for queue, deliveries in queues.items():
        expected = deliveries[0].offset
        before: Delivery | None = None
        numbers: dict[str, int] = {}
        for delivery in deliveries:
            if delivery.offset >= expected:
                assert delivery.offset == expected, f"queue {queue}: {delivery} came, {expected} is next"
                expected += 1
                _check_key(numbers, delivery)
            else:
                again += 1
            if before is not None:
                _check_step(before, delivery)
                changes += before.consumer != delivery.consumer
                if one_at_a_time:
                    assert before.ended_s <= delivery.began_s, f"at the same time: {before} and {delivery}"
            before = delivery
    return OrderFigures(len(history), again, changes)


def _check_key(numbers: dict[str, int], delivery: Delivery) -> None:
    last = numbers.get(delivery.key)
    assert last is None or delivery.number in (last, last + 1), f"{delivery} came after number {last}"
    numbers[delivery.key] = delivery.number


def _check_step(before: Delivery, delivery: Delivery) -> None:
    if before.consumer == delivery.consumer:
        assert delivery.offset <= before.offset + 1, f"{delivery} came after {before}"


def swapped(history: Sequence[Delivery], at: int) -> list[Delivery] | None:
    """The history with the messages of a delivery and of the next one of its queue exchanged; None if one of the two
    had been delivered before, or the next two are not there or deliver again: then the exchange may be an order that
    redeliveries explain."""
    first = history[at]
    following = (n for n in range(at + 1, len(history)) if history[n].queue == first.queue)
    later, after = next(following, None), next(following, None)
    if later is None or after is None:
        return None
    second = history[later]
    if history[after].offset != second.offset + 1:
        return None
    seen = {delivery.offset for delivery in history[:at] if delivery.queue == first.queue}
    if first.offset in seen or second.offset != first.offset + 1:
        return None
    changed = list(history)
    changed[at] = _with_message(first, second)
    changed[later] = _with_message(second, first)
    return changed


def _with_message(delivery: Delivery, message: Delivery) -> Delivery:
    return Delivery(
        delivery.queue,
        message.offset,
        message.key,
        message.number,
        delivery.consumer,
        delivery.began_s,
        delivery.ended_s,
    )
