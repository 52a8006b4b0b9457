"""A slave's tables: its master's topics, offsets, progress of delays and groups, asked for every few seconds.

    21 topics, 201 groups   taken over as they are; what the master has no more is gone here
    43 consumer offsets     put over the slave's own; none is removed
    45 progress of delays   replaced
    60 progress of timers   replaced; the wheel is filled as far as the master's
    402 request modes       replaced; a master that has no such table is no trouble

One answer that does not come or cannot be read does not keep the others from being followed; it is said once and
tried again in the next round. A round that takes long is followed by a pause that is longer still. Nothing is asked
while no master is known. Messages of a topic that is not known here make the next round begin at once; if there is no
master to ask, the topic is made of what the log has of it, so that it can be read. What consumers commit to the slave
while the master is gone lasts until it is back: then the master's word counts again. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock._hot.queues import QueueState
from penstock.broker.delay import DelayService
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.request_modes import RequestModes
from penstock.broker.timer import TimerService
from penstock.broker.timer_progress import TimerProgress
from penstock.broker.topics import Topics
from penstock.errors import PenstockError
from penstock.metadata.fastjson import loads
from penstock.metadata.offset_table import DelayOffsetTable
from penstock.metadata.request_mode_table import RequestModeTable
from penstock.metadata.topic_table import TopicTable
from penstock.protocol.bodies import TopicConfigSerializeWrapper
from penstock.protocol.bodies.tables import decode_consumer_offsets, decode_group_table
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient, RemotingOptions, RpcHook, TlsOptions, check
from penstock.runtime import Runtime
from penstock.store import MessageStore
from penstock.store.timer_checkpoint import TimerCheckpoint

_LOG = logging.getLogger("penstock.broker")
CALL_TIMEOUT_MS = 10_000
# A round never takes more than this part of the time: large tables are followed less often.
PAUSE_FACTOR = 9
Apply = Callable[[bytes], None]


class SlaveTables:
    """See the module's text."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delay: DelayService,
        timers: TimerService,
        store: MessageStore,
        runtime: Runtime,
        *,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
        hook: RpcHook | None = None,
        modes: RequestModes | None = None,
    ) -> None:
        self._modes = modes
        self._store = store
        self._interval_ms = options.slave_sync_interval_ms
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._timers = timers
        self._clock = runtime.clock
        self._client = RemotingClient(runtime=runtime, options=remoting, tls=tls, hook=hook)
        self._address: str | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._troubles: dict[int, str] = {}
        # Topics of arrived messages that are not in the tables; each is a reason to ask only once.
        self._strange: set[str] = set()
        # Rounds in which everything was taken over.
        self.rounds = 0

    def start(self) -> None:
        self._store.on_arrival(self._on_arrival)
        self._topics.on_delete.append(self._deleted)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the master's tables")

    async def stop(self) -> None:
        if self._deleted in self._topics.on_delete:
            self._topics.on_delete.remove(self._deleted)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._client.close()

    def follow(self, address: str | None) -> None:
        """The master answers there; None where nobody knows."""
        if address != self._address:
            self._address = address
            self._changed.set()

    def _on_arrival(self, queues: Sequence[QueueState]) -> None:
        """Called by the store, in the loop: a slave's messages come through it."""
        for queue in queues:
            name = queue.topic.decode()
            if self._topics.get(name) is None and name not in self._strange:
                self._strange.add(name)
                self._changed.set()

    def _deleted(self, name: str) -> None:
        """The master has deleted a topic, and its queues with it."""
        if any(queue.topic == name for queue in self._store.queues):
            self._store.follow_deletions({name: self._store.log.max_offset})

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            started_ms = self._clock.monotonic_ms()
            is_told = self._address is not None and await self._round(self._address)
            if not is_told and self._strange:
                self._topics.adopt(self._store.queues.counts())
            self._strange = {name for name in self._strange if self._topics.get(name) is None}
            took_ms = self._clock.monotonic_ms() - started_ms
            try:
                async with asyncio.timeout(max(self._interval_ms, took_ms * PAUSE_FACTOR) / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _round(self, address: str) -> bool:
        """Whether the master told everything."""
        try:
            await self._client.connection(address)
        except PenstockError as error:
            self._complain(0, "the master's tables cannot be followed", error)
            return False
        self._troubles.pop(0, None)
        outcomes = [
            await self._take(address, RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            await self._take(address, RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
            await self._take(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
            await self._take(address, RequestCode.GET_TIMER_CHECK_POINT, self._take_timers),
        ]
        await self._take(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self._take_modes)
        self.rounds += all(outcomes)
        return all(outcomes)

    async def _take(self, address: str, code: RequestCode, apply: Apply) -> bool:
        try:
            answer = check(await self._client.call(address, Command(code), CALL_TIMEOUT_MS))
            apply(bytes(answer.body))
        except PenstockError as error:
            self._complain(code, f"the master at {address} does not answer {code.name}", error)
            return False
        self._troubles.pop(code, None)
        return True

    def _complain(self, code: int, what: str, error: PenstockError) -> None:
        """Once for each trouble, not once for each round."""
        if self._troubles.get(code) != error.message:
            self._troubles[code] = error.message
            _LOG.warning("%s: %s", what, error)

    # -- taking over -----------------------------------------------------------------------------------------

    def _take_topics(self, body: bytes) -> None:
        found = TopicConfigSerializeWrapper.decode(body)
        if found.topics:  # no broker is without any: an empty table is one that was cut off
            self._topics.copy(TopicTable(found.data_version, dict(found.topics)))

    def _take_offsets(self, body: bytes) -> None:
        self._offsets.copy(decode_consumer_offsets(body), ())

    def _take_delays(self, body: bytes) -> None:
        if body:
            source = "the master's delay offsets"
            self._delay.follow(DelayOffsetTable.from_json(loads(body, source=source), source))

    def _take_timers(self, body: bytes) -> None:
        found = TimerCheckpoint.decode(body)
        if found is not None:
            self._timers.follow(TimerProgress(found.read_ms, found.master_offset))

    def _take_modes(self, body: bytes) -> None:
        if body and self._modes is not None:
            source = "the master's request modes"
            self._modes.copy(RequestModeTable.from_json(loads(body, source=source), source))

    def _take_groups(self, body: bytes) -> None:
        self._groups.copy(decode_group_table(body))
