"""Turns of the event loop: how the connections of a server share its time.

    in place    a request that arrives while nothing waits is handled where it was read: no queue, no delay
    queued      once a turn's time is used, whatever else was read waits, and the loop polls its sockets again first
    light       connections that keep up: all they asked before is answered. They are served first, each for
                LIGHT_NS; one with more to do than that is heavy until it has caught up
    heavy       connections with a backlog. They get what is left of a turn, and at least one of them QUANTUM_NS
    order       start-time fair queueing in both: lowest start tag first. A tag is the time that was spent on a
                connection so far, on a virtual clock that runs with the tags that are served; so one that rested
                cannot save up time. What a connection has waiting counts in advance, for up to a quantum

So a request of one who waits for each answer is handled after those of others like him, and after one quantum of
those who send a thousand at once, however many these are. One request is never divided. Owned by the event loop;
servers of one process may share one.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

from penstock.runtime import Clock

# Requests are handled for so long before the loop polls its sockets again.
TURN_NS = 2_000_000
QUANTUM_NS = 1_000_000
LIGHT_NS = 250_000
# What serving a connection costs at least, however coarse the clock is.
LEAST_NS = 1_000
# What a byte of a request that waits is taken to cost.
BYTE_NS = 250


class Served(Protocol):
    """A connection as its turns see it."""

    is_open: bool
    # Its tag, and whether it waits in a queue; kept by `Turns`.
    turn_tag: int
    is_queued: bool

    @property
    def partial_size(self) -> int:
        """Bytes that wait to be handled."""

    def serve(self, deadline_ns: int) -> bool:
        """Handle what waits until then; whether something is left that may be handled now."""


class Turns:
    """See the module's text."""

    def __init__(self, clock: Clock) -> None:
        self.now_ns = clock.monotonic_ns
        self._light: list[tuple[int, int, Served]] = []
        self._heavy: list[tuple[int, int, Served]] = []
        self._number = 0
        self._virtual_ns = 0
        self._spent_ns = 0
        self._is_planned = False
        # Whether a request may be handled in place: nothing waits, and the turn has time left.
        self.is_free = True

    def served(self, connection: Served, began_ns: int) -> None:
        """A connection was served from then until now, in place or in its turn."""
        took_ns = self.now_ns() - began_ns
        if took_ns < LEAST_NS:
            took_ns = LEAST_NS
        tag = connection.turn_tag
        if tag < self._virtual_ns:
            tag = self._virtual_ns
        else:
            self._virtual_ns = tag
        connection.turn_tag = tag + took_ns
        self._spent_ns += took_ns
        if self._spent_ns >= TURN_NS:
            self.is_free = False

    def add(self, connection: Served, *, is_heavy: bool = False) -> None:
        """A connection has something to handle; it is served in its turn."""
        if connection.is_queued:
            return
        connection.is_queued = True
        self.is_free = False
        self._number += 1
        connection.turn_tag = max(connection.turn_tag, self._virtual_ns)
        waiting_ns = min(connection.partial_size * BYTE_NS, QUANTUM_NS)
        queue = self._heavy if is_heavy else self._light
        heapq.heappush(queue, (connection.turn_tag + waiting_ns, self._number, connection))
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned and (self._light or self._heavy):
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One turn."""
        self._spent_ns = 0
        self._is_planned = False
        try:
            while self._light and self._spent_ns < TURN_NS:
                self._serve(self._light, LIGHT_NS)
            is_first = True
            while self._heavy and (is_first or self._spent_ns < TURN_NS):
                self._serve(self._heavy, QUANTUM_NS)
                is_first = False
        finally:
            self.is_free = not self._light and not self._heavy and self._spent_ns < TURN_NS
            self._plan()

    def _serve(self, queue: list[tuple[int, int, Served]], quantum_ns: int) -> None:
        _, _, connection = heapq.heappop(queue)
        connection.is_queued = False
        if not connection.is_open:
            return
        began_ns = self.now_ns()
        has_more = connection.serve(began_ns + quantum_ns)
        self.served(connection, began_ns)
        if has_more:
            self.add(connection, is_heavy=True)
