"""Subscriptions by keys over real sockets: exactly the messages with one of them, progress, and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.consumers import Consumers
from penstock.broker.filtering import Filters, check_filter
from penstock.broker.options import BrokerOptions
from penstock.errors import RequestError
from penstock.message import encode_properties
from penstock.protocol.bodies import SubscriptionData
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.testing import ManualClock
from tests.support.running_broker import Bench, run
from tests.unit.broker.test_filters import NO_MATCH, bodies, filtering, following

words = st.text("abAB12-_|", min_size=1, max_size=4)


async def pull_keys(bench: Bench, keys: str, offset: int = 0) -> Command:
    return await bench.client.pull(offset=offset, subscription=keys, expressionType="KEYS")


@pytest.mark.feature("keyed-subscriptions", "fifth-seed")
@pytest.mark.seed("S4-51")
def test_only_messages_with_one_of_the_keys_come_and_the_others_count_as_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            for keys in ("k1", "k2 k3", "k11", "", "k1 k2", "K1"):
                more: dict[str, Any] = {"KEYS": keys} if keys else {}
                assert (await bench.client.send("T", keys.encode() or b"none", **more)).code == 0
            answer = await pull_keys(bench, "k1")
            # Letter for letter, and whole keys: neither k11 nor K1.
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"k1", b"k1 k2"], 6)
            answer = await pull_keys(bench, "k3 K1")
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"k2 k3", b"K1"], 6)
            answer = await pull_keys(bench, "nobody")
            assert (answer.code, bodies(answer), following(answer)) == (NO_MATCH, [], 6)
            # In Java `Aa` and `BB` have one hash.
            await bench.client.send("T", b"Aa", KEYS="Aa")
            assert (await pull_keys(bench, "BB", 6)).code == NO_MATCH

    run(scenario)


@pytest.mark.feature("keyed-subscriptions", "fifth-seed")
@given(
    st.lists(words, min_size=1, max_size=4),
    st.lists(words, max_size=4),
    st.dictionaries(words, words, max_size=3),
)
def test_a_message_is_wanted_if_it_has_one_of_the_keys(
    wanted: list[str], has: list[str], more: dict[str, str]
) -> None:
    clock = ManualClock()
    options = BrokerOptions()
    filters = Filters(options, Consumers(options, clock), clock)
    subscription = SubscriptionData.parse("T", " ".join(wanted), "KEYS")
    made = filters.of_pull("g", subscription, is_inline=True)
    assert made is not None
    properties = encode_properties({**more, **({"KEYS": " ".join(has)} if has else {})})
    assert made.accepts(bytes(properties)) == bool(set(wanted) & set(has))


@pytest.mark.abuse("A14")
def test_keys_are_limited_in_number_and_length(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path, subscription_keys_max=3, expression_size_max=40) as bench:
            await bench.client.send("T", b"1", KEYS="k1")
            assert (await pull_keys(bench, "k1 k2 k3")).code == 0
            for keys, text in (
                ("k1 k2 k3 k4", "has 4 keys in 11 characters; use at most 3 keys in 40"),
                ("k" * 41, "too long"),
                ("", "names no key"),
                ("  ", "names no key"),
            ):
                answer = await pull_keys(bench, keys)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
                assert text in (answer.remark or ""), answer.remark

    run(scenario)


def test_a_subscription_by_keys_is_checked_before_it_is_used() -> None:
    options = BrokerOptions(subscription_keys_max=2, expression_size_max=20)
    check_filter(options, SubscriptionData.parse("T", "k1 k2", "KEYS"))
    for text, message in (("k1 k2 k3", "3 keys"), ("k" * 21, "21 characters")):
        with pytest.raises(RequestError, match=message):
            check_filter(options, SubscriptionData.parse("T", text, "KEYS"))
    with pytest.raises(RequestError, match="does not filter by KEYS"):
        check_filter(BrokerOptions(property_filters=False), SubscriptionData.parse("T", "k", "KEYS"))
    with pytest.raises(RequestError, match="names no key"):
        check_filter(options, SubscriptionData("T", " ", expression_type="KEYS"))


def test_a_subscription_that_a_heartbeat_brought_decides(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            for key in ("k1", "k2"):
                await bench.client.send("T", key.encode(), KEYS=key)
            assert (await bench.client.heartbeat(expression="k2", kind="KEYS")).code == 0
            answer = await bench.client.pull(subscription=None)
            assert (bodies(answer), following(answer)) == ([b"k2"], 2)
            # A pull that waits is woken by a message that it wants, and goes on over others.
            await bench.client.heartbeat(expression="k3", kind="KEYS", sub_version=2)
            waiting = asyncio.create_task(bench.client.pull(subscription=None, offset=2, wait_ms=20_000))
            await bench.client.send("T", b"other", KEYS="k1")
            await bench.client.send("T", b"mine", KEYS="k3")
            answer = await waiting
            if not bodies(answer):  # the first one was there before it
                answer = await bench.client.pull(subscription=None, offset=following(answer), wait_ms=20_000)
            assert (bodies(answer), following(answer)) == ([b"mine"], 4)

    run(scenario)
