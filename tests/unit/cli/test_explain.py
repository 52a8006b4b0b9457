"""`penstock explain group` against a real coordinator."""

import asyncio
import json

from click.testing import CliRunner

from penstock.cli.main import root
from tests.unit.coordinator.balanced import cluster


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
            code, text = await run("nobody", *where)
            assert (code, "no consumer of group" in text) == (2, True)
            code, text = await run("g", "--coordinator", "127.0.0.1:1", "--timeout", "200")
            assert (code, "no coordinator leads" in text) == (2, True)
            code, text = await run("g", "--coordinator", ";")
            assert (code, "no coordinator was named" in text) == (2, True)

    asyncio.run(scenario())
