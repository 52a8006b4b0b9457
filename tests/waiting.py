"""Wait for a condition, not for a time.

    await until(lambda: broker.replica_count == 2)
    wait_until(lambda: seen.bodies == [b"1"], "the message to arrive")

Rule: the deadline only bounds a test that fails. It is far longer than anything takes on a busy machine, so that no
test depends on speed. For an event that must not happen, wait for a later one: the answer to the next request on the
same connection, or the next round of a periodic task.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from penstock.errors import PenstockError

Found = TypeVar("Found")
What = str | Callable[[], str]

DEADLINE_S = 90.0
# For producers whose messages are counted or compared: a send that a slow machine answers late is not repeated.
PATIENT_SENDS: dict[str, Any] = {"send_timeout_ms": 60_000, "retries": 0}
_INTERVAL_S = 0.005


def _message(what: What, timeout_s: float) -> str:
    return f"waited {timeout_s:g} s in vain for {what() if callable(what) else what}"


async def until(
    condition: Callable[[], Found | Awaitable[Found]],
    what: What = "the condition",
    timeout_s: float = DEADLINE_S,
) -> Found:
    """Wait until the condition holds, and return what it returned then; the event loop runs meanwhile. A condition
    that is a coroutine function is awaited."""
    now = asyncio.get_running_loop().time
    deadline = now() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return cast(Found, found)
        assert now() < deadline, _message(what, timeout_s)
        await asyncio.sleep(_INTERVAL_S)


def wait_until(
    condition: Callable[[], Found], what: What = "the condition", timeout_s: float = DEADLINE_S
) -> Found:
    """`until` for tests without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, _message(what, timeout_s)
        time.sleep(_INTERVAL_S)
    return found


def until_done(call: Callable[[], Found], timeout_s: float = DEADLINE_S) -> Found:
    """Repeat a call until the cluster accepts it: clients may not know its newest master yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except PenstockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_INTERVAL_S)


async def turns(count: int = 20) -> None:
    """Let every task that is ready run until it waits for something outside of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
