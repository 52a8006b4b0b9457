"""A connection that only pulls: large answers land in the buffer that is handed on.

    prefix (8 bytes) -> header -> body       each part is received into memory of its own size, once

`remoting.Connection` is made for many small frames and joins what it receives; for a scan that would be three
copies of everything. Here the socket writes into the body's own buffer and the header alone is decoded.

Bodies lie in buffers that `Buffers` keeps for the next answer, once the reader gives them back: memory that was just
used is still near to the processor.

Rules: the same limits on frames as everywhere (A1), before memory is asked for. Answers may come in any order. A
peer that says nothing at all for `timeout_ms` while an answer is due is given up; a slow answer that keeps coming is
not. Belongs to the event loop it was made in. Never answers requests: brokers have none for who never registered.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from penstock.errors import CallTimeoutError, ConnectError, ConnectionLostError, FrameError
from penstock.protocol.command import (
    PREFIX_SIZE,
    Command,
    FrameLimits,
    decode_frame,
    encode_frame,
    frame_size,
)
from penstock.remoting.client import split_address
from penstock.remoting.hooks import RpcHook, prepare
from penstock.runtime import Runtime

# One message may be as large as its broker allows, whatever was asked for.
LIMITS = FrameLimits(128 << 20, 256 << 10, 256)
CONNECT_TIMEOUT_MS = 3_000
# Buffers that wait for the next answer, and how large they are at least.
BUFFERS_KEPT = 4
BUFFER_MIN = 64 << 10


class Buffers:
    """Memory for bodies. Any thread may take and give back."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """At least so many bytes, of any content."""
        try:
            while len(kept := self._free.pop()) < size:
                pass  # too small by now: the next ones will be as large as this
        except IndexError:
            return bytearray(max(size, BUFFER_MIN))
        return kept

    def give_back(self, data: bytes | bytearray | memoryview) -> None:
        """The body of an answer that nobody will look at any more."""
        if isinstance(data, memoryview) and isinstance(data.obj, bytearray):
            buffer = data.obj
            try:
                data.release()
            except BufferError:
                return  # somebody does look at it
            if len(self._free) < BUFFERS_KEPT:
                self._free.append(buffer)


class PullConnection(asyncio.BufferedProtocol):
    """Made with `open`; `call` any number of times, also at once; `close`."""

    def __init__(self, address: str, buffers: Buffers, hook: RpcHook | None = None) -> None:
        self.address = address
        self._hook = hook
        self._buffers = buffers
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._heard = 0
        self._prefix = memoryview(bytearray(PREFIX_SIZE))
        self._head = b""
        self._command: Command | None = None
        self._expect(self._prefix)

    @classmethod
    async def open(
        cls,
        address: str,
        runtime: Runtime,
        buffers: Buffers,
        tls: ssl.SSLContext | None = None,
        hook: RpcHook | None = None,
    ) -> PullConnection:
        """Connect; ConnectError if nobody is there."""
        host, port = split_address(address)
        made = cls(address, buffers, hook)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await runtime.network.connect(lambda: made, host, port, tls)
        except TimeoutError as error:
            raise ConnectError(
                f"connecting to {address} took longer than {CONNECT_TIMEOUT_MS} ms",
                "is the address right, and is nothing in between dropping packets?",
            ) from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(
                f"cannot connect to {address}: {error.strerror or error}", "is the broker running there?"
            ) from error
        return made

    async def call(self, command: Command, timeout_ms: int) -> Command:
        """The answer, whatever its code; its body is a buffer that belongs to the caller."""
        if not self.is_open or self._transport is None:
            raise ConnectError(f"the connection to {self.address} is closed", "nothing was sent")
        self._opaque = self._opaque % 0x7FFFFFFF + 1
        command.opaque = self._opaque
        if self._hook is not None:
            prepare(self._hook, self.address, command)
        waiting: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = waiting
        self._transport.write(encode_frame(command))
        try:
            return await self._answer(waiting, timeout_ms)
        finally:
            self._waiting.pop(command.opaque, None)

    async def _answer(self, waiting: asyncio.Future[Command], timeout_ms: int) -> Command:
        while True:
            heard = self._heard
            done, _ = await asyncio.wait((waiting,), timeout=timeout_ms / 1000)
            if done:
                return waiting.result()
            if heard == self._heard:
                self.close()
                raise CallTimeoutError(
                    f"{self.address} did not answer in time",
                    "it may be overloaded or cut off; it is tried again",
                )

    def close(self) -> None:
        """Drop the connection; callers that wait are told."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # -- transport's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                reason = str(error) if error else "it was closed"
                future.set_exception(
                    ConnectionLostError(
                        f"the connection to {self.address} was lost: {reason}", "it is tried again"
                    )
                )
        self._command, self._target = None, memoryview(bytearray(1))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._at :]

    def buffer_updated(self, count: int) -> None:
        self._heard += count
        self._at += count
        try:
            while self._at == len(self._target):
                self._received()
        except FrameError:
            self.close()

    # -- frames ----------------------------------------------------------------------------------------------

    def _expect(self, target: memoryview) -> None:
        self._target = target
        self._at = 0

    def _received(self) -> None:
        """The part that was expected is there: go on to the next one."""
        part = self._target
        if self._command is not None:
            command, self._command = self._command, None
            command.body = part  # type: ignore[assignment]
            self._hand_over(command)
            self._expect(self._prefix)
        elif part is self._prefix:
            frame_size(part, 0, LIMITS)
            header_size = int.from_bytes(part[5:8], "big")
            if not header_size:
                raise FrameError("a frame without a header")
            self._head = bytes(part)
            self._expect(memoryview(bytearray(header_size)))
        else:
            body_size = int.from_bytes(self._head[:4], "big") - 4 - len(part)
            # Decoded as a frame of its own, with a length that leaves the body out.
            head = (4 + len(part)).to_bytes(4, "big") + self._head[4:] + bytes(part)
            command = decode_frame(head, 0, len(head), LIMITS)
            if body_size:
                self._command = command
                self._expect(memoryview(self._buffers.take(body_size))[:body_size])
            else:
                self._hand_over(command)
                self._expect(self._prefix)

    def _hand_over(self, command: Command) -> None:
        future = self._waiting.get(command.opaque) if command.is_response else None
        if future is not None and not future.done():
            future.set_result(command)
