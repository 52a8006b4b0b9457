"""Who is in a group, as members and administrators ask (38, 203, 204, 328, 345). Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.protocol.bodies.body import Body, BodyFields, without_nulls
from penstock.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
    read_enum,
)


@dataclass(frozen=True, slots=True)
class ConsumerList(Body):
    """The client ids of a group (38)."""

    consumer_ids: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text_list("consumerIdList"))

    def to_json(self) -> JsonObject:
        return {"consumerIdList": list(self.consumer_ids)}


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponseBody(Body):
    """How a group subscribes to a topic (345)."""

    group: str
    topic: str
    subscription: SubscriptionData | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        subscription = fields.inner("subscriptionData")
        return cls(
            fields.text("group", ""),
            fields.text("topic", ""),
            None if subscription is None else SubscriptionData.read(subscription),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            group=self.group,
            subscriptionData=None if self.subscription is None else self.subscription.to_json(),
            topic=self.topic,
        )


@dataclass(frozen=True, slots=True)
class ClientConnection(Body):
    """One client of a group, as administrators see it. `terms` is Penstock's own: what this member consumes, and
    how (`ConsumerData.terms`); RocketMQ's brokers know that of the group only."""

    client_id: str
    client_addr: str
    language: str = "JAVA"
    version: int = 0
    terms: str = ""

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            client_id=fields.text("clientId", ""),
            client_addr=fields.text("clientAddr", ""),
            language=fields.text("language", "OTHER"),
            version=fields.i32("version"),
            terms=fields.text("penstockTerms", ""),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            clientAddr=self.client_addr,
            clientId=self.client_id,
            language=self.language,
            penstockTerms=self.terms or None,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class ConsumerConnection(Body):
    """The clients of a consumer group and what they subscribed to (203)."""

    connections: tuple[ClientConnection, ...] = ()
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        subscriptions = fields.table("subscriptionTable")
        return cls(
            connections=tuple(map(ClientConnection.read, fields.object_list("connectionSet"))),
            subscriptions={topic: SubscriptionData.read(item) for topic, item in subscriptions},
            consume_type=read_enum(fields, "consumeType", ConsumeType.CONSUME_PASSIVELY),
            message_model=read_enum(fields, "messageModel", MessageModel.CLUSTERING),
            consume_from_where=read_enum(
                fields, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            ),
        )

    def to_json(self) -> JsonObject:
        subscriptions: dict[str, JsonValue] = {
            topic: item.to_json() for topic, item in self.subscriptions.items()
        }
        return {
            "connectionSet": [item.to_json() for item in self.connections],
            "consumeFromWhere": str(self.consume_from_where),
            "consumeType": str(self.consume_type),
            "messageModel": str(self.message_model),
            "subscriptionTable": subscriptions,
        }


@dataclass(frozen=True, slots=True)
class ProducerConnection(Body):
    """The clients of a producer group (204)."""

    connections: tuple[ClientConnection, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(tuple(map(ClientConnection.read, fields.object_list("connectionSet"))))

    def to_json(self) -> JsonObject:
        return {"connectionSet": [item.to_json() for item in self.connections]}


@dataclass(frozen=True, slots=True)
class ProducerInfo(Body):
    """One producing client, with the time of its last heartbeat."""

    client_id: str
    remote_ip: str
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            client_id=fields.text("clientId", ""),
            remote_ip=fields.text("remoteIP", ""),
            language=fields.text("language", "OTHER"),
            version=fields.i32("version"),
            last_update_timestamp=fields.i64("lastUpdateTimestamp"),
        )

    def to_json(self) -> JsonObject:
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ProducerTableInfo(Body):
    """All producing clients by group (328)."""

    producers: dict[str, tuple[ProducerInfo, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        groups = fields.inner("data")
        if groups is None:
            return cls()
        return cls({name: tuple(map(ProducerInfo.read, groups.object_list(name))) for name in groups.names()})

    def to_json(self) -> JsonObject:
        groups: dict[str, JsonValue] = {
            name: [item.to_json() for item in items] for name, items in self.producers.items()
        }
        return {"data": groups}
