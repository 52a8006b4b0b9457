"""Wait for a condition, not for a time.

    await until(lambda: broker.replica_count == 2)
    wait_until(lambda: seen.bodies == [b"1"], "the message to arrive")

Rule: the deadline only bounds a test that fails. It is far longer than anything takes on a busy machine, so that no
test depends on speed. For news that must not come, wait for something that comes after them, as an answer on the same
connection.
"""

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 60.0
_INTERVAL_S = 0.005


def _message(what: str, deadline_s: float) -> str:
    return f"waited {deadline_s:g} s in vain" + (f" for {what}" if what else "")


async def until(condition: Callable[[], object], what: str = "", timeout_s: float = DEADLINE_S) -> None:
    """Return when the condition holds; the loop runs meanwhile."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, _message(what, timeout_s)
        await asyncio.sleep(_INTERVAL_S)


def wait_until(condition: Callable[[], object], what: str = "", timeout_s: float = DEADLINE_S) -> None:
    """The same for tests without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, _message(what, timeout_s)
        time.sleep(_INTERVAL_S)


async def turns(count: int = 20) -> None:
    """Let every task that is ready run until it waits for something outside of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
