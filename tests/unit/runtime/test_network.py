"""Real sockets on loopback, through the door."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.runtime import SystemNetwork

LIMIT_S = 10


class Echo(asyncio.Protocol):
    """Sends back what it gets; remembers that its connection ended."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


class Collector(asyncio.Protocol):
    """Waits for a number of bytes."""

    def __init__(self, wanted: int) -> None:
        self.received = bytearray()
        self.wanted = wanted
        self.complete = asyncio.Event()
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) >= self.wanted:
            self.complete.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(limited())


def test_echo_on_a_port_that_the_system_chose() -> None:
    async def scenario() -> None:
        network, server_ended = SystemNetwork(), asyncio.Event()
        listener = await network.listen(lambda: Echo(server_ended), "127.0.0.1", 0)
        [(host, port)] = listener.addresses
        assert host == "127.0.0.1"
        assert port > 0

        message = bytes(range(256)) * 1024
        client = Collector(len(message))
        transport = await network.connect(lambda: client, host, port)
        transport.write(message)
        await client.complete.wait()
        assert bytes(client.received) == message

        transport.close()
        await client.ended.wait()
        await server_ended.wait()
        await listener.close()

    run(scenario)


def test_one_protocol_object_for_each_connection() -> None:
    async def scenario() -> None:
        network, protocols = SystemNetwork(), []

        def factory() -> Echo:
            protocols.append(Echo(asyncio.Event()))
            return protocols[-1]

        listener = await network.listen(factory, "127.0.0.1", 0)
        for expected in (1, 2, 3):
            client = Collector(1)
            transport = await network.connect(lambda client=client: client, *listener.addresses[0])
            transport.write(b"x")
            await client.complete.wait()
            assert len(protocols) == expected
            transport.close()
            await protocols[-1].ended.wait()
        await listener.close()

    run(scenario)


def test_a_closed_listener_refuses_and_still_knows_where_it_was() -> None:
    async def scenario() -> None:
        network = SystemNetwork()
        listener = await network.listen(lambda: Echo(asyncio.Event()), "127.0.0.1", 0)
        addresses = listener.addresses
        await listener.close()
        assert listener.addresses == addresses
        with pytest.raises(OSError):
            await network.connect(lambda: Collector(1), *addresses[0])

    run(scenario)


def test_a_port_in_use_is_an_os_error() -> None:
    async def scenario() -> None:
        network = SystemNetwork()
        listener = await network.listen(lambda: Echo(asyncio.Event()), "127.0.0.1", 0)
        try:
            with pytest.raises(OSError):
                await network.listen(lambda: Echo(asyncio.Event()), *listener.addresses[0])
        finally:
            await listener.close()

    run(scenario)
