"""Every setting of the clients, validated once when the options are made.

The defaults are those of RocketMQ's Java client, except where a field says why not. A client's constructor
takes the fields as keyword arguments; `read_settings` sorts them into the classes below and refuses unknown
names. Plain data, no I/O.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from penstock.client.addresses import parse_coordinators, parse_name_servers
from penstock.client.allocation import Strategy, find_strategy
from penstock.errors import OptionError, did_you_mean
from penstock.protocol.bodies.balance import Binding, SubscriptionMode
from penstock.security import Credentials
from penstock.security.credentials import check_min_signature

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
_INT32_MAX = 2**31 - 1
# With `%RETRY%` before it a group's name is a topic's.
GROUP_NAME_MAX = 120
# What a consumer is in that names no group.
DEFAULT_GROUP = "DEFAULT_CONSUMER"
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_PRODUCER_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_RETRIES_MAX = 16
# With how many arguments the functions of a program are called.
_ARGUMENTS = {"listener": 1, "on_queues": 2}
_First = TypeVar("_First")
_Second = TypeVar("_Second")


class Durability(StrEnum):
    """What must have happened to a message before its send is answered."""

    MEMORY = "memory"
    FLUSHED = "flushed"
    REPLICATED = "replicated"


class Compression(StrEnum):
    """How large bodies are packed; all but zlib need an optional package."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


def require_range(name: str, value: object, low: int, high: int) -> None:
    """Refuse anything but a whole number in the range."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise OptionError(f"{name} is {value!r}", f"use a whole number from {low} to {high}")


def require_text(name: str, value: object, hint: str = "use text") -> None:
    """Refuse anything but text."""
    if not isinstance(value, str):
        raise OptionError(f"{name} is {value!r}", hint)


def require_seconds(name: str, value: object) -> None:
    """Refuse anything but a span of time in seconds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise OptionError(f"{name} is {value!r}", "use seconds, 0 or more")


