"""How far topics and groups are: answers of 202, 208, 303, 308, 315, 317, 321, 353, 907. Plain values.

Maps by queue are written with bare keys, as the reference does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.metadata.fastjson import BareKey, JsonObject, JsonValue
from penstock.protocol.bodies.body import INT64_MAX, INT64_MIN, Body, BodyFields, without_nulls
from penstock.protocol.bodies.heartbeat import SubscriptionData
from penstock.protocol.bodies.queues import MessageQueue, by_queue


@dataclass(frozen=True, slots=True)
class TopicOffset(Body):
    """The range of a queue, and when its newest message was stored."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.i64("minOffset"), fields.i64("maxOffset"), fields.i64("lastUpdateTimestamp"))

    def to_json(self) -> JsonObject:
        return {
            "lastUpdateTimestamp": self.last_update_timestamp,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }


@dataclass(frozen=True, slots=True)
class TopicStatsTable(Body):
    """All queues of a topic on one broker (202)."""

    BARE_KEYS: ClassVar[bool] = True

    offsets: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        table = by_queue(fields.table("offsetTable"))
        return cls(
            {queue: TopicOffset.read(item) for queue, item in table.items()}, fields.number("topicPutTps")
        )

    def to_json(self) -> JsonObject:
        table: dict[str, JsonValue] = {
            queue.to_key(): self.offsets[queue].to_json() for queue in sorted(self.offsets)
        }
        return {"offsetTable": table, "topicPutTps": float(self.topic_put_tps)}


@dataclass(frozen=True, slots=True)
class OffsetWrapper(Body):
    """A group's place in a queue. `last_timestamp` is the store time of the last message consumed."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        consumer_offset = fields.i64("consumerOffset")
        return cls(
            broker_offset=fields.i64("brokerOffset"),
            consumer_offset=consumer_offset,
            # Brokers before 5.0 know no pull offset.
            pull_offset=fields.i64("pullOffset", consumer_offset),
            last_timestamp=fields.i64("lastTimestamp"),
        )

    def to_json(self) -> JsonObject:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
        }

    @property
    def lag(self) -> int:
        """Messages not yet consumed."""
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class ConsumeStats(Body):
    """A group's place in all queues of its topics on one broker (208)."""

    BARE_KEYS: ClassVar[bool] = True

    offsets: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        table = by_queue(fields.table("offsetTable"))
        return cls(
            {queue: OffsetWrapper.read(item) for queue, item in table.items()}, fields.number("consumeTps")
        )

    def to_json(self) -> JsonObject:
        table: dict[str, JsonValue] = {
            queue.to_key(): self.offsets[queue].to_json() for queue in sorted(self.offsets)
        }
        return {"consumeTps": float(self.consume_tps), "offsetTable": table}

    @property
    def lag(self) -> int:
        return sum(item.lag for item in self.offsets.values())


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(Body):
    """The stats of all groups of a broker (317)."""

    BARE_KEYS: ClassVar[bool] = True

    groups: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            groups=tuple(
                {name: tuple(map(ConsumeStats.read, item.object_list(name))) for name in item.names()}
                for item in fields.object_list("consumeStatsList")
            ),
            broker_addr=fields.text_or_none("brokerAddr"),
            total_diff=fields.i64("totalDiff"),
            total_inflight_diff=fields.i64("totalInflightDiff"),
        )

    def to_json(self) -> JsonObject:
        groups: list[JsonValue] = [
            {name: [item.to_json() for item in stats] for name, stats in group.items()}
            for group in self.groups
        ]
        return without_nulls(
            brokerAddr=self.broker_addr,
            consumeStatsList=groups,
            totalDiff=self.total_diff,
            totalInflightDiff=self.total_inflight_diff,
        )


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(Body):
    """Store times of a queue's first and last message and of the next to consume, and the delay in between."""

    queue: MessageQueue
    min_timestamp: int = 0
    max_timestamp: int = 0
    consume_timestamp: int = 0
    delay_time: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        queue = fields.inner("messageQueue") or BodyFields({}, fields.source)
        return cls(
            queue=MessageQueue.read(queue),
            min_timestamp=fields.i64("minTimeStamp"),
            max_timestamp=fields.i64("maxTimeStamp"),
            consume_timestamp=fields.i64("consumeTimeStamp"),
            delay_time=fields.i64("delayTime"),
        )

    def to_json(self) -> JsonObject:
        return {
            "consumeTimeStamp": self.consume_timestamp,
            "delayTime": self.delay_time,
            "maxTimeStamp": self.max_timestamp,
            "messageQueue": self.queue.to_json(),
            "minTimeStamp": self.min_timestamp,
        }


