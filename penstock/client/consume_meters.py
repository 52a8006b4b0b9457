"""What a consumer counts, per topic: enough for the running info that an administrator may ask of it.

Rates are over the last minute, in buckets of ten seconds; the number of failures is over the last hour, in
buckets of five minutes. Belongs to the consumer's event loop.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.protocol.bodies import ConsumeStatus
from penstock.runtime import Clock

if TYPE_CHECKING:
    from penstock.client.handout import Report

SECONDS = 1_000
MINUTE = 60 * SECONDS


class Window:
    """A sum over the last `buckets` spans of time."""

    __slots__ = ("_buckets", "_span_ms")

    def __init__(self, span_ms: int, buckets: int) -> None:
        self._span_ms = span_ms
        self._buckets: deque[tuple[int, float]] = deque(maxlen=buckets)

    def add(self, now_ms: int, amount: float) -> None:
        number = now_ms // self._span_ms
        if self._buckets and self._buckets[-1][0] == number:
            self._buckets[-1] = (number, self._buckets[-1][1] + amount)
        else:
            self._buckets.append((number, amount))

    def sum(self, now_ms: int) -> float:
        oldest = now_ms // self._span_ms - (self._buckets.maxlen or 0)
        return sum(amount for number, amount in self._buckets if number > oldest)


class TopicMeters:
    """One topic's."""

    __slots__ = ("done", "failed", "failed_hour", "pull_ms", "pulled", "pulls", "spent_ms")

    def __init__(self) -> None:
        self.done = Window(10 * SECONDS, 6)
        self.failed = Window(10 * SECONDS, 6)
        self.failed_hour = Window(5 * MINUTE, 12)
        self.spent_ms = Window(10 * SECONDS, 6)
        self.pulls = Window(10 * SECONDS, 6)
        self.pulled = Window(10 * SECONDS, 6)
        self.pull_ms = Window(10 * SECONDS, 6)


class ConsumeMeters:
    """All topics' of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._topics: dict[str, TopicMeters] = {}
        # Since the consumer began.
        self.done = 0
        self.failed = 0

    def consumed(self, report: Report) -> None:
        """A lot was worked on."""
        done, failed = len(report.done), len(report.failed)
        if not done and not failed:
            return
        self.done += done
        self.failed += failed
        now, topic = self.clock.monotonic_ms(), self._of(report.owner.queue.topic)
        topic.done.add(now, done)
        topic.spent_ms.add(now, report.spent_ms)
        if failed:
            topic.failed.add(now, failed)
            topic.failed_hour.add(now, failed)

    def pulled(self, topic_name: str, messages: int, spent_ms: float) -> None:
        """A pull brought messages."""
        now, topic = self.clock.monotonic_ms(), self._of(topic_name)
        topic.pulls.add(now, 1)
        topic.pulled.add(now, messages)
        topic.pull_ms.add(now, spent_ms)

    def status(self, topic_name: str) -> ConsumeStatus:
        """The figures of a topic, as an administrator gets them."""
        now, topic = self.clock.monotonic_ms(), self._of(topic_name)
        done, failed, pulls = topic.done.sum(now), topic.failed.sum(now), topic.pulls.sum(now)
        return ConsumeStatus(
            pull_rt=topic.pull_ms.sum(now) / pulls if pulls else 0.0,
            pull_tps=topic.pulled.sum(now) / 60,
            consume_rt=topic.spent_ms.sum(now) / (done + failed) if done + failed else 0.0,
            consume_ok_tps=done / 60,
            consume_failed_tps=failed / 60,
            consume_failed_msgs=int(topic.failed_hour.sum(now)),
        )

    def _of(self, topic: str) -> TopicMeters:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicMeters()
        return found
