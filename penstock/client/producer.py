"""The producer for threads.

    with penstock.Producer("127.0.0.1:9876", group="orders") as producer:
        result = producer.send("T", b"body", tag="a", keys="k1")
        future = producer.send_async("T", b"body")

Rules: what it promises is what `AsyncProducer` promises; it runs one in the client's thread and hands messages
over. It may be used from any thread. In the client's own thread, in which callbacks run, it may be used only in
ways that do not wait.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.client.async_producer import AsyncProducer, Body, OnResult, ProducerSettings
from penstock.client.delivery import Delivery
from penstock.client.loop_thread import LoopThread
from penstock.client.options import DEFAULT_NAME_SERVER, ProducerOptions, require_seconds
from penstock.client.outgoing import MessageParts, Outgoing, check_callback, check_parts
from penstock.client.received import ReceivedMessage
from penstock.client.request_reply import Reply
from penstock.client.results import SendResult
from penstock.client.room import closed_error
from penstock.client.routes import MessageQueue
from penstock.client.service_state import OneProcess, ServiceState
from penstock.client.tracing import TraceCounts
from penstock.client.transactions import Transaction, TransactionListener
from penstock.message import Message
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Runtime

__all__ = ["AsyncProducer", "Producer"]

T = TypeVar("T")


class Producer(OneProcess):
    """A producer for threads. `with` starts and closes it; the first send starts it, too."""

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
        self._async = AsyncProducer(
            name_servers,
            group,
            runtime=runtime,
            tls=tls,
            rpc_hook=rpc_hook,
            transaction_listener=transaction_listener,
            transaction_topics=transaction_topics,
            **settings,
        )
        self._thread: LoopThread | None = None
        self._delivery: Delivery | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._at_exit: Callable[[], None] | None = None

    @property
    def options(self) -> ProducerOptions:
        return self._async.options

    @property
    def state(self) -> ServiceState:
        """Where it is in its life."""
        return ServiceState.SHUTDOWN_ALREADY if self._is_closed else self._async.state

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client; empty before the start."""
        return self._async.client_id

    @property
    def trace_counts(self) -> TraceCounts | None:
        """How many traces were written, dropped and lost; None if it writes none."""
        return self._async.trace_counts

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect to a name server. Called by the first send, too."""
        self._ready()
        return self

    def _ready(self) -> Delivery:
        with self._lock:
            if self._is_closed:
                raise closed_error()
            if self._delivery is not None:
                return self._delivery
            thread = LoopThread.acquire()
            try:
                self._delivery = thread.run(self._async._start(thread.call_soon))
            except BaseException:
                thread.release()
                raise
            self._thread = thread
            # A program that ends without closing still gets what it sent out of the door.
            self._at_exit = _closer(weakref.ref(self))
            atexit.register(self._at_exit)
            return self._delivery

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what still waits, for at most this long, and leave the cluster. Raises as `flush` does."""
        require_seconds("timeout_s", timeout_s)
        running = self._thread
        if running is not None and not running.is_foreign:
            running.check_may_wait()
        with self._lock:
            self._is_closed = True
            thread, self._thread, self._delivery = self._thread, None, None
            at_exit, self._at_exit = self._at_exit, None
        if at_exit is not None:
            atexit.unregister(at_exit)
        if thread is None or thread.is_foreign:
            return  # in a child process there is nothing of it to close
        try:
            thread.run(self._async.close(timeout_s))
        finally:
            thread.release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None:
            if self._at_exit is not None:
                atexit.unregister(self._at_exit)
            warnings.warn("a Producer was dropped without being closed", ResourceWarning, 2, self)

    # -- sends -----------------------------------------------------------------------------------------------

    def send(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> SendResult:
        """Send a `Message`, or a message of these parts, and wait until it is stored."""
        future = self.send_async(message, body, **parts)
        self._running().check_may_wait()
        return future.result()

    def send_async(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> concurrent.futures.Future[SendResult]:
        """Send without waiting for the answer. Waits only while too much is unanswered already, for up to
        `buffer_timeout_ms`; then BufferFullError. In the client's own thread, as in callbacks, that comes at once."""
        delivery = self._delivery or self._ready()
        item = delivery.composer.compose(message, body, **parts)
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        item.future = future
        self._leave(delivery, item)
        return future

    def enqueue(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        on_result: OnResult | None = None,
        **parts: Unpack[MessageParts],
    ) -> None:
        """Send without a future: the cheapest way. `on_result` is called in the client's thread, with the
        result or the error; without it the next `flush` raises what failed. Waits as `send_async` does."""
        delivery = self._delivery or self._ready()
        item = delivery.composer.compose(message, body, **parts)
        item.callback = check_callback(on_result)
        self._leave(delivery, item)

    def send_oneway(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> None:
        """Send without an answer: quick, and nobody ever knows whether it was stored."""
        self._ready()
        self._run(self._async.send_oneway(message, body, **parts))

    def request(
        self,
        message: Message | str,
        body: Body | None = None,
        *,
        timeout_ms: int = 3_000,
        **parts: Unpack[MessageParts],
    ) -> Reply:
        """Send a message and wait for what a consumer replies to it; see `AsyncProducer.request`."""
        self._ready()
        return self._run(self._async.request(message, body, timeout_ms=timeout_ms, **parts))

    def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Reply to a message that was sent with `request`; see `AsyncProducer.reply`."""
        self._ready()
        self._run(self._async.reply(request, body, properties=properties))

    def send_batch(
        self, messages: Iterable[Message], *, queue_key: str = "", durability: str = ""
    ) -> Sequence[SendResult]:
        """Send messages in as few frames as possible; see `AsyncProducer.send_batch`."""
        return self.send_batch_async(messages, queue_key=queue_key, durability=durability).result()

    def send_batch_async(
        self, messages: Iterable[Message], *, queue_key: str = "", durability: str = ""
    ) -> concurrent.futures.Future[Sequence[SendResult]]:
        """The same without waiting."""
        delivery = self._delivery or self._ready()
        items = delivery.composer.compose_batch(messages, queue_key, durability)
        return self._running().submit(self._async._send_items(delivery, items))

    def recall(self, handle: str) -> str:
        """Take back a message that waits for its time; see `AsyncProducer.recall`."""
        self._ready()
        return self._run(self._async.recall(handle))

    def transaction(
        self, message: Message | str, body: Body | None = None, **parts: Unpack[MessageParts]
    ) -> Transaction:
        """A message that is seen if the body of `with` returns, and not if it raises (`transactions.py`)."""
        check_parts(parts.keys() - MessageParts.__annotations__.keys())
        self._ready()
        producer = self._async
        return Transaction(lambda: producer._begin(message, body, parts), producer._end, self._run)

    def flush(self) -> None:
        """Send everything that waits and wait for the answers. Raises the first failure nobody was told of."""
        if self._thread is not None:
            self._run(self._async.flush())

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that can be written to."""
        self._ready()
        return self._run(self._async.queues(topic))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._running().run(coroutine)

    def _running(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            raise closed_error()
        return thread

    def _leave(self, delivery: Delivery, item: Outgoing) -> None:
        self._running().check_process()
        if not delivery.inbox.put(item):
            self._leave_when_there_is_room(delivery, item)

    def _leave_when_there_is_room(self, delivery: Delivery, item: Outgoing) -> None:
        if self._running().is_current:
            raise delivery.room.full_error()  # room is made in this thread: waiting here would never end
        delivery.room.block(item.size)
        delivery.inbox.leave(item)


def _closer(producer: weakref.ref[Producer]) -> Callable[[], None]:
    def close() -> None:
        found = producer()
        if found is not None:
            found.close()

    return close
