"""Who is there: the lease tables of consumers, producers and brokers, as in TubeMQ's HeartbeatManager.

    consumer    45 s    node id `consumerId@group`
    producer    30 s    node id: the client id
    broker      25 s    node id `cluster/name/id`

Rules. A beat extends the node's own expiry and nobody else's. A scan, once a second, takes out whoever was silent
for its time and calls the table's listener; a dropped connection does the same at once for everyone who reported
over it. Whoever registered again over another connection, or as another instance, is not touched by what happens to
the earlier one. A listener that fails is logged, and the others are still called.

These tables say who is *there* (assignments, registry, placement). Who may acknowledge writes is a matter of
fractions of a second and lives in leases.py. Sans-I/O: time comes in as `now_ms`; owned by one event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

_LOG = logging.getLogger("penstock.coordinator")

CONSUMER_TIMEOUT_MS = 45_000
PRODUCER_TIMEOUT_MS = 30_000
BROKER_TIMEOUT_MS = 25_000
SCAN_INTERVAL_MS = 1_000


def broker_node(name: tuple[str, str], broker_id: int) -> str:
    """The node id of a broker."""
    return f"{name[0]}/{name[1]}/{broker_id}"


class Gone(Enum):
    """Why a node is not in its table any more."""

    TIMEOUT = "timeout"
    DROPPED = "dropped"
    CLOSED = "closed"


@dataclass(slots=True)
class TimeoutInfo:
    """One node's lease. `gone` is set when it has been taken out of its table."""

    node_id: str
    expires_ms: int
    # Tells two registrations of one node apart; empty where nobody needs to.
    instance: str = ""
    # The connection over which it reports; 0 where there is none.
    connection: int = 0
    gone: Gone | None = None


Listener = Callable[[str, TimeoutInfo], None]


class HeartbeatTable:
    """Leases of one kind of node."""

    def __init__(self, kind: str, timeout_ms: int, on_gone: Listener | None = None) -> None:
        self.kind = kind
        self.timeout_ms = timeout_ms
        self._listeners: list[Listener] = [on_gone] if on_gone is not None else []
        self._nodes: dict[str, TimeoutInfo] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __iter__(self) -> Iterator[TimeoutInfo]:
        return iter(list(self._nodes.values()))

    def get(self, node_id: str) -> TimeoutInfo | None:
        return self._nodes.get(node_id)

    def listen(self, on_gone: Listener) -> None:
        """Called with the node id and its lease for everyone who times out, drops or closes."""
        self._listeners.append(on_gone)

    def register(
        self, node_id: str, now_ms: int, *, instance: str = "", connection: int = 0
    ) -> TimeoutInfo | None:
        """A node begins to report, anew if it did before; the lease that this one replaces."""
        before = self._nodes.get(node_id)
        self._nodes[node_id] = TimeoutInfo(node_id, now_ms + self.timeout_ms, instance, connection)
        return before

    def beat(self, node_id: str, now_ms: int, *, instance: str = "", connection: int = 0) -> bool:
        """Extend a node's expiry. False if it has to register: it is unknown, or another instance registered."""
        node = self._nodes.get(node_id)
        if node is None or node.instance != instance:
            return False
        node.expires_ms = now_ms + self.timeout_ms
        if connection:
            node.connection = connection
        return True

    def close(self, node_id: str, *, instance: str = "") -> bool:
        """A node says that it leaves. False if it is not there, or another instance is."""
        node = self._nodes.get(node_id)
        if node is None or node.instance != instance:
            return False
        self._release(node, Gone.CLOSED)
        return True

    def connection_dropped(self, connection: int) -> list[TimeoutInfo]:
        """Release everyone who reported over a connection that is gone."""
        lost = [node for node in self._nodes.values() if node.connection == connection != 0]
        for node in lost:
            self._release(node, Gone.DROPPED)
        return lost

    def scan(self, now_ms: int) -> list[TimeoutInfo]:
        """Release everyone whose time is over."""
        found = [node for node in self._nodes.values() if now_ms >= node.expires_ms]
        late = []
        for node in found:
            # A listener may have let a node register again, or beat, since it was found.
            if self._nodes.get(node.node_id) is node and now_ms >= node.expires_ms:
                _LOG.warning("[%s Timeout] %s", self.kind, node.node_id)
                self._release(node, Gone.TIMEOUT)
                late.append(node)
        return late

    def refresh(self, now_ms: int) -> None:
        """Beats could not be taken for a while, which is nobody's fault."""
        for node in self._nodes.values():
            node.expires_ms = now_ms + self.timeout_ms

    def clear(self) -> None:
        """Forget everyone without a word: this coordinator does not lead any more."""
        self._nodes.clear()

    def _release(self, node: TimeoutInfo, why: Gone) -> None:
        del self._nodes[node.node_id]
        node.gone = why
        for listener in list(self._listeners):
            try:
                listener(node.node_id, node)
            except Exception:
                _LOG.exception("releasing the %s %s failed", self.kind.lower(), node.node_id)


class Heartbeats:
    """The three tables, looked at together in TubeMQ's order: consumers, producers, brokers."""

    def __init__(
        self,
        *,
        consumer_timeout_ms: int = CONSUMER_TIMEOUT_MS,
        producer_timeout_ms: int = PRODUCER_TIMEOUT_MS,
        broker_timeout_ms: int = BROKER_TIMEOUT_MS,
    ) -> None:
        self.consumers = HeartbeatTable("Consumer", consumer_timeout_ms)
        self.producers = HeartbeatTable("Producer", producer_timeout_ms)
        self.brokers = HeartbeatTable("Broker", broker_timeout_ms)
        self.tables = (self.consumers, self.producers, self.brokers)

    def scan(self, now_ms: int) -> list[TimeoutInfo]:
        """Release whoever was silent for too long."""
        return [node for table in self.tables for node in table.scan(now_ms)]

    def connection_dropped(self, connection: int) -> list[TimeoutInfo]:
        """Release whoever reported over a connection that is gone."""
        return [node for table in self.tables for node in table.connection_dropped(connection)]

    def refresh(self, now_ms: int) -> None:
        for table in self.tables:
            table.refresh(now_ms)

    def clear(self) -> None:
        for table in self.tables:
            table.clear()
