"""Queues that are leased: nothing is handed out once the lease is over by the consumer's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from penstock.client.handout import LoopHandout
from penstock.client.holdings import Holdings, Outcome
from penstock.client.options import ConsumerOptions
from penstock.client.process_queue import ProcessQueue, QueueLimits
from penstock.protocol.bodies import MessageQueue
from penstock.testing import ManualClock
from tests.unit.client.consumer_messages import QUEUE, received

LEASE_MS = 10_000


class Leases:
    """A locker whose broker answers as it is told, and takes its time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.expiry_ms = LEASE_MS
        self.answer: str = "granted"
        self.answer_ms = 0

    async def lock(self, queues: Iterable[MessageQueue]) -> Outcome:
        return await self.renew(queues)

    async def renew(self, queues: Iterable[MessageQueue]) -> Outcome:
        self.clock.advance(self.answer_ms)
        wanted = set(queues)
        return (
            wanted if self.answer == "granted" else set(),
            wanted if self.answer == "refused" else set(),
        )

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        raise AssertionError("nothing is given back here")

    def asked_ms(self, queue: MessageQueue) -> int | None:
        return None


class Bench:
    """One queue with messages, held under a lease."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leases = Leases(self.clock)
        self.handout = LoopHandout(orderly=False)
        options = ConsumerOptions(balance="coordinator")
        unused = None
        self.holdings = Holdings(options, self.leases, unused, unused, self.handout, self.clock)  # type: ignore[arg-type]
        self.owner = ProcessQueue(QUEUE, 0, QueueLimits())
        self.owner.locked_ms = self.clock.monotonic_ms()
        self.owner.is_lease_over = lambda: self.holdings._is_over(self.owner)
        self.holdings._owners[QUEUE] = self.owner
        self.handout.offer(self.owner, self.owner.put([received(n) for n in range(9)], 9))

    def renew(self) -> list[MessageQueue]:
        lost, _ = asyncio.run(self.holdings.renew_locks())
        return lost


@pytest.mark.fault("F2")
@pytest.mark.invariant("I10")
def test_a_consumer_that_slept_hands_out_nothing_before_anybody_told_it() -> None:
    bench = Bench()
    assert bench.handout.take(1) is not None
    bench.clock.advance(LEASE_MS + 1)
    # No timer ran, no answer came: the clock is enough.
    assert bench.handout.take(1) is None
    assert bench.owner.is_locked
    # The queue was nobody else's meanwhile: it goes on, in line again.
    assert bench.renew() == []
    assert bench.handout.take(1) is not None


def test_a_lease_counts_from_the_asking() -> None:
    bench = Bench()
    bench.leases.answer_ms = 4_000
    bench.renew()
    bench.clock.advance(LEASE_MS - 4_000)
    assert bench.handout.take(1) is not None
    bench.clock.advance(1)
    assert bench.handout.take(1) is None


def test_a_broker_that_does_not_answer_stops_nothing_before_the_end() -> None:
    bench = Bench()
    bench.leases.answer = "nothing"
    bench.clock.advance(LEASE_MS - 1)
    assert bench.renew() == []
    assert bench.handout.take(1) is not None
    bench.clock.advance(2)
    assert bench.renew() == []
    assert not bench.owner.is_locked


def test_a_lease_that_is_somebody_elses_is_lost() -> None:
    bench = Bench()
    bench.leases.answer = "refused"
    assert bench.renew() == [QUEUE]
    assert bench.owner.is_lock_lost
    assert bench.handout.take(1) is None
