"""Too much of what is allowed (A14, A15), at a real server process: tables, memory and descriptors stay bounded.

One server and one healthy pair for the whole module; each test floods it in its own way and sees it come back to
where it was. The last test asks the pair what it noticed.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from penstock.protocol.command import Command
from tests.abuse.healthy import HealthyPair
from tests.abuse.observed import Facts, Observed
from tests.abuse.test_mutated_frames import assert_quiet, unaffected
from tests.abuse.test_slow_readers import pull
from tests.support.raw_peer import RawPeer
from tests.support.request_corpus import properties
from tests.support.running_broker import send_fields
from tests.waiting import until

MIB = 1 << 20
# For the server to let go of everything, however busy the machine is.
PATIENCE_S = 60.0
# Connections of others that come and go: the pair's, and the broker's own to its name server.
OTHERS = 4
GROWTH_BYTES = 12 * MIB
OPTIONS = {
    "remoting.connections_per_ip_max": 400,
    "broker.long_polls_max": 1_000,
    "broker.long_polls_per_connection_max": 200,
    "broker.auto_topics_max": 400,
    "broker.auto_groups_max": 400,
    "broker.create_burst": 300,
    "broker.queues_max": 500,
    "store.segment_size_bytes": 64 * MIB,
    "store.queue_file_entries": 10_000,
}


@dataclass
class Arena:
    """The server, and what it held when only the pair was there."""

    server: Observed
    pair: HealthyPair
    base: Facts

    @property
    def address(self) -> str:
        return self.server.ready["broker"]

    def endure(
        self, flood: Callable[[list[RawPeer]], Awaitable[None]], peers: int, *, window: int = 0
    ) -> None:
        """Twice: what it takes once may be for good, such as a pool or a table; what it takes again is a leak."""
        first, second = (
            self._without(asyncio.run(self._flood(flood, peers, window)), "after a flood") for _ in range(2)
        )
        assert second.memory <= first.memory + GROWTH_BYTES, (
            f"after the first {first}, after the second {second}"
        )
        queues = 2 * OPTIONS["broker.queues_max"]
        assert second.descriptors <= self.base.descriptors + queues, f"before {self.base}, now {second}"

    async def _flood(
        self, flood: Callable[[list[RawPeer]], Awaitable[None]], peers: int, window: int
    ) -> set[int]:
        """Flood it, and go; from which ports."""
        many = [await RawPeer.connect(self.address, window=window) for _ in range(peers)]
        ports = {peer.port for peer in many}
        try:
            async with asyncio.timeout(PATIENCE_S):
                await flood([*many])
        finally:
            await asyncio.gather(*(peer.abort() for peer in many))
        return ports

    def _without(self, ports: set[int], when: str) -> Facts:
        """What it holds once the connections from these ports are gone, and the tasks that they had."""
        deadline = time.monotonic() + PATIENCE_S
        broker_port = int(self.address.rpartition(":")[2])
        while True:
            left, now = self.server.remote_ports(broker_port) & ports, self.server.facts()
            if not left and now.tasks <= self.base.tasks and now.sockets <= self.base.sockets + OTHERS:
                return now
            assert time.monotonic() < deadline, (
                f"{when} {len(left)} of {len(ports)} are still there; before {self.base}, now {now}"
            )
            time.sleep(0.1)


def at_rest(server: Observed) -> Facts:
    """What it holds when the healthy pair has opened its connections: as many sockets for two seconds."""
    found, since = server.facts(), time.monotonic()
    while time.monotonic() < since + 2:
        time.sleep(0.1)
        before, found = found, server.facts()
        if before.sockets != found.sockets:
            since = time.monotonic()
    return found


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("floods")
    sets = [part for name, value in OPTIONS.items() for part in ("--set", f"{name}={value}")]
    ports = ("--port", "0", "--nameserver-port", "0")
    server = Observed(folder / "server", "up", *ports, "--data", str(folder / "data"), *sets)
    pair = None
    try:
        pair = HealthyPair(server.ready["nameserver"], 7)
        yield Arena(server, pair, at_rest(server))
    finally:
        if pair is not None:
            pair.kill()
        server.kill()


QUESTION = Command(30, {"topic": "BenchmarkTest", "queueId": "0"}, opaque=0x70000000)


async def codes_of(peer: RawPeer, count: int, was_asked: asyncio.Event | None = None) -> Counter[int]:
    """How so many requests were answered; sets the event when the question comes back that went behind them."""
    found: Counter[int] = Counter()
    while sum(found.values()) < count:
        answer = await peer.read()
        if answer.opaque == QUESTION.opaque and was_asked is not None:
            was_asked.set()
        elif answer.is_response:
            found[answer.code] += 1
    return found


@pytest.mark.abuse("A2")
@pytest.mark.abuse("A14")
def test_connections(arena: Arena) -> None:
    async def flood(many: list[RawPeer]) -> None:
        for peer in many:
            peer.send(bytes(1))  # without a byte it may still become one with TLS, and is no connection yet
        await until(lambda: arena.server.facts().sockets <= 400 + arena.base.sockets)

    arena.endure(flood, 700)


@pytest.mark.abuse("A2")
@pytest.mark.abuse("A14")
def test_frames_that_never_end(arena: Arena) -> None:
    """Pieces of two bytes each, which would cost twenty times what they hold if they were kept as they come."""

    async def flood(many: list[RawPeer]) -> None:
        for peer in many:
            peer.send(struct.pack(">ii", 16 * MIB, 100))
        for _ in range(400):
            for peer in many:
                peer.send(b"{}")
            await asyncio.sleep(0)
        for peer in many[:10]:
            peer.send(bytes(4 * MIB))
            await peer.drain()
        await asyncio.sleep(0.5)
        assert arena.server.facts().memory <= arena.base.memory + 100 * MIB

    arena.endure(flood, 50)


def store(number: int, size: int = 3) -> Command:
    return Command(310, send_fields("Large", props=properties(UNIQ_KEY="u")), bytes(size), opaque=number)


@pytest.mark.abuse("A14")
def test_long_polls(arena: Arena) -> None:
    async def flood(many: list[RawPeer]) -> None:
        first = many.pop()
        stored = await first.ask(store(1))
        end = int(stored.fields["queueOffset"]) + 1
        reading = []
        for peer in many:
            # One after the other, or it would be a matter of luck whose pulls are the oldest.
            peer.send(*(pull(n, end, wait_ms=60_000, group="flood") for n in range(300)), QUESTION)
            was_asked = asyncio.Event()
            reading.append(asyncio.ensure_future(codes_of(peer, 300, was_asked)))
            await was_asked.wait()
        assert arena.server.facts().memory <= arena.base.memory + 80 * MIB
        assert (await first.ask(store(2))).code == 0
        codes = sum(await asyncio.gather(*reading), Counter())
        # Too many of one peer; the oldest, to make room; and those that the message woke. The pair holds a few, too.
        assert (codes[215], codes[19] + codes[0]) == (1_200, 2_400), codes
        assert 900 < codes[0] <= 1_000, codes

    arena.endure(flood, 13)


@pytest.mark.abuse("A14")
def test_long_polls_whose_peers_leave(arena: Arena) -> None:
    async def flood(many: list[RawPeer]) -> None:
        (end,) = (await many[0].ask(Command(30, {"topic": "Large", "queueId": "0"}))).fields.values()
        for peer in many:
            peer.send(*(pull(n, int(end), wait_ms=60_000, group="gone") for n in range(180)))
            await peer.drain()

    arena.endure(flood, 20)


@pytest.mark.abuse("A14")
def test_topics_and_groups_by_the_thousand(arena: Arena) -> None:
    async def flood(many: list[RawPeer]) -> None:
        for number, peer in enumerate(many):
            unique = properties(UNIQ_KEY="u")
            sends = [send_fields(f"flood-{number}-{n}", n % 4, unique) for n in range(800)]
            beats = [
                HeartbeatData(
                    f"{number}@{n}",
                    (ProducerData(f"p-{number}-{n}"),),
                    (ConsumerData(f"flood-{number}-{n}"),),
                )
                for n in range(200)
            ]
            peer.send(
                *(Command(310, fields, b"x", opaque=n) for n, fields in enumerate(sends)),
                *(Command(34, body=beat.encode(), opaque=n) for n, beat in enumerate(beats)),
            )
        codes = sum(await asyncio.gather(*(codes_of(peer, 1_000) for peer in many)), Counter())
        assert codes[0] > 100
        assert codes[2] + codes[14] + codes[17] > 900, "too many at once, then too many at all"
        answer = await many[0].ask(Command(21, opaque=77))
        assert len(json.loads(answer.body)["topicConfigTable"]) <= 400 + 420, "and their retry topics"

    arena.endure(flood, 4)


@pytest.mark.abuse("A14")
def test_heartbeats_with_huge_tables(arena: Arena) -> None:
    wanted = tuple(SubscriptionData(f"flood-0-{n}", "x" * 200) for n in range(30))
    consumers = tuple(ConsumerData(f"flood-0-{n}", subscriptions=wanted) for n in range(100))
    body = HeartbeatData("huge@1", (), consumers).encode()
    assert 900_000 < len(body) < MIB

    async def flood(many: list[RawPeer]) -> None:
        (peer,) = many
        for _ in range(8):
            peer.send(Command(34, body=body, opaque=1))
        assert sum((await codes_of(peer, 8)).values()) == 8
        loose = body.replace(b'{"clientID"', b"{clientID", 1)
        answer = await peer.ask(Command(34, body=loose, opaque=2))
        assert (answer.code, "not strict JSON" in (answer.remark or "")) == (1, True)

    arena.endure(flood, 1)


@pytest.mark.abuse("A14")
@pytest.mark.abuse("A15")
def test_pulls_that_nobody_reads(arena: Arena) -> None:
    async def flood(many: list[RawPeer]) -> None:
        writer = await RawPeer.connect(arena.address)
        for number in range(6):
            assert (await writer.ask(store(number, 60_000))).code == 0
        await writer.close()
        for peer in many:
            peer.send(*(pull(n, group="flood") for n in range(500)))
        await asyncio.sleep(2)
        held = arena.server.facts().memory - arena.base.memory
        assert held <= 25 * 6 * MIB + 60 * MIB, f"{held} bytes; they asked for {25 * 500 // 4} MiB"

    arena.endure(flood, 25, window=64 * 1024)


@pytest.mark.abuse("A14")
def test_questions_about_everything(arena: Arena) -> None:
    """Small requests with large answers, pipelined; also one topic named thousands of times."""
    names = ";".join(["BenchmarkTest"] * 4_000)

    async def flood(many: list[RawPeer]) -> None:
        for peer in many:
            peer.send(
                *(Command(code, opaque=code) for code in (21, 201, 43, 26, 28, 305, 328) for _ in range(4)),
                *(Command(202, {"topic": "BenchmarkTest"}, opaque=n) for n in range(5)),
                Command(208, {"consumerGroup": "flood", "topicList": names}, opaque=9),
            )
        codes = sum(await asyncio.gather(*(codes_of(peer, 34) for peer in many)), Counter())
        assert codes == {0: 136}

    arena.endure(flood, 4)


@pytest.mark.abuse("A14")
@pytest.mark.invariant("I1", "I2", "I16")
def test_the_healthy_pair_noticed_nothing(arena: Arena) -> None:
    healthy = arena.pair.finish()
    print(f"\nothers: {healthy}")
    unaffected(healthy)
    assert arena.server.stop() == 0
    assert_quiet(arena.server.log())
