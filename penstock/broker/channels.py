"""One client of the broker on one connection, as groups of producers and consumers know it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.remoting import Connection


@dataclass(slots=True)
class ClientChannel:
    """A member of a group. `last_update_ms` is wall time for people, `seen_ms` monotonic time for expiry."""

    connection: Connection
    client_id: str
    language: str
    version: int
    last_update_ms: int
    seen_ms: int

    def touch(self, now_ms: int, seen_ms: int) -> None:
        """It was heard of again."""
        self.last_update_ms = now_ms
        self.seen_ms = seen_ms
