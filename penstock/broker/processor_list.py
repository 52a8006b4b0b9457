"""The handlers of a broker's requests, made of its parts; the few that other parts need are made in `broker.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.delay import DelayService
from penstock.broker.parts import Processor
from penstock.broker.processors.broker_admin import BrokerAdminProcessor
from penstock.broker.processors.consume_stats import ConsumeStatsProcessor
from penstock.broker.processors.groups import GroupsProcessor
from penstock.broker.processors.heartbeat import HeartbeatProcessor
from penstock.broker.processors.offset_admin import OffsetAdminProcessor
from penstock.broker.processors.offsets import OffsetsProcessor
from penstock.broker.processors.partition_leases import PartitionLeasesProcessor
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.processors.push import PushProcessor
from penstock.broker.processors.query import QueryProcessor
from penstock.broker.processors.queue_locks import QueueLocksProcessor
from penstock.broker.processors.relay import RelayProcessor
from penstock.broker.processors.reply import ReplyProcessor
from penstock.broker.processors.send_back import SendBackProcessor
from penstock.broker.processors.topics import TopicsProcessor
from penstock.broker.side_tables import SideTables
from penstock.broker.timer import TimerService
from penstock.broker.writing import MessageWriter
from penstock.runtime import Clock, Runtime
from penstock.security import Guard
from penstock.store import MessageStore

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def own_processors(
    broker: Broker,
    store: MessageStore,
    writer: MessageWriter,
    pulls: PullProcessor,
    delay: DelayService,
    timers: TimerService,
    runtime: Runtime,
    guard: Guard | None,
) -> list[Processor]:
    """What has to do with single messages, and with the broker itself."""
    options = broker.options
    return [
        SendBackProcessor(
            *(options, store, writer, broker.topics, broker.groups, broker.retry_names, broker.statistics),
            runtime,
            guard=guard,
        ),
        QueryProcessor(store, broker.consumers, guard),
        RelayProcessor(options, broker.calls, broker.consumers, broker.topics, broker.groups, store),
        ReplyProcessor(
            *(
                options,
                broker.rules,
                writer,
                broker.producers,
                broker.calls,
                broker.offset_ids,
                runtime.clock,
            ),
            body_bytes_max=store.options.max_message_size_bytes,
        ),
        BrokerAdminProcessor(
            *(options, store, broker.statistics, broker.flow, pulls.polling, delay, timers, runtime),
            broker.reconfigure,
        ),
        PushProcessor(options, broker.push, pulls, broker.offsets, store, runtime.clock, guard),
    ]


def membership_processors(
    broker: Broker, store: MessageStore, tables: SideTables | None, clock: Clock
) -> list[Processor]:
    """What has to do with clients, groups, topics and offsets."""
    options, topics, groups = broker.options, broker.topics, broker.groups
    consumers, offsets, rates = broker.consumers, broker.offsets, broker.statistics
    return [
        HeartbeatProcessor(options, topics, groups, consumers, broker.producers),
        QueueLocksProcessor(options, topics, groups, broker.locks),
        PartitionLeasesProcessor(options, topics, groups, broker.leases),
        OffsetsProcessor(options, topics, groups, offsets, broker.leases, store, tables),
        TopicsProcessor(
            options, topics, broker.retry_names, consumers, offsets, store, rates, lambda: broker.address
        ),
        GroupsProcessor(options, groups, consumers, broker.producers, offsets, broker.locks, broker.leases),
        ConsumeStatsProcessor(
            *(options, topics, groups, consumers, offsets, store, rates, clock, lambda: broker.address)
        ),
        OffsetAdminProcessor(options, topics, groups, consumers, offsets, store, broker.calls),
    ]
