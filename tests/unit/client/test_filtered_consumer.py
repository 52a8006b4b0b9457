"""Consumers that choose by an SQL92 expression, against a real broker: what comes, comes again, is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.consumer import Consumer
from penstock.errors import ClientError, FilterError, OptionError, ResponseError
from penstock.testing import broker
from tests.support.consuming import QUICK, Seen, numbered, send
from tests.waiting import wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with broker(store=QUICK) as address:
        yield address


def send_priced(address: str, *prices: int) -> None:
    with penstock.Producer(address) as producer:
        for price in prices:
            more = {"price": str(price), "shop": "ab"[price % 2]}
            producer.send("T", b"%d" % price, properties=more, queue_key="k")


def lag(address: str, group: str) -> int:
    with penstock.Admin(address) as admin:
        return admin.describe_group(group).lag


def test_messages_are_chosen_by_an_expression(address: str) -> None:
    send_priced(address, *range(40))
    seen = Seen()
    quick = {"suspend_ms": 500, "persist_interval_ms": 200}
    with Consumer(address, group="g", listener=seen, start_from="first", threads=1, **quick) as consumer:
        consumer.subscribe("T", sql="price > 29 and shop = 'a'")
        wait_until(lambda: len(seen.messages) == 5)
        send_priced(address, *range(33), 50, 1)
        wait_until(lambda: len(seen.messages) == 8)
        # What is not wanted counts as consumed, also behind the last message that is.
        wait_until(lambda: lag(address, "g") == 0)
    assert seen.bodies == [b"30", b"32", b"34", b"36", b"38", b"30", b"32", b"50"]


def test_an_expression_takes_the_place_of_another(address: str) -> None:
    send_priced(address, 0)
    seen = Seen()
    with (
        penstock.Admin(address) as admin,
        Consumer(address, group="g", listener=seen, start_from="first", threads=1) as consumer,
    ):
        for sql, last in (
            ("price >= 0", 0),
            ("price = 1", 1),
            ("price = 2", 2),
            ("", 5),
            ("price in ('4')", 4),
        ):
            consumer.subscribe("T", sql=sql)
            if last:  # by then the group is there
                wait_until(
                    lambda wanted=sql: admin.describe_group("g").subscriptions.get("T") == (wanted or "*")
                )
                send_priced(address, *range(6))
            wait_until(lambda wanted=last: seen.bodies[-1:] == [b"%d" % wanted])
    assert seen.bodies == [b"0", b"1", b"2", *numbered(6), b"4"]


def test_what_was_refused_is_tried_again(address: str) -> None:
    send_priced(address, *range(4))
    seen = Seen(lambda message: message.tries > 0)
    with Consumer(address, group="g", listener=seen, start_from="first") as consumer:
        consumer.subscribe("T", sql="price >= 3")
        wait_until(lambda: len(seen.messages) >= 2)
    assert [(message.body, message.tries) for message in seen.messages] == [(b"3", 0), (b"3", 1)]


@pytest.mark.parametrize("is_started", [False, True])
def test_an_expression_that_is_wrong_is_an_error_at_once(address: str, is_started: bool) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(address, group="g")
        if is_started:
            await consumer.start()
        with pytest.raises(FilterError, match="at character 9: the end stands where") as caught:
            await consumer.subscribe("T", sql="price > ")
        assert caught.value.position == 8
        await consumer.close()

    asyncio.run(scenario())


def test_an_expression_that_the_broker_refuses_leaves_the_earlier_one() -> None:
    with broker(property_filters=False) as address:
        send(address, "T", b"1", b"2")
        seen = Seen()
        with Consumer(address, group="g", listener=seen, start_from="first") as consumer:
            with pytest.raises(ResponseError, match="does not filter by SQL92"):
                consumer.subscribe("T", sql="a > 1")
            assert not consumer.wait_assigned()
            consumer.subscribe("T", "*")
            with pytest.raises(ResponseError, match="does not filter by SQL92"):
                consumer.subscribe("T", sql="a > 1")
            wait_until(lambda: len(seen.messages) == 2)


@pytest.mark.feature("keyed-subscriptions", "fifth-seed")
@pytest.mark.seed("S4-51")
def test_each_group_gets_the_messages_with_its_keys(address: str) -> None:
    """A keyed subscription is a condition over the keys; groups beside each other have their own."""
    with penstock.Producer(address) as producer:
        for i in range(12):
            producer.send("T", b"%d" % i, keys=f"order-{i % 4}", queue_key="k")
    wanted = {"one": "KEYS = 'order-1'", "two": "KEYS in ('order-2', 'order-3')"}
    listeners = {group: Seen() for group in wanted}
    with contextlib.ExitStack() as stack:
        for group, seen in listeners.items():
            options = {"listener": seen, "start_from": "first", "threads": 1}
            consumer = stack.enter_context(Consumer(address, group=group, **options))
            consumer.subscribe("T", sql=wanted[group])
        wait_until(lambda: [len(seen.messages) for seen in listeners.values()] == [3, 6])
    assert [seen.bodies for seen in listeners.values()] == [
        [b"1", b"5", b"9"],
        [b"2", b"3", b"6", b"7", b"10", b"11"],
    ]


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.seed("S4-51")
def test_only_messages_with_one_of_the_keys_are_delivered_and_progress_goes_on(address: str) -> None:
    with penstock.Producer(address) as producer:
        for number in range(40):
            producer.send("T", b"%d" % number, keys=[f"k{number % 10}", f"n{number}"], queue_key="q")
    seen = Seen()
    quick = {"suspend_ms": 500, "persist_interval_ms": 200}
    with Consumer(address, group="g", listener=seen, start_from="first", threads=1, **quick) as consumer:
        consumer.subscribe("T", keys=["k3", "n4"])
        wait_until(lambda: len(seen.messages) == 5)
        # What has another key counts as consumed, also behind the last one that is wanted.
        wait_until(lambda: lag(address, "g") == 0)
        consumer.subscribe("T", keys="k5")
        with penstock.Admin(address) as admin:
            wait_until(lambda: admin.describe_group("g").subscriptions.get("T") == "k5")
        with penstock.Producer(address) as producer:
            for number in range(40, 50):
                producer.send("T", b"%d" % number, keys=f"k{number % 10}", queue_key="q")
        wait_until(lambda: len(seen.messages) == 6)
    assert seen.bodies == [b"3", b"4", b"13", b"23", b"33", b"45"]


def test_keys_that_are_none_and_brokers_that_do_not_know_them(address: str) -> None:
    with Consumer(address, group="g") as consumer:
        for keys in ([""], ["two words"], ["a\x01b"], "\n"):
            with pytest.raises(OptionError, match="a key is"):
                consumer.subscribe("T", keys=keys)
        with pytest.raises(OptionError, match="more than one of"):
            consumer.subscribe("T", "tag", keys="k")
        with pytest.raises(OptionError, match="more than one of"):
            consumer.subscribe("T", sql="a > 1", keys="k")
        send(address, "T", b"there")
        with pytest.raises(ClientError, match=r"cannot be read by keys: .* 300 keys"):
            consumer.subscribe("T", keys=[f"k{number}" for number in range(300)])
    with broker(store=QUICK, property_filters=False) as other:
        send(other, "T", b"there")
        with (
            Consumer(other, group="g") as consumer,
            pytest.raises(ClientError, match=r"does not filter by KEYS.*look at message\.keys"),
        ):
            consumer.subscribe("T", keys="k")
