"""Queues that come into being on demand: placed by the coordinator, created by the brokers that are to have them.

Rules. One creation of a topic at a time. A broker is asked for the topic as it has it and told to have more queues of
it, everything else as before. What was created here counts at once, although the broker's own report of it comes a
little later. A creation that fails half-way is told as failed; asked again, it goes on from what is there. Owned by
the coordinator's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.coordinator.placement import ON_DEMAND_MAX, Placement, place
from penstock.coordinator.topic_reports import TopicReports
from penstock.errors import PenstockError, RequestError
from penstock.protocol.bodies.tables import decode_topic_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import CreateTopicRequestHeader, GetTopicConfigRequestHeader
from penstock.remoting import check

_LOG = logging.getLogger("penstock.coordinator")
READ_AND_WRITE = 6
TOPIC_MAX = 127
# How long a request waits for those that create the same topic. A broker that does not answer takes seconds for each.
TURN_S = 10.0

# Asks the master of a broker set.
CallBroker = Callable[[str, Command], Awaitable[Command]]


class Creation:
    """Creates what is asked for, within the limit."""

    def __init__(self, reports: TopicReports, call: CallBroker, on_demand_max: int = ON_DEMAND_MAX) -> None:
        self._reports = reports
        self._call = call
        self._on_demand_max = on_demand_max
        # Made here and not yet reported by the broker: topic -> broker name -> queues.
        self._made: dict[str, dict[str, int]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def clear(self) -> None:
        """This coordinator does not lead any more."""
        self._made.clear()

    async def create(self, topic: str, wanted: int) -> Placement:
        """Have at least so many queues of a topic. RequestError says why not."""
        if not 0 < len(topic) <= TOPIC_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"topic is {topic[:80]!r}", f"use 1 to {TOPIC_MAX} characters"
            )
        async with self._alone(topic):
            placement = place(topic, wanted, self._loads(), self._existing(topic), self._on_demand_max)
            for broker, added in placement.created.items():
                await self._tell(broker, topic, added, placement.queues[broker])
                self._made.setdefault(topic, {})[broker] = placement.queues[broker]
            return placement

    @asynccontextmanager
    async def _alone(self, topic: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(topic, asyncio.Lock())
        try:
            try:
                async with asyncio.timeout(TURN_S):
                    await lock.acquire()
            except TimeoutError:
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY, f"others are creating queues of topic {topic}", "ask again"
                ) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            if not lock.locked() and self._locks.get(topic) is lock:
                del self._locks[topic]

    def _existing(self, topic: str) -> dict[str, int]:
        existing = self._reports.existing(topic)
        made = self._made.get(topic, {})
        for broker, queues in list(made.items()):
            if existing.get(broker, 0) >= queues:
                del made[broker]
        if not made:
            self._made.pop(topic, None)
        return {**existing, **made}

    def _loads(self) -> dict[str, int]:
        loads = self._reports.loads()
        for topic, made in self._made.items():
            reported = self._reports.existing(topic)
            for broker, queues in made.items():
                if broker in loads:
                    loads[broker] += max(0, queues - reported.get(broker, 0))
        return loads

    async def _tell(self, broker: str, topic: str, added: int, queues: int) -> None:
        try:
            header = await self._present(broker, topic, added, queues)
            command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
            check(await self._call(broker, command))
        except RequestError:
            raise
        except PenstockError as error:
            raise RequestError(
                error.code,
                f"{broker} did not create {queues} queues of {topic}: {error.message}",
                "ask again",
            ) from error
        _LOG.info("topic %s has %d queues on %s, %d of them new", topic, queues, broker, added)

    async def _present(self, broker: str, topic: str, added: int, queues: int) -> CreateTopicRequestHeader:
        """What to tell a broker: the topic as it has it, with more queues."""
        request = GetTopicConfigRequestHeader(topic=topic)
        answer = await self._call(broker, Command(RequestCode.GET_TOPIC_CONFIG, request.encode()))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return CreateTopicRequestHeader(
                topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=READ_AND_WRITE
            )
        config = decode_topic_config(check(answer).body)
        write = max(queues, config.write_queue_nums)
        return CreateTopicRequestHeader(
            topic=topic,
            read_queue_nums=max(write, config.read_queue_nums),
            write_queue_nums=write,
            perm=int(config.perm),
            topic_filter_type=config.filter_type,
            topic_sys_flag=config.sys_flag,
            order=config.order,
        )
