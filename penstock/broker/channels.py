"""One client of the broker on one connection, as groups of producers and consumers know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.remoting import Connection
from penstock.security import Guard


@dataclass(frozen=True, slots=True)
class Publisher:
    """The user behind a client, where users are asked who they are."""

    user: str
    may_publish: Callable[[str], bool]
    # Whether it may publish to any topic at all.
    publishes: bool = True


@dataclass(slots=True)
class ClientChannel:
    """A member of a group. `last_update_ms` is wall time for people, `seen_ms` monotonic time for expiry."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_update_ms: int
    seen_ms: int
    # None: nobody is asked, or it may do everything.
    publisher: Publisher | None = None
    # Of a consumer: what it consumes, and how (`ConsumerData.terms`).
    terms: str = ""

    def may_publish(self, topic: str) -> bool:
        """Whether it may know, and end, what is sent to a topic."""
        return self.publisher is None or self.publisher.may_publish(topic)

    def touch(self, now_ms: int, seen_ms: int) -> None:
        """It was heard of again."""
        self.last_update_ms = now_ms
        self.seen_ms = seen_ms


def publisher_of(guard: Guard) -> Callable[[], Publisher | None]:
    """Who sends what is being handled, by the guard's word."""

    def identify() -> Publisher | None:
        sender = guard.sender()
        return None if sender is None else Publisher(*sender, guard.may_publish_anywhere)

    return identify
