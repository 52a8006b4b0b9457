"""From a checked message to the store, and back with what was reached.

Every append ends with exactly one call of `done`: at once where memory is enough, else when the disk has the
message, when that failed, or when it took too long. Messages that wait share the group commit of `LoopFlusher`
and one timer: no task, no future and no timer per message. What waits is counted, and more than may wait is
refused before it is stored (`flow_control.py`).

Owned by the event loop. It never looks into a message: whatever is wrong with one was found before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._hot.queues import QueueState
from penstock._hot.records import AppendRequest, RecordBuilder
from penstock.broker.flow_control import FlowControl, UnknownOutcomeError
from penstock.broker.statistics import Statistics
from penstock.errors import MessageTooLargeError, PenstockError, StoreError
from penstock.message import HostAddress, Message
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Clock
from penstock.store import Durability, FlushMode, MessageStore
from penstock.store.loop_flush import LoopFlusher
from penstock.store.results import BatchResult

_TIMER_MS = 50


@dataclass(frozen=True, slots=True)
class Written:
    """How a store ended: stored with this durability (`error` is None), or not known to be."""

    code: int
    durability: Durability
    error: PenstockError | None = None
    remark: str | None = None


Done = Callable[[Written], None]
# What was stored: topic, messages, bytes.
Parts = Sequence[tuple[str, int, int]]
IN_MEMORY = Written(ResponseCode.SUCCESS, Durability.MEMORY)
ON_DISK = Written(ResponseCode.SUCCESS, Durability.FLUSHED)


def _nothing_to_do(error: StoreError | None) -> None:
    pass


class _Waiting:
    """Messages that were appended together and wait for their flush."""

    __slots__ = ("count", "deadline_ms", "done", "is_over", "owner", "parts", "since_ms", "size")

    def __init__(self, owner: MessageWriter, parts: Parts, since_ms: int, done: Done) -> None:
        self.owner = owner
        self.parts = parts
        self.count = sum(count for _, count, _ in parts)
        self.size = sum(size for _, _, size in parts)
        self.since_ms = since_ms
        self.deadline_ms = since_ms + owner.timeout_ms
        self.done = done
        self.is_over = False

    def flushed(self, error: StoreError | None) -> None:
        if not self.is_over:
            self.owner.settle(self, ON_DISK if error is None else self.owner.failed(error))


class MessageWriter:
    """The broker's one way into the store."""

    def __init__(
        self,
        store: MessageStore,
        flusher: LoopFlusher,
        flow: FlowControl,
        statistics: Statistics,
        clock: Clock,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._flow = flow
        self._statistics = statistics
        self._clock = clock
        self._is_sync = store.options.flush_mode is FlushMode.SYNC
        self.default_durability = Durability.FLUSHED if self._is_sync else Durability.MEMORY
        self.timeout_ms = store.options.sync_flush_timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    def queue(self, topic: str, queue_id: int) -> QueueState:
        """The queue to append to; a new one is made, if there is room for its files. Asked for anew each time: a
        deleted topic has new queues."""
        found = self._store.queues.get(topic, queue_id)
        if found is not None:
            return found.state
        self._flow.admit_queue(topic, len(self._store.queues))
        return self._store.request(Message(topic, b""), queue_id).queue

    # -- appending -------------------------------------------------------------------------------------------

    def append(
        self, topic: str, requests: Sequence[AppendRequest], demand: Durability | None, done: Done
    ) -> None:
        """Store messages of one topic with one write. Raises if nothing was stored; else `done` is called, now or
        later. A request that fits no record has `size` -1 afterwards; if none fits, that raises too."""
        self._flow.admit(sum(len(request.body) for request in requests))
        started_ms = self._clock.monotonic_ms()
        try:
            self._store.append_group(requests, durability=Durability.MEMORY)
        except StoreError as error:
            self._statistics.put_failures += len(requests)
            raise self._flow.explain(error) from error
        stored = [request for request in requests if request.size > 0]
        if not stored:
            self._statistics.put_failures += len(requests)
            limit = self._store.options.segment_size_bytes
            raise MessageTooLargeError(f"no record of {limit} bytes holds the message", "send it in parts")
        last = stored[-1]
        size = sum(request.size for request in stored)
        self._wait(((topic, len(stored), size),), last.physical_offset + last.size, demand, started_ms, done)

    def append_run(
        self, build: Callable[[RecordBuilder], int], parts: Callable[[], Parts], done: Done
    ) -> None:
        """Store records that the caller puts into the store's builder; `parts` then says what they were.

        Raises if the store took nothing. `done` is not called where there was nothing to take.
        """
        started_ms = self._clock.monotonic_ms()
        try:
            end = self._store.append_run(build)
        except StoreError as error:
            raise self._flow.explain(error) from error
        stored = parts()
        if stored:
            self._wait(stored, end, None, started_ms, done)

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        sys_flag: int,
        born_timestamp: int,
        born_host: HostAddress,
        demand: Durability | None,
        done: Callable[[BatchResult, Written], None],
    ) -> None:
        """Store a client's encoded batch, all of it or nothing."""
        self._flow.admit(len(batch))
        self.queue(topic, queue_id)
        started_ms = self._clock.monotonic_ms()
        try:
            result = self._store.append_batch(
                topic,
                queue_id,
                batch,
                sys_flag=sys_flag,
                born_timestamp=born_timestamp,
                born_host=born_host,
                durability=Durability.MEMORY,
                size_max=len(batch),
            )
        except StoreError as error:
            self._statistics.put_failures += 1
            raise self._flow.explain(error) from error
        end = result.physical_offset + result.size
        self._wait(
            ((topic, result.count, result.size),),
            end,
            demand,
            started_ms,
            lambda written: done(result, written),
        )

    def append_copies(self, requests: Sequence[AppendRequest]) -> None:
        """Store messages of any topics with one write; nobody waits for them. If this raises, those that were
        stored all the same have a `size` that is not 0."""
        if not requests:
            return
        self._flow.admit(sum(len(request.body) for request in requests))
        try:
            self._store.append_group(requests, durability=Durability.MEMORY)
        except StoreError as error:
            raise self._flow.explain(error) from error
        finally:
            for request in requests:
                if request.size > 0:
                    self._statistics.put(request.queue.topic.decode(), 1, request.size)
        if self._is_sync:
            self._flusher.when_flushed(self._store.log.max_offset, _nothing_to_do)

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wait(self, parts: Parts, end: int, demand: Durability | None, started_ms: int, done: Done) -> None:
        if (self.default_durability if demand is None else demand) is Durability.MEMORY:
            if self._is_sync:  # nobody waits, but nobody sees the message before it is flushed either
                self._flusher.when_flushed(end, _nothing_to_do)
            for topic, count, size in parts:
                self._statistics.put(topic, count, size)
            done(IN_MEMORY)
            return
        waiting = _Waiting(self, parts, started_ms, done)
        self._flow.began(waiting.count, waiting.size)
        self._waiting.append(waiting)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TIMER_MS / 1000, self._look_at_time)
        self._flusher.when_flushed(end, waiting.flushed)

    def settle(self, waiting: _Waiting, written: Written) -> None:
        """Messages wait no more: count them and tell."""
        waiting.is_over = True
        took_ms = self._clock.monotonic_ms() - waiting.since_ms
        self._flow.ended(waiting.count, waiting.size, took_ms)
        if written.error is None:
            for topic, count, size in waiting.parts:
                self._statistics.put(topic, count, size, took_ms)
        else:
            self._statistics.put_failures += waiting.count
        waiting.done(written)
        if self._idle is not None and not self._flow.waiting:
            self._idle.set()

    def failed(self, error: StoreError) -> Written:
        """The flush failed: whether the message survives is not known, and nobody may say that it does or not."""
        explained = UnknownOutcomeError(error.code, error.message, error.hint)
        return Written(explained.code, Durability.MEMORY, explained)

    def _look_at_time(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._timer = None
        while self._waiting and (self._waiting[0].is_over or self._waiting[0].deadline_ms <= now_ms):
            waiting = self._waiting.popleft()
            if not waiting.is_over:
                self.settle(waiting, self._late())
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_TIMER_MS / 1000, self._look_at_time)

    def _late(self) -> Written:
        return Written(
            ResponseCode.FLUSH_DISK_TIMEOUT,
            Durability.MEMORY,
            remark=f"stored, but not known to be on disk after {self.timeout_ms} ms; the disk is slow or stuck",
        )

    async def drain(self, timeout_ms: int) -> None:
        """Wait until everything that waits was answered, or the time is over."""
        if not self._flow.waiting:
            return
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        """Answer what still waits: the store goes away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.is_over:
                self.settle(waiting, self._late())
