"""Limits of staged publication, each over a socket: over it nothing is published, and what is there stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.protocol.codes import ResponseCode
from tests.abuse.limits import limit
from tests.support.running_broker import Bench, run, running
from tests.support.staged import item, publish, shown, staged, status


@limit("broker.publish_bytes_max", "broker.publish_handles_max")
@pytest.mark.abuse("A14")
def test_sizes_of_one_publication(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, publish_bytes_max=3_000, publish_handles_max=3) as bench:
            small = [await staged(bench.client, [item(n)]) for n in range(4)]
            large = [await staged(bench.client, [item(n, size=1_500)]) for n in range(2)]
            for handles, name in ((small, "publish_handles_max"), (large, "publish_bytes_max")):
                answer = await publish(bench.client, "q", 0, handles)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert name in (answer.remark or "")
            assert shown(bench) == []
            # The sizes are the client's word; what it says too low leads to no record.
            position, size, rest = large[0].split(".", 2)
            lie = f"{position}.{int(size) - 1_000}.{rest}"
            assert (
                await publish(bench.client, "q", 0, [lie, small[0]])
            ).code == ResponseCode.INVALID_PARAMETER
            assert (await publish(bench.client, "q", 0, small[:3])).code == 0

    run(scenario)


@limit("broker.publications_waiting_max")
@pytest.mark.abuse("A14")
def test_publications_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, publications_waiting_max=2) as bench:
            handle = await staged(bench.client, [item(n) for n in range(20)])
            answers = await asyncio.gather(
                *(publish(bench.connect(), f"q{number}", 0, [handle]) for number in range(6))
            )
            codes = sorted(answer.code for answer in answers)
            assert codes[:2] == [0, 0]
            refused = [answer for answer in answers if answer.code]
            assert refused
            assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
            assert all("penstockRetryAfterMs" in answer.fields for answer in refused)
            assert len(shown(bench)) == 20 * codes.count(0)
            assert (await publish(bench.client, "q9", 0, [handle])).code == 0

    run(scenario)


@limit("broker.publication_queries_max")
@pytest.mark.abuse("A14")
def test_queries_that_are_remembered(tmp_path: Path) -> None:
    async def known(bench: Bench) -> list[int]:
        return [n for n in range(5) if "batchId" in await status(bench.client, f"q{n}")]

    async def scenario() -> None:
        options = {"publication_queries_max": 3}
        async with running(tmp_path, **options) as bench:
            handle = await staged(bench.client, [item(1)])
            for number in (0, 1, 2, 0, 3):
                batch = int(await known(bench) == [0, 1, 2])
                assert (await publish(bench.client, f"q{number}", batch, [handle])).code == 0
            assert await known(bench) == [0, 2, 3], "the one whose last publication is oldest goes"
        async with running(tmp_path, **options) as bench:
            assert await known(bench) == [0, 2, 3]
            assert (await publish(bench.client, "q4", 0, [handle])).code == 0
            assert await known(bench) == [0, 3, 4]

    run(scenario)
