"""Turns of the event loop: how the connections of a server share its time.

    in place    a request that arrives while nothing waits is handled where it was read: no queue, no delay
    queued      once a turn's time is used, whatever else was read waits, and the loop polls its sockets again first
    order       start-time fair queueing: of the connections that wait, the one whose start tag is lowest. A tag is
                the time that was spent on a connection so far, on a virtual clock that runs with the lowest tag
    credit      one that used less than its share is at most CREDIT_NS behind that clock, so it goes first, and one
                that comes back after hours cannot keep the loop for as long
    quantum     a connection is served for QUANTUM_NS, then the next one is chosen; one request is never divided

A request therefore waits for at most one turn, and for those who used less time than its sender. Owned by the event
loop; servers of one process may share one.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

from penstock.runtime import Clock

# Requests are handled for so long before the loop polls its sockets again.
TURN_NS = 2_000_000
# A connection is served for so long before the next one is chosen.
QUANTUM_NS = 1_000_000
CREDIT_NS = 20_000_000
# What serving a connection costs at least, however coarse the clock is.
LEAST_NS = 1_000


class Served(Protocol):
    """A connection as its turns see it."""

    is_open: bool
    # Its tag, and whether it waits in the queue; kept by `Turns`.
    turn_tag: int
    is_queued: bool

    def serve(self, deadline_ns: int) -> bool:
        """Handle what waits until then; whether something is left that may be handled now."""


class Turns:
    """See the module's text."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: list[tuple[int, int, Served]] = []
        self._number = 0
        self._virtual_ns = 0
        self._spent_ns = 0
        self._is_planned = False

    @property
    def is_free(self) -> bool:
        """Whether a request may be handled in place: nothing waits, and the turn has time left."""
        return not self._queue and self._spent_ns < TURN_NS

    def start_tag(self, connection: Served) -> int:
        """Where a connection stands if it is served now."""
        return max(connection.turn_tag, self._virtual_ns - CREDIT_NS)

    def joined(self, connection: Served) -> None:
        """A new connection has no credit yet."""
        connection.turn_tag = self._virtual_ns

    def served(self, connection: Served, start_tag: int, took_ns: int) -> None:
        """A connection was served in place or in its turn."""
        took_ns = max(took_ns, LEAST_NS)
        connection.turn_tag = start_tag + took_ns
        self._virtual_ns = max(self._virtual_ns, start_tag)
        self._spent_ns += took_ns

    def add(self, connection: Served) -> None:
        """A connection has something to handle; it is served in its turn."""
        if connection.is_queued:
            return
        connection.is_queued = True
        self._number += 1
        heapq.heappush(self._queue, (self.start_tag(connection), self._number, connection))
        self._plan()

    def _run(self) -> None:
        """One turn."""
        self._spent_ns = 0
        self._is_planned = False
        clock = self._clock
        began_ns = clock.monotonic_ns()
        try:
            while self._queue and self._spent_ns < TURN_NS:
                tag, _, connection = heapq.heappop(self._queue)
                connection.is_queued = False
                if not connection.is_open:
                    continue
                has_more = connection.serve(began_ns + QUANTUM_NS)
                now_ns = clock.monotonic_ns()
                self.served(connection, tag, now_ns - began_ns)
                began_ns = now_ns
                if has_more:
                    self.add(connection)
        finally:
            self._plan()

    def _plan(self) -> None:
        if self._queue and not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._run)
