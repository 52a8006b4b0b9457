"""Every setting of a name server, validated once when the options are made.

The defaults are RocketMQ's, except where a field says why not. `docs/configuration.md` is generated from
this file: the comment above a field is its documentation, and the name in parentheses is the key of
RocketMQ's namesrv.conf. How it reads and writes its sockets is in remoting's options. Which of these fields
may change while it runs, and from where, is in runtime_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from penstock.errors import OptionError

_AT_LEAST_ONE = (
    "scan_first_ms",
    "scan_interval_ms",
    "broker_expiry_ms",
    "broker_expiry_max_ms",
    "clusters_max",
    "brokers_max",
    "topics_max",
    "topic_queues_max",
    "registration_bytes_max",
    "kv_entries_max",
    "kv_value_chars_max",
    "kv_chars_max",
)


class ConfigUpdates(Enum):
    """Who may change the configuration of a running name server."""

    OFF = "off"
    LOOPBACK = "loopback"
    ANYWHERE = "anywhere"


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """Where a name server listens, how long it believes a silent broker, and how much it keeps."""

    # Address to listen on. Without access control it is the loopback address unless told otherwise (bindAddress).
    host: str = "127.0.0.1"
    # Port to listen on; 0 takes any free one (listenPort).
    port: int = 9876
    # File of the KV config, the only thing that outlives a restart. Empty: it is kept in memory only (kvConfigPath).
    kv_config_path: str = ""
    # When the table of live brokers is looked at for the first time after the start.
    scan_first_ms: int = 5_000
    # How often it is looked at from then on. RocketMQ 5 scans every 5 s, 4.9 every 10 s. Can be changed while it runs
    # (scanNotActiveBrokerInterval).
    scan_interval_ms: int = 10_000
    # A broker that has not registered, sent a heartbeat or asked for its version for this long is removed, unless it
    # registered with a time of its own (brokerNotActiveTimeoutMillis).
    broker_expiry_ms: int = 120_000
    # The longest time of its own that a broker is granted; more is cut to this.
    broker_expiry_max_ms: int = 3_600_000
    # Fill in the order of a topic's queues, from the KV namespace ORDER_TOPIC_CONFIG, in route answers. Can be
    # changed while it runs (orderMessageEnable).
    order_messages: bool = False
    # Give brokers the KV namespace ORDER_TOPIC_CONFIG in answer to a registration. Can be changed while it runs
    # (returnOrderTopicConfigToBroker).
    order_config_to_broker: bool = True
    # Answer requests for the list of all topics. Can be changed while it runs (enableAllTopicList).
    all_topic_list: bool = True
    # Answer requests for the lists by cluster, of system topics and of unit topics. Can be changed while it runs
    # (enableTopicList).
    topic_list: bool = True
    # A registration removes the topics that the broker no longer has. Only for brokers that always register their
    # whole table. Can be changed while it runs (deleteTopicWithBrokerRegistration).
    delete_topics_on_register: bool = False
    # Present the smallest id of a broker without a master as its master, if it registered for that. Can be changed
    # while it runs (supportActingMaster).
    acting_master: bool = False
    # Tell the members of a broker when their smallest id changes. Can be changed while it runs
    # (notifyMinBrokerIdChanged).
    notify_min_broker_id: bool = False
    # Answer route requests only when brokers have had time to register after the start (needWaitForService).
    wait_for_service: bool = False
    # How long that is (waitSecondsForService).
    wait_for_service_seconds: int = 45
    # Who may change the configuration of a running name server: nobody, peers on this machine, or everybody.
    config_updates: ConfigUpdates = ConfigUpdates.LOOPBACK
    # Clusters that may be registered at once.
    clusters_max: int = 256
    # Brokers, masters and slaves each counted, that may be registered at once.
    brokers_max: int = 4_096
    # Topics that may be registered at once, over all brokers.
    topics_max: int = 100_000
    # Queues, for reading and for writing, that a topic may have on one broker; a topic with more is left out.
    topic_queues_max: int = 65_536
    # Size of the body of a registration, after decompression.
    registration_bytes_max: int = 32 * 1024 * 1024
    # Entries of the KV config, over all namespaces.
    kv_entries_max: int = 10_000
    # Characters in one value of the KV config.
    kv_value_chars_max: int = 32_768
    # Characters in all keys and values of the KV config.
    kv_chars_max: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 0:
                raise OptionError(f"{field.name} is {value}", "use a number that is not negative")
        for name in _AT_LEAST_ONE:
            self._require(getattr(self, name) >= 1, name, "use at least 1")
        self._require(bool(self.host), "host", "name an address, 127.0.0.1 for this machine only")
        self._require(self.port <= 65_535, "port", "use 0 (any free port) to 65535")
        self._require(
            self.broker_expiry_ms <= self.broker_expiry_max_ms,
            "broker_expiry_ms",
            "broker_expiry_max_ms is less",
        )

    def _require(self, holds: bool, name: str, hint: str) -> None:
        if not holds:
            raise OptionError(f"{name} is {getattr(self, name)!r}", hint)
