"""Leases that are renewed, and those that are not because they may be over."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.client.broker_calls import BrokerCalls
from penstock.client.claims import Claims, answer_ms, is_renewable
from penstock.client.instance import ClientInstance
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import LeaseAnswerBody, LeaseRequestBody
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.testing import ManualClock

FIRST, SECOND = (MessageQueue("T", "b", number) for number in (0, 1))


@pytest.mark.parametrize(
    ("age_ms", "lease_ms", "renewable"),
    [
        (0, 10_000, True),
        (7_999, 10_000, True),
        (8_000, 10_000, False),
        (60_000, 10_000, False),
        (799, 1_000, True),
    ],
)
def test_a_request_is_sent_only_while_it_surely_arrives_in_time(
    age_ms: int, lease_ms: int, renewable: bool
) -> None:
    assert is_renewable(1_000, lease_ms, 1_000 + age_ms) is renewable
    assert not is_renewable(None, lease_ms, 0)
    assert answer_ms(lease_ms) <= lease_ms // 5


class GenerousBroker:
    """Stands for a client instance whose broker grants whatever it is asked for, and remembers what that was."""

    def __init__(self, clock: ManualClock) -> None:
        self.runtime = Runtime(clock=clock)
        self.client_id = "c"
        self.asked: list[tuple[int, tuple[MessageQueue, ...]]] = []

    async def call_broker(self, name: str, command: Command, timeout_ms: int) -> Command:
        queues = LeaseRequestBody.decode(command.body).queues
        self.asked.append((command.code, queues))
        return command.answer(body=LeaseAnswerBody(10_000, queues).encode())


@pytest.mark.fault("F2")
@pytest.mark.invariant("I10")
def test_a_lease_that_may_be_over_is_given_back_and_counts_as_somebody_elses() -> None:
    clock = ManualClock()
    broker = GenerousBroker(clock)
    claims = Claims(cast(ClientInstance, broker), "g", cast(BrokerCalls, None), orderly=False)

    async def life() -> None:
        assert await claims.lock([FIRST]) == ({FIRST}, set())
        clock.advance(4_000)
        assert await claims.lock([SECOND]) == ({SECOND}, set())
        clock.advance(4_000)
        broker.asked.clear()
        assert await claims.renew([FIRST, SECOND]) == ({SECOND}, {FIRST})
        assert broker.asked == [
            (RequestCode.RELEASE_PARTITION, (FIRST,)),
            (RequestCode.REFRESH_PARTITION, (SECOND,)),
        ]
        assert claims.asked_ms(FIRST) is None

    asyncio.run(life())


@pytest.mark.invariant("I10")
def test_an_answer_that_was_on_its_way_when_its_queue_was_given_back_is_no_lease() -> None:
    broker = GenerousBroker(ManualClock())
    claims = Claims(cast(ClientInstance, broker), "g", cast(BrokerCalls, None), orderly=False)

    async def life() -> None:
        on_its_way, arrived = asyncio.Event(), asyncio.Event()
        call = broker.call_broker

        async def slow(name: str, command: Command, timeout_ms: int) -> Command:
            answer = await call(name, command, timeout_ms)
            if command.code == RequestCode.REFRESH_PARTITION:
                on_its_way.set()
                await arrived.wait()
            return answer

        await claims.lock([FIRST, SECOND])
        broker.call_broker = slow  # type: ignore[method-assign]
        renewed = asyncio.ensure_future(claims.renew([FIRST, SECOND]))
        await on_its_way.wait()
        await claims.unlock([FIRST])
        arrived.set()
        assert await renewed == ({SECOND}, set())
        assert (claims.asked_ms(FIRST), claims.asked_ms(SECOND) is not None) == (None, True)
        assert await claims.lock([FIRST]) == ({FIRST}, set())  # what is asked for later counts
        assert claims.asked_ms(FIRST) is not None

    asyncio.run(life())
