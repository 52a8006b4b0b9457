"""What a component counts about itself: cheap enough to stay on, exact enough to trust.

A histogram keeps powers of two, so a percentile is right within a factor of two at 64 numbers of memory.
Written by one thread, read by any: a reader may see a count one behind, never a broken one.
"""

from __future__ import annotations

from collections.abc import Mapping


class Histogram:
    """Whole numbers (nanoseconds, bytes) by magnitude."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.maximum = 0
        self._buckets = [0] * 65

    def record(self, value: int) -> None:
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value
        self._buckets[min(max(value, 0).bit_length(), 64)] += 1

    def percentile(self, percent: float) -> int:
        """Upper bound of the bucket in which the percentile lies; 0 when nothing was recorded."""
        wanted = self.count * percent / 100
        seen = 0
        for bits, bucket in enumerate(self._buckets):
            seen += bucket
            if bucket and seen >= wanted:
                return min((1 << bits) - 1, self.maximum)
        return self.maximum

    def snapshot(self) -> dict[str, int]:
        return {
            "count": self.count,
            "mean": self.total // self.count if self.count else 0,
            "p50": self.percentile(50),
            "p99": self.percentile(99),
            "max": self.maximum,
        }


class Meters:
    """Named counters and histograms of one component."""

    def __init__(self, counters: tuple[str, ...] = (), histograms: tuple[str, ...] = ()) -> None:
        self.counters = dict.fromkeys(counters, 0)
        self.histograms = {name: Histogram() for name in histograms}

    def add(self, name: str, amount: int = 1) -> None:
        self.counters[name] += amount

    def record(self, name: str, value: int) -> None:
        self.histograms[name].record(value)

    def snapshot(self) -> Mapping[str, object]:
        """Everything as plain numbers, for status pages and exporters."""
        return {**self.counters, **{name: h.snapshot() for name, h in self.histograms.items()}}
