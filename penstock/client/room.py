"""The room for messages of a producer that have no answer yet, limited in bytes and in messages.

Rules: a message takes its room before it is left to the client, and gives it back when it is answered or has
failed. Callers who find no room wait in the order of their calls, and no later call overtakes them. A message
that is larger than the whole room enters alone. A caller who gives up, is cancelled or runs out of time leaves
no room taken. After `close` nobody waits: every waiting call ends with ClientClosedError.

`reserve` and `block` may be called from any thread, `wait`, `release` and `close` from the event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import OrderedDict
from collections.abc import Callable

from penstock.client.options import ProducerOptions
from penstock.errors import BufferFullError, ClientClosedError

_LIMITS = "raise buffer_messages or buffer_bytes"


class _Waiter:
    """One call that waits. `future` is asyncio's for a task, or one of `concurrent.futures` for a thread."""

    __slots__ = ("count", "future", "is_admitted", "size")

    def __init__(
        self, size: int, count: int, future: asyncio.Future[None] | concurrent.futures.Future[None]
    ) -> None:
        self.size = size
        self.count = count
        self.future = future
        # Set under the lock, with the room taken.
        self.is_admitted = False


class Room:
    """Belongs to one producer."""

    def __init__(
        self,
        options: ProducerOptions,
        loop: asyncio.AbstractEventLoop,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._bytes_max = options.buffer_bytes
        self._messages_max = options.buffer_messages
        self._timeout_ms = options.buffer_timeout_ms
        self._loop = loop
        self._call_soon = call_soon
        # Shared with the inbox, so that leaving a message takes one lock.
        self.lock = threading.Lock()
        self.bytes = 0
        self.messages = 0
        self.is_closed = False
        # Those who wait, in their order.
        self._waiters: OrderedDict[_Waiter, None] = OrderedDict()
        self._is_admitting = False

    # -- without waiting -------------------------------------------------------------------------------------

    def take(self, size: int, count: int = 1) -> bool:
        """Take room; False if there is none, or if others wait for it. The caller holds the lock."""
        if self.is_closed:
            raise closed_error()
        if self._waiters or not self._fits(size, count):
            return False
        self.bytes += size
        self.messages += count
        return True

    def _fits(self, size: int, count: int) -> bool:
        # What is larger than the whole room enters alone, rather than never.
        return not self.messages or (
            self.bytes + size <= self._bytes_max and self.messages + count <= self._messages_max
        )

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def release(self, size: int, count: int) -> None:
        """Messages were answered or have failed: their room is free."""
        with self.lock:
            self.bytes -= size
            self.messages -= count
            if not self._waiters or self._is_admitting:
                return
            self._is_admitting = True
        # Not at once: a read brings many answers, and waking a thread costs more than any of them.
        self._loop.call_soon(self._admit)

    def full_error(self) -> BufferFullError:
        """What a call raises that cannot wait."""
        return BufferFullError(
            f"there is no room: {self._state()}",
            f"wait for answers (AsyncProducer.enqueue_when_room and send do), or {_LIMITS}",
        )

    def _state(self) -> str:
        return (
            f"{self.messages} messages of {self.bytes} bytes wait for answers "
            f"(buffer_messages={self._messages_max}, buffer_bytes={self._bytes_max})"
        )

    # -- waiting ---------------------------------------------------------------------------------------------

    async def wait(self, size: int, count: int = 1) -> None:
        """Take room, when it is this call's turn. BufferFullError after `buffer_timeout_ms`."""
        future: asyncio.Future[None] = self._loop.create_future()
        waiter = self._join(_Waiter(size, count, future))
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await future
        except TimeoutError:
            self._give_up(waiter)
        except BaseException:
            self._withdraw(waiter)
            raise
        if self.is_closed:  # between the admission and this turn of the loop
            self._withdraw(waiter)
            raise closed_error()

    def block(self, size: int, count: int = 1) -> None:
        """The same for a thread other than the loop's."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        waiter = self._join(_Waiter(size, count, future))
        try:
            future.result(self._timeout_ms / 1000)
        except TimeoutError:
            self._give_up(waiter)
        except BaseException:
            self._withdraw(waiter)
            raise

    def _join(self, waiter: _Waiter) -> _Waiter:
        with self.lock:
            if self.take(waiter.size, waiter.count):
                waiter.is_admitted = True
            else:
                self._waiters[waiter] = None
        if waiter.is_admitted:
            waiter.future.set_result(None)
        return waiter

    def _admit(self) -> None:
        """Give the room that is free to those who wait, the first of them first."""
        admitted: list[_Waiter] = []
        with self.lock:
            self._is_admitting = False
            while self._waiters:
                waiter = next(iter(self._waiters))
                if not self._fits(waiter.size, waiter.count):
                    break
                del self._waiters[waiter]
                self.bytes += waiter.size
                self.messages += waiter.count
                waiter.is_admitted = True
                admitted.append(waiter)
        for waiter in admitted:
            if not waiter.future.done():  # a cancelled one gives its room back by itself
                waiter.future.set_result(None)

    def _give_up(self, waiter: _Waiter) -> None:
        """The time is over: raises, unless the room came in the same moment."""
        with self.lock:
            if waiter.is_admitted:
                return
            state = self._state()
        self._withdraw(waiter)
        raise BufferFullError(
            f"there was no room for {self._timeout_ms} ms: {state}",
            f"look whether the brokers answer; send more slowly, {_LIMITS}, or wait longer (buffer_timeout_ms)",
        ) from None

    def _withdraw(self, waiter: _Waiter) -> None:
        """Leave the others as if this call had not been made."""
        with self.lock:
            if waiter.is_admitted:
                self.bytes -= waiter.size
                self.messages -= waiter.count
            else:
                self._waiters.pop(waiter, None)
            if not self._waiters or self._is_admitting:
                return
            self._is_admitting = True
        self._call_soon(self._admit)

    def close(self) -> None:
        """Refuse everyone from now on, those who wait first."""
        with self.lock:
            self.is_closed = True
            waiting = list(self._waiters)
            self._waiters.clear()
        for waiter in waiting:
            if not waiter.future.done():
                waiter.future.set_exception(closed_error())


def closed_error() -> ClientClosedError:
    return ClientClosedError("the producer is closed", "make a new one")
