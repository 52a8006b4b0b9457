"""From a checked message to the store, and back with what was reached.

Every append ends with exactly one call of `done`: at once where memory is enough, else when the disk and the replicas
that are waited for have the message, when that failed, or when it took too long. Disk and replicas work at the
same time; the answer is the worse of the two. Messages that wait share the group commit of `LoopFlusher`, the
replicas' acknowledgements and one timer: no task, no future and no timer per message. What waits is counted, and more
than may wait is refused before it is stored (`flow_control.py`). Whether replicas allow storing and acknowledging is
asked of `replica_waits.py`.

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
from penstock.broker.replica_waits import ReplicaWait
from penstock.broker.statistics import Statistics
from penstock.errors import MessageTooLargeError, PenstockError, RequestError, StoreError
from penstock.message import HostAddress, Message
from penstock.protocol.codes import ResponseCode
from penstock.replication import Outcome
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
ON_REPLICAS = Written(ResponseCode.SUCCESS, Durability.REPLICATED)


class _Waiting:
    """Messages that were appended together and wait for their flush, for replicas or for both."""

    __slots__ = (
        "awaits_flush",
        "awaits_replicas",
        "count",
        "deadline_ms",
        "done",
        "is_over",
        "outcome",
        "owner",
        "parts",
        "since_ms",
        "size",
    )

    def __init__(self, owner: MessageWriter, parts: Parts, since_ms: int, done: Done) -> None:
        self.owner = owner
        self.parts = parts
        self.count = sum(count for _, count, _ in parts)
        self.size = sum(size for _, _, size in parts)
        self.since_ms = since_ms
        self.deadline_ms = since_ms + owner.timeout_ms
        self.done = done
        self.awaits_flush = False
        self.awaits_replicas = False
        self.outcome: Outcome | None = None
        self.is_over = False

    def flushed(self, error: StoreError | None) -> None:
        if error is None:
            self.owner.has_flushed()  # may be what the replicas' answer waits for
        self.awaits_flush = False
        if self.is_over:
            return
        if error is not None:
            self.owner.settle(self, self.owner.failed(error))
        elif not self.awaits_replicas:
            self.owner.settle(self, self.owner.reached(self, ON_DISK))

    def replicated(self, outcome: Outcome) -> None:
        self.awaits_replicas = False
        self.outcome = outcome
        if not self.is_over and not self.awaits_flush:
            self.owner.settle(self, self.owner.reached(self, self.owner.stored_here))


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
        # Whoever knows about replicas; None where there can be none.
        self.replicas: ReplicaWait | None = None
        self._is_sync = store.options.flush_mode is FlushMode.SYNC
        # What a message has reached that is here, without replicas.
        self.stored_here = ON_DISK if self._is_sync else IN_MEMORY
        self._flushed_to = -1
        self.timeout_ms = store.options.sync_flush_timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None

    @property
    def default_durability(self) -> Durability:
        """What a message reaches whose sender demands nothing, before it is answered."""
        if self.replicas is not None and self.replicas.waits:
            return Durability.REPLICATED
        return self.stored_here.durability

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
        started_ms, stored = self._append(requests, demand, topic)
        size = sum(request.size for request in stored)
        self._wait(((topic, len(stored), size),), _end(stored), demand, started_ms, done)

    def append_together(self, requests: Sequence[AppendRequest], done: Done) -> None:
        """The same for messages of several topics, in this order. If this raises, those that were stored all the same
        have a `size` above 0."""
        started_ms, stored = self._append(requests, None)
        parts = [(request.queue.topic.decode(), 1, request.size) for request in stored]
        self._wait(parts, _end(stored), None, started_ms, done)

    def _append(
        self, requests: Sequence[AppendRequest], demand: Durability | None, topic: str | None = None
    ) -> tuple[int, list[AppendRequest]]:
        """When it began, and what is in the log."""
        self._flow.admit(sum(len(request.body) for request in requests), topic)
        self._ask_replicas(demand, len(requests))
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
        return started_ms, stored

    def append_run(
        self, build: Callable[[RecordBuilder], int], parts: Callable[[], Parts], done: Done
    ) -> None:
        """Store records that the caller puts into the store's builder; `parts` then says what they were.

        Raises if the store took nothing. `done` is not called where there was nothing to take.
        """
        self._ask_replicas(None, 0)
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
    ) -> BatchResult:
        """Store a client's encoded batch, all of it or nothing; where it is. `done` may have been called then."""
        self._flow.admit(len(batch), topic)
        self._ask_replicas(demand, 1)
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
        return result

    def wait_again(self, end: int, demand: Durability | None, done: Done) -> None:
        """`done` is called as for a message that ends at this log position, which was stored before."""
        self._flow.admit(0)
        self._wait((), end, demand, self._clock.monotonic_ms(), done, held=1)

    def append_copies(self, requests: Sequence[AppendRequest]) -> None:
        """Store messages of any topics with one write; nobody waits for them. If this raises, those that were
        stored all the same have a `size` that is not 0."""
        if not requests:
            return
        self._flow.admit(sum(len(request.body) for request in requests))
        self._ask_replicas(Durability.MEMORY, 0)
        try:
            self._store.append_group(requests, durability=Durability.MEMORY)
        except StoreError as error:
            raise self._flow.explain(error) from error
        finally:
            for request in requests:
                if request.size > 0:
                    self._statistics.put(request.queue.topic.decode(), 1, request.size)
        if self.replicas is not None:
            self.replicas.appended()
        if self._is_sync:
            self._flusher.when_flushed(self._store.log.max_offset, self._flushed_unasked)

    def _ask_replicas(self, demand: Durability | None, count: int) -> None:
        """Refuse what replicas do not allow to be stored."""
        if self.replicas is not None:
            error = self.replicas.refusal(demand)
        elif demand is Durability.REPLICATED:
            error = RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "durability 'replicated' cannot be had from this broker: it is no master with a replication port",
                "ask for memory or flushed",
            )
        else:
            return
        if error is not None:
            self._statistics.put_failures += count
            raise error

    # -- waiting ---------------------------------------------------------------------------------------------

    def _wait(
        self,
        parts: Parts,
        end: int,
        demand: Durability | None,
        started_ms: int,
        done: Done,
        held: int = 0,
    ) -> None:
        """`held`: how many wait that are in no part."""
        level = self.default_durability if demand is None else demand
        replicas = self.replicas
        if replicas is not None:
            replicas.appended()
        if level is Durability.MEMORY:
            if self._is_sync:  # nobody waits, but nobody sees the message before it is flushed either
                self._flusher.when_flushed(end, self._flushed_unasked)
            lapsed = None if replicas is None else replicas.lapsed()
            if lapsed is None:
                for topic, count, size in parts:
                    self._statistics.put(topic, count, size)
                done(IN_MEMORY)
            else:
                self._statistics.put_failures += sum(count for _, count, _ in parts)
                done(_unknown(lapsed))
            return
        waiting = _Waiting(self, parts, started_ms, done)
        waiting.count += held
        waiting.awaits_flush = self._is_sync or level is Durability.FLUSHED
        waiting.awaits_replicas = level is Durability.REPLICATED
        self._flow.began(waiting.count, waiting.size, waiting.parts)
        self._waiting.append(waiting)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TIMER_MS / 1000, self._look_at_time)
        if waiting.awaits_flush:
            self._flusher.when_flushed(end, waiting.flushed)
        if replicas is not None and waiting.awaits_replicas and not waiting.is_over:
            replicas.when_replicated(end, demand, waiting.replicated)

    def _flushed_unasked(self, error: StoreError | None) -> None:
        """A flush that nobody waits for is over."""
        self.has_flushed()

    def has_flushed(self) -> None:
        """More may be on disk: replicas are told once, however many have waited for it."""
        flushed = self._store.flusher.flushed_offset
        if self.replicas is not None and flushed != self._flushed_to:
            self._flushed_to = flushed
            self.replicas.appended()

    def reached(self, waiting: _Waiting, here: Written) -> Written:
        """What became of messages that are here, as `here` says, and that wait for nothing more."""
        if waiting.outcome is Outcome.REPLICATED:
            return ON_REPLICAS  # whoever is master now has it
        lapsed = None if self.replicas is None else self.replicas.lapsed()
        if lapsed is not None:
            return _unknown(lapsed)
        if waiting.outcome is None:
            return here
        if waiting.outcome is Outcome.TIMED_OUT:
            return Written(
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                here.durability,
                remark="stored, but not known to be on enough replicas in time; they are slow, stuck or gone",
            )
        return Written(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            here.durability,
            UnknownOutcomeError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "stored, but this broker stopped being master before its replicas had it",
                "whether it stays is not known: ask for the route again; send again what may be there twice",
            ),
        )

    def settle(self, waiting: _Waiting, written: Written) -> None:
        """Messages wait no more: count them and tell."""
        waiting.is_over = True
        took_ms = self._clock.monotonic_ms() - waiting.since_ms
        self._flow.ended(waiting.count, waiting.size, took_ms, waiting.parts)
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
            # Whoever waits for replicas only is told by them that its time is over.
            if waiting.awaits_flush and not waiting.is_over:
                self.settle(waiting, self._late(waiting))
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(_TIMER_MS / 1000, self._look_at_time)

    def _late(self, waiting: _Waiting) -> Written:
        if waiting.outcome is not None and waiting.outcome is not Outcome.REPLICATED:
            return self.reached(waiting, IN_MEMORY)
        return Written(
            ResponseCode.FLUSH_DISK_TIMEOUT,
            Durability.MEMORY,
            remark=f"stored, but not known to be on disk after {self.timeout_ms} ms; the disk is slow or stuck",
        )

    async def replicated(self, end: int) -> None:
        """Wait until replicas have the log up to `end`, if messages wait for them here. Raises RequestError if nobody
        knows in the end, or if nothing may be acknowledged."""
        replicas = self.replicas
        if replicas is None:
            return
        outcome = Outcome.REPLICATED
        if replicas.waits:
            reached: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            replicas.appended()

            def settle(found: Outcome) -> None:
                if not reached.done():
                    reached.set_result(found)

            replicas.when_replicated(end, None, settle)
            outcome = await reached
        lapsed = replicas.lapsed()
        if lapsed is not None:
            raise UnknownOutcomeError(lapsed.code, lapsed.message, lapsed.hint)
        if outcome is not Outcome.REPLICATED:
            raise UnknownOutcomeError(
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
                "it is stored, but not known to be on enough replicas",
                "the same request again waits for them again",
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
                self.settle(waiting, self._late(waiting))


def _unknown(error: RequestError) -> Written:
    """Stored, and nobody may say so any more."""
    unknown = UnknownOutcomeError(error.code, error.message, error.hint)
    return Written(error.code, Durability.MEMORY, unknown)


def _end(stored: Sequence[AppendRequest]) -> int:
    return stored[-1].physical_offset + stored[-1].size
