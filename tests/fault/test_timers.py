"""Timers when processes are killed: the broker alone, and the master of a set while messages wait."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock.runtime import SeededEntropy
from tests.effort import by_length
from tests.fault.seeded import seeded
from tests.fault.test_failover import ready
from tests.support.server_processes import cluster, wait_known
from tests.waiting import DEADLINE_S

TOPIC = "timed"
KILLS = by_length(2, 40)
SPREAD_S = by_length(4.0, 100.0)
TIMERS = by_length(200, 4_000)
# What was due in the seconds before a kill may come again: the last progress that was saved, or told to replicas, is
# about two seconds old; more on a machine that does many other things.
AGAIN_S = 5.0
# Longer than it takes until another broker is master, also on a busy machine.
RECALLED_S = 24


class Timed:
    """Messages for many moments, and what became of them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.due: dict[bytes, float] = {}

    def send(self, count: int, first_s: float, spread_s: float) -> None:
        """Messages that are due from `first_s` on, one after the other."""
        begin = time.time() + first_s
        with penstock.Producer(self.address, durability="flushed") as producer:
            futures = []
            for number in range(count):
                due = begin + number * spread_s / count
                body = b"%d-%d" % (len(self.due), number)
                self.due[body] = due
                futures.append(producer.send_async(TOPIC, body, deliver_at=due))
            for future in futures:
                future.result()

    def drain(self, until: float) -> list[tuple[bytes, float]]:
        """Bodies and store times of everything in the topic, when all are there and some seconds have passed."""
        found: list[tuple[bytes, float]] = []
        quiet = time.monotonic()
        with penstock.Consumer(self.address, "readers", start_from="first") as consumer:
            consumer.subscribe(TOPIC)
            while time.monotonic() < until:
                messages = consumer.poll(256, timeout_s=0.2)
                if messages:
                    quiet = time.monotonic()
                found += [(message.body, message.store_timestamp / 1000) for message in messages]
                is_all = {body for body, _ in found} >= self.due.keys()
                if is_all and time.monotonic() - quiet > 1.0:
                    break
        return found

    def judge(self, found: list[tuple[bytes, float]], kills: list[float]) -> int:
        """Nothing lost, nothing early; what came twice came first shortly before a kill. How many came twice."""
        counts = Counter(body for body, _ in found)
        assert not self.due.keys() - counts.keys(), f"lost: {sorted(self.due.keys() - counts.keys())[:5]}"
        assert counts.keys() <= self.due.keys()
        for body, stored in found:
            assert stored >= self.due[body] - 0.005, f"{body!r} came {self.due[body] - stored:.3f} s early"
        again = [body for body, count in counts.items() if count > 1]
        for body in again:
            first = min(stored for other, stored in found if other == body)
            assert any(kill - AGAIN_S <= first <= kill for kill in kills), body
        return len(again)


@pytest.mark.seed("S2-36")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I8")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_kills_of_the_broker_lose_no_timer(tmp_path: Path, flush: str) -> None:
    with seeded() as seed, cluster(tmp_path, flush=flush) as (names, node):
        entropy = SeededEntropy(seed)
        timed, kills = Timed(names.address), []
        timed.send(TIMERS, 1.0, SPREAD_S)
        for _ in range(KILLS):
            time.sleep(0.5 + entropy.fraction())
            node.kill()
            kills.append(time.time())
            node.start()
            wait_known(names.address)
        found = timed.drain(time.monotonic() + SPREAD_S + DEADLINE_S)
        again = timed.judge(found, kills)
        print(f"{len(timed.due)} timers, {KILLS} kills, {again} came twice, flush {flush}")


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I8")
def test_a_new_master_delivers_what_waits(tmp_path: Path) -> None:
    with ready(tmp_path) as found:
        timed = Timed(found.names.address)
        timed.send(200, 1.0, 5.0)
        with penstock.Producer(found.names.address, send_timeout_ms=20_000) as producer:
            recalled = producer.send(TOPIC, b"never", delay=RECALLED_S)
            recalled_until = time.time() + RECALLED_S + 1
            found.wait(3)
            time.sleep(2.0)
            master, epoch = found.leader()
            kill = time.time()
            master.kill()
            found.wait(2, epoch=epoch + 1)
            producer.recall(recalled.recall_handle)  # waits until name servers have heard of the new master
            assert time.time() < recalled_until - 1, "recalled too late to show anything"
            arrived = timed.drain(time.monotonic() + DEADLINE_S)
            time.sleep(max(recalled_until - time.time(), 0))
            assert b"never" not in {body for body, _ in timed.drain(time.monotonic() + DEADLINE_S)}
        again = timed.judge(arrived, [kill])
        print(f"{len(timed.due)} timers, the master was killed, {again} came twice")
