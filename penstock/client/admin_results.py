"""What the admin client finds out. Plain data, ready for JSON through `dataclasses.asdict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.protocol.bodies.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue of a topic: messages `min_offset` up to, not including, `max_offset`."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, over all brokers that have it. Permissions and attributes are by broker name."""

    name: str
    queues: tuple[QueueStatus, ...]
    brokers: dict[str, str]
    permissions: dict[str, int]
    attributes: dict[str, dict[str, str]]
    put_tps: float

    @property
    def messages(self) -> int:
        """Messages that are still there."""
        return sum(item.messages for item in self.queues)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A client of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group has come in a queue. `last_consumed_ms` is when its last consumed message was stored."""

    queue: MessageQueue
    committed: int
    end: int
    last_consumed_ms: int

    @property
    def lag(self) -> int:
        """Messages not consumed yet."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group: who is online, what they subscribe to (topic to expression), how far they are."""

    name: str
    members: tuple[GroupMember, ...]
    message_model: str
    consume_type: str
    consume_from: str
    subscriptions: dict[str, str]
    progress: tuple[QueueProgress, ...]
    consume_tps: float
    retry_max_times: int

    @property
    def is_online(self) -> bool:
        return bool(self.members)

    @property
    def lag(self) -> int:
        """Messages not consumed yet, over all queues."""
        return sum(item.lag for item in self.progress)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker process. `error` says why it could not be asked; then `figures` is empty. `down_since_ms` is when a
    name server noticed that it died, if it has not registered since; 0 for a registered one. `broker_id` is what it
    is registered with, 0 for every master; `member_id` is what its coordinators call it, or the same without any."""

    name: str
    broker_id: int
    cluster: str
    address: str
    version: str = ""
    put_tps: float = 0.0
    get_tps: float = 0.0
    figures: dict[str, str] = field(default_factory=dict)
    error: str = ""
    down_since_ms: int = 0
    member_id: int = 0

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0

    def figure(self, name: str) -> float | None:
        """One of its figures, if it is a number."""
        try:
            return float(self.figures[name])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Everything that a name server knows of, and what the brokers say of themselves."""

    name_servers: dict[str, bool]
    brokers: tuple[BrokerStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every name server and every broker answers."""
        return all(self.name_servers.values()) and not any(broker.error for broker in self.brokers)


@dataclass(frozen=True, slots=True)
class TimersWaiting:
    """Messages of one broker that wait for their time: how many of each topic, and how many records there are for the
    next so many seconds (recalls, and what only passes by on a longer way, are among them)."""

    broker: str
    topics: Mapping[str, int]
    ahead: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(self.topics.values())
