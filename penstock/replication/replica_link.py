"""One connection from a replica: carries out what its sender wants, as far as the socket takes it.

What waits for a socket is bounded by `send_buffer_bytes`; the rest stays in the log. Owned by the server's loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from penstock.replication.sender import Sender
from penstock.replication.steps import (
    Acked,
    Close,
    Joined,
    Ready,
    Received,
    Send,
    SenderInstruction,
    Superseded,
    TablesAcked,
    Trouble,
)

if TYPE_CHECKING:
    from penstock.replication.leader import HaServer

_LOG = logging.getLogger("penstock.replication")


class ReplicaLink(asyncio.Protocol):
    """See the module's text."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self.transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_scheduled = False
        self.sender: Sender
        self.replica_id = -1
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.address = f"{peer[0]}:{peer[1]}"
        self.transport.set_write_buffer_limits(self._server.send_buffer_bytes)
        sender = self._server.opened(self)
        if sender is None:
            self.transport.abort()
            self.transport = None
        else:
            self.sender = sender

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            self.carry_out(self.sender.handle(Received(data), self._server.now_ms()))
            self.pump()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.schedule()

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is not None:
            self.transport = None
            self.sender.is_closed = True
            self._server.lost(self)

    def abort(self, reason: str) -> None:
        """End the connection now; what waits in its buffer is not sent."""
        if self.transport is not None:
            _LOG.info(
                "closing the connection from replica %s at %s: %s", self._shown, self.address, reason[:200]
            )
            transport, self.transport = self.transport, None
            self.sender.is_closed = True
            transport.abort()
            self._server.lost(self)

    @property
    def _shown(self) -> str:
        return str(self.replica_id) if self.replica_id >= 0 else "(unknown)"

    def schedule(self) -> None:
        """Send what there is once the caller is done."""
        if not self._is_scheduled and not self._is_paused and self.transport is not None:
            self._is_scheduled = True
            self._server.loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        self.pump()

    def pump(self) -> None:
        """Send as much as the connection takes; the rest follows when it has room again."""
        if self._is_paused or self.transport is None:
            return
        room = self._server.send_buffer_bytes - self.transport.get_write_buffer_size()
        if room > 0:
            now = self._server.now_ms()
            did_send = self.carry_out(self.sender.handle(Ready(room), now))
            if self._server.tracker is not None:
                self._server.tracker.sent(self.replica_id, now)
            if did_send and self.sender.has_more:
                self.schedule()

    def carry_out(self, steps: list[SenderInstruction]) -> bool:
        """Do what the sender wants; whether something was sent."""
        did_send = False
        parts: list[bytes | memoryview] = []
        server = self._server
        for step in steps:
            if isinstance(step, Send):
                parts.extend(step.parts)
                continue
            did_send |= self._write(parts)
            tracker = server.tracker
            if isinstance(step, Close):
                self.abort(step.reason)
                break
            if tracker is None or self.transport is None:
                break
            if isinstance(step, Acked):
                tracker.acked(self.replica_id, step.offset, server.now_ms())
            elif isinstance(step, TablesAcked):
                tracker.tables_acked(self.replica_id, step.sequence)
            elif isinstance(step, Joined):
                server.joined(self, step)
            elif isinstance(step, Superseded):
                server.superseded(step.epoch)
            elif isinstance(step, Trouble):
                _LOG.error("replica %s at %s: %s", self._shown, self.address, step.text)
        return self._write(parts) or did_send

    def _write(self, parts: list[bytes | memoryview]) -> bool:
        if not parts or self.transport is None:
            return False
        self.transport.writelines(parts)
        parts.clear()
        return True
