"""A TCP proxy that breaks connections on purpose, between clients and one server of this machine.

    reset(bytes)    let so many more bytes through, then reset both sides: frames are cut in the middle
    swallow()       half-open: both sides stay connected, nothing arrives any more, nobody is told
    deafen()        one-way: requests arrive, answers are swallowed
    refuse(True)    new connections are reset as soon as they are made

Whatever was done to a connection is for good: bytes that were swallowed are missing. New connections are sound.
Runs in a thread with an event loop of its own; the methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

_RESET = struct.pack("ii", 1, 0)


class _Side(asyncio.Protocol):
    """One end of a link: the client's or the server's."""

    def __init__(self, link: _Link, is_client: bool) -> None:
        self.link = link
        self.is_client = is_client
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        for data in self.early:
            self.transport.write(data)
        self.early.clear()

    def data_received(self, data: bytes) -> None:
        self.link.carry(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.link.lost(self)

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self.early.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """Reset, not closed: what waits on either side is lost."""
        if self.transport is not None and not self.transport.is_closing():
            sock: Any = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()


class _Link:
    """A connection through the proxy."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.proxy = proxy
        self.client = _Side(self, True)
        self.server = _Side(self, False)
        # Bytes until the reset; None for a sound link.
        self.left: int | None = None
        self.swallows_requests = self.swallows_answers = False

    def carry(self, side: _Side, data: bytes) -> None:
        if self.swallows_requests if side.is_client else self.swallows_answers:
            return
        other = self.server if side.is_client else self.client
        if self.left is None:
            other.write(data)
            return
        other.write(data[: self.left])
        self.left -= len(data)
        if self.left <= 0:
            self.proxy.cut += 1
            # A moment, so that the first part of the frame arrives; then nothing more.
            self.swallows_requests = self.swallows_answers = True
            self.proxy.loop.call_later(0.005, self.abort)

    def lost(self, side: _Side) -> None:
        other = self.server if side.is_client else self.client
        if self.swallows_requests or self.swallows_answers:
            if other.transport is None or other.transport.is_closing():
                self.proxy.links.discard(self)
            return  # half-open: nobody tells the other side
        if other.transport is not None:
            other.transport.close()
        self.proxy.links.discard(self)

    def abort(self) -> None:
        self.client.abort()
        self.server.abort()
        self.proxy.links.discard(self)


class CuttingProxy:
    """Give clients `address`; connections go to `target`, which may be set once the server is known. `listen`: where
    the proxy itself is; port 0 takes a free one."""

    def __init__(self, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._listen = listen
        self.loop = asyncio.new_event_loop()
        self.links: set[_Link] = set()
        self.target = ("127.0.0.1", 0)
        self.address = ""
        # Links that were reset in the middle of something.
        self.cut = 0
        self.opened = 0
        self._refuses = False
        self._thread = threading.Thread(target=self.loop.run_forever, name="cutting-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def forward_to(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.target = (host, int(port))

    # -- faults ----------------------------------------------------------------------------------------------

    def reset(self, after_bytes: int = 0) -> None:
        """Reset every link after so many more bytes of it, in either direction."""

        def act() -> None:
            for link in list(self.links):
                if after_bytes:
                    link.left = after_bytes
                else:
                    link.abort()

        self._do(act)

    def swallow(self) -> None:
        def act() -> None:
            for link in self.links:
                link.swallows_requests = link.swallows_answers = True

        self._do(act)

    def deafen(self) -> None:
        def act() -> None:
            for link in self.links:
                link.swallows_answers = True

        self._do(act)

    def refuse(self, refuses: bool) -> None:
        self._refuses = refuses

    def _do(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(60)
        return self

    async def _start(self) -> None:
        self._server = await self.loop.create_server(self._accept, *self._listen)
        self.address = f"{self._listen[0]}:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self) -> _Side:
        link = _Link(self)
        self.opened += 1
        self.links.add(link)
        task = self.loop.create_task(self._dial(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link.client

    async def _dial(self, link: _Link) -> None:
        await asyncio.sleep(0)  # the client's side is connected first
        if self._refuses:
            link.abort()
            return
        try:
            await self.loop.create_connection(lambda: link.server, *self.target)
        except OSError:
            link.abort()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in list(self.links):
            link.abort()
        await asyncio.sleep(0.05)
