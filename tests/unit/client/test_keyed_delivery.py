"""A subscription by keys brings the same messages, whichever way they are delivered."""

from __future__ import annotations

import pytest

import penstock
from penstock.broker import filtering
from penstock.testing import broker
from tests.support.consuming import Seen
from tests.waiting import wait_until

# The time of a lot is far longer than a test: what is not done with would hold its queue up.
ORDERLY = {"delivery": "pop", "orderly": True, "pop_batch": 3, "invisible_ms": 60_000}


@pytest.mark.feature("keyed-subscriptions", "fifth-seed")
@pytest.mark.seed("S4-51")
@pytest.mark.parametrize("delivery", ["pull", "pop", "push"])
def test_messages_with_one_of_the_keys_are_pulled_popped_and_pushed(delivery: str) -> None:
    with broker() as address, penstock.Producer(address) as producer:
        for number in range(60):
            producer.send("T", b"%d" % number, keys=f"k{number % 6} order-{number}")
        seen = Seen()
        with penstock.Consumer(
            address, group="g", listener=seen, delivery=delivery, start_from="first"
        ) as consumer:
            consumer.subscribe("T", keys=["k1", "k4", "order-0", "k"])
            wanted = {b"%d" % number for number in range(60) if number % 6 in (1, 4) or number == 0}
            wait_until(lambda: {*seen.bodies} >= wanted)
            producer.send("T", b"last", keys="k4")
            wait_until(lambda: b"last" in seen.bodies)
            assert sorted(seen.bodies) == sorted({*wanted, b"last"})


@pytest.mark.feature("keyed-subscriptions", "fifth-seed")
@pytest.mark.parametrize("more", [{"delivery": "pull"}, {"delivery": "push"}, {"delivery": "pop"}, ORDERLY])
def test_the_client_compares_keys_again(monkeypatch: pytest.MonkeyPatch, more: dict[str, object]) -> None:
    """A broker that gives out everything: what has none of the keys is passed over, and holds nothing up."""
    monkeypatch.setattr(filtering, "_by_keys", lambda keys: lambda properties: True)
    with broker() as address, penstock.Producer(address) as producer:
        for number in range(40):
            producer.send("T", b"%d" % number, keys="k1 k2" if number % 5 == 4 else "k11")
        seen = Seen()
        with penstock.Consumer(address, group="g", listener=seen, start_from="first", **more) as consumer:  # type: ignore[arg-type]
            consumer.subscribe("T", keys=["k1"])
            wait_until(lambda: len(seen.bodies) >= 8)
            producer.send("T", b"last", keys="k1")
            wait_until(lambda: b"last" in seen.bodies)
        assert sorted(seen.bodies) == sorted([b"%d" % number for number in range(4, 40, 5)] + [b"last"])
