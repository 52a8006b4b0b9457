"""Leases of queues at their brokers, for consumers that a coordinator balances (9026, 9027, 9028).

Rules. A lease counts from the moment its request was sent, so it is over here before it is over at the broker. Where
a broker refuses, it says who holds the queue (`refused`). In order, the queue lock of RocketMQ is asked for as well,
after the lease and given back before it: brokers know by it that a group consumes in order. One call per broker, all
at once; queues of a broker that does not answer are neither granted nor refused, and its route is asked for again.

A lease that may be over before a request to renew it arrives is not renewed: the queue counts as somebody else's. A
broker that has just started knows no leases and believes whoever says that it holds one; somebody who slept would be
believed although another took over meanwhile and reads on.

An answer that was on its way while its queue was given back does not make it ours again: the broker may have granted
it to somebody else by then.

Belongs to the consumer's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from penstock.client.broker_calls import BrokerCalls, by_broker
from penstock.client.instance import ClientInstance
from penstock.errors import PenstockError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import LeaseAnswerBody, LeasedElsewhere, LeaseRequestBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import check

logger = logging.getLogger(__name__)
Outcome = tuple[set[MessageQueue], set[MessageQueue]]
TIMEOUT_MS = 2_000
# Until a broker says how long it leases.
FIRST_LEASE_MS = 10_000


def answer_ms(lease_ms: int) -> int:
    """How long a broker may take to answer."""
    return min(TIMEOUT_MS, max(1, lease_ms // 5))


def is_renewable(asked_ms: int | None, lease_ms: int, now_ms: int) -> bool:
    """Whether a request sent now surely reaches the broker while the lease lasts, or not at all."""
    return asked_ms is not None and now_ms + answer_ms(lease_ms) < asked_ms + lease_ms


class Claims:
    """The leases of one consumer."""

    def __init__(self, instance: ClientInstance, group: str, calls: BrokerCalls, *, orderly: bool) -> None:
        self._instance = instance
        self._group = group
        self._calls = calls
        self._orderly = orderly
        self.leases: dict[MessageQueue, int] = {}
        # Which queue was given back in which turn, counted since the beginning.
        self._turn = 0
        self._given_back: dict[MessageQueue, int] = {}
        # The shortest lease that a broker has granted.
        self.lease_ms = FIRST_LEASE_MS
        # Who has the queues that were refused last.
        self.refused: dict[MessageQueue, LeasedElsewhere] = {}

    @property
    def expiry_ms(self) -> int:
        """How long a lease counts: a little less than the broker keeps it."""
        return self.lease_ms * 9 // 10

    @property
    def interval_ms(self) -> int:
        """How often leases are renewed: so that two attempts may fail."""
        return max(1, self.lease_ms // 4)

    def asked_ms(self, queue: MessageQueue) -> int | None:
        """When the lease that counts was asked for."""
        return self.leases.get(queue)

    async def lock(self, queues: Iterable[MessageQueue]) -> Outcome:
        """Claim queues: what is granted, and what others hold."""
        return await self._both(RequestCode.CLAIM_PARTITION, queues)

    async def renew(self, queues: Iterable[MessageQueue]) -> Outcome:
        """Go on holding queues: those that are still ours, and those that are not."""
        wanted, now_ms = set(queues), self._instance.runtime.clock.monotonic_ms()
        over = {queue for queue in wanted if not is_renewable(self.leases.get(queue), self.lease_ms, now_ms)}
        if over:
            logger.warning("%d leases of %s are over, and are not renewed", len(over), self._group)
            await self._give_back(over)
        granted, refused = await self._both(RequestCode.REFRESH_PARTITION, wanted - over)
        return granted, refused | over

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues back. A lease whose broker cannot be reached runs out by itself."""
        wanted = list(queues)
        if self._orderly:
            await self._calls.unlock(wanted)
        await self._give_back(wanted)

    async def _give_back(self, wanted: Iterable[MessageQueue]) -> None:
        self._turn += 1
        for queue in wanted:
            self.leases.pop(queue, None)
            self._given_back[queue] = self._turn

        async def ask(broker_name: str, held: list[MessageQueue]) -> None:
            try:
                check(await self._ask(RequestCode.RELEASE_PARTITION, broker_name, held))
            except PenstockError as error:
                logger.info("giving back leases of %s at %s: %s", self._group, broker_name, error)

        await asyncio.gather(*(ask(name, held) for name, held in by_broker(wanted).items()))

    async def _both(self, code: RequestCode, queues: Iterable[MessageQueue]) -> Outcome:
        granted, refused = await self._lease(code, queues)
        if self._orderly and granted:
            locked, not_locked = await self._calls.lock(granted)
            await self._give_back(not_locked)
            return locked, refused | not_locked
        return granted, refused

    async def _lease(self, code: RequestCode, queues: Iterable[MessageQueue]) -> Outcome:
        granted: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()

        async def ask(broker_name: str, wanted: list[MessageQueue]) -> None:
            asked_ms, turn = self._instance.runtime.clock.monotonic_ms(), self._turn
            try:
                answer = LeaseAnswerBody.decode(check(await self._ask(code, broker_name, wanted)).body)
            except PenstockError as error:
                logger.info("leases of %s at %s: %s", self._group, broker_name, error)
                await self._look_for_master(wanted[0].topic)
                return
            if answer.lease_ms:
                self.lease_ms = min(self.lease_ms, answer.lease_ms)
            for queue in set(answer.granted) & set(wanted):
                if self._given_back.get(queue, 0) > turn:
                    continue
                self._given_back.pop(queue, None)
                granted.add(queue)
                self.leases[queue] = asked_ms
                self.refused.pop(queue, None)
            for one in answer.refused:
                refused.add(one.queue)
                self.leases.pop(one.queue, None)
                self.refused[one.queue] = one

        await asyncio.gather(*(ask(name, wanted) for name, wanted in by_broker(queues).items()))
        return granted, refused

    async def _look_for_master(self, topic: str) -> None:
        """Another broker may be master by now, and lets a holder go on only for a while: the next attempt should find
        it."""
        try:
            await self._instance.routes.refresh(topic)
        except PenstockError as error:
            logger.info("route of topic %s: %s", topic, error)

    async def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> Command:
        body = LeaseRequestBody(self._instance.client_id, self._group, tuple(queues))
        command = Command(code, body=body.encode())
        return await self._instance.call_broker(broker_name, command, answer_ms(self.lease_ms))
