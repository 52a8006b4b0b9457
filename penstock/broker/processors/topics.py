"""Topics for operators (17, 18, 21, 202, 215, 300, 305, 316, 343, 345, 351, 513).

Rules: names are checked and reserved topics refused (A6, A7) before anything changes; of a list either all
topics are created or none. A change is answered when it is in its file, and registered with the name servers
at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Protocol

from penstock.broker.attributes import MESSAGE_TYPE, alter, parse_changes
from penstock.broker.consumers import Consumers
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.reading import answer_table, check_extra, read_body, saved
from penstock.broker.retry_names import RetryNames
from penstock.broker.store_times import newest_at
from penstock.broker.topics import SYSTEM_TOPICS, Topics, validate_topic
from penstock.errors import RequestError
from penstock.metadata.topic_table import Permission, TopicConfig
from penstock.protocol.bodies import (
    GroupList,
    MessageQueue,
    QuerySubscriptionResponseBody,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from penstock.protocol.bodies.tables import decode_topic_config_list, encode_topic_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
)
from penstock.protocol.pop_handles import RETRY_V1, RETRY_V2, pop_retry_topic
from penstock.remoting import Connection, ProcessorTable
from penstock.store.message_store import MessageStore

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
PERMISSION_MAX = 7


class PutRates(Protocol):
    """What the statistics say of topics."""

    def topic_put_tps(self, topic: str) -> float: ...


class TopicsProcessor:
    """Creates, changes, deletes and describes topics."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        names: RetryNames,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        store: MessageStore,
        rates: PutRates,
        address: Callable[[], str],
    ) -> None:
        self._options = options
        self._topics = topics
        self._names = names
        self._consumers = consumers
        self._offsets = offsets
        self._store = store
        self._rates = rates
        self._address = address

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.UPDATE_AND_CREATE_TOPIC, self.handle_update_and_create_topic)
        table.register(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, self.handle_static_topic)
        table.register(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.handle_update_and_create_topic_list)
        table.register(RequestCode.GET_ALL_TOPIC_CONFIG, self.handle_get_all_topic_config)
        table.register(RequestCode.GET_TOPIC_STATS_INFO, self.handle_get_topic_stats_info)
        table.register(RequestCode.DELETE_TOPIC_IN_BROKER, self.handle_delete_topic_in_broker)
        table.register(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.handle_query_topic_consume_by_who)
        table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.handle_get_system_topic_list)
        table.register(RequestCode.CLEAN_UNUSED_TOPIC, self.handle_clean_unused_topic)
        table.register(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.handle_query_topics_by_consumer)
        table.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.handle_query_subscription_by_consumer)
        table.register(RequestCode.GET_TOPIC_CONFIG, self.handle_get_topic_config)

    # -- changes ---------------------------------------------------------------------------------------------

    def handle_update_and_create_topic(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = CreateTopicRequestHeader.decode(command.fields)
        known = self._topics.get(header.topic)
        wanted = TopicConfig(
            name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=_permission(header.perm),
            filter_type=header.topic_filter_type,
            sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=parse_changes(header.attributes or ""),
            extra=known.extra if known is not None else {},
        )
        self._topics.update(self._checked(wanted))
        return saved(self._topics, command)

    def handle_static_topic(self, connection: Connection, command: Command) -> Command:
        raise RequestError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "Penstock does not support static topics, whose logical queues move between brokers",
            "create an ordinary topic",
        )

    def handle_update_and_create_topic_list(
        self, connection: Connection, command: Command
    ) -> Awaitable[Command]:
        wanted = read_body(command, decode_topic_config_list)
        for checked in [self._checked(config) for config in wanted]:
            self._topics.update(checked)
        return saved(self._topics, command)

    def _checked(self, wanted: TopicConfig) -> TopicConfig:
        """The topic as it will be; `wanted.attributes` are changes. Raises RequestError if it may not be."""
        name = wanted.name
        validate_topic(name)
        if self._topics.is_system(name):
            raise _invalid(f"topic {name} is reserved", "use another name")
        if max(wanted.read_queue_nums, wanted.write_queue_nums) > self._options.topic_queues_max:
            raise _invalid(
                f"topic {name} would have more than {self._options.topic_queues_max} queues", "use fewer"
            )
        if min(wanted.read_queue_nums, wanted.write_queue_nums, wanted.sys_flag) < 0:
            raise _invalid(f"topic {name} would have a negative number of queues", "use 0 or more")
        if wanted.perm > PERMISSION_MAX:
            raise _invalid(f"topic {name} cannot have permission {int(wanted.perm)}", "use 2, 4 or 6")
        if wanted.filter_type not in FILTER_TYPES:
            raise _invalid(f"there is no filter type {wanted.filter_type[:40]!r}", "use SINGLE_TAG")
        if wanted.attributes.get(f"+{MESSAGE_TYPE}") == "MIXED":
            raise _invalid("message type MIXED is not supported", "use one type per topic")
        check_extra(name, wanted.extra, wanted.to_json())
        known = self._topics.get(name)
        current = None if known is None else known.attributes
        return replace(wanted, attributes=alter(current, wanted.attributes))

    def handle_delete_topic_in_broker(self, connection: Connection, command: Command) -> Awaitable[Command]:
        name = DeleteTopicRequestHeader.decode(command.fields).topic
        if not name.strip():
            raise _invalid("the topic has no name", "name it")
        if self._topics.is_system(name):
            raise _invalid(f"topic {name[:80]!r} is reserved", "it cannot be deleted")
        doomed = [name]
        for group in self._offsets.groups_of_topic(name):
            # Retry topics of pop consumption belong to a topic and a group.
            for kind in (RETRY_V1, RETRY_V2):
                joined = pop_retry_topic(group, name, kind)
                is_shared = kind == RETRY_V1 and self._names.is_shared(group, name)
                if self._topics.get(joined) is not None and not is_shared:
                    doomed.append(joined)
        self._delete(doomed)
        return saved(self._topics, command)

    def handle_clean_unused_topic(self, connection: Connection, command: Command) -> Command:
        stored = {queue.topic for queue in self._store.queues}
        unused = [
            topic for topic in stored if self._topics.get(topic) is None and not self._topics.is_system(topic)
        ]
        self._delete(unused)
        return command.answer()

    def _delete(self, names: Iterable[str]) -> None:
        """Config and queues go without a moment in between in which a send could land in one of them only."""
        doomed = [*names]
        if doomed:
            self._store.delete_topics(doomed)
        for name in doomed:
            self._topics.delete(name)
            self._offsets.remove_topic(name)

    # -- questions -------------------------------------------------------------------------------------------

    def handle_get_all_topic_config(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        def prepare() -> Callable[[], bytes]:
            return TopicConfigSerializeWrapper(self._topics.data_version, dict(self._topics.all())).encode

        return answer_table(connection, command, len(self._topics.all()), prepare)

    def handle_get_topic_config(self, connection: Connection, command: Command) -> Command:
        config = self._require(GetTopicConfigRequestHeader.decode(command.fields).topic)
        return command.answer(body=encode_topic_config(config))

    def handle_get_topic_stats_info(self, connection: Connection, command: Command) -> Command:
        config = self._require(GetTopicStatsInfoRequestHeader.decode(command.fields).topic)
        table = {
            MessageQueue(config.name, self._options.broker_name, queue_id): self._range(config.name, queue_id)
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
        }
        stats = TopicStatsTable(table, self._rates.topic_put_tps(config.name))
        return command.answer(body=stats.encode())

    def _range(self, topic: str, queue_id: int) -> TopicOffset:
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        time_ms = newest_at(self._store, topic, queue_id) if high > 0 else 0
        return TopicOffset(low, high, max(time_ms, 0))

    def handle_query_topic_consume_by_who(self, connection: Connection, command: Command) -> Command:
        topic = QueryTopicConsumeByWhoRequestHeader.decode(command.fields).topic
        groups = {*self._consumers.groups_of_topic(topic), *self._offsets.groups_of_topic(topic)}
        return command.answer(body=GroupList(tuple(sorted(groups))).encode())

    def handle_get_system_topic_list(self, connection: Connection, command: Command) -> Command:
        names = {name for name in self._topics.all() if self._topics.is_system(name)} | SYSTEM_TOPICS
        return command.answer(body=TopicList(tuple(sorted(names))).encode())

    def handle_query_topics_by_consumer(self, connection: Connection, command: Command) -> Command:
        group = QueryTopicsByConsumerRequestHeader.decode(command.fields).group
        topics = TopicList(tuple(sorted(self._offsets.topics_of_group(group))), self._address())
        return command.answer(body=topics.encode())

    def handle_query_subscription_by_consumer(self, connection: Connection, command: Command) -> Command:
        header = QuerySubscriptionByConsumerRequestHeader.decode(command.fields)
        topic = header.topic or ""
        group = self._consumers.group(header.group)
        found = None if group is None else group.subscription(topic)
        return command.answer(body=QuerySubscriptionResponseBody(header.group, topic, found).encode())

    def _require(self, name: str) -> TopicConfig:
        config = self._topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:80]!r} does not exist here")
        return config


def _permission(bits: int) -> Permission:
    if not 0 <= bits <= PERMISSION_MAX:
        raise _invalid(f"there is no permission {bits}", "use 6 for read and write, 4 or 2 for one of them")
    return Permission(bits)


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, message, hint)
