"""Pulls that found nothing and wait: held by queue, woken by messages, by their deadline, or to make room.

A held pull is answered once, by whichever comes first:
    arrival     its queue got messages that may match; the pull is tried again and stays if none did
    deadline    it has waited as long as it asked to (looked at every 100 ms while any pull is held)
    check       every 5 s all are tried again, should an arrival ever be missed
    room        there are too many, or they take too much memory: the oldest are answered early (A14)
    close       its connection is gone: it is forgotten, there is nobody to answer

A pull is tried in a turn of its connection (`remoting/turns.py`), and not before that has room for an answer: a
message that wakes thousands delays no client, and a peer that does not read costs no more by holding pulls.

Owned by the event loop, except `on_arrival`, which the store calls from whichever thread made messages visible:
it only notes the queue and wakes the loop. Trying and answering is the pull processor's work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from penstock._hot.queues import QueueState
from penstock.broker.options import BrokerOptions
from penstock.remoting import Connection
from penstock.runtime import Clock

T = TypeVar("T")
K = TypeVar("K")
QueueKey = tuple[bytes, int]
SLOT_MS = 100
# Queues that the regular check looks at in one tick, so that a full table is no pause for others.
CHECKS_PER_TICK = 500
# Pulls that are given to their connections in one go, however many a message wakes.
GIVEN_AT_ONCE = 200
# What a held pull takes besides the texts of its request.
HELD_BYTES = 1024
_HELD = "long_polls"


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One pull that waits. `pull` is the processor's own; `slot` is when its time is over, 0 if it is; `size` is the
    memory that it is counted with."""

    connection: Connection
    key: QueueKey
    pull: T
    slot: int
    size: int
    # Whether it is tried in the next turn of its connection.
    is_due: bool = False


# Tries a held pull again and answers it if it can, or if it must (`is_final`); whether it was answered.
Retry = Callable[[HeldPull[T], bool], bool]


