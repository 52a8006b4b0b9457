"""POP, assembled: its service, who reads for it, who waits, and who answers. Assembly only."""

from __future__ import annotations

from penstock.broker.consumers import Consumers
from penstock.broker.filtering import Filters
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.parts import Processor
from penstock.broker.pop_polling import PopPolling
from penstock.broker.pop_reading import PopReader
from penstock.broker.pop_service import PopService
from penstock.broker.processors.assignment import AssignmentProcessor
from penstock.broker.processors.pop import PopProcessor
from penstock.broker.processors.pop_ack import PopAckProcessor
from penstock.broker.registration import Registration
from penstock.broker.request_modes import RequestModes
from penstock.broker.retry_names import RetryNames
from penstock.broker.statistics import Statistics
from penstock.broker.topics import Topics
from penstock.broker.writing import MessageWriter
from penstock.message import HostAddress
from penstock.remoting import Connection
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher


class PopParts:
    """What a broker has for POP. `start` when it begins to answer, `stop` before its connections are closed."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        flusher: LoopFlusher,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        leases: PartitionLeases,
        modes: RequestModes,
        statistics: Statistics,
        registration: Registration,
        runtime: Runtime,
        host: HostAddress,
        names: RetryNames,
    ) -> None:
        self.modes = modes
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        clock = runtime.clock
        self.service = PopService(
            options, store, writer, flusher, topics, groups, offsets, statistics, runtime, host, names
        )
        self.polling = PopPolling(options, clock)
        self.service.ordered.on_free = self.polling.wake
        reader = PopReader(options, store, topics, self.service, names, runtime.entropy)
        ask = registration.ask if options.name_servers else None
        leases.is_popped = self.service.is_popped
        filters = Filters(options, consumers, clock)
        popping = (filters, self.service, reader, self.polling, statistics, clock)
        self.processors: list[Processor] = [
            PopProcessor(options, topics, groups, leases, *popping),
            PopAckProcessor(options, topics, self.service),
            AssignmentProcessor(options, topics, groups, consumers, modes, ask, clock),
        ]

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options; the processors are told by themselves."""
        self.service.reconfigure(options)
        self.modes.reconfigure(options)

    def start(self) -> None:
        self.polling.start()
        self._store.on_arrival(self.polling.on_arrival)
        self._offsets.on_reset.append(self.polling.wake_topic)
        self._topics.on_delete.append(self.polling.forget)
        self._topics.on_delete.append(self.modes.remove_topic)
        self._consumers.on_leave.append(self.polling.leave)
        self.modes.start()

    def closed(self, connection: Connection) -> None:
        """A connection is gone, and with it what it waited for."""
        self.polling.drop_connection(connection)
