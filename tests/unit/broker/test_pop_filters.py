"""What pops are given of a queue: by SQL92 conditions, and not what another of the group holds a lease of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import LeaseAnswerBody, LeaseRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.runtime import Runtime
from penstock.testing import ManualClock
from tests.support.popping import (
    BROKER_NAME,
    GROUP,
    ack,
    batch_ack,
    fill,
    held,
    pop,
    popped,
    settled,
    take,
    turn,
)
from tests.support.running_broker import Bench, run, running

SQL = "SQL92"


async def prices(bench: Bench, *numbers: int, queue: int = 0) -> None:
    for number in numbers:
        assert (await bench.client.send("T", str(number).encode(), queue, price=str(number))).code == 0


def test_sql_conditions_choose_and_what_does_not_match_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await prices(bench, *range(10))
            found = await take(bench.client, expType=SQL, exp="price > 2 and price < 8", most=3)
            assert [one.body for one in found] == [b"3", b"4", b"5"]
            assert [one.handle.offset for one in found] == [3, 4, 5]
            rest = await take(bench.client, expType=SQL, exp="price > 2 and price < 8")
            assert [one.body for one in rest] == [b"6", b"7"]
            assert await take(bench.client, expType=SQL, exp="price is null") == []
            assert (await batch_ack(bench.client, found + rest)).code == 0
            await settled(bench)
            assert bench.broker.offsets.query(GROUP, "T", 0) == 10

    run(scenario)


def test_a_pop_that_waits_is_answered_by_what_matches_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await prices(bench, 1)
            waiting = asyncio.create_task(pop(bench.client, wait_ms=20_000, expType=SQL, exp="price > 5"))
            await held(bench, 1)
            await prices(bench, 2, 9, queue=1)
            assert [one.body for one in popped(await waiting)] == [b"9"]

    run(scenario)


def test_retries_come_whatever_the_condition_says(tmp_path: Path) -> None:
    """They matched when they were popped first."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await prices(bench, 7)
            [first] = await take(bench.client, expType=SQL, exp="price = 7", invisible_ms=5_000)
            clock.advance(5_000)
            turn(bench)
            [again] = await take(bench.client, expType=SQL, exp="price = 8")
            assert (again.body, again.tries) == (first.body, 1)

    run(scenario)


@pytest.mark.abuse("A14")
def test_a_condition_that_takes_long_is_answered_in_parts(tmp_path: Path) -> None:
    """Nobody waits for a filter of another: what it had no time for, it is asked for again, and nothing is left
    out."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock), filter_time_max_ms=1) as bench:
            await prices(bench, *range(6))
            assert bench.broker.pop is not None
            reader = bench.broker.store.get

            def slow(*arguments: object, **more: object) -> object:
                clock.advance(1)  # each look at a queue takes all the time there is
                return reader(*arguments, **more)  # type: ignore[arg-type]

            bench.broker.store.get = slow  # type: ignore[method-assign, assignment]
            wanted = {"expType": SQL, "exp": "price = 5", "queue": 0, "wait_ms": 20_000}
            answers = 0
            while not (found := await take(bench.client, **wanted)):
                answers += 1
                assert answers <= 6
            assert [one.body for one in found] == [b"5"]
            assert answers >= 1

    run(scenario)


def test_a_condition_that_cannot_be_understood_takes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await prices(bench, 1)
            for kind, text in ((SQL, "price >"), (SQL, "x" * 20_000), ("XPATH", "/a")):
                answer = await pop(bench.client, expType=kind, exp=text)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, (kind, text)
            assert len(await take(bench.client)) == 1

    run(scenario)


# -- leases ------------------------------------------------------------------------------------------------------


async def lease(bench: Bench, code: RequestCode, *queues: int, client_id: str = "c-1") -> list[int]:
    """The queues that were granted."""
    wanted = tuple(MessageQueue("T", BROKER_NAME, queue) for queue in queues)
    answer = await bench.client.call(code, body=LeaseRequestBody(client_id, GROUP, wanted).encode())
    assert answer.code == 0, answer.remark
    if code == RequestCode.RELEASE_PARTITION:
        return []
    return [queue.queue_id for queue in LeaseAnswerBody.decode(answer.body).granted]


@pytest.mark.seed("S4-32")
@pytest.mark.invariant("I10")
def test_what_is_leased_in_the_group_is_not_popped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as bench:
            await fill(bench.client, 2, queue=0)
            await fill(bench.client, 2, queue=1)
            waiting = asyncio.create_task(pop(bench.client, queue=2, wait_ms=20_000))
            await held(bench, 1)
            assert await lease(bench, RequestCode.CLAIM_PARTITION, 0, 2) == [0, 2]
            for queue in (0, -1):
                answer = await pop(bench.client, queue=queue)
                assert answer.code == ResponseCode.NO_PERMISSION
                assert "leased to c-1" in (answer.remark or "")
            # One that waited already is told when there would be something for it.
            await fill(bench.client, 1, queue=2)
            assert (await waiting).code == ResponseCode.NO_PERMISSION
            assert len(await take(bench.client, queue=1)) == 2
            assert len(await take(bench.client, group="others")) == 5
            await lease(bench, RequestCode.RELEASE_PARTITION, 0, 2)
            assert len(await take(bench.client)) == 3

    run(scenario)


@pytest.mark.invariant("I10")
def test_what_is_popped_is_leased_when_the_offset_says_how_far(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, runtime=Runtime(clock=clock)) as bench:
            await fill(bench.client, 2)
            clock.advance(600_000)  # what was leased before the start is over
            first, second = await take(bench.client)
            assert await lease(bench, RequestCode.CLAIM_PARTITION, 0, 1) == [1]
            assert (await ack(bench.client, first)).code == 0
            await settled(bench)
            assert await lease(bench, RequestCode.CLAIM_PARTITION, 0) == [0]
            assert bench.broker.offsets.query(GROUP, "T", 0) == 2
            # What is in hand is still waited for, and comes again as a retry, not from the queue.
            assert (await ack(bench.client, second)).code == 0

    run(scenario)
