"""Filters of a query that a read can make use of: fewer queues, shorter ranges, fewer records decoded.

    topic, broker, queue_id     = and IN         queues that are not read at all
    queue_offset                = IN < <= > >=   shorter ranges
    store_time                  = < <= > >=      shorter ranges, found by the broker's search by time
    tags                        = and IN         asked of the broker, and compared while decoding
    keys                        =                compared while decoding

Rule: a restriction may let too much through, never too little; Spark gets every filter back and applies it exactly.
A clock that is set back makes store times run backwards for a moment, so the range by time is taken a little wider.
Runs where Spark plans. Filters are told apart by the names of their classes, so that nothing here imports Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.client.scan_results import QueueId
from penstock.spark.planning import QueueSlice

OFFSET_MAX = (1 << 63) - 1
TIME_MARGIN_MS = 10_000
_LOWER = {"EqualTo": 0, "GreaterThanOrEqual": 0, "GreaterThan": 1}
_UPPER = {"EqualTo": 0, "LessThanOrEqual": 0, "LessThan": -1}
# Of one column: the values that may be.
Allowed = frozenset[Any] | None


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a row must be like, as far as it helps; None and the ends of ranges stand for anything."""

    topics: Allowed = None
    brokers: Allowed = None
    queue_ids: Allowed = None
    offsets: tuple[int, int] = (0, OFFSET_MAX)
    times_ms: tuple[int | None, int | None] = (None, None)
    tags: Allowed = None
    key: str = ""

    def narrowed(self, item: object) -> Restriction:
        """With one more filter; the same if it is none that helps."""
        kind = type(item).__name__
        column: tuple[str, ...] = getattr(item, "attribute", ())
        value = getattr(item, "value", None)
        if len(column) != 1 or value is None:
            return self
        name = str(column[0]).lower()
        if name in _VALUE_COLUMNS and kind in ("EqualTo", "EqualNullSafe", "In"):
            return self._with_values(_VALUE_COLUMNS[name], value if kind == "In" else (value,))
        if name == "queue_offset":
            return self._with_offsets("EqualTo" if kind == "EqualNullSafe" else kind, value)
        if name == "store_time" and isinstance(value, datetime):
            return self._with_times("EqualTo" if kind == "EqualNullSafe" else kind, value)
        if name == "keys" and kind in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
            # The scan looks for one word of the keys.
            return replace(self, key=value) if value and " " not in value and not self.key else self
        return self

    def _with_values(self, field: str, values: Iterable[Any]) -> Restriction:
        allowed = frozenset(value for value in values if value is not None)
        before: Allowed = getattr(self, field)
        both = allowed if before is None else before & allowed
        return replace(self, **{field: both})  # type: ignore[arg-type]

    def _with_offsets(self, kind: str, value: Any) -> Restriction:
        low, high = self.offsets
        if kind == "In":
            numbers = [number for number in value if isinstance(number, int)]
            return (
                replace(self, offsets=(max(low, min(numbers)), min(high, max(numbers)))) if numbers else self
            )
        if not isinstance(value, int):
            return self
        if kind in _LOWER:
            low = max(low, value + _LOWER[kind])
        if kind in _UPPER:
            high = min(high, value + _UPPER[kind])
        return replace(self, offsets=(low, high))

    def _with_times(self, kind: str, value: datetime) -> Restriction:
        low, high = self.times_ms
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        time_ms = int(moment.timestamp() * 1000)
        if kind in _LOWER:
            low = time_ms if low is None else max(low, time_ms)
        if kind in _UPPER:
            high = time_ms if high is None else min(high, time_ms)
        return replace(self, times_ms=(low, high))

    # -- use -------------------------------------------------------------------------------------------------

    def narrow(
        self,
        slices: Iterable[QueueSlice],
        by_time: Callable[[Mapping[QueueId, int]], Mapping[QueueId, int]],
    ) -> list[QueueSlice]:
        """What is left to read."""
        low, high = self.offsets
        left = [
            QueueSlice(item.queue, max(item.start, low), min(item.end, high + 1))
            for item in slices
            if self._may_have(item.queue)
        ]
        left = [item for item in left if item.start < item.end]
        return self._by_time(left, by_time) if self.times_ms != (None, None) else left

    def _may_have(self, queue: QueueId) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def _by_time(
        self,
        slices: list[QueueSlice],
        by_time: Callable[[Mapping[QueueId, int]], Mapping[QueueId, int]],
    ) -> list[QueueSlice]:
        low_ms, high_ms = self.times_ms
        queues = [item.queue for item in slices]
        firsts: Mapping[QueueId, int] = {}
        ends: Mapping[QueueId, int] = {}
        if low_ms is not None:
            firsts = by_time(dict.fromkeys(queues, max(low_ms - TIME_MARGIN_MS, 0)))
        if high_ms is not None:
            ends = by_time(dict.fromkeys(queues, max(high_ms + TIME_MARGIN_MS, 0)))
        left = (
            QueueSlice(
                item.queue,
                max(item.start, firsts.get(item.queue, item.start)),
                min(item.end, ends.get(item.queue, item.end)),
            )
            for item in slices
        )
        return [item for item in left if item.start < item.end]

    def tags_with(self, given: tuple[str, ...]) -> tuple[str, ...] | None:
        """Tags to ask for, together with those of the option; None if no tag can be both."""
        if self.tags is None:
            return given
        both = sorted(tag for tag in self.tags if isinstance(tag, str) and (not given or tag in given))
        return tuple(both) if both else None


_VALUE_COLUMNS = {"topic": "topics", "broker": "brokers", "queue_id": "queue_ids", "tags": "tags"}


def restriction_of(filters: Iterable[object]) -> Restriction:
    """What several filters, all of which hold, mean together."""
    found = Restriction()
    for item in filters:
        found = found.narrowed(item)
    return found
