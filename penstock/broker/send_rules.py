"""What a message must satisfy before it is stored: the broker's own rules, in RocketMQ's order, with its codes.

    1 master, accepting, writable       2, 1, 16        5 queue exists                   29
    2 the topic's name                  29              6 retry: group exists            26
    3 topics nobody may send to         16              7 what the message asks for      13, 16
    4 topic exists or is made           17

Also what every stored message gets from the broker, and what every answer carries. The compiled way for plain
sends asks `plain_queues` once per topic, and takes the same suffix; whatever is not plain comes through here.
Owned by the event loop. Rules, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker import property_text as text
from penstock.broker.attributes import BATCH_QUEUES, QUEUE_TYPE, require_plain_queues
from penstock.broker.groups import Groups
from penstock.broker.locks import QueueLocks
from penstock.broker.options import BrokerOptions
from penstock.broker.topics import Topics, dead_letter_topic, validate_topic
from penstock.errors import RequestError
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.codes import V3_4_9, ResponseCode
from penstock.protocol.command import parse_integer
from penstock.protocol.headers import SendMessageRequestHeader
from penstock.protocol.topic_names import RETRY_PREFIX
from penstock.runtime import Runtime

PREPARED_OR_MORE = 0xC
MULTI_TAGS = 0x2
# Bits that only the broker sets: inner batches, and the address families, which the store recomputes.
_BROKERS_BITS = 0xC0
_LEVEL_MAX = 2**31 - 1


class SendRules:
    """One for a broker. `options` may be replaced while it runs."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        delay_levels: int,
        runtime: Runtime,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._delay_levels = delay_levels
        self._clock = runtime.clock
        self._entropy = runtime.entropy
        # Set when the broker begins to stop: what is under way is finished, nothing new is taken.
        self.is_stopping = False
        self.reconfigure(options)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options
        # On every answer to a send, errors included.
        self.answer_fields = {
            text.REGION: options.region_id,
            text.TRACE_ON: "true" if options.trace_on else "false",
        }
        # Behind the properties of every message.
        self.suffix = {**self.answer_fields, text.CLUSTER: options.cluster_name}
        self.suffix_bytes = "".join(text.pair(name, value) for name, value in self.suffix.items()).encode()

    # -- the broker ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the broker takes sends at all now."""
        options = self.options
        if options.broker_id or self.is_stopping:
            return False
        return not options.accept_sends_from_ms or self._clock.now_ms() >= options.accept_sends_from_ms

    def check_open(self) -> None:
        """Refuse where `is_open` is false, with the reason."""
        options = self.options
        if options.broker_id:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]{options.broker_name} with id {options.broker_id} is a slave",
                "send to the master, which has id 0; ask for the route again",
            )
        if self.is_stopping:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker {options.broker_name} is being stopped",
                "send to another broker, or again when this one is back",
            )
        wait_ms = options.accept_sends_from_ms - self._clock.now_ms() if options.accept_sends_from_ms else 0
        if wait_ms > 0:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {options.broker_name} does not accept messages yet",
                f"try again in {wait_ms} ms",
            )

    # -- topics and queues -----------------------------------------------------------------------------------

    def plain_queues(self, topic: str) -> int:
        """Queues 0 to n-1 of a topic take sends that need no closer look; 0 if every send of it needs one."""
        config = self._topics.get(topic)
        if config is None or not self._topics.is_sendable(topic) or topic.startswith(RETRY_PREFIX):
            return 0
        if self._topics.is_unsaved(topic):
            return 0
        if self._is_barred(config) or config.filter_type != "SINGLE_TAG" or is_compacted(config):
            return 0
        if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES:
            return 0
        return max(config.read_queue_nums, config.write_queue_nums)

    def once_saved(self, topic: str, action: Callable[[], None]) -> None:
        """Answer a send: the first ones of a topic that they made wait until a crash would not forget it."""
        self._topics.once_saved(topic, action)

    def topic(self, header: SendMessageRequestHeader) -> TopicConfig:
        """The topic of a send; made if it is new and may be."""
        name = header.topic
        config = self._topics.get(name)
        if config is not None and self._is_barred(config):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"broker {self.options.broker_name} accepts no messages for ordered topics",
                "an operator has to give it the write permission",
            )
        validate_topic(name)
        self.check_sendable(name)
        if config is not None:
            require_plain_queues(config)
            return config
        if name.startswith(RETRY_PREFIX):
            self._group_of(name)
            return self._topics.ensure(name, 1, unit_mode=header.unit_mode)
        return self._topics.create_for_send(
            name, header.default_topic, header.default_topic_queue_nums, unit_mode=header.unit_mode
        )

    def check_sendable(self, name: str) -> None:
        """Refuse a topic that only the broker writes to, whatever the path of the message."""
        if not self._topics.is_sendable(name):
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"topic {name} is reserved: nobody may send to it", "use another"
            )

    def _is_barred(self, config: TopicConfig) -> bool:
        return config.order and not self.options.permission & Permission.WRITE

    def queue(self, config: TopicConfig, queue_id: int) -> int:
        """The queue of a send: as asked, or any if the number is negative."""
        most = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= most:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} is illegal: topic {config.name} has {most} queues",
                "ask for the route again",
            )
        if queue_id >= 0:
            return queue_id
        if config.write_queue_nums <= 0:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"topic {config.name} has no queue to write to"
            )
        return self._entropy.below(config.write_queue_nums)

    # -- retries ---------------------------------------------------------------------------------------------

    def _group_of(self, retry_topic: str) -> int:
        """How often the group of a retry topic tries a message."""
        return self._groups.require(retry_topic.removeprefix(RETRY_PREFIX)).retry_max_times

    def dead_letter(self, header: SendMessageRequestHeader, version: int) -> TopicConfig | None:
        """For a message to a retry topic: the dead-letter topic it goes to instead, or None to try it again."""
        if not header.topic.startswith(RETRY_PREFIX):
            return None
        most = self._group_of(header.topic)
        if version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        group = header.topic.removeprefix(RETRY_PREFIX)
        # A group that holds locks consumes in order: it has tried the message over and over itself.
        if header.reconsume_times <= most and not self._locks.is_locked(group):
            return None
        return self._topics.ensure(dead_letter_topic(group), 1)

    # -- what a message asks for -----------------------------------------------------------------------------

    def system_flag(self, config: TopicConfig, flag: int) -> int:
        """The flag to store: the client's compression, the topic's tags, no transaction."""
        flag &= ~(PREPARED_OR_MORE | _BROKERS_BITS)
        return flag | MULTI_TAGS if config.filter_type == "MULTI_TAG" else flag

    def check_kind(
        self, config: TopicConfig, header: SendMessageRequestHeader, pairs: dict[str, str], is_retry: bool
    ) -> bool:
        """Refuse what would not be kept as it was meant. Whether it is the half of a transaction; `is_retry`: it was
        consumed before, and is to be again or never."""
        if is_compacted(config) and not pairs.get(text.KEYS, "").strip():
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {config.name} is compacted: a message needs KEYS"
            )
        if pairs.get(text.TRANSACTION, "").lower() != "true":
            if header.sys_flag & PREPARED_OR_MORE:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the flag says that it is transactional and the property {text.TRANSACTION} does not",
                    "set both, or neither",
                )
            return False
        if is_retry:
            return False  # clients before 4.6.1 leave the mark on messages that they send back
        for name in text.TIMERS:
            if name in pairs:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a message cannot be both transactional and timed ({name})",
                    "leave one of them out; a delay level counts from the commit on",
                )
        if self.options.reject_transactions:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker takes no transactional messages",
                "send it without a transaction, or to a broker that takes them",
            )
        return True

    def delay_level(self, pairs: dict[str, str]) -> int:
        """The delay level that a message asks for, 0 for none; what is no level is refused, never taken as now."""
        asked = pairs.get(text.DELAY)
        if asked is None:
            return 0
        try:
            level = parse_integer(text.DELAY, asked, 0, _LEVEL_MAX)
        except RequestError as error:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{asked[:40]!r} is no delay level",
                f"use 1 to {self._delay_levels}, or 0 for no delay",
            ) from error
        return min(level, self._delay_levels)


def is_compacted(config: TopicConfig) -> bool:
    """Whether the last message of each key is kept, so that each needs one."""
    return config.attributes.get("cleanup.policy", "").upper() == "COMPACTION"
