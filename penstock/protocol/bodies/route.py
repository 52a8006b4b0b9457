"""What a name server answers: routes (105, 217), clusters (106), members (901), lists and key-value tables.

Rule: keys of `brokerAddrs` are quoted, which every client reads; `encode(bare_keys=True)` gives the older form
that the reference sends to clients before 4.9.4. Plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from penstock.metadata.fastjson import BareKey, JsonObject, JsonValue
from penstock.protocol.bodies.body import INT32_MAX, INT64_MAX, Body, BodyFields, without_nulls

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class BrokerData(Body):
    """A master and its slaves: one broker name, addresses by broker id."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            cluster=fields.text("cluster", ""),
            broker_name=fields.text("brokerName", ""),
            broker_addrs=_read_addresses(fields),
            zone_name=fields.text_or_none("zoneName"),
            enable_acting_master=fields.boolean("enableActingMaster", False),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            brokerAddrs=_addresses_to_json(self.broker_addrs),
            brokerName=self.broker_name,
            cluster=self.cluster,
            enableActingMaster=self.enable_acting_master,
            zoneName=self.zone_name,
        )

    @property
    def master(self) -> str | None:
        """The address that takes writes."""
        return self.broker_addrs.get(MASTER_ID)

    @property
    def any_address(self) -> str | None:
        """The master, else the member with the smallest id."""
        return self.broker_addrs[min(self.broker_addrs)] if self.broker_addrs else None


@dataclass(frozen=True, slots=True)
class QueueData(Body):
    """How many queues of a topic a broker has. Permission bits: 4 read, 2 write, 1 inherit."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            broker_name=fields.text("brokerName", ""),
            read_queue_nums=fields.integer("readQueueNums", 0, 0, INT32_MAX),
            write_queue_nums=fields.integer("writeQueueNums", 0, 0, INT32_MAX),
            perm=fields.integer("perm", 0, 0, INT32_MAX),
            topic_sys_flag=fields.i32("topicSysFlag", fields.i32("topicSynFlag")),
        )

    def to_json(self) -> JsonObject:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & 4)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & 2)


@dataclass(frozen=True, slots=True)
class TopicRouteData(Body):
    """Where a topic lives."""

    broker_datas: tuple[BrokerData, ...] = ()
    queue_datas: tuple[QueueData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Static topics: broker name -> mapping, passed on as it came.
    queue_mapping: JsonObject | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        mapping = fields.raw("topicQueueMappingByBroker")
        return cls(
            broker_datas=tuple(BrokerData.read(item) for item in fields.object_list("brokerDatas")),
            queue_datas=tuple(QueueData.read(item) for item in fields.object_list("queueDatas")),
            order_topic_conf=fields.text_or_none("orderTopicConf"),
            filter_server_table=_read_lists(fields, "filterServerTable"),
            queue_mapping=mapping if fields.has("topicQueueMappingByBroker") else None,
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            brokerDatas=[item.to_json() for item in self.broker_datas],
            filterServerTable=_lists_to_json(self.filter_server_table),
            orderTopicConf=self.order_topic_conf,
            queueDatas=[item.to_json() for item in self.queue_datas],
            topicQueueMappingByBroker=self.queue_mapping,
        )


@dataclass(frozen=True, slots=True)
class LostBroker(Body):
    """A broker that died, and when a name server noticed it. Penstock's own."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    lost_ms: int

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            cluster=fields.text("cluster", ""),
            broker_name=fields.text("brokerName", ""),
            broker_id=fields.integer("brokerId", 0, 0, INT64_MAX),
            address=fields.text("brokerAddr", ""),
            lost_ms=fields.integer("lostTimestamp", 0, 0, INT64_MAX),
        )

    def to_json(self) -> JsonObject:
        return {
            "brokerAddr": self.address,
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "lostTimestamp": self.lost_ms,
        }


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body):
    """All brokers by name, and their names by cluster; from a name server of Penstock also those that died."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lost_brokers: tuple[LostBroker, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            {name: BrokerData.read(item) for name, item in fields.table("brokerAddrTable")},
            _read_lists(fields, "clusterAddrTable"),
            tuple(LostBroker.read(item) for item in fields.object_list("lostBrokers")),
        )

    def to_json(self) -> JsonObject:
        lost: list[JsonValue] = [one.to_json() for one in self.lost_brokers]
        return {
            "brokerAddrTable": {name: data.to_json() for name, data in self.broker_addr_table.items()},
            "clusterAddrTable": _lists_to_json(self.cluster_addr_table),
            **({"lostBrokers": lost} if lost else {}),
        }


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup(Body):
    """The addresses under one broker name (901)."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        member = fields.inner("brokerMemberGroup") or BodyFields({}, fields.source)
        return cls(member.text("cluster", ""), member.text("brokerName", ""), _read_addresses(member))

    def to_json(self) -> JsonObject:
        return {
            "brokerMemberGroup": {
                "brokerAddrs": _addresses_to_json(self.broker_addrs),
                "brokerName": self.broker_name,
                "cluster": self.cluster,
            }
        }


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Names of topics, and at times the address of a broker that knows more."""

    topics: tuple[str, ...] = ()
    broker_addr: str | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text_list("topicList"), fields.text_or_none("brokerAddr"))

    def to_json(self) -> JsonObject:
        return without_nulls(brokerAddr=self.broker_addr, topicList=list(self.topics))


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Strings by name."""

    table: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.texts("table"))

    def to_json(self) -> JsonObject:
        return {"table": {**self.table}}


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """Names of groups (300)."""

    groups: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(fields.text_list("groupList"))

    def to_json(self) -> JsonObject:
        return {"groupList": list(self.groups)}


def _read_addresses(fields: BodyFields) -> dict[int, str]:
    found: dict[int, str] = {}
    for key, address in fields.texts("brokerAddrs").items():
        if not (key.isascii() and key.isdigit() and len(key) <= 18):
            fields.fail("brokerAddrs", "must have broker ids as keys")
        found[int(key)] = address
    return found


def _addresses_to_json(addresses: Mapping[int, str]) -> JsonObject:
    return {BareKey(broker_id): addresses[broker_id] for broker_id in sorted(addresses)}


def _read_lists(fields: BodyFields, key: str) -> dict[str, tuple[str, ...]]:
    inner = fields.inner(key)
    return {} if inner is None else {name: inner.text_list(name) for name in inner.names()}


def _lists_to_json(lists: Mapping[str, tuple[str, ...]]) -> dict[str, JsonValue]:
    return {name: list(items) for name, items in lists.items()}
