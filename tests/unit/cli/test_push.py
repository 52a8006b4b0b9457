"""`penstock push` against a real broker: who is pushed to, and what was parked goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.broker.push_tasks import TaskState
from penstock.testing.embedded import BROKER, EmbeddedBroker
from tests.support.cluster_commands import Commands
from tests.support.pushing import Pushed
from tests.support.running_broker import Client
from tests.waiting import until


class Bench:
    """What `Pushed` needs of a bench."""

    def __init__(self, address: str) -> None:
        self._address = address

    def connect(self, handlers: object = None) -> Client:
        return Client(self._address, handlers)  # type: ignore[arg-type]


@pytest.mark.seed("S4-91", "S4-92")
def test_listing_and_resuming() -> None:
    async def scenario() -> None:
        options = replace(BROKER, push_answer_timeout_ms=200, push_ping_interval_ms=60_000)
        server = EmbeddedBroker(broker=options)
        await server.start()
        run = Commands(server.address)
        one = Pushed(Bench(server.broker_address))  # type: ignore[arg-type]
        try:
            assert "no client is pushed to" in (await asyncio.to_thread(run, "push", "list")).stderr
            for number in range(3):
                await one.client.send(body=b"%d" % number)
            one.answers = False
            assert (await one.begin()).code == 0
            assert server.broker is not None
            [task] = server.broker.push.state.tasks.values()
            await until(lambda: task.state is TaskState.PARKED)
            shown = await asyncio.to_thread(run.ok, "push", "list")
            for word in ("client@1", "alive", "parked", "0 in the timeout queue, 1 parked"):
                assert word in shown
            found = await asyncio.to_thread(run.json, "push", "list", "--group", "g")
            [client] = found["test-broker"]["clients"]
            [shown_task] = client["subscriptions"]
            assert (shown_task["state"], shown_task["unanswered"], shown_task["windowMessages"]) == (
                "parked",
                3,
                1_024,
            )
            # From now on answers come, however late: no delivery is repeated.
            state = server.broker.push.state
            state._rules = replace(state._rules, answer_timeout_ms=60_000)
            one.answers, one.bodies = True, []
            [resumed] = await asyncio.to_thread(run.json, "push", "resume", "--client", "client@1")
            assert (resumed["was"], resumed["goesOn"], resumed["offset"]) == ("parked", True, 0)
            await until(lambda: one.bodies == [b"0", b"1", b"2"])
            assert "sending from 3" in await asyncio.to_thread(run.ok, "push", "resume", "--group", "g")
            # Nobody to resume, and nobody named.
            missing = await asyncio.to_thread(run, "push", "resume", "--group", "none")
            assert (missing.exit_code, missing.stdout) == (1, "")
            assert "penstock push list" in missing.stderr
            assert "name a --client or a --group" in await asyncio.to_thread(run.refused, "push", "resume")
            # A dead client: said so, with the reason.
            await one.client.close()
            await until(lambda: task.state is TaskState.PARKED)
            shown = await asyncio.to_thread(run.ok, "push", "resume", "--group", "g")
            assert "the client is dead" in shown
        finally:
            await one.client.close()
            await server.stop()

    asyncio.run(scenario())
