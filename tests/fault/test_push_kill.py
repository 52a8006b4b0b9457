"""What is pushed outlives who it is pushed to and who pushes it: consumers and brokers are killed, put to sleep."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from penstock.errors import PenstockError
from tests.support.broker_set import broker_set
from tests.support.server_processes import ROOT, cluster, wait_known
from tests.waiting import wait_until

TOPIC, GROUP = "orders", "workers"
QUICK: dict[str, Any] = {"pull_retry_ms": 100, "reconnect_interval_ms": 200, "route_interval_ms": 500}
PINGS = ("--set", "broker.push_ping_interval_ms=300", "--set", "broker.push_answer_timeout_ms=1000")


def create(address: str) -> None:
    def created() -> bool:
        try:
            with penstock.Admin(address) as admin:
                admin.create_topic(TOPIC, queues=1)
                admin.create_group(GROUP)
        except PenstockError:
            return False
        return True

    wait_until(created, "the topic")


def send(address: str, numbers: range) -> None:
    with penstock.Producer(address, **{name: QUICK[name] for name in ("reconnect_interval_ms",)}) as producer:
        for number in numbers:
            producer.send(TOPIC, b"%d" % number)


def in_order(bodies: Sequence[str], count: int) -> bool:
    """Everything is there, first seen in the order in which it was sent; some of it may have come again."""
    return list(dict.fromkeys(bodies)) == [str(number) for number in range(count)]


class Listening:
    """A consumer in this process."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body.decode())


@contextmanager
def program(address: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ("-m", "tests.fault.push_program", address, GROUP, TOPIC)
    with open(output, "wb") as out:
        process = subprocess.Popen([sys.executable, *words], stdout=out, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def printed(output: Path) -> list[str]:
    return [line.decode() for line in output.read_bytes().split(b"\n")[:-1]]


def states(address: str) -> set[str]:
    with penstock.Admin(address, call_timeout_ms=60_000) as admin:
        return {client.state for body in admin.push_clients(GROUP).values() for client in body.clients}


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I13")
def test_a_broker_that_is_killed_is_registered_with_again(tmp_path: Path) -> None:
    with cluster(tmp_path, flush="async") as (names, node):
        create(names.address)
        seen = Listening()
        with penstock.Consumer(
            names.address,
            group=GROUP,
            delivery="push",
            threads=1,
            listener=seen,
            start_from="first",
            **QUICK,
        ) as consumer:
            consumer.subscribe(TOPIC)
            send(names.address, range(30))
            wait_until(lambda: len(seen.bodies) >= 30, "the first")
            node.kill()
            node.start()
            wait_known(names.address)
            send(names.address, range(30, 60))
            wait_until(lambda: len(set(seen.bodies)) == 60, "the rest")
        assert in_order(seen.bodies, 60)


@pytest.mark.feature("heartbeats", "fifth-seed")
@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.fault("F1")
@pytest.mark.fault("F2")
@pytest.mark.seed("S4-85", "S4-86", "S4-91")
@pytest.mark.invariant("I1")
def test_a_consumer_sleeps_and_comes_back_then_is_killed_and_replaced(tmp_path: Path) -> None:
    with cluster(tmp_path, *PINGS, flush="async") as (names, _):
        create(names.address)
        output = tmp_path / "printed"
        with program(names.address, output) as other:
            send(names.address, range(50))
            wait_until(lambda: len(set(printed(output))) == 50, "the first fifty")
            # Asleep: pings are not answered, what is sent is parked and keeps its offset.
            other.send_signal(signal.SIGSTOP)
            send(names.address, range(50, 100))
            wait_until(lambda: states(names.address) == {"dead"}, "dead by its pings")
            other.send_signal(signal.SIGCONT)
            # It answers the next ping, is told that something is parked, and says resume by itself.
            wait_until(lambda: len(set(printed(output))) == 100, "the second fifty")
            assert in_order(printed(output), 100)
            wait_until(lambda: states(names.address) == {"alive"}, "alive again")
            seen = Listening()
            other.kill()
            other.wait()
            send(names.address, range(100, 150))
            with penstock.Consumer(
                names.address, group=GROUP, delivery="push", threads=1, listener=seen, **QUICK
            ) as consumer:
                consumer.subscribe(TOPIC)
                both = [*printed(output)]
                wait_until(lambda: len({*both, *seen.bodies}) == 150, "what is left")
            # The other one goes on where the offsets of the first are; nothing is left out between them.
            assert in_order([*both, *seen.bodies], 150)


@pytest.mark.feature("push", "fifth-seed")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_the_next_master_pushes_on(tmp_path: Path) -> None:
    """Its queues are a coordinator's to give, and leased: the next master knows no lease, and believes the holder."""
    with broker_set(tmp_path, "--set", "broker.partition_lease_ms=3000") as found:
        names = found.names.address
        create(names)
        found.wait(3)
        seen = Listening()
        with penstock.Consumer(
            names,
            group=GROUP,
            delivery="push",
            threads=1,
            listener=seen,
            start_from="first",
            balance="coordinator",
            coordinators=found.coordinator.address,
            coordinator_interval_ms=500,
            **QUICK,
        ) as consumer:
            consumer.subscribe(TOPIC)
            send(names, range(20))
            wait_until(lambda: len(seen.bodies) >= 20, "the first")
            master, epoch = found.leader()
            master.kill()
            found.wait(2, epoch=epoch + 1)
            send(names, range(20, 40))
            wait_until(lambda: len(set(seen.bodies)) == 40, "the rest")
        assert in_order(seen.bodies, 40)
