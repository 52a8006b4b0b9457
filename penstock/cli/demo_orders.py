"""The orders of the demonstration: what four producers are going to send, planned before the first is sent.

A shop's day in half a minute: a second of ours is two minutes of the shop's. Most orders are what they should be.
Some are sent twice, as by a producer that did not get its answer; some arrive minutes late; a few have a body that
nobody can read; and after hours a few of the day before turn up. Because all is planned, what must come out in the
end is known: how many of each kind, and how much money by channel.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

SEED = 20250131
CHANNELS = ("web", "app", "store", "partner")
ITEMS = ("kettle", "lamp", "chair", "clock", "rug", "mirror", "vase", "shelf")
PER_SECOND = 150  # of each channel
SHOP_SECONDS = 120  # of the shop's day in one of ours
LATE_MINUTES = (2, 8)
WATERMARK_MINUTES = 10
WINDOW_MINUTES = 5
CLOSING = "closing"
# One in so many.
TWICE, LATE, POISON, FLAKY = 80, 40, 250, 60
AFTER_HOURS = 3  # of each channel
_OPENING = datetime(2025, 1, 31, 9, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Planned:
    """A message, and when it is sent, in seconds from the beginning."""

    due_s: float
    channel: str
    key: str
    body: bytes


@dataclass(slots=True)
class Plan:
    """Everything that will be sent, by channel and in order, and what it comes to. `after_hours` are a day late, and
    sent when the others are: before the first windows have moved on, nobody knows what late is."""

    messages: dict[str, list[Planned]] = field(default_factory=dict)
    after_hours: list[Planned] = field(default_factory=list)
    orders: int = 0
    twice: int = 0
    late: int = 0
    poisoned: int = 0
    # By channel: orders and cents that the windows must add up to.
    totals: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """While the shop sells."""
        return sum(len(messages) for messages in self.messages.values())

    @property
    def in_all(self) -> int:
        """With what comes after hours: the day before's, and the order that closes the day."""
        return self.sent + len(self.after_hours) + 1

    @property
    def readable(self) -> int:
        """Orders that can be billed, each counted once."""
        return self.orders + len(self.after_hours) + 1


def make_plan(seconds: float, seed: int = SEED) -> Plan:
    """The same plan for the same seed."""
    plan = Plan()
    chance = random.Random(seed)
    for channel in CHANNELS:
        planned: list[Planned] = []
        count = int(seconds * PER_SECOND)
        for number in range(count):
            _plan_order(plan, planned, chance, channel, number)
        for number in range(AFTER_HOURS):
            order_id, at = f"{channel}-late-{number}", _OPENING - timedelta(days=1)
            body = _body(order_id, channel, chance, chance.randrange(500, 50_000), at)
            plan.after_hours.append(Planned(seconds, channel, order_id, body))
        planned.sort()
        plan.messages[channel] = planned
    return plan


def _plan_order(plan: Plan, planned: list[Planned], chance: random.Random, channel: str, number: int) -> None:
    due_s = number / PER_SECOND
    at = _OPENING + timedelta(seconds=due_s * SHOP_SECONDS)
    order_id = f"{channel}-{number:06d}"
    cents = chance.randrange(500, 50_000)
    if not chance.randrange(POISON):
        plan.poisoned += 1
        planned.append(
            Planned(due_s, channel, order_id, _poison(chance, _body(order_id, channel, chance, cents, at)))
        )
        return
    if not chance.randrange(LATE):
        plan.late += 1
        at -= timedelta(minutes=chance.uniform(*LATE_MINUTES))
    orders, sum_cents = plan.totals.get(channel, (0, 0))
    plan.totals[channel] = (orders + 1, sum_cents + cents)
    plan.orders += 1
    body = _body(order_id, channel, chance, cents, at)
    planned.append(Planned(due_s, channel, order_id, body))
    if not chance.randrange(TWICE):
        plan.twice += 1
        planned.append(Planned(due_s + chance.uniform(0.2, 1.5), channel, order_id, body))


def _body(order_id: str, channel: str, chance: random.Random, cents: int, at: datetime) -> bytes:
    order = {
        "order_id": order_id,
        "customer": f"customer-{int(chance.paretovariate(1.1)) % 1000:03d}",
        "channel": channel,
        "item": chance.choice(ITEMS),
        "amount_cents": cents,
        "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    return json.dumps(order).encode()


def _poison(chance: random.Random, body: bytes) -> bytes:
    """Cut off, of another kind, or with a number that is none."""
    kind = chance.randrange(3)
    if kind == 0:
        return body[: len(body) // 2]
    if kind == 1:
        return b"<order>" + body[10:40] + b"</order>"
    order = json.loads(body)
    return json.dumps(order | {"amount_cents": "a lot"}).encode()


def closing_body() -> bytes:
    """The last order of the day, hours later: whatever windows are open when it comes will close."""
    at = (_OPENING + timedelta(hours=12)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    order = {
        "order_id": CLOSING,
        "customer": "till",
        "channel": CLOSING,
        "item": "none",
        "amount_cents": 0,
        "at": at,
    }
    return json.dumps(order).encode()


def read_order(body: bytes) -> dict[str, object]:
    """What a consumer does with a body; ValueError if it is no order."""
    order = json.loads(body)
    if not isinstance(order, dict) or not isinstance(order.get("amount_cents"), int):
        raise ValueError("no order")
    return order


def is_flaky(order_id: str) -> bool:
    """Whether the payment service, so to speak, is out of reach for this order at the first try."""
    return sum(order_id.encode()) * 2654435761 % FLAKY == 0