@dataclass(frozen=True, slots=True)
class QueryConsumeTimeSpanBody(Body):
    """All queues of a topic in time (303)."""

    spans: tuple[QueueTimeSpan, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(tuple(map(QueueTimeSpan.read, fields.object_list("consumeTimeSpanSet"))))

    def to_json(self) -> JsonObject:
        return {"consumeTimeSpanSet": [item.to_json() for item in self.spans]}


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(Body):
    """Offsets by queue number (308)."""

    BARE_KEYS: ClassVar[bool] = True

    offsets: dict[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.integers("correctionOffsets", 0, INT64_MIN, INT64_MAX))

    def to_json(self) -> JsonObject:
        return {"correctionOffsets": {BareKey(queue): self.offsets[queue] for queue in sorted(self.offsets)}}


@dataclass(frozen=True, slots=True)
class GroupForbidden(Body):
    """Whether a group may read a topic (353)."""

    group: str
    topic: str
    readable: bool | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        readable = fields.boolean("readable", True) if fields.has("readable") else None
        return cls(fields.text("group", ""), fields.text("topic", ""), readable)

    def to_json(self) -> JsonObject:
        return without_nulls(group=self.group, readable=self.readable, topic=self.topic)


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(Body):
    """A counter over some time: its sum, per second, and the average per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.i64("sum"), fields.number("tps"), fields.number("avgpt"))

    def to_json(self) -> JsonObject:
        return {"avgpt": float(self.avgpt), "sum": self.sum, "tps": float(self.tps)}


@dataclass(frozen=True, slots=True)
class BrokerStatsData(Body):
    """A counter over the last minute, hour and day (315)."""

    minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    day: BrokerStatsItem = field(default_factory=BrokerStatsItem)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        spans = [fields.inner(key) for key in ("statsMinute", "statsHour", "statsDay")]
        return cls(*(BrokerStatsItem() if span is None else BrokerStatsItem.read(span) for span in spans))

    def to_json(self) -> JsonObject:
        return {
            "statsDay": self.day.to_json(),
            "statsHour": self.hour.to_json(),
            "statsMinute": self.minute.to_json(),
        }


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(Body):
    """One entry of a consume queue; `eval` tells whether the group's filter takes it, `msg` why not."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = True
    msg: str | None = None
    extend_data_json: str | None = None
    bit_map: str | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            physic_offset=fields.i64("physicOffset"),
            physic_size=fields.i32("physicSize"),
            tags_code=fields.i64("tagsCode"),
            eval=fields.boolean("eval", False),
            msg=fields.text_or_none("msg"),
            extend_data_json=fields.text_or_none("extendDataJson"),
            bit_map=fields.text_or_none("bitMap"),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            bitMap=self.bit_map,
            eval=self.eval,
            extendDataJson=self.extend_data_json,
            msg=self.msg,
            physicOffset=self.physic_offset,
            physicSize=self.physic_size,
            tagsCode=self.tags_code,
        )


@dataclass(frozen=True, slots=True)
class QueryConsumeQueueResponseBody(Body):
    """Entries of a consume queue and its range (321)."""

    entries: tuple[ConsumeQueueData, ...] = ()
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription: SubscriptionData | None = None
    filter_data: str | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        subscription = fields.inner("subscriptionData")
        return cls(
            entries=tuple(map(ConsumeQueueData.read, fields.object_list("queueData"))),
            min_queue_index=fields.i64("minQueueIndex"),
            max_queue_index=fields.i64("maxQueueIndex"),
            subscription=None if subscription is None else SubscriptionData.read(subscription),
            filter_data=fields.text_or_none("filterData"),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            filterData=self.filter_data,
            maxQueueIndex=self.max_queue_index,
            minQueueIndex=self.min_queue_index,
            queueData=[item.to_json() for item in self.entries],
            subscriptionData=None if self.subscription is None else self.subscription.to_json(),
        )
