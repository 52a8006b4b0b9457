"""`penstock explain group` against a real coordinator."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from tests.support.balanced import cluster


def test_who_owns_what_and_why() -> None:
    async def scenario() -> None:
        async with cluster(topics={"T": 3}) as found, found.consumer("one") as consumer:
            await consumer.subscribe("T")
            await consumer.wait_assigned()

            async def run(*arguments: str) -> tuple[int, str]:
                result = await asyncio.to_thread(
                    CliRunner(env={"COLUMNS": "200"}).invoke, root, ["explain", "group", *arguments]
                )
                return result.exit_code, result.output

            where = ("--coordinator", found.leader.address)
            code, text = await run("g", *where)
            assert code == 0, text
            assert "settled" in text
            assert consumer.client_id in text
            assert "was free and went to" in text
            code, text = await run("g", *where, "--json")
            said = json.loads(text)
            assert said["round"] >= 1
            owners = {item["owner"] for item in said["queues"] if item["topic"] == "T"}
            assert owners == {consumer.client_id}
            assert (said["mode"], said["binding"]) == ("clustering", "even")
            assert said["subscriptions"] == ["%RETRY%g-clustering", "T-clustering"]
            code, text = await run("nobody", *where)
            assert (code, "no consumer of group" in text) == (2, True)
            code, text = await run("g", "--coordinator", "127.0.0.1:1", "--timeout", "200")
            assert (code, "no coordinator leads" in text) == (2, True)
            code, text = await run("g", "--coordinator", ";")
            assert (code, "no coordinator was named" in text) == (2, True)

    asyncio.run(scenario())


@pytest.mark.seed("S4-28")
@pytest.mark.seed("S4-55")
def test_who_reads_a_topic_in_which_mode() -> None:
    async def scenario() -> None:
        async with (
            cluster(topics={"T": 3}) as found,
            found.consumer("one", "", subscription_mode="point_to_point", binding="ring") as one,
            found.consumer("two", "alone", subscription_mode="publish_subscribe") as two,
        ):

            async def run(*arguments: str) -> tuple[int, str]:
                result = await asyncio.to_thread(
                    CliRunner(env={"COLUMNS": "200"}).invoke,
                    root,
                    ["explain", *arguments, "--coordinator", found.leader.address],
                )
                return result.exit_code, result.output

            code, text = await run("topic", "T")
            assert (code, "no group that this coordinator balances reads it" in text) == (0, True)
            assert "names no group is in T-point_to_point" in text
            for consumer in (one, two):
                await consumer.subscribe("T")
                await consumer.wait_assigned()
            code, text = await run("topic", "T")
            assert code == 0, text
            rows = [line.split() for line in text.splitlines() if line.startswith("T-")]
            assert rows == [
                ["T-point_to_point", "T-point_to_point", "ring", "1", "3"],
                ["T-publish_subscribe", "alone", "even", "1", "3"],
            ]
            code, text = await run("topic", "T", "--json")
            said = json.loads(text)
            assert [(item["name"], item["option"]) for item in said["subscriptions"]] == [
                ("T-point_to_point", 1),
                ("T-publish_subscribe", 2),
            ]
            code, text = await run("group", "T-point_to_point")
            assert "point_to_point, binding ring: " in text
            assert "T-point_to_point" in text
            assert "falls to it on the ring" in text
            code, text = await run("topic", "x" * 300)
            assert (code, "topic is" in text) == (2, True)

    asyncio.run(scenario())