def milliseconds(name: str, value: object) -> int:
    """A moment as milliseconds since the epoch."""
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise OptionError(f"{name} is {value!r}", "use a datetime, or milliseconds since the epoch")
    return value


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What the producers, consumers and admins of a process have in common. Those with equal options share one
    client: its connections, its routes and its heartbeats."""

    # Addresses of the name servers; the client uses one that it can reach and moves on when it dies (namesrvAddr).
    name_servers: tuple[str, ...] = (DEFAULT_NAME_SERVER,)
    # Second part of the client id. Empty: process number and a random number, so no two are equal (instanceName).
    instance_name: str = ""
    # Third part of the client id, for deployments in several units; empty: none (unitName).
    unit_name: str = ""
    # First part of the client id. Empty: the address from which this machine reaches its name server (clientIP).
    client_ip: str = ""
    # How long an answer is waited for, where no other option says more (mqClientApiTimeout).
    call_timeout_ms: int = 3_000
    # How often every broker is told which groups live here (heartbeatBrokerInterval).
    heartbeat_interval_ms: int = 30_000
    # How often the name server is asked for the routes of the topics in use (pollNameServerInterval).
    route_interval_ms: int = 30_000
    # Connection refused or lost: how long until a broker is tried again for its heartbeat.
    reconnect_interval_ms: int = 1_000
    # Addresses of the coordinators, separated by `;`; the client finds the one that leads. With them, producers and
    # consumers report there, and a topic that is missing is placed by the coordinator. Empty: there are none.
    coordinators: tuple[str, ...] = ()
    # The user as whom every request is signed (accessKey). Empty: as credentials_file or the environment say
    # (PENSTOCK_ACCESS_KEY and PENSTOCK_SECRET_KEY, or PENSTOCK_CREDENTIALS with a file), else unsigned.
    access_key: str = ""
    # The user's secret (secretKey). It is never sent, and left out of every text.
    secret_key: str = field(default="", repr=False)
    # A token that was issued together with the two keys, if there is one (securityToken).
    security_token: str = field(default="", repr=False)
    # A file with the keys: TOML with access_key and secret_key, or RocketMQ's tools.yml. Empty: none.
    credentials_file: str = ""
    # The lowest signature of requests. 1: RocketMQ's, until the server at an address has announced Penstock's, and
    # from then on Penstock's only; 2: Penstock's only, which RocketMQ and Penstock 0.1 refuse. The environment
    # (PENSTOCK_MIN_SIGNATURE) and min_signature in the credentials file can raise it.
    min_signature: int = 1

    def __post_init__(self) -> None:
        self._check_keys()
        object.__setattr__(self, "name_servers", parse_name_servers(self.name_servers))
        object.__setattr__(self, "coordinators", parse_coordinators(self.coordinators))
        for name in (
            "call_timeout_ms",
            "heartbeat_interval_ms",
            "route_interval_ms",
            "reconnect_interval_ms",
        ):
            require_range(name, getattr(self, name), 1, _INT32_MAX)
        for name in ("instance_name", "unit_name", "client_ip"):
            text = getattr(self, name)
            if "@" in text or not text.isprintable() or len(text) > 127:
                raise OptionError(
                    f"{name} is {text[:40]!r}", "use at most 127 printable characters without @"
                )

    def _check_keys(self) -> None:
        for name in ("access_key", "secret_key", "security_token", "credentials_file"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"{name} is no text")
        check_min_signature(self.min_signature)
        if self.access_key or self.secret_key:
            Credentials(self.access_key, self.secret_key, self.security_token)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer sends."""

    # Name under which the brokers know the producers that are replicas of each other (producerGroup).
    group: str = "DEFAULT_PRODUCER"
    # How long one attempt may take until the next broker is tried (sendMsgTimeout).
    send_timeout_ms: int = 3_000
    # Attempts after the first, on another broker where there is one (retryTimesWhenSendFailed).
    retries: int = 2
    # Whether a message that was stored, but not flushed or replicated in time, is sent again
    # (retryAnotherBrokerWhenNotStoreOK).
    retry_not_durable: bool = False
    # What every message must have reached before its answer, unless a send says otherwise; empty: as the broker is
    # configured. RocketMQ's brokers ignore it.
    durability: str = ""
    # Larger bodies are refused before they are sent; the broker has its own limit (maxMessageSize).
    message_bytes_max: int = 4 * 1024 * 1024
    # How bodies are packed: none, zlib, lz4 or zstd (compressType).
    compression: str = "zlib"
    # Bodies from this size on are packed; messages inside a batch never are (compressMsgBodyOverHowmuch).
    compress_over_bytes: int = 4096
    # Effort of zlib and zstd, 1 to 9.
    compression_level: int = 5
    # How long every message waits for others that go to the same topic. 0: a message leaves at once, unless
    # batches_in_flight requests of its topic are under way; then it leaves with the next answer, or after 1 ms.
    linger_ms: int = 0
    # Messages in a batch at most. Messages that are sent while others are under way travel in batches. 1: each
    # message is a request of its own. 0: 1024.
    batch_size: int = 0
    # Bytes in a batch at most; a batch is sent as soon as it is full.
    batch_bytes: int = 256 * 1024
    # Requests of one topic under way from which on messages are gathered into batches. Messages with a queue key
    # travel one request at a time for each queue, so that their order survives a retry.
    batches_in_flight: int = 4
    # Messages of one topic under way from which on no more requests are sent than batches_in_flight. The others
    # wait, and the timeout of a message begins when it is sent: a broker answers so many in time even if its disk
    # is slow. A value below batches_in_flight limits batches, too.
    sends_in_flight: int = 256
    # Bytes of messages that have no answer yet, whether they are under way or wait. Beyond it a call waits until
    # answers make room; one that cannot wait raises BufferFullError. A larger message is taken alone.
    buffer_bytes: int = 32 * 1024 * 1024
    # The same in messages: a small one takes more memory than its bytes say.
    buffer_messages: int = 50_000
    # How long a call waits for room. Then it raises BufferFullError, and its message is not sent.
    buffer_timeout_ms: int = 60_000
    # Avoid brokers that were slow or failed for a while, depending on how slow (sendLatencyFaultEnable).
    avoid_slow_brokers: bool = False
    # Whether messages carry a number by which brokers recognise one that is sent again: it is stored once, whatever
    # becomes of the answer. A retry then goes to the queue that the message may be in, and waits for its broker set.
    # Penstock's brokers only; others are told apart by their answer, and the send fails.
    idempotent: bool = False
    # Name of an idempotent producer that goes on after a restart: each send then gives its own `sequence`, and the
    # same sequence is the same message. Empty: a random name for as long as the producer lives, and its own numbers.
    producer_id: str = ""
    # Topic whose route and settings are the model of a topic that does not exist yet (createTopicKey).
    template_topic: str = "TBW102"
    # Queues asked for when such a topic is created (defaultTopicQueueNums).
    topic_queues: int = 4
    # Whether a message with keys goes to the queue of its first one, unless queue or queue_key say otherwise. There
    # `Admin.read_by_key` finds it.
    partition_by_key: bool = False
    # Whether what happens to messages is written to the trace topic, for `penstock message trace` (enableMsgTrace).
    trace: bool = False
    # Where traces go (customizedTraceTopic).
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"

    def __post_init__(self) -> None:
        check_name("group", self.group)
        for name, low, high in (
            ("send_timeout_ms", 1, _INT32_MAX),
            ("retries", 0, 100),
            ("message_bytes_max", 1, _INT32_MAX),
            ("compress_over_bytes", 1, _INT32_MAX),
            ("compression_level", 1, 9),
            ("linger_ms", 0, 60_000),
            ("batch_size", 0, 1_000_000),
            ("batch_bytes", 1024, 4 * 1024 * 1024),
            ("batches_in_flight", 1, 1024),
            ("sends_in_flight", 1, 1024),
            ("buffer_bytes", 1024, _INT32_MAX),
            ("buffer_messages", 1, _INT32_MAX),
            ("buffer_timeout_ms", 1, _INT32_MAX),
            ("topic_queues", 1, 65_535),
        ):
            require_range(name, getattr(self, name), low, high)
        check_name("trace_topic", self.trace_topic)
        require_choice("durability", self.durability, ("", *Durability))
        require_choice("compression", self.compression, tuple(Compression))
        if self.producer_id and not self.idempotent:
            raise OptionError("producer_id is given, but idempotent is not on", "use both, or neither")
        if self.producer_id and _PRODUCER_ID.fullmatch(self.producer_id) is None:
            raise OptionError(
                f"producer_id is {self.producer_id[:80]!r}", "use 1 to 64 letters, digits, _ . -"
            )

    @property
    def batching(self) -> bool:
        """Whether sends may travel in batches."""
        return self.batch_size != 1

    @property
    def batch_messages_max(self) -> int:
        return self.batch_size or 1024


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer consumes."""

    # Consumers of one group share the messages of their topics; in broadcasting each gets all of them
    # (consumerGroup).
    group: str = DEFAULT_GROUP
    # clustering: each message goes to one consumer of the group; broadcasting: to every one (messageModel).
    model: str = "clustering"
    # Where a group begins that has never been in a topic (consumeFromWhere): first, last, a datetime or milliseconds
    # since the epoch; auto, as RocketMQ's clients do: at the first message where a queue still has it, else at the
    # last. A queue that appears later is read from its first message.
    start_from: str | int | datetime = "auto"
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
    # How messages come: pull, as RocketMQ's clients do by default; or pop, where the broker gives messages of all
    # queues to whoever asks, and takes back what is not acknowledged in time: nobody waits for a slow consumer; or
    # push, where the broker calls this client with the messages of the queues that it has (docs/push.md).
    delivery: str = "pull"
    # With pop: how long messages are invisible to others before they come again (popInvisibleTime). While a loop or a
    # listener works on them it is extended; what was taken with pop() is to be acknowledged within this time.
    invisible_ms: int = 60_000
    # With pop: messages asked for at once (popBatchNums).
    pop_batch: int = 32
    # Messages asked for with one pull (pullBatchSize; there it is 32, which is also the most that RocketMQ's brokers
    # give; a Penstock broker gives up to its pull_count_batch_max).
    pull_batch: int = 256
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
    # Who divides the queues: client, every consumer for itself, as RocketMQ does; or coordinator, which also leases
    # each queue to one consumer at its broker. All consumers of a group must use the same.
    balance: str = "client"
    # With a coordinator, how a group shares topics with other groups: clustering, without limits; point_to_point, no
    # second group of this mode reads the topic, and a consumer that names no group is in the one that does;
    # publish_subscribe, a group is one consumer.
    subscription_mode: str = "clustering"
    # With a coordinator, how queues are bound to the consumers of the group: even, nobody has more than one more than
    # another; ring, by consistent hashing: few move when a consumer comes or goes, and shares are level on average.
    binding: str = "even"
    # With a coordinator, how often the consumer reports to it, apart from when something changes.
    coordinator_interval_ms: int = 5_000
    # With a coordinator, how long messages that are worked on may hold up a queue that is to be given away; after
    # that they come again elsewhere. TubeMQ waits 3 s.
    release_timeout_ms: int = 10_000
    # Whether what happens to messages is written to the trace topic, for `penstock message trace` (enableMsgTrace).
    trace: bool = False
    # Where traces go (customizedTraceTopic).
    trace_topic: str = "RMQ_SYS_TRACE_TOPIC"

    def __post_init__(self) -> None:
        if not self.joins_by_topic:
            check_name("group", self.group, GROUP_NAME_MAX)
        check_name("trace_topic", self.trace_topic)
        require_choice("model", self.model, ("clustering", "broadcasting"))
        require_choice("balance", self.balance, ("client", "coordinator"))
        require_choice("delivery", self.delivery, ("pull", "pop", "push"))
        self._check_pop()
        if self.is_push and self.is_broadcasting:
            raise OptionError(
                "delivery is 'push', which does not go with model='broadcasting'",
                "a queue is pushed to one consumer of a group: use delivery='pull', or a group for each consumer",
            )
        require_choice("subscription_mode", self.subscription_mode, tuple(SubscriptionMode))
        require_choice("binding", self.binding, tuple(Binding))
        if self.is_coordinated and self.is_broadcasting:
            raise OptionError(
                "balance is 'coordinator' and model is 'broadcasting'",
                "every consumer of a broadcasting group reads all queues: there is nothing to balance",
            )
        self._check_start()
        find_strategy(self.strategy)
        for name, low, high in (
            ("threads", 1, 1_000),
            ("pull_batch", 1, 1_024),
            ("invisible_ms", 1_000, 43_200_000),
            ("pop_batch", 1, 32),
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
            ("coordinator_interval_ms", 1, 30_000),
            ("release_timeout_ms", 0, 300_000),
        ):
            require_range(name, getattr(self, name), low, high)
        if self.pull_timeout_ms <= self.suspend_ms:
            raise OptionError(
                f"pull_timeout_ms is {self.pull_timeout_ms}, not more than suspend_ms ({self.suspend_ms})",
                "brokers may hold a pull up to 5 s longer than suspend_ms: leave room for that",
            )

    def _check_pop(self) -> None:
        """What cannot be had with popping."""
        if not self.is_pop:
            return
        for name, is_so in (
            ("model='broadcasting'", self.is_broadcasting),
            ("balance='coordinator'", self.is_coordinated),
            ("a time as start_from", not isinstance(self.start_from, str)),
        ):
            if is_so:
                raise OptionError(
                    f"delivery is 'pop', which does not go with {name}", "use delivery='pull' for that"
                )

    @property
    def is_push(self) -> bool:
        return self.delivery == "push"

    @property
    def is_pop(self) -> bool:
        return self.delivery == "pop"

    def _check_start(self) -> None:
        start: object = self.start_from
        if isinstance(start, str):
            require_choice("start_from", start, ("auto", "first", "last"))
        elif isinstance(start, bool) or not isinstance(start, int | datetime) or self.start_ms < 0:
            raise OptionError(
                f"start_from is {start!r}",
                'use "auto", "first", "last", a datetime or milliseconds since the epoch',
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
    def is_coordinated(self) -> bool:
        return self.balance == "coordinator"

    @property
    def joins_by_topic(self) -> bool:
        """Whether no group is named and the consumer is to be in the one that reads its topic point to point."""
        is_unnamed = self.group in ("", DEFAULT_GROUP)
        return (
            is_unnamed and self.is_coordinated and self.subscription_mode == SubscriptionMode.POINT_TO_POINT
        )

    @property
    def back_retries_max(self) -> int:
        """The limit as brokers are told it."""
        return DEFAULT_RETRIES_MAX if self.retries_max < 0 else self.retries_max


def check_name(what: str, name: object, most: int = 255) -> None:
    """Refuse a topic or group name that no broker would take: some brokers ignore such a group without a word."""
    if not isinstance(name, str) or len(name) > most or _NAME.fullmatch(name) is None:
        raise OptionError(f"{what} is {str(name)[:80]!r}", f"use 1 to {most} letters, digits, _ - % |")


def require_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse what is none of the allowed texts."""
    names = list(allowed)
    if value not in names:
        raise OptionError(f"{name} is {value!r}", f"use one of: {', '.join(n or '(empty)' for n in names)}")


