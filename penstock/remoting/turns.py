"""Turns of the event loop: how the connections of a server share its time.

    in place    a request that arrives while nothing waits is handled where it was read: no queue, no delay
    queued      once a turn's time is used, whatever else was read waits, and the loop polls its sockets again first
    light       connections that keep up: all they asked before is answered. They are served first, each for
                LIGHT_NS; one with more to do than that is heavy until it has caught up, and so is one that sends
                dozens of requests at once
    heavy       connections with a backlog. They get what is left of a turn, and at least one of them QUANTUM_NS
    order       start-time fair queueing in both: lowest start tag first. A tag is the time that was spent on a
                connection so far, on the queue's virtual clock, which runs with the tags that are served; so one that
                rested cannot save up time. Where a connection changes the queue it keeps its lead over the clock.
                What a connection has waiting counts in advance, for up to a quantum
    charge      what took longer than a quantum is charged with the processor time of the loop's thread: a request
                does not pay for threads that held the interpreter, or for a processor that was not there

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
    # Its tag, the queue whose clock that is of, and whether it waits there; kept by `Turns`.
    turn_tag: int
    is_heavy: bool
    is_queued: bool

    @property
    def partial_size(self) -> int:
        """Bytes that wait to be handled."""

    def serve(self, deadline_ns: int) -> bool:
        """Handle what waits until then; whether something is left that may be handled now."""


class _Queue:
    """Connections that wait, and their virtual clock."""

    __slots__ = ("heap", "virtual_ns")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Served]] = []
        self.virtual_ns = 0


class Turns:
    """See the module's text."""

    def __init__(self, clock: Clock) -> None:
        self.now_ns = clock.monotonic_ns
        self._processor_ns = clock.processor_ns
        # The loop's processor time at the start of the turn, or when it was looked at last.
        self._worked_ns = 0
        self._light = _Queue()
        self._heavy = _Queue()
        self._number = 0
        self._spent_ns = 0
        self._is_planned = False
        # Whether a request may be handled in place: nothing waits, and the turn has time left.
        self.is_free = True

    def served(self, connection: Served, began_ns: int) -> None:
        """A connection was served from then until now, in place or in its turn."""
        took_ns = self.now_ns() - began_ns
        if took_ns < LEAST_NS:
            took_ns = LEAST_NS
        self._spent_ns += took_ns
        if took_ns > QUANTUM_NS:
            worked_ns, self._worked_ns = self._worked_ns, self._processor_ns()
            took_ns = max(min(took_ns, self._worked_ns - worked_ns), LEAST_NS)
        queue = self._heavy if connection.is_heavy else self._light
        tag = connection.turn_tag
        if tag < queue.virtual_ns:
            tag = queue.virtual_ns
        else:
            queue.virtual_ns = tag
        connection.turn_tag = tag + took_ns
        if self._spent_ns >= TURN_NS:
            self.is_free = False

    def add(self, connection: Served, *, is_heavy: bool = False) -> None:
        """A connection has something to handle; it is served in its turn."""
        if connection.is_queued:
            return
        connection.is_queued = True
        self.is_free = False
        self._number += 1
        before = self._heavy if connection.is_heavy else self._light
        queue = self._heavy if is_heavy else self._light
        lead_ns = max(connection.turn_tag - before.virtual_ns, 0)
        connection.turn_tag = queue.virtual_ns + lead_ns
        connection.is_heavy = is_heavy
        waiting_ns = min(connection.partial_size * BYTE_NS, QUANTUM_NS)
        heapq.heappush(queue.heap, (connection.turn_tag + waiting_ns, self._number, connection))
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned and (self._light.heap or self._heavy.heap):
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One turn."""
        self._spent_ns = 0
        self._worked_ns = self._processor_ns()
        self._is_planned = False
        try:
            while self._light.heap and self._spent_ns < TURN_NS:
                self._serve(self._light, LIGHT_NS)
            is_first = True
            while self._heavy.heap and (is_first or self._spent_ns < TURN_NS):
                self._serve(self._heavy, QUANTUM_NS)
                is_first = False
        finally:
            self.is_free = not self._light.heap and not self._heavy.heap and self._spent_ns < TURN_NS
            self._plan()

    def _serve(self, queue: _Queue, quantum_ns: int) -> None:
        _, _, connection = heapq.heappop(queue.heap)
        connection.is_queued = False
        if not connection.is_open:
            return
        began_ns = self.now_ns()
        has_more = connection.serve(began_ns + quantum_ns)
        self.served(connection, began_ns)
        if has_more:
            self.add(connection, is_heavy=True)
