"""The network: asyncio's transports, behind three calls that a simulation can replace; and `dial`, for threads.

Rule: a room that talks to others is given a `Network` and writes an `asyncio.Protocol`; it never opens a
socket itself. What an address may be is decided by the caller, before this door, with one exception: no name and no
spelling leads to a metadata service (`addresses`), since only here is known what a name resolves to. What was looked
at is what is dialled: a name is resolved once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from penstock.runtime.addresses import parse_ip, require_dialable

ProtocolFactory = Callable[[], asyncio.BaseProtocol]
# How connections over TLS are accepted, or what makes that when the first one comes; None if it cannot.
TlsSource = ssl.SSLContext | Callable[[], Awaitable[ssl.SSLContext | None]]
# Linux's, which Python names since 3.12.
_TCP_NOTSENT_LOWAT = 25


class Listener(Protocol):
    """A server that accepts connections until it is closed."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, with the port that the system chose if 0 was asked for."""

    def stop_accepting(self) -> None:
        """Take no more connections; those that are open stay."""

    async def close(self) -> None:
        """Stop accepting and wait until the listening sockets are gone."""


class Network(Protocol):
    """What the rest of Penstock may ask of the network."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        """Accept connections, one protocol object for each."""

    async def listen_both(self, factory: ProtocolFactory, host: str, port: int, tls: TlsSource) -> Listener:
        """The same for TLS and plain connections on one port, told apart by their first byte."""

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

    def stop_accepting(self) -> None:
        self._server.close()

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()


TLS_HANDSHAKE_BYTE = 0x16
FIRST_BYTE_TIMEOUT_S = 30
HANDSHAKE_TIMEOUT_S = 10
# Connections that have sent nothing yet, or are in their handshake: only here are these counted. Beyond it the oldest
# is closed, because an honest one is through in a moment.
SILENT_MAX = 1_000
ACCEPTS_PER_TURN = BACKLOG = 100


class _PeekingListener:
    """Looks at the first byte of each connection before deciding what it is; the byte stays in the socket. Only so
    many may be without a first byte, or in their handshake: nothing else counts them yet.

    `takes_plain`: whether what does not begin as TLS is a plain connection, or one whose handshake fails.
    """

    def __init__(
        self,
        factory: ProtocolFactory,
        socks: Sequence[socket.socket],
        tls: TlsSource,
        *,
        takes_plain: bool = True,
    ) -> None:
        self._factory = factory
        self._socks = socks
        self._tls = tls
        self._takes_plain = takes_plain
        self._loop = asyncio.get_running_loop()
        # Kept because closed sockets have no names.
        self.addresses = [(str(host), int(port)) for host, port, *_ in (sock.getsockname() for sock in socks)]
        # Those that may be cancelled, the oldest first; and those whose transport is being made.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._adopting: set[asyncio.Task[None]] = set()
        for sock in socks:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                peer, _ = sock.accept()
            except OSError:  # no more, gone again, or out of descriptors: tried again when the system says so
                return
            self._greet(peer)

    def _greet(self, peer: socket.socket) -> None:
        if len(self._tasks) >= SILENT_MAX:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
        peer.setblocking(False)
        task = self._loop.create_task(self._serve(peer))
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._adopting.discard(task)

    def _adopt(self) -> None:
        """The present task must not be cancelled any more: uvloop would drop the transport of a plain connection and
        never tell its protocol."""
        task = asyncio.current_task()
        if task in self._tasks:
            del self._tasks[task]
            self._adopting.add(task)

    async def _serve(self, peer: socket.socket) -> None:
        try:
            ready = asyncio.Event()
            self._loop.add_reader(peer.fileno(), ready.set)
            try:
                async with asyncio.timeout(FIRST_BYTE_TIMEOUT_S):
                    await ready.wait()
            finally:
                self._loop.remove_reader(peer.fileno())
            first = peer.recv(1, socket.MSG_PEEK)
            secure = not self._takes_plain or (bool(first) and first[0] == TLS_HANDSHAKE_BYTE)
            tls = await self._context() if secure else None
            if secure and tls is None:
                peer.close()
                return
            if tls is None:
                self._adopt()
            await self._loop.connect_accepted_socket(
                self._factory,
                peer,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if secure else None,
            )
        except (OSError, TimeoutError, asyncio.CancelledError):
            peer.close()

    async def _context(self) -> ssl.SSLContext | None:
        return self._tls if isinstance(self._tls, ssl.SSLContext) else await self._tls()

    def stop_accepting(self) -> None:
        for sock in self._socks:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())
                sock.close()

    async def close(self) -> None:
        self.stop_accepting()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks or self._adopting:
            await asyncio.gather(*self._tasks, *self._adopting, return_exceptions=True)


@contextmanager
def _plain_bind_errors() -> Iterator[None]:
    """Raise errors with the system's text only: Python adds the address to it, in words that differ by call."""
    try:
        yield
    except socket.gaierror:  # its number is not one of the system's
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno).lower()) from error


