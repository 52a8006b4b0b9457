"""Waiting for a condition, with a deadline so late that only what never comes misses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import PenstockError

Found = TypeVar("Found")

DEADLINE_S = 90.0
LOOK_S = 0.01


def until(holds: Callable[[], Found], what: object = "the condition", timeout_s: float = DEADLINE_S) -> Found:
    """Wait until it holds, and return what it returned then."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, (
            f"waited {timeout_s:.0f} s for {what() if callable(what) else what}"
        )
        time.sleep(LOOK_S)
    return found


def until_done(call: Callable[[], Found], timeout_s: float = DEADLINE_S) -> Found:
    """Repeat a call until the cluster takes it: it may not know of its newest master yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except PenstockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


async def until_async(
    holds: Callable[[], Found], what: object = "the condition", timeout_s: float = DEADLINE_S
) -> Found:
    """`until` in an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline, (
            f"waited {timeout_s:.0f} s for {what() if callable(what) else what}"
        )
        await asyncio.sleep(LOOK_S)
    return found
