"""A consumer without a face: it joins its group, holds its share of the queues, stores offsets, and leaves.

Rules: closing stops pulling, waits for what is in hand as long as it is allowed to, stores the offsets, gives
locks back and tells the brokers that the consumer leaves, in this order, so that others go on exactly where this
one stopped. Queues come from subscriptions, divided among the group, or are assigned by the user; not both.

Belongs to one event loop. The faces in front of it are `AsyncConsumer` and `Consumer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.client.allocation import find_strategy
from penstock.client.broker_calls import BrokerCalls
from penstock.client.claims import Claims
from penstock.client.consume_concurrently import ConcurrentConsumption
from penstock.client.consume_meters import ConsumeMeters
from penstock.client.consume_orderly import OrderlyConsumption
from penstock.client.consume_popped import PopConsumption
from penstock.client.consume_popped_orderly import OrderlyPopConsumption
from penstock.client.consumption import Consumption
from penstock.client.coordinated import Coordinated
from penstock.client.handout import Handout
from penstock.client.holdings import Holdings, idle
from penstock.client.instance import ClientInstance
from penstock.client.offset_store import BrokerOffsets, FileOffsets, OffsetBackend, OffsetStore
from penstock.client.options import DEFAULT_GROUP, ConsumerOptions, require_range
from penstock.client.pop_messages import PopCalls
from penstock.client.pop_sources import PopSources
from penstock.client.process_queue import ProcessQueue
from penstock.client.queue_loop import QueueContext
from penstock.client.queue_selection import check_offsets, check_queue
from penstock.client.rebalance import Rebalance, Stuck
from penstock.client.rebalancing import OnQueues, Rebalancing
from penstock.client.received import RETRY_PREFIX
from penstock.client.retries import Retries
from penstock.client.start_offsets import StartOffsets
from penstock.client.subscription import Subscriptions
from penstock.errors import ClientError, OptionError, PenstockError, ResponseError, RouteNotFoundError
from penstock.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from penstock.protocol.bodies.balance import SubscriptionMode
from penstock.protocol.command import Command
from penstock.remoting import Connection

logger = logging.getLogger(__name__)
Handle = Callable[[Connection, Command], "Command | Awaitable[Command | None] | None"]
TICK_MS = 1_000


def watch_ms(options: ConsumerOptions) -> float:
    """How often messages in hand are looked at. Popped ones are extended when half of their time is left: four looks
    in all of it leave a quarter for the request, however late the first one comes."""
    return min(TICK_MS, options.consume_timeout_ms / 2, options.invisible_ms / 4)


class ConsumerCore:
    """One consumer of one group."""

    def __init__(
        self,
        instance: ClientInstance,
        options: ConsumerOptions,
        handout: Handout,
        *,
        on_queues: OnQueues | None = None,
    ) -> None:
        self.instance = instance
        self.options = options
        self.handout = handout
        self.clock = instance.runtime.clock
        # What was popped comes back by popping, and in broadcasting nothing does: no retry topic.
        without_retries = options.is_broadcasting or options.is_pop
        self.subscriptions = Subscriptions(options.group, self.clock, broadcasting=without_retries)
        self.meters = ConsumeMeters(self.clock)
        self.started_wall_ms = self.clock.now_ms()
        # Set by the face: answers what brokers ask of this consumer.
        self.on_request: Handle | None = None
        holder = instance.client_id if options.is_coordinated else ""
        self.calls = BrokerCalls(instance, options.group, holder, options.lock_expiry_ms)
        self.locker = self._make_locker()
        self.offsets = OffsetStore(self._backend(), self.clock)
        self._starts = StartOffsets(
            self.calls,
            self.offsets,
            start=options.start_from if isinstance(options.start_from, str) else "time",
            start_ms=options.start_ms,
            broadcasting=options.is_broadcasting,
        )
        self.consumption = self._consumption()
        self.holdings = Holdings(options, self.locker, self.offsets, self._starts, handout, self.clock)
        self.holdings.context = QueueContext(
            instance,
            options,
            self.offsets,
            self.meters,
            self.subscriptions.get,
            self.consumption.accept,
            self._moved,
            holder,
            self.consumption.finish,
        )
        self.rebalance = Rebalance(
            instance.client_id,
            find_strategy(options.strategy),
            orderly=self.locker is not None,
            broadcasting=options.is_broadcasting or options.is_pop,
        )
        kind = Coordinated if options.is_coordinated else PopSources if options.is_pop else Rebalancing
        self.rebalancing = kind(
            instance,
            options,
            self.rebalance,
            self.subscriptions,
            self.calls,
            self._starts,
            self.holdings,
            self,
            on_queues,
            self.locker,
        )
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def _make_locker(self) -> BrokerCalls | Claims | None:
        options = self.options
        if options.is_coordinated:
            return Claims(self.instance, options.group, self.calls, orderly=options.orderly)
        needs_none = options.is_broadcasting or options.is_pop
        return self.calls if options.orderly and not needs_none else None

    @property
    def _lock_interval_ms(self) -> int:
        locker = self.locker
        return locker.interval_ms if isinstance(locker, Claims) else self.options.lock_interval_ms

    def _backend(self) -> OffsetBackend:
        options = self.options
        if not options.is_broadcasting:
            return BrokerOffsets(self.calls)
        given = options.offset_directory
        directory = Path(given) if given else Path.home() / ".penstock" / "offsets"
        name = self.instance.options.instance_name or "DEFAULT"
        return FileOffsets(directory, name, options.group, self.instance.runtime)

    def _consumption(self) -> Consumption:
        options = self.options
        retries = None
        if not options.is_broadcasting:
            retries = Retries(self.instance, self.calls, options.group, options.back_retries_max)
        if options.is_pop and options.orderly and retries is not None:
            ordered = OrderlyPopConsumption(
                *(self.handout, self.offsets, self.meters, retries, PopCalls(self.instance, options.group)),
                invisible_ms=options.invisible_ms,
                retries_max=options.retries_max,
                rest_ms=options.rest_ms,
            )
            ordered.on_lost = lambda owner: self.rebalancing.event(Stuck(owner.queue))
            return ordered
        if options.is_pop and retries is not None:
            return PopConsumption(
                self.handout,
                self.offsets,
                self.meters,
                retries,
                PopCalls(self.instance, options.group),
                invisible_ms=options.invisible_ms,
                retries_max=options.back_retries_max,
            )
        if not options.orderly:
            return ConcurrentConsumption(self.handout, self.offsets, self.meters, retries)
        return OrderlyConsumption(
            self.handout,
            self.offsets,
            self.meters,
            retries,
            retries_max=options.retries_max,
            suspend_ms=options.rest_ms,
        )

    # -- what the client instance asks of a consumer ---------------------------------------------------------

    @property
    def group(self) -> str:
        return self.options.group

    @property
    def topics(self) -> list[str]:
        return self.subscriptions.topics

    def heartbeat_data(self) -> ConsumerData:
        where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        if self.options.start_from == "first":
            where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        elif self.options.start_ms >= 0:
            where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        broadcasting = self.options.is_broadcasting
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_POP if self.options.is_pop else ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING,
            consume_from_where=where,
            subscriptions=tuple(self.subscriptions),
        )

    def handle(self, connection: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
        return self.on_request(connection, command) if self.on_request is not None else None

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; queues come with the first subscription or assignment."""
        if self.group == DEFAULT_GROUP:
            logger.warning(
                "this consumer was given no group: it shares the messages with all other consumers in %s; "
                'name one: Consumer(..., group="...")',
                DEFAULT_GROUP,
            )
        self.handout.now_ms = self.clock.monotonic_ms()
        self.rebalancing.start()
        loops = [self._persist_loop, self._watch_loop]
        if self.locker is not None:
            loops.append(self._lock_loop)
        self._loops = [asyncio.ensure_future(self._forever(loop)) for loop in loops]

    async def close(self, timeout_ms: int | None = None) -> None:
        """Leave the group, gracefully as long as the time allows."""
        if self._closing:
            return
        self._closing = True
        held = await self.rebalancing.stop()
        await self._finish(self.options.close_timeout_ms if timeout_ms is None else timeout_ms)
        await self.offsets.persist(surely=True)
        running = [*self._loops, *self._tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for owner in self.holdings.owners:
            self.holdings.forget(owner.queue)
        if self.locker is not None and held:
            await self.locker.unlock(held)
        if self.options.is_push:
            await self.instance.push.leave()
        await self.rebalancing.leave()
        if self.rebalancing.joined:
            await self.instance.remove_consumer(self.group)
        await self.offsets.close()

    async def abandon(self) -> None:
        """End as a killed process would: nothing is stored, given back or announced. For tests and simulations."""
        self._closing = True
        await self.rebalancing.stop()
        running = [*self._loops, *self._tasks]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for owner in self.holdings.owners:
            self.holdings.forget(owner.queue)
        await self.instance.abandon()

    async def _finish(self, timeout_ms: int) -> None:
        """Give nothing more out, and let what is in hand be finished."""
        owners = self.holdings.owners
        for owner in owners:
            self.holdings.retire(owner.queue)
        self.handout.close()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.consumption.drain()
                await self.consumption.give_up(owners)
                await asyncio.gather(*map(idle, owners))
                await self.consumption.drain()
        except TimeoutError:
            left = sum(owner.in_hand for owner in owners)
            if left:
                logger.warning(
                    "%d messages of group %s are still in hand and will come again", left, self.group
                )
        self.consumption.cancel()

    # -- wishes ----------------------------------------------------------------------------------------------

    async def subscribe(
        self, topic: str, expression: str = "*", sql: str = "", keys: Iterable[str] = ()
    ) -> None:
        """Add a topic, or replace its expression. The queues come soon after."""
        if self.rebalancing.assigned is not None:
            raise ClientError("queues are assigned to this consumer", "use subscribe or assign, not both")
        wanted = self.subscriptions.make(topic, expression, sql, keys)
        if wanted.keys and self.options.subscription_mode == SubscriptionMode.POINT_TO_POINT:
            raise OptionError(
                "a point_to_point subscription has no keys: nobody would read the other messages of the topic",
                "subscribe to all, or use mode publish_subscribe or clustering",
            )
        if not wanted.is_tag_type:
            await self._check_filter(wanted)
        self.subscriptions.put(wanted)
        self.rebalancing.soon(news=True)
        self.spawn(self._warn_if_missing(topic))

    async def _warn_if_missing(self, topic: str) -> None:
        """The topic may come later, or be misspelt: then nothing would ever arrive."""
        try:
            await self.instance.routes.get(topic)
        except RouteNotFoundError as error:
            logger.warning("group %s waits for messages: %s", self.group, error)
        except PenstockError as error:
            logger.debug("route of topic %s: %s", topic, error)

    def require_topics(self) -> None:
        """Refuse to wait for messages where none can come."""
        if self.rebalancing.assigned is None and all(topic.startswith(RETRY_PREFIX) for topic in self.topics):
            raise ClientError(
                f"the consumer of group {self.group} has subscribed to no topic",
                "call subscribe(topic) before it reads messages, or assign(queues)",
            )

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic up."""
        before = self.subscriptions.topics
        self.subscriptions.remove(topic)
        for gone in set(before) - set(self.subscriptions.topics):
            self.rebalancing.left(gone)

    async def _check_filter(self, subscription: SubscriptionData) -> None:
        """Better an error now than a queue that never brings anything."""
        try:
            route = await self.instance.routes.get(subscription.topic)
            await self.calls.check_subscription(route, subscription)
        except RouteNotFoundError:
            logger.info("topic %s has no route yet; what is wanted of it is not checked", subscription.topic)
        except ResponseError as error:
            if not subscription.keys:
                raise
            raise ClientError(
                f"topic {subscription.topic!r} cannot be read by keys: {error.message}",
                "brokers of RocketMQ do not know keys: subscribe to all and look at message.keys, or use tags",
            ) from error

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Pull exactly these queues, whoever else does."""
        self._check_pulls("assign")
        if self.options.is_coordinated:
            raise ClientError(
                "a coordinator assigns the queues of this consumer", 'use subscribe, or balance="client"'
            )
        if len(self.subscriptions):
            raise ClientError("this consumer subscribes to topics", "use subscribe or assign, not both")
        wanted = tuple(dict.fromkeys(queues))
        for topic in {queue.topic for queue in wanted}:
            known = (await self.instance.routes.get(topic)).subscribe_queues
            self._starts.see(topic, known)
            for queue in wanted:
                if queue.topic == topic and queue not in known:
                    raise ClientError(
                        f"there is no queue {queue}", f"topic {topic!r} has {len(known)} queues"
                    )
        self.rebalancing.assign(wanted)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset."""
        self._check_pulls("seek")
        check_queue(queue)
        given: object = offset
        if not isinstance(given, int):
            raise OptionError(f"offset is {given!r}", "use a whole number")
        assigned = self.rebalancing.assigned
        if assigned is not None and queue not in assigned:
            raise ClientError(f"{queue} is not assigned to this consumer", "assign it first")
        if offset < 0:
            raise ClientError(f"offset {offset} is negative", "use seek_to_first or an offset of the queue")
        require_range("offset", offset, 0, 2**63 - 1)
        await self.holdings.seek(queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store how far this consumer has come, or the offsets given. ClientError if that fails."""
        self._check_pulls("commit")
        if offsets is None:
            offsets = {owner.queue: owner.committed for owner in self.holdings.owners}
        check_offsets(offsets)
        for queue, offset in offsets.items():
            self.offsets.set(queue, offset)
        failed = await self.offsets.persist(offsets, surely=True)
        for queue, error in failed.items():
            raise ClientError(
                f"{len(failed)} offsets of group {self.group!r} were not stored; {queue}: {error.message}",
                "commit again; look at the brokers if that fails too",
            ) from error

    def _check_pulls(self, what: str) -> None:
        if self.options.is_pop:
            raise ClientError(
                f"{what} is not there for a consumer that pops: the broker keeps its offsets",
                "acknowledge messages; use delivery='pull' to choose offsets",
            )

    def resume(self, queues: Iterable[MessageQueue] | None) -> None:
        """Go on with these queues, or with all."""
        self.holdings.resume(queues)
        if self.options.is_push:
            self.instance.push.resume(self.group)

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator sets the group back or forth."""
        held = {queue: offset for queue, offset in offsets.items() if self.holdings.get(queue) is not None}
        for queue, offset in held.items():
            logger.warning("%s is set to offset %d by an administrator", queue, offset)
            await self.holdings.seek(queue, offset)
            self.offsets.set(queue, offset)
        await self.offsets.persist(held, surely=True)

    def note_nothing_popped(self) -> None:
        """A pop by hand brought nothing."""
        if isinstance(self.consumption, PopConsumption):
            self.consumption.note_nothing(self.holdings.owners)

    # -- what goes on by itself ------------------------------------------------------------------------------

    def _moved(self, owner: ProcessQueue, offset: int) -> None:
        """The broker says that a queue goes on elsewhere."""
        if not self._closing:
            self.spawn(self._go_on(owner.queue, offset))

    async def _go_on(self, queue: MessageQueue, offset: int) -> None:
        await self.holdings.seek(queue, offset)
        await self.offsets.persist([queue])

    async def _persist_loop(self) -> None:
        while True:
            await asyncio.sleep(self.options.persist_interval_ms / 1000)
            await self.offsets.persist()

    async def _watch_loop(self) -> None:
        """Look for queues that nothing comes of and for messages that somebody has had for too long."""
        limit = self.options.consume_timeout_ms
        while True:
            await asyncio.sleep(watch_ms(self.options) / 1000)
            for queue in self.holdings.stuck():
                logger.warning("no pull from %s has returned for long; it is taken anew", queue)
                self.rebalancing.event(Stuck(queue))
            now = self.handout.now_ms = self.clock.monotonic_ms()
            for owner in self.holdings.owners:
                self.consumption.expire(owner, now, limit)

    async def _lock_loop(self) -> None:
        renewed_ms, heard = self.clock.monotonic_ms(), True
        while True:
            # In short steps: how long a lease is may become known meanwhile.
            await asyncio.sleep(min(TICK_MS, self._lock_interval_ms) / 1000)
            now_ms = self.clock.monotonic_ms()
            if not len(self.holdings) or (heard and now_ms - renewed_ms < self._lock_interval_ms):
                continue
            renewed_ms = now_ms
            lost, heard = await self.holdings.renew_locks()
            for queue in lost:
                self.rebalancing.lost(queue)

    async def _forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A mistake in one round must not end the consumer in silence."""
        while True:
            try:
                await loop()
            except Exception:
                logger.exception("a consumer of group %s stumbled and goes on", self.group)
                await asyncio.sleep(TICK_MS / 1000)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that ends by itself, or when the consumer closes."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a consumer of group %s stumbled", self.group, exc_info=task.exception())
