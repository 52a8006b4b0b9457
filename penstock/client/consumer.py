"""The consumer for threads.

    with penstock.Consumer("127.0.0.1:9876", group="g") as consumer:
        consumer.subscribe("T", "tagA || tagB")
        for message in consumer:
            ...

    penstock.Consumer("127.0.0.1:9876", group="g", listener=work, threads=20)

Rules: what it promises is what `AsyncConsumer` promises; it runs one in the client's thread. A listener is called
in threads of the consumer's own; `for` and `poll` take messages in the thread that calls them, and several
threads may do so. Nothing here may be called in the client's own thread.
"""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from penstock.client.acknowledging import ack_report
from penstock.client.async_consumer import (
    ITERATE,
    POLL,
    POP,
    AsyncConsumer,
    ConsumerSettings,
)
from penstock.client.consumer_core import ConsumerCore
from penstock.client.handout import Report, ThreadHandout
from penstock.client.joining import without_topic
from penstock.client.loop_thread import LoopThread
from penstock.client.options import DEFAULT_NAME_SERVER, ConsumerOptions, require_seconds
from penstock.client.popped_lots import check_polls, check_pops, lot_size, popped
from penstock.client.rebalancing import OnQueues
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.service_state import OneProcess, ServiceState
from penstock.client.subscription import check_keys
from penstock.client.turns import Turn
from penstock.client.workers import Listener, Reports, ThreadWorkers, is_async
from penstock.errors import ClientClosedError, ClientError, OptionError
from penstock.protocol.bodies import MessageQueue
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Clock, Runtime

__all__ = ["AsyncConsumer", "Consumer"]

T = TypeVar("T")


