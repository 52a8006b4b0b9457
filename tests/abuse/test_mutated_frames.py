"""Thousands of frames that are almost right, at a real name server and a real broker, while others work there.

What must hold: neither process ends or logs an exception, every request is answered and nothing else closes a
connection than what has to; what the processes hold afterwards is what they held before (I16); a producer and a
consumer on other connections notice nothing, and every message that was acknowledged to them is there (I1, I2);
the directory holds nothing that does not belong there, and the store is sound.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.store import StoreOptions
from penstock.store.inspection import verify
from tests.abuse.corpus import BROKER_REQUESTS, NAME_SERVER_REQUESTS, TOPIC
from tests.abuse.directory import assert_tidy
from tests.abuse.healthy import HealthyPair
from tests.abuse.mutation import Mutator
from tests.abuse.observed import Facts, Observed
from tests.abuse.storm import Storm, Target
from tests.effort import by_length, first_seed

FRAMES = by_length(8_000, 1_000_000)
SEED = first_seed(20261116)
# Part of the frames that goes to the broker, and part after which what is held is held for good.
TO_BROKER, WARM_UP = 0.55, 0.25
# Tables that fill in the warm-up, so that what still grows afterwards grows without end.
LIMITS = {
    "broker.auto_topics_max": 150,
    "broker.auto_groups_max": 150,
    "broker.topics_max": 250,
    "broker.groups_max": 250,
    "broker.queues_max": 600,
    "broker.push_clients_max": 50,
    "broker.push_client_subscriptions_max": 10,
    "store.segment_size_bytes": 64 << 20,
    "store.queue_file_entries": 10_000,
    "store.max_message_size_bytes": 1 << 20,
}
BROKER_LATER = frozenset(
    (
        *(10, 310, 320, 12, 17, 18, 21, 36, 37, 43, 61, 200, 201),
        *(207, 215, 225, 314, 317, 323, 370, 400, 401),
        *(200050, 200051, 200053, 200151),
    )
)
BROKER_HELD = frozenset((11, 361, 223, 307, 309, 324, 325, 200050, 200054))
NAME_SERVER_LATER = frozenset((100, 102, 103))
# Registrations that contradict each other are an alarm for an operator (A13).
ALARM = re.compile(r"ERROR +penstock\.nameserver: .*(refused|belongs to cluster)")
GROWTH_BYTES = 24 << 20
# For the servers to let go of everything, however busy the machine is; connections of others that come and go.
PATIENCE_S = 60.0
OTHERS = 2


@dataclass
class Cluster:
    """A name server, a broker and a healthy pair, each in its own process."""

    name_server: Observed
    broker: Observed
    data: Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    data = tmp_path / "data"
    name_server = Observed(
        tmp_path / "name-server", "nameserver", "--port", "0", "--data", str(tmp_path / "ns")
    )
    sets = [part for name, value in LIMITS.items() for part in ("--set", f"{name}={value}")]
    where = ("--nameserver", name_server.ready["nameserver"])
    try:
        broker = Observed(tmp_path / "broker", "broker", "--port", "0", "--data", str(data), *where, *sets)
    except BaseException:
        name_server.kill()
        raise
    try:
        yield Cluster(name_server, broker, data)
    finally:
        broker.kill()
        name_server.kill()


def test_the_corpus_has_every_code(tmp_path: Path) -> None:
    async def codes() -> tuple[list[int], list[int]]:
        broker = Broker(BrokerOptions(port=0), StoreOptions(), tmp_path, runtime=Runtime.system())
        await broker.start()
        await broker.stop()
        name_server = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
        return broker.table.codes, name_server.server.table.codes

    of_broker, of_name_server = asyncio.run(codes())
    staging = {9010, 9011, 9012, 9013}  # refused and limited in test_limits_staging.py
    assert {request.code for request in BROKER_REQUESTS} == set(of_broker) - staging
    assert {request.code for request in NAME_SERVER_REQUESTS} == set(of_name_server)


def test_frames_come_from_their_seed_and_number_alone() -> None:
    one, other = Mutator(BROKER_REQUESTS, 7), Mutator(BROKER_REQUESTS, 7)
    frames = {number: one.frame(number) for number in range(300)}
    assert [other.frame(number) for number in range(299, -1, -1)] == [*reversed(frames.values())]
    assert len(set(frames.values())) > 250
    assert Mutator(BROKER_REQUESTS, 8).frame(5) != frames[5]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(max(900, FRAMES // 100))
@pytest.mark.abuse("A1")
@pytest.mark.abuse("A3")
@pytest.mark.abuse("A4")
@pytest.mark.abuse("A5")
@pytest.mark.abuse("A6")
@pytest.mark.abuse("A14")
@pytest.mark.abuse("A16")
@pytest.mark.fault("F14")
@pytest.mark.invariant("I1", "I2", "I16")
def test_a_storm_of_mutated_frames(cluster: Cluster) -> None:
    print(f"\nPENSTOCK_SEED={SEED}, {FRAMES} frames")
    pair = HealthyPair(cluster.name_server.ready["nameserver"], SEED)
    try:
        storms = storms_of(cluster)
        first = int(FRAMES * WARM_UP)
        asyncio.run(rage(storms, 0, first))
        before = settled(cluster)
        began = time.monotonic()
        asyncio.run(rage(storms, first, FRAMES - first))
        took = time.monotonic() - began
        after = settled(cluster, before)
        healthy = pair.finish()
    finally:
        pair.kill()
    for storm in storms:
        print(storm.report)
    print(
        f"{(FRAMES - first) / took:.0f} frames/s; held before and after: {before} {after}; others: {healthy}"
    )
    for storm in storms:
        assert not storm.report.surprises
        assert sum(storm.report.codes.values()) > storm.report.frames // 2
    unaffected(healthy)
    for process, then, now in zip((cluster.name_server, cluster.broker), before, after, strict=True):
        returned_to_base(then, now)
        assert process.stop() == 0
        assert_quiet(process.log())
    assert_tidy(cluster.data)
    report = verify(cluster.data)
    assert report.sound, report.issues[:5]


def storms_of(cluster: Cluster) -> list[Storm]:
    broker = Target(
        cluster.broker.ready["broker"],
        Command(30, {"topic": TOPIC, "queueId": "0"}),
        BROKER_LATER,
        BROKER_HELD,
    )
    name_server = Target(
        cluster.name_server.ready["nameserver"], Command(105, {"topic": "nobody-has-it"}), NAME_SERVER_LATER
    )
    return [
        Storm(broker, Mutator(BROKER_REQUESTS, SEED)),
        Storm(name_server, Mutator(NAME_SERVER_REQUESTS, SEED + 1)),
    ]


async def rage(storms: list[Storm], first: int, count: int) -> None:
    """Both at once, each with its part of the frames."""
    share = int(count * TO_BROKER)
    await asyncio.gather(storms[0].run(first, share), storms[1].run(first, count - share))


def settled(cluster: Cluster, base: tuple[Facts, Facts] | None = None) -> tuple[Facts, Facts]:
    """What both hold when the hostile connections are gone; with a base, given time to come back to it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(0.5)
        found = cluster.name_server.facts(), cluster.broker.facts()
        if base is None or time.monotonic() > deadline:
            return found
        if all(
            now.tasks <= then.tasks and now.sockets <= then.sockets + OTHERS
            for now, then in zip(found, base, strict=True)
        ):
            return found


def returned_to_base(then: Facts, now: Facts) -> None:
    assert now.tasks <= then.tasks
    assert now.sockets <= then.sockets + OTHERS
    assert now.threads <= then.threads + 4, "threads of the default pool are made as they are needed"
    # Queue files that were used meanwhile stay open, with two descriptors each, up to their limit.
    assert now.descriptors <= then.descriptors + 2 * StoreOptions().queue_files_open_max
    assert now.memory <= then.memory + GROWTH_BYTES


def unaffected(healthy: dict[str, object]) -> None:
    assert healthy["failures"] == []
    assert healthy["strangers"] == 0
    assert healthy["acked"] == healthy["received"] == healthy["read_again"]
    assert healthy["acked"] > 100, "the healthy pair hardly came to work"


def assert_quiet(log: str) -> None:
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3_000]
    loud = [
        line
        for line in log.splitlines()
        if re.search(r"Z (ERROR|CRITICAL) ", line) and not ALARM.search(line)
    ]
    assert not loud, loud[:5]
    assert len(log) < 1_000_000, "whoever can make a server talk must not fill its disk"