class LongPolling(Generic[T]):
    """See the module's text. `start` and `stop` belong to one event loop."""

    def __init__(self, options: BrokerOptions, clock: Clock, retry: Retry[T]) -> None:
        self.options = options
        self._clock = clock
        self._retry = retry
        # Oldest first, because insertion keeps its order.
        self._all: dict[HeldPull[T], None] = {}
        self._by_queue: dict[QueueKey, dict[HeldPull[T], None]] = {}
        self._slots: dict[int, dict[HeldPull[T], None]] = {}
        self._unchecked: deque[QueueKey] = deque()
        self._arrived: deque[QueueKey] = deque()
        # Queues whose pulls are to be tried, and the pulls of the one before.
        self._woken: dict[QueueKey, None] = {}
        self._due: deque[HeldPull[T]] = deque()
        self._is_waking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._check_ms = 0
        self.bytes = 0
        self.answered_early = 0

    def __len__(self) -> int:
        return len(self._all)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def stop(self) -> None:
        """Answer everybody and end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop = None
        for held in list(self._all):
            self._finish(held)

    # -- holding ---------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether pulls are held at all."""
        return self._loop is not None

    def held_by(self, connection: Connection) -> int:
        """How many pulls of a connection wait."""
        return len(connection.attributes.get(_HELD, ()))

    def held_for(self, topic: str, queue_id: int) -> int:
        """How many wait for a queue."""
        return len(self._by_queue.get((topic.encode(), queue_id), ()))

    def hold(
        self, connection: Connection, topic: str, queue_id: int, pull: T, wait_ms: int, size: int = 0
    ) -> HeldPull[T]:
        """Keep a pull for so long; `size` is how many bytes its request has. The caller looks at its queue once more
        afterwards: messages may have become visible in another thread meanwhile."""
        size += HELD_BYTES
        options = self.options
        while self._all and (
            len(self._all) >= options.long_polls_max or self.bytes + size > options.long_poll_bytes_max
        ):
            self.answered_early += 1
            self._finish(next(iter(self._all)))
        slot = (self._clock.monotonic_ms() + max(wait_ms, 0)) // SLOT_MS + 1
        held = HeldPull(connection, (topic.encode(), queue_id), pull, slot, size)
        self._all[held] = None
        self.bytes += size
        self._by_queue.setdefault(held.key, {})[held] = None
        self._slots.setdefault(slot, {})[held] = None
        connection.attributes.setdefault(_HELD, {})[held] = None
        if self._timer is None and self._loop is not None:
            self._check_ms = self._clock.monotonic_ms() + self.options.long_poll_check_interval_ms
            self._timer = self._loop.call_later(SLOT_MS / 1000, self._tick)
        return held

    def _forget(self, held: HeldPull[T]) -> bool:
        """Take a pull out; whether it was there."""
        if held not in self._all:
            return False
        del self._all[held]
        self.bytes -= held.size
        _take_out(self._by_queue, held.key, held)
        if held.slot:
            _take_out(self._slots, held.slot, held)
        held.connection.attributes.get(_HELD, {}).pop(held, None)
        return True

    def drop_connection(self, connection: Connection) -> None:
        """A connection is gone, and with it all it waited for."""
        for held in list(connection.attributes.get(_HELD, ())):
            self._forget(held)

    def drop_some(self, connection: Connection, is_gone: Callable[[T], bool]) -> None:
        """Forget those of a connection that nobody waits for any more."""
        for held in list(connection.attributes.get(_HELD, ())):
            if held in self._all and is_gone(held.pull):
                self._forget(held)

    # -- waking ----------------------------------------------------------------------------------------------

    def on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Messages of these queues became visible; any thread."""
        if not self._by_queue:
            return
        for queue in queues:
            self._note((queue.topic, queue.queue_id))

    def wake(self, topic: str, queue_id: int) -> None:
        """Try the pulls of a queue again: something else than a message changed."""
        self._note((topic.encode(), queue_id))

    def _note(self, key: QueueKey) -> None:
        if key not in self._by_queue:
            return
        self._arrived.append(key)
        if not self._is_waking and self._loop is not None:
            self._is_waking = True
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self._wake)
            else:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # First the mark, then the queues: whoever notes one after this asks for another round.
        self._is_waking = False
        while self._arrived:
            self._woken[self._arrived.popleft()] = None
        for _ in range(GIVEN_AT_ONCE):
            while not self._due and self._woken:
                key = next(iter(self._woken))
                del self._woken[key]
                self._due.extend(self._by_queue.get(key, ()))
            if not self._due:
                return
            self._give(self._due.popleft())
        if self._loop is not None and not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._wake)

    def _give(self, held: HeldPull[T]) -> None:
        """Have a pull tried in a turn of its connection."""
        if not held.is_due and held in self._all:
            held.is_due = True
            held.connection.submit(partial(self._try, held))

    def _try(self, held: HeldPull[T]) -> None:
        held.is_due = False
        if not held.slot:
            self._finish(held)
        elif held in self._all and self._retry(held, False):
            self._forget(held)

    def _finish(self, held: HeldPull[T]) -> None:
        """Answer now, with what there is."""
        if self._forget(held):
            self._retry(held, True)

    # -- time ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Runs while anything is held."""
        now_ms = self._clock.monotonic_ms()
        for slot in [slot for slot in self._slots if slot <= now_ms // SLOT_MS]:
            for held in self._slots.pop(slot):
                held.slot = 0
                self._due.append(held)
        if now_ms >= self._check_ms and not self._unchecked:
            self._check_ms = now_ms + self.options.long_poll_check_interval_ms
            self._unchecked.extend(self._by_queue)
        for _ in range(min(len(self._unchecked), CHECKS_PER_TICK)):
            self._woken[self._unchecked.popleft()] = None
        self._wake()
        self._timer = None
        if self._all and self._loop is not None:
            self._timer = self._loop.call_later(SLOT_MS / 1000, self._tick)


def _take_out(table: dict[K, dict[HeldPull[T], None]], key: K, held: HeldPull[T]) -> None:
    """Out of one of several small tables, which goes when it is empty."""
    group = table[key]
    del group[held]
    if not group:
        del table[key]