class SystemNetwork:
    """Real sockets."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> Listener:
        if tls is not None:
            return _PeekingListener(factory, await self._bind(host, port), tls, takes_plain=False)
        with _plain_bind_errors():
            server = await asyncio.get_running_loop().create_server(factory, host, port)
        return _SystemListener(server)

    async def listen_both(self, factory: ProtocolFactory, host: str, port: int, tls: TlsSource) -> Listener:
        return _PeekingListener(factory, await self._bind(host, port), tls)

    async def _bind(self, host: str, port: int) -> list[socket.socket]:
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        socks: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                with _plain_bind_errors():
                    sock = socket.create_server(address, family=family, backlog=BACKLOG)
                socks.append(sock)
                sock.setblocking(False)
        except OSError:
            for sock in socks:
                sock.close()
            raise
        return socks

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.BaseTransport:
        loop = asyncio.get_running_loop()
        require_dialable(host, host)
        found = [host]  # with its zone, if it has one
        if parse_ip(host.partition("%")[0]) is None:
            found = _resolved(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        for ip in found:
            require_dialable(host, ip)
        name, failure = host if tls is not None else None, OSError(f"{host} has no address")
        for ip in found:
            try:
                transport, _ = await loop.create_connection(factory, ip, port, ssl=tls, server_hostname=name)
            except OSError as error:
                failure = error
            else:
                return transport
        raise failure


def _resolved(found: Sequence[tuple[Any, ...]]) -> list[str]:
    """The addresses in the answer of a resolver, each once."""
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def limit_unsent(transport: asyncio.BaseTransport, size: int) -> None:
    """Have the system keep no more than so many bytes that the peer has not made room for, where it can.

    What is on its way does not count, so a long fast line is as fast as before. Without this a peer that does not
    read costs megabytes of the system's memory.
    """
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return
    try:
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            same.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, size)
    except OSError:
        pass  # not a TCP socket, or gone already


class Wire:
    """A connection for a thread that waits for it; made by `dial`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # With TLS there is no telling how many bytes of the other side's make up those that are wanted.
        self._flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL

    def send(self, data: bytes) -> None:
        """All of it; OSError if that cannot be."""
        self._sock.sendall(data)

    def receive(self, target: memoryview) -> int:
        """Fill this, or part of it; how much, 0 when the peer has ended it. TimeoutError when nothing came."""
        try:
            return self._sock.recv_into(target, 0, self._flags)
        except BlockingIOError as error:
            raise TimeoutError("nothing was heard") from error

    def is_alive(self) -> bool:
        """Whether nothing says that the peer has ended it. Of TLS nothing can be said without reading."""
        if not self._flags:
            return True
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """End it; a thread that waits is told."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already
        self._sock.close()


def _connected(found: Sequence[str], port: int, connect_s: float) -> socket.socket:
    """A connection to the first of these addresses that accepts one."""
    failure = OSError("the name has no address")
    for ip in found:
        try:
            return socket.create_connection((ip, port), connect_s)
        except OSError as error:
            failure = error
    raise failure


def dial(
    host: str, port: int, tls: ssl.SSLContext | None = None, *, connect_s: float, silent_s: float
) -> Wire:
    """Connect and wait for it: TimeoutError when nobody answers within `connect_s`, OSError when nobody is there. A
    receive that hears nothing for `silent_s` gives up."""
    require_dialable(host, host)
    found = [host]
    if parse_ip(host.partition("%")[0]) is None:
        found = _resolved(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    for ip in found:
        require_dialable(host, ip)
    sock = _connected(found, port, connect_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=host)
            sock.settimeout(silent_s)
            return Wire(sock)
        # The system's own limit: with Python's, a socket does not wait for as many bytes as were asked for.
        sock.settimeout(None)
        limit = struct.pack("ll", int(silent_s), int(silent_s % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        return Wire(sock)
    except BaseException:
        sock.close()
        raise
