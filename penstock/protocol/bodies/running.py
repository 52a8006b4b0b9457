"""What running parts tell about themselves: consumers (307, 309) and replication (907). Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Self

from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.protocol.bodies.body import Body, BodyFields, without_nulls
from penstock.protocol.bodies.heartbeat import SubscriptionData, read_enum
from penstock.protocol.bodies.queues import MessageQueue, by_queue


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(Body):
    """What a consumer holds of one queue."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            commit_offset=fields.i64("commitOffset"),
            cached_msg_min_offset=fields.i64("cachedMsgMinOffset"),
            cached_msg_max_offset=fields.i64("cachedMsgMaxOffset"),
            cached_msg_count=fields.i32("cachedMsgCount"),
            cached_msg_size_in_mib=fields.i32("cachedMsgSizeInMiB"),
            transaction_msg_min_offset=fields.i64("transactionMsgMinOffset"),
            transaction_msg_max_offset=fields.i64("transactionMsgMaxOffset"),
            transaction_msg_count=fields.i32("transactionMsgCount"),
            locked=fields.boolean("locked", False),
            try_unlock_times=fields.i64("tryUnlockTimes"),
            last_lock_timestamp=fields.i64("lastLockTimestamp"),
            dropped=fields.boolean("droped", False),  # the wire spells it so
            last_pull_timestamp=fields.i64("lastPullTimestamp"),
            last_consume_timestamp=fields.i64("lastConsumeTimestamp"),
        )

    def to_json(self) -> JsonObject:
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_in_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": self.transaction_msg_count,
            "transactionMsgMaxOffset": self.transaction_msg_max_offset,
            "transactionMsgMinOffset": self.transaction_msg_min_offset,
            "tryUnlockTimes": self.try_unlock_times,
        }


@dataclass(frozen=True, slots=True)
class ConsumeStatus(Body):
    """How fast a consumer takes one topic. Times in ms, rates per second."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            pull_rt=fields.number("pullRT"),
            pull_tps=fields.number("pullTPS"),
            consume_rt=fields.number("consumeRT"),
            consume_ok_tps=fields.number("consumeOKTPS"),
            consume_failed_tps=fields.number("consumeFailedTPS"),
            consume_failed_msgs=fields.i64("consumeFailedMsgs"),
        )

    def to_json(self) -> JsonObject:
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": float(self.consume_failed_tps),
            "consumeOKTPS": float(self.consume_ok_tps),
            "consumeRT": float(self.consume_rt),
            "pullRT": float(self.pull_rt),
            "pullTPS": float(self.pull_tps),
        }


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(Body):
    """The state of one consumer (307). `properties` are its settings, as strings."""

    BARE_KEYS: ClassVar[bool] = True

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = ()
    queues: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    statuses: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        queues = by_queue(fields.table("mqTable"))
        return cls(
            properties=fields.texts("properties"),
            subscriptions=tuple(map(SubscriptionData.read, fields.object_list("subscriptionSet"))),
            queues={queue: ProcessQueueInfo.read(item) for queue, item in queues.items()},
            statuses={topic: ConsumeStatus.read(item) for topic, item in fields.table("statusTable")},
            user_consumer_info=fields.texts("userConsumerInfo"),
            jstack=fields.text_or_none("jstack"),
        )

    def to_json(self) -> JsonObject:
        queues: dict[str, JsonValue] = {
            queue.to_key(): self.queues[queue].to_json() for queue in sorted(self.queues)
        }
        return without_nulls(
            jstack=self.jstack,
            mqPopTable={},
            mqTable=queues,
            properties={**self.properties},
            statusTable=_to_json(self.statuses),
            subscriptionSet=[item.to_json() for item in self.subscriptions],
            userConsumerInfo={**self.user_consumer_info},
        )


class ConsumeResult(StrEnum):
    """How a message that was handed over on demand ended."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult(Body):
    """The answer of 309."""

    consume_result: ConsumeResult = ConsumeResult.CR_SUCCESS
    remark: str | None = None
    order: bool = False
    auto_commit: bool = True
    spent_time_mills: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            consume_result=read_enum(fields, "consumeResult", ConsumeResult.CR_RETURN_NULL),
            remark=fields.text_or_none("remark"),
            order=fields.boolean("order", False),
            auto_commit=fields.boolean("autoCommit", True),
            spent_time_mills=fields.i64("spentTimeMills"),
        )

    def to_json(self) -> JsonObject:
        return without_nulls(
            autoCommit=self.auto_commit,
            consumeResult=str(self.consume_result),
            order=self.order,
            remark=self.remark,
            spentTimeMills=self.spent_time_mills,
        )


# What the reference says of a broker that is no slave.
_NO_HA_CLIENT: JsonObject = {
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(Body):
    """One slave as its master sees it."""

    addr: str
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            addr=fields.text("addr", ""),
            slave_ack_offset=fields.i64("slaveAckOffset"),
            diff=fields.i64("diff"),
            in_sync=fields.boolean("inSync", False),
            transferred_byte_in_second=fields.i64("transferredByteInSecond"),
            transfer_from_where=fields.i64("transferFromWhere"),
        )

    def to_json(self) -> JsonObject:
        return {
            "addr": self.addr,
            "diff": self.diff,
            "inSync": self.in_sync,
            "slaveAckOffset": self.slave_ack_offset,
            "transferFromWhere": self.transfer_from_where,
            "transferredByteInSecond": self.transferred_byte_in_second,
        }


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(Body):
    """Replication of a broker (907); `client` is what a slave says about its master, passed on as it is."""

    is_master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    connections: tuple[HAConnectionRuntimeInfo, ...] = ()
    client: JsonObject = field(default_factory=lambda: dict(_NO_HA_CLIENT))

    @classmethod
    def read(cls, fields: BodyFields) -> Self:
        return cls(
            is_master=fields.boolean("master", False),
            master_commit_log_max_offset=fields.i64("masterCommitLogMaxOffset"),
            in_sync_slave_nums=fields.i32("inSyncSlaveNums"),
            connections=tuple(map(HAConnectionRuntimeInfo.read, fields.object_list("haConnectionInfo"))),
            client=fields.raw("haClientRuntimeInfo"),
        )

    def to_json(self) -> JsonObject:
        return {
            "haClientRuntimeInfo": self.client,
            "haConnectionInfo": [item.to_json() for item in self.connections],
            "inSyncSlaveNums": self.in_sync_slave_nums,
            "master": self.is_master,
            "masterCommitLogMaxOffset": self.master_commit_log_max_offset,
        }


def _to_json(table: Mapping[str, Body]) -> JsonObject:
    return {name: item.to_json() for name, item in table.items()}
