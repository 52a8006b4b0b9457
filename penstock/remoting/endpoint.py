"""What all connections of a server or a client share: the table, the limits, the clock and one timer.

The timer looks every 50 ms for callers whose time is over while there are any, and at what peers have not read; every
second for peers that are idle, slow or silent (A2, A15). `now_ms` is refreshed by it, so that no clock is read per
frame. Connections that a server closes for their behaviour are logged with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from penstock.remoting.connection import Connection, FastPath
from penstock.remoting.hooks import RpcHook
from penstock.remoting.memory import Keeper, Memory
from penstock.remoting.options import RemotingOptions
from penstock.remoting.processors import ProcessorTable, RequestGuard
from penstock.remoting.threads import Threads
from penstock.remoting.turns import Turns
from penstock.runtime import Runtime
from penstock.telemetry import Meters

_LOG = logging.getLogger("penstock.remoting")
OnConnection = Callable[[Connection], None]
TICK_MS = 50
SWEEP_TICKS = 20
PEERS_REMEMBERED = 1_000


class Endpoint:
    """Owned by the loop in which `start` was called."""

    def __init__(
        self,
        table: ProcessorTable,
        runtime: Runtime,
        options: RemotingOptions,
        on_open: OnConnection | None = None,
        on_close: OnConnection | None = None,
        fast_path: FastPath | None = None,
        *,
        accepts: bool,
        hook: RpcHook | None = None,
        guard: RequestGuard | None = None,
        beside: Endpoint | None = None,
    ) -> None:
        """`beside` is another one of the process, with which it shares time, threads and memory."""
        self.accepts = accepts
        self.hook = hook
        self.guard = guard
        self.table = table
        self.runtime = runtime
        self.options = options
        self.fast_path = fast_path
        self.turns: Turns = Turns(runtime.clock) if beside is None else beside.turns
        self.threads: Threads = Threads() if beside is None else beside.threads
        own = Memory(options, self._shed if accepts else None)
        self.memory: Memory = own if beside is None else beside.memory
        self.connections: set[Connection] = set()
        self.meters = Meters(
            ("opened", "closed", "refused_frames", "refused_connections", "timed_out", "shed")
        )
        self.now_ms = runtime.clock.monotonic_ms()
        self._on_open = on_open
        self._on_close = on_close
        self._per_ip: Counter[str] = Counter()
        # Those that have not sent a frame yet, the oldest first.
        self._silent: dict[Connection, None] = {}
        self._blamed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._deadlines = False
        self._empty: asyncio.Event | None = None
        self._is_stopping = False

    # -- connections -----------------------------------------------------------------------------------------

    def make(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        self.now_ms = self.runtime.clock.monotonic_ms()
        self.connections.add(connection)
        self._per_ip[connection.peer.ip] += 1
        self._silent[connection] = None
        self.meters.add("opened")
        if self._on_open is not None:
            self._on_open(connection)
        ip = connection.peer.ip
        if self._is_stopping:
            connection.abort("shutting down")
        elif self._per_ip[ip] > self.options.connections_per_ip_max:
            self._turn_away(next((one for one in self._silent if one.peer.ip == ip), connection))
        elif len(self.connections) > self.options.connections_max:
            self._turn_away(next(iter(self._silent)))

    def _turn_away(self, connection: Connection) -> None:
        """One of too many: silent connections must not keep clients out."""
        self._silent.pop(connection, None)
        self.meters.add("refused_connections")
        self._blame(connection, "too many connections")
        connection.abort("too many connections")

    def spoke(self, connection: Connection) -> None:
        """A connection sent its first frame."""
        self._silent.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._silent.pop(connection, None)
        self._per_ip[connection.peer.ip] -= 1
        if self._per_ip[connection.peer.ip] <= 0:
            del self._per_ip[connection.peer.ip]
        self.meters.add("closed")
        if self._empty is not None and not self.connections:
            self._empty.set()
        if self._on_close is not None:
            self._on_close(connection)

    def refused(self, connection: Connection, why: str) -> None:
        """A peer sent what is no frame."""
        self.meters.add("refused_frames")
        self._blame(connection, why)

    def kept(self, connection: Connection, size: int) -> None:
        """A connection keeps so many bytes of requests more, or fewer."""
        self.memory.kept(connection, size, self.now_ms)

    def give_up(self, connection: Connection, why: str) -> None:
        """Close a connection for its behaviour."""
        self.meters.add("timed_out")
        _LOG.warning("closing the connection from %s: %s", connection.peer, why)
        connection.abort(why)

    def _shed(self, keeper: Keeper, why: str) -> None:
        if isinstance(keeper, Connection):
            self.meters.add("shed")
            _LOG.warning("closing the connection from %s to save memory: %s", keeper.peer, why)
            keeper.abort(f"the server is short of memory: {why}")

    def _blame(self, connection: Connection, why: str) -> None:
        """Said once per peer: one that tries again and again must not fill the log."""
        if connection.peer.ip not in self._blamed:
            if len(self._blamed) >= PEERS_REMEMBERED:
                self._blamed.clear()
            self._blamed.add(connection.peer.ip)
            _LOG.warning("closing the connection from %s: %s", connection.peer, why[:200])

    # -- time ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._is_stopping = False
        self._schedule()

    def _schedule(self) -> None:
        delay = TICK_MS if self._deadlines or self.connections else TICK_MS * 4
        self._timer = asyncio.get_running_loop().call_later(delay / 1000, self._tick)

    def watch_deadlines(self) -> None:
        self._deadlines = True

    def _tick(self) -> None:
        self.now_ms = now = self.runtime.clock.monotonic_ms()
        self._ticks += 1
        if self._deadlines:
            self._deadlines = False
            for connection in list(self.connections):
                if connection.expire(now):
                    self._deadlines = True
        for keeper in list(self.memory.slow):
            self.memory.note(keeper, now)
        if self._ticks % SWEEP_TICKS == 0:
            for connection in list(self.connections):
                self._look_at(connection, now)
        self._schedule()

    def _look_at(self, connection: Connection, now: int) -> None:
        options = self.options
        # One that was closed stays until its answers have gone out: a peer that leaves them must not keep it.
        if connection.paused_since_ms is not None and now - connection.progress_ms > self.memory.timeout_ms:
            unread, silent_s = connection.unread_bytes, (now - connection.progress_ms) // 1000
            self.give_up(connection, f"it read none of {unread} bytes of answers for {silent_s} s")
        elif (
            connection.frame_since_ms is not None
            and now - connection.frame_since_ms > options.frame_timeout_ms
        ):
            begun = (
                f"{connection.partial_size} bytes of a frame came"
                if connection.partial_size
                else "no frame came"
            )
            self.give_up(connection, f"{begun} in {options.frame_timeout_ms} ms")
        elif now - connection.active_ms > options.idle_timeout_ms and not connection.is_waiting:
            self.meters.add("timed_out")
            connection.close("idle")

    async def stop(self, grace_ms: int = 1_000) -> None:
        """Close every connection once its answers have gone out, or at once after the grace time."""
        self._is_stopping = True
        if self.connections:
            self._empty = asyncio.Event()
            for connection in list(self.connections):
                connection.close("shutting down")
            try:
                async with asyncio.timeout(grace_ms / 1000):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort("shutting down")
                await asyncio.sleep(0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Transports are closed by callbacks of the loop; let them run, so that no socket outlives this call.
        await asyncio.sleep(0)
