"""Queue locks: one holder at a time, expiry, limits."""

from dataclasses import replace

import pytest

from penstock.broker.locks import QueueLocks
from penstock.broker.options import BrokerOptions
from penstock.protocol.bodies import MessageQueue
from penstock.testing import ManualClock

Q0, Q1 = MessageQueue("T", "b-a", 0), MessageQueue("T", "b-a", 1)
OPTIONS = BrokerOptions()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def locks(clock: ManualClock) -> QueueLocks:
    return QueueLocks(OPTIONS, clock)


@pytest.mark.seed("S4-31")
@pytest.mark.seed("S4-32")
def test_one_client_of_a_group_holds_a_queue(locks: QueueLocks) -> None:
    assert locks.lock("g", "a", [Q0]) == [Q0]
    assert locks.lock("g", "b", [Q0, Q1]) == [Q1]
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0]
    assert locks.lock("other", "b", [Q0]) == [Q0]
    assert locks.holder("g", Q0) == "a"


def test_a_lock_that_is_not_renewed_is_free_after_a_minute(locks: QueueLocks, clock: ManualClock) -> None:
    locks.lock("g", "a", [Q0])
    clock.advance(50_000)
    locks.lock("g", "a", [Q0])
    clock.advance(60_000)
    assert locks.lock("g", "b", [Q0]) == []
    clock.jump(3_600_000)
    assert locks.lock("g", "b", [Q0]) == []
    clock.advance(1)
    assert locks.lock("g", "b", [Q0]) == [Q0]
    assert locks.lock("g", "a", [Q0]) == []


def test_only_the_holder_unlocks(locks: QueueLocks) -> None:
    locks.lock("g", "a", [Q0, Q1])
    locks.unlock("g", "b", [Q0])
    assert locks.holder("g", Q0) == "a"
    locks.unlock("g", "a", [Q0])
    assert locks.holder("g", Q0) is None
    assert locks.is_locked("g")
    locks.unlock("g", "a", [Q1])
    assert not locks.is_locked("g")
    locks.unlock("unknown", "a", [Q0])


def test_whether_a_group_consumes_in_order(locks: QueueLocks, clock: ManualClock) -> None:
    assert not locks.is_locked("g")
    locks.lock("g", "a", [Q0])
    assert locks.is_locked("g")
    clock.advance(60_001)
    assert not locks.is_locked("g")


def test_forgetting(locks: QueueLocks, clock: ManualClock) -> None:
    locks.lock("g", "a", [Q0, Q1])
    locks.lock("h", "a", [Q0])
    locks.remove_group("g")
    assert not locks.is_locked("g")
    assert locks.is_locked("h")
    clock.advance(60_001)
    locks.scan()
    assert locks.holder("h", Q0) is None


@pytest.mark.abuse("A14")
def test_the_number_of_locks_is_limited(clock: ManualClock) -> None:
    locks = QueueLocks(replace(OPTIONS, queue_locks_max=2), clock)
    queues = [MessageQueue("T", "b-a", number) for number in range(4)]
    assert locks.lock("g", "a", queues) == queues[:2]
    assert locks.lock("h", "a", queues) == []
    locks.unlock("g", "a", queues[:1])
    assert locks.lock("h", "b", queues) == queues[:1]
    clock.advance(60_001)
    assert locks.lock("i", "c", queues) == queues[:2]  # the expired make room
    assert locks.holder("i", queues[0]) == "c"
    assert locks.lock("i", "d", queues[:1]) == []
