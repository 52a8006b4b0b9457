"""How far groups are behind, in messages and in time (208, 303, 308, 317)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from penstock.broker.consumers import Consumers
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.store_times import earliest_at, newest_at, stored_at
from penstock.broker.topics import Topics
from penstock.errors import RequestError
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    MessageQueue,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import INT64_MAX, Command
from penstock.protocol.headers import (
    GetBrokerConsumeStatsRequestHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueryCorrectionOffsetRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock
from penstock.store.message_store import MessageStore


class GetRates(Protocol):
    """What the statistics say of groups."""

    def group_get_tps(self, group: str, topic: str) -> float: ...


class ConsumeStatsProcessor:
    """Compares offsets of groups with the ends of queues."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        store: MessageStore,
        rates: GetRates,
        clock: Clock,
        address: Callable[[], str],
    ) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._store = store
        self._rates = rates
        self._clock = clock
        self._address = address

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.GET_CONSUME_STATS, self.handle_get_consume_stats)
        table.register(RequestCode.GET_BROKER_CONSUME_STATS, self.handle_get_broker_consume_stats)
        table.register(RequestCode.QUERY_CONSUME_TIME_SPAN, self.handle_query_consume_time_span)
        table.register(RequestCode.QUERY_CORRECTION_OFFSET, self.handle_query_correction_offset)

    # -- in messages -----------------------------------------------------------------------------------------

    def handle_get_consume_stats(self, connection: Connection, command: Command) -> Command:
        header = GetConsumeStatsRequestHeader.decode(command.fields)
        group = header.consumer_group
        topics: Iterable[str] = header.topics or self._offsets.topics_of_group(group)
        table: dict[MessageQueue, OffsetWrapper] = {}
        tps = 0.0
        for topic in dict.fromkeys(topics):  # each once, however often it is named
            config = self._topics.get(topic)
            if config is None or not (header.topic_list or self._is_consumed(group, topic)):
                continue
            for queue_id in range(config.read_queue_nums):
                table[self._queue(topic, queue_id)] = self._place(group, topic, queue_id)
            tps += self._rates.group_get_tps(group, topic)
        return command.answer(body=ConsumeStats(table, tps).encode())

    async def handle_get_broker_consume_stats(self, connection: Connection, command: Command) -> Command:
        """Every group with every topic of it: others have their turn in between."""
        header = GetBrokerConsumeStatsRequestHeader.decode(command.fields)
        listed: list[dict[str, tuple[ConsumeStats, ...]]] = []
        lag = in_flight = 0
        for group in [*self._groups.all()]:
            stats = await connection.in_turn(
                partial(lambda one: tuple(self._stats_by_topic(one, is_order=header.is_order)), group)
            )
            lag += sum(item.lag for item in stats)
            in_flight += sum(
                place.pull_offset - place.consumer_offset for item in stats for place in item.offsets.values()
            )
            listed.append({group: stats})
        body = ConsumeStatsList(tuple(listed), self._address(), lag, in_flight)
        return command.answer(body=await connection.in_thread(lambda: body.encode))

    def _stats_by_topic(self, group: str, *, is_order: bool) -> Iterable[ConsumeStats]:
        for topic in self._offsets.topics_of_group(group):
            config = self._topics.get(topic)
            if config is None or (is_order and not config.order) or not self._is_consumed(group, topic):
                continue
            table = {
                self._queue(topic, queue_id): self._place(group, topic, queue_id)
                for queue_id in range(config.write_queue_nums)
            }
            yield ConsumeStats(table, self._rates.group_get_tps(group, topic))

    def _is_consumed(self, group: str, topic: str) -> bool:
        """False for a topic that a group online does not subscribe to any more."""
        online = self._consumers.group(group)
        return online is None or not online.subscriptions or topic in online.subscriptions

    def _place(self, group: str, topic: str, queue_id: int) -> OffsetWrapper:
        consumed = max(self._offsets.query(group, topic, queue_id), 0)
        pulled = max(self._offsets.query_pull(group, topic, queue_id), consumed)
        time_ms = stored_at(self._store, topic, queue_id, consumed - 1) if consumed > 0 else 0
        return OffsetWrapper(self._store.max_offset(topic, queue_id), consumed, pulled, max(time_ms, 0))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._options.broker_name, queue_id)

    # -- in time ---------------------------------------------------------------------------------------------

    def handle_query_consume_time_span(self, connection: Connection, command: Command) -> Command:
        header = QueryConsumeTimeSpanRequestHeader.decode(command.fields)
        config = self._require(header.topic)
        spans = tuple(
            self._span(header.group, header.topic, queue_id) for queue_id in range(config.write_queue_nums)
        )
        return command.answer(body=QueryConsumeTimeSpanBody(spans).encode())

    def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first_ms, last_ms = earliest_at(store, topic, queue_id), newest_at(store, topic, queue_id)
        consumed = self._offsets.query(group, topic, queue_id)
        consume_ms = stored_at(store, topic, queue_id, consumed - 1) if consumed > 0 else first_ms
        delay_ms = 0
        if consumed < store.max_offset(topic, queue_id):
            next_ms = stored_at(store, topic, queue_id, max(consumed, store.min_offset(topic, queue_id)))
            delay_ms = max(self._clock.now_ms() - next_ms, 0) if next_ms > 0 else 0
        return QueueTimeSpan(self._queue(topic, queue_id), first_ms, last_ms, consume_ms, delay_ms)

    # -- comparing groups ------------------------------------------------------------------------------------

    def handle_query_correction_offset(self, connection: Connection, command: Command) -> Command:
        """The smallest offset of all groups per queue; the largest number where the compared group is behind it."""
        header = QueryCorrectionOffsetRequestHeader.decode(command.fields)
        left_out = {name for name in (header.filter_groups or "").split(",") if name}
        smallest: dict[int, int] = {}
        for (topic, group), queues in self._offsets.all():
            if topic != header.topic or group in left_out:
                continue
            for queue_id, offset in queues.items():
                if offset >= self._store.min_offset(topic, queue_id):
                    smallest[queue_id] = min(smallest.get(queue_id, INT64_MAX), offset)
        for queue_id, offset in self._offsets.queues(header.compare_group, header.topic).items():
            if queue_id in smallest and smallest[queue_id] > offset:
                smallest[queue_id] = INT64_MAX
        return command.answer(body=QueryCorrectionOffsetBody(smallest).encode())

    def _require(self, name: str) -> TopicConfig:
        config = self._topics.get(name)
        if config is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:80]!r} does not exist here")
        return config
