"""The queues that a consumer holds: taken over, pulled, set to another offset, given up.

Rules. A queue is given up in this order: nothing more is given out or pulled; in order, what is in hand is
finished, and so it is for a leased queue, within `release_timeout_ms`; its offset is stored; its lock is given back;
it is forgotten. A queue whose lock went to somebody else is dropped without storing anything: the offset is theirs
now. A queue that is set to another offset begins anew as if it had just been taken over; messages of before that are
still in hand do not count any more. Of a leased queue nothing is given out once the lease is over by our own clock.

Belongs to the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from penstock.client.handout import Handout
from penstock.client.offset_store import OffsetStore
from penstock.client.options import ConsumerOptions
from penstock.client.pop_loop import PopLoop, PopQueue
from penstock.client.process_queue import ProcessQueue, QueueLimits
from penstock.client.pull_loop import PullLoop
from penstock.client.push_loop import PushLoop
from penstock.client.queue_loop import QueueContext
from penstock.client.start_offsets import StartOffsets
from penstock.protocol.bodies import MessageQueue
from penstock.runtime import Clock

logger = logging.getLogger(__name__)
POP_MESSAGES_MAX = 96
Outcome = tuple[set[MessageQueue], set[MessageQueue]]


class Locker(Protocol):
    """Who makes queues ours: locks for order (`BrokerCalls`), or leases (`Claims`)."""

    async def lock(self, queues: Iterable[MessageQueue]) -> Outcome:
        """Ask for queues: what was granted and what refused; what nobody answered for is in neither."""

    async def renew(self, queues: Iterable[MessageQueue]) -> Outcome:
        """Ask to go on holding queues."""

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues back."""

    def asked_ms(self, queue: MessageQueue) -> int | None:
        """When the queue was asked for, if that is known."""

    @property
    def expiry_ms(self) -> int:
        """How long a grant counts that is not renewed."""


