"""Work of requests in threads: connections take turns, and some threads are left to the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from penstock.remoting.threads import WORKERS, Threads


class Peer:
    """A connection, as far as threads care."""

    def __init__(self) -> None:
        self.is_clogged = False


def test_many_requests_of_one_connection_do_not_hold_up_another() -> None:
    async def scenario() -> None:
        threads, gate = Threads(), threading.Semaphore(0)
        done: list[str] = []
        crowd, single = Peer(), Peer()

        def prepare(name: str) -> Callable[[], Callable[[], None]]:
            def work() -> None:
                assert gate.acquire(timeout=60)
                done.append(name)

            return lambda: work

        many = [asyncio.ensure_future(threads.run(crowd, prepare("greedy"))) for _ in range(50)]
        await asyncio.sleep(0)
        other = asyncio.ensure_future(threads.run(single, prepare("other")))
        await asyncio.sleep(0)
        # The server's own work finds a thread all the same.
        assert await asyncio.to_thread(lambda: 7) == 7
        gate.release(WORKERS + 2)
        await other
        assert len(done) <= WORKERS + 2
        gate.release(100)
        await asyncio.gather(*many)
        assert done.count("greedy") == 50

    asyncio.run(scenario())


def test_what_waits_is_prepared_only_when_a_thread_is_free() -> None:
    async def scenario() -> None:
        threads, gate = Threads(), threading.Event()
        prepared, one = 0, Peer()

        def prepare() -> Callable[[], bool]:
            nonlocal prepared
            prepared += 1
            return lambda: gate.wait(60)

        many = [asyncio.ensure_future(threads.run(one, prepare)) for _ in range(20)]
        await asyncio.sleep(0)
        assert prepared == WORKERS
        for late in many[WORKERS:]:
            late.cancel()  # as when its connection is closed
        gate.set()
        await asyncio.gather(*many, return_exceptions=True)
        assert prepared == WORKERS

    asyncio.run(scenario())


def test_errors_reach_who_asked() -> None:
    def broken() -> Callable[[], None]:
        raise LookupError("while it was prepared")

    def failing() -> None:
        raise ValueError("in the thread")

    async def scenario() -> None:
        threads, one = Threads(), Peer()
        with pytest.raises(LookupError, match="prepared"):
            await threads.run(one, broken)
        with pytest.raises(ValueError, match="thread"):
            await threads.run(one, lambda: failing)
        assert await threads.run(one, lambda: lambda: 1) == 1

    asyncio.run(scenario())


def test_a_peer_that_has_to_read_first_gets_no_thread_until_it_has() -> None:
    async def scenario() -> None:
        threads, slow, healthy = Threads(), Peer(), Peer()
        done: list[str] = []
        slow.is_clogged = True
        waiting = [
            asyncio.ensure_future(threads.run(slow, lambda: lambda: done.append("slow"))) for _ in range(10)
        ]
        await threads.run(healthy, lambda: lambda: done.append("healthy"))
        assert done == ["healthy"]
        slow.is_clogged = False
        threads.resume(slow)
        await asyncio.gather(*waiting)
        assert done == ["healthy"] + ["slow"] * 10

    asyncio.run(scenario())


def test_work_of_a_connection_that_is_gone_is_forgotten() -> None:
    async def scenario() -> None:
        threads, gone = Threads(), Peer()
        gone.is_clogged = True
        waiting = asyncio.ensure_future(threads.run(gone, lambda: lambda: pytest.fail("it ran")))
        await asyncio.sleep(0)
        waiting.cancel()
        threads.forget(gone)
        gone.is_clogged = False
        threads.resume(gone)
        assert await threads.run(Peer(), lambda: lambda: 1) == 1

    asyncio.run(scenario())
