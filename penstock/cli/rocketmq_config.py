"""RocketMQ's `broker.conf` and `namesrv.properties`: which of our options each of their keys is.

A key that we have no option for is named in a warning with its line, never passed over in silence. A few keys
change what the user may rely on so much that going on without them would be wrong; those are errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.config_text import Line
from penstock.cli.settings import TRUE_WORDS, Setting, ValueProblem
from penstock.errors import OptionError, did_you_mean


@dataclass(frozen=True, slots=True)
class Key:
    """The option that a key of RocketMQ's sets."""

    section: str
    name: str
    convert: Callable[[str], object] = str


def _flush(text: str) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if text not in modes:
        raise ValueProblem(f"is {text!r}: use SYNC_FLUSH or ASYNC_FLUSH")
    return modes[text]


def _queue_entries(text: str) -> int:
    """Bytes of a queue file as entries of 20 bytes; RocketMQ rounds up as well."""
    if not text.isascii() or not text.isdigit():
        raise ValueProblem(f"is {text!r}, not a number of bytes")
    return -(-int(text) // 20)


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueProblem(f"is {text!r}, not a number of seconds")
    return int(text) * 1000


def _needs_certificate(text: str) -> bool:
    if text not in ("none", "optional", "require"):
        raise ValueProblem(f"is {text!r}: use none or require")
    return text == "require"


def _pops(text: str) -> bool:
    if text not in ("PULL", "POP"):
        raise ValueProblem(f"is {text!r}: use PULL or POP")
    return text == "POP"


def _at_least_none(text: str) -> int:
    """Any negative number is what 0 is."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        raise ValueProblem(f"is {text!r}, not a number")
    return max(int(text), 0)


STORE_KEYS = {
    "cleanFileForciblyEnable": Key("store", "clean_forcibly_enabled"),
    "cleanResourceInterval": Key("store", "clean_interval_ms"),
    "deleteFileBatchMax": Key("store", "delete_batch_max"),
    "deleteWhen": Key("store", "delete_when"),
    "diskMaxUsedSpaceRatio": Key("store", "disk_max_used_percent"),
    "diskSpaceCleanForciblyRatio": Key("store", "disk_clean_forcibly_percent"),
    "diskSpaceWarningLevelRatio": Key("store", "disk_warning_percent"),
    "enabledAppendPropCRC": Key("store", "seal_records"),
    "fileReservedTime": Key("store", "file_reserved_hours"),
    "flushCommitLogLeastPages": Key("store", "flush_least_pages"),
    "flushCommitLogThoroughInterval": Key("store", "flush_thorough_interval_ms"),
    "flushConsumeQueueLeastPages": Key("store", "queue_flush_least_pages"),
    "flushConsumeQueueThoroughInterval": Key("store", "queue_thorough_interval_ms"),
    "flushDiskType": Key("store", "flush_mode", _flush),
    "flushIntervalCommitLog": Key("store", "flush_interval_ms"),
    "flushIntervalConsumeQueue": Key("store", "queue_flush_interval_ms"),
    "mappedFileSizeCommitLog": Key("store", "segment_size_bytes"),
    "mappedFileSizeConsumeQueue": Key("store", "queue_file_entries", _queue_entries),
    "maxHashSlotNum": Key("store", "index_slots"),
    "maxIndexNum": Key("store", "index_entries"),
    "maxMessageSize": Key("store", "max_message_size_bytes"),
    "messageDelayLevel": Key("store", "delay_levels"),
    "messageIndexEnable": Key("store", "index_enabled"),
    "storePathRootDir": Key("", "data"),
    "syncFlushTimeout": Key("store", "sync_flush_timeout_ms"),
}
BROKER_KEYS = {
    "accessMessageInMemoryMaxRatio": Key("broker", "memory_percent"),
    "autoCreateSubscriptionGroup": Key("broker", "auto_create_groups"),
    "autoCreateTopicEnable": Key("broker", "auto_create_topics"),
    "bindAddress": Key("broker", "host"),
    "brokerClusterName": Key("broker", "cluster_name"),
    "brokerIP1": Key("broker", "advertised_address"),
    "brokerId": Key("broker", "broker_id"),
    "brokerName": Key("broker", "broker_name"),
    "brokerPermission": Key("broker", "permission"),
    "brokerRole": Key("broker", "role"),
    "channelExpiredTimeout": Key("broker", "channel_expiry_ms"),
    "compressedRegister": Key("broker", "compressed_register"),
    "defaultTopicQueueNums": Key("broker", "default_topic_queues"),
    "defaultMessageRequestMode": Key("broker", "pop_by_default", _pops),
    "defaultPopShareQueueNum": Key("broker", "pop_share_queues", _at_least_none),
    "enableAutoInSyncReplicas": Key("broker", "auto_in_sync_replicas"),
    "enablePropertyFilter": Key("broker", "property_filters"),
    "filterSupportRetry": Key("broker", "filter_retries"),
    "enablePopBufferMerge": Key("broker", "pop_buffer"),
    "enableRetryTopicV2": Key("broker", "pop_retry_topic_v2"),
    "flushConsumerOffsetInterval": Key("broker", "offset_save_interval_ms"),
    "flushDelayOffsetInterval": Key("broker", "delay_save_interval_ms"),
    "haListenPort": Key("broker", "ha_port"),
    "haMasterAddress": Key("broker", "ha_master_address"),
    "haMaxGapNotInSync": Key("broker", "ha_max_gap_not_in_sync_bytes"),
    "inSyncReplicas": Key("broker", "in_sync_replicas"),
    "listenPort": Key("broker", "port"),
    "litePullMessageEnable": Key("broker", "lite_pull"),
    "longPollingEnable": Key("broker", "long_polling"),
    "mappedFileSizeTimerLog": Key("broker", "timer_log_file_bytes"),
    "maxTransferBytesOnMessageInDisk": Key("broker", "pull_bytes_disk_max"),
    "maxTransferBytesOnMessageInMemory": Key("broker", "pull_bytes_memory_max"),
    "maxTransferCountOnMessageInDisk": Key("broker", "pull_count_disk_max"),
    "maxTransferCountOnMessageInMemory": Key("broker", "pull_count_memory_max"),
    "minInSyncReplicas": Key("broker", "min_in_sync_replicas"),
    "msgTraceTopicName": Key("broker", "trace_topic"),
    "namesrvAddr": Key("broker", "name_servers"),
    "popCkMaxBufferSize": Key("broker", "pop_check_points_max"),
    "popCkStayBufferTime": Key("broker", "pop_buffer_stay_ms"),
    "popFromRetryProbability": Key("broker", "pop_from_retry_percent"),
    "popPollingSize": Key("broker", "pop_polls_max"),
    "rebalanceLockMaxLiveTime": Key("broker", "queue_lock_expiry_ms"),
    "recallMessageEnable": Key("broker", "recall"),
    "regionId": Key("broker", "region_id"),
    "registerBrokerTimeoutMills": Key("broker", "register_timeout_ms"),
    "registerNameServerPeriod": Key("broker", "register_interval_ms"),
    "rejectTransactionMessage": Key("broker", "reject_transactions"),
    "retryMaxTimes": Key("broker", "retry_max_times"),
    "sendThreadPoolQueueCapacity": Key("broker", "sends_waiting_max"),
    "serverLoadBalancerEnable": Key("broker", "server_assignment"),
    "shortPollingTimeMills": Key("broker", "short_polling_ms"),
    "slaveReadEnable": Key("broker", "slave_reads"),
    "slaveTimeout": Key("broker", "slave_timeout_ms"),
    "startAcceptSendRequestTimeStamp": Key("broker", "accept_sends_from_ms"),
    "storeReplyMessageEnable": Key("broker", "store_replies"),
    "timerCongestNumEachSlot": Key("broker", "timer_slot_max"),
    "timerMaxDelaySec": Key("broker", "timer_max_delay_s"),
    "timerRollWindowSlot": Key("broker", "timer_roll_window_slots"),
    "timerWheelEnable": Key("broker", "timers"),
    "traceOn": Key("broker", "trace_on"),
    "traceTopicEnable": Key("broker", "trace_topic_enabled"),
    "transactionCheckInterval": Key("broker", "transaction_check_interval_ms"),
    "transactionCheckMax": Key("broker", "transaction_check_max"),
    "transactionTimeOut": Key("broker", "transaction_timeout_ms"),
    "useServerSideResetOffset": Key("broker", "server_side_reset"),
}
NAMESERVER_KEYS = {
    "bindAddress": Key("nameserver", "host"),
    "brokerNotActiveTimeoutMillis": Key("nameserver", "broker_expiry_ms"),
    "deleteTopicWithBrokerRegistration": Key("nameserver", "delete_topics_on_register"),
    "enableAllTopicList": Key("nameserver", "all_topic_list"),
    "enableTopicList": Key("nameserver", "topic_list"),
    "kvConfigPath": Key("nameserver", "kv_config_path"),
    "listenPort": Key("nameserver", "port"),
    "needWaitForService": Key("nameserver", "wait_for_service"),
    "notifyMinBrokerIdChanged": Key("nameserver", "notify_min_broker_id"),
    "orderMessageEnable": Key("nameserver", "order_messages"),
    "returnOrderTopicConfigToBroker": Key("nameserver", "order_config_to_broker"),
    "scanNotActiveBrokerInterval": Key("nameserver", "scan_interval_ms"),
    "supportActingMaster": Key("nameserver", "acting_master"),
    "waitSecondsForService": Key("nameserver", "wait_for_service_seconds"),
}
REMOTING_KEYS = {
    "com.rocketmq.remoting.frameMaxLength": Key("remoting", "frame_bytes_max"),
    "connectTimeoutMillis": Key("remoting", "connect_timeout_ms"),
    "serverChannelMaxIdleTimeSeconds": Key("remoting", "idle_timeout_ms", _seconds),
}
TLS_KEYS = {
    "tls.client.authServer": Key("tls", "verify_server"),
    "tls.server.certPath": Key("tls", "certificate"),
    "tls.server.keyPath": Key("tls", "key"),
    "tls.server.mode": Key("tls", "mode"),
    "tls.server.need.client.auth": Key("tls", "require_client_certificate", _needs_certificate),
    "tls.server.trustCertPath": Key("tls", "trusted"),
}
KEYS = {
    "broker": BROKER_KEYS | STORE_KEYS | REMOTING_KEYS | TLS_KEYS,
    "nameserver": NAMESERVER_KEYS | REMOTING_KEYS | TLS_KEYS,
}

# Any of these turns access control on; none turns it off again that another has turned on.
ACCESS_SWITCHES = ("aclEnable", "authenticationEnabled", "authorizationEnabled")
INNER_CREDENTIALS = "innerClientAuthenticationCredentials"

# Values that Penstock must not pass over: what it would do instead is not what the file asks for.
REFUSED: dict[str, tuple[frozenset[str], str]] = {
    "enableControllerMode": (TRUE_WORDS, "a Penstock broker takes no orders from a RocketMQ controller"),
    "enableDLegerCommitLog": (
        TRUE_WORDS,
        "the DLedger log has another file format; start from a plain store",
    ),
    "storeType": (
        frozenset(("defaultrocksdb",)),
        "queues kept in RocksDB cannot be read; use the default store",
    ),
}
# Values that say what Penstock does anyway, so that there is nothing to warn of.
AS_IT_IS: dict[str, frozenset[str]] = {
    "enableControllerMode": frozenset(("false",)),
    "enableDLegerCommitLog": frozenset(("false",)),
    "storeType": frozenset(("default",)),
}


def translate(path: Path, lines: Iterable[Line], role: str) -> tuple[list[Setting], list[str]]:
    """The settings of a file and one warning that names the keys without an effect."""
    keys = KEYS[role]
    settings: list[Setting] = []
    without_effect: list[str] = []
    for line in lines:
        value, origin = str(line.value), f"{path}:{line.number}"
        if line.key in ACCESS_SWITCHES:
            if value.lower() in TRUE_WORDS:
                settings.append(Setting("access", "enabled", True, f"{origin} ({line.key})"))
        elif line.key == INNER_CREDENTIALS:
            settings += _inner_credentials(value, origin)
        elif line.key in keys:
            key = keys[line.key]
            try:
                settings.append(Setting(key.section, key.name, key.convert(value), f"{origin} ({line.key})"))
            except ValueProblem as problem:
                raise OptionError(f"{origin}: {line.key} {problem}") from None
        elif line.key in REFUSED and value.lower() in REFUSED[line.key][0]:
            raise OptionError(f"{origin}: {line.key} is {value}", REFUSED[line.key][1])
        elif value.lower() not in AS_IT_IS.get(line.key, ()):
            without_effect.append(_unknown(line, keys))
    if not without_effect:
        return settings, []
    return settings, [f"{path}: no effect here: {', '.join(without_effect)}"]


def _inner_credentials(text: str, origin: str) -> list[Setting]:
    """{"accessKey":"...","secretKey":"..."}; an error does not quote it."""
    try:
        found = json.loads(text)
        values = [found["accessKey"], found["secretKey"]]
    except (ValueError, KeyError, TypeError):
        values = [None]
    if not all(isinstance(value, str) for value in values):
        raise OptionError(
            f"{origin}: {INNER_CREDENTIALS} cannot be read", 'write {"accessKey":"...","secretKey":"..."}'
        )
    place = f"{origin} ({INNER_CREDENTIALS})"
    names = ("access_key", "secret_key")
    return [Setting("access", name, value, place) for name, value in zip(names, values, strict=True)]


def _unknown(line: Line, keys: Iterable[str]) -> str:
    """RocketMQ has hundreds of keys that look alike; only a slip of a letter or two is worth a question."""
    advice = did_you_mean(line.key, keys, 0.9)
    return f"{line.key} (line {line.number}{'; ' + advice if advice else ''})"
