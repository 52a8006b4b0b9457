"""The event loop behind the synchronous faces: one daemon thread, shared by all of them.

Rules: the thread lives as long as somebody holds it (`acquire`, `release`) and ends with the last holder. A
coroutine never runs anywhere else, so what it touches needs no lock. `run` must not be called from inside the
loop: it would wait for itself, so it refuses. After a fork the thread is gone; using it then is refused too,
because it would wait for ever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from penstock.errors import ClientError

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which is faster; else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def require_loop(home: asyncio.AbstractEventLoop | None) -> None:
    """Refuse to use an asynchronous client outside of the event loop in which it was started: its futures would
    never complete there."""
    if home is not None and asyncio._get_running_loop() is not home:
        raise ClientError(
            "this client was started in another event loop",
            "make one in each loop, as in every call of asyncio.run, or use the client without Async in threads",
        )


_alive: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has none of its parent's threads."""
    for thread in list(_alive):
        thread.is_foreign = True
    LoopThread._shared_lock = threading.Lock()  # another thread may have held it


class LoopThread:
    """A running event loop that other threads hand work to."""

    _shared: ClassVar[LoopThread | None] = None
    _shared_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "penstock-client") -> None:
        self.loop = new_event_loop()
        # In a child process: the thread was left behind in the parent.
        self.is_foreign = False
        self._holders = 0
        _alive.add(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """The thread of this process, started if need be; give it back with `release`."""
        with cls._shared_lock:
            shared = cls._shared
            if shared is None or shared.is_foreign:
                shared = cls._shared = cls()
            shared._holders += 1
            return shared

    def release(self) -> None:
        """Give the shared thread back; the last holder ends it and waits for it."""
        cls = type(self)
        with cls._shared_lock:
            self._holders -= 1
            if self._holders > 0:
                return
            if cls._shared is self:
                cls._shared = None
        self.stop()

    def stop(self) -> None:
        """End the loop, cancelling what still runs in it."""
        _alive.discard(self)
        if self.is_foreign or not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and wait for its result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException:
            # Ours to give up: a timeout or an interrupt of the waiting thread. No effect if it is done.
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the loop; the future is the caller's to wait for."""
        try:
            self.check_may_wait()
        except ClientError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call something in the loop, without waiting for it."""
        self.check_process()
        self.loop.call_soon_threadsafe(callback, *arguments)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the loop."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Refuse to be used in a child process, in which the thread does not exist."""
        if self.is_foreign:
            raise ClientError(
                "this client was made before a fork and does not work in the child",
                "make producers and consumers after the fork, in the process that uses them",
            )

    def check_may_wait(self) -> None:
        """Refuse to wait for the loop where that could never end."""
        self.check_process()
        if self.is_current:
            raise ClientError(
                "a synchronous call was made from inside the client's own event loop",
                "use the async client there, or make the call from another thread",
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            try:
                self._cancel_all()
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()

    def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