def read_settings(
    settings: Mapping[str, Any], first: type[_First], second: type[_Second]
) -> tuple[_First, _Second]:
    """Keyword arguments of a client, sorted into its two options classes."""
    known = [*_names(first), *_names(second)]
    _refuse_unknown(settings, known)
    return _make(settings, first), _make(settings, second)


def check_objects(**given: object) -> None:
    """Refuse objects that a client is given besides its options, and that lack what it needs of them."""
    wanted: dict[str, tuple[tuple[str, ...], str]] = {
        "tls": (("trusted",), "use penstock.TlsOptions(...)"),
        "rpc_hook": (
            ("before_request", "after_response"),
            "use an object with the methods of penstock.RpcHook",
        ),
        "transaction_listener": (("check",), "use an object with a method check(message)"),
        "listener": (("__call__",), "use a function of one message"),
        "on_queues": (("__call__",), "use a function of a topic and its queues"),
    }
    for name, value in given.items():
        names, hint = wanted[name]
        if value is None:
            continue
        if not all(hasattr(value, one) for one in names) or not _takes(value, _ARGUMENTS.get(name, 0)):
            raise OptionError(f"{name} is {value!r}", hint)


def _takes(function: Any, count: int) -> bool:
    """Whether a function may be called with so many arguments, as far as can be seen: else each message would fail,
    and end as a dead letter. 0: it is not called."""
    if not count:
        return True
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some builtin functions do not say
        pass
    return True


