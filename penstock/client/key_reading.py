"""The values of a key: first the partition that holds it, then its broker, then the messages.

    key ──hash──▶ partition ──route, cached──▶ broker ──index, or the partition itself──▶ values

Rules. A key's partition is the one that a producer with `partition_by_key` sends it to: both hash the key over all
queues of the topic that can be written to, whether or not their broker sets have a master at the moment. Only that
partition is looked at; what was sent to another one, as before the topic got more queues, `query_messages` finds. The
newest values come from the index of the broker, at most 64, among which it counts what it has of the key in other
queues; with `whole` the broker goes through the partition and gives those with the key, oldest first; one of RocketMQ
gives everything, which is sorted out here. A broker that does not answer is looked up anew, as after a failover,
until the time of a call is over. What comes back is compared with the key, letter for letter.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.client.admin_messages import TOOLS_GROUP
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.queue_selection import select_by_key
from penstock.client.received import ReceivedMessage, decode_records
from penstock.client.subscription import check_expression
from penstock.errors import RemotingError, ResponseError, RouteNotFoundError
from penstock.protocol.bodies.heartbeat import ExpressionType
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
    QueryMessageRequestHeader,
)
from penstock.remoting import check

INDEXED_MAX = 64
LIMIT_MAX = 100_000
_PULL_COUNT = 32
_RETRY_S = 0.2
_INT64_MAX = 2**63 - 1
_NOT_READY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class KeyedValues:
    """The partition of a key and what is there, oldest first."""

    key: str
    queue: MessageQueue
    messages: tuple[ReceivedMessage, ...]

    @property
    def latest(self) -> ReceivedMessage | None:
        """The newest value; None if there is none."""
        return self.messages[-1] if self.messages else None


class KeyReading:
    """Looks up values for an administrator."""

    def __init__(self, calls: ClusterCalls) -> None:
        self._calls = calls

    async def find(self, topic: str, key: str) -> MessageQueue:
        """The partition of a key. RouteNotFoundError if the topic has none."""
        queues = (await self._calls.instance.routes.get(topic)).key_queues
        if not queues:
            raise RouteNotFoundError(f"topic {topic!r} has no queue that can be written to")
        return select_by_key(queues, key)

    async def read(self, topic: str, key: str, limit: int, *, whole: bool) -> KeyedValues:
        check_expression("*", "", [key])
        queue = await self.find(topic, key)
        if whole:
            found = await self._go_through(queue, key, limit)
        else:
            found = await self._by_index(queue, key, limit)
        mine = {one.queue_offset: one for one in found if key in one.keys}
        return KeyedValues(key, queue, tuple(mine[offset] for offset in sorted(mine)))

    # -- by the index ----------------------------------------------------------------------------------------

    async def _by_index(self, queue: MessageQueue, key: str, limit: int) -> list[ReceivedMessage]:
        header = QueryMessageRequestHeader(
            topic=queue.topic,
            key=key,
            max_num=INDEXED_MAX,
            begin_timestamp=0,
            end_timestamp=_INT64_MAX,
            is_unique_key=False,
        )
        command = Command(int(RequestCode.QUERY_MESSAGE), header.encode())
        answer = await self._ask(queue, command, ResponseCode.QUERY_NOT_FOUND)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        indexed = decode_records(answer.body)
        found = [one for one in indexed if one.stored.queue_id == queue.queue_id]
        if len(indexed) >= INDEXED_MAX and not found:
            # All the index gave is in other queues, sent without the key's partition: look here itself.
            return (await self._go_through(queue, key, LIMIT_MAX))[-limit:]
        for one in found:
            one.queue = queue
        found.sort(key=lambda one: one.queue_offset)
        # The index compares hashes, and a broker may leave the rest to us: what is of another key takes no room.
        return [one for one in found if key in one.keys][-limit:]

    # -- through the partition -------------------------------------------------------------------------------

    async def _go_through(self, queue: MessageQueue, key: str, limit: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        offset = 0
        while len(found) < limit:
            try:
                answer = await self._ask(
                    queue,
                    _pull(queue, key, offset),
                    ResponseCode.PULL_NOT_FOUND,
                    ResponseCode.PULL_RETRY_IMMEDIATELY,
                    ResponseCode.PULL_OFFSET_MOVED,
                )
            except ResponseError as error:
                raise ResponseError(
                    error.code,
                    f"broker {queue.broker_name} does not go through a partition by key: {error.message}",
                    "read the newest values, without whole, or have property_filters switched on there",
                ) from error
            if answer.code == ResponseCode.SUCCESS:
                found += [one for one in decode_records(answer.body, queue) if key in one.keys]
            following = PullMessageResponseHeader.decode(answer.fields).next_begin_offset
            if following <= offset or answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            offset = following
        return found[:limit]

    # -- the broker ------------------------------------------------------------------------------------------

    async def _ask(self, queue: MessageQueue, command: Command, *also: int) -> Command:
        """Ask the partition's broker, wherever it is by now."""
        instance, timeout_ms = self._calls.instance, self._calls.timeout_ms
        clock = instance.runtime.clock
        until_ms = clock.monotonic_ms() + timeout_ms
        while True:
            try:
                route = await instance.routes.get(queue.topic)
                address = route.address(queue.broker_name)
                if address is None:
                    raise RouteNotFoundError(
                        f"broker {queue.broker_name!r} is not there now", "try again in a moment"
                    )
                request = Command(command.code, dict(command.fields))
                return check(await instance.call(address, request, timeout_ms), *also)
            except (RemotingError, RouteNotFoundError, ResponseError) as error:
                is_final = isinstance(error, ResponseError) and error.code not in _NOT_READY
                if is_final or clock.monotonic_ms() >= until_ms:
                    raise
            await asyncio.sleep(_RETRY_S)
            try:
                await instance.routes.refresh(queue.topic)
            except (RemotingError, RouteNotFoundError):
                pass  # the next question says so


def _pull(queue: MessageQueue, key: str, offset: int) -> Command:
    header = PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=_PULL_COUNT,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=key,
        sub_version=0,
        expression_type=ExpressionType.KEYS,
    )
    return Command(int(RequestCode.PULL_MESSAGE), header.encode())
