"""What `cluster.load.Watch` calls wrong: two owners of a queue, and a committed offset that goes back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.claims import Claims
from penstock.errors import ConnectError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.command import Command
from penstock.testing import ManualClock
from tests.fault.cluster.load import Watch
from tests.fault.operation_history import History

QUEUE = MessageQueue("orders", "set-a", 0)


def member(clock: ManualClock, name: str, group: str = "workers", *, asked_ms: int) -> Any:
    """A consumer as far as the watch looks at it, with a lease of the queue."""
    instance: Any = SimpleNamespace(runtime=SimpleNamespace(clock=clock))
    calls: Any = None
    claims = Claims(instance, group, calls, orderly=False)
    claims.leases[QUEUE] = asked_ms
    core = SimpleNamespace(locker=claims, clock=clock)
    return SimpleNamespace(core=core, group=group, client_id=name)


def watch(*members: Any) -> Watch:
    load: Any = SimpleNamespace(consumers=members, history=History("orders", 1))
    return Watch(["one", "two"], load)


@pytest.mark.invariant("I10")
def test_two_leases_of_a_queue_that_count_at_once_are_wrong() -> None:
    clock = ManualClock()
    now = clock.monotonic_ms()
    found = watch(member(clock, "a", asked_ms=now), member(clock, "b", asked_ms=now + 1))
    found.look()
    assert "owners ['a', 'b']" in found.wrong[0]


@pytest.mark.invariant("I10")
def test_a_lease_that_is_over_and_one_of_another_group_are_not() -> None:
    clock = ManualClock()
    asked_ms = clock.monotonic_ms()
    clock.advance(9_000)
    now = clock.monotonic_ms()
    found = watch(
        member(clock, "a", asked_ms=asked_ms),
        member(clock, "b", asked_ms=now),
        member(clock, "c", "audit", asked_ms=now),
    )
    found.look()
    assert not found.wrong
    assert sorted(found.held.values()) == [{"b"}, {"c"}]


class Brokers:
    """Tells what it is given, round by round; None is a broker that cannot be reached."""

    def __init__(self) -> None:
        self.offsets: dict[str, int | None] = {}

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        offset = self.offsets[address]
        if offset is None:
            raise ConnectError("no", "no")
        return Command(0, {"offset": str(offset)})


@pytest.mark.invariant("I1")
def test_an_offset_that_any_broker_tells_lower_than_another_did_is_wrong() -> None:
    found, brokers = watch(), Brokers()
    client: Any = brokers
    for one, two in [(5, None), (None, 7), (None, None), (9, 8)]:
        brokers.offsets = {"one": one, "two": two}
        asyncio.run(found.ask(client))
    # In one round both may be true: nobody knows which was said first.
    assert not found.wrong
    brokers.offsets = {"one": None, "two": 8}
    asyncio.run(found.ask(client))
    assert len(found.wrong) == 2  # one for each group
    assert "went back" in found.wrong[0]
