"""RocketMQ's names for the settings of a broker and its store, and which of them may change while it runs.

Operators read all of them (26) and change a few (25). What may change is an allow list with a range for each
number: no path, no address, no class and no command is on it, and nothing that a running store rests on (A8).
There is no secret among them. Values only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from penstock.broker.options import BrokerOptions
from penstock.errors import OptionError, RequestError
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import parse_integer
from penstock.store.options import FlushMode, StoreOptions

BROKER_KEYS = {
    "accessMessageInMemoryMaxRatio": "memory_percent",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "autoCreateTopicEnable": "auto_create_topics",
    "bindAddress": "host",
    "brokerClusterName": "cluster_name",
    "brokerIP1": "advertised_address",
    "brokerId": "broker_id",
    "brokerName": "broker_name",
    "brokerPermission": "permission",
    "brokerRole": "role",
    "channelExpiredTimeout": "channel_expiry_ms",
    "compressedRegister": "compressed_register",
    "defaultTopicQueueNums": "default_topic_queues",
    "enableAutoInSyncReplicas": "auto_in_sync_replicas",
    "enablePropertyFilter": "property_filters",
    "filterSupportRetry": "filter_retries",
    "enablePopBufferMerge": "pop_buffer",
    "enableRetryTopicV2": "pop_retry_topic_v2",
    "flushConsumerOffsetInterval": "offset_save_interval_ms",
    "flushDelayOffsetInterval": "delay_save_interval_ms",
    "haListenPort": "ha_port",
    "haMasterAddress": "ha_master_address",
    "haMaxGapNotInSync": "ha_max_gap_not_in_sync_bytes",
    "inSyncReplicas": "in_sync_replicas",
    "listenPort": "port",
    "litePullMessageEnable": "lite_pull",
    "longPollingEnable": "long_polling",
    "mappedFileSizeTimerLog": "timer_log_file_bytes",
    "maxTransferBytesOnMessageInDisk": "pull_bytes_disk_max",
    "maxTransferBytesOnMessageInMemory": "pull_bytes_memory_max",
    "maxTransferCountOnMessageInDisk": "pull_count_disk_max",
    "maxTransferCountOnMessageInMemory": "pull_count_memory_max",
    "minInSyncReplicas": "min_in_sync_replicas",
    "msgTraceTopicName": "trace_topic",
    "namesrvAddr": "name_servers",
    "popCkMaxBufferSize": "pop_check_points_max",
    "popCkStayBufferTime": "pop_buffer_stay_ms",
    "popFromRetryProbability": "pop_from_retry_percent",
    "popPollingSize": "pop_polls_max",
    "rebalanceLockMaxLiveTime": "queue_lock_expiry_ms",
    "recallMessageEnable": "recall",
    "regionId": "region_id",
    "registerBrokerTimeoutMills": "register_timeout_ms",
    "registerNameServerPeriod": "register_interval_ms",
    "rejectTransactionMessage": "reject_transactions",
    "sendThreadPoolQueueCapacity": "sends_waiting_max",
    "serverLoadBalancerEnable": "server_assignment",
    "shortPollingTimeMills": "short_polling_ms",
    "slaveReadEnable": "slave_reads",
    "slaveTimeout": "slave_timeout_ms",
    "startAcceptSendRequestTimeStamp": "accept_sends_from_ms",
    "storeReplyMessageEnable": "store_replies",
    "timerCongestNumEachSlot": "timer_slot_max",
    "timerMaxDelaySec": "timer_max_delay_s",
    "timerRollWindowSlot": "timer_roll_window_slots",
    "timerWheelEnable": "timers",
    "traceOn": "trace_on",
    "traceTopicEnable": "trace_topic_enabled",
    "transactionCheckInterval": "transaction_check_interval_ms",
    "transactionCheckMax": "transaction_check_max",
    "transactionTimeOut": "transaction_timeout_ms",
    "useServerSideResetOffset": "server_side_reset",
}
STORE_KEYS: dict[str, Callable[[StoreOptions], object]] = {
    "cleanFileForciblyEnable": lambda store: store.clean_forcibly_enabled,
    "cleanResourceInterval": lambda store: store.clean_interval_ms,
    "deleteWhen": lambda store: store.delete_when,
    "diskMaxUsedSpaceRatio": lambda store: store.disk_max_used_percent,
    "diskSpaceCleanForciblyRatio": lambda store: store.disk_clean_forcibly_percent / 100,
    "diskSpaceWarningLevelRatio": lambda store: store.disk_warning_percent / 100,
    "enabledAppendPropCRC": lambda store: store.seal_records,
    "fileReservedTime": lambda store: store.file_reserved_hours,
    "flushDiskType": lambda store: "SYNC_FLUSH" if store.flush_mode is FlushMode.SYNC else "ASYNC_FLUSH",
    "flushIntervalCommitLog": lambda store: store.flush_interval_ms,
    "mappedFileSizeCommitLog": lambda store: store.segment_size_bytes,
    "mappedFileSizeConsumeQueue": lambda store: store.queue_file_size_bytes,
    "maxHashSlotNum": lambda store: store.index_slots,
    "maxIndexNum": lambda store: store.index_entries,
    "maxMessageSize": lambda store: store.max_message_size_bytes,
    "messageDelayLevel": lambda store: store.delay_levels,
    "messageIndexEnable": lambda store: store.index_enabled,
    "syncFlushTimeout": lambda store: store.sync_flush_timeout_ms,
}


@dataclass(frozen=True, slots=True)
class Range:
    """Values that a number may have."""

    low: int
    high: int


# Keys that may change at run time; None is for those that are true or false.
CHANGEABLE: dict[str, Range | None] = {
    "accessMessageInMemoryMaxRatio": Range(0, 100),
    "autoCreateSubscriptionGroup": None,
    "autoCreateTopicEnable": None,
    "brokerPermission": Range(0, 7),
    "enablePropertyFilter": None,
    "filterSupportRetry": None,
    "litePullMessageEnable": None,
    "longPollingEnable": None,
    "maxTransferBytesOnMessageInDisk": Range(1, 16 << 20),
    "maxTransferBytesOnMessageInMemory": Range(1, 16 << 20),
    "maxTransferCountOnMessageInDisk": Range(1, 100_000),
    "maxTransferCountOnMessageInMemory": Range(1, 100_000),
    "recallMessageEnable": None,
    "rejectTransactionMessage": None,
    "sendThreadPoolQueueCapacity": Range(1, 10_000_000),
    "shortPollingTimeMills": Range(1, 60_000),
    "slaveReadEnable": None,
    "startAcceptSendRequestTimeStamp": Range(0, 2**62),
    "storeReplyMessageEnable": None,
    "timerMaxDelaySec": Range(1, 315_360_000),
    "traceOn": None,
    "transactionCheckInterval": Range(100, 3_600_000),
    "transactionCheckMax": Range(1, 10_000),
    "transactionTimeOut": Range(0, 3_600_000),
    "useServerSideResetOffset": None,
}
LINES_MAX = 200


def parse_lines(data: bytes) -> dict[str, str]:
    """`key=value` lines as Java's properties have them, without their escapes; comments are skipped."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the body is no text") from error
    if len(lines) > LINES_MAX:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {LINES_MAX} lines")
    pairs: dict[str, str] = {}
    for line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{stripped[:80]!r} is no setting", "write key=value"
            )
        pairs[key.strip()] = value.strip()
    return pairs


