"""Which brokers a producer leaves alone for a while, because they were slow or failed.

    answered within    50   100   550   1800   3000   5000   15000 ms
    left alone for      0     0     2      5      6     10      30 s      a failure counts as 10 s of latency

Rule: avoiding is advice. Where every broker is to be avoided, one is used all the same. Plain code; the caller
brings the time (monotonic).
"""

from __future__ import annotations

from collections.abc import Sequence

LATENCY_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
AVOID_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
FAILURE_LATENCY_MS = 10_000


class FaultLatency:
    """Remembers until when each broker is to be avoided."""

    def __init__(self, latency_ms: Sequence[int] = LATENCY_MS, avoid_ms: Sequence[int] = AVOID_MS) -> None:
        self._steps = list(zip(latency_ms, avoid_ms, strict=True))
        self._until: dict[str, int] = {}

    def answered(self, broker_name: str, latency_ms: int, now_ms: int) -> None:
        """A broker answered after this time."""
        self._record(broker_name, self.avoid_for(latency_ms), now_ms)

    def failed(self, broker_name: str, now_ms: int) -> None:
        """A broker did not answer, or not usefully."""
        self._record(broker_name, self.avoid_for(FAILURE_LATENCY_MS), now_ms)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        return self._until.get(broker_name, 0) <= now_ms

    def least_bad(self, broker_names: Sequence[str]) -> str:
        """The one that may be used again soonest."""
        return min(broker_names, key=lambda name: self._until.get(name, 0))

    def avoid_for(self, latency_ms: int) -> int:
        """How long a broker with this latency is left alone."""
        avoid = 0
        for least, duration in self._steps:
            if latency_ms >= least:
                avoid = duration
        return avoid

    def _record(self, broker_name: str, avoid_ms: int, now_ms: int) -> None:
        if avoid_ms:
            self._until[broker_name] = now_ms + avoid_ms
        else:
            self._until.pop(broker_name, None)
