"""A broker's place in a coordinated set: what its parts do when it becomes master or a replica (`replicas.py` when).

    prepare   topics that only the log knows get a config, the table's version says the new epoch, and a publication
              that the master before had begun is finished
    lead      id 0 in every answer and at every name server; delays, publications and retention run; partition leases
              begin with a time in which only those go on who hold one
    follow    the set's own id instead; name servers are told
    rest      what only a master does has ended

Topics, groups and offsets are the master's to change: a replica refuses, as what it were told would be lost.
Name servers hear of a broker when it knows for the first time what it is. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from penstock.broker.delay import DelayService
from penstock.broker.idempotence import Idempotence
from penstock.broker.master_services import MasterServices
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.pop_service import PopService
from penstock.broker.processors.pull import PullProcessor
from penstock.broker.publications import Publications
from penstock.broker.registration import Registration
from penstock.broker.replica_waits import replication_options
from penstock.broker.replicas import Replicas
from penstock.broker.side_tables import SideTables
from penstock.broker.timer import TimerService
from penstock.broker.topics import Topics
from penstock.broker.writing import MessageWriter
from penstock.message import HostAddress
from penstock.metadata.fastjson import dump_compact
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingOptions, RpcHook, TlsOptions
from penstock.remoting.processors import Handler
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.loop_flush import LoopFlusher

# Id of a member that does not know its own yet: not the master's.
UNKNOWN_ID = 2**31 - 1
# Where the last epoch ends: nobody knows yet.
EPOCH_END = 2**63 - 1
MASTER_ID = 0
_MASTERS_ONLY = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
)
# What a coordinator asks of a master: to create a topic, or more queues of one (CREATE_ON_DEMAND).
_FOR_COORDINATORS = (RequestCode.GET_TOPIC_CONFIG, RequestCode.UPDATE_AND_CREATE_TOPIC)


@dataclass(frozen=True, slots=True)
class MemberParts:
    """The parts of a broker that its role is a matter of."""

    store: MessageStore
    flusher: LoopFlusher
    writer: MessageWriter
    pulls: PullProcessor
    delay: DelayService
    timers: TimerService
    publications: Publications
    services: MasterServices
    topics: Topics
    tables: SideTables
    leases: PartitionLeases
    registration: Registration
    pop: PopService
    sequences: Idempotence


class CoordinatedMember:
    """See the module's text. `reconfigure` makes every part follow new options, `adopt` gives topics their config."""

    def __init__(
        self,
        options: BrokerOptions,
        parts: MemberParts,
        reconfigure: Callable[[BrokerOptions], None],
        adopt: Callable[[MessageStore], None],
        runtime: Runtime,
        listening: Callable[[], HostAddress],
        *,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        hook: RpcHook | None = None,
        ha_runtime: Runtime | None = None,
    ) -> None:
        self._options = options
        self._parts = parts
        self._reconfigure = reconfigure
        self._adopt = adopt
        self.replicas = Replicas(
            options,
            parts.store,
            parts.flusher,
            parts.topics,
            parts.tables,
            self,
            runtime,
            listening,
            replication_options(options),
            remoting=remoting,
            tls=tls,
            hook=hook,
            ha_runtime=ha_runtime,
        )

    def register(self, table: ProcessorTable) -> None:
        """What the role decides about requests; called when every other handler is there."""
        for code in _MASTERS_ONLY:
            table.wrap(code, self._masters_only)
        for code in _FOR_COORDINATORS:
            handler = table.find(code)
            if handler is not None:
                self.replicas.serve(code, handler)
        table.register(RequestCode.GET_BROKER_EPOCH_CACHE, self.handle_get_broker_epoch_cache)

    def _masters_only(self, handler: Handler) -> Handler:
        def handle(connection: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
            self._parts.tables.check_master()
            return handler(connection, command)

        return handle

    def handle_get_broker_epoch_cache(self, connection: Connection, command: Command) -> Command:
        options, replicas = self._options, self.replicas
        entries = replicas.epochs.entries
        ends = [start for _, start in entries[1:]] + [EPOCH_END]
        body = dump_compact(
            {
                "brokerId": replicas.membership.broker_id if replicas.membership is not None else UNKNOWN_ID,
                "brokerName": options.broker_name,
                "clusterName": options.cluster_name,
                "epochList": [
                    {"endOffset": end, "epoch": epoch, "startOffset": start}
                    for (epoch, start), end in zip(entries, ends, strict=False)
                ],
                "maxOffset": self._parts.store.log.max_offset,
            }
        )
        return command.answer(body=body)

    @property
    def ha_port(self) -> int:
        return self.replicas.ha_port

    async def start(self) -> None:
        parts, replicas = self._parts, self.replicas
        parts.writer.replicas = replicas.waits
        parts.pulls.has_master = lambda: replicas.has_master
        parts.pulls.has_slaves = lambda: replicas.has_replicas
        parts.delay.confirmed_offset = lambda: replicas.confirm_offset
        parts.timers.saver.confirmed_offset = lambda: replicas.confirm_offset
        parts.pop.confirmed_offset = lambda: replicas.confirm_offset
        parts.sequences.confirmed_offset = lambda: replicas.sure_offset
        parts.publications.confirmed = replicas.confirmed
        parts.publications.on_released = replicas.hold_ended
        parts.leases.is_sure = lambda: replicas.waits.lapsed() is None
        parts.leases.prove = parts.tables.prove
        await replicas.start()

    async def stop(self) -> None:
        await self.replicas.stop()

    def follow_options(self, options: BrokerOptions) -> None:
        """Settings were changed while the broker runs."""
        self._options = options

    # -- roles -----------------------------------------------------------------------------------------------

    async def prepare(self, epoch: int) -> None:
        self._adopt(self._parts.store)
        self._parts.topics.lead(epoch)
        await self._parts.services.recover()

    def lead(self) -> None:
        # The master before may have leased queues, of which nobody has told this one.
        self._parts.leases.begin(self._parts.topics.all())
        self._become(MASTER_ID)
        self._parts.services.start()

    def follow(self, broker_id: int) -> None:
        self._become(broker_id)

    async def rest(self) -> None:
        await self._parts.services.stop()

    def _become(self, broker_id: int) -> None:
        self._reconfigure(replace(self._options, broker_id=broker_id))
        if not self._parts.registration.links:
            self._parts.registration.start()
