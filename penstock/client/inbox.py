"""The hand-over of messages from the program's threads to the event loop.

Rules: the loop is woken when the inbox was empty, and once more when it is full enough for a batch; in between,
leaving a message costs a lock and an append. What lies here for `linger_ms` is taken out, all of it at once, and
at once where somebody finds no room: what lies here holds some. A message takes its room before it lies here.

`put`, `leave` and `block` may be called from any thread; the rest belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.client.outgoing import Outgoing
from penstock.client.room import Room, closed_error


class Inbox:
    """Messages between a program and the loop. `deliver` is called in the loop with those taken out."""

    def __init__(
        self,
        deliver: Callable[[list[Outgoing]], int],
        room: Room,
        *,
        loop: asyncio.AbstractEventLoop,
        call_soon: Callable[[Callable[[], None]], object],
        linger_ms: int,
        messages_max: int,
        bytes_max: int,
    ) -> None:
        self._deliver = deliver
        self.room = room
        self._loop = loop
        self._call_soon = call_soon
        self._linger_s = linger_ms / 1000
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._lock = room.lock
        self._items: list[Outgoing] = []
        self._items_bytes = 0
        self._is_armed = False
        self._is_urgent = False
        self._timer: asyncio.TimerHandle | None = None
        # How many batches the last lot filled: with many lanes, more messages make a batch for each.
        self._lanes = 1

    # -- in --------------------------------------------------------------------------------------------------

    def put(self, item: Outgoing) -> bool:
        """Leave a message; False if there is no room for it."""
        with self._lock:
            is_taken = self.room.take(item.size)
            wake = self._append(item) if is_taken else self._hurry()
        if wake is not None:
            self._call_soon(wake)
        return is_taken

    def leave(self, item: Outgoing) -> None:
        """Leave a message whose room is taken; if the inbox was closed meanwhile the room is given back."""
        with self._lock:
            is_closed = self.room.is_closed
            wake = None if is_closed else self._append(item)
            if self.room.has_waiters:
                wake = self._hurry() or wake
        if is_closed:
            self.room.release(item.size, 1)  # nobody waits for it any more
            raise closed_error()
        if wake is not None:
            self._call_soon(wake)

    @property
    def has_items(self) -> bool:
        """Whether messages lie here, which later ones must not overtake."""
        return bool(self._items)

    def _append(self, item: Outgoing) -> Callable[[], None] | None:
        self._items.append(item)
        self._items_bytes += item.size
        if not self._is_armed:
            self._is_armed = True
            return self._arm
        if not self._is_urgent and (
            len(self._items) >= self._messages_max * self._lanes
            or self._items_bytes >= self._bytes_max * self._lanes
        ):
            self._is_urgent = True
            return self.drain
        return None

    def _hurry(self) -> Callable[[], None] | None:
        """Somebody finds no room: what lies here must not linger."""
        if self._items and not self._is_urgent:
            self._is_urgent = True
            return self.drain
        return None

    # -- room without a message in the inbox -----------------------------------------------------------------

    def reserve(self, size: int, count: int = 1) -> bool:
        """Take room for messages that do not go through the inbox; False if there is none."""
        with self._lock:
            is_taken = self.room.take(size, count)
            wake = None if is_taken else self._hurry()
        if wake is not None:
            self._call_soon(wake)
        return is_taken

    # -- out -------------------------------------------------------------------------------------------------

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
        self.room.close()
