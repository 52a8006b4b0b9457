"""The hand-over of messages from the program's threads to the event loop, and the limit of what may wait.

Rules: the loop is woken when the inbox was empty, and once more when it is full enough for a batch; in between,
leaving a message costs a lock and an append. What lies here for `linger_ms` is taken out, all of it at once.
The room for messages is limited in bytes, from being left here until being answered: who finds no room waits.

`put` and `wait_for_room` may be called from any thread; the rest belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from penstock.client.outgoing import Outgoing
from penstock.errors import ClientClosedError


class Inbox:
    """Messages between a program and the loop. `deliver` is called in the loop with those taken out."""

    def __init__(
        self,
        deliver: Callable[[list[Outgoing]], int],
        *,
        loop: asyncio.AbstractEventLoop,
        call_soon: Callable[[Callable[[], None]], object],
        linger_ms: int,
        messages_max: int,
        bytes_max: int,
        room_bytes: int,
    ) -> None:
        self._deliver = deliver
        self._loop = loop
        self._call_soon = call_soon
        self._linger_s = linger_ms / 1000
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._room_bytes = room_bytes
        # The lock by itself, because entering it through the condition costs a Python call.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._items: list[Outgoing] = []
        self._items_bytes = 0
        self._held_bytes = 0
        self._is_armed = False
        self._is_urgent = False
        self._is_closed = False
        self._blocked = 0
        self._room_futures: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        # How many batches the last lot filled: with many lanes, more messages make a batch for each.
        self._lanes = 1

    def put(self, item: Outgoing) -> bool:
        """Leave a message; False if there is no room for it."""
        size = item.size
        with self._lock:
            if self._is_closed or (self._held_bytes and self._held_bytes + size > self._room_bytes):
                return self._refuse()
            self._held_bytes += size
            self._items.append(item)
            self._items_bytes += size
            if not self._is_armed:
                self._is_armed = True
                wake = self._arm
            elif not self._is_urgent and (
                len(self._items) >= self._messages_max * self._lanes
                or self._items_bytes >= self._bytes_max * self._lanes
            ):
                self._is_urgent = True
                wake = self.drain
            else:
                return True
        self._call_soon(wake)
        return True

    def reserve(self, size: int) -> bool:
        """Take room for messages that do not go through the inbox."""
        with self._lock:
            # A message larger than the whole room is let in alone, rather than never.
            if self._is_closed or (self._held_bytes and self._held_bytes + size > self._room_bytes):
                return self._refuse()
            self._held_bytes += size
            return True

    def _refuse(self) -> bool:
        if self._is_closed:
            raise ClientClosedError("the producer is closed", "make a new one")
        return False

    def release(self, size: int) -> None:
        """Messages were answered: their room is free."""
        with self._room:
            self._held_bytes -= size
            if self._blocked:
                self._room.notify_all()
        if self._room_futures:
            waiting, self._room_futures = self._room_futures, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Block a thread until some room was freed, or the time is over."""
        with self._room:
            self._blocked += 1
            try:
                return self._room.wait(timeout_s)
            finally:
                self._blocked -= 1

    async def room_freed(self) -> None:
        """Wait until some room was freed."""
        future = self._loop.create_future()
        self._room_futures.append(future)
        await future

    def _arm(self) -> None:
        if self._linger_s == 0:
            self.drain()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger_s, self.drain)

    def drain(self) -> None:
        """Take out everything, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._lock:
            items, self._items = self._items, []
            self._items_bytes = 0
            self._is_armed = self._is_urgent = False
        if items:
            self._lanes = min(64, max(1, self._deliver(items)))

    def close(self) -> None:
        """Take nothing more; what is here can still be drained."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()
        waiting, self._room_futures = self._room_futures, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes
