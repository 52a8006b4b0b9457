"""A subscription by keys brings the same messages, whichever way they are delivered."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import broker
from tests.unit.client.consuming import Seen, until


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
            until(lambda: {*seen.bodies} >= wanted)
            producer.send("T", b"last", keys="k4")
            until(lambda: b"last" in seen.bodies)
            assert sorted(seen.bodies) == sorted({*wanted, b"last"})