def check_topics(name: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Refuse what is no list of topics; a single text would be taken for a list of letters."""
    given: object = topics
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"{name} is {given!r}", "use a list of topics")
    found = tuple(given)
    for topic in found:
        check_name("topic", topic)
    return found


def read_client_settings(settings: Mapping[str, Any]) -> ClientOptions:
    """Keyword arguments of a client that has no options of its own."""
    _refuse_unknown(settings, _names(ClientOptions))
    return _make(settings, ClientOptions)


def _names(cls: type[Any]) -> list[str]:
    return [one.name for one in dataclasses.fields(cls)]


def _make(settings: Mapping[str, Any], cls: type[_First]) -> _First:
    kinds: dict[str, tuple[type, str]] = {"bool": (bool, "True or False"), "str": (str, "text")}
    for one in dataclasses.fields(cls):  # type: ignore[arg-type]
        kind, hint = kinds.get(str(one.type), (object, ""))
        if one.name in settings and one.name != "group" and not isinstance(settings[one.name], kind):
            raise OptionError(f"{one.name} is {settings[one.name]!r}", f"use {hint}")
    return cls(**{name: settings[name] for name in _names(cls) if name in settings})


def _refuse_unknown(settings: Mapping[str, Any], known: list[str]) -> None:
    for name in settings:
        if name not in known:
            near = did_you_mean(name, known) or f"the options are: {', '.join(known)}"
            raise OptionError(f"there is no option {name!r}", near)
