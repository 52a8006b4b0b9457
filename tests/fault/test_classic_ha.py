"""A classic master and its slave as processes: killed, started again, read from; in the end the same bytes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.effort import by_length
from tests.support.server_processes import ServerProcess, broker, name_server, wait_known
from tests.waiting import PATIENT_SENDS, wait_until

TOPIC = "ha-orders"
VICTIMS = ("slave", "master", "slave") * by_length(1, 15)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def settings(**options: object) -> list[str]:
    return [part for name, value in options.items() for part in ("--set", f"broker.{name}={value}")]


@contextmanager
def pair(
    folder: Path, *, flush: str = "async", **master_options: object
) -> Iterator[tuple[ServerProcess, ServerProcess, ServerProcess]]:
    """A name server, a master and its slave, all of them known."""
    with name_server(folder / "names") as names:
        master_arguments = settings(**master_options)
        slave_arguments = settings(broker_id=1, role="slave")
        with (
            broker(folder / "master", names.address, *master_arguments, flush=flush) as master,
            broker(folder / "slave", names.address, *slave_arguments, flush=flush) as slave,
        ):
            wait_known(names.address)
            yield names, master, slave


def send_replicated(producer: penstock.Producer, first: int, count: int) -> list[bytes]:
    """Messages of which every one is acknowledged as being on the slave."""
    sent = []
    for number in range(first, first + count):
        body = b"%06d " % number + b"x" * (number % 700)

        def one(body: bytes = body) -> bool:
            try:
                result = producer.send(TOPIC, body, keys=f"k{body[:6].decode()}", durability="replicated")
            except penstock.PenstockError:
                return False
            return result.durability == "replicated"

        wait_until(one, "a replicated send")
        sent.append(body)
    return sent


def commit_log(server: ServerProcess) -> dict[str, bytes]:
    """The log of a server that has ended, by segment."""
    return {path.name: path.read_bytes() for path in sorted((server.data / "commitlog").iterdir())}


def assert_same_log(master: ServerProcess, slave: ServerProcess) -> None:
    mine, copied = commit_log(master), commit_log(slave)
    assert copied
    assert [name for name in mine if name >= min(copied)] == list(copied)
    for name, data in copied.items():
        assert data == mine[name], f"segment {name} differs"


def table(server: ServerProcess, name: str) -> dict[str, Any]:
    path = server.data / "config" / name
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def bodies_of(names: str, group: str, wanted: int, timeout_s: float = 90.0) -> list[bytes]:
    """What a new group reads, until it has so many."""
    found: list[bytes] = []
    with penstock.Consumer(names, group=group, start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        deadline = time.monotonic() + timeout_s
        while len(found) < wanted and time.monotonic() < deadline:
            found += [message.body for message in consumer.poll(max_messages=500, timeout_s=1)]
        _commit(consumer)
    return found


@pytest.mark.seed("S1-29")
@pytest.mark.seed("S0-18")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I2", "I3")
@pytest.mark.long
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_kills_of_either_leave_the_same_log_in_both(tmp_path: Path, flush: str) -> None:
    with pair(tmp_path, flush=flush) as (names, master, slave):
        with penstock.Producer(names.address, group="shop") as producer:
            sent = send_replicated(producer, 0, 100)
            stop = threading.Event()
            extra: list[bytes] = []

            def load() -> None:
                number = 0
                while not stop.is_set():
                    body = b"load %d " % number + b"y" * (number % 3_000)
                    try:
                        if producer.send(TOPIC, body).is_ok:
                            extra.append(body)
                    except penstock.PenstockError:
                        time.sleep(0.05)
                    number += 1

            thread = threading.Thread(target=load)
            thread.start()
            try:
                for victim in VICTIMS:
                    stored = len(extra)
                    wait_until(lambda stored=stored: len(extra) > stored + 20, "load that is stored")  # type: ignore[misc]
                    (slave if victim == "slave" else master).kill()
                    time.sleep(0.2)
                    (slave if victim == "slave" else master).start()
                stored = len(extra)
                wait_until(lambda: len(extra) > stored + 20, "load that is stored at last")
            finally:
                stop.set()
                thread.join()
            sent += send_replicated(producer, 300, 50)
        found = bodies_of(names.address, f"all-{flush}", len(sent) + len(extra))
        assert set(sent) | set(extra) <= set(found)
        # The slave has what the master's groups have come to: it follows the tables, too.
        wait_until(
            lambda: table(slave, "consumerOffset.json").get("offsetTable", {}).get(f"{TOPIC}@all-{flush}"),
            "the slave knows the group's offsets",
        )
        master.stop()
        slave.stop()
        assert_same_log(master, slave)
        assert TOPIC in table(slave, "topics.json")["topicConfigTable"]
        assert f"all-{flush}" in table(slave, "subscriptionGroup.json")["subscriptionGroupTable"]


@pytest.mark.seed("S1-28")
@pytest.mark.seed("S1-32")
@pytest.mark.seed("S0-31")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_consumers_go_on_at_the_slave_while_the_master_is_gone_and_return(tmp_path: Path) -> None:
    patient = {"role": "sync_master", "in_sync_replicas": 2, "slave_timeout_ms": 60_000}
    with pair(tmp_path, **patient) as (names, master, slave):
        with penstock.Producer(names.address, group="shop", **PATIENT_SENDS) as producer:
            wait_until(lambda: _sends(producer), "the slave is in sync")
            results = [producer.send(TOPIC, b"%d" % number) for number in range(200)]
            assert {result.durability for result in results} == {"replicated"}
            with penstock.Consumer(names.address, group="readers", start_from="first") as consumer:
                consumer.subscribe(TOPIC)
                found = _poll(consumer, 100)
                master.kill()
                # What nobody has read yet comes from the slave; nothing was lost with the master.
                found += _poll(consumer, 201 - len(found), timeout_s=90)
                assert {b"%d" % number for number in range(200)} <= set(found)
                with penstock.Admin(names.address) as admin:
                    # The name server may notice it later than the consumer did.
                    wait_until(
                        lambda: (
                            [one.broker_id for one in admin.cluster_status().brokers if not one.down_since_ms]
                            == [1]
                        ),
                        "the slave is left",
                    )
                with pytest.raises(penstock.PenstockError):
                    producer.send(TOPIC, b"nobody takes this")
                # A group that begins now reads all of it there.
                assert {b"%d" % number for number in range(200)} <= set(bodies_of(names.address, "late", 201))
                master.start()
                wait_until(lambda: _sends(producer), "the master takes messages again")
                assert producer.send(TOPIC, b"after").durability == "replicated"
                assert b"after" in _poll(consumer, 1, timeout_s=90, last=b"after")
        master.stop()
        slave.stop()
        assert_same_log(master, slave)


@pytest.mark.seed("S1-32")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_a_slave_started_as_master_has_everything_acknowledged_as_replicated(tmp_path: Path) -> None:
    """Failing over by hand: the old master is gone with its disk."""
    with (
        pair(tmp_path, role="sync_master", in_sync_replicas=2) as (names, master, slave),
        penstock.Producer(names.address, group="shop") as producer,
    ):
        sent = send_replicated(producer, 0, 200)
        offsets = [producer.send(TOPIC, b"tail", queue_key="one").queue_offset for _ in range(10)]
        master.kill()
        slave.kill()
    with (
        name_server(tmp_path / "names") as names,
        broker(tmp_path / "slave", names.address, flush="async") as promoted,
    ):
        wait_known(names.address)
        with penstock.Producer(names.address, group="shop") as producer:
            result = producer.send(TOPIC, b"tail", queue_key="one")
            assert result.queue_offset == offsets[-1] + 1  # no offset is used twice
        assert set(sent) <= set(bodies_of(names.address, "all", len(sent) + 11))
        promoted.stop()


def _sends(producer: penstock.Producer) -> bool:
    try:
        return producer.send(TOPIC, b"probe").durability == "replicated"
    except penstock.PenstockError:
        return False


def _poll(
    consumer: penstock.Consumer, wanted: int, timeout_s: float = 90.0, last: bytes | None = None
) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and (len(found) < wanted if last is None else last not in found):
        found += [message.body for message in consumer.poll(max_messages=20, timeout_s=0.5)]
        _commit(consumer)
    return found


def _commit(consumer: penstock.Consumer) -> None:
    """Only a master takes offsets. While there is none they are kept by the consumer."""
    with suppress(penstock.ClientError):
        consumer.commit()
