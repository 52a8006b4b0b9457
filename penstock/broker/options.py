"""Every setting of a broker, validated once when the options are made.

The defaults are RocketMQ's, except where a field says why not. `docs/configuration.md` is generated from
this file: the comment above a field is its documentation, and the name in parentheses is the key of
RocketMQ's broker.conf. How the broker keeps its files is in the store's options, how it reads and writes its
sockets in remoting's. Parsing of files, environment and flags is the command line's work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum

from penstock.errors import OptionError
from penstock.protocol.identity import is_address

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,100}")
_AT_LEAST_ONE = (
    "register_interval_ms",
    "register_timeout_ms",
    "default_topic_queues",
    "auto_topic_queues_max",
    "topic_queues_max",
    "topics_max",
    "queues_max",
    "groups_max",
    "create_burst",
    "channel_expiry_ms",
    "channel_scan_interval_ms",
    "queue_lock_expiry_ms",
    "partition_lease_ms",
    "offsets_max",
    "offset_save_interval_ms",
    "table_save_interval_ms",
    "delay_save_interval_ms",
    "idempotence_window",
    "idempotence_queues_max",
    "idempotence_sequences_max",
    "idempotence_save_interval_ms",
    "timer_max_delay_s",
    "timer_slot_max",
    "timer_save_interval_ms",
    "long_poll_check_interval_ms",
    "long_polls_max",
    "long_poll_bytes_max",
    "pull_count_memory_max",
    "pull_count_batch_max",
    "pull_bytes_memory_max",
    "pull_count_disk_max",
    "scan_count_max",
    "scan_bytes_max",
    "pull_bytes_disk_max",
    "sends_waiting_max",
    "sends_waiting_bytes_max",
    "publish_bytes_max",
    "publish_handles_max",
    "publications_waiting_max",
    "publication_queries_max",
    "publication_save_interval_ms",
    "transaction_check_interval_ms",
    "transaction_check_max",
    "transactions_open_max",
    "in_sync_replicas",
    "min_in_sync_replicas",
    "slave_timeout_ms",
    "ha_max_gap_not_in_sync_bytes",
    "slave_sync_interval_ms",
    "beat_interval_ms",
    "pop_invisible_min_ms",
    "pop_check_points_max",
    "pop_polls_max",
    "pop_buffer_stay_ms",
    "push_clients_max",
    "push_client_subscriptions_max",
    "push_subscriptions_max",
    "push_window_messages",
    "push_window_bytes",
    "push_answer_timeout_ms",
    "push_ping_interval_ms",
    "push_ping_misses",
)


class BrokerRole(Enum):
    """What a broker is in a set that nobody coordinates."""

    ASYNC_MASTER = "async_master"
    SYNC_MASTER = "sync_master"
    SLAVE = "slave"


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Who the broker is, whom it registers with, and what it lets clients do."""

    # -- who it is

    # Cluster that the broker belongs to (brokerClusterName).
    cluster_name: str = "DefaultCluster"
    # Name shared by a master and its slaves; queues are addressed by it (brokerName).
    broker_name: str = "broker-a"
    # 0 is the master; slaves have other numbers (brokerId).
    broker_id: int = 0
    # Address to listen on. Without access control it is the loopback address unless told otherwise (bindAddress).
    host: str = "127.0.0.1"
    # Port to listen on; 0 takes any free one (listenPort).
    port: int = 10911
    # Whether to listen on the port two below as well (10909), as RocketMQ does: its dashboard, its slaves and
    # clients with `vipChannelEnabled` send there. If that port is taken, or `port` is 0, the broker runs without it.
    vip_listener: bool = True
    # Address that routes and message ids carry, as `host` or `host:port`. Empty: the address that a client dialled
    # is the one it is given back, and name servers are told the listening address (brokerIP1).
    advertised_address: str = ""
    # Region put into every stored message and answer, read by the message trace (regionId).
    region_id: str = "DefaultRegion"
    # Whether clients are told to trace their messages (traceOn).
    trace_on: bool = True
    # What the whole broker allows: 4 read, 2 write, 6 both; it caps the permissions of every topic in the
    # registration (brokerPermission).
    permission: int = 6

    # -- name servers

    # Name servers as `host:port`; the broker registers with every one of them; separated by `;` (namesrvAddr).
    name_servers: tuple[str, ...] = ()
    # How often it registers with all its topics, changed or not (registerNameServerPeriod).
    register_interval_ms: int = 30_000
    # How long one name server may take for it; the others never wait for a slow one. RocketMQ allows 24 s
    # (registerBrokerTimeoutMills).
    register_timeout_ms: int = 6_000
    # Whether registrations are sent compressed; name servers before 4.3 cannot read them (compressedRegister).
    compressed_register: bool = False

    # -- replicas (docs/operating/replication.md)

    # async_master answers when it has a message itself; sync_master when `in_sync_replicas` have it; slave copies a
    # master and takes no messages. A broker with a `broker_id` above 0 is a slave unless coordinated (brokerRole).
    role: BrokerRole = BrokerRole.ASYNC_MASTER
    # Port on which replicas get the log; 0 is the one after `port` (haListenPort).
    ha_port: int = 0
    # Replication address `host:port` of a slave's master. Empty: name servers are asked, which also say where the
    # master's topics, groups and offsets are to be had (haMasterAddress).
    ha_master_address: str = ""
    # Copies of a message, the master's included, that a sync_master waits for (inSyncReplicas).
    in_sync_replicas: int = 1
    # Whether a sync_master waits for fewer copies while fewer slaves are in sync (enableAutoInSyncReplicas) ...
    auto_in_sync_replicas: bool = False
    # ... and how many there must be even then (minInSyncReplicas).
    min_in_sync_replicas: int = 1
    # How long a message waits for its copies before the sender is told that it is stored here, and nothing more is
    # known (slaveTimeout).
    slave_timeout_ms: int = 3_000
    # A slave that is further behind than this is not in sync, and nobody waits for it (haMaxGapNotInSync).
    ha_max_gap_not_in_sync_bytes: int = 256 << 20
    # Whether slaves hand out messages: to consumers far behind, and to all of them while the master is gone. RocketMQ
    # has it off (slaveReadEnable).
    slave_reads: bool = True
    # How often a slave asks its master for topics, groups, offsets and the progress of delays. RocketMQ's pace.
    slave_sync_interval_ms: int = 3_000
    # Coordinators as `host:port`, separated by `;`. With them the broker is a member of a coordinated set: they say
    # who is master, and `role` and `broker_id` are not looked at (docs/operating/cluster.md).
    coordinators: tuple[str, ...] = ()
    # How often it reports to them. Its lease is four times as long by their default: three reports may be lost.
    beat_interval_ms: int = 500

    # -- topics

    # Whether sending to an unknown topic creates it (autoCreateTopicEnable).
    auto_create_topics: bool = True
    # Queues of the model topic TBW102, and so the most that a topic created by a send gets (defaultTopicQueueNums).
    default_topic_queues: int = 8
    # No topic created by a send ever gets more queues than this, whatever model it names.
    auto_topic_queues_max: int = 10
    # Queues that an operator may give one topic.
    topic_queues_max: int = 16_384
    # Topics that may exist before sends stop creating new ones; operators can still create them.
    auto_topics_max: int = 20_000
    # Topics that there may be at all.
    topics_max: int = 100_000
    # Queues that may have messages. Each takes some two kilobytes of memory, and on disk a directory and a file of at
    # least 4 KiB. Their files are opened when they are needed (queue_files_open_max).
    queues_max: int = 200_000
    # Topics and groups that clients may bring into being per second, in the long run ...
    create_per_second: int = 100
    # ... and at once, after a quiet time.
    create_burst: int = 2_000
    # Whether the topic of the message trace is created at start (traceTopicEnable).
    trace_topic_enabled: bool = False
    # Name of that topic (msgTraceTopicName).
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"

    # -- groups and clients

    # Whether a consumer of an unknown group creates it (autoCreateSubscriptionGroup).
    auto_create_groups: bool = True
    # Groups that may exist before clients stop creating new ones; operators can still create them.
    auto_groups_max: int = 20_000
    # Groups that there may be at all.
    groups_max: int = 200_000
    # Retries of a message before it is a dead letter, for groups created by clients; each group can have its own
    # (retryMaxTimes of the group).
    retry_max_times: int = 16
    # Clients that were not heard of for so long are dropped (channelExpiredTimeout).
    channel_expiry_ms: int = 120_000
    # How often that is looked at.
    channel_scan_interval_ms: int = 10_000
    # Consumer groups, and producer groups, that one heartbeat may name.
    client_groups_max: int = 256
    # Topics that one group may subscribe to.
    group_subscriptions_max: int = 1_000
    # Whether subscriptions by SQL92 expressions and by keys are served. RocketMQ has it off (enablePropertyFilter).
    property_filters: bool = True
    # Whether messages that are tried again pass the expression for their topic once more (filterSupportRetry).
    filter_retries: bool = False
    # How long one pull may look for messages that its SQL92 expression wants, before it is answered with what it has
    # found and where to go on; others wait for so long.
    filter_time_max_ms: int = 10
    # Characters of one subscription expression, tags, SQL92 or keys.
    expression_size_max: int = 16_384
    # Keys that one subscription by keys may name.
    subscription_keys_max: int = 256
    # Bytes of one heartbeat; every client sends one each 30 s.
    heartbeat_bytes_max: int = 1 << 20
    # Producer groups that may be connected at once.
    producer_groups_max: int = 20_000
    # A queue lock that is not renewed within this time is free again (rebalanceLockMaxLiveTime).
    queue_lock_expiry_ms: int = 60_000
    # Queues that may be locked at once by all groups.
    queue_locks_max: int = 200_000
    # For consumers that a coordinator balances: how long a queue stays a consumer's without its saying so again. As
    # long a queue of a consumer that died waits for the next. TubeMQ allows 30 s.
    partition_lease_ms: int = 10_000
    # Queues that may be leased at once by all groups.
    partition_leases_max: int = 200_000

    # -- offsets

    # Offsets that are kept, one for each queue and group; for each ten of them one pair of topic and group.
    offsets_max: int = 2_000_000
    # How often consumer offsets go to their file if any changed (flushConsumerOffsetInterval).
    offset_save_interval_ms: int = 5_000
    # How often topics, groups and request modes go to their JSON files if any changed; what changed meanwhile is in
    # the journal, which a Java broker does not read.
    table_save_interval_ms: int = 5_000
    # ZooKeeper servers, `host:port` with commas between them, to which a master writes consumer offsets as well, in
    # TubeMQ's layout: then they outlive its disk. Empty: they are only in the file. TubeMQ's zkServerAddr.
    zookeeper_offsets: str = ""
    # The entry in ZooKeeper below which they are. TubeMQ's zkNodeRoot.
    zookeeper_offsets_root: str = "/tubemq"
    # How often the progress of the delay levels goes to its file (flushDelayOffsetInterval).
    delay_save_interval_ms: int = 10_000
    # Whether messages may name the time of their delivery. Off, they are refused with 1 (timerWheelEnable).
    timers: bool = True
    # How far ahead that time may be (timerMaxDelaySec).
    timer_max_delay_s: int = 259_200
    # A message that waits longer than so many seconds is stored again on the way, so that retention can take the old
    # segment; two thirds of file_reserved_hours if that is less (timerRollWindowSlot).
    timer_roll_window_slots: int = 172_800
    # Messages that may wait for one and the same second (timerCongestNumEachSlot). RocketMQ has no limit; all of a
    # second's messages are in memory when it begins, some 200 bytes each.
    timer_slot_max: int = 1_000_000
    # How often the progress of timers goes to its files. RocketMQ's pace.
    timer_save_interval_ms: int = 1_000
    # Size of one timer log file; all files of a directory have the same size (mappedFileSizeTimerLog).
    timer_log_file_bytes: int = 100 << 20
    # Whether a message that waits for its time can be recalled with the handle that its send was answered with.
    # RocketMQ has it off (recallMessageEnable).
    recall: bool = True
    # Whether an offset reset is carried out by the broker at the next pull, instead of by asking the consumers
    # (useServerSideResetOffset).
    server_side_reset: bool = True

    # -- pulls

    # Whether a pull that finds nothing waits for new messages (longPollingEnable).
    long_polling: bool = True
    # How long it waits where long polling is off (shortPollingTimeMills).
    short_polling_ms: int = 1_000
    # How often waiting pulls are checked besides being woken by messages.
    long_poll_check_interval_ms: int = 5_000
    # The longest that a pull may ask to wait.
    long_poll_max_ms: int = 60_000
    # Pulls that may wait at once; beyond it the oldest are answered early.
    long_polls_max: int = 50_000
    # Memory that waiting pulls may take, as estimated from their requests; beyond it the oldest are answered early.
    long_poll_bytes_max: int = 64 * 1024 * 1024
    # Pulls of one connection that may wait at once.
    long_polls_per_connection_max: int = 4_096
    # Messages in one answer, if they are in memory (maxTransferCountOnMessageInMemory).
    pull_count_memory_max: int = 32
    # The same for Penstock's consumers, which say in their pulls that they take more (field `penstockPull`): small
    # messages are consumed faster.
    pull_count_batch_max: int = 256
    # Bytes in one answer, if they are in memory (maxTransferBytesOnMessageInMemory).
    pull_bytes_memory_max: int = 256 * 1024
    # Messages in one answer that have to be read from disk (maxTransferCountOnMessageInDisk).
    pull_count_disk_max: int = 8
    # Bytes in one answer that have to be read from disk (maxTransferBytesOnMessageInDisk).
    pull_bytes_disk_max: int = 64 * 1024
    # Messages in one answer to a scan, a pull of our tools and of Spark that says so (field `penstockPull`) ...
    scan_count_max: int = 65_536
    # ... and bytes; a scan of what is not in memory is read from disk beside the event loop.
    scan_bytes_max: int = 8 * 1024 * 1024
    # Messages this near to the end of the log count as in memory, in percent of the machine's memory
    # (accessMessageInMemoryMaxRatio).
    memory_percent: int = 40
    # Whether the pull request of the lite consumer is served (litePullMessageEnable).
    lite_pull: bool = True

    # -- POP (docs/pop.md)

    # The shortest time for which popped messages are invisible to others: a shorter one that is asked for, also by
    # its change, is raised to it.
    pop_invisible_min_ms: int = 1_000
    # The longest time that may be asked for, also by its change. Java's clients ask for 5 s to 2 h.
    pop_invisible_max_ms: int = 43_200_000
    # Pops, one for each queue that gave messages, that may wait for acknowledgements at once; beyond it nothing more
    # is popped (popCkMaxBufferSize).
    pop_check_points_max: int = 200_000
    # Pops of one group that may wait for messages of one topic at once; the next is answered with 209
    # (popPollingSize).
    pop_polls_max: int = 1_024
    # How often, of a hundred pops, what came back to the group is looked at before new messages
    # (popFromRetryProbability).
    pop_from_retry_percent: int = 20
    # Whether what comes back goes to %RETRY%<group>+<topic> instead of %RETRY%<group>_<topic>, which two groups can
    # share by their names; both are read. With access control always (enableRetryTopicV2).
    pop_retry_topic_v2: bool = False
    # Whether a pop is kept in memory for a while before it is written, and not at all if all of it is acknowledged by
    # then: less to write, but after a crash messages come again that were acknowledged (enablePopBufferMerge) ...
    pop_buffer: bool = False
    # ... and how long it stays there (popCkStayBufferTime).
    pop_buffer_stay_ms: int = 10_000
    # Whether the broker divides queues for clients that ask it to (serverLoadBalancerEnable).
    server_assignment: bool = True
    # Whether groups pop for which nobody has said how they consume; else they pull (defaultMessageRequestMode).
    pop_by_default: bool = False
    # Then, with how many clients after it each shares its queues; 0: everybody pops all (defaultPopShareQueueNum).
    pop_share_queues: int = 0
    # Pairs of topic and group for which it may be said how they consume.
    request_modes_max: int = 10_000

    # -- push (docs/push.md)

    # Clients that may register to be pushed to; those that are dead make room first.
    push_clients_max: int = 10_000
    # Queues that one client may have pushed ...
    push_client_subscriptions_max: int = 4_096
    # ... and all of them together.
    push_subscriptions_max: int = 50_000
    # Messages of one queue that may be on their way to a client without an answer; it may ask for fewer ...
    push_window_messages: int = 1_024
    # ... and their bytes. A message that is larger goes alone.
    push_window_bytes: int = 4_194_304
    # How long a client has to answer a delivery. Then its task goes to the timeout queue and is sent again ...
    push_answer_timeout_ms: int = 10_000
    # ... so often, before it is parked in the dead-letter queue until the client says `resume`.
    push_resends: int = 1
    # How often a client is pinged ...
    push_ping_interval_ms: int = 5_000
    # ... and how many pings in a row it may leave without an answer before it counts as dead.
    push_ping_misses: int = 3
    # How long a dead client is remembered with what is parked for it; its queues are free for others at once.
    push_dead_keep_ms: int = 600_000

    # -- sends

    # Sends are refused before this time, in milliseconds since the epoch (startAcceptSendRequestTimeStamp).
    accept_sends_from_ms: int = 0
    # Messages that may wait for their flush before further ones are refused as busy (sendThreadPoolQueueCapacity).
    sends_waiting_max: int = 10_000
    # Bytes that may wait for their flush before further messages are refused as busy.
    sends_waiting_bytes_max: int = 256 << 20
    # Messages in one batch.
    batch_count_max: int = 10_000

    # -- idempotent sends

    # Messages of one producer in one queue that are recognised when they are sent again; at 16 bytes each. Older ones
    # are refused then, as nobody knows whether they are stored.
    idempotence_window: int = 16_384
    # Pairs of producer and queue that are remembered; over it further ones are refused as busy.
    idempotence_queues_max: int = 100_000
    # Messages of all of them that are recognised; over it those who sent longest ago have theirs refused.
    idempotence_sequences_max: int = 4_000_000
    # A pair that sends nothing for so long is forgotten; so much of the log is read if the table's file is lost.
    idempotence_expiry_ms: int = 86_400_000
    # How often the table goes to its file if it changed; the log has what the file has not.
    idempotence_save_interval_ms: int = 5_000

    # -- transactions

    # Whether transactional messages are refused; those that are open can still be ended (rejectTransactionMessage).
    reject_transactions: bool = False
    # How often producers are asked about transactions that they have not ended (transactionCheckInterval).
    transaction_check_interval_ms: int = 30_000
    # How old a transaction has to be before anybody is asked; a message can demand longer (transactionTimeOut).
    transaction_timeout_ms: int = 6_000
    # How often a producer is asked about one transaction before that is parked (transactionCheckMax).
    transaction_check_max: int = 15
    # Transactions that may be open at once; beyond it new ones are refused as busy.
    transactions_open_max: int = 500_000

    # -- staged publication (Spark's sink)

    # Bytes of staged messages that one publication may make visible. Nothing new of any topic becomes visible while
    # they are copied: for a gigabyte one to five seconds of processor time, the smaller the messages the more,
    # and what the disk takes.
    publish_bytes_max: int = 1 << 30
    # Handles, one for each request that staged messages, that one publication may name.
    publish_handles_max: int = 20_000
    # Publications that may be under way or wait for their turn at once.
    publications_waiting_max: int = 64
    # Queries whose last batch is remembered; beyond it the one that has published nothing for longest is forgotten,
    # and a batch of it that was published already would be published again.
    publication_queries_max: int = 10_000
    # How often that table goes to its file if it changed; the log has what the file has not.
    publication_save_interval_ms: int = 5_000

    # -- calls to clients

    # Whether replies to requests are stored as well as passed on (storeReplyMessageEnable).
    store_replies: bool = True
    # How long a client may take to answer what the broker passes on to it.
    relay_timeout_ms: int = 10_000
    # Calls to clients that may be under way at once.
    relays_max: int = 1_000

    # -- operators

    # Whether settings may be changed at run time from other machines; only those on an allow list ever can.
    remote_settings: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 0:
                raise OptionError(f"{field.name} is {value}", "use a number that is not negative")
        for name in _AT_LEAST_ONE:
            self._require(getattr(self, name) >= 1, name, "use at least 1")
        for name in ("cluster_name", "broker_name"):
            self._require(
                _NAME.fullmatch(getattr(self, name)) is not None,
                name,
                "use 1 to 100 letters, digits and the characters % | _ -",
            )
        self._require(self.port <= 65_535, "port", "use 0 to 65535")
        self._require(
            not self.advertised_address or is_address(self.advertise("", self.port or 10_911)),
            "advertised_address",
            "write a name or address that clients can dial, as host or host:port",
        )
        self._require(self.ha_port <= 65_535, "ha_port", "use 0 to 65535")
        self._require(
            self.role is not BrokerRole.SLAVE or self.broker_id > 0,
            "role",
            "a slave needs a broker_id above 0; 0 is the master's",
        )
        self._require(self.permission <= 7, "permission", "use 6 for read and write, 4 or 2 for one of them")
        self._require(
            2 <= self.timer_roll_window_slots <= 604_740, "timer_roll_window_slots", "use 2 to 604740"
        )
        self._require(
            self.timer_max_delay_s <= 315_360_000, "timer_max_delay_s", "use at most 315360000, ten years"
        )
        self._require(
            4_096 <= self.timer_log_file_bytes <= 1 << 30, "timer_log_file_bytes", "use 4096 bytes to 1 GiB"
        )
        self._require(self.pop_from_retry_percent <= 100, "pop_from_retry_percent", "use 0 to 100")
        self._require(
            self.pop_invisible_min_ms <= self.pop_invisible_max_ms,
            "pop_invisible_min_ms",
            "use no more than pop_invisible_max_ms",
        )
        self._require(self.memory_percent <= 100, "memory_percent", "use a percentage from 0 to 100")
        self._require(all(self.name_servers), "name_servers", "name each as host:port")
        self._require(all(self.coordinators), "coordinators", "name each as host:port")
        self._require(
            self.register_interval_ms <= 60_000,
            "register_interval_ms",
            "use at most 60000: name servers drop a broker that is silent for 120 s",
        )

    def _require(self, holds: bool, name: str, hint: str) -> None:
        if not holds:
            raise OptionError(f"{name} is {getattr(self, name)!r}", hint)

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies a master now."""
        return self.broker_id > 0

    def advertise(self, host: str, port: int) -> str:
        """The address to hand out where the one a client dialled is not known: advertised, or as listening."""
        if not self.advertised_address:
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        name, colon, number = self.advertised_address.rpartition(":")
        is_whole = bool(colon) and number.isascii() and number.isdigit() and (":" not in name or "]" in name)
        return self.advertised_address if is_whole else f"{self.advertised_address}:{port}"
