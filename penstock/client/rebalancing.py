"""Carries out what `Rebalance` decides, and tells it what came of it.

    subscribe / notice of a change / every 20 s  ->  routes, heartbeat, members  ->  TopicSeen
    TopicSeen  ->  Release, Lock, Start  ->  tasks  ->  Released, LockAnswered, Started, StartFailed

Rules: a heartbeat with the subscriptions has reached the brokers before members are asked for. One step of a
queue at a time: a new one ends the one before it. Members that are missing right after a broker has come back
are waited for: they may not have reached it yet. A topic that has no route yet is asked for again soon, less
often after a while. A mistake in one round is logged and the next round comes. Belongs to the consumer's event
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from penstock.client.broker_calls import BrokerCalls
from penstock.client.conflicts import QUIET_MS, Conflicts
from penstock.client.holdings import Holdings, Locker
from penstock.client.instance import ClientInstance, ConsumerMember
from penstock.client.options import ConsumerOptions
from penstock.client.rebalance import (
    Announce,
    Assigned,
    Changed,
    Event,
    Instruction,
    Lock,
    LockAnswered,
    QueueState,
    Rebalance,
    Release,
    Released,
    Start,
    Started,
    StartFailed,
    Stopped,
    Stuck,
    TopicLeft,
    TopicSeen,
    TryAgain,
)
from penstock.client.received import RETRY_PREFIX
from penstock.client.routes import TopicRoute
from penstock.client.start_offsets import StartOffsets
from penstock.client.subscription import Subscriptions
from penstock.errors import PenstockError, RouteNotFoundError
from penstock.protocol.bodies import MessageQueue

logger = logging.getLogger(__name__)
OnQueues = Callable[[str, Sequence[MessageQueue]], object]
# How soon a topic without a route is asked for again: first, and at most.
MISSING_FIRST_MS, MISSING_MAX_MS = 500, 5_000
MEMBERS_RETRY_MS = 1_000
# How long the others are waited for after a broker has come back.
RETURN_MS = 3_000


class Rebalancing:
    """The rebalancing of one consumer; `member` is what joins the client instance with the first subscription."""

    def __init__(
        self,
        instance: ClientInstance,
        options: ConsumerOptions,
        core: Rebalance,
        subscriptions: Subscriptions,
        calls: BrokerCalls,
        starts: StartOffsets,
        holdings: Holdings,
        member: ConsumerMember,
        on_queues: OnQueues | None = None,
        locker: Locker | None = None,
    ) -> None:
        self._instance = instance
        self._options = options
        self._core = core
        self._subscriptions = subscriptions
        self._calls = calls
        self._starts = starts
        self._holdings = holdings
        self._member = member
        self._on_queues = on_queues
        self._locker = locker
        # How often a round is held in which nothing changes.
        self._interval_ms = options.rebalance_interval_ms
        self._assigned: tuple[MessageQueue, ...] | None = None
        self._is_news = False
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._missing_ms = MISSING_FIRST_MS
        # Rounds that have begun, and the last one that is over.
        self._begun = self._over = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._loop: asyncio.Task[None] | None = None
        self._steps: dict[MessageQueue, asyncio.Task[None]] = {}
        # Members of the group when the queues of a topic were last divided.
        self._members: dict[str, frozenset[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.joined = False
        self._conflicts = Conflicts(instance.client_id, member.heartbeat_data)
        # When the group is compared; what it was when that was last arranged.
        self._comparison: asyncio.TimerHandle | None = None
        self._compared: object = None
        # Why a coordinator does not let this consumer into its group; empty: it does, or nobody asked.
        self.refusal = ""

    # -- from outside ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._instance.routes.on_change.append(self._route_changed)
        self._loop = asyncio.ensure_future(self._run())

    async def stop(self) -> list[MessageQueue]:
        """End everything that is under way; the queues that were held, locked or about to be."""
        self._stopped = True
        if self._route_changed in self._instance.routes.on_change:
            self._instance.routes.on_change.remove(self._route_changed)
        held = list(self._core.states)
        self._core.handle(Stopped())
        for timer in (self._timer, self._comparison):
            if timer is not None:
                timer.cancel()
        tasks = [*self._tasks, *([self._loop] if self._loop is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, waiter in self._waiters:
            waiter.cancel()
        return held

    def soon(self, *, news: bool = False) -> None:
        """Divide the queues anew, after telling the brokers if there is news of ours."""
        self._is_news = self._is_news or news
        self._missing_ms = MISSING_FIRST_MS
        self._wake.set()

    def left(self, topic: str) -> None:
        """A topic is not wanted any more."""
        self.event(TopicLeft(topic))
        self.soon(news=True)

    @property
    def assigned(self) -> tuple[MessageQueue, ...] | None:
        """The queues that the user named, or None if the group divides them."""
        return self._assigned

    @property
    def held(self) -> frozenset[MessageQueue]:
        """The queues that were taken over and are not to be given up."""
        return frozenset(q for q, state in self._core.states.items() if state is QueueState.HELD)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Hold exactly these queues."""
        self._assigned = tuple(queues)
        self.event(Assigned(self._assigned))

    def lost(self, queue: MessageQueue) -> None:
        """The lock of a queue is somebody else's: begin anew, if it can be had again."""
        self.event(Stuck(queue))

    async def leave(self) -> None:
        """Everything is given back: say goodbye to whoever divides the queues. The brokers hear it otherwise."""

    def event(self, event: Event) -> None:
        """Something happened to a queue."""
        if not self._stopped:
            self._apply(self._core.handle(event))
            self._look_settled()

    async def settled(self) -> None:
        """Until a round that begins from now on is over and exactly the wanted queues are held."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._begun + 1, waiter))
        self.soon()
        await waiter

    # -- rounds ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            self._begun += 1
            try:
                if await self._round():
                    self._over = self._begun
            except Exception:
                logger.exception("rebalancing group %s failed and is tried again", self._options.group)
                self._try_again(MEMBERS_RETRY_MS)
            self._look_settled()

    async def _round(self) -> bool:
        """Whether every topic that there is was divided; one that could not be is tried again soon."""
        if self._assigned is not None:
            self.event(Assigned(self._assigned))
            return True
        topics = self._subscriptions.topics
        routes = dict(zip(topics, await asyncio.gather(*map(self._route, topics)), strict=True))
        found = [(topic, route) for topic, route in routes.items() if isinstance(route, TopicRoute)]
        if topics and (self._is_news or not self.joined or self._has_strangers(found)):
            await self._announce()
        divided = await asyncio.gather(*(self._divide(topic, route) for topic, route in found))
        self._compare_soon(found)
        if len(found) < len(topics):
            self._try_again(self._missing_ms)
            self._missing_ms = min(MISSING_MAX_MS, self._missing_ms * 2)
        return all(divided) and None not in routes.values()

    def _compare_soon(self, found: list[tuple[str, TopicRoute]]) -> None:
        """Compare this member with the others, when it or they have changed and are quiet again. Where no members are
        known by name they are compared after every round."""
        routes = [route for topic, route in found if not topic.startswith(RETRY_PREFIX)]
        is_told = not self._options.is_broadcasting and not self._options.is_pop
        state = (self._member.heartbeat_data().terms, dict(self._members))
        is_same = state == self._compared and (is_told or self._comparison is not None)
        if self._stopped or not routes or is_same:
            return
        self._compared = state
        if self._comparison is not None:
            self._comparison.cancel()
        loop = asyncio.get_running_loop()
        self._comparison = loop.call_later(QUIET_MS / 1000, lambda: self._spawn(self._compare(routes[0])))

    async def _compare(self, route: TopicRoute) -> None:
        self._comparison = None
        found = await self._calls.connections(route)
        if found is not None:
            self._conflicts.look(found)

    def _has_strangers(self, found: list[tuple[str, TopicRoute]]) -> bool:
        """Whether a broker of our topics has not heard of us yet."""
        known = self._instance.broker_versions
        masters = {broker.master for _, route in found for broker in route.brokers.values()}
        return any(master is not None and master not in known for master in masters)

    async def _announce(self) -> None:
        """Tell the brokers who is here and what is wanted."""
        self._is_news = False
        if not self.joined:
            self._instance.add_consumer(self._member)
            self.joined = True
        await self._instance.heartbeat()

    async def _route(self, topic: str) -> TopicRoute | RouteNotFoundError | None:
        """The route of a topic, or that it has none; None when nobody could say."""
        route = self._instance.routes.cache.get(topic)
        if route is not None and not route.is_provisional:
            return route
        try:
            return await self._instance.routes.refresh(topic)
        except RouteNotFoundError as error:
            self._starts.see(topic, ())
            return error
        except PenstockError as error:
            logger.info("route of topic %s: %s", topic, error)
        return None

    async def _divide(self, topic: str, route: TopicRoute) -> bool:
        """Whether the queues are divided as of now: not while nobody could say that we are a member."""
        members = None
        if not self._options.is_broadcasting:
            members = await self._calls.members(route)
            if members is None:
                self._try_again(MEMBERS_RETRY_MS)
            elif self._may_return(topic, members):
                members = None
        self._starts.see(topic, route.subscribe_queues)
        if self._subscriptions.get(topic) is not None:
            self.event(TopicSeen(topic, route.subscribe_queues, members))
        return self._options.is_broadcasting or self._instance.client_id in (members or ())

    def _may_return(self, topic: str, members: Iterable[str]) -> bool:
        """Whether members are missing of which a broker that was just started may not have heard yet. Taking over
        their queues would show the group again what they have done since their offsets were last saved."""
        found = frozenset((*members, self._instance.client_id))
        waited_ms = self._instance.runtime.clock.monotonic_ms() - self._instance.unsettled_ms
        if waited_ms < RETURN_MS and not self._members.get(topic, frozenset()) <= found:
            self._try_again(RETURN_MS - waited_ms)
            return True
        self._members[topic] = found
        return False

    def _route_changed(self, route: TopicRoute) -> None:
        if self._subscriptions.get(route.topic) is not None:
            self._wake.set()

    def _try_again(self, after_ms: int) -> None:
        """Have another round soon; the earliest wish counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + after_ms / 1000
        if (
            self._timer is not None
            and not self._timer.cancelled()
            and loop.time() < self._timer.when() <= due
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._wake.set)

    def _look_settled(self) -> None:
        if not self._core.is_settled:
            return
        for waiting in [one for one in self._waiters if one[0] <= self._over]:
            self._waiters.remove(waiting)
            if not waiting[1].done():
                waiting[1].set_result(None)

    # -- instructions ----------------------------------------------------------------------------------------

    def _apply(self, instructions: list[Instruction]) -> None:
        for step in instructions:
            match step:
                case Release(queue):
                    self._step(queue, self._release(queue))
                case Lock(queues):
                    self._spawn(self._lock(queues))
                case Start(queue):
                    self._step(queue, self._begin(queue))
                case Changed(topic, queues):
                    self._changed(topic, queues)
                case Announce():
                    self._spawn(self._announce())
                case TryAgain(after_ms):
                    self._try_again(after_ms)

    async def _release(self, queue: MessageQueue) -> None:
        try:
            await self._holdings.release(queue)
        except Exception:
            logger.exception("giving up %s", queue)
            self._holdings.forget(queue)
        self.event(Released(queue))

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> None:
        assert self._locker is not None
        granted, _ = await self._locker.lock(queues)
        self.event(LockAnswered(queues, frozenset(granted)))

    async def _begin(self, queue: MessageQueue) -> None:
        try:
            await self._holdings.start(queue)
        except Exception as error:
            known = isinstance(error, PenstockError)
            logger.log(logging.INFO if known else logging.ERROR, "taking over %s: %s", queue, error)
            self.event(StartFailed(queue))
        else:
            self.event(Started(queue))

    def _changed(self, topic: str, queues: tuple[MessageQueue, ...]) -> None:
        logger.info("group %s: %d queues of %s are this consumer's", self._options.group, len(queues), topic)
        if self._on_queues is not None:
            try:
                self._on_queues(topic, queues)
            except Exception:
                logger.exception("the listener for queue changes failed")

    # -- tasks -----------------------------------------------------------------------------------------------

    def _step(self, queue: MessageQueue, work: Coroutine[Any, Any, None]) -> None:
        before = self._steps.pop(queue, None)
        if before is not None and before is not asyncio.current_task():
            before.cancel()
        task = self._steps[queue] = self._spawn(work)
        task.add_done_callback(lambda done: self._step_ended(queue, done))

    def _step_ended(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._steps.get(queue) is task:
            del self._steps[queue]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("rebalancing group %s", self._options.group, exc_info=task.exception())
