"""Headers that a name server reads and writes (codes 100-105, 205, 216, 217, 219, 224, 322, 327, 901, 904, 905).
Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.protocol.headers.header import I32, I64, Header

# -- key-value configuration ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfigRequestHeader(Header):
    """Code 100."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigRequestHeader(Header):
    """Code 101."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponseHeader(Header):
    """The answer of code 101."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfigRequestHeader(Header):
    """Code 102."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespaceRequestHeader(Header):
    """Code 219."""

    namespace: str


# -- brokers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequestHeader(Header):
    """Code 103. `body_crc32` 0 means that the body is not checked."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"zone_name": "__ZONE_NAME"}

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponseHeader(Header):
    """Where a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequestHeader(Header):
    """Code 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionRequestHeader(Header):
    """Code 322; the body is a data version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponseHeader(Header):
    """Whether the broker has to register in full."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequestHeader(Header):
    """Code 904: a broker lives; nothing else about it changed."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None
    election_priority: I32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroupRequestHeader(Header):
    """Code 901."""

    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyMinBrokerIdChangeRequestHeader(Header):
    """Code 905, from the name server to brokers."""

    min_broker_id: I64
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerRequestHeader(Header):
    """Code 205."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponseHeader(Header):
    """How many topics were touched."""

    wipe_topic_count: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerRequestHeader(Header):
    """Code 327."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerResponseHeader(Header):
    """How many topics were touched."""

    add_topic_count: I32


# -- topics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(Header):
    """Code 105."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"zone_mode": "__ZONE_MODE", "zone_name": "__ZONE_NAME"}

    topic: str
    accept_standard_json_only: bool | None = None
    zone_mode: bool | None = None
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrvRequestHeader(Header):
    """Code 216; with a cluster only that cluster's brokers lose the topic."""

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterTopicRequestHeader(Header):
    """Code 217; the body is route data."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByClusterRequestHeader(Header):
    """Code 224."""

    cluster: str
