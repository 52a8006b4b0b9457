"""SQL92 subscriptions over real sockets: which messages come, where the next pull begins, and every refusal."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.consumers import Consumers
from penstock.broker.filtering import Filters
from penstock.broker.options import BrokerOptions
from penstock.protocol.bodies import SubscriptionData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.running_broker import (
    Bench,
    batch_item,
    properties,
    pulls_held,
    records,
    run,
    running,
    send_fields,
)

SQL = {"expressionType": "SQL92"}
NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY


def filtering(path: Path, **options: Any) -> AbstractAsyncContextManager[Bench]:
    """A broker that takes its time, so that a busy machine does not change an answer."""
    return running(path, filter_time_max_ms=60_000, **options)


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in records(answer.body)]


def following(answer: Command) -> int:
    return int(answer.fields["nextBeginOffset"])


async def fill(bench: Bench, count: int, topic: str = "T") -> None:
    for i in range(count):
        assert (await bench.client.send(topic, b"%d" % i, price=str(i), shop="ab"[i % 2])).code == 0


async def pull_sql(bench: Bench, sql: str, offset: int = 0, **more: object) -> Command:
    return await bench.client.pull(offset=offset, subscription=sql, **SQL, **more)  # type: ignore[arg-type]


# -- which messages come -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_percent", [40, 0])
def test_messages_are_chosen_by_their_properties(tmp_path: Path, memory_percent: int) -> None:
    """From memory, and from disk, which a thread reads ahead."""

    async def scenario() -> None:
        async with filtering(tmp_path, memory_percent=memory_percent) as bench:
            await fill(bench, 10)
            answer = await pull_sql(bench, "price > 5 and shop = 'a'")
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"6", b"8"], 10)
            answer = await pull_sql(bench, "price between 2 and 3 or shop is null", offset=3)
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"3"], 10)
            answer = await pull_sql(bench, "price > 99")
            assert (answer.code, bodies(answer), following(answer)) == (NO_MATCH, [], 10)
            assert answer.remark == "NO_MATCHED_MESSAGE"
            assert (await pull_sql(bench, "price > 99", offset=10)).code == ResponseCode.PULL_NOT_FOUND

    run(scenario)


def test_limits_count_what_is_delivered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 20)
            answer = await pull_sql(bench, "shop = 'b'", maxMsgNums=3)
            assert (bodies(answer), following(answer)) == ([b"1", b"3", b"5"], 6)
            one = len(answer.body) // 3
            answer = await pull_sql(bench, "shop = 'b'", offset=6, maxMsgBytes=2 * one + 10)
            assert (bodies(answer), following(answer)) == ([b"7", b"9"], 11)
            assert bodies(await pull_sql(bench, "shop = 'b'", offset=11, maxMsgBytes=1)) == [b"11"]

    run(scenario)


def test_one_pull_looks_at_so_many_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 1)
            for _ in range(5):
                body = b"".join(batch_item(b"x", properties(price="1")) for _ in range(200))
                assert (await bench.client.call(320, send_fields(m="true"), body)).code == 0
            await bench.client.send(body=b"last", price="2000")
            answer = await pull_sql(bench, "price > 1000")
            assert (answer.code, following(answer)) == (NO_MATCH, 800)
            answer = await pull_sql(bench, "price > 1000", offset=800)
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"last"], 1002)

    run(scenario)


def test_a_property_that_is_no_number_is_no_match(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await bench.client.send(body=b"text", price="cheap")
            await bench.client.send(body=b"none")
            await bench.client.send(body=b"seven", price="7", TAGS="t", KEYS="k")
            assert bodies(await pull_sql(bench, "price > 5")) == [b"seven"]
            assert bodies(await pull_sql(bench, "not price > 5")) == []
            assert bodies(await pull_sql(bench, "price is null")) == [b"none"]
            # What the system keeps among the properties can be asked for, too.
            assert bodies(await pull_sql(bench, "TAGS = 't' and KEYS in ('k')")) == [b"seven"]

    run(scenario)


def test_a_damaged_record_is_left_out_and_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 3)
            store = bench.broker.store
            position = store.reader.entries("T", 0, 1, 1)[0].position
            segment = store.log.segment_of(position)
            assert segment is not None
            segment.file.pwrite(b"\xff\xff\xff\xff", position - segment.base + 84)  # the length of its body
            answer = await pull_sql(bench, "price >= 0")
            assert (bodies(answer), following(answer)) == ([b"0", b"2"], 3)
            # The store's own audit may find it as well, if it comes by just now.
            assert "T/0 offset 1 cannot be read; left out of the answer" in {
                finding.detail for finding in store.findings.damage()
            }

    run(scenario)


# -- subscriptions of groups ---------------------------------------------------------------------------------


def test_the_groups_expression_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 6)
            assert (await bench.client.heartbeat(expression="price > 3", kind="SQL92")).code == 0
            # Go says TAG here whatever it subscribed to.
            for kind in ("TAG", "SQL92", None):
                answer = await bench.client.pull(subscription=None, expressionType=kind)
                assert (bodies(answer), following(answer)) == ([b"4", b"5"], 6)
            newer = await bench.client.pull(subscription=None, subVersion=2)
            assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            await bench.client.heartbeat(expression="price < 1", kind="SQL92", sub_version=2)
            assert bodies(await bench.client.pull(subscription=None, subVersion=2)) == [b"0"]
            await bench.client.heartbeat(expression="*", sub_version=3)
            assert len(bodies(await bench.client.pull(subscription=None))) == 6

    run(scenario)


def test_an_expression_that_cannot_be_understood(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 1)
            answer = await pull_sql(bench, "price >")
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "at character 8" in str(answer.remark)
            empty = await pull_sql(bench, "")
            assert (empty.code, "is empty" in str(empty.remark)) == (
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                True,
            )
            odd = await bench.client.pull(subscription="a", expressionType="XPATH")
            assert odd.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            # A heartbeat is for all topics of a client: it is taken, and the one topic brings nothing.
            assert (await bench.client.heartbeat(expression="price >", kind="SQL92")).code == 0
            answer = await bench.client.pull(subscription=None)
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            assert "at character 8" in str(answer.remark)
            await bench.client.heartbeat(expression="price >= 0", kind="SQL92", sub_version=2)
            assert bodies(await bench.client.pull(subscription=None)) == [b"0"]

    run(scenario)


def test_filters_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path, property_filters=False) as bench:
            await fill(bench, 1)
            await bench.client.heartbeat(expression="price >= 0", kind="SQL92")
            for answer in (await bench.client.pull(subscription=None), await pull_sql(bench, "price >= 0")):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "does not filter by SQL92" in str(answer.remark)
            update = await bench.client.call(
                RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true\n"
            )
            assert update.code == 0
            assert bodies(await pull_sql(bench, "price >= 0")) == [b"0"]

    run(scenario)


def check_body(sql: str, kind: str = "SQL92") -> bytes:
    subscription = {"topic": "T", "subString": sql, "expressionType": kind}
    return json.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription}).encode()


def test_a_client_has_its_expression_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path, expression_size_max=100) as bench:

            async def code(sql: str, kind: str = "SQL92") -> tuple[int, str]:
                answer = await bench.client.call(RequestCode.CHECK_CLIENT_CONFIG, body=check_body(sql, kind))
                return answer.code, answer.remark or ""

            assert (await code("a > 5"))[0] == (await code("x || y", "TAG"))[0] == 0
            refused, remark = await code("a > 'x'")
            assert (refused, "at character 3" in remark) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)
            for sql, kind in (("", "SQL92"), ("a = '" + "x" * 100 + "'", "SQL92"), ("a", "XPATH")):
                assert (await code(sql, kind))[0] == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(scenario)


def test_a_long_list_passes_the_check(tmp_path: Path) -> None:
    """As long as an expression may be: the limit on values in a body counts its commas, too."""

    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            values = ",".join(f"'{i}'" for i in range(1_000))
            answer = await bench.client.call(
                RequestCode.CHECK_CLIENT_CONFIG, body=check_body(f"a in ({values})")
            )
            assert answer.code == 0

    run(scenario)


# -- waiting -------------------------------------------------------------------------------------------------


def test_a_waiting_pull_is_answered_by_what_it_wants_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 1)
            await bench.client.heartbeat(expression="price > 3", kind="SQL92")
            waiting = asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=60_000, subscription=None))
            await pulls_held(bench)
            other = bench.connect()
            for i in range(3):
                assert (await other.send(body=b"cheap", price=str(i))).code == 0
            # An answer to the pull would come before the one to a later request of its connection.
            await bench.client.send("other")
            assert not waiting.done()
            await other.send(body=b"dear", price="9")
            answer = await waiting
            assert (answer.code, bodies(answer), following(answer)) == (0, [b"dear"], 5)

    run(scenario)


def test_a_waiting_pull_that_gives_up_says_how_far_it_looked(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with filtering(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench, 1)
            waiting = asyncio.ensure_future(pull_sql(bench, "price > 99", offset=1, wait_ms=500))
            await pulls_held(bench)
            other = bench.connect()
            await other.send(body=b"cheap", price="1")
            clock.advance(1_000)
            answer = await waiting
            assert (answer.code, following(answer)) == (NO_MATCH, 2)
            waiting = asyncio.ensure_future(pull_sql(bench, "price > 99", offset=2, wait_ms=1))
            await pulls_held(bench)
            clock.advance(1_000)
            nothing = await waiting
            assert (nothing.code, following(nothing)) == (ResponseCode.PULL_NOT_FOUND, 2)

    run(scenario)


@pytest.mark.parametrize(
    ("first", "second"), [("price > 9", "price < 5"), ("*", "price < 5"), ("price > 9", "*")]
)
def test_a_waiting_pull_follows_its_group(tmp_path: Path, first: str, second: str) -> None:
    """Nothing that the new expression wants is passed over by the old one."""

    async def scenario() -> None:
        async with filtering(tmp_path) as bench:
            await fill(bench, 1)
            other = bench.connect()
            kinds = [("TAG" if sql == "*" else "SQL92") for sql in (first, second)]
            await other.heartbeat(expression=first, kind=kinds[0])
            waiting = asyncio.ensure_future(bench.client.pull(offset=1, wait_ms=60_000, subscription=None))
            await pulls_held(bench)
            await other.heartbeat(expression=second, kind=kinds[1], sub_version=2)
            await other.send(body=b"dear", price="8")
            await other.send(body=b"cheap", price="2")
            answer = await waiting
            assert bodies(answer)[-1:] == [b"cheap" if second != "*" else b"dear"]
            # One in a request stays what it was.
            inline = asyncio.ensure_future(pull_sql(bench, "price = 7", offset=3, wait_ms=50_000))
            await other.heartbeat(expression="*", sub_version=3)
            await other.send(body=b"six", price="6")
            await other.send(body=b"seven", price="7")
            assert bodies(await inline) == [b"seven"]

    run(scenario)


# -- retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filter_retries", [False, True])
def test_retries_are_delivered_whole_unless_told_otherwise(tmp_path: Path, filter_retries: bool) -> None:
    async def scenario() -> None:
        async with filtering(tmp_path, filter_retries=filter_retries) as bench:
            beat = await bench.client.heartbeat(expression="price > 3", kind="SQL92")
            assert beat.code == 0
            retry = "%RETRY%consumers"
            for body, topic, price in ((b"dear", "T", "9"), (b"cheap", "T", "1"), (b"other", "U", "1")):
                assert (await bench.client.send(retry, body, RETRY_TOPIC=topic, price=price)).code == 0
            answer = await bench.client.pull(retry, subscription="*")
            whole = [b"dear", b"cheap", b"other"]
            assert bodies(answer) == ([b"dear", b"other"] if filter_retries else whole)
            assert following(answer) == 3

    run(scenario)


def test_a_retry_filter_needs_nobody_online() -> None:
    clock = ManualClock()
    options = BrokerOptions(filter_retries=True)
    filters = Filters(options, Consumers(options, clock), clock)
    found = filters.of_pull("g", SubscriptionData("%RETRY%g"), is_inline=True)
    assert found is not None
    assert found.accepts(b"RETRY_TOPIC\x01T\x02")
    assert filters.of_pull("g", SubscriptionData("T"), is_inline=True) is None


# -- time ----------------------------------------------------------------------------------------------------


def test_the_time_of_a_pull_begins_with_each_try() -> None:
    clock = ManualClock()
    options = BrokerOptions(filter_time_max_ms=10)
    filters = Filters(options, Consumers(options, clock), clock)
    found = filters.of_pull("g", SubscriptionData.parse("T", "a = 1", "SQL92"), is_inline=True)
    assert found is not None
    found.begin()
    clock.advance(9)
    assert not found.is_spent()
    clock.advance(1)
    assert found.is_spent()
    found.begin()
    assert not found.is_spent()


def test_subscriptions_as_long_as_rocketmq_allows_are_accepted(tmp_path: Path) -> None:
    tags = " || ".join(f"tag{number:05}" for number in range(10_240 // 12))
    tags += "x" * (10_240 - len(tags))
    sql = "a = 1 OR " * 1_000 + "TAGS = '" + "x" * (10_240 - 9_009) + "'"

    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench, 1)
            assert (await bench.client.heartbeat("g", expression=tags)).code == 0
            assert (await bench.client.pull(subscription=tags)).code == NO_MATCH
            assert (await bench.client.heartbeat("h", expression=sql, kind="SQL92")).code == 0

    assert len(tags) == len(sql) == 10_240
    run(scenario)


def test_a_refused_heartbeat_is_logged_once_for_each_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, expression_size_max=10) as bench:
            for expression in ("x" * 11, "x" * 11, "*"):
                await bench.client.heartbeat("g", expression=expression)

    run(scenario)
    refused = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    assert len(refused) == 1
    assert "longer than 10 characters" in refused[0]
