"""The producer for programs with an event loop; the synchronous face stands on it.

    async with penstock.AsyncProducer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send("T", b"body", tag="a", keys="k1")
        future = producer.send_nowait("T", b"body")

Rules: a send ends with a `SendResult`, which means stored, or with an error that says whether it is not stored
(`SendFailedError`, and what never left this machine) or may be (`SendUnknownError`). Messages with the same
`queue_key` go to the same queue in the order of their sends. `close` sends what still waits. A producer belongs
to the loop it was started in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypedDict, Unpack

from penstock.client.batching import Parcel
from penstock.client.delivery import Delivery, partition
from penstock.client.instance import ClientInstance
from penstock.client.loop_thread import require_loop
from penstock.client.options import (
    DEFAULT_NAME_SERVER,
    ClientOptions,
    ProducerOptions,
    check_objects,
    check_topics,
    read_settings,
    require_seconds,
)
from penstock.client.outgoing import (
    MessageParts,
    Outgoing,
    check_callback,
    check_parts,
    compose_half,
    topic_text,
)
from penstock.client.received import ReceivedMessage
from penstock.client.request_reply import Reply, Request, send_reply
from penstock.client.results import SendResult
from penstock.client.room import closed_error
from penstock.client.routes import MessageQueue
from penstock.client.service_state import OneProcess, ServiceState
from penstock.client.tracing import TraceCounts, Tracing
from penstock.client.transaction_calls import TransactionCalls, TransactionListener, TransactionState
from penstock.client.transactions import AsyncTransaction
from penstock.errors import (
    ClientClosedError,
    MessageError,
    PenstockError,
    SendError,
    SendFailedError,
    SendUnknownError,
)
from penstock.message import Message
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Runtime

logger = logging.getLogger(__name__)
Body = bytes | bytearray | memoryview
TRACE_PRODUCER = "PENSTOCK_INNER_TRACE_PRODUCER"
OnResult = Callable[[SendResult | None, PenstockError | None], object]


class ProducerSettings(TypedDict, total=False):
    """Keyword arguments of a producer: the fields of `ClientOptions` and `ProducerOptions`."""

    instance_name: str
    unit_name: str
    client_ip: str
    call_timeout_ms: int
    heartbeat_interval_ms: int
    route_interval_ms: int
    reconnect_interval_ms: int
    coordinators: str | Iterable[str]
    access_key: str
    secret_key: str
    security_token: str
    credentials_file: str
    min_signature: int
    send_timeout_ms: int
    retries: int
    retry_not_durable: bool
    durability: str
    message_bytes_max: int
    compression: str
    compress_over_bytes: int
    compression_level: int
    linger_ms: int
    batch_size: int
    batch_bytes: int
    batches_in_flight: int
    sends_in_flight: int
    buffer_bytes: int
    buffer_messages: int
    buffer_timeout_ms: int
    avoid_slow_brokers: bool
    idempotent: bool
    producer_id: str
    template_topic: str
    topic_queues: int
    partition_by_key: bool
    trace: bool
    trace_topic: str


class AsyncProducer(OneProcess):
    """A producer inside an event loop. Start it with `async with`, or `start` and `close`."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        group: str = "DEFAULT_PRODUCER",
        *,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        rpc_hook: RpcHook | None = None,
        transaction_listener: TransactionListener | None = None,
        transaction_topics: Iterable[str] = (),
        **settings: Unpack[ProducerSettings],
    ) -> None:
        check_objects(tls=tls, rpc_hook=rpc_hook, transaction_listener=transaction_listener)
        given = {**settings, "name_servers": name_servers, "group": group}
        self.client_options, self.options = read_settings(given, ClientOptions, ProducerOptions)
        self._runtime = runtime
        self._tls = tls
        self._rpc_hook = rpc_hook
        self._listener = transaction_listener
        self._transaction_topics = check_topics("transaction_topics", transaction_topics)
        self._calls: TransactionCalls | None = None
        self._instance: ClientInstance | None = None
        self._delivery: Delivery | None = None
        self._requests: set[Request] = set()
        # In which it was started.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Lock | None = None
        self._is_closed = False
        self._state = ServiceState.CREATE_JUST

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to a name server. Called by the first send, too."""
        loop = asyncio.get_running_loop()
        await self._start(loop.call_soon)
        return self

    async def _start(self, call_soon: Callable[[Callable[[], None]], object]) -> Delivery:
        require_loop(self._loop)
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._is_closed:
                raise closed_error()
            if self._delivery is None:
                self._state = ServiceState.START_FAILED  # until everything is up
                instance = await ClientInstance.acquire(
                    self.client_options, runtime=self._runtime, tls=self._tls, rpc_hook=self._rpc_hook
                )
                try:
                    self._delivery = Delivery(instance, self.options, call_soon)
                except BaseException:
                    await instance.release()
                    raise
                self._instance, self._loop = instance, asyncio.get_running_loop()
                if self.options.trace:
                    self._delivery.tracing = self._make_tracing(instance)
                self._calls = TransactionCalls(instance, self.options, self._listener)
                self._calls.tracing = self._delivery.tracing
                instance.add_transactions(self.options.group, self._calls)
                instance.add_producer(self.options.group)
                await self._be_known(self._delivery)
                self._state = ServiceState.RUNNING
            return self._delivery

    def _make_tracing(self, instance: ClientInstance) -> Tracing:
        return Tracing(instance, self._untraced(), self.options.group, self.options.trace_topic)

    def _untraced(self) -> AsyncProducer:
        """A producer of the same client that writes the traces of this one."""
        return trace_producer(self.client_options, self._runtime, self._tls, self._rpc_hook)

    async def _be_known(self, delivery: Delivery) -> None:
        """With a listener: have the brokers that may ask know of this producer before it sends anything."""
        if self._listener is None:
            return
        for topic in (self.options.template_topic, *self._transaction_topics):
            try:
                await delivery.sender.route(topic)
            except PenstockError as error:
                logger.info(
                    "brokers of %s do not know of producer group %s: %s", topic, self.options.group, error
                )

    async def close(self, timeout_s: float = 10.0) -> None:
        """Send what still waits, for at most this long, and leave the cluster. Raises as `flush` does."""
        require_seconds("timeout_s", timeout_s)
        if self._is_closed:
            return
        require_loop(self._loop)
        self._is_closed = True
        self._state = ServiceState.SHUTDOWN_ALREADY
        delivery, instance = self._delivery, self._instance
        if delivery is None or instance is None:
            return
        self._delivery = None
        for request in self._requests:
            request.give_up()
        delivery.inbox.close()
        try:
            async with asyncio.timeout(timeout_s):
                await delivery.flush()
        except TimeoutError:
            raise SendUnknownError(
                f"messages were still unanswered {timeout_s} s after closing", "give close more time"
            ) from None
        finally:
            await delivery.close()
            if delivery.tracing is not None:
                await delivery.tracing.close()
            if self._calls is not None:
                instance.remove_transactions(self.options.group, self._calls)
                await self._calls.close()
            await instance.remove_producer(self.options.group)
            await instance.release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def state(self) -> ServiceState:
        """Where it is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client; empty before the start."""
        return self._instance.client_id if self._instance is not None else ""

    @property
    def trace_counts(self) -> TraceCounts | None:
        """How many traces were written, dropped and lost; None if it writes none."""
        tracing = self._delivery.tracing if self._delivery is not None else None
        return tracing.counts if tracing is not None else None

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that can be written to."""
        delivery = self._here() or await self._ready()
        return (await delivery.sender.route(topic_text(topic))).publish_queues

    # -- sends -----------------------------------------------------------------------------------------------

    async def send(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> SendResult:
        """Send a `Message`, or a message of these parts, and wait until it is stored."""
        delivery = self._here() or await self._ready()
        item = delivery.composer.compose(message, body, **parts)
        item.future = future = asyncio.get_running_loop().create_future()
        await self._admit(delivery, item)
        result: SendResult = await future
        return result

    def send_nowait(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> asyncio.Future[SendResult]:
        """Send without waiting; the future ends with the result. BufferFullError if too much waits already."""
        delivery = self._started()
        item = delivery.composer.compose(message, body, **parts)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        item.future = future
        if not self._offer(delivery, item):
            raise delivery.room.full_error()
        return future

    def enqueue(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        on_result: OnResult | None = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        """Send without a future: the cheapest way. Without `on_result` the next `flush` raises what failed. It
        never waits: BufferFullError if too much is unanswered already, where `enqueue_when_room` waits."""
        delivery = self._started()
        item = delivery.composer.compose(message, body, **parts)
        item.callback = check_callback(on_result)
        if not self._offer(delivery, item):
            raise delivery.room.full_error()

    async def enqueue_when_room(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        on_result: OnResult | None = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        """`enqueue` that waits while too much is unanswered, for up to `buffer_timeout_ms`; then
        BufferFullError. Calls that wait have their turn in their order. A call that is cancelled while it waits
        sends nothing."""
        delivery = self._here() or await self._ready()
        item = delivery.composer.compose(message, body, **parts)
        item.callback = check_callback(on_result)
        await self._admit(delivery, item)

    async def send_oneway(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> None:
        """Send without an answer: quick, and nobody ever knows whether it was stored."""
        delivery = self._here() or await self._ready()
        item = delivery.composer.compose(message, body, **parts)
        await delivery.sender.send_oneway(Parcel([item], item.size))

    async def request(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        timeout_ms: int = 3_000,
        **parts: Unpack[MessageParts],
    ) -> Reply:
        """Send a message and wait for what a consumer replies to it. ReplyTimeoutError if nothing came in time; what
        comes later is told nobody. Whether the consumer did its work is not known then."""
        delivery = self._here() or await self._ready()
        assert self._instance is not None
        request = Request(self._instance, timeout_ms)
        self._requests.add(request)
        try:
            if isinstance(message, Message):
                message = replace(message, properties={**message.properties, **request.properties})
            else:
                parts["properties"] = {**(parts.get("properties") or {}), **request.properties}
            item = delivery.composer.compose(message, body, **parts)
            item.is_solo = True  # RocketMQ's brokers do not say in which cluster a message of a batch is
            item.future = future = asyncio.get_running_loop().create_future()
            await delivery.sender.route(item.topic)
            await request.prepare(item.topic)
            await self._admit(delivery, item)
            await future
            return await request.reply()
        finally:
            self._requests.discard(request)
            request.end()

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Reply to a message that was sent with `request`. Returns when the requester has it; ResponseError says
        why it does not, mostly because it waits no more."""
        if not isinstance(request, ReceivedMessage):
            raise MessageError(f"request is {request!r}", "use the message that a consumer received")
        delivery = self._here() or await self._ready()
        assert self._instance is not None
        await send_reply(
            self._instance,
            delivery.composer,
            self.options.group,
            request,
            body,
            properties,
            self.options.send_timeout_ms,
        )

    async def send_batch(
        self, messages: Iterable[Message], *, queue_key: str = "", durability: str = ""
    ) -> Sequence[SendResult]:
        """Send messages in as few frames as possible: one for each topic, unless they are too large together.

        The results are in the order of the messages. If a part fails the error's `result` has, for each
        message, its result or its error.
        """
        delivery = self._here() or await self._ready()
        items = delivery.composer.compose_batch(messages, queue_key, durability)
        return await self._send_items(delivery, items)

    async def _send_items(self, delivery: Delivery, items: list[Outgoing]) -> Sequence[SendResult]:
        if not items:
            return []
        size = sum([item.size for item in items])
        if not delivery.inbox.reserve(size, len(items)):
            await delivery.room.wait(size, len(items))
        parts = partition(items, self.options.message_bytes_max)
        if len(parts) == 1:
            return await delivery.post_together(items)
        outcomes: list[Sequence[SendResult] | BaseException] = []
        if items[0].queue_key:  # one after the other, or a retry could break their order
            for numbers in parts:
                future = delivery.post_together([items[number] for number in numbers])
                outcomes += await asyncio.gather(future, return_exceptions=True)
        else:
            futures = [delivery.post_together([items[n] for n in numbers]) for numbers in parts]
            outcomes += await asyncio.gather(*futures, return_exceptions=True)
        return _join(outcomes, parts)

    async def recall(self, handle: str) -> str:
        """Take back a message that waits for its time; its id. `handle` is the `recall_handle` of its result.

        ResponseError 604 if it is too late or no such handle. What was recalled never comes; a message that was sent
        again by a retry has a handle of its own.
        """
        if not isinstance(handle, str):
            raise MessageError(f"handle is {handle!r}", "use the recall_handle of a result")
        delivery = self._here() or await self._ready()
        ask = delivery.sender.recall
        recalled = delivery.tracing.recall(handle, ask) if delivery.tracing is not None else ask(handle)
        return (await recalled).msg_id

    def transaction(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> AsyncTransaction:
        """A message that is seen if the body of `async with` returns, and not if it raises (`transactions.py`)."""
        check_parts(parts.keys() - MessageParts.__annotations__.keys())
        return AsyncTransaction(lambda: self._begin(message, body, parts), self._end)

    async def _begin(self, message: Message | str, body: Body | None, parts: MessageParts) -> SendResult:
        delivery = self._here() or await self._ready()
        item = compose_half(delivery.composer, self.options.group, message, body, parts)
        if not delivery.inbox.reserve(item.size):
            await delivery.room.wait(item.size)
        return await self._transactions().begin(delivery, item)

    async def _end(self, result: SendResult, state: TransactionState, reason: str = "") -> None:
        await self._transactions().end(result, state, reason)

    def _transactions(self) -> TransactionCalls:
        if self._calls is None:
            raise closed_error()
        return self._calls

    async def flush(self) -> None:
        """Send everything that waits and wait for the answers. Raises the first failure nobody was told of."""
        delivery = self._here()
        if delivery is not None:
            await delivery.flush()

    async def _ready(self) -> Delivery:
        await self.start()
        return self._started()

    def _started(self) -> Delivery:
        if self._delivery is None or self._is_closed:
            raise (
                closed_error()
                if self._is_closed
                else ClientClosedError(
                    "the producer is not started", "use `async with`, or await start() first"
                )
            )
        require_loop(self._loop)
        return self._delivery

    def _here(self) -> Delivery | None:
        """What was started in this event loop; None before the start and after the end."""
        if self._delivery is not None:
            require_loop(self._loop)
        return self._delivery

    def _offer(self, delivery: Delivery, item: Outgoing) -> bool:
        return delivery.accept(item)

    async def _admit(self, delivery: Delivery, item: Outgoing) -> None:
        if not self._offer(delivery, item):
            await delivery.room.wait(item.size)
            delivery.enter(item)


def trace_producer(
    options: ClientOptions, runtime: Runtime | None, tls: TlsOptions | None, rpc_hook: RpcHook | None
) -> AsyncProducer:
    """What writes traces: a producer of the same client, that is not traced."""
    producer = AsyncProducer(
        options.name_servers, TRACE_PRODUCER, runtime=runtime, tls=tls, rpc_hook=rpc_hook, retries=0
    )
    producer.client_options = options
    return producer


def _join(
    outcomes: Sequence[Sequence[SendResult] | BaseException], parts: Sequence[Sequence[int]]
) -> list[SendResult]:
    """The results of several batches in the order of their messages, or one error for all of them."""
    found: dict[int, SendResult | BaseException] = {}
    for outcome, numbers in zip(outcomes, parts, strict=True):
        each = [outcome] * len(numbers) if isinstance(outcome, BaseException) else outcome
        found.update(zip(numbers, each, strict=True))
    results = [found[number] for number in range(len(found))]
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not errors:
        return [result for result in results if isinstance(result, SendResult)]
    first = errors[0]
    if not isinstance(first, PenstockError):
        raise first
    failed = sum(isinstance(result, BaseException) for result in results)
    none_stored = failed == len(results) and not any(getattr(e, "outcome_unknown", True) for e in errors)
    kind = SendFailedError if none_stored else SendUnknownError
    raise kind(
        f"{failed} of {len(results)} messages were not stored for sure: {first.message}",
        "the error's `result` has the outcome of each message",
        code=first.code,
        attempts=first.attempts if isinstance(first, SendError) else (),
        result=results,
    ) from first
