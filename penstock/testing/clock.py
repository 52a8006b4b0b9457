"""A clock that stands still until a test moves it.

Rule: the wall clock and the monotonic clock are two numbers. `advance` and `sleep` move both, `jump` moves
the wall clock only, in either direction, as an operator or NTP would (F10). Any thread may call it. It never
waits, and it never asks the machine for its time or its time zone: the same test shows the same times
everywhere.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

_NS_PER_MS = 1_000_000
# An ordinary day, so that a time shown in a failing test is readable: 2023-11-14 22:13:20 UTC.
_START_MS = 1_700_000_000_000


class ManualClock:
    """A `runtime.Clock` in the hands of a test."""

    def __init__(self, start_ms: int = _START_MS, hour: int | None = None) -> None:
        self._lock = threading.Lock()
        self._wall_ns = start_ms * _NS_PER_MS
        # Not zero and not the wall clock's value: code that mixes the two is seen at once.
        self._monotonic_ns = 1_000_000 * _NS_PER_MS
        self._hour: int | None = None
        self.hour = hour

    @property
    def hour(self) -> int | None:
        """Hour that `local_hour` answers whatever the time is, or None to read it off the wall clock."""
        return self._hour

    @hour.setter
    def hour(self, hour: int | None) -> None:
        if hour is not None and not 0 <= hour <= 23:
            raise ValueError(f"an hour is 0 to 23, not {hour}")
        self._hour = hour

    def advance(self, milliseconds: float) -> None:
        """Let time pass: both clocks move."""
        if milliseconds < 0:
            raise ValueError("time does not pass backwards; use jump() for a wall clock that was set back")
        step_ns = round(milliseconds * _NS_PER_MS)
        with self._lock:
            self._wall_ns += step_ns
            self._monotonic_ns += step_ns

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back; the monotonic clock does not notice."""
        with self._lock:
            self._wall_ns += milliseconds * _NS_PER_MS

    def now_ms(self) -> int:
        return self._wall_ns // _NS_PER_MS

    def monotonic_ms(self) -> int:
        return self._monotonic_ns // _NS_PER_MS

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def processor_ns(self) -> int:
        return self._monotonic_ns

    def local_hour(self) -> int:
        return self._wall().hour if self._hour is None else self._hour

    def file_name_time(self) -> str:
        wall = self._wall()
        return wall.strftime("%Y%m%d%H%M%S") + f"{wall.microsecond // 1000:03d}"

    def sleep(self, seconds: float) -> None:
        """Nobody waits: the time is over when the call returns."""
        self.advance(max(0.0, seconds) * 1000)

    def _wall(self) -> datetime:
        now_ms = self.now_ms()
        whole = datetime.fromtimestamp(now_ms // 1000, tz=UTC)
        return whole.replace(microsecond=now_ms % 1000 * 1000)
