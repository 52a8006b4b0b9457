"""Bulk reading of topics inside an event loop; `scan` has the face for threads and says what it is for.

Rules: a reader is not a consumer: it joins no group, sends no heartbeats, and pulls under the name of RocketMQ's
own tools, which every broker knows. Only requests that RocketMQ has are used. The master of a queue is asked first;
when it cannot be reached, its replicas are, and the name server is asked where they all are by now. What still fails
after `retry_ms` raises, with the last reason. Offsets come from the brokers' answers about whole topics, in which
only messages count that any consumer could read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack

from penstock.client.async_admin import AdminSettings, AsyncAdmin
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.instance import ClientInstance
from penstock.client.options import DEFAULT_NAME_SERVER, ClientOptions, read_client_settings
from penstock.client.pull_socket import PullSockets
from penstock.client.routes import MASTER_ID
from penstock.client.scan_results import OffsetRange, Pulled, PullStatus, QueueId
from penstock.client.signing import signing_hook
from penstock.errors import ConnectError, OptionError, PenstockError, ResponseError, RouteNotFoundError
from penstock.message.column_answers import CAN_SPEAK, COLUMNS_FIELD, STORED_FIELD
from penstock.protocol.bodies.statistics import TopicStatsTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command, parse_integer
from penstock.protocol.headers import (
    PULL_FIELD,
    PULL_SCAN,
    ConsumerSendMsgBackRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    GetTopicStatsInfoRequestHeader,
    Header,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from penstock.remoting import TlsOptions, check
from penstock.remoting.hooks import RpcHook, prepare
from penstock.runtime import Runtime

logger = logging.getLogger(__name__)
T = TypeVar("T")
TOOLS_GROUP = "TOOLS_CONSUMER"
RETRY_MS = 60_000
BACKOFF_MS = (20, 50, 100, 200, 500)
COMMITS_AT_ONCE = 256
PULLS_AT_ONCE = 32
TOPICS_AT_ONCE = 64
# No message of any log begins there.
NOWHERE = -1
# Patterns that begin so are meant for topics that the system made.
INTERNAL_PREFIXES = ("%", "rmq_sys_", "RMQ_SYS_")
_STATUSES = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.SKIPPED,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NOTHING,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.MOVED,
}
# Answers after which another broker, or the same one a little later, may do better.
_PASSING = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
# A topic that a broker does not know may be on its way there: brokers open their files after they listen.
_PASSING_PULL = _PASSING | {ResponseCode.TOPIC_NOT_EXIST}


class AsyncScan:
    """Belongs to the loop it is first used in. Nothing is connected before it is needed."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        retry_ms: int = RETRY_MS,
        **settings: Unpack[AdminSettings],
    ) -> None:
        given: dict[str, Any] = {**settings, "name_servers": name_servers}
        self.client_options: ClientOptions = read_client_settings(given)
        self.retry_ms = retry_ms
        self._runtime = runtime or Runtime.system()
        self._tls = tls
        self._admin = AsyncAdmin(name_servers, runtime=runtime, tls=tls, **settings)
        self._given_runtime = runtime
        self._instance: ClientInstance | None = None
        self._acquiring = asyncio.Lock()
        # Groups that tools find, with the names of brokers.
        self._listed: set[tuple[str, str]] = set()
        # What pulls go through, also those of readers that wait in their own threads.
        self.sockets = PullSockets(tls)
        # Where pulls wait; a silent broker must not take the threads of whoever else is in the loop.
        self._threads = ThreadPoolExecutor(PULLS_AT_ONCE, "penstock-scan")

    async def close(self) -> None:
        """Drop every connection."""
        self.sockets.close()
        # Pulls that wait for a thread get one and are told that it is over; cancelled, they would look as if their
        # own callers had given them up.
        self._threads.shutdown(wait=False)
        await self._admin.close()
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def _client(self) -> ClientInstance:
        async with self._acquiring:
            if self._instance is None:
                self._instance = await ClientInstance.acquire(
                    self.client_options, runtime=self._given_runtime, tls=self._tls
                )
            return self._instance

    # -- what there is ---------------------------------------------------------------------------------------

    async def topics(self, pattern: str = "") -> list[str]:
        """Names of all topics but the system's own; those whose whole name the pattern matches. Retry, dead-letter
        and other internal topics are among them only for a pattern that begins as they do (`%DLQ%.*`)."""
        try:
            wanted = re.compile(pattern) if pattern else None
        except re.error as error:
            raise OptionError(f"{pattern!r} is no regular expression: {error}") from error
        await self._client()
        await self._admin.start()
        names = await self._admin.list_topics(internal=pattern.startswith(INTERNAL_PREFIXES))
        return [name for name in names if wanted is None or wanted.fullmatch(name)]

    async def queues(self, topic: str) -> list[QueueId]:
        """The queues that can be read, by broker and number. RouteNotFoundError if there is no such topic."""
        client = await self._client()
        route = await client.routes.refresh(topic)
        found = (
            QueueId(topic, queue.broker_name, queue.queue_id, route.address(queue.broker_name) or "")
            for queue in route.subscribe_queues
        )
        return sorted(found)

    async def queues_of(self, topics: Sequence[str]) -> dict[str, list[QueueId]]:
        """The same for many topics, side by side; those that do not exist are left out."""
        found: dict[str, list[QueueId]] = {}

        async def ask(topic: str) -> None:
            try:
                found[topic] = await self.queues(topic)
            except RouteNotFoundError:
                pass

        for at in range(0, len(topics), TOPICS_AT_ONCE):
            await _all(*(ask(topic) for topic in topics[at : at + TOPICS_AT_ONCE]))
        return {topic: found[topic] for topic in topics if topic in found}

    async def ranges(
        self, queues: Iterable[QueueId], *, failures: dict[QueueId, PenstockError] | None = None
    ) -> dict[QueueId, OffsetRange]:
        """First and next offset of each queue: one question per topic and broker.

        With `failures`, queues whose broker does not answer are put there instead of raising.
        """
        asked: dict[tuple[str, str], list[QueueId]] = {}
        for queue in queues:
            asked.setdefault((queue.topic, queue.broker), []).append(queue)
        found: dict[QueueId, OffsetRange] = {}

        async def ask(some: Sequence[QueueId]) -> None:
            try:
                found.update(await self._ranges_at(some))
            except PenstockError as error:
                if failures is None:
                    raise
                failures.update(dict.fromkeys(some, error))

        await _all(*(ask(some) for some in asked.values()))
        return found

    async def _ranges_at(self, queues: Sequence[QueueId]) -> dict[QueueId, OffsetRange]:
        """Of queues of one topic at one broker."""
        header = GetTopicStatsInfoRequestHeader(topic=queues[0].topic)
        answer = await self._ask(queues[0], RequestCode.GET_TOPIC_STATS_INFO, header)
        table = {queue.queue_id: item for queue, item in TopicStatsTable.decode(answer.body).offsets.items()}
        found = {}
        for queue in queues:
            item = table.get(queue.queue_id)
            # A broker of another make may leave out queues that have no file yet.
            found[queue] = (
                OffsetRange(max(item.min_offset, 0), max(item.max_offset, 0))
                if item is not None
                else OffsetRange(*await asyncio.gather(self._first(queue), self._end(queue)))
            )
        return found

    async def _first(self, queue: QueueId) -> int:
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return max(await self._offset(queue, RequestCode.GET_MIN_OFFSET, header), 0)

    async def _end(self, queue: QueueId) -> int:
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return max(await self._offset(queue, RequestCode.GET_MAX_OFFSET, header), 0)

    async def offset_by_time(self, queue: QueueId, time_ms: int) -> int:
        """The first offset stored at that time or later; the queue's end if there is none."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=time_ms)
        return max(await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header), 0)

    async def offsets_by_time(self, times: Mapping[QueueId, int]) -> dict[QueueId, int]:
        """The same for many queues at once."""
        found = await _all(*(self.offset_by_time(queue, time_ms) for queue, time_ms in times.items()))
        return dict(zip(times, found, strict=True))

    async def _offset(self, queue: QueueId, code: RequestCode, header: Header) -> int:
        return OffsetResponseHeader.decode((await self._ask(queue, code, header)).fields).offset

    async def _ask(self, queue: QueueId, code: RequestCode, header: Header) -> Command:
        """A question to the broker of a queue, or to one of its replicas."""
        client = await self._client()
        calls = ClusterCalls(client)

        async def ask(address: str) -> Command:
            return await calls.ask(address, code, header)

        return await self._surely(queue, f"asking about {queue}", ask, _PASSING, retry_ms=0)

    # -- pulling ---------------------------------------------------------------------------------------------

    async def pull(
        self,
        queue: QueueId,
        offset: int,
        *,
        rows: int,
        size: int,
        tags: str = "",
        columns: Sequence[str] = (),
    ) -> Pulled:
        """Records from an offset on: about as many as asked for, or as the broker's limits let it answer. Its queue
        has the address of who answered."""

        async def ask(address: str) -> Pulled:
            command = await self.prepared(address, pull_command(queue, offset, rows, size, tags, columns))
            loop = asyncio.get_running_loop()
            self.sockets.check_open()
            answer = await loop.run_in_executor(self._threads, self.sockets.call, address, command)
            if self.answered(address, command, answer):
                command = await self.prepared(address, command)
                answer = await loop.run_in_executor(self._threads, self.sockets.call, address, command)
            return pulled_of(
                queue if queue.address == address else replace(queue, address=address), offset, answer
            )

        what = f"reading {queue} at offset {offset}"
        return await self._surely(queue, what, ask, _PASSING_PULL, retry_ms=self.retry_ms)

    @cached_property
    def _hook(self) -> RpcHook | None:
        """What every request has to pass where requests are signed."""
        return signing_hook(self.client_options, self._runtime, None)

    @property
    def has_hook(self) -> bool:
        """Whether requests have to be prepared."""
        return self._hook is not None

    async def prepared(self, address: str, command: Command) -> Command:
        """The same command, once the hook has seen it."""
        if self._hook is not None:
            prepare(self._hook, address, command)
        return command

    def answered(self, address: str, command: Command, answer: Command) -> bool:
        """Show the hook the answer to a command that was `prepared`; whether it is to be sent once more."""
        return self._hook is not None and bool(self._hook.after_response(address, command, answer))

    # -- trying ----------------------------------------------------------------------------------------------

    async def _surely(
        self,
        queue: QueueId,
        what: str,
        ask: Callable[[str], Awaitable[T]],
        passing: frozenset[int],
        *,
        retry_ms: int,
    ) -> T:
        """Ask until somebody answers: the address that is known, then wherever the name server says. One round of
        all replicas at least, more until the time is over."""
        clock = self._runtime.clock
        began_ms = clock.monotonic_ms()
        failure: PenstockError | None = None
        addresses, rounds = [queue.address] if queue.address else [], 0
        while True:
            for address in addresses:
                try:
                    return await ask(address)
                except PenstockError as error:
                    if not error.retriable and not (
                        isinstance(error, ResponseError) and error.code in passing
                    ):
                        raise
                    failure = error
            if rounds and clock.monotonic_ms() - began_ms >= retry_ms:
                raise self._gave_up(what, retry_ms, failure)
            if rounds:
                logger.info("%s: %s; trying again", what, failure)
                await asyncio.sleep(BACKOFF_MS[min(rounds, len(BACKOFF_MS)) - 1] / 1000)
            try:
                addresses = await self._addresses(queue)
            except PenstockError as error:
                failure = failure or error
            rounds += 1

    async def _addresses(self, queue: QueueId) -> list[str]:
        """Where the broker of a queue and its replicas are now, the master first."""
        client = await self._client()
        route = await client.routes.refresh(queue.topic)
        broker = route.brokers.get(queue.broker)
        if broker is None:
            known = ", ".join(sorted(route.brokers)) or "none"
            raise RouteNotFoundError(
                f"topic {queue.topic!r} has no broker {queue.broker!r} now", f"brokers that have it: {known}"
            )
        return [
            address
            for _, address in sorted(broker.broker_addrs.items(), key=lambda item: item[0] != MASTER_ID)
        ]

    @staticmethod
    def _gave_up(what: str, retry_ms: int, failure: PenstockError | None) -> ConnectError:
        reason = failure.message if failure is not None else "no address is known"
        tried = f" for {retry_ms / 1000:g} s" if retry_ms else ""
        hint = (
            "is the broker running, and can this machine reach the address that the name server gives for it?"
        )
        return ConnectError(f"{what} failed{tried}: {reason}", hint)

    # -- groups ----------------------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        offsets: Mapping[QueueId, int],
        *,
        failures: dict[QueueId, PenstockError] | None = None,
    ) -> None:
        """Store how far a group has come, as the offset of the next message to read. The group need not exist.

        One queue that cannot be committed, as of a topic that was deleted, holds up no other: the first failure is
        raised after all have been tried. With `failures`, such queues are put there instead.
        """
        failed: dict[QueueId, PenstockError] = {}

        async def commit(queue: QueueId, offset: int) -> None:
            try:
                await self._commit(group, queue, offset)
            except PenstockError as error:
                failed[queue] = error

        items = list(offsets.items())
        for at in range(0, len(items), COMMITS_AT_ONCE):
            await _all(*(commit(queue, offset) for queue, offset in items[at : at + COMMITS_AT_ONCE]))
        done = [queue for queue in offsets if queue not in failed]
        places = {queue.broker: queue for queue in done if (group, queue.broker) not in self._listed}
        if places:
            await _all(*(self._list(group, queue) for queue in places.values()))
        if failures is not None:
            failures.update(failed)
        elif failed:
            raise next(iter(failed.values()))

    async def _commit(self, group: str, queue: QueueId, offset: int) -> None:
        client = await self._client()
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )

        async def call(address: str, code: RequestCode, fields: dict[str, str]) -> Command:
            return await client.call(address, Command(int(code), fields))

        async def ask(address: str) -> None:
            answer = await call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
            unknown = answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            if unknown:
                self._listed.discard((group, queue.broker))
            if unknown or (answer.code == ResponseCode.SUCCESS and answer.remark):
                # A pull makes a group known where groups are created on demand, and picks up a reset that an
                # operator asked for, before which no offset is taken.
                await client.call(address, pull_command(queue, 0, 1, 0, "", group=group))
                answer = await call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
            check(answer)

        await self._surely(queue, f"committing {queue} of group {group}", ask, frozenset(), retry_ms=0)

    async def _list(self, group: str, queue: QueueId) -> None:
        """Have the broker of a queue make the group's retry topic, by which RocketMQ's tools find groups and their
        brokers. A heartbeat would do that too, and make this reader a member to which consumers leave queues. So a
        message is sent back that there is not: the broker looks for it after it has made the topic."""
        client = await self._client()
        header = ConsumerSendMsgBackRequestHeader(offset=NOWHERE, group=group, delay_level=0)

        async def ask(address: str) -> None:
            command = Command(int(RequestCode.CONSUMER_SEND_MSG_BACK), header.encode())
            answer = await client.call(address, command)
            if answer.code != ResponseCode.SYSTEM_ERROR:  # "there is no such message"
                check(answer)

        try:
            await self._surely(queue, f"listing group {group} at {queue}", ask, frozenset(), retry_ms=0)
        except PenstockError as error:
            # The offsets are committed, which is what was asked for; the next commit tries it again.
            logger.info("tools may not find group %s at %s yet: %s", group, queue.broker, error)
        else:
            self._listed.add((group, queue.broker))


def pull_command(
    queue: QueueId,
    offset: int,
    rows: int,
    size: int,
    tags: str,
    columns: Sequence[str] = (),
    group: str = TOOLS_GROUP,
) -> Command:
    """The request for records of a queue. Columns are what Penstock's brokers may answer with; others do not look."""
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=rows,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=tags or "*",
        sub_version=0,
        expression_type="TAG",
        max_msg_bytes=size or None,
    )
    fields = {**header.encode(), PULL_FIELD: PULL_SCAN}
    if columns and CAN_SPEAK:
        fields[COLUMNS_FIELD] = ",".join(columns)
    return Command(int(RequestCode.PULL_MESSAGE), fields)


def pulled_of(queue: QueueId, offset: int, answer: Command) -> Pulled:
    """What the answer to a pull says. ResponseError if it says that there is something wrong."""
    status = _STATUSES.get(answer.code)  # type: ignore[call-overload]
    if status is None:
        raise ResponseError(answer.code, answer.remark or "no reason given")
    place = PullMessageResponseHeader.decode(answer.fields)
    columns = answer.fields.get(COLUMNS_FIELD, "")
    return Pulled(
        queue,
        offset,
        status,
        place.next_begin_offset,
        place.min_offset,
        place.max_offset,
        answer.body,
        answer.remark or "",
        tuple(columns.split(",")) if columns else (),
        parse_integer(STORED_FIELD, answer.fields.get(STORED_FIELD, ""), 0) if columns else 0,
    )


async def _all(*some: Awaitable[T]) -> list[T]:
    """All of them; the first failure, after the others have ended."""
    outcomes = await asyncio.gather(*some, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes  # type: ignore[return-value]
