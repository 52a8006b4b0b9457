"""Timings and limits of replication, validated once. Defaults are RocketMQ's where it has them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import OptionError

KIB = 1 << 10
MIB = 1 << 20
# A Java slave reads into a buffer of this size, and a frame has to fit into it.
SLAVE_BUFFER_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """How a master serves its replicas, and how a replica follows."""

    # After so long without having said anything, either side says that it is there (haSendHeartbeatInterval).
    heartbeat_interval_ms: int = 5_000
    # A connection on which nothing came for so long is closed (haHousekeepingInterval).
    housekeeping_interval_ms: int = 20_000
    # How long a replica without news waits before it looks at its timers again.
    wait_interval_ms: int = 1_000
    # How long a classic slave waits before it connects again.
    reconnect_interval_ms: int = 5_000
    # The same for a replica of a coordinated set. Shorter, because acknowledgements of the whole set wait for it.
    rejoin_interval_ms: int = 200
    # How long a replica waits that shares no history with its master, or cannot take what it sends.
    retry_interval_ms: int = 2_000
    # How long connecting to a master may take.
    connect_timeout_ms: int = 3_000
    # Log bytes in one frame to a classic slave at most; a Java slave has to hold it in 4 MiB (haTransferBatchSize).
    transfer_batch_bytes: int = 32 * KIB
    # The same in a coordinated set. Larger frames cost fewer rounds through Python on both sides.
    epoch_batch_bytes: int = 256 * KIB
    # Bytes that wait for one replica's socket at most; more are read from the log when it has taken them.
    send_buffer_bytes: int = 1 * MIB
    # Log bytes per second to one replica at most, 0 for no limit (maxHaTransferByteInSecond).
    transfer_bytes_per_second_max: int = 0
    # Largest body that a replica accepts in a frame with log bytes.
    frame_bytes_max: int = SLAVE_BUFFER_BYTES
    # Largest side table that a replica accepts in one frame.
    tables_bytes_max: int = 64 * MIB
    # Changes of side tables that wait for one replica at most; over this it gets all tables instead.
    tables_queue_bytes_max: int = 4 * MIB
    # Connections to the replication port at most; more are closed at once.
    connections_max: int = 64
    # A replica that is told nothing else is told a new confirm offset after so long.
    confirm_interval_ms: int = 10
    # A slave that is further behind than this does not count as in sync (haMaxGapNotInSync).
    in_sync_gap_bytes_max: int = 256 * MIB
    # A member of the sync-state set that has not caught up for so long leaves it. Until then messages wait for it, so
    # this is how long a silent replica can hold up a set; RocketMQ waits 15 s (haMaxTimeSlaveNotCatchup).
    in_sync_lag_ms_max: int = 5_000
    # A replica about to join the sync-state set must acknowledge what was confirmed before within this time.
    join_timeout_ms: int = 1_000
    # How often the sync-state set is looked at.
    review_interval_ms: int = 100
    # How long a message waits for its replicas before the outcome is unknown (slaveTimeout).
    replica_timeout_ms: int = 3_000
    # Copies of a message, the master's included, that a synchronous classic master waits for (inSyncReplicas).
    in_sync_replicas: int = 1
    # Fewer copies than this and messages are refused (minInSyncReplicas).
    min_in_sync_replicas: int = 1
    # Wait for fewer copies where fewer slaves are in sync, down to the number above (enableAutoInSyncReplicas).
    auto_in_sync_replicas: bool = False
    # An empty replica of a coordinated set begins with the master's last segment instead of its first
    # (syncFromLastFile).
    sync_from_last_file: bool = False
    # This replica copies and never joins the sync-state set (asyncLearner).
    is_learner: bool = False

    def __post_init__(self) -> None:
        may_be_zero = {"transfer_bytes_per_second_max", "confirm_interval_ms", "rejoin_interval_ms"}
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < (0 if field.name in may_be_zero else 1):
                raise OptionError(f"{field.name} is {value}", "it must be positive")
        for name in ("transfer_batch_bytes", "epoch_batch_bytes"):
            if getattr(self, name) > self.frame_bytes_max:
                raise OptionError(
                    f"{name} is {getattr(self, name)}", "a replica takes frame_bytes_max in one frame at most"
                )
        if self.transfer_batch_bytes >= SLAVE_BUFFER_BYTES:
            raise OptionError(
                f"transfer_batch_bytes is {self.transfer_batch_bytes}", "a Java slave holds less than 4 MiB"
            )
        if self.heartbeat_interval_ms >= self.housekeeping_interval_ms:
            raise OptionError(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}",
                "it must be less than housekeeping_interval_ms, or idle connections are closed",
            )
        if self.min_in_sync_replicas > self.in_sync_replicas and self.auto_in_sync_replicas:
            raise OptionError(
                f"min_in_sync_replicas is {self.min_in_sync_replicas}", "in_sync_replicas is less than that"
            )
