"""Work of requests in threads, of which the connections take turns.

A request that reads from disk or encodes a large table would hold up the loop, so a thread does it. However many such
requests one connection sends, the next free thread takes one of another connection that waits; and only WORKERS of
the loop's threads do work of requests, so that the server's own work (saving tables, opening files) finds one. A
connection whose peer has to read its answers first gets no thread until it has. What a connection has waiting ends
with it. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Job = tuple[asyncio.Future[Any], Callable[[], Callable[[], Any]]]
# One that waits for a disk must not keep out all others. More would take the interpreter from the loop, and none of
# them would compute sooner.
WORKERS = 2


class Client(Protocol):
    """A connection as its share of the threads sees it."""

    @property
    def is_clogged(self) -> bool:
        """Whether the peer has to read before more is done for it."""


class Threads:
    """See the module's text."""

    def __init__(self) -> None:
        # By connection, the next one first.
        self._waiting: dict[Client, deque[Job]] = {}
        # Of connections whose peers have to read first.
        self._held: dict[Client, deque[Job]] = {}
        self._busy = 0

    async def run(self, connection: Client, prepare: Callable[[], Callable[[], T]]) -> T:
        """The outcome of work for a request of this connection. `prepare` is called in the loop when a thread is
        free, and returns the work: what it copies for that is not kept while the request waits."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        jobs = self._held if connection in self._held else self._waiting
        jobs.setdefault(connection, deque()).append((outcome, prepare))
        self._begin()
        return await outcome

    def resume(self, connection: Client) -> None:
        """The peer has read its answers."""
        jobs = self._held.pop(connection, None)
        if jobs is not None:
            self._waiting[connection] = jobs
            self._begin()

    def forget(self, connection: Client) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)
        self._held.pop(connection, None)

    def _begin(self) -> None:
        while self._waiting and self._busy < WORKERS:
            connection = next(iter(self._waiting))
            jobs = self._waiting.pop(connection)
            if connection.is_clogged:
                self._held[connection] = jobs
                continue
            outcome, prepare = jobs.popleft()
            if jobs:
                self._waiting[connection] = jobs
            if outcome.done():  # its connection is gone
                continue
            try:
                work = prepare()
            except Exception as error:
                outcome.set_exception(error)
                continue
            self._busy += 1
            running = asyncio.get_running_loop().run_in_executor(None, work)
            running.add_done_callback(partial(self._ended, outcome))

    def _ended(self, outcome: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._busy -= 1
        if not outcome.done():
            error = None if running.cancelled() else running.exception()
            if running.cancelled():
                outcome.cancel()
            elif error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(running.result())
        elif not running.cancelled():
            running.exception()  # retrieved: there is no one left to hear of it
        self._begin()
