"""Balancing by the coordinator, on the consumer's side: beats, and the events that come back in their answers.

    every few seconds / news / a nudge / an event done  ->  beat: topics, queues, result  ->  answer: an event, maybe
    event  ->  Assignment  ->  Assigned  ->  Release, Lock (a lease), Start  ->  ...  ->  done, said in the next beat

Rules. Nothing but an event of the coordinator changes what is held, except a lease that somebody else has: that queue
is dropped at once. Without a coordinator the consumer goes on with what it has. An event is said to be done when it
is: offsets stored and leases given back, or queues being pulled. Queues that cannot be taken over within a while are
said not to be, so that one broker that is away holds nobody up. A topic that is missing is asked of the coordinator.

Everything else is `Rebalancing`'s: one step of a queue at a time, heartbeats to the brokers, who waits for what.
Belongs to the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.client.assignment import Assignment
from penstock.client.claims import Claims
from penstock.client.rebalance import Assigned, Event, LockAnswered, QueueState
from penstock.client.rebalancing import Rebalancing
from penstock.client.routes import TopicRoute
from penstock.errors import PenstockError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import Binding, ClientBeatAnswer, ClientBeatBody, SubscriptionMode
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

logger = logging.getLogger(__name__)
# How soon to beat again: when no coordinator answered, and while the group is not divided yet.
AWAY_MS, UNDIVIDED_MS = 1_000, 1_000
# How long a connect may take, five attempts as in TubeMQ.
CONNECT_MS = 5_000


class Coordinated(Rebalancing):
    """The rebalancing of one consumer that a coordinator balances."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if not isinstance(self._locker, Claims) or self._instance.coordinators is None:
            raise AssertionError("broken invariant: balanced by a coordinator without one, or without leases")
        self._claims = self._locker
        self._coordinators = self._instance.coordinators
        self._interval_ms = self._options.coordinator_interval_ms
        self._assignment = Assignment()
        # Grows with every beat, also over a restart under the same client id.
        self._sequence = self._instance.runtime.clock.now_ms()
        self._told_ms = 0
        self._is_away = False
        self._is_known = False

    # -- rounds ----------------------------------------------------------------------------------------------

    async def _round(self) -> bool:
        """One beat; whether the group is divided and this consumer has nothing left to do."""
        topics = self._subscriptions.topics
        self._assignment.keep_topics(topics)
        await self._look_at_topics(topics)
        self._give_up_late()
        self.event(Assigned(self._assignment.wanted))
        if not topics and not self._is_known:
            return True
        answer = await self._beat(tuple(topics))
        if answer is None:
            self._try_again(AWAY_MS)
            return False
        if answer.event is not None and self._assignment.told(answer.event):
            self._told_ms = self._instance.runtime.clock.monotonic_ms()
            logger.info("group %s: %s of %d queues", self._options.group, *_said(answer.event))
            await self._look_at_queues(answer.event.queues)
        # Also what is wanted and was not had yet: its broker may be there again.
        self.event(Assigned(self._assignment.wanted))
        if self._assignment.working is not None:
            self._try_again(UNDIVIDED_MS)
            return False
        if not answer.is_divided:
            self._try_again(UNDIVIDED_MS)
        return answer.is_divided and self._assignment.result is None

    async def _look_at_topics(self, topics: list[str]) -> None:
        """Know the routes, and let the brokers know us, as without a coordinator."""
        routes = dict(zip(topics, await asyncio.gather(*map(self._route, topics)), strict=True))
        found = [(topic, route) for topic, route in routes.items() if isinstance(route, TopicRoute)]
        for topic, route in routes.items():
            if not isinstance(route, TopicRoute) and route is not None and not topic.startswith("%"):
                await self._create(topic)
        if topics and (self._is_news or not self.joined or self._has_strangers(found)):
            await self._announce()
        for topic, route in found:
            self._starts.see(topic, route.subscribe_queues)

    async def _create(self, topic: str) -> None:
        """Nobody has the topic: the coordinator says who is to."""
        try:
            await self._coordinators.create(topic, 1)
        except PenstockError as error:
            logger.info("topic %s is missing and was not created: %s", topic, error)

    async def _look_at_queues(self, queues: tuple[MessageQueue, ...]) -> None:
        """Queues of which no route says where they are yet: the coordinator may know of them first."""
        known = self._instance.routes.cache
        for topic in {queue.topic for queue in queues}:
            route = known.get(topic)
            if route is None or not set(route.subscribe_queues).issuperset(
                queue for queue in queues if queue.topic == topic
            ):
                try:
                    route = await self._instance.routes.refresh(topic)
                except PenstockError as error:
                    logger.info("route of topic %s: %s", topic, error)
                else:
                    self._starts.see(topic, route.subscribe_queues)
                    if self._has_strangers([(topic, route)]):
                        await self._announce()

    async def _beat(self, topics: tuple[str, ...]) -> ClientBeatAnswer | None:
        self._sequence += 1
        result = self._assignment.result
        body = ClientBeatBody(
            self._instance.client_id,
            self._options.group,
            mode=SubscriptionMode(self._options.subscription_mode),
            topics=topics,
            queues=self._assignment.report(self._core.states),
            result=result,
            refused=tuple(self._assignment.refused.values()),
            sequence=self._sequence,
            binding=Binding(self._options.binding),
        )
        try:
            answer = await self._coordinators.call(Command(RequestCode.CLIENT_BEAT, body=body.encode()))
        except PenstockError as error:
            if not self._is_away:
                logger.warning("group %s goes on with what it has: %s", self._options.group, error)
            self._is_away = True
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._refused(answer.remark or "no reason given")
            return None
        self._is_away, self._is_known, self.refusal = False, True, ""
        read = ClientBeatAnswer.decode(answer.body)
        if not self._assignment.is_news(read.term):
            return None
        self._assignment.heard(result)
        return read

    def _refused(self, reason: str) -> None:
        """Say why, once for each reason; it is asked again every second, and may be granted when others leave."""
        if reason != self.refusal:
            logger.warning("the coordinator refuses group %s: %s", self._options.group, reason)
        self.refusal = reason

    def _give_up_late(self) -> None:
        """Of a connect that takes too long, say that the rest was not possible."""
        event, states = self._assignment.working, self._core.states
        waited_ms = self._instance.runtime.clock.monotonic_ms() - self._told_ms
        if event is None or not event.type.is_connect or waited_ms < CONNECT_MS:
            return
        missing = [queue for queue in event.queues if states.get(queue) is not QueueState.HELD]
        logger.warning("%d queues of group %s cannot be taken over now", len(missing), self._options.group)
        self._assignment.dropped(missing)

    # -- queues ----------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        super().event(event)
        states = self._core.states
        held = [queue for queue, state in states.items() if state is QueueState.HELD]
        if not self._stopped and self._assignment.look(states, held):
            self._wake.set()

    async def _lock(self, queues: tuple[MessageQueue, ...]) -> None:
        granted, refused = await self._claims.lock(queues)
        self._drop(refused)
        self.event(LockAnswered(queues, frozenset(granted)))
        if refused:
            self.event(Assigned(self._assignment.wanted))

    def lost(self, queue: MessageQueue) -> None:
        """The lease is somebody else's: the queue is theirs, until the coordinator says otherwise."""
        self._drop({queue})
        self.event(Assigned(self._assignment.wanted))
        self._wake.set()

    def _drop(self, queues: set[MessageQueue]) -> None:
        infos = [self._claims.refused[queue] for queue in queues if queue in self._claims.refused]
        for one in infos:
            logger.info("%s is leased to %s", one.queue, one.holder or "somebody else")
        self._assignment.dropped(queues, infos)

    async def leave(self) -> None:
        """Say goodbye to the coordinator, so that others have the queues at once."""
        if not self._is_known:
            return
        body = ClientBeatBody(self._instance.client_id, self._options.group)
        try:
            await self._coordinators.call(Command(RequestCode.CLIENT_CLOSE, body=body.encode()))
        except PenstockError as error:
            logger.info("leaving group %s: %s", self._options.group, error)


def _said(event: Any) -> tuple[str, int]:
    return ("taking over" if event.type.is_connect else "giving up"), len(event.queues)