class Holdings:
    """All queues of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        locker: Locker | None,
        offsets: OffsetStore,
        starts: StartOffsets,
        handout: Handout,
        clock: Clock,
    ) -> None:
        self._options = options
        self._locker = locker
        self._offsets = offsets
        self._starts = starts
        self._handout = handout
        self._clock = clock
        # What is popped is invisible to others: no more than a few requests' worth waits here.
        most = POP_MESSAGES_MAX if options.is_pop else options.queue_messages_max
        self._limits = QueueLimits(
            min(most, options.queue_messages_max), options.queue_bytes_max, options.queue_span_max
        )
        self._owners: dict[MessageQueue, ProcessQueue] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._paused: set[MessageQueue] = set()
        # Where queues are to begin that are not held yet.
        self._seeks: dict[MessageQueue, int] = {}
        self.context: QueueContext

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, queue: MessageQueue) -> ProcessQueue | None:
        return self._owners.get(queue)

    @property
    def owners(self) -> list[ProcessQueue]:
        return list(self._owners.values())

    # -- taking over -----------------------------------------------------------------------------------------

    async def start(self, queue: MessageQueue) -> None:
        """Find the offset and begin to pull. Raises PenstockError if the offset cannot be found."""
        offset = self._seeks.pop(queue, None)
        if self._options.is_pop:
            offset = 0  # the broker knows where the group is
        elif offset is None:
            offset = await self._starts.find(queue)
            offset = self._seeks.pop(queue, offset)
            self._offsets.advance(queue, offset)
        else:
            self._offsets.reset(queue, offset)
        self._begin(queue, offset)

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        is_pop = self._options.is_pop
        kind = PopQueue if is_pop else ProcessQueue
        owner = kind(queue, offset, self._limits, orderly=self._options.orderly)
        owner.holder = self
        owner.pulled_ms = owner.locked_ms = self._clock.monotonic_ms()
        if self._locker is not None:
            owner.locked_ms = self._locker.asked_ms(queue) or owner.locked_ms
            owner.locked_wall_ms = self._clock.now_ms()
        if self._options.is_coordinated:
            owner.is_lease_over = lambda: self._is_over(owner)
        if queue in self._paused:
            owner.pause()
        self._owners[queue] = owner
        loop: PopLoop | PullLoop
        if is_pop:
            loop = PopLoop(self.context, owner)
        else:
            loop = (PushLoop if self._options.is_push else PullLoop)(self.context, owner)
        task = asyncio.ensure_future(loop.run())
        task.add_done_callback(_look_at)
        self._pulls[queue] = task

    # -- giving up -------------------------------------------------------------------------------------------

    def retire(self, queue: MessageQueue) -> None:
        """Give nothing of the queue out any more and pull nothing more."""
        owner = self._owners.get(queue)
        if owner is not None:
            self._handout.retire(owner)
        self._stop_pulling(queue)

    async def release(self, queue: MessageQueue) -> None:
        """Give a queue up; in order, after what is in hand."""
        self.retire(queue)
        owner = self._owners.get(queue)
        if owner is not None and not owner.is_lock_lost:
            await self._finish(owner)
            await self._offsets.persist([queue], surely=True)
        self.forget(queue)
        if self._locker is not None and (owner is None or not owner.is_lock_lost):
            await self._locker.unlock([queue])

    async def _finish(self, owner: ProcessQueue) -> None:
        """Until what is in hand is done with, where others must not have it meanwhile."""
        if self._options.orderly:
            await idle(owner)
        elif self._options.is_coordinated:
            try:
                async with asyncio.timeout(self._options.release_timeout_ms / 1000):
                    await idle(owner)
            except TimeoutError:
                logger.warning(
                    "%d messages of %s are in hand and will come again", owner.in_hand, owner.queue
                )

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue at once, with all that is in hand."""
        self._stop_pulling(queue)
        owner = self._owners.pop(queue, None)
        if owner is not None:
            self._handout.drop(owner)
        self._offsets.forget(queue)

    def _stop_pulling(self, queue: MessageQueue) -> None:
        task = self._pulls.pop(queue, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # -- elsewhere -------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset."""
        owner = self._owners.get(queue)
        if owner is None:
            self._seeks[queue] = offset
            return
        self.retire(queue)
        if self._options.orderly:
            await idle(owner)
        if self._owners.get(queue) is not owner:
            return  # given up meanwhile, or set to yet another offset
        self._handout.drop(owner)
        self._offsets.reset(queue, offset)
        locked = (owner.is_locked, owner.locked_ms, owner.locked_wall_ms)
        self._begin(queue, offset)
        new = self._owners[queue]
        new.is_locked, new.locked_ms, new.locked_wall_ms = locked

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pull nor give out these queues until `resume`, also if they are taken over later."""
        for queue in queues:
            self._paused.add(queue)
            owner = self._owners.get(queue)
            if owner is not None:
                owner.pause()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with these queues, or with all."""
        for queue in [*self._owners, *self._paused] if queues is None else queues:
            self._paused.discard(queue)
            owner = self._owners.get(queue)
            if owner is not None:
                owner.resume()
                self._handout.offer(owner)

    # -- looking after ---------------------------------------------------------------------------------------

    def stuck(self) -> list[MessageQueue]:
        """Queues from which no pull returned for too long."""
        now = self._clock.monotonic_ms()
        return [
            owner.queue
            for owner in self._owners.values()
            if not owner.is_retired
            and not owner.is_full
            and not owner.is_paused
            and now - owner.pulled_ms > self._options.stuck_ms
        ]

    async def renew_locks(self) -> tuple[list[MessageQueue], bool]:
        """Renew the locks of all queues: those that somebody else has now, and whether every broker answered."""
        assert self._locker is not None
        asked, now = self.owners, self._clock.monotonic_ms()
        granted, refused = await self._locker.renew([owner.queue for owner in asked])
        lost = []
        for owner in asked:
            if owner.is_dropped:
                continue
            if owner.queue in granted:
                # Counted from the asking: that is when the broker cannot have begun to count yet.
                owner.locked_ms, owner.locked_wall_ms = now, self._clock.now_ms()
                if not owner.is_locked or owner.is_lease_over is not None:
                    owner.is_locked = True
                    self._handout.offer(owner)
            elif owner.queue in refused:
                logger.warning("the lock of %s is somebody else's", owner.queue)
                owner.is_locked, owner.is_lock_lost = False, True
                lost.append(owner.queue)
            elif self._is_over(owner) and owner.is_locked:
                logger.warning("the lock of %s could not be renewed; its messages wait", owner.queue)
                owner.is_locked = False
        return lost, len(granted) + len(refused) == len(asked)

    def _is_over(self, owner: ProcessQueue) -> bool:
        """Whether the lock or lease counts no more, by our own clock."""
        assert self._locker is not None
        return self._clock.monotonic_ms() - owner.locked_ms > self._locker.expiry_ms


async def idle(owner: ProcessQueue) -> None:
    """Until nothing of the queue is in hand."""
    done = asyncio.Event()
    owner.when_idle(done.set)
    try:
        await done.wait()
    finally:
        owner.when_idle(None)


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a pull loop broke down", exc_info=task.exception())
