"""Time: the wall clock for what is written down, the monotonic clock for how long things take.

Rule: an interval is never measured with the wall clock, which may jump (F10).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the rest of Penstock may ask about time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch: goes into records, may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds of a clock that never goes back: for intervals and deadlines."""

    def monotonic_ns(self) -> int:
        """The same clock in nanoseconds, for histograms."""

    def processor_ns(self) -> int:
        """Nanoseconds that a processor has worked for this thread; asking costs a system call."""

    def local_hour(self) -> int:
        """Hour of the day, 0 to 23, in the machine's time zone: retention runs at a local hour."""

    def file_name_time(self) -> str:
        """`yyyyMMddHHmmssSSS` in local time: the name of a new index file."""

    def sleep(self, seconds: float) -> None:
        """Wait; a simulated clock moves instead."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    # Asked for twice for each request.
    monotonic_ns = staticmethod(time.monotonic_ns)
    processor_ns = staticmethod(time.thread_time_ns)

    def local_hour(self) -> int:
        return time.localtime().tm_hour

    def file_name_time(self) -> str:
        now = time.time_ns() // 1_000_000
        return time.strftime("%Y%m%d%H%M%S", time.localtime(now // 1000)) + f"{now % 1000:03d}"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
