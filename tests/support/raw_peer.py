"""A peer that writes whatever bytes it likes, and reads when it likes."""

from __future__ import annotations

import asyncio
import socket
import struct

from penstock.protocol.command import Command, decode_frame, encode_frame
from tests.waiting import DEADLINE_S


class RawPeer:
    """One connection to a server; `read` and `ask` take answers, nothing else does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str, *, window: int = 0) -> RawPeer:
        """`window` is how much the system takes for us while we do not read."""
        host, _, port = address.rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(*await asyncio.open_connection(sock=sock, limit=max(window, 1 << 10)))

    def send(self, *frames: Command | bytes) -> None:
        data = [encode_frame(one) if isinstance(one, Command) else one for one in frames]
        self._writer.write(b"".join(data))

    async def drain(self) -> None:
        await self._writer.drain()

    async def read(self) -> Command:
        head = await self._reader.readexactly(4)
        frame = head + await self._reader.readexactly(struct.unpack(">i", head)[0])
        return decode_frame(frame, 0, len(frame))

    async def ask(self, command: Command) -> Command:
        self.send(command)
        while (answer := await self.read()).opaque != command.opaque or not answer.is_response:
            pass
        return answer

    async def is_closed(self, seconds: float = DEADLINE_S) -> bool:
        """Whether the server closes the connection within this time, whatever it answers before."""
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(1 << 16):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    @property
    def port(self) -> int:
        """Our own; by it the server's end can be told from others."""
        return int(self._writer.get_extra_info("sockname")[1])

    async def abort(self) -> None:
        """Gone at once, whatever was on its way."""
        self._writer.transport.abort()
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
