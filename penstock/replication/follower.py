"""The replica's side on sockets: connects to its master, and again, for as long as it is told to follow one.

`follow` names the master, and in a coordinated set the epoch; a newer epoch ends the connection of the older one
before anything else happens, and an older one is ignored. Owned by the loop in which `start` was called; the log's
appends and cuts happen in it too, because a replica has nothing better to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from penstock.errors import OptionError, PenstockError, StoreError
from penstock.replication.options import ReplicationOptions
from penstock.replication.port import EpochTable
from penstock.replication.receiver import ClassicReceiver, EpochReceiver, Receiver
from penstock.replication.steps import (
    ApplyTables,
    Close,
    Connected,
    Follow,
    Following,
    Received,
    ReceiverInstruction,
    Send,
    Stored,
    TablesDone,
    Tick,
)
from penstock.replication.store_log import StoreLog
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher

_LOG = logging.getLogger("penstock.replication")


class HaClient:
    """See the module's text. With `epochs` it is a replica of a coordinated set, without them a classic slave.

    `flusher` is the broker's group commit, if it has one; under synchronous flush the client makes one otherwise.
    """

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        runtime: Runtime,
        *,
        replica_id: int = 0,
        epochs: EpochTable | None = None,
        flusher: LoopFlusher | None = None,
        on_tables: Callable[[bytes], None] = lambda body: None,
        on_following: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        self._store = store
        self._log = StoreLog(store)
        self._options = options
        self._runtime = runtime
        self._replica_id = replica_id
        self._epochs = epochs
        self._flusher = flusher
        self._own_flusher: LoopFlusher | None = None
        self._on_tables = on_tables
        self._on_following = on_following
        self._address: tuple[str, int] | None = None
        self._changed = asyncio.Event()
        self.link: _MasterLink | None = None
        self._task: asyncio.Task[None] | None = None
        self._complaint = ""
        # The newest epoch this replica knows of; it takes nothing from the master of an older one.
        self.epoch = 0

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Refuse messages from now on, and take a master's bytes."""
        self._store.replica_mode(True)
        if self._log.is_sync and self._flusher is None:
            self._flusher = self._own_flusher = LoopFlusher(self._store)
            self._own_flusher.start()
        if self._epochs is not None and self._epochs.entries:
            self.epoch = max(self.epoch, self._epochs.entries[-1][0])
        self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-replica")
        _LOG.info("this node is a replica; its log ends at %d", self._log.max_offset)

    async def stop(self) -> None:
        """Let go of the master. The store stays in replica mode: whoever makes it a master ends that."""
        task, self._task = self._task, None
        if self.link is not None:
            self.link.abort("this replica stops")
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            _LOG.info("this node follows nobody any more; its log ends at %d", self._log.max_offset)
        if self._own_flusher is not None:
            self._own_flusher.stop()
            self._flusher = self._own_flusher = None
        await asyncio.sleep(0)  # transports are closed by callbacks of the loop

    def follow(self, address: str | None, epoch: int = 0) -> None:
        """Follow the master at `host:port`, None for nobody. An epoch older than the one known is ignored."""
        if epoch < self.epoch and self._epochs is not None:
            _LOG.info("ignoring a master of epoch %d, this replica knows of epoch %d", epoch, self.epoch)
            return
        target = _parse(address)
        is_new = target != self._address
        self._address = target
        self.epoch = max(self.epoch, epoch)
        if self.link is not None:
            if self._epochs is not None:
                self.link.carry_out(self.link.receiver.handle(Follow(epoch), self.now_ms()))
            if is_new and self.link is not None:
                self.link.abort("there is another master")
        if is_new or self.link is None:
            self._changed.set()

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    @property
    def is_following(self) -> bool:
        """Whether the log is being copied: connected, and past the handshake in a coordinated set."""
        return self.link is not None and self.link.receiver.is_following

    @property
    def behind_since_ms(self) -> int | None:
        """Monotonic time of the last word from the master, None where there is no connection."""
        return self.link.receiver.heard_ms if self.link is not None else None

    # -- connecting ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            wait_ms = self._options.wait_interval_ms
            if self._address is not None:
                try:
                    wait_ms = await self._connection(self._address)
                except (PenstockError, OSError, TimeoutError) as error:
                    self.complain(str(error) or type(error).__name__)
                    wait_ms = self._pause_ms
            if wait_ms > 0:
                # Not with `wait_for`: before Python 3.12 that takes no notice of being cancelled in the moment in
                # which what it waits for happens, and whoever stops this would wait for ever.
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._changed.wait()

    def complain(self, reason: str) -> None:
        """Said once for each reason, not at each attempt."""
        if self._address is not None and reason != self._complaint:
            self._complaint = reason
            _LOG.warning("not following %s:%d: %s", *self._address, reason[:300])

    @property
    def _pause_ms(self) -> int:
        return (
            self._options.reconnect_interval_ms if self._epochs is None else self._options.rejoin_interval_ms
        )

    async def _connection(self, address: tuple[str, int]) -> int:
        """Connect, copy until the connection is over; how long to wait before the next one."""
        if self._flusher is not None:
            # The first report is both what is asked for and what is acknowledged, so it has to be on disk.
            await self._flusher.flushed(self._log.max_offset)
        link = _MasterLink(self, self._receiver())
        try:
            async with asyncio.timeout(self._options.connect_timeout_ms / 1000):
                await self._runtime.network.connect(lambda: link, *address)
            if address != self._address:
                link.abort("there is another master")
            return await link.over()
        finally:
            link.abort("this replica stops")

    def _receiver(self) -> Receiver:
        if self._epochs is None:
            return ClassicReceiver(self._log, self._options, self.now_ms())
        return EpochReceiver(
            self._log, self._epochs, self._replica_id, self.epoch, self._options, self.now_ms()
        )

    # -- for the connection ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._runtime.clock.monotonic_ms()

    @property
    def wait_interval_ms(self) -> int:
        return self._options.wait_interval_ms

    def opened(self, link: _MasterLink) -> None:
        self.link = link

    def closed(self, link: _MasterLink) -> None:
        if self.link is link:
            self.link = None

    def pause_after(self, step: Close | None) -> int:
        return self._pause_ms if step is None or step.retry_ms is None else step.retry_ms

    def following(self, epoch: int) -> None:
        self._complaint = ""
        self.epoch = max(self.epoch, epoch)
        self._on_following(epoch)

    def apply_tables(self, body: bytes) -> None:
        self._on_tables(body)

    def flush(self, callback: Callable[[StoreError | None], None]) -> bool:
        """Have all that is written on disk, and call back; whether that is anybody's business here."""
        if self._flusher is None:
            return False
        self._flusher.when_flushed(self._log.max_offset, callback)
        return True


