"""A query keeps its home: while the broker that publishes for it is away, nothing is published elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.client.staging import AsyncStaging
from penstock.errors import ConnectError
from penstock.protocol.codes import RequestCode
from tests.support.running_broker import run
from tests.support.staging_pair import TOPIC, A, B, batch, items, pair
from tests.unit.client.test_staging import Answers
from tests.waiting import turns


async def query_of(staging: AsyncStaging, broker: str) -> str:
    for number in range(100):
        if (await staging.home(f"q{number}", "orders")).broker == broker:
            return f"q{number}"
    raise AssertionError(f"no query has its home at {broker}")


@pytest.mark.parametrize("has_topic", [True, False], ids=["topic at both", "topic at its home alone"])
def test_a_home_that_left_the_route_is_waited_for(tmp_path: Path, has_topic: bool) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as brokers:
            async with brokers.staging() as staging:
                query = await query_of(staging, B)
                if has_topic:
                    await batch(staging, "another", 0, A)
                home, already = await batch(staging, query, 7)
                assert (home.broker, home.untold, already) == (B, (A,), False)
            others = brokers.rows(A)
            await brokers.stop(B)
            # Its driver died before Spark noted the batch, which therefore runs again.
            async with brokers.staging() as staging:
                with pytest.raises(ConnectError, match=r"broker-b.*run it again.*option `broker`"):
                    await batch(staging, query, 7)
                assert brokers.rows(A) == others
                assert (await staging.status(A, query)).batch_id is None
            # Also after a restart of the broker that was told; and with time enough the query just goes on.
            await brokers.stop(A)
            await brokers.start(A)
            async with brokers.staging(60_000) as staging:
                later = asyncio.ensure_future(batch(staging, query, 7))
                await turns()
                assert not later.done()
                await brokers.start(B)
                home, already = await later
                assert (home.broker, home.untold, already) == (B, (), True)
                assert (brokers.rows(A), brokers.rows(B)) == (others, 2)
                assert not (await batch(staging, query, 8))[1]
                assert (brokers.rows(A), brokers.rows(B)) == (others, 4)

    run(scenario)


def test_a_home_can_be_given_up_and_is_then_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as brokers:
            async with brokers.staging() as staging:
                query = await query_of(staging, B)
                await batch(staging, query, 0)
            await brokers.stop(B)
            async with brokers.staging() as staging:
                assert (await batch(staging, query, 1, A))[0].broker == A
                assert (await batch(staging, query, 2))[0].broker == A
            await brokers.start(B)
            async with brokers.staging() as staging:
                home, _ = await batch(staging, query, 3)
                assert (home.broker, home.untold) == (A, (B,))
            await brokers.stop(A)
            async with brokers.staging() as staging:
                with pytest.raises(ConnectError, match="publishes at broker 'broker-a'"):
                    await batch(staging, query, 3)

    run(scenario)


def test_queries_from_before_tell_with_their_next_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as brokers:
            async with brokers.staging() as staging:
                await batch(staging, "another", 0, A)
                handle = await staging.stage(B, TOPIC, items(1, 2), 2)
                await staging.publish(B, "old", 4, [handle])
                assert (await batch(staging, "old", 5))[0].untold == (A,)
                assert (await batch(staging, "old", 6))[0].untold == ()
            await brokers.stop(B)
            async with brokers.staging() as staging:
                with pytest.raises(ConnectError, match="publishes at broker 'broker-b'"):
                    await batch(staging, "old", 6)

    run(scenario)


def test_nothing_is_published_before_others_know(tmp_path: Path) -> None:
    """The broker that was to be told is silent: it might be the only one that is left for the next run."""

    async def scenario() -> None:
        async with pair(tmp_path) as brokers, brokers.staging() as staging:
            query = await query_of(staging, B)
            refuse = [lambda command: command.answer(2, "not now")] * 100
            Answers(brokers.up[A], RequestCode.TELL_HOME, *refuse)
            with pytest.raises(Exception, match="not now"):
                await batch(staging, query, 0)
            assert brokers.rows(B) == 0
            # One that cannot stage at all can be no home, so it need not know.
            Answers(brokers.up[A], RequestCode.TELL_HOME, lambda command: command.answer(3, "what?"))
            assert not (await batch(staging, query, 0))[1]

    run(scenario)


def test_one_broker_is_asked_once_and_told_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as brokers:
            await brokers.stop(A)
            async with brokers.staging() as staging:
                asked = Answers(brokers.up[B], RequestCode.STAGED_STATUS)
                told = Answers(brokers.up[B], RequestCode.TELL_HOME)
                for number in range(3):
                    assert (await batch(staging, "q", number))[0].untold == ()
                assert (asked.asked, told.asked) == (3, 0)

    run(scenario)
