"""Turns by themselves: who is served when, on a clock that moves only while somebody is served."""

from __future__ import annotations

import asyncio

from penstock.remoting.turns import QUANTUM_NS, TURN_NS, Turns
from penstock.testing import ManualClock


class Peer:
    """A connection with so many requests, each of which takes so many milliseconds."""

    def __init__(self, hall: Hall, name: str, requests: int, cost_ms: int = 1) -> None:
        self.is_open = True
        self.turn_tag = 0
        self.is_heavy = False
        self.is_queued = False
        self.requests = requests
        self._hall = hall
        self._name = name
        self._cost_ms = cost_ms

    @property
    def partial_size(self) -> int:
        return self.requests * 250

    def serve(self, deadline_ns: int) -> bool:
        while self.requests and self.is_open:
            self.requests -= 1
            self._hall.clock.advance(self._cost_ms)
            self._hall.served.append(self._name)
            if self._hall.clock.monotonic_ns() >= deadline_ns:
                break
        return bool(self.requests)


class Hall:
    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.turns = Turns(self.clock)
        self.served: list[str] = []

    async def until(self, count: int) -> None:
        """Until so many requests were served."""
        while len(self.served) < count:  # noqa: ASYNC110  # turns are what is counted here
            await asyncio.sleep(0)

    def add(self, name: str, requests: int, cost_ms: int = 1) -> Peer:
        peer = Peer(self, name, requests, cost_ms)
        self.turns.add(peer)
        return peer


def test_a_turn_ends_when_its_time_is_used() -> None:
    async def scenario() -> None:
        hall = Hall()
        for number in range(50):
            hall.add(f"heavy {number}", 100)
        most = before = 0
        while len(hall.served) < 1_000:
            await asyncio.sleep(0)
            most, before = max(most, len(hall.served) - before), len(hall.served)
        assert most <= (TURN_NS + QUANTUM_NS) // 1_000_000

    asyncio.run(scenario())


def test_one_that_keeps_up_is_served_before_those_with_a_backlog() -> None:
    async def scenario() -> None:
        hall = Hall()
        for number in range(300):
            hall.add(f"heavy {number}", 200)
        await hall.until(900)  # each has had its first turn
        light = Peer(hall, "light", 1)
        for _ in range(20):
            light.requests = 1
            at = len(hall.served)
            hall.turns.add(light)
            await hall.until(at + 10)
            assert hall.served.index("light", at) - at <= 3

    asyncio.run(scenario())


def test_of_those_that_begin_together_the_one_with_less_to_do_is_first() -> None:
    async def scenario() -> None:
        hall = Hall()
        for number in range(300):
            hall.add(f"heavy {number}", 200)
        hall.add("light", 1)
        await hall.until(1)
        assert hall.served[0] == "light"

    asyncio.run(scenario())


def test_those_with_a_backlog_are_served_while_others_keep_the_loop_busy() -> None:
    async def scenario() -> None:
        hall = Hall()
        heavy = hall.add("heavy", 50)
        busy = [Peer(hall, "light", 1) for _ in range(10)]
        while heavy.requests:
            for peer in busy:
                peer.requests = 1
                hall.turns.add(peer)
            await asyncio.sleep(0)
        assert hall.served.count("heavy") == 50
        assert hall.served.count("light") < 50 * 4, "it got its part of every turn"

    asyncio.run(scenario())


def test_time_is_shared_evenly_whatever_a_request_takes() -> None:
    async def scenario() -> None:
        hall = Hall()
        hall.add("long", 1_000, cost_ms=5)
        hall.add("short", 1_000, cost_ms=1)
        await hall.until(300)
        served = hall.served[:300]
        long, short = served.count("long") * 5, served.count("short")
        assert abs(long - short) <= 12

    asyncio.run(scenario())


def test_one_that_rested_has_not_saved_up_time() -> None:
    async def scenario() -> None:
        hall = Hall()
        rested = Peer(hall, "rested", 0)
        hall.add("busy", 2_000)
        await hall.until(1_000)
        rested.requests = 500
        hall.turns.add(rested)
        at = len(hall.served)
        await hall.until(at + 100)
        assert hall.served[at : at + 100].count("busy") > 40

    asyncio.run(scenario())


def test_what_is_closed_meanwhile_is_passed_over() -> None:
    async def scenario() -> None:
        hall = Hall()
        gone = hall.add("gone", 3)
        hall.add("there", 3)
        gone.is_open = False
        await hall.until(3)
        assert set(hall.served) == {"there"}
        assert hall.turns.is_free or not gone.is_queued

    asyncio.run(scenario())


def test_one_that_keeps_up_does_not_wait_for_the_clock_of_those_with_a_backlog() -> None:
    """The clocks of both queues are apart: time that heavy connections used is no time of light ones."""

    async def scenario() -> None:
        hall = Hall()
        for number in range(5):
            hall.turns.add(Peer(hall, f"heavy {number}", 1_000), is_heavy=True)
        await hall.until(500)
        for number in range(300):
            hall.add(f"crowd {number}", 4)
        await hall.until(510)
        light = Peer(hall, "light", 1)
        at = len(hall.served)
        hall.turns.add(light)
        await hall.until(at + 100)
        assert "light" in hall.served[at : at + 10]

    asyncio.run(scenario())


class SharedClock(ManualClock):
    """Of a machine where others use the processor most of the time."""

    def processor_ns(self) -> int:
        return self.monotonic_ns() // 100


def test_time_that_others_had_the_processor_is_not_charged() -> None:
    """Each request takes a millisecond of work, and those of one peer happen to wait for 99 more."""

    async def scenario() -> None:
        hall = Hall(SharedClock())
        unlucky = Peer(hall, "unlucky", 0, cost_ms=100)
        peers = [unlucky, *(Peer(hall, f"peer {number}", 0) for number in range(20))]
        for _ in range(300):
            for peer in peers:
                peer.requests = 1
                hall.turns.add(peer)
            await asyncio.sleep(0)
        assert hall.served.count("unlucky") * 4 > hall.served.count("peer 0")

    asyncio.run(scenario())
