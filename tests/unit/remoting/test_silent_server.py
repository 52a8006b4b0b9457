"""A server of which nothing is heard any more: the connection to it is given up, the next call dials again."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import CallTimeoutError, ConnectionLostError
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer
from penstock.remoting.connection import SILENT_MS
from penstock.runtime import Runtime

ECHO, NEVER = 9001, 9002


async def bench(
    asked: ProcessorTable | None = None,
) -> tuple[RemotingServer, RemotingClient, list[Connection]]:
    opened: list[Connection] = []
    table = ProcessorTable()
    table.register(ECHO, lambda _, command: command.answer())
    table.register(NEVER, lambda _, command: None)
    server = RemotingServer("127.0.0.1", 0, table, runtime=Runtime.system(), on_open=opened.append)
    await server.start()
    return server, RemotingClient(asked, runtime=Runtime.system()), opened


@pytest.mark.fault("F3")
def test_a_call_that_ended_in_silence_ends_the_connection() -> None:
    async def scenario() -> None:
        server, client, opened = await bench()
        address = str(server.address)
        connection = await client.connection(address)
        # Patient callers on the same connection are told at once instead of after their own time.
        patient = asyncio.ensure_future(connection.call(Command(NEVER), 60_000))
        with pytest.raises(CallTimeoutError):
            await client.call(address, Command(NEVER), SILENT_MS + 100)
        with pytest.raises(ConnectionLostError, match="nothing was heard"):
            await patient
        assert not connection.is_open
        assert (await client.call(address, Command(ECHO))).code == 0
        assert len(opened) == 2
        await client.close()
        await server.stop()

    asyncio.run(scenario())


def test_a_call_that_is_not_answered_among_others_that_are_ends_alone() -> None:
    async def scenario() -> None:
        server, client, opened = await bench()
        address = str(server.address)
        waiting = asyncio.ensure_future(client.call(address, Command(NEVER), SILENT_MS + 200))
        while not waiting.done():
            assert (await client.call(address, Command(ECHO))).code == 0
            await asyncio.sleep(0.02)
        with pytest.raises(CallTimeoutError):
            await waiting
        assert len(opened) == 1
        await client.close()
        await server.stop()

    asyncio.run(scenario())


def test_impatience_is_no_proof() -> None:
    async def scenario() -> None:
        server, client, opened = await bench()
        address = str(server.address)
        with pytest.raises(CallTimeoutError):
            await client.call(address, Command(NEVER), 100)
        assert (await client.call(address, Command(ECHO))).code == 0
        assert len(opened) == 1
        await client.close()
        await server.stop()

    asyncio.run(scenario())


def test_a_server_keeps_clients_that_do_not_answer() -> None:
    """They may be busy, or old; heartbeats tell whether they live."""

    async def scenario() -> None:
        asked = ProcessorTable()
        asked.register(NEVER, lambda _, command: None)
        server, client, opened = await bench(asked)
        assert (await client.call(str(server.address), Command(ECHO))).code == 0
        with pytest.raises(CallTimeoutError):
            await opened[0].call(Command(NEVER), SILENT_MS + 100)
        assert opened[0].is_open
        await client.close()
        await server.stop()

    asyncio.run(scenario())
