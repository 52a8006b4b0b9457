"""The producers that report, and which topics they publish: TubeMQ's ProducerInfoHolder and its publish index.

Rule: a producer is here exactly as long as it is in the table of heartbeats. Sans-I/O; owned by the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode

PRODUCERS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Publisher:
    """One producer."""

    client_id: str
    group: str
    topics: frozenset[str]


class Publishers:
    """All producers, by client id and by topic."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers_max = producers_max
        self._publishers: dict[str, Publisher] = {}
        self._topics: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._publishers)

    def beat(self, client_id: str, group: str, topics: frozenset[str]) -> None:
        """A producer reports what it publishes."""
        if client_id not in self._publishers and len(self._publishers) >= self._producers_max:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                "too many producers report here",
                f"at most {self._producers_max} do",
            )
        known = self._publishers.get(client_id)
        if known is None or known.topics != topics or known.group != group:
            self.release(client_id)
            self._publishers[client_id] = Publisher(client_id, group, topics)
            for topic in topics:
                self._topics.setdefault(topic, set()).add(client_id)

    def release(self, client_id: str) -> None:
        """A producer is gone."""
        known = self._publishers.pop(client_id, None)
        for topic in known.topics if known is not None else ():
            publishers = self._topics[topic]
            publishers.discard(client_id)
            if not publishers:
                del self._topics[topic]

    def of(self, topic: str) -> list[str]:
        """Client ids that publish a topic."""
        return sorted(self._topics.get(topic, ()))

    def clear(self) -> None:
        """This coordinator does not lead any more."""
        self._publishers.clear()
        self._topics.clear()