def changed(options: BrokerOptions, pairs: dict[str, str]) -> BrokerOptions:
    """The options with these settings; all of them or none. Raises RequestError 16 for keys that may not change."""
    refused = [key for key in pairs if key not in CHANGEABLE]
    if refused:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(sorted(refused))[:200]} cannot be changed while the broker runs",
            f"these can: {', '.join(sorted(CHANGEABLE))}",
        )
    values: dict[str, Any] = {BROKER_KEYS[key]: _value(key, text) for key, text in pairs.items()}
    try:
        return replace(options, **values)
    except OptionError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, error.message, error.hint) from error


def _value(key: str, text: str) -> int | bool:
    bounds = CHANGEABLE[key]
    if bounds is not None:
        try:
            return parse_integer(key, text, bounds.low, bounds.high)
        except RequestError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, error.message) from error
    if text.lower() not in ("true", "false"):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{key} is {text[:40]!r}", "use true or false")
    return text.lower() == "true"


def as_text(value: object) -> str:
    """A value as RocketMQ's files have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name
    return ";".join(value) if isinstance(value, tuple) else str(value)


def as_lines(options: BrokerOptions, store: StoreOptions) -> bytes:
    """All settings, one per line: RocketMQ's names first, then what only Penstock has, under its own."""
    lines = {key: as_text(getattr(options, name)) for key, name in BROKER_KEYS.items()}
    lines |= {key: as_text(read(store)) for key, read in STORE_KEYS.items()}
    known = set(BROKER_KEYS.values())
    own = {
        f"penstock.{f.name}": as_text(getattr(options, f.name))
        for f in fields(options)
        if f.name not in known
    }
    return "".join(
        f"{key}={value}\n" for key, value in [*sorted(lines.items()), *sorted(own.items())]
    ).encode()
