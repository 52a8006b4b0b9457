"""Every setting of a consumer, validated once when the options are made.

The defaults are those of RocketMQ's Java client, except where a field says why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.client.allocation import Strategy, find_strategy
from penstock.client.options import require_choice, require_range
from penstock.client.subscription import check_name
from penstock.errors import OptionError

_INT32_MAX = 2**31 - 1
DEFAULT_RETRIES_MAX = 16


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer consumes."""

    # Consumers of one group share the messages of their topics; in broadcasting each gets all of them
    # (consumerGroup).
    group: str = "DEFAULT_CONSUMER"
    # clustering: each message goes to one consumer of the group; broadcasting: to every one (messageModel).
    model: str = "clustering"
    # Where a group begins that has never been in a topic: first, last, a datetime or milliseconds since the epoch
    # (consumeFromWhere). A queue that appears later is read from its first message.
    start_from: str | int | datetime = "last"
    # Who gets which queues: averagely, circle, consistent_hash, room_nearby, or an object such as MachineRoom(["a"]).
    # All consumers of a group must use the same (allocateMessageQueueStrategy).
    strategy: str | Strategy = "averagely"
    # Whether messages of one queue are worked on one after the other, in their order.
    orderly: bool = False
    # Messages worked on at the same time, by so many threads or tasks (consumeThreadMax).
    threads: int = 20
    # Whether iterating counts a message as done when the next one is asked for; without it, `ack` says so.
    auto_ack: bool = True
    # Whether `poll` commits what the poll before it returned; without it, `commit` does.
    auto_commit: bool = False
    # Messages asked for with one pull; brokers have their own limit, usually 32 (pullBatchSize).
    pull_batch: int = 32
    # How long a broker holds a pull for which it has nothing (brokerSuspendMaxTimeMillis).
    suspend_ms: int = 15_000
    # How long a pull may take in all (consumerTimeoutMillisWhenSuspend).
    pull_timeout_ms: int = 30_000
    # How long until a pull that failed is tried again (pullTimeDelayMillsWhenException).
    pull_retry_ms: int = 1_000
    # Messages of one queue that may be here, done or not, before pulling pauses (pullThresholdForQueue).
    queue_messages_max: int = 1_000
    # Bytes of one queue that may be here before pulling pauses (pullThresholdSizeForQueue).
    queue_bytes_max: int = 100 * 1024 * 1024
    # Distance between the first and the last message of one queue that may be here before pulling pauses, if not
    # orderly (consumeConcurrentlyMaxSpan).
    queue_span_max: int = 2_000
    # Largest body that is unpacked; a packed body that gives more fails its message.
    body_bytes_max: int = 4 * 1024 * 1024
    # A message that is worked on for longer is handed back to the broker, if not orderly (consumeTimeout).
    consume_timeout_ms: int = 15 * 60_000
    # How often a message is tried again before it goes to the dead letters. -1: 16 times, or without end if orderly
    # (maxReconsumeTimes).
    retries_max: int = -1
    # How long an orderly queue rests after a failure (suspendCurrentQueueTimeMillis).
    rest_ms: int = 1_000
    # How often queues are divided anew, apart from when something changes (rebalanceInterval).
    rebalance_interval_ms: int = 20_000
    # How often offsets are stored (persistConsumerOffsetInterval).
    persist_interval_ms: int = 5_000
    # How often the locks of orderly queues are renewed; brokers keep them for 60 s (lockInterval).
    lock_interval_ms: int = 20_000
    # A lock that could not be renewed for this long does not count any more (lockMaxLiveTime).
    lock_expiry_ms: int = 30_000
    # A queue from which no pull returned for this long is given up and taken again (pullMaxIdleTime).
    stuck_ms: int = 120_000
    # How long closing waits for messages that are worked on (awaitTerminationMillisWhenShutdown; there it is 0).
    close_timeout_ms: int = 10_000
    # Where a broadcasting consumer keeps its offsets. Empty: .penstock/offsets in the home directory.
    offset_directory: str = ""

    def __post_init__(self) -> None:
        check_name("group", self.group)
        require_choice("model", self.model, ("clustering", "broadcasting"))
        self._check_start()
        find_strategy(self.strategy)
        for name, low, high in (
            ("threads", 1, 1_000),
            ("pull_batch", 1, 1_024),
            ("suspend_ms", 0, _INT32_MAX),
            ("pull_timeout_ms", 1, _INT32_MAX),
            ("pull_retry_ms", 1, 60_000),
            ("queue_messages_max", 1, 65_535),
            ("queue_bytes_max", 1024, 1 << 40),
            ("queue_span_max", 1, _INT32_MAX),
            ("body_bytes_max", 1, _INT32_MAX),
            ("consume_timeout_ms", 1, _INT32_MAX),
            ("retries_max", -1, 65_535),
            ("rest_ms", 1, 30_000),
            ("rebalance_interval_ms", 1, _INT32_MAX),
            ("persist_interval_ms", 1, _INT32_MAX),
            ("lock_interval_ms", 1, 30_000),
            ("lock_expiry_ms", 1, 60_000),
            ("stuck_ms", 1_000, _INT32_MAX),
            ("close_timeout_ms", 0, _INT32_MAX),
        ):
            require_range(name, getattr(self, name), low, high)
        if self.pull_timeout_ms <= self.suspend_ms:
            raise OptionError(
                f"pull_timeout_ms is {self.pull_timeout_ms}, not more than suspend_ms ({self.suspend_ms})",
                "brokers may hold a pull up to 5 s longer than suspend_ms: leave room for that",
            )

    def _check_start(self) -> None:
        start: object = self.start_from
        if isinstance(start, str):
            require_choice("start_from", start, ("first", "last"))
        elif isinstance(start, bool) or not isinstance(start, int | datetime) or self.start_ms < 0:
            raise OptionError(
                f"start_from is {start!r}", 'use "first", "last", a datetime or milliseconds since the epoch'
            )

    @property
    def start_ms(self) -> int:
        """The time to begin at; -1 if it is no time."""
        start = self.start_from
        if isinstance(start, datetime):
            return int(start.timestamp() * 1000)
        return -1 if isinstance(start, str) else start

    @property
    def is_broadcasting(self) -> bool:
        return self.model == "broadcasting"

    @property
    def back_retries_max(self) -> int:
        """The limit as brokers are told it."""
        return DEFAULT_RETRIES_MAX if self.retries_max < 0 else self.retries_max
