"""The network: asyncio's transports, behind two calls that a simulation can replace.

Rule: a room that talks to others is given a `Network` and writes an `asyncio.Protocol`; it never opens a
socket itself. What an address may be is decided by the caller, before this door.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """A server that accepts connections until it is closed."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, with the port that the system chose if 0 was asked for."""

    async def close(self) -> None:
        """Stop accepting and wait until the listening sockets are gone."""


class Network(Protocol):
    """What the rest of Penstock may ask of the network."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        """Accept connections, one protocol object for each."""

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.BaseTransport:
        """Open one connection; raises OSError when it cannot."""


class _SystemListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        # Kept because the sockets, and their names with them, are gone once the server is closed.
        self._addresses = [tuple(sock.getsockname()[:2]) for sock in server.sockets]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(str(host), int(port)) for host, port in self._addresses]

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


class SystemNetwork:
    """Real sockets."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        return _SystemListener(await loop.create_server(factory, host, port, ssl=tls))

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.BaseTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(factory, host, port, ssl=tls)
        return transport
