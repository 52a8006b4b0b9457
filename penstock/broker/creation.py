"""How fast clients may bring topics and groups into being by merely naming them.

A bucket of permits that refills with time: after a quiet while many may be made at once, in the long run only
so many per second. Operators are not counted. Plain state, owned by the event loop.
"""

from __future__ import annotations

from penstock.runtime import Clock


class CreationLimit:
    """One bucket, shared by topics and groups."""

    def __init__(self, clock: Clock, per_second: int, burst: int) -> None:
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._permits = float(burst)
        self._filled_ms = clock.monotonic_ms()

    def take(self) -> bool:
        """Whether one more may be made now."""
        now_ms = self._clock.monotonic_ms()
        refill = (now_ms - self._filled_ms) * self._per_second / 1000
        self._permits = min(float(self._burst), self._permits + refill)
        self._filled_ms = now_ms
        if self._permits < 1:
            return False
        self._permits -= 1
        return True
