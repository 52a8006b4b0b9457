"""One process, one event loop, until a signal: starts a node, says when it is ready, stops it cleanly.

    first SIGINT or SIGTERM     answer what is open, save, flush, close; exit code 0
    second one                  end at once, as if killed; exit code 128 + signal; the next start recovers
    stop_timeout_ms over        the same, exit code 1

Wrappers such as timeout(1) send a signal twice in the same moment; that counts as one. Signals are taken by
Python's own handlers and not by the loop's, so that a second one counts also while a long recovery keeps the
loop busy.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

EXIT_STOP_FAILED = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_MOMENT_S = 0.3


class Service(Protocol):
    """What can be run: started once, stopped once, both in the same loop. A start that fails leaves nothing."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed; else asyncio's own, slower."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


# A thread that computes lets the loop have the interpreter after so long. At Python's 5 ms, four threads of requests
# would hold up each event of the loop by 20 ms.
SWITCH_S = 0.000_5


def serve(service: Service, ready: Callable[[], None], stop_timeout_ms: int) -> int:
    """Run until a signal; `ready` is called once the service answers."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        stopping = asyncio.Event()
        with _until_signalled(loop, stopping), _interpreter_for_servers():
            return runner.run(_serve(service, ready, stopping, stop_timeout_ms))


@contextmanager
def _interpreter_for_servers() -> Iterator[None]:
    """While this lasts, threads switch often, and no garbage is collected until a start is done. The caller may be a
    process that lives on after a start that failed."""
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()
        sys.setswitchinterval(switch_s)


async def _serve(
    service: Service, ready: Callable[[], None], stopping: asyncio.Event, stop_timeout_ms: int
) -> int:
    starting = asyncio.ensure_future(service.start())
    signalled = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    # A start that is under way is finished first: cut off in the middle it could not be stopped cleanly.
    try:
        await starting
    except BaseException:
        signalled.cancel()
        raise
    # What was loaded stays: looking through 100,000 groups for garbage again and again would stop the loop each time.
    gc.freeze()
    gc.enable()
    try:
        if not stopping.is_set():
            ready()
            await signalled
    finally:
        signalled.cancel()
        try:
            async with asyncio.timeout(stop_timeout_ms / 1000):
                await service.stop()
        except TimeoutError:
            _end_at_once(f"the stop took longer than {stop_timeout_ms} ms", EXIT_STOP_FAILED)
    return 0


@contextmanager
def _until_signalled(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> Iterator[None]:
    """While this lasts, a signal sets the event and another one ends the process."""
    first_s: float | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s
            loop.call_soon_threadsafe(stopping.set)
        elif now_s - first_s >= SAME_MOMENT_S:
            _end_at_once("stopped by a second signal", 128 + number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_at_once(why: str, code: int) -> None:
    """As a kill would: no buffer is flushed, no file closed; the store is made for that."""
    os.write(2, f"penstock: {why}; what was not yet on disk is recovered at the next start\n".encode())
    os._exit(code)
