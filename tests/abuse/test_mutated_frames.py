"""Frames that are almost right, at a real name server, broker and coordinator, while others work there; without access
control, and with it, where users sign most frames.

What must hold: no process ends or logs an exception, every request is answered and nothing else closes a connection
than what has to; what the processes hold afterwards is what they held before (I16); a producer and a consumer on
other connections notice nothing, and every message that was acknowledged to them is there (I1, I2); the directory
holds nothing that does not belong there, and the store is sound.

Frames count when they are handled: answered, refused, or reason to close their connection.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.coordinator.balancing_part import BalancingPart
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.command import Command
from penstock.runtime import Runtime
from penstock.security import Credentials
from penstock.security.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, sign
from penstock.store import StoreOptions
from penstock.store.inspection import verify
from tests.abuse.directory import assert_tidy
from tests.abuse.healthy import HealthyPair
from tests.abuse.mutation import Mutator
from tests.abuse.observed import Facts, Observed
from tests.abuse.storm import Storm, Target
from tests.effort import by_length, first_seed
from tests.support.coordinator_wire import coordinator as running_coordinator
from tests.support.request_corpus import BROKER_REQUESTS, COORDINATOR_REQUESTS, NAME_SERVER_REQUESTS, TOPIC

# Handled frames of one test; there are two, without and with access control.
FRAMES = by_length(4_000, 520_000)
SEED = first_seed(20261116)
# Part of the frames that goes to name server, broker and coordinator, and part after which what is held stays held.
SHARES, WARM_UP = (0.3, 0.45, 0.25), 0.25
USERS = """
[users.app]
secret = "app-secret"
roles = ["producer", "consumer"]
topics = ["hostile-topic", "hostile-0", "honest-orders-5c1f"]
groups = ["hostile-group", "honest-*"]

