"""What a streaming query has done, batch by batch: the numbers that a person or a program wants of Spark's report.

    batch 12  +150,000 rows  142k rows/s  lag 1.2M

Rules: plain data out of the JSON that Spark makes of a progress event; no query, no session, no clock, so all of
it is tested without a JVM. Lag is what the source last saw at the brokers less what has been read, summed over
its queues; a source that tells no latest offsets has no lag, which is not the same as a lag of none.

`listener` is for queries that somebody else starts; `penstock.spark.running` asks its own query instead, which
has no thread, no callback and no event that comes too late. Runs on the driver; prints nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUEUES_SHOWN = 3
# Name of the observed metric that counts what a query writes.
WRITTEN = "penstock_written"
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Batch:
    """One finished micro-batch. `lag` is None where no source tells how much there is."""

    query: str
    batch: int
    rows: int
    rows_per_second: float
    seconds: float
    lag: int | None
    queue_lags: Mapping[str, int] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)
    timestamp: str = ""
    # Rows that left the query, where it observes them (`WRITTEN`).
    written: int | None = None

    @staticmethod
    def of(progress: Mapping[str, Any]) -> Batch:
        """From Spark's progress event, as its JSON has it."""
        durations = progress.get("durationMs") or {}
        seconds = float(durations.get("triggerExecution", progress.get("batchDuration", 0)) or 0) / 1000
        rows = sum(int(source.get("numInputRows") or 0) for source in progress.get("sources") or ())
        rows = int(progress.get("numInputRows") or rows)
        lags = _lags(progress.get("sources") or ())
        return Batch(
            query=progress.get("name") or "",
            batch=int(progress.get("batchId") or 0),
            rows=rows,
            rows_per_second=rows / seconds if seconds > 0 else 0.0,
            seconds=seconds,
            lag=None if lags is None else sum(lags.values()),
            queue_lags=lags or {},
            observed=progress.get("observedMetrics") or {},
            timestamp=progress.get("timestamp") or "",
            written=(progress.get("observedMetrics") or {}).get(WRITTEN, {}).get("rows"),
        )

    def line(self, *, queues: bool = False) -> str:
        """For people, in one line."""
        parts = [f"batch {self.batch}", f"+{self.rows:,} rows"]
        if self.rows:
            parts.append(f"{short(self.rows_per_second)} rows/s")
        if self.lag is not None:
            parts.append(f"lag {short(self.lag)}" + (self._worst() if queues else ""))
            if self.lag and self.rows_per_second:
                parts.append(f"ETA {duration(self.lag / self.rows_per_second)}")
        return "  ".join(parts)

    def _worst(self) -> str:
        """The queues that are furthest behind."""
        behind = sorted(((lag, name) for name, lag in self.queue_lags.items() if lag), reverse=True)
        shown = ", ".join(f"{name} {short(lag)}" for lag, name in behind[:QUEUES_SHOWN])
        return f" ({shown}{', ...' if len(behind) > QUEUES_SHOWN else ''})" if shown else ""

    def json(self) -> dict[str, Any]:
        """For programs: one object per batch."""
        found: dict[str, Any] = {
            "event": "batch",
            "query": self.query,
            "batch": self.batch,
            "rows": self.rows,
            "rows_written": self.written,
            "rows_per_second": round(self.rows_per_second, 1),
            "seconds": round(self.seconds, 3),
            "lag": self.lag,
            "timestamp": self.timestamp,
        }
        if self.written is None:
            del found["rows_written"]
        return found | ({"queues": dict(self.queue_lags)} if self.queue_lags else {})


Report = Callable[[Batch], None]


def ignore(batch: Batch) -> None:
    """The report of who wants none."""


def _lags(sources: Any) -> dict[str, int] | None:
    """Messages that are there and not read, by queue; None if no source tells."""
    found: dict[str, int] = {}
    known = False
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        known = True
        for queue, last in latest.items():
            found[queue] = found.get(queue, 0) + max(0, last - end.get(queue, 0))
    return found if known else None


def _offsets(value: Any) -> dict[str, int] | None:
    """Offsets of ours: an object of queue names and numbers, as Spark hands it over (text or object)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping) or not all(type(number) is int for number in value.values()):
        return None
    return dict(value)


def short(number: float) -> str:
    """`873`, `1.2k`, `142k`, `1.2M`."""
    for size, unit in _UNITS:
        if number >= size * 0.9995:
            value = number / size
            return (
                f"{value:.0f}{unit}"
                if value >= 99.95
                else f"{value:.3g}{unit}"
                if value >= 10
                else f"{value:.1f}{unit}"
            )
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """`8 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"


def listener(report: Report) -> Any:
    """A `StreamingQueryListener` that reports every batch with rows: `spark.streams.addListener(listener(print))`.

    Spark calls it in a thread of its own, some time after the batch.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class BatchListener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            batch = Batch.of(json.loads(event.progress.json))
            if batch.rows:
                report(batch)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    return BatchListener()
