"""Messages that a broker keeps back until they are published, all at once and only once.

    with Staging("127.0.0.1:9876") as staging:
        home = staging.home("query-1", "orders")
        handle = staging.stage(home.broker, [("orders", 8)], items, count)              # nobody sees these
        staging.publish(home.broker, "query-1", 0, [handle], tell=home.untold)          # now everybody does
        staging.publish(home.broker, "query-1", 0, [handle]).already                    # True: it adds nothing

What Spark's sink writes through; `AsyncStaging` is the same inside an event loop. `items` are those of
`protocol/bodies/staged.py`. Only Penstock's brokers can do this; any other is refused with a clear error.

Rules. One publication is one broker's, so all messages of a query go to one: its home, which is the broker that has
published for the query before, else one that follows from the query's id. A query keeps its home: before the first
publication there, the other brokers that could become one are told (`untold`), so that while the home is away they
say whom to wait for. A call that is not answered is made again,
until its time is over: staging twice leaves something behind that ages out, publishing twice is what a batch number
is for. `Staging` may be used from any thread but the client's own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import zlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.client.async_admin import AdminSettings
from penstock.client.cluster_calls import ClusterCalls
from penstock.client.identity import UniqueIds
from penstock.client.instance import ClientInstance
from penstock.client.loop_thread import LoopThread
from penstock.client.options import DEFAULT_NAME_SERVER, ClientOptions, read_client_settings
from penstock.client.routes import TopicRoute
from penstock.errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    PenstockError,
    RemotingError,
    ResponseError,
    RouteNotFoundError,
)
from penstock.protocol.bodies.staged import TopicQueues, encode_head
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    ROW_FIELD,
    Header,
    PublishStagedRequestHeader,
    PublishStagedResponseHeader,
    StagedStatusRequestHeader,
    StagedStatusResponseHeader,
    StageMessagesRequestHeader,
    StageMessagesResponseHeader,
    TellHomeRequestHeader,
)
from penstock.remoting import TlsOptions, check
from penstock.runtime import Runtime

T = TypeVar("T")
GROUP = "PENSTOCK_STAGING"
TEMPLATE_TOPIC = "TBW102"
TOPIC_QUEUES = 4
# How long a call is made again and again, and how long one attempt may take.
RETRY_MS = 120_000
STAGE_TIMEOUT_MS = 10_000
PUBLISH_TIMEOUT_MS = 60_000
_PAUSE_FIRST_MS, _PAUSE_MAX_MS = 50, 2_000
_RETRY_AFTER_FIELD = "penstockRetryAfterMs"
# Who answers a tale of a home so can be no query's home: it cannot stage, or we may not.
_NEVER_HOME = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)
_NOT_NOW = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Home:
    """The broker that publishes for a query. `untold` are others that could, and do not know of it yet."""

    broker: str
    status: StagedStatusResponseHeader
    untold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handle:
    """Messages that were staged: what their broker publishes them by."""

    broker: str
    text: str
    messages: int


@dataclass(frozen=True, slots=True)
class Published:
    """`already`: this batch was published before, and nothing was added now."""

    messages: int
    already: bool


class RowRefusedError(ResponseError):
    """A broker refused to stage messages because of one of them; `row` is its number among them, from 0."""

    def __init__(self, row: int, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.row = row


class AsyncStaging:
    """Staging inside an event loop. `async with`, or `start` and `close`."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        retry_ms: int = RETRY_MS,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self.options: ClientOptions = read_client_settings({**settings, "name_servers": name_servers})
        self._runtime = runtime
        self._tls = tls
        self._retry_ms = retry_ms
        self._instance: ClientInstance | None = None
        # Masters by name, as the name server says; forgotten when one cannot be reached.
        self._masters: Mapping[str, str] = {}
        # Of whose route they are: who may write to a topic may ask for its route, and not for the whole cluster.
        self._topic = ""

    async def start(self) -> Self:
        if self._instance is None:
            self._instance = await ClientInstance.acquire(self.options, runtime=self._runtime, tls=self._tls)
        return self

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _client(self) -> ClientInstance:
        if self._instance is None:
            raise ClientClosedError("staging is not started, or closed", "use `with`, or start it first")
        return self._instance

    @property
    def unique_ids(self) -> UniqueIds:
        """Ids for the messages that are staged."""
        return self._client.unique_ids

    # -- where -----------------------------------------------------------------------------------------------

    async def home(self, query: str, topic: str = "", broker: str = "") -> Home:
        """The one broker that publishes for a query: as asked, or one of the topic's, or any.

        Each is asked whether it has published for the query before, or knows who has: brokers may have come or gone
        since. One that does not answer might be the one, so that is an error, not a guess. One that is known to be
        the one and has left the route is waited for; ConnectError when the time is over.
        """
        self._topic = topic
        clock = self._client.runtime.clock
        deadline_ms = clock.monotonic_ms() + self._retry_ms
        pause_ms = _PAUSE_FIRST_MS
        names = await self._candidates(topic)
        if broker:
            if broker not in names:
                raise ClientError(
                    f"broker {broker!r} has no master{f' with topic {topic!r}' if topic else ''}",
                    f"there are: {', '.join(names)}",
                )
            return Home(broker, await self.status(broker, query))
        while True:
            found = {name: await self.status(name, query) for name in names}
            chosen = _choose(query, found)
            if chosen in found:
                break
            if clock.monotonic_ms() + pause_ms > deadline_ms:
                raise ConnectError(
                    f"query {query} publishes at broker {chosen!r}, which has no master"
                    f"{f' with topic {topic!r}' if topic else ''} now; nothing is written elsewhere",
                    f"run it again when {chosen!r} is back. If it never comes back, name another with the option "
                    "`broker`: what the lost one may have published of the last batch is not known there",
                )
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, _PAUSE_MAX_MS)
            names = await self._candidates(topic, refresh=True)
        others = set(names)
        if topic and found[chosen].batch_id is None:
            # Its first batch here. Where nobody has the topic for a while, brokers that make topics would be next.
            others.update(await self._template_masters())
        untold = sorted(
            name for name in others - {chosen} if (status := found.get(name)) is None or status.home != chosen
        )
        return Home(chosen, found[chosen], tuple(untold))

    async def _candidates(self, topic: str, *, refresh: bool = False) -> list[str]:
        if not topic:
            return sorted(await ClusterCalls(self._client).masters())
        routes = self._client.routes
        route = await routes.for_publishing(topic, TEMPLATE_TOPIC, TOPIC_QUEUES, refresh=refresh)
        names = sorted({queue.broker_name for queue in route.publish_queues})
        if not names:
            raise ConnectError(
                f"no queue of topic {topic!r} can be written to",
                "its brokers have no master, or the topic has no write permission",
            )
        return names

    async def queues(self, topic: str, broker: str) -> int:
        """How many queues of a topic a broker has for writing; for a topic that is still to come, will have."""
        route = await self._client.routes.for_publishing(topic, TEMPLATE_TOPIC, TOPIC_QUEUES)
        count = sum(queue.broker_name == broker for queue in route.publish_queues)
        if not count:
            names = sorted({queue.broker_name for queue in route.publish_queues})
            raise RouteNotFoundError(
                f"topic {topic!r} has no queue for writing at broker {broker!r}, where the whole batch goes",
                f"it has some at: {', '.join(names) or 'no broker'}; name one with the option `broker`",
            )
        return count

    # -- what ------------------------------------------------------------------------------------------------

    async def stage(self, broker: str, topics: Sequence[TopicQueues], items: bytes, messages: int) -> Handle:
        """Have a broker keep messages back; RowRefusedError names the first that it will not take."""
        header = StageMessagesRequestHeader(
            producer_group=GROUP,
            born_timestamp=self._client.runtime.clock.now_ms(),
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=TOPIC_QUEUES,
        )
        body = encode_head(topics) + items
        answer = await self._call(broker, RequestCode.STAGE_MESSAGES, header, body, STAGE_TIMEOUT_MS)
        row = answer.fields.get(ROW_FIELD, "")
        if answer.code and row.isascii() and row.isdigit():
            raise RowRefusedError(int(row), answer.code, answer.remark or "no reason given")
        staged = StageMessagesResponseHeader.decode(check(answer).fields)
        if staged.messages != messages:
            raise ClientError(f"{messages} messages were staged, the broker counts {staged.messages}")
        return Handle(broker, staged.handle, staged.messages)

    async def publish(
        self,
        broker: str,
        query: str,
        batch: int,
        handles: Iterable[Handle],
        *,
        topic: str = "",
        tell: Iterable[str] = (),
    ) -> Published:
        """Make staged messages visible, in this order; returns when they are, and on disk. `batch` counts upwards
        for each query: the last one again changes nothing, a lower one is refused. `topic`: all of them are its.
        `tell`: brokers that have to know first that this one is the query's home."""
        self._topic = topic or self._topic
        texts = []
        for handle in handles:
            if handle.broker != broker:
                raise ClientError(
                    f"messages were staged at {handle.broker!r} and {broker!r}, which cannot publish together",
                    "name one broker for all of them",
                )
            texts.append(handle.text)
        for other in tell:
            await self._tell(other, query, broker)
        header = PublishStagedRequestHeader(query_id=query, batch_id=batch)
        body = "\n".join(texts).encode()
        answer = await self._call(broker, RequestCode.PUBLISH_STAGED, header, body, PUBLISH_TIMEOUT_MS)
        published = PublishStagedResponseHeader.decode(check(answer).fields)
        return Published(published.messages, published.already)

    async def _tell(self, other: str, query: str, home: str) -> None:
        header = TellHomeRequestHeader(query_id=query, broker_name=home)
        answer = await self._ask(other, RequestCode.TELL_HOME, header, b"", PUBLISH_TIMEOUT_MS)
        if answer.code not in _NEVER_HOME:
            check(answer)

    async def status(self, broker: str, query: str) -> StagedStatusResponseHeader:
        """What a query has published last at a broker, its limits, and which other one is the query's home."""
        header = StagedStatusRequestHeader(query_id=query)
        timeout_ms = self.options.call_timeout_ms
        answer = await self._call(broker, RequestCode.STAGED_STATUS, header, b"", timeout_ms)
        return StagedStatusResponseHeader.decode(check(answer).fields)

    # -- calls -----------------------------------------------------------------------------------------------

    async def _call(
        self, broker: str, code: RequestCode, header: Header, body: bytes, timeout_ms: int
    ) -> Command:
        """The answer of a broker that can stage."""
        answer = await self._ask(broker, code, header, body, timeout_ms)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise _not_ours(broker)
        return answer

    async def _ask(
        self, broker: str, code: RequestCode, header: Header, body: bytes, timeout_ms: int
    ) -> Command:
        """The answer, whatever it says; asked for again while there is none, or it is "not now"."""
        clock = self._client.runtime.clock
        deadline_ms = clock.monotonic_ms() + self._retry_ms
        pause_ms = _PAUSE_FIRST_MS
        while True:
            wait_ms = pause_ms
            try:
                address = await self._address(broker)
                answer = await self._client.remoting.call(
                    address, Command(code, header.encode(), body), timeout_ms
                )
            except RemotingError as error:
                failure: PenstockError = error
                self._masters = {}
            else:
                if answer.code not in _NOT_NOW:
                    return answer
                failure = ResponseError(answer.code, answer.remark or "no reason given")
                wait_ms = max(pause_ms, _number(answer.fields.get(_RETRY_AFTER_FIELD, "")))
            if clock.monotonic_ms() + wait_ms > deadline_ms:
                raise failure
            await asyncio.sleep(wait_ms / 1000)
            pause_ms = min(pause_ms * 2, _PAUSE_MAX_MS)

    async def _address(self, broker: str) -> str:
        found = self._masters.get(broker)
        if found is None:
            self._masters = await self._find_masters()
            found = self._masters.get(broker)
        if found is None and self._topic:
            self._masters = {**await self._template_masters(), **self._masters}  # it need not have the topic
            found = self._masters.get(broker)
        if found is None:
            raise ConnectError(f"no master is known for broker {broker!r}", "it may be down")
        return found

    async def _find_masters(self) -> Mapping[str, str]:
        if not self._topic:
            return await ClusterCalls(self._client).masters()
        try:
            return _masters(await self._client.routes.refresh(self._topic))
        except RouteNotFoundError:
            return await self._template_masters()  # a topic that is still to come

    async def _template_masters(self) -> Mapping[str, str]:
        """Brokers that make topics for sends."""
        try:
            return _masters(await self._client.routes.refresh(TEMPLATE_TOPIC))
        except (RouteNotFoundError, ResponseError):
            return {}  # there are none, and who may write to a topic need not be told of others


