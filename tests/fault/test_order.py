"""Consumers in order keep the order of every queue while members come and go and while the master is killed.

That the check would see one swap is shown on the history of each run: each of its swaps is refused. Figures are
printed: `pytest -s`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from tests.fault.order_checks import Delivery, check_order, swapped
from tests.support.broker_set import broker_set
from tests.support.server_processes import cluster
from tests.waiting import until_done, wait_until

TOPIC, GROUP, KEYS, QUEUES = "in-order", "g", 8, 4
SETTINGS = {
    "start_from": "first",
    "orderly": True,
    "rebalance_interval_ms": 500,
    "lock_interval_ms": 500,
    "persist_interval_ms": 200,
    "route_interval_ms": 500,
    "heartbeat_interval_ms": 1_000,
    "reconnect_interval_ms": 100,
    "rest_ms": 50,
}


class Senders:
    """One thread per key; a number is sent until it is acknowledged, then comes the next."""

    def __init__(self, address: str) -> None:
        self._producer = penstock.Producer(address, group="senders", reconnect_interval_ms=100)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f"k{n}",)) for n in range(KEYS)]
        self.sent: dict[str, int] = {}

    def _run(self, key: str) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                self._producer.send(TOPIC, b"%s %d" % (key.encode(), number), queue_key=key)
            except penstock.PenstockError:
                time.sleep(0.05)
                continue
            self.sent[key] = number
            number += 1
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._producer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._producer.close()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


class Members:
    """Consumers of one group in order, and everything that they were given, in the order in which it began."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._begun: list[tuple[str, ReceivedMessage, float]] = []
        self._ended: dict[int, float] = {}
        self._consumers: dict[str, penstock.Consumer] = {}

    def join(self, name: str) -> None:
        def take(message: ReceivedMessage) -> None:
            with self._lock:
                number = len(self._begun)
                self._begun.append((name, message, time.monotonic()))
            time.sleep(0.002)
            with self._lock:
                self._ended[number] = time.monotonic()

        consumer = penstock.Consumer(self._address, GROUP, listener=take, **SETTINGS)
        consumer.start()
        consumer.subscribe(TOPIC)
        self._consumers[name] = consumer

    def leave(self, name: str) -> None:
        self._consumers.pop(name).close()

    def close(self) -> None:
        for name in list(self._consumers):
            self.leave(name)

    def wait_work(self, *names: str) -> None:
        """Wait until each of these members has been given ten more messages."""
        before = len(self._begun)

        def given() -> bool:
            with self._lock:
                later = Counter(name for name, _, _ in self._begun[before:])
            return all(later[name] >= 10 for name in names)

        wait_until(given, f"work for {names}")

    @property
    def count(self) -> int:
        return len(self._begun)

    def numbers(self) -> dict[str, int]:
        """The last number of each key that was delivered."""
        with self._lock:
            begun = list(self._begun)
        return {delivery.key: delivery.number for delivery in self._deliveries(begun)}

    def history(self) -> list[Delivery]:
        return self._deliveries(self._begun)

    def _deliveries(self, begun: list[tuple[str, ReceivedMessage, float]]) -> list[Delivery]:
        found = []
        for at, (name, message, began_s) in enumerate(begun):
            key, number = message.body.decode().split()
            ended_s = self._ended.get(at, began_s)
            queue = message.queue.queue_id
            found.append(Delivery(queue, message.queue_offset, key, int(number), name, began_s, ended_s))
        return found


def judge(members: Members, *, one_at_a_time: bool) -> None:
    history = members.history()
    figures = check_order(history, one_at_a_time=one_at_a_time)
    refused = 0
    # Every swap would be seen; a few hundred, spread over the whole, are shown to be.
    for at in range(0, len(history), max(1, len(history) // 300)):
        changed = swapped(history, at)
        if changed is not None:
            with pytest.raises(AssertionError):
                check_order(changed, one_at_a_time=False)
            refused += 1
    print(f"{figures}; {refused} swaps refused")
    assert refused > 20
    assert figures.changes > 0


@pytest.mark.invariant("I3")
@pytest.mark.slow
def test_order_holds_while_members_come_and_go(tmp_path: Path) -> None:
    with cluster(tmp_path, flush="async") as (names, _), ExitStack() as ending:
        with penstock.Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        members = Members(names.address)
        ending.callback(members.close)
        with Senders(names.address) as senders:
            members.join("a")
            wait_until(lambda: members.count > 50, "the first messages")
            members.join("b")
            members.wait_work("b")
            members.join("c")
            members.wait_work("c")
            members.leave("a")
            members.wait_work("b", "c")
            members.join("d")
            members.leave("b")
            members.wait_work("c", "d")
        wait_until(lambda: members.numbers() == senders.sent, "everything is delivered")
        members.close()
        judge(members, one_at_a_time=True)


@pytest.mark.fault("F1")
@pytest.mark.invariant("I3")
@pytest.mark.slow
def test_order_holds_through_a_failover(tmp_path: Path) -> None:
    with broker_set(tmp_path) as found, ExitStack() as ending:
        found.wait(3)
        address = found.names.address
        with penstock.Admin(address) as admin:
            # The master is elected, and perhaps not yet known to the name server.
            until_done(lambda: admin.create_topic(TOPIC, QUEUES))
        members = Members(address)
        ending.callback(members.close)
        with Senders(address) as senders:
            members.join("a")
            members.join("b")
            wait_until(lambda: members.count > 100, "the first messages")
            master, epoch = found.leader()
            master.kill()
            members.join("c")  # in the middle of it
            found.wait(2, epoch=epoch + 1)
            count = members.count
            wait_until(lambda: members.count > count + 200, "messages after the failover")
            members.leave("a")
            members.wait_work("b", "c")
        wait_until(lambda: members.numbers() == senders.sent, "everything is delivered")
        members.close()
        judge(members, one_at_a_time=False)


# -- the check itself --------------------------------------------------------------------------------------------


def line(*offsets: int, consumer: str = "a") -> list[Delivery]:
    return [Delivery(0, offset, "k", offset, consumer, 0.0, 0.0) for offset in offsets]


def test_what_is_in_order_passes() -> None:
    assert check_order(line(5, 6, 7)).again == 0
    assert check_order([*line(1, 2, 3), *line(2, 3, 4, consumer="b")]).again == 2
    assert check_order(line(1, 2, 2, 3)).again == 1
    other = [Delivery(1, 9, "l", 0, "a", 0.0, 0.0)]
    assert check_order([*line(1), *other, *line(2)]).deliveries == 3


@pytest.mark.parametrize(
    "wrong",
    [
        line(1, 3, 2, 4),
        line(1, 2, 4),
        [*line(1, 2, 3, 4), *line(2, 4, 3, consumer="b")],
        [*line(1), *line(3, consumer="b"), *line(2)],
        [Delivery(0, 0, "k", 1, "a", 0, 0), Delivery(0, 1, "k", 0, "a", 0, 0)],
        [Delivery(0, 0, "k", 0, "a", 0.0, 2.0), Delivery(0, 1, "k", 1, "b", 1.0, 3.0)],
    ],
)
def test_what_is_not_is_refused(wrong: list[Delivery]) -> None:
    with pytest.raises(AssertionError):
        check_order(wrong)


def test_each_single_swap_is_refused() -> None:
    history = [*line(*range(50)), *line(*range(45, 80), consumer="b")]
    for at in range(len(history)):
        changed = swapped(history, at)
        if changed is not None:
            with pytest.raises(AssertionError):
                check_order(changed)