[users.admin]
secret = "admin-secret"
roles = ["admin"]
"""
APP, ADMIN = Credentials("app", "app-secret"), Credentials("admin", "admin-secret")
COORDINATOR_LIMITS = {
    "coordinator.groups_max": 100,
    "coordinator.group_members_max": 10,
    "coordinator.client_topics_max": 50,
    "coordinator.sets_max": 50,
    "coordinator.replicas_max": 8,
}
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
        *(207, 215, 225, 314, 317, 321, 323, 370, 400, 401),
        *(200050, 200051, 200053, 200151),
    )
)
BROKER_HELD = frozenset((11, 361, 223, 307, 309, 324, 325, 200050, 200054))
NAME_SERVER_LATER = frozenset((100, 102, 103))
# What a coordinator writes down, or lets its metadata store confirm, before it answers.
COORDINATOR_LATER = frozenset(request.code for request in COORDINATOR_REQUESTS)
# Registrations that contradict each other are an alarm for an operator (A13).
ALARM = re.compile(r"ERROR +penstock\.nameserver: .*(refused|belongs to cluster)")
GROWTH_BYTES = 24 << 20
# For the servers to let go of everything, however busy the machine is; connections of others that come and go.
PATIENCE_S = 60.0
OTHERS = 2


@dataclass
class Cluster:
    """A name server, a broker and a coordinator, each in its own process."""

    name_server: Observed
    broker: Observed
    coordinator: Observed
    data: Path
    is_secured: bool

    @property
    def processes(self) -> tuple[Observed, ...]:
        return self.name_server, self.broker, self.coordinator


@pytest.fixture(params=["open", "secured"])
def cluster(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    is_secured = request.param == "secured"
    if is_secured:
        users = tmp_path / "access.toml"
        users.write_text(USERS)
        for name, value in {
            "PENSTOCK_ACCESS_ENABLED": "true",
            "PENSTOCK_ACCESS_USERS_FILE": str(users),
            "PENSTOCK_ACCESS_CLUSTER_SECRET": "a-secret-of-the-cluster",
            "PENSTOCK_ACCESS_KEY": ADMIN.access_key,
            "PENSTOCK_SECRET_KEY": ADMIN.secret_key,
        }.items():
            monkeypatch.setenv(name, value)
    data = tmp_path / "data"
    with ExitStack() as started:

        def start(role: str, folder: Path, limits: dict[str, int], *more: str) -> Observed:
            sets = [part for name, value in limits.items() for part in ("--set", f"{name}={value}")]
            found = Observed(tmp_path / role, role, "--port", "0", "--data", str(folder), *more, *sets)
            started.callback(found.kill)
            return found

        name_server = start("nameserver", tmp_path / "ns", {})
        broker = start("broker", data, LIMITS, "--nameserver", name_server.ready["nameserver"])
        coordinator = start("coordinator", tmp_path / "co", COORDINATOR_LIMITS)
        yield Cluster(name_server, broker, coordinator, data, is_secured)


def test_the_corpus_has_every_code(tmp_path: Path) -> None:
    async def codes() -> tuple[list[int], list[int], list[int]]:
        broker = Broker(BrokerOptions(port=0), StoreOptions(), tmp_path, runtime=Runtime.system())
        await broker.start()
        await broker.stop()
        name_server = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
        async with running_coordinator(parts=(BalancingPart,)) as coordinator:
            return broker.table.codes, name_server.server.table.codes, coordinator.table.codes

    of_broker, of_name_server, of_coordinator = asyncio.run(codes())
    assert {request.code for request in COORDINATOR_REQUESTS} == set(of_coordinator)
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
    print(f"\nPENSTOCK_SEED={SEED}, {FRAMES} frames to be handled")
    pair = HealthyPair(cluster.name_server.ready["nameserver"], SEED)
    try:
        storms = storms_of(cluster)
        asyncio.run(rage(storms, int(FRAMES * WARM_UP)))
        before, sent = settled(cluster), sum(storm.report.frames for storm in storms)
        began = time.monotonic()
        asyncio.run(rage(storms, FRAMES))
        took = time.monotonic() - began
        after = settled(cluster, before)
        healthy = pair.finish()
    finally:
        pair.kill()
    for storm in storms:
        print(storm.report)
    print(
        f"{(sum(storm.report.frames for storm in storms) - sent) / took:.0f} frames/s; held before and after: "
        f"{before} {after}; others: {healthy}"
    )
    for storm in storms:
        report = storm.report
        assert not report.surprises
        left = report.unanswered + report.awaited + report.held + report.repeated
        assert report.handled + left >= report.frames, "frames without an outcome"
        assert min(report.answered, report.refused, report.closed) > 0
    assert sum(storm.report.handled for storm in storms) >= FRAMES
    unaffected(healthy)
    for process, then, now in zip(cluster.processes, before, after, strict=True):
        returned_to_base(then, now)
        assert process.stop() == 0
        assert_quiet(process.log())
    assert_tidy(cluster.data)
    checked = verify(cluster.data)
    assert checked.sound, checked.issues[:5]


def storms_of(cluster: Cluster) -> list[Storm]:
    """In the order of `Cluster.processes`."""
    users = (APP, ADMIN) if cluster.is_secured else ()

    def question(code: int, **fields: str) -> Command:
        if users:
            fields = {**fields, ACCESS_KEY_FIELD: ADMIN.access_key}
            fields[SIGNATURE_FIELD] = sign(ADMIN.secret_key, fields, b"")
        return Command(code, fields)

    name_server = Target(
        cluster.name_server.ready["nameserver"], question(105, topic="no-such-topic"), NAME_SERVER_LATER
    )
    broker = Target(
        cluster.broker.ready["broker"], question(30, topic=TOPIC, queueId="0"), BROKER_LATER, BROKER_HELD
    )
    coordinator = Target(cluster.coordinator.ready["coordinator"], question(1005), COORDINATOR_LATER)
    return [
        Storm(name_server, Mutator(NAME_SERVER_REQUESTS, SEED + 1, users)),
        Storm(broker, Mutator(BROKER_REQUESTS, SEED, users)),
        Storm(coordinator, Mutator(COORDINATOR_REQUESTS, SEED + 2, users)),
    ]


async def rage(storms: list[Storm], handled: int) -> None:
    """All at once, each until its share of the frames is handled."""
    await asyncio.gather(
        *(storm.run(math.ceil(handled * share)) for storm, share in zip(storms, SHARES, strict=True))
    )


def settled(cluster: Cluster, base: tuple[Facts, ...] | None = None) -> tuple[Facts, ...]:
    """What all hold when the hostile connections are gone; with a base, given time to come back to it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(0.5)
        found = tuple(process.facts() for process in cluster.processes)
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