class _MasterLink(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, client: HaClient, receiver: Receiver) -> None:
        self._client = client
        self.receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_flushing = False

    async def over(self) -> int:
        """Wait until the connection is over; how long to wait before the next one."""
        return await self._over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._client.opened(self)
        self._schedule()
        self.carry_out(self.receiver.handle(Connected(), self._client.now_ms()))

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            self.carry_out(self.receiver.handle(Received(data), self._client.now_ms()))
            self._flush_if_needed()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(None, "the connection is lost" if error is None else str(error))

    def abort(self, reason: str) -> None:
        """End the connection now."""
        if self.transport is not None:
            self.transport.abort()
            self._end(None, reason)

    def _end(self, step: Close | None, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            _LOG.info("the connection to the master is over: %s", reason[:200])
            self.transport = None
            self.receiver.is_closed = True
            self._client.closed(self)
        if not self._over.done():
            self._over.set_result(self._client.pause_after(step))

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self._client.wait_interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._schedule()
        self.carry_out(self.receiver.handle(Tick(), self._client.now_ms()))

    def _flush_if_needed(self) -> None:
        if not self._is_flushing and self.transport is not None and self.receiver.awaits_flush:
            self._is_flushing = self._client.flush(self._flushed)

    def _flushed(self, error: StoreError | None) -> None:
        self._is_flushing = False
        if self.transport is None:
            return
        if error is not None:
            self.abort(str(error))
            return
        self.carry_out(self.receiver.handle(Stored(), self._client.now_ms()))
        self._flush_if_needed()

    def carry_out(self, steps: list[ReceiverInstruction]) -> None:
        for step in steps:
            transport = self.transport
            if transport is None:
                return
            if isinstance(step, Send):
                transport.writelines(step.parts)
            elif isinstance(step, ApplyTables):
                try:
                    self._client.apply_tables(step.body)
                except PenstockError as error:
                    # Not applied, so not acknowledged: nobody may count on it here.
                    self._client.complain(f"side tables cannot be applied: {error}")
                    self.abort(str(error))
                    return
                self.carry_out(self.receiver.handle(TablesDone(step.sequence), self._client.now_ms()))
            elif isinstance(step, Following):
                self._client.following(step.epoch)
            else:
                self._client.complain(step.reason)
                transport.close()
                self._end(step, step.reason)


def _parse(address: str | None) -> tuple[str, int] | None:
    if address is None:
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise OptionError(f"{address!r} is not an address", "write it as host:port")
    return host.strip("[]"), int(port)
