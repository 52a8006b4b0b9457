"""How much the broker does: per topic, per group, and in all, over 10 s, a minute, ten minutes, an hour, a day.

An `Item` counts upwards for ever and remembers what it had counted when a span of time began, in three grains;
what happened in a window is the difference. Nothing is done for an item that stands still, so many idle topics
cost nothing. The totals are sampled once a second by `tick`, which the broker calls.

Owned by the event loop; the names and keys are those of RocketMQ's VIEW_BROKER_STATS_DATA. It never blocks and
never decides anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

from penstock.runtime import Clock

# Grain and window of the minute, the hour and the day.
_SPANS = ((10_000, 60_000), (600_000, 3_600_000), (3_600_000, 86_400_000))
_TIME = itemgetter(0)
_LATENCY_BOUNDS_MS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_LATENCY_NAMES = (
    "<=0ms",
    "0~10ms",
    "10~50ms",
    "50~100ms",
    "100~200ms",
    "200~500ms",
    "500ms~1s",
    "1~2s",
    "2~3s",
    "3~4s",
    "4~5s",
    "5~10s",
    "10s~",
)
RATE_SECONDS = (10, 60, 600)
ITEMS_MAX = 200_000

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
DLQ_PUT_NUMS = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
NAMES = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    GROUP_GET_LATENCY,
    SNDBCK_PUT_NUMS,
    DLQ_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
)


@dataclass(frozen=True, slots=True)
class Window:
    """What happened in a span of time: in all, per second, and per occurrence."""

    total: int = 0
    per_second: float = 0.0
    average: float = 0.0


class Item:
    """One number that grows. `times` is how often it grew, for averages."""

    __slots__ = ("_born_ms", "_grain", "_marks", "changed_ms", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self.times = 0
        self.changed_ms = now_ms
        self._born_ms = now_ms
        self._grain = -1
        # For each span: (time, value, times) when a grain of it began in which something happened.
        self._marks: tuple[list[tuple[int, int, int]], ...] = ([], [], [])

    def add(self, amount: int, times: int, now_ms: int) -> None:
        if now_ms // _SPANS[0][0] != self._grain:
            self._mark(now_ms)
        self.value += amount
        self.times += times
        self.changed_ms = now_ms

    def _mark(self, now_ms: int) -> None:
        for marks, (grain_ms, window_ms) in zip(self._marks, _SPANS, strict=True):
            if not marks or marks[-1][0] // grain_ms != now_ms // grain_ms:
                marks.append((now_ms, self.value, self.times))
                if len(marks) > window_ms // grain_ms + 1:
                    del marks[0]
        self._grain = now_ms // _SPANS[0][0]

    def window(self, span: int, now_ms: int) -> Window:
        """What happened in the last minute (span 0), hour (1) or day (2)."""
        marks, window_ms = self._marks[span], _SPANS[span][1]
        first = bisect_left(marks, now_ms - window_ms, key=_TIME)
        if first == len(marks):
            return Window()
        _, value, times = marks[first]
        seconds = max(min(window_ms, now_ms - self._born_ms), 1_000) / 1_000
        total, often = self.value - value, self.times - times
        return Window(total, total / seconds, total / often if often else 0.0)


class Total:
    """One of the broker's totals, with rates over the last 10, 60 and 600 seconds."""

    __slots__ = ("_samples", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self._samples: deque[tuple[int, int]] = deque([(now_ms, 0)], maxlen=RATE_SECONDS[-1] + 1)

    def sample(self, now_ms: int) -> None:
        self._samples.append((now_ms, self.value))

    def rate(self, seconds: int) -> float:
        """Per second over the last so many seconds, or over as many as there were."""
        newest_ms, newest = self._samples[-1]
        oldest_ms, oldest = self._samples[max(0, len(self._samples) - 1 - seconds)]
        return (newest - oldest) * 1_000 / (newest_ms - oldest_ms) if newest_ms > oldest_ms else 0.0

    def rates(self) -> str:
        """As RocketMQ writes them: three numbers and spaces."""
        return " ".join(f"{self.rate(seconds):.4f}" for seconds in RATE_SECONDS)


class Latencies:
    """How long stores took, by RocketMQ's classes."""

    def __init__(self) -> None:
        self.counts = [0] * len(_LATENCY_NAMES)
        self.maximum_ms = 0

    def record(self, took_ms: int, times: int = 1) -> None:
        place = 0
        while place < len(_LATENCY_BOUNDS_MS) and took_ms >= _LATENCY_BOUNDS_MS[place]:
            place += 1
        self.counts[place] += times
        if took_ms > self.maximum_ms:
            self.maximum_ms = took_ms

    def percentile_ms(self, percent: float) -> float:
        """Upper bound of the class in which the percentile lies."""
        wanted, seen = sum(self.counts) * percent / 100, 0
        for place, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                bounds = _LATENCY_BOUNDS_MS
                return float(min(bounds[place], self.maximum_ms) if place < len(bounds) else self.maximum_ms)
        return 0.0

    def text(self) -> str:
        return " ".join(f"[{name}]:{count}" for name, count in zip(_LATENCY_NAMES, self.counts, strict=True))


class Statistics:
    """All of a broker's counts."""

    def __init__(self, clock: Clock, cluster_name: str) -> None:
        self._clock = clock
        self._cluster = cluster_name
        self._items: dict[str, dict[str, Item]] = {name: {} for name in NAMES}
        self._count = 0
        self.started_ms = clock.now_ms()
        self.now_ms = now = clock.monotonic_ms()
        self.puts, self.put_bytes = Total(now), Total(now)
        self.gets_found, self.gets_missed, self.gets_transferred = Total(now), Total(now), Total(now)
        self.put_failures = 0
        self.put_latencies = Latencies()
        self.get_longest_ms = 0
        # Totals at the last two midnights: (puts, gets).
        self.this_morning = self.yesterday_morning = (0, 0)
        self._hour = clock.local_hour()

    # -- counting --------------------------------------------------------------------------------------------

    def put(self, topic: str, count: int, size: int, took_ms: int = 0) -> None:
        """Messages of one topic were stored together."""
        now = self.now_ms
        self.item(TOPIC_PUT_NUMS, topic).add(count, 1, now)
        self.item(TOPIC_PUT_SIZE, topic).add(size, 1, now)
        self.item(BROKER_PUT_NUMS, self._cluster).add(count, 1, now)
        self.puts.value += count
        self.put_bytes.value += size
        self.put_latencies.record(took_ms, count)

    def got(self, group: str, topic: str, queue_id: int, count: int, size: int, took_ms: int = 0) -> None:
        """A pull of a group found messages."""
        now, key = self.now_ms, f"{topic}@{group}"
        self.item(GROUP_GET_NUMS, key).add(count, 1, now)
        self.item(GROUP_GET_SIZE, key).add(size, 1, now)
        self.item(GROUP_GET_LATENCY, f"{queue_id}@{key}").add(took_ms, 1, now)
        self.item(BROKER_GET_NUMS, self._cluster).add(count, 1, now)
        self.gets_found.value += 1
        self.gets_transferred.value += count
        if took_ms > self.get_longest_ms:
            self.get_longest_ms = took_ms

    def missed(self) -> None:
        """A pull found nothing."""
        self.gets_missed.value += 1

    def sent_back(self, group: str, topic: str, *, is_dead: bool) -> None:
        """A consumer gave a message back."""
        self.item(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(1, 1, self.now_ms)
        if is_dead:
            self.item(DLQ_PUT_NUMS, f"{topic}@{group}").add(1, 1, self.now_ms)

    def item(self, name: str, key: str) -> Item:
        """The item of a name and key; made if there is none."""
        items = self._items[name]
        found = items.get(key)
        if found is None:
            if self._count >= ITEMS_MAX:
                self._forget_idle()
            found = items[key] = Item(self.now_ms)
            self._count += 1
        return found

    def _forget_idle(self) -> None:
        """Make room: what stood still for a day goes, and if that is not enough, whatever stood still longest."""
        ages = sorted(
            (item.changed_ms, name, key) for name, items in self._items.items() for key, item in items.items()
        )
        for place, (changed_ms, name, key) in enumerate(ages):
            if place >= ITEMS_MAX // 10 and changed_ms > self.now_ms - _SPANS[-1][1]:
                break
            del self._items[name][key]
            self._count -= 1

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, name: str, key: str) -> Item | None:
        """An item if it was ever counted; None also for a name that does not exist."""
        return self._items.get(name, {}).get(key)

    def topic_put_tps(self, topic: str) -> float:
        """Messages per second stored in a topic, over the last minute."""
        return self._tps(TOPIC_PUT_NUMS, topic)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages per second that a group took from a topic, over the last minute."""
        return self._tps(GROUP_GET_NUMS, f"{topic}@{group}")

    def _tps(self, name: str, key: str) -> float:
        found = self.find(name, key)
        return 0.0 if found is None else found.window(0, self._clock.monotonic_ms()).per_second

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            if self._items[name].pop(topic, None) is not None:
                self._count -= 1

    def tick(self) -> None:
        """Once a second: the time that counts are booked under, and the samples of the totals."""
        self.now_ms = now = self._clock.monotonic_ms()
        for total in (
            self.puts,
            self.put_bytes,
            self.gets_found,
            self.gets_missed,
            self.gets_transferred,
        ):
            total.sample(now)
        hour = self._clock.local_hour()
        if hour < self._hour:
            self.yesterday_morning = self.this_morning
            self.this_morning = (self.puts.value, self.gets_transferred.value)
        self._hour = hour
