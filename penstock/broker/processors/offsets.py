"""Consumer offsets and the ranges of queues (14, 15, 29, 30, 31, 32, 43).

A group without a stored offset starts at 0 on a queue that is young, so that the first messages of a new topic
reach every group; else the client is told that there is none and decides itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.processors.reading import answer_table
from penstock.broker.side_tables import SideTables
from penstock.broker.store_times import earliest_at, is_in_memory, memory_window
from penstock.broker.topics import Topics
from penstock.errors import RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies.balance import HOLDER_FIELD
from penstock.protocol.bodies.tables import encode_consumer_offsets
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.store.message_store import MessageStore
from penstock.store.reading import TimeBoundary


class OffsetsProcessor:
    """Answers where groups are and where queues begin and end."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        leases: PartitionLeases,
        store: MessageStore,
        tables: SideTables | None = None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._leases = leases
        self._store = store
        self._tables = tables
        self._memory_window = memory_window(options.memory_percent)

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.QUERY_CONSUMER_OFFSET, self.handle_query_consumer_offset)
        table.register(RequestCode.UPDATE_CONSUMER_OFFSET, self.handle_update_consumer_offset)
        table.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.handle_search_offset_by_timestamp)
        table.register(RequestCode.GET_MAX_OFFSET, self.handle_get_max_offset)
        table.register(RequestCode.GET_MIN_OFFSET, self.handle_get_min_offset)
        table.register(RequestCode.GET_EARLIEST_MSG_STORETIME, self.handle_get_earliest_msg_storetime)
        table.register(RequestCode.GET_ALL_CONSUMER_OFFSET, self.handle_get_all_consumer_offset)

    def handle_query_consumer_offset(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        answer = self._query(command)
        return answer if self._tables is None or not self._tables.must_wait else self._once_safe(answer)

    async def _once_safe(self, answer: Command) -> Command:
        """What a client is told of an offset, the next master has to know. Where this broker cannot be sure that it
        still is master, its successor may know more already: then its replicas have to answer it first."""
        if self._tables is not None:
            await (self._tables.replicated() if self._leases.is_sure() else self._tables.prove())
        return answer

    def _query(self, command: Command) -> Command:
        header = QueryConsumerOffsetRequestHeader.decode(command.fields)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset >= 0:
            return _offset(command, offset)
        if header.set_zero_if_not_found is False:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, "the group has no offset here, and none is to be assumed"
            )
        is_young = self._store.min_offset(topic, queue_id) <= 0
        if is_young and is_in_memory(self._store, topic, queue_id, 0, self._memory_window):
            return _offset(command, 0)
        raise RequestError(ResponseCode.QUERY_NOT_FOUND, "the group has no offset here; it may be a new one")

    def handle_update_consumer_offset(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        answer = self._commit(command)
        is_waiting = self._tables is not None and self._tables.must_wait and not command.is_oneway
        return self._once_safe(answer) if is_waiting else answer

    def _commit(self, command: Command) -> Command:
        header = UpdateConsumerOffsetRequestHeader.decode(command.fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if self._groups.find(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {group[:80]!r} does not exist",
                "send a heartbeat first",
            )
        config = self._topics.get(topic)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic[:80]!r} does not exist")
        if header.commit_offset < 0:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"offset {header.commit_offset} is negative",
                "commit the offset of the next message to consume",
            )
        if not self._is_queue(config, queue_id) and queue_id not in self._offsets.queues(group, topic):
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"topic {topic} has no queue {queue_id}")
        self._leases.check(group, topic, queue_id, command.fields.get(HOLDER_FIELD))
        if not self._offsets.commit(group, topic, queue_id, header.commit_offset):
            return command.answer(remark="the offset was reset; pull first")
        return command.answer()

    @staticmethod
    def _is_queue(config: TopicConfig, queue_id: int) -> bool:
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def handle_search_offset_by_timestamp(self, connection: Connection, command: Command) -> Command:
        header = SearchOffsetRequestHeader.decode(command.fields)
        boundary = TimeBoundary.UPPER if header.is_upper else TimeBoundary.LOWER
        found = self._store.reader.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return _offset(command, found)

    def handle_get_max_offset(self, connection: Connection, command: Command) -> Command:
        header = GetMaxOffsetRequestHeader.decode(command.fields)
        return _offset(command, self._store.max_offset(header.topic, header.queue_id))

    def handle_get_min_offset(self, connection: Connection, command: Command) -> Command:
        header = GetMinOffsetRequestHeader.decode(command.fields)
        return _offset(command, self._store.min_offset(header.topic, header.queue_id))

    def handle_get_earliest_msg_storetime(self, connection: Connection, command: Command) -> Command:
        header = GetEarliestMsgStoretimeRequestHeader.decode(command.fields)
        time_ms = earliest_at(self._store, header.topic, header.queue_id)
        answer = GetEarliestMsgStoretimeResponseHeader(timestamp=time_ms)
        return command.answer(fields=answer.encode())

    def handle_get_all_consumer_offset(
        self, connection: Connection, command: Command
    ) -> Command | Awaitable[Command]:
        def prepare() -> Callable[[], bytes]:
            return partial(encode_consumer_offsets, self._offsets.snapshot())

        return answer_table(connection, command, self._offsets.pairs, prepare)


def _offset(command: Command, offset: int) -> Command:
    return command.answer(fields=OffsetResponseHeader(offset=offset).encode())
