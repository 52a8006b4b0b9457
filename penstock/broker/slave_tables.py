"""A slave's tables: its master's topics, offsets, progress of delays and groups, asked for every few seconds.

    21 topics, 201 groups   taken over as they are; what the master has no more is gone here
    43 consumer offsets     put over the slave's own; none is removed
    45 progress of delays   replaced

One answer that does not come or cannot be read does not keep the others from being followed; it is said once and
tried again in the next round. A round that takes long is followed by a pause that is longer still. Nothing is asked
while no master is known. What consumers commit to the slave while the master is gone lasts until it is back: then
the master's word counts again. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.delay import DelayService
from penstock.broker.groups import Groups
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.topics import Topics
from penstock.errors import PenstockError
from penstock.metadata.fastjson import loads
from penstock.metadata.offset_table import DelayOffsetTable
from penstock.metadata.topic_table import TopicTable
from penstock.protocol.bodies import TopicConfigSerializeWrapper
from penstock.protocol.bodies.tables import decode_consumer_offsets, decode_group_table
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient, RemotingOptions, TlsOptions, check
from penstock.runtime import Runtime

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
        runtime: Runtime,
        *,
        remoting: RemotingOptions | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        self._interval_ms = options.slave_sync_interval_ms
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._clock = runtime.clock
        self._client = RemotingClient(runtime=runtime, options=remoting, tls=tls)
        self._address: str | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._troubles: dict[int, str] = {}
        # Rounds in which everything was taken over.
        self.rounds = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the master's tables")

    async def stop(self) -> None:
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

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            started_ms = self._clock.monotonic_ms()
            if self._address is not None:
                await self._round(self._address)
            took_ms = self._clock.monotonic_ms() - started_ms
            try:
                async with asyncio.timeout(max(self._interval_ms, took_ms * PAUSE_FACTOR) / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _round(self, address: str) -> None:
        outcomes = [
            await self._take(address, RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
            await self._take(address, RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
            await self._take(address, RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
            await self._take(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
        ]
        self.rounds += all(outcomes)

    async def _take(self, address: str, code: RequestCode, apply: Apply) -> bool:
        try:
            answer = check(await self._client.call(address, Command(code), CALL_TIMEOUT_MS))
            apply(bytes(answer.body))
        except PenstockError as error:
            if self._troubles.get(code) != error.message:
                self._troubles[code] = error.message
                _LOG.warning("the master at %s does not tell its tables (%s): %s", address, code.name, error)
            return False
        self._troubles.pop(code, None)
        return True

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

    def _take_groups(self, body: bytes) -> None:
        self._groups.copy(decode_group_table(body))
