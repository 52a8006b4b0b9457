"""Bodies of balancing by the coordinator (9021 to 9024) and of partition leases at a broker (9026 to 9028).

    beat      consumer -> coordinator: who I am, what I subscribe to, what I hold, what became of your last event
    answer    coordinator -> consumer: at most one event: give these queues up, or take these over
    lease     consumer -> broker: these queues of my group are mine; the broker says which, and whose the others are

Names and numbers of events are TubeMQ's. An event travels in every answer until its result came back, so losing one
costs a beat; `rebalanceId` grows over rounds and over leaders (term in the upper 31 bits), so an old event is known
as such. `queues` of a beat are all that the consumer holds, is about to hold or has not quite given up. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import ClassVar, Self, TypeVar

from penstock.metadata.fastjson import JsonObject
from penstock.protocol.bodies.body import INT32_MAX, REQUEST_LOOSE_MAX, Body, BodyFields, without_nulls
from penstock.protocol.bodies.queues import MessageQueue

N = TypeVar("N", bound=IntEnum)
TERM_SHIFT = 32
# Ext field of pulls and commits: the client id under which the queue is leased.
HOLDER_FIELD = "penstockHolder"


class EventType(IntEnum):
    """What an event tells a consumer to do; CONNECT and DISCONNECT come in pairs, the ONLY_ forms alone."""

    CONNECT = 1
    DISCONNECT = 2
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20

    @property
    def is_connect(self) -> bool:
        return self in (EventType.CONNECT, EventType.ONLY_CONNECT)


class EventStatus(IntEnum):
    """How far an event is."""

    TODO = 0
    PROCESSING = 1
    DONE = 2
    FAILED = -2


class ClientKind(StrEnum):
    """Who beats."""

    CONSUMER = "consumer"
    PRODUCER = "producer"


class SubscriptionMode(StrEnum):
    """How a group shares its topics with other groups.

    Clustering: any number of groups, each with any number of consumers. Point to point: no second group of this mode
    in a topic. Publish/subscribe: a group is one consumer.
    """

    CLUSTERING = "clustering"
    POINT_TO_POINT = "point_to_point"
    PUBLISH_SUBSCRIBE = "publish_subscribe"

    @property
    def option(self) -> int:
        """The mode as a number of eight bits."""
        return tuple(SubscriptionMode).index(self)


class Binding(StrEnum):
    """How the queues of a group are bound to its consumers: evenly, or by a consistent-hash ring."""

    EVEN = "even"
    RING = "ring"


def subscription_name(topic: str, mode: SubscriptionMode) -> str:
    """What the subscription of a topic in a mode is called: the topic and the kind."""
    return f"{topic}-{mode.value}"


@dataclass(frozen=True, slots=True)
class AssignmentEvent(Body):
    """One step of a rebalance for one consumer."""

    rebalance_id: int
    type: EventType
    queues: tuple[MessageQueue, ...] = ()
    status: EventStatus = EventStatus.TODO

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            rebalance_id=fields.i64("rebalanceId"),
            type=_member(fields, "opType", EventType, EventType.ONLY_DISCONNECT),
            queues=_queues(fields, "queues"),
            status=_member(fields, "status", EventStatus, EventStatus.TODO),
        )

    def to_json(self) -> JsonObject:
        return {
            "opType": int(self.type),
            "queues": [queue.to_json() for queue in self.queues],
            "rebalanceId": self.rebalance_id,
            "status": int(self.status),
        }

    @property
    def term(self) -> int:
        """Of the coordinator that made it."""
        return self.rebalance_id >> TERM_SHIFT


@dataclass(frozen=True, slots=True)
class LeasedElsewhere:
    """A queue that a broker refused, who has it there and for how long at most."""

    queue: MessageQueue
    holder: str = ""
    left_ms: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            MessageQueue.read(fields), fields.text("holder", ""), fields.integer("leftMs", 0, 0, INT32_MAX)
        )

    def to_json(self) -> JsonObject:
        return {**self.queue.to_json(), "holder": self.holder, "leftMs": self.left_ms}


@dataclass(frozen=True, slots=True)
class ClientBeatBody(Body):
    """9021 of a producer or a consumer; 9022 has the first three alone. `sequence` grows with every beat of a
    client, so that one that was held up on its way is not taken for news."""

    BYTES_MAX: ClassVar[int] = 2 * 1024 * 1024
    OBJECTS_MAX: ClassVar[int] = 20_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    client_id: str
    group: str
    kind: ClientKind = ClientKind.CONSUMER
    mode: SubscriptionMode = SubscriptionMode.CLUSTERING
    topics: tuple[str, ...] = ()
    queues: tuple[MessageQueue, ...] = ()
    result: AssignmentEvent | None = None
    refused: tuple[LeasedElsewhere, ...] = ()
    sequence: int = 0
    binding: Binding = Binding.EVEN

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        result = fields.inner("result")
        return cls(
            client_id=fields.text("clientId", ""),
            group=fields.text("group", ""),
            kind=ClientKind(fields.choice("kind", ClientKind.CONSUMER, tuple(ClientKind))),
            mode=SubscriptionMode(
                fields.choice("mode", SubscriptionMode.CLUSTERING, tuple(SubscriptionMode))
            ),
            topics=fields.text_list("topics"),
            queues=_queues(fields, "queues"),
            result=AssignmentEvent.read(result) if result is not None else None,
            refused=tuple(LeasedElsewhere.read(item) for item in fields.object_list("refused")),
            sequence=fields.i64("sequence"),
            binding=Binding(fields.choice("binding", Binding.EVEN, tuple(Binding))),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            clientId=self.client_id,
            group=self.group,
            kind=self.kind.value,
            mode=self.mode.value,
            topics=list(self.topics),
            queues=[queue.to_json() for queue in self.queues],
            result=self.result.to_json() if self.result is not None else None,
            refused=[one.to_json() for one in self.refused] or None,
            sequence=self.sequence,
            binding=self.binding.value if self.binding is not Binding.EVEN else None,
        )


@dataclass(frozen=True, slots=True)
class ClientBeatAnswer(Body):
    """`is_divided`: the queues were divided with this consumer as it is now, and nothing is left for it to do."""

    term: int = 0
    is_divided: bool = False
    event: AssignmentEvent | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        event = fields.inner("event")
        return cls(
            fields.i64("term"),
            fields.boolean("isDivided", False),
            AssignmentEvent.read(event) if event is not None else None,
        )

    def to_json(self) -> JsonObject:
        event = self.event.to_json() if self.event is not None else None
        return without_nulls(term=self.term, isDivided=self.is_divided, event=event)


@dataclass(frozen=True, slots=True)
class LeaseRequestBody(Body):
    """9026, 9027, 9028: the queues that a consumer of a group claims, goes on holding, or gives back."""

    BYTES_MAX: ClassVar[int] = 2 * 1024 * 1024
    OBJECTS_MAX: ClassVar[int] = 10_000
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    client_id: str
    group: str
    queues: tuple[MessageQueue, ...]

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text("clientId", ""), fields.text("group", ""), _queues(fields, "queues"))

    def to_json(self) -> JsonObject:
        return {
            "clientId": self.client_id,
            "group": self.group,
            "queues": [queue.to_json() for queue in self.queues],
        }


@dataclass(frozen=True, slots=True)
class LeaseAnswerBody(Body):
    """What the consumer holds now for `lease_ms`, counted from when it sent its request; and what others hold."""

    lease_ms: int
    granted: tuple[MessageQueue, ...] = ()
    refused: tuple[LeasedElsewhere, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.integer("leaseMs", 0, 0, INT32_MAX),
            _queues(fields, "granted"),
            tuple(LeasedElsewhere.read(item) for item in fields.object_list("refused")),
        )

    def to_json(self) -> JsonObject:
        return {
            "leaseMs": self.lease_ms,
            "granted": [queue.to_json() for queue in self.granted],
            "refused": [one.to_json() for one in self.refused],
        }


@dataclass(frozen=True, slots=True)
class PlacementBody(Body):
    """The answer of 9024: how many queues of the topic each broker set has now, and how many of them are new."""

    topic: str
    queues: Mapping[str, int] = field(default_factory=dict)
    created: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        queues = fields.inner("queues")
        return cls(
            fields.text("topic", ""),
            queues.named_integers(0, INT32_MAX) if queues is not None else {},
            fields.integer("created", 0, 0, INT32_MAX),
        )

    def to_json(self) -> JsonObject:
        return {"topic": self.topic, "queues": dict(self.queues), "created": self.created}


def _queues(fields: BodyFields, key: str) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue.read(item) for item in fields.object_list(key))


def _member(fields: BodyFields, key: str, kind: type[N], default: N) -> N:
    number = fields.i32(key, int(default))
    if number not in set(kind):
        fields.fail(key, f"must be one of {', '.join(str(int(one)) for one in kind)}")
    return kind(number)
