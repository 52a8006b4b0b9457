"""Work of requests in threads, of which the connections take turns.

A request that reads from disk or encodes a large table would hold up the loop, so a thread does it. However many such
requests one connection sends, the next free thread takes one of another connection that waits; and only WORKERS of
the loop's threads do work of requests, so that the server's own work (saving tables, opening files) finds one. What
a connection has waiting ends with it. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
# Fewer than an event loop has threads on any machine, which is five at least.
WORKERS = 4


class Threads:
    """See the module's text."""

    def __init__(self) -> None:
        # By connection, the next one first.
        self._waiting: dict[object, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = {}
        self._busy = 0

    async def run(self, connection: object, prepare: Callable[[], Callable[[], T]]) -> T:
        """The outcome of work for a request of this connection. `prepare` is called in the loop when a thread is
        free, and returns the work: what it copies for that is not kept while the request waits."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append((outcome, prepare))
        self._begin()
        return await outcome

    def _begin(self) -> None:
        while self._waiting and self._busy < WORKERS:
            connection = next(iter(self._waiting))
            jobs = self._waiting.pop(connection)
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
