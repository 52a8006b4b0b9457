"""Headers of consumption: pull, offsets, send back, membership, message lookup (codes 11, 12, 14, 15, 29-33,
35, 36, 38, 40, 321, 361). Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import ClassVar

from penstock.protocol.headers.header import I32, I64, Header


class PullSysFlag(IntFlag):
    """What a pull also asks for."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


# In a pull of Penstock's clients, which take more messages in one answer than RocketMQ's limits allow: a consumer's
# batch, or a scan, as Spark reads.
PULL_FIELD = "penstockPull"
PULL_BATCH, PULL_SCAN = "batch", "scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequestHeader(Header):
    """`subscription` and `expression_type` count only with PullSysFlag.SUBSCRIPTION."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {
        "proxy_forward_client_id": "proxyFrowardClientId",  # that misspelling is the wire name
        "broker_name": "bname",
    }

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    subscription: str | None = None
    sub_version: I64
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_forward_client_id: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponseHeader(Header):
    """The first four must be there on codes 0, 19, 20 and 21: Java clients fail without them."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


# -- offsets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(Header):
    """Code 14."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(Header):
    """Code 15; any offset is stored, also a smaller one."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(Header):
    """Code 29; `boundary_type` is LOWER or UPPER in any case."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None

    @property
    def is_upper(self) -> bool:
        return (self.boundary_type or "").upper() == "UPPER"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequestHeader(Header):
    """Code 30."""

    topic: str
    queue_id: I32
    committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequestHeader(Header):
    """Code 31."""

    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(Header):
    """Code 32."""

    topic: str
    queue_id: I32


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseHeader(Header):
    """The answer of codes 14, 29, 30 and 31."""

    offset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """The answer of code 32; -1 if there is no message."""

    timestamp: I64


# -- membership ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequestHeader(Header):
    """Code 35."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponseHeader(Header):
    """The answer of code 34. Both fields absent: the broker does not do the short form of heartbeats."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {
        "is_support_heartbeat_v2": "IS_SUPPORT_HEART_BEAT_V2",
        "is_sub_change": "IS_SUB_CHANGE",
    }

    is_support_heartbeat_v2: bool | None = None
    is_sub_change: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupRequestHeader(Header):
    """Code 38."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(Header):
    """Code 40, from the broker to a client."""

    consumer_group: str


# -- messages one by one -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequestHeader(Header):
    """Code 36. `offset` is the place in the log; a negative `delay_level` means the dead-letter queue. The reason
    is our clients' own; RocketMQ's brokers ignore it."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname", "reason": "penstockReason"}

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None
    broker_name: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(Header):
    """Code 12. The end may be the largest number of 64 bits."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"is_unique_key": "_UNIQUE_KEY_QUERY"}

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    is_unique_key: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseHeader(Header):
    """There also when nothing was found (code 22)."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(Header):
    """Code 33. `offset` is the place in the log."""

    offset: I64
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumeQueueRequestHeader(Header):
    """Code 321: `count` queue entries from `index` on."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None
