"""Bodies of RocketMQ's controller (1001, 1002, 1006, 1008) and of our beats (9020), reports (9025). Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.protocol.bodies.body import (
    INT32_MAX,
    INT64_MAX,
    REQUEST_LOOSE_MAX,
    Body,
    BodyFields,
    without_nulls,
)
from penstock.protocol.bodies.route import BrokerMemberGroup

# Brokers of one set; far more than anybody has.
MEMBERS_MAX = 1_000
TOPICS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class SyncStateSet(Body):
    """The replicas that have everything that was acknowledged, and how often that has changed."""

    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    members: frozenset[int] = frozenset()
    epoch: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        members = fields.integer_list("syncStateSet", 0, INT64_MAX)
        if len(members) > MEMBERS_MAX:
            fields.fail("syncStateSet", f"names more than {MEMBERS_MAX} brokers")
        return cls(frozenset(members), fields.integer("syncStateSetEpoch", 0, 0, INT32_MAX))

    def to_json(self) -> JsonObject:
        return {"syncStateSet": [*sorted(self.members)], "syncStateSetEpoch": self.epoch}


@dataclass(frozen=True, slots=True)
class ElectMasterResponseBody(Body):
    """Where everybody of a set is, after an election (1002)."""

    group: BrokerMemberGroup
    members: frozenset[int] = frozenset()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            BrokerMemberGroup.read(fields), frozenset(fields.integer_list("syncStateSet", 0, INT64_MAX))
        )

    def to_json(self) -> JsonObject:
        return {**self.group.to_json(), "syncStateSet": [*sorted(self.members)]}


@dataclass(frozen=True, slots=True)
class ReplicaIdentity(Body):
    """One broker of a set, as administrators see it."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.text("brokerName", ""),
            fields.i64("brokerId"),
            fields.text("brokerAddress", ""),
            fields.boolean("alive", False),
        )

    def to_json(self) -> JsonObject:
        return {
            "alive": self.alive,
            "brokerAddress": self.broker_address,
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
        }


@dataclass(frozen=True, slots=True)
class ReplicasInfo(Body):
    """One set, as administrators see it."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    in_sync: tuple[ReplicaIdentity, ...] = ()
    not_in_sync: tuple[ReplicaIdentity, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            fields.i64("masterBrokerId") if fields.has("masterBrokerId") else None,
            fields.text_or_none("masterAddress"),
            fields.i32("masterEpoch"),
            fields.i32("syncStateSetEpoch"),
            tuple(map(ReplicaIdentity.read, fields.object_list("inSyncReplicas"))),
            tuple(map(ReplicaIdentity.read, fields.object_list("notInSyncReplicas"))),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            inSyncReplicas=[one.to_json() for one in self.in_sync],
            masterAddress=self.master_address,
            masterBrokerId=self.master_broker_id,
            masterEpoch=self.master_epoch,
            notInSyncReplicas=[one.to_json() for one in self.not_in_sync],
            syncStateSetEpoch=self.sync_state_set_epoch,
        )


@dataclass(frozen=True, slots=True)
class BrokerReplicasInfo(Body):
    """Sets by broker name (1006)."""

    sets: Mapping[str, ReplicasInfo] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls({name: ReplicasInfo.read(item) for name, item in fields.table("replicasInfoTable")})

    def to_json(self) -> JsonObject:
        table: dict[str, JsonValue] = {name: one.to_json() for name, one in self.sets.items()}
        return {"replicasInfoTable": table}


@dataclass(frozen=True, slots=True)
class TopicTableReport(Body):
    """A master's topics in a beat (9020): name -> [read queues, write queues, permission bits]."""

    OBJECTS_MAX: ClassVar[int] = TOPICS_MAX + 10
    LOOSE_BYTES_MAX: ClassVar[int] = REQUEST_LOOSE_MAX

    topics: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        table = fields.inner("topics")
        found: dict[str, tuple[int, int, int]] = {}
        for name in table.names() if table is not None else ():
            numbers = table.integer_list(name, 0, INT32_MAX) if table is not None else ()
            if len(numbers) != 3:
                fields.fail(f"topics.{name[:80]}", "must be three numbers")
            found[name] = (numbers[0], numbers[1], numbers[2])
        return cls(found)

    def to_json(self) -> JsonObject:
        topics: dict[str, JsonValue] = {name: list(numbers) for name, numbers in self.topics.items()}
        return {"topics": topics}
