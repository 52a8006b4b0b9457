"""The consumer for event loops.

    async with penstock.AsyncConsumer("127.0.0.1:9876", group="g") as consumer:
        await consumer.subscribe("T", "tagA || tagB")
        async for message in consumer:
            ...

Three styles, one of which a consumer has: a listener that is called with each message; iterating; and `poll`
with `commit`. The first two acknowledge by themselves: a message is done when its listener returns, or when the
next one is asked for. With `poll` nothing is stored until `commit`.

At least once: what was not acknowledged when the program ends comes again. Belongs to the loop it was started in.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from penstock.client.acknowledging import ack_report
from penstock.client.allocation import Strategy
from penstock.client.async_messages import AsyncMessages
from penstock.client.async_producer import trace_producer
from penstock.client.consumer_core import ConsumerCore
from penstock.client.consumer_requests import ConsumerRequests
from penstock.client.handout import Handout, LoopHandout, Report, ThreadHandout
from penstock.client.instance import ClientInstance
from penstock.client.joining import find_group, without_topic
from penstock.client.loop_thread import require_loop
from penstock.client.options import (
    DEFAULT_NAME_SERVER,
    ClientOptions,
    ConsumerOptions,
    check_objects,
    milliseconds,
    read_settings,
    require_seconds,
)
from penstock.client.outgoing import topic_text
from penstock.client.popped_lots import check_polls, check_pops, lot_size, popped
from penstock.client.queue_selection import check_queue, check_queues
from penstock.client.rebalancing import OnQueues
from penstock.client.received import ReceivedMessage, Retry
from penstock.client.service_state import OneProcess, ServiceState
from penstock.client.subscription import check_expression, check_keys
from penstock.client.tracing import TraceCounts, Tracing
from penstock.client.turns import Turn
from penstock.client.workers import Listener, Reports, TaskWorkers, ThreadWorkers, is_async
from penstock.errors import ClientClosedError, ClientError, OptionError
from penstock.protocol.bodies import MessageQueue
from penstock.remoting import RpcHook, TlsOptions
from penstock.runtime import Runtime

LISTEN, ITERATE, POLL, POP = "a listener", "iterating", "poll", "pop"


class ConsumerSettings(TypedDict, total=False):
    """Keyword arguments of a consumer: the fields of `ClientOptions` and `ConsumerOptions`."""

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
    model: str
    start_from: str | int | datetime
    strategy: str | Strategy
    orderly: bool
    threads: int
    auto_ack: bool
    auto_commit: bool
    delivery: str
    invisible_ms: int
    pop_batch: int
    pull_batch: int
    suspend_ms: int
    pull_timeout_ms: int
    pull_retry_ms: int
    queue_messages_max: int
    queue_bytes_max: int
    queue_span_max: int
    body_bytes_max: int
    consume_timeout_ms: int
    retries_max: int
    rest_ms: int
    rebalance_interval_ms: int
    persist_interval_ms: int
    lock_interval_ms: int
    lock_expiry_ms: int
    stuck_ms: int
    close_timeout_ms: int
    offset_directory: str
    balance: str
    subscription_mode: str
    binding: str
    coordinator_interval_ms: int
    release_timeout_ms: int
    trace: bool
    trace_topic: str


class AsyncConsumer(OneProcess):
    """A consumer inside an event loop. Start it with `async with`, or `start` and `close`."""

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
        check_objects(tls=tls, rpc_hook=rpc_hook, listener=listener, on_queues=on_queues)
        given: dict[str, Any] = {**settings, "name_servers": name_servers, "group": group}
        self.client_options, self.options = read_settings(given, ClientOptions, ConsumerOptions)
        if self.options.is_coordinated and not self.client_options.coordinators:
            raise OptionError(
                "balance is 'coordinator' and no coordinators are named", 'add coordinators="host:9877"'
            )
        self._listener = listener
        self._on_queues = on_queues
        self._runtime = runtime
        self._tls = tls
        self._rpc_hook = rpc_hook
        self._style = LISTEN if listener is not None else ""
        self._in_threads = listener is not None and not is_async(listener)
        self._instance: ClientInstance | None = None
        self._core: ConsumerCore | None = None
        self._workers: ThreadWorkers | TaskWorkers | None = None
        self._reports: Reports | None = None
        self._turns: dict[asyncio.Task[Any], Turn] = {}
        self._tracing: Tracing | None = None
        self._wishes: list[tuple[str, str, str, tuple[str, ...]]] = []
        # In which it was started.
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whether it was started without a topic that it needs.
        self._is_awaited = False
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._state = ServiceState.CREATE_JUST

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Connect to a name server, join the group; one that is its topic's, when that is known."""
        self._is_awaited = self.needs_topic
        if not self._is_awaited:
            await self.begin()
        return self

    async def begin(self, handout: Handout | None = None) -> ConsumerCore:
        """Start with a handout of the face's own."""
        require_loop(self._loop)
        async with self._starting:
            if self._is_closed:
                raise _closed()
            if self._core is None:
                await self._begin(handout)
            return self.core

    async def _begin(self, handout: Handout | None) -> None:
        self._state = ServiceState.START_FAILED  # until everything is up
        if self.options.joins_by_topic:
            connecting: Any = {"runtime": self._runtime, "tls": self._tls, "rpc_hook": self._rpc_hook}
            group = await find_group(self._wishes[0][0], self.client_options, **connecting)
            self.options = dataclasses.replace(self.options, group=group)
        instance = await ClientInstance.acquire(
            self.client_options,
            runtime=self._runtime,
            tls=self._tls,
            rpc_hook=self._rpc_hook,
            consumer_group=self.options.group,
        )
        try:
            takers = self.options.threads if self._listener is not None else 1
            kind = ThreadHandout if self._in_threads else LoopHandout
            core = ConsumerCore(
                instance,
                self.options,
                handout or kind(orderly=self.options.orderly, takers=takers),
                on_queues=self._on_queues,
            )
            core.start()
        except BaseException:
            await instance.release(self.options.group)
            raise
        self._instance, self._core = instance, core
        self._loop = asyncio.get_running_loop()
        if self.options.trace:
            writer = trace_producer(self.client_options, self._runtime, self._tls, self._rpc_hook)
            self._tracing = tracing = Tracing(instance, writer, self.group, self.options.trace_topic)
            core.handout.on_begin, core.consumption.on_end = tracing.begun, tracing.ended
        self._reports = Reports(asyncio.get_running_loop(), core.consumption.settle)
        self._workers = self._make_workers(core, self._reports)
        ConsumerRequests(core, self._call_listener if self._listener is not None else None)
        wishes, self._wishes = self._wishes, []
        try:
            for wish in wishes:
                await core.subscribe(*wish)
        except BaseException:
            await self.close()
            raise
        self._state = ServiceState.RUNNING

    def _make_workers(self, core: ConsumerCore, reports: Reports) -> ThreadWorkers | TaskWorkers | None:
        if self._listener is None:
            return None
        orderly, group = self.options.orderly, self.options.group
        if isinstance(core.handout, ThreadHandout):
            return ThreadWorkers(
                self._listener, core.handout, reports, core.clock, name=group, orderly=orderly
            )
        assert isinstance(core.handout, LoopHandout)
        return TaskWorkers(self._listener, core.handout, core.consumption.settle, core.clock, orderly=orderly)

    async def _call_listener(self, message: ReceivedMessage) -> Any:
        assert self._listener is not None
        if self._in_threads:
            return await asyncio.to_thread(self._listener, message)
        return await self._listener(message)

    async def close(self, *, done: bool = True, timeout_ms: int | None = None) -> None:
        """Finish what is in hand, store offsets, leave the group. `done`: the message that a loop of this task
        was left at is done."""
        if not self._is_closed:
            require_loop(self._loop)
        self._is_closed = True
        self._state = ServiceState.SHUTDOWN_ALREADY
        instance, core, workers = self._instance, self._core, self._workers
        if instance is None or core is None:
            return
        self._instance = None
        task = asyncio.current_task()
        if task in self._turns:
            self._settle(self._turns.pop(task).end(done=done))
        try:
            await core.close(timeout_ms)
        finally:
            if workers is not None:
                await workers.close()
            if self._tracing is not None:
                await self._tracing.close()
            await instance.release(self.options.group)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(done=kind is None)

    @property
    def group(self) -> str:
        return self.options.group

    @property
    def state(self) -> ServiceState:
        """Where it is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """The name by which brokers know this client; empty before the start."""
        return self._core.instance.client_id if self._core is not None else ""

    @property
    def trace_counts(self) -> TraceCounts | None:
        """How many traces were written, dropped and lost; None if it writes none."""
        return self._tracing.counts if self._tracing is not None else None

    @property
    def core(self) -> ConsumerCore:
        """What is behind the face; ClientClosedError before the start and after the end."""
        if self._core is None or self._is_closed:
            raise without_topic() if self.needs_topic and not self._is_closed else _closed()
        return self._core

    @property
    def _here(self) -> ConsumerCore:
        """The same for calls in the event loop, which has to be the one in which it was started."""
        core = self.core
        require_loop(self._loop)
        return core

    @property
    def reports(self) -> Reports:
        assert self._reports is not None
        return self._reports

    @property
    def style(self) -> str:
        """How it is used; empty until it is."""
        return self._style

    @property
    def workers(self) -> ThreadWorkers | TaskWorkers | None:
        return self._workers

    # -- topics and queues -----------------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, expression: str = "*", *, sql: str = "", keys: Iterable[str] = ()
    ) -> None:
        """Take part in consuming a topic: all of it, the messages with one of the tags `"a || b"` or one of the keys,
        or those for which the broker finds an SQL condition true. Replaces an earlier wish for the topic."""
        wish = (topic, expression, sql, check_keys(keys))
        if self._core is not None or self._is_closed:
            await self._here.subscribe(*wish)
            return
        self.wish(*wish)
        if self._is_awaited:
            await self.begin()

    def wish(self, topic: str, expression: str, sql: str, keys: tuple[str, ...]) -> None:
        """Subscribe when it starts."""
        check_expression(expression, sql, keys)
        self._wishes.append((topic, expression, sql, keys))

    @property
    def needs_topic(self) -> bool:
        """Whether it cannot start yet: its group is its topic's, and it has none."""
        return self._core is None and not self._wishes and self.options.joins_by_topic

    async def unsubscribe(self, topic: str) -> None:
        await self._here.unsubscribe(topic)

    async def wait_assigned(self, timeout_s: float = 10.0) -> Sequence[MessageQueue]:
        """Wait until this consumer holds its share of the queues as of now; the queues."""
        require_seconds("timeout_s", timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._here.rebalancing.settled()
        except TimeoutError:
            refusal = self._here.rebalancing.refusal
            raise ClientError(
                f"the queues of group {self.group!r} were not divided within {timeout_s} s",
                f"the coordinator refuses: {refusal}"
                if refusal
                else "is every broker of the topic up? look at the log",
            ) from None
        return self.assignment

    @property
    def assignment(self) -> Sequence[MessageQueue]:
        """The queues that this consumer holds."""
        held = self._here.rebalancing.held
        # Also one that is on its way to another offset, which a reset of the group may have asked for.
        return sorted(
            owner.queue for owner in self._here.holdings.owners if not owner.is_retired or owner.queue in held
        )

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic that can be read."""
        return (await self._here.instance.routes.get(topic_text(topic))).subscribe_queues

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, whoever else reads them; the group's offsets are used, its division is not.
        Waits a little for them; one whose broker is away comes when that is back."""
        await self._here.assign(check_queues(queues))
        self.use(POLL if self._style == "" else self._style)
        try:
            async with asyncio.timeout(self.client_options.call_timeout_ms / 1000):
                await self._here.rebalancing.settled()
        except TimeoutError:
            pass

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Give nothing out of these queues until `resume`."""
        self._here.holdings.pause(check_queues(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all; with `delivery="push"` also with what brokers have parked."""
        self._here.resume(None if queues is None else check_queues(queues))

    # -- offsets ---------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next message of the queue is the one at this offset."""
        await self._here.seek(queue, offset)

    async def seek_to_first(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self._here.calls.first_offset(check_queue(queue)))

    async def seek_to_last(self, queue: MessageQueue) -> None:
        """Behind the last message."""
        await self.seek(queue, await self._here.calls.end_offset(check_queue(queue)))

    async def seek_to_time(self, queue: MessageQueue, time: int | datetime) -> None:
        """To the first message stored then or later."""
        time_ms = milliseconds("time", time)
        await self.seek(queue, await self._here.calls.offset_at(check_queue(queue), time_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far this consumer has come: all that `poll` has returned is done. ClientError if it fails."""
        await self._here.commit(offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is stored for the group, or None."""
        return await self._here.offsets.fetch(check_queue(queue))

    def position(self, queue: MessageQueue) -> int:
        """The offset of the first message of the queue that is not done."""
        owner = self._here.holdings.get(check_queue(queue))
        if owner is None:
            raise ClientError(f"{queue} is not held by this consumer", "wait_assigned waits for its queues")
        return owner.committed

    # -- messages --------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = 32, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Messages as soon as there are any, or none after the time is over. Done when committed."""
        check_polls(self.options, max_messages, timeout_s)
        self.use(POLL)
        core = self._here
        handout = core.handout
        assert isinstance(handout, LoopHandout)
        if self.options.auto_commit:
            self.mark_committed()
        messages: list[ReceivedMessage] = []
        lot = await handout.wait(max_messages, timeout_s)
        while lot is not None:
            messages += lot.messages
            handout.note_begun(lot.messages)
            core.consumption.settle(Report(lot.owner, done=lot.messages))
            left = max_messages - len(messages)
            lot = handout.take(left) if left > 0 else None
        return messages

    async def pop(self, max_messages: int = 32, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """With `delivery="pop"`: messages as soon as there are any, or none after the time is over. Each is done when
        it is acknowledged (`ack`), or rests and comes again (`retry`). What is neither comes again, to any member of
        the group, after `invisible_ms`."""
        check_pops(self.options, max_messages, timeout_s)
        self.use(POP)
        handout = self._here.handout
        assert isinstance(handout, LoopHandout)
        lot = await handout.wait(lot_size(max_messages, self.options), timeout_s)
        if lot is None:
            self._here.note_nothing_popped()
        return popped(lot, handout, max_messages, self.options)

    def mark_committed(self) -> None:
        """What was polled so far is done; it is stored within seconds."""
        if self._core is not None:
            for owner in self._core.holdings.owners:
                self._core.offsets.set(owner.queue, owner.committed)

    def ack(self, message: ReceivedMessage) -> None:
        """With `auto_ack` off, or after `pop`: this message is done."""
        self._settle(ack_report(self.options, message, self._here.holdings))

    def retry(self, message: ReceivedMessage, delay_level: int = 0, reason: str = "") -> None:
        """This message is not done: have it tried again later. See `Retry` for the level."""
        if self.options.auto_ack and getattr(message, "owner", False) is None:
            message.retry_later(delay_level, reason)
        else:
            self._settle(ack_report(self.options, message, self._here.holdings, Retry(delay_level, reason)))

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        self.use(ITERATE)
        task = asyncio.current_task()
        assert task is not None
        turn = self._turns.get(task)
        if turn is None:
            turn = Turn(
                self._here.handout,
                self._here.clock,
                orderly=self.options.orderly,
                auto_ack=self.options.auto_ack,
            )
            self._turns[task] = turn
            task.add_done_callback(self._task_ended)
            self._here.handout.takers = len(self._turns)
        turn.rewind()
        return AsyncMessages(turn, self._here.handout, self._settle)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task that returned in the middle of a loop has done its message; one that failed has not."""
        turn = self._turns.pop(task, None)
        if turn is not None:
            self._settle(turn.end(done=not task.cancelled() and task.exception() is None))

    def use(self, style: str) -> None:
        """A consumer is used in one style."""
        require_loop(self._loop)
        if not self._style:
            self._here.require_topics()
            self._style = style
            if style == POLL:
                self._here.offsets.is_manual = True
        elif self._style != style:
            raise ClientError(
                f"this consumer uses {self._style}, not {style}", "make another consumer for the other style"
            )

    def _settle(self, report: Report | None) -> None:
        if report is not None and self._core is not None:
            self._core.consumption.settle(report)


def _closed() -> ClientClosedError:
    return ClientClosedError(
        "the consumer is closed, or was not started", "use `async with`, or await start()"
    )
