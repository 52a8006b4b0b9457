"""Real sockets on loopback, through the door."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from penstock.runtime import SystemNetwork
from penstock.runtime.network import dial

LIMIT_S = 90


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


@pytest.mark.abuse("A12")
@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "fd00:ec2::254%1",
        "metadata.google.internal.",
        "METADATA",
    ],
)
def test_metadata_services_are_not_dialled(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda sock, address: dialled.append(address))

    async def test() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "sock_connect", lambda sock, address: dialled.append(address))
        with pytest.raises(PermissionError, match="metadata service"):
            await SystemNetwork().connect(asyncio.Protocol, host, 80)

    asyncio.run(test())
    with pytest.raises(PermissionError, match="metadata service"):
        dial(host, 80, connect_s=1, silent_s=1)
    assert dialled == []


@pytest.mark.abuse("A12")
def test_a_name_that_resolves_to_a_metadata_service_is_not_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only one of its addresses is one; and what was looked at is what is dialled."""
    asked: list[object] = []

    def resolve(host: object, *rest: object, **more: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("127.0.0.1", "169.254.169.254")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def test() -> None:
        with pytest.raises(PermissionError, match="metadata service"):
            await SystemNetwork().connect(asyncio.Protocol, "broker.example", 80)

    asyncio.run(test())
    with pytest.raises(PermissionError, match="metadata service"):
        dial("broker.example", 80, connect_s=1, silent_s=1)
    assert asked == ["broker.example", "broker.example"]