class Consumer(OneProcess):
    """A consumer for threads. `with` starts and closes it."""

    def __init__(
        self,
        name_servers: str | Iterable[str] = DEFAULT_NAME_SERVER,
        group: str = "DEFAULT_CONSUMER",
        *,
        listener: Listener | None = None,
        on_queues: OnQueues | None = None,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        rpc_hook: RpcHook | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        if listener is not None and is_async(listener):
            raise OptionError(
                "the listener is a coroutine function", "use AsyncConsumer, or an ordinary function"
            )
        self._async = AsyncConsumer(
            name_servers,
            group,
            listener=listener,
            on_queues=on_queues,
            runtime=runtime,
            tls=tls,
            rpc_hook=rpc_hook,
            **settings,
        )
        takers = self.options.threads if listener is not None else 1
        self._handout = ThreadHandout(orderly=self.options.orderly, takers=takers)
        self._thread: LoopThread | None = None
        self._clock: Clock | None = None
        self._reports: Reports | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._at_exit: Callable[[], None] | None = None
        self._turns: dict[threading.Thread, Turn] = {}
        self._ended = threading.Event()

    @property
    def options(self) -> ConsumerOptions:
        return self._async.options

    @property
    def group(self) -> str:
        return self.options.group

    @property
    def state(self) -> ServiceState:
        """Where it is in its life."""
        return ServiceState.SHUTDOWN_ALREADY if self._is_closed else self._async.state

    @property
    def core(self) -> ConsumerCore:
        """What is behind the face, as in AsyncConsumer. It belongs to the event loop's thread."""
        return self._async.core

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client; empty before the start."""
        return self._async.client_id

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Connect to a name server, join the group."""
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._thread is not None or self._async.needs_topic:
                return self
            thread = LoopThread.acquire()
            try:
                core = thread.run(self._async.begin(self._handout))
            except BaseException:
                thread.release()
                raise
            self._thread, self._clock, self._reports = thread, core.clock, self._async.reports
            # A program that ends without closing still stores how far it came.
            self._at_exit = _closer(weakref.ref(self))
            atexit.register(self._at_exit)
        return self

    def close(self, *, done: bool = True, timeout_s: float | None = None) -> None:
        """Finish what is in hand, store offsets, leave the group. `done`: the message that a loop of this thread
        was left at is done. From inside a listener nothing is waited for."""
        if timeout_s is not None:
            require_seconds("timeout_s", timeout_s)
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
            at_exit, self._at_exit = self._at_exit, None
        if thread is None:
            self._ended.set()
            return
        if at_exit is not None:
            atexit.unregister(at_exit)
        if thread.is_foreign:
            self._ended.set()  # in a child process there is nothing of it to close
            return
        self._end_turns()
        turn = self._turns.pop(threading.current_thread(), None)
        if turn is not None:
            self._report(turn.end(done=done))
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        workers = self._async.workers
        if isinstance(workers, ThreadWorkers) and workers.is_mine(threading.current_thread()):
            timeout_ms = 0
        try:
            thread.run(self._async.close(timeout_ms=timeout_ms))
        finally:
            self._ended.set()
            thread.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until the consumer is closed by somebody else: what a program with a listener does meanwhile."""
        if timeout_s is not None:
            require_seconds("timeout_s", timeout_s)
        return self._ended.wait(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(done=kind is None)

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None:
            warnings.warn("a Consumer was dropped without being closed", ResourceWarning, 2, self)

    # -- topics and queues -----------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, expression: str = "*", *, sql: str = "", keys: Iterable[str] = ()
    ) -> None:
        """Take part in consuming a topic: all of it, the messages with one of the tags `"a || b"` or one of the keys,
        or those for which the broker finds an SQL condition true. Replaces an earlier wish for the topic."""
        if self._async.needs_topic:  # its group is its topic's
            self._async.wish(topic, expression, sql, check_keys(keys))
            self.start()
            return
        self.start()
        self._run(self._async.subscribe(topic, expression, sql=sql, keys=keys))

    def unsubscribe(self, topic: str) -> None:
        self._run(self._async.unsubscribe(topic))

    def wait_assigned(self, timeout_s: float = 10.0) -> Sequence[MessageQueue]:
        """Wait until this consumer holds its share of the queues as of now; the queues."""
        return self._run(self._async.wait_assigned(timeout_s))

    @property
    def assignment(self) -> Sequence[MessageQueue]:
        """The queues that this consumer holds."""
        return self._run(_now(lambda: self._async.assignment))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic that can be read."""
        self.start()
        return self._run(self._async.queues(topic))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, whoever else reads them; the group's offsets are used, its division is not."""
        self.start()
        self._run(self._async.assign(queues))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give nothing out of these queues until `resume`."""
        self._run(_now(lambda: self._async.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all; with `delivery="push"` also with what brokers have parked."""
        self._run(_now(lambda: self._async.resume(queues)))

    # -- offsets ---------------------------------------------------------------------------------------------

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next message of the queue is the one at this offset."""
        self._run(self._async.seek(queue, offset))

    def seek_to_first(self, queue: MessageQueue) -> None:
        self._run(self._async.seek_to_first(queue))

    def seek_to_last(self, queue: MessageQueue) -> None:
        """Behind the last message."""
        self._run(self._async.seek_to_last(queue))

    def seek_to_time(self, queue: MessageQueue, time: int | datetime) -> None:
        """To the first message stored then or later."""
        self._run(self._async.seek_to_time(queue, time))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far this consumer has come: all that `poll` has returned is done. ClientError if it fails."""
        self._run(self._async.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is stored for the group, or None."""
        return self._run(self._async.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset of the first message of the queue that is not done."""
        return self._run(_now(lambda: self._async.position(queue)))

    # -- messages --------------------------------------------------------------------------------------------

    def poll(self, max_messages: int = 32, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Messages as soon as there are any, or none after the time is over. Done when committed."""
        check_polls(self.options, max_messages, timeout_s)
        self._use(POLL)
        if self.options.auto_commit:
            self._async.reports.put(self._async.mark_committed)
        messages: list[ReceivedMessage] = []
        lot = self._handout.wait(max_messages, timeout_s)
        while lot is not None:
            messages += lot.messages
            self._handout.note_begun(lot.messages)
            self._report(Report(lot.owner, done=lot.messages))
            left = max_messages - len(messages)
            lot = self._handout.take(left) if left > 0 else None
        return messages

    def pop(self, max_messages: int = 32, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """With `delivery="pop"`: messages as soon as there are any, or none after the time is over. Each is done when
        it is acknowledged (`ack`), or rests and comes again (`retry`). What is neither comes again, to any member of
        the group, after `invisible_ms`."""
        check_pops(self.options, max_messages, timeout_s)
        self._use(POP)
        lot = self._handout.wait(lot_size(max_messages, self.options), timeout_s)
        if lot is None:
            self._running().call_soon(self._async.core.note_nothing_popped)
        return popped(lot, self._handout, max_messages, self.options)

    def ack(self, message: ReceivedMessage) -> None:
        """With `auto_ack` off, or after `pop`: this message is done."""
        self._running()
        self._report(ack_report(self.options, message, self._async.core.holdings))

    def retry(self, message: ReceivedMessage, delay_level: int = 0, reason: str = "") -> None:
        """This message is not done: have it tried again later. See `Retry` for the level."""
        if self.options.auto_ack and getattr(message, "owner", False) is None:
            message.retry_later(delay_level, reason)
        else:
            self._report(
                ack_report(self.options, message, self._async.core.holdings, Retry(delay_level, reason))
            )

    def __iter__(self) -> Iterator[ReceivedMessage]:
        self._use(ITERATE)
        assert self._clock is not None
        self._end_turns()
        thread = threading.current_thread()
        turn = self._turns.get(thread)
        if turn is None:
            turn = Turn(
                self._handout, self._clock, orderly=self.options.orderly, auto_ack=self.options.auto_ack
            )
            self._turns[thread] = turn
            self._handout.takers = len(self._turns)
        turn.rewind()
        return _Messages(turn, self._handout, self._report)

    def _end_turns(self) -> None:
        """Threads that ended in the middle of a loop leave their messages to others."""
        for thread in [one for one in list(self._turns) if not one.is_alive()]:
            self._report(self._turns.pop(thread).end(done=False))

    def _use(self, style: str) -> None:
        self._running()
        if self._async.style != style:
            self._run(_now(lambda: self._async.use(style)))

    def _report(self, report: Report | None) -> None:
        if report is not None and self._reports is not None:
            self._reports.put(report)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._running()
        except ClientError:
            coroutine.close()
            raise
        return thread.run(coroutine)

    def _running(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            raise without_topic() if self._async.needs_topic and not self._is_closed else _closed()
        thread.check_process()
        return thread


class _Messages(Iterator[ReceivedMessage]):
    """Messages as they come, until the consumer is closed."""

    def __init__(self, turn: Turn, handout: ThreadHandout, report: Callable[[Report | None], None]) -> None:
        self._turn = turn
        self._handout = handout
        self._report = report

    def __next__(self) -> ReceivedMessage:
        turn = self._turn
        work = turn.work
        message = work.advance() if work is not None else None
        while message is None:
            self._report(turn.end())
            lot = self._handout.wait(turn.lot_size)
            if lot is None:
                raise StopIteration
            message = turn.begin(lot)
        return message


async def _now(call: Callable[[], T]) -> T:
    """Something that belongs to the loop and takes no time."""
    return call()


def _closer(consumer: weakref.ref[Consumer]) -> Callable[[], None]:
    def close() -> None:
        found = consumer()
        if found is not None:
            found.close(done=False)

    return close


def _closed() -> ClientClosedError:
    return ClientClosedError("the consumer is closed, or was not started", "use `with`, or call start()")
