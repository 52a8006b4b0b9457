"""Consumers that a coordinator balances, while the master of their broker set dies, or one of them sleeps: real
processes, and no queue is ever handed out by two of them.

What is compared is when work on a message began, by a clock that all processes share, and which consumer did it.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from tests.fault.test_failover import Sends
from tests.support.broker_set import BrokerSet, broker_set
from tests.support.server_processes import options
from tests.waiting import until_done, wait_until

TOPIC, GROUP = "orders", "balanced"
# Longer than it takes until another broker is master: the holders go on.
LEASE_MS = 10_000
# Soon over; and a consumer that says nothing is taken out of its group a little later.
SHORT_LEASE_MS = 2_500
CONSUMER_TIMEOUT_MS = 4_000
QUEUES = 6

# A consumer in a process of its own; each line is one message on which work begins.
WORKER = """
import json, sys, threading, time
import penstock
alone = threading.Lock()
def work(message):
    where = [message.queue.broker_name, message.queue.queue_id, message.queue_offset, message.body.decode()]
    with alone:
        print(json.dumps([time.monotonic(), *where]), flush=True)
names, coordinator, name = sys.argv[1:]
with penstock.Consumer(
    names, "balanced", listener=work, threads=4, balance="coordinator", coordinators=coordinator, instance_name=name,
    start_from="first", coordinator_interval_ms=500, persist_interval_ms=200,
) as consumer:
    consumer.subscribe("orders")
    sys.stdin.read()
"""


class Work(NamedTuple):
    """Work on one message began."""

    at: float
    who: str
    queue: tuple[str, int]
    offset: int
    body: bytes


class Worker:
    """A consumer process and what it has told."""

    def __init__(self, found: BrokerSet, name: str) -> None:
        self.name = name
        self.work: list[Work] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, found.names.address, found.coordinator.address, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at, broker, queue, offset, body = json.loads(line)
            self.work.append(Work(at, self.name, (broker, queue), offset, body.encode()))

    @property
    def queues(self) -> set[tuple[str, int]]:
        """Queues that it worked on lately."""
        return {one.queue for one in self.work[-20:]}

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def workers(found: BrokerSet, *names: str) -> Iterator[list[Worker]]:
    those = [Worker(found, name) for name in names]
    try:
        yield those
    finally:
        for one in those:
            one.close()


def wait_for(wanted: set[bytes], those: list[Worker]) -> None:
    def missing() -> set[bytes]:
        return wanted - {one.body for worker in those for one in worker.work}

    wait_until(lambda: not missing(), lambda: f"{len(missing())} messages: {sorted(missing())[:5]}")


def wait_shared(those: list[Worker]) -> dict[str, set[tuple[str, int]]]:
    """Wait until everybody works, and all queues are worked on, each by one; who has which."""
    found: dict[str, set[tuple[str, int]]] = {}

    def are_shared() -> bool:
        found.update({worker.name: worker.queues for worker in those})
        held = list(found.values())
        return all(held) and sum(map(len, held)) == len(set().union(*held)) == QUEUES

    wait_until(are_shared, lambda: f"each queue with one of them: {found}")
    return found


def check_owners(those: list[Worker], since: float = 0.0) -> int:
    """Whoever works on a queue has it to himself: owners follow each other, each going on at or after where the one
    before had stored its offset, and nobody comes back to what another has begun to read without owning it again.
    Returns how often a queue changed hands after a moment."""
    changes = 0
    queues: dict[tuple[str, int], list[Work]] = {}
    for worker in those:
        for one in worker.work:
            queues.setdefault(one.queue, []).append(one)
    for queue, work in queues.items():
        work.sort()
        runs: list[list[Work]] = []
        for one in work:
            if not runs or runs[-1][0].who != one.who:
                runs.append([])
            runs[-1].append(one)
        changes += sum(after[0].at > since for after in runs[1:])
        for before, after in itertools.pairwise(runs):
            # Two owners at once would alternate; ownership needs a lease, so the turn of one is not an instant.
            assert len(runs) <= 8, (
                f"{queue} changed hands {len(runs)} times: {[(r[0].who, len(r)) for r in runs]}"
            )
            # Several threads begin at once, so the first line need not be the first message.
            first, last = min(one.offset for one in after), max(one.offset for one in before)
            assert first <= last + 1, f"messages of {queue} were skipped"
    return changes


def create_topic(found: BrokerSet) -> None:
    with penstock.Admin(found.names.address) as admin:
        # The master is elected, and perhaps not yet known to the name server.
        until_done(lambda: admin.create_topic(TOPIC, queues=QUEUES))


@pytest.mark.feature("coordinator-balancing", "tubemq")
@pytest.mark.slow
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I10")
def test_balanced_consumers_live_through_a_failover(tmp_path: Path) -> None:
    with broker_set(tmp_path, *options("broker", partition_lease_ms=LEASE_MS)) as found:
        create_topic(found)
        with workers(found, "one", "two", "three") as those:
            with Sends(found.names.address) as sends:
                before = wait_shared(those)
                killed = time.monotonic()
                found.master().kill()
                print(f"sends go on after {sends.after(killed):.2f} s")
                wait_until(
                    lambda: all(one.work[-1].at > killed + 3 for one in those), "work for every consumer"
                )
                after = wait_shared(those)
            wait_for(sends.bodies, those)
            # Everybody goes on with the queues they had: the new master let the holders go on. (Before, they came
            # one after the other on a slow machine.)
            assert after == before
            assert check_owners(those, killed) == 0


@pytest.mark.slow
@pytest.mark.fault("F2")
@pytest.mark.invariant("I1", "I10")
def test_a_consumer_that_sleeps_through_its_lease_hands_out_nothing_more(tmp_path: Path) -> None:
    with broker_set(
        tmp_path,
        *options("broker", partition_lease_ms=SHORT_LEASE_MS),
        count=1,
        coordinator_arguments=options(
            "coordinator", consumer_timeout_ms=CONSUMER_TIMEOUT_MS, scan_interval_ms=200
        ),
    ) as found:
        create_topic(found)
        with workers(found, "one", "two") as those:
            with Sends(found.names.address) as sends:
                wait_shared(those)
                sleeper, other = those
                had = sleeper.queues
                sleeper.process.send_signal(signal.SIGSTOP)
                slept = time.monotonic()
                # Its connection is open: the coordinator hears of it when it has said nothing for its timeout.
                wait_until(lambda: had <= other.queues, "the other one to take over from the one that sleeps")
                print(f"taken over after {time.monotonic() - slept:.2f} s")
                time.sleep(1)
                woke = time.monotonic()
                sleeper.process.send_signal(signal.SIGCONT)
                # It gets its share again, through the coordinator.
                wait_until(lambda: sleeper.work[-1].at > woke + 1, "work for the one that slept")
            wait_for(sends.bodies, those)
            assert check_owners(those) > 0
            # What it begins after waking is not what it had left: the other one has read and stored that meanwhile.
            for one in sleeper.work:
                taken = [w.offset for w in other.work if w.queue == one.queue and slept < w.at < woke - 0.8]
                assert one.at < woke or not taken or one.offset > max(taken), f"{one} was another's"