def _masters(route: TopicRoute) -> Mapping[str, str]:
    return {name: data.master for name, data in route.brokers.items() if data.master is not None}


def _choose(query: str, found: Mapping[str, StagedStatusResponseHeader]) -> str:
    """The home of a query by what brokers say; not one of them where it is known to be another."""
    published = {
        name: status.batch_id
        for name, status in found.items()
        if status.batch_id is not None and status.home is None
    }
    if published:
        return max(published, key=lambda name: published[name])
    told = sorted({status.home for status in found.values() if status.home is not None})
    if told:
        # If they do not agree: one that is here says that nothing was published there, one that is away does not.
        return next((home for home in told if home not in found), told[0])
    names = sorted(found)
    return names[zlib.crc32(query.encode()) % len(names)]


def _not_ours(broker: str) -> ClientError:
    return ClientError(
        f"broker {broker!r} cannot stage messages: it is no Penstock broker, or an old one",
        "use the option delivery=at-least-once, which sends as any producer does",
    )


def _number(text: str) -> int:
    return min(int(text), _PAUSE_MAX_MS) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class Staging:
    """Staging for threads. `with` starts and closes it."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        retry_ms: int = RETRY_MS,
        **settings: Unpack[AdminSettings],
    ) -> None:
        self._async = AsyncStaging(name_servers, runtime=runtime, tls=tls, retry_ms=retry_ms, **settings)
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()

    def start(self) -> Self:
        with self._lock:
            if self._thread is None:
                thread = LoopThread.acquire()
                try:
                    thread.run(self._async.start())
                except BaseException:
                    thread.release()
                    raise
                self._thread = thread
        return self

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and not thread.is_foreign:
            try:
                thread.run(self._async.close())
            finally:
                thread.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._submit(coroutine).result()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        thread = self._thread
        if thread is None:
            coroutine.close()
            raise ClientClosedError("staging is not started, or closed", "use `with`, or start it first")
        return thread.submit(coroutine)

    @property
    def unique_ids(self) -> UniqueIds:
        return self._async.unique_ids

    def home(self, query: str, topic: str = "", broker: str = "") -> Home:
        """See `AsyncStaging.home`."""
        return self._run(self._async.home(query, topic, broker))

    def queues(self, topic: str, broker: str) -> int:
        """See `AsyncStaging.queues`."""
        return self._run(self._async.queues(topic, broker))

    def stage(self, broker: str, topics: Sequence[TopicQueues], items: bytes, messages: int) -> Handle:
        """See `AsyncStaging.stage`."""
        return self.submit(broker, topics, items, messages).result()

    def submit(
        self, broker: str, topics: Sequence[TopicQueues], items: bytes, messages: int
    ) -> concurrent.futures.Future[Handle]:
        """Stage without waiting; the future ends with the handle."""
        return self._submit(self._async.stage(broker, topics, items, messages))

    def publish(
        self,
        broker: str,
        query: str,
        batch: int,
        handles: Iterable[Handle],
        *,
        topic: str = "",
        tell: Iterable[str] = (),
    ) -> Published:
        """See `AsyncStaging.publish`."""
        return self._run(
            self._async.publish(broker, query, batch, list(handles), topic=topic, tell=tuple(tell))
        )

    def status(self, broker: str, query: str) -> StagedStatusResponseHeader:
        """See `AsyncStaging.status`."""
        return self._run(self._async.status(broker, query))
