"""An event loop whose time passes only while no task has anything to do: hours of timeouts in milliseconds, and the
same run each time.

A sleep in such a loop costs nothing and takes exactly as long as it says: tests choose the moment of an event with it
(tests/unit/coordinator/metadata/test_memory_faults.py, test_election.py, offsets/test_storage.py).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.runtime import Runtime, SystemClock

Result = TypeVar("Result")


class VirtualClock(SystemClock):
    """The loop's time as a `runtime.Clock`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1_000_000_000)

    def processor_ns(self) -> int:
        return int(self.now_s * 1_000_000_000)


class _LeapingSelector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen: the test would wait for ever"
        events = super().select(0)
        if not events:
            self._clock.now_s += max(0.0, timeout)
        return events


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_LeapingSelector(clock))
        self._virtual = clock

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(main: Coroutine[Any, Any, Result], clock: VirtualClock) -> Result:
    with asyncio.Runner(loop_factory=lambda: _VirtualLoop(clock)) as runner:
        return runner.run(main)


def virtual_runtime() -> tuple[Runtime, VirtualClock]:
    clock = VirtualClock()
    return Runtime(clock=clock), clock
