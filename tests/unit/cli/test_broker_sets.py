"""`penstock set` against real coordinators."""

import asyncio
import json

from click.testing import CliRunner

from penstock.cli.main import root
from penstock.testing.metadata import MemoryEnsemble
from tests.support.coordinator_wire import beating, brokers, coordinator, leading
from tests.waiting import until


async def run(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(
        CliRunner(env={"COLUMNS": "200"}).invoke, root, ["set", *arguments], standalone_mode=True
    )
    return result.exit_code, result.output


def test_sets_are_listed_described_and_given_another_master() -> None:
    async def go() -> None:
        ensemble = MemoryEnsemble(session_timeout_ms=60_000)
        # The lease is short because the one that is elected waits for its end. Nobody is taken for dead.
        async with coordinator(ensemble, master_lease_ms=1_000, broker_silent_ms=60_000) as one:
            await leading(one)
            async with (
                coordinator(ensemble) as two,
                brokers(1, 2) as (first, second),
            ):
                await until(lambda: two.leadership.leader == one.address)
                at_leader, at_other = ("--coordinator", one.address), ("--coordinator", two.address)
                code, text = await run("list", *at_leader)
                assert (code, "no broker sets" in text) == (0, True)
                for broker in (first, second):
                    await broker.join(one)
                async with beating(one, first, second):
                    await until(lambda: len(one.heartbeats.brokers) == 2)
                    await first.alter(one, 1, 2, epoch=1, set_epoch=1)
                    for where in (at_leader, at_other):
                        code, text = await run("list", *where)
                        assert code == 0, text
                        assert [line.split() for line in text.splitlines() if "broker-a" in line] == [
                            ["broker-a", "c", "1", "1", "1,", "2", "1,", "2"]
                        ]

                    async def described() -> str:
                        code, text = await run("describe", "broker-a", *at_other)
                        assert code == 0, text
                        assert "master 1 in epoch 1, " in text
                        return text if "master 1 in epoch 1, lease for" in text else ""

                    # On a busy machine a beat may come after the end of the lease, and renews it.
                    text = await until(described)
                    assert "replica, in sync" in text
                    code, text = await run("describe", "broker-a", "--json", *at_leader)
                    assert json.loads(text)["syncStateSet"] == [1, 2]
                    code, text = await run("describe", "nobody", *at_leader)
                    assert (code, "no broker set" in text) == (1, True)

                    code, text = await run("elect", "broker-a", *at_other)
                    assert (code, "lives" in text or "lease" in text) == (2, True), text
                    code, text = await run("elect", "broker-a", "--broker", "2", *at_other)
                    assert (code, text) == (0, "broker 2 is master in epoch 2\n")
                    code, text = await run("clean", "broker-a", "--broker", "1", "--yes", *at_leader)
                    assert (code, "is alive" in text) == (2, True), text
                    code, text = await run("clean", "broker-a", "--broker", "1", *at_leader)
                    assert (code, "--yes" in text) == (2, True), text
                    code, text = await run(
                        "clean", "broker-a", "--broker", "1", "--living", "--yes", *at_leader
                    )
                    assert (code, text) == (0, "removed: broker 1\n")
                code, text = await run("list", "--json", *at_leader)
                assert json.loads(text)["broker-a"]["syncStateSet"] == [2]

    asyncio.run(go())


def test_nobody_there_is_said() -> None:
    async def go() -> None:
        code, text = await run("list", "--coordinator", "127.0.0.1:1", "--timeout", "300")
        assert (code, "no coordinator leads" in text) == (2, True)
        code, text = await run("list", "--coordinator", ";")
        assert (code, "no coordinator was named" in text) == (2, True)

    asyncio.run(go())
