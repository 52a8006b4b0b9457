"""The master of a coordinated set dies, sleeps or leaves, in real processes: another takes over, nothing is lost.

Times are printed (`pytest -s`); `benchmarks/failover.py` measures them over many kills.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.received import ReceivedMessage
from penstock.errors import PenstockError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.effort import by_length
from tests.support.broker_set import NAME, BrokerSet, broker_set, log_end, raw
from tests.support.server_processes import ServerProcess
from tests.waiting import DEADLINE_S, until_done, wait_until

TOPIC, GROUP = "orders", "workers"


class Sends:
    """One producer that sends one message after the other, and remembers what was acknowledged and when."""

    def __init__(self, name_servers: str, durability: str = "", **settings: Any) -> None:
        self._name_servers = name_servers
        # Many short attempts: one at a master that sleeps is given up soon, and a busy machine has time.
        self._settings = {"durability": durability, "retries": 10, **settings}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[tuple[bytes, float]] = []
        self.failures: list[str] = []

    def _run(self) -> None:
        number = 0
        with penstock.Producer(self._name_servers, **self._settings) as producer:
            while not self._stopping.is_set():
                number += 1
                body = b"%08d" % number
                try:
                    producer.send(TOPIC, body)
                except PenstockError as error:
                    self.failures.append(str(error))
                else:
                    self.acknowledged.append((body, time.monotonic()))
                time.sleep(0.002)

    def after(self, moment: float) -> float:
        """Wait until a message is acknowledged later than a moment, and not by an answer that was on its way then;
        the seconds to the first such."""

        def later() -> bool:
            return bool(self.acknowledged) and self.acknowledged[-1][1] > moment + 0.05

        wait_until(later, lambda: f"something acknowledged: {self.failures[-3:]}")
        return next(at for _, at in self.acknowledged if at > moment + 0.05) - moment

    def wait_more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(
            lambda: len(self.acknowledged) >= wanted, lambda: f"{count} acknowledged: {self.failures[-3:]}"
        )

    @property
    def bodies(self) -> set[bytes]:
        return {body for body, _ in self.acknowledged}

    def __enter__(self) -> Sends:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


class Listening:
    """A consumer that is there all the time, and what it got."""

    def __init__(self, name_servers: str) -> None:
        self.bodies: set[bytes] = set()
        self._consumer = penstock.Consumer(
            name_servers, GROUP, start_from="first", listener=self._take, persist_interval_ms=500
        )

    def _take(self, message: ReceivedMessage) -> None:
        self.bodies.add(message.body)

    def wait_for(self, wanted: set[bytes]) -> None:
        wait_until(lambda: wanted <= self.bodies, lambda: f"the bodies {sorted(wanted - self.bodies)[:5]}")

    def __enter__(self) -> Listening:
        self._consumer.start()
        self._consumer.subscribe(TOPIC)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def consume_all(name_servers: str, wanted: set[bytes], timeout_s: float = DEADLINE_S) -> list[bytes]:
    """Bodies that a new group gets, until it has those that are wanted."""
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    with penstock.Consumer(name_servers, "auditors", start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        while not wanted <= set(found):
            assert time.monotonic() < deadline, f"missing: {sorted(wanted - set(found))[:5]}"
            found += [message.body for message in consumer.poll(256, timeout_s=0.5)]
    return found


@contextmanager
def ready(folder: Path, *arguments: str, **more: Any) -> Iterator[BrokerSet]:
    """A set that has the topic; `more` as of `broker_set`."""
    with broker_set(folder, *arguments, **more) as found:
        with penstock.Admin(found.names.address) as admin:
            until_done(lambda: admin.create_topic(TOPIC, queues=4))
        yield found


# -- kill -9 -------------------------------------------------------------------------------------------------


@pytest.mark.feature("failover", "fifth-seed")
@pytest.mark.seed("S4-20", "S4-21")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I7")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path, flush: str) -> None:
    with ready(tmp_path, flush=flush) as found:
        with Listening(found.names.address) as consumer, Sends(found.names.address) as sends:
            for _ in range(by_length(1, 10)):
                sends.wait_more()
                master, epoch = found.leader()
                master.kill()
                killed = time.monotonic()
                took = sends.after(killed)
                print(f"acknowledged again after {took:.2f} s")
                assert found.wait(2, epoch=epoch + 1).master_address != master.address
                master.start()
            found.wait(3)
            sends.wait_more()
            consumer.wait_for(sends.bodies)
        assert not sends.failures
        got = consume_all(found.names.address, sends.bodies)
        assert sorted(set(got)) == sorted(sends.bodies)
        found.assert_equal_logs()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_set_of_which_everybody_was_killed_comes_back_with_everything(tmp_path: Path) -> None:
    with ready(tmp_path) as found:
        with penstock.Admin(found.names.address) as admin:
            admin.create_group(GROUP)
        with Sends(found.names.address) as sends:
            sends.wait_more()
            assert commit(found.master(), 7).code == 0
            found.kill_all()
            killed = time.monotonic()
            for node in found.brokers:
                node.start()
            found.wait(3)
            sends.after(killed)
        assert committed_soon(found.master()) == 7
        consume_all(found.names.address, sends.bodies)
        found.assert_equal_logs()


# -- a pause -------------------------------------------------------------------------------------------------


def send_to(node: ServerProcess, body: bytes, durability: str) -> Command:
    header = SendMessageRequestHeader(
        producer_group="p", topic=TOPIC, queue_id=0, born_timestamp=1, broker_name=NAME, durability=durability
    )
    return raw(node.address, Command(RequestCode.SEND_MESSAGE_V2, header.encode(), body), timeout_ms=20_000)


@pytest.mark.fault("F2")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I5")
@pytest.mark.invariant("I6")
@pytest.mark.invariant("I7")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["", "memory"])
def test_a_master_that_slept_over_its_lease_acknowledges_nothing_and_follows(
    tmp_path: Path, durability: str
) -> None:
    with ready(tmp_path) as found:
        answers: list[Command | BaseException] = []

        def ask(number: int) -> None:
            try:
                answers.append(send_to(old, b"never %d" % number, durability))
            except PenstockError as error:
                answers.append(error)

        with Sends(found.names.address, durability) as sends:
            sends.wait_more()
            old, epoch = found.leader()
            # What is acknowledged by now is copied before it falls asleep.
            copied, end = time.monotonic(), int(log_end(old))
            wait_until(lambda: all(int(one) >= end for one in found.log_ends()), "copies of that")
            old.pause()
            paused = time.monotonic()
            # These wait in the sleeper's sockets, and are the first that it sees when it wakes.
            threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            took = sends.after(paused)
            print(f"acknowledged again after {took:.2f} s")
            assert found.wait(2, epoch=epoch + 1).master_address != old.address
            replaced = time.monotonic()
            sends.wait_more()
            old.resume()
            for thread in threads:
                thread.join()
            found.wait(3)
            sends.wait_more()
        assert len(answers) == 8
        for answer in answers:
            assert not isinstance(answer, Command) or answer.code != ResponseCode.SUCCESS, answer
        wanted = sends.bodies
        if durability == "memory":
            # What only the sleeper had when it fell asleep is lost with its mastership: that is what memory means.
            wanted = {body for body, at in sends.acknowledged if not copied <= at <= replaced}
        got = consume_all(found.names.address, wanted)
        assert not [body for body in got if body.startswith(b"never")]
        found.assert_equal_logs()


# -- offsets -------------------------------------------------------------------------------------------------


def commit(node: ServerProcess, offset: int) -> Command:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset
    )
    return raw(node.address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()))


def committed(node: ServerProcess) -> int:
    header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0)
    answer = raw(node.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()), 5_000)
    assert answer.code == 0, answer
    return int(answer.fields["offset"])


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.long
@pytest.mark.timeout(600)
def test_committed_offsets_groups_and_topics_do_not_go_back(tmp_path: Path) -> None:
    """The kill comes right behind the answer: nothing but replication can have carried it."""
    with ready(tmp_path) as found, penstock.Admin(found.names.address) as admin:
        admin.create_group(GROUP)
        admin.create_topic("late", queues=3)
        offset = 0
        for _ in range(by_length(2, 20)):
            master, epoch = found.leader()
            for _ in range(10):
                offset += 1
                answer = commit(master, offset)
                assert answer.code == 0, answer
            master.kill()
            successor = found.master(epoch=epoch + 1)
            assert committed_soon(successor) == offset
            master.start()
        found.wait(3)
        assert GROUP in admin.list_groups()
        assert "late" in admin.list_topics()


def committed_soon(node: ServerProcess) -> int:
    """It may be elected and not act yet: then it says nothing, rather than something old."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return committed(node)
        except (AssertionError, PenstockError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.invariant("I1")
def test_a_replica_takes_no_offsets_and_tells_none(tmp_path: Path) -> None:
    with ready(tmp_path) as found:
        with penstock.Admin(found.names.address) as admin:
            admin.create_group(GROUP)
        for node in found.replicas():
            assert commit(node, 5).code == ResponseCode.SERVICE_NOT_AVAILABLE
            header = QueryConsumerOffsetRequestHeader(consumer_group=GROUP, topic=TOPIC, queue_id=0)
            answer = raw(node.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert send_to(node, b"no", "").code == ResponseCode.SYSTEM_BUSY


# -- leaving, and losing the coordinator ---------------------------------------------------------------------


@pytest.mark.invariant("I1")
def test_a_master_that_stops_gives_its_place_up_at_once(tmp_path: Path) -> None:
    with ready(tmp_path) as found:
        with Sends(found.names.address) as sends:
            sends.wait_more()
            master, epoch = found.leader()
            began = time.monotonic()
            master.stop()
            found.wait(2, epoch=epoch + 1)
            took = sends.after(began)
            print(f"acknowledged again after {took:.2f} s")
            sends.wait_more()
            master.start()
            found.wait(3)
        assert not sends.failures
        consume_all(found.names.address, sends.bodies)
        found.assert_equal_logs()


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_a_set_goes_on_without_its_coordinator(tmp_path: Path) -> None:
    """Its lease runs out: what every member has is acknowledged all the same, what only the master has is not."""
    with ready(tmp_path) as found:
        master = found.master()
        with Sends(found.names.address) as sends:
            sends.wait_more()
            found.coordinator.kill()
            wait_until(
                lambda: send_to(master, b"probe", "memory").code == ResponseCode.SERVICE_NOT_AVAILABLE,
                "the end of the master's lease",
            )
            sends.wait_more()
            answer = send_to(master, b"alone", "memory")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            found.coordinator.start()
            found.wait(3)
            wait_until(
                lambda: send_to(master, b"leased", "memory").code == ResponseCode.SUCCESS, "another lease"
            )
        assert not sends.failures
        assert found.master() is master
        got = consume_all(found.names.address, sends.bodies)
        assert b"alone" not in got
        found.assert_equal_logs()
