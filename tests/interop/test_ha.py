"""Classic sets of mixed brokers: a Java slave of a Penstock master, a Penstock slave of a Java master.

Brokers as they are started in production, found through name servers. In the end the logs are the same byte for byte,
and the slave, whoever's it is, knows topics, groups and offsets and hands out everything when the master is gone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.metadata.fastjson import loads
from tests.interop.java_errors import RegistryOutOfReach
from tests.interop.java_release import VERSIONS, missing_tools, prepare_build
from tests.interop.wire import rocketmq_server
from tests.interop.wire.driver import Driver
from tests.interop.wire.frames import Wire
from tests.interop.wire.peer import Peer
from tests.interop.wire.penstock_server import Penstock
from tests.interop.wire.rocketmq_server import SERVER_BUILD
from tests.interop.wire.small_rocketmq import SEGMENT, SmallRocketMQ
from tests.support.server_processes import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.java, pytest.mark.timeout(400)]
TOPIC = "ha-orders"
GROUP = "ha-readers"
SMALL = (
    f"store.segment_size_bytes={SEGMENT}",
    f"store.max_message_size_bytes={SEGMENT // 4}",
    "store.queue_file_entries=15000",
)


@pytest.fixture(autouse=True)
def java() -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        prepare_build(SERVER_BUILD)
    except RegistryOutOfReach as unreachable:
        pytest.skip(str(unreachable))


@pytest.fixture
def java_client(tmp_path: Path) -> Iterator[Driver]:
    """An unmodified Java client of the newest release."""
    folder = tmp_path / "java-client"
    folder.mkdir()
    driver = Driver("java", rocketmq_server.client_command(VERSIONS[0], folder), folder)
    yield driver
    driver.kill()


class JavaSlave(SmallRocketMQ):
    """It finds its master through a name server of ours."""

    def _is_registered(self) -> bool:
        """A permission that is set, if to the same value, makes it register at once instead of after ten seconds."""
        with Wire(self.broker) as wire:
            wire.call(25, body=b"brokerPermission=6")
        return True


def body(number: int) -> bytes:
    """Something that no client compresses."""
    return b"%06d:" % number + random.Random(number).randbytes(5_000)


def number_of(found: bytes | str) -> int:
    return int(found[:6])


def send(producer: penstock.Producer, first: int, count: int) -> None:
    for number in range(first, first + count):
        assert producer.send(TOPIC, body(number), tag="t", keys=f"k{number}").is_ok


def consume(names: str, group: str, wanted: int, timeout_s: float = 60.0) -> set[int]:
    """Numbers that a group reads, until it has so many different ones; committed where somebody takes it."""
    found: set[int] = set()
    with penstock.Consumer(names, group=group, start_from="first") as consumer:
        consumer.subscribe(TOPIC)
        deadline = time.monotonic() + timeout_s
        while len(found) < wanted and time.monotonic() < deadline:
            found |= {number_of(message.body) for message in consumer.poll(max_messages=100, timeout_s=1)}
        try:
            consumer.commit()
        except penstock.ClientError as error:
            print(f"not committed: {error}")
    return found


def table(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "config" / name
    try:
        found = loads(path.read_bytes())  # Java's files have numbers for keys, without quotes
    except (OSError, penstock.PenstockError):  # not there yet, or just being written
        return {}
    assert isinstance(found, dict)
    return found


def log_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "commitlog").iterdir())}


def assert_same_log(master: Path, slave: Path) -> None:
    mine, copied = log_of(master), log_of(slave)
    assert len(copied) > 3, "over some segments"
    filled = {name: data for name, data in mine.items() if data.strip(b"\0")}
    assert list(filled) == [name for name, data in copied.items() if data.strip(b"\0")]
    for name, data in filled.items():
        assert data == copied[name], f"segment {name} differs"


def queue_entries(folder: Path) -> dict[str, bytes]:
    """What every queue of the topic holds: the entries without the rest of their files."""
    return {
        path.parent.name: path.read_bytes().rstrip(b"\0")
        for path in sorted((folder / "consumequeue" / TOPIC).rglob("*"))
        if path.is_file()
    }


def has_taken_over(folder: Path, group: str) -> bool:
    """Whether a slave's tables name topic, group and offsets."""
    offsets = table(folder, "consumerOffset.json").get("offsetTable", {}).get(f"{TOPIC}@{group}", {})
    return (
        TOPIC in table(folder, "topics.json").get("topicConfigTable", {})
        and group in table(folder, "subscriptionGroup.json").get("subscriptionGroupTable", {})
        and sum(offsets.values()) > 0
    )


@pytest.mark.feature("ha-master", "rocketmq-5.3")
@pytest.mark.seed("S1-26", "S1-28", "S1-29", "S1-32", "S1-88")
@pytest.mark.invariant("I7")
def test_a_java_slave_follows_a_penstock_master(tmp_path: Path) -> None:
    # A Java slave asks for topics at the port two below.
    settings = ("broker.vip_listener=true", "broker.role=sync_master", "broker.in_sync_replicas=2", *SMALL)
    (tmp_path / "penstock").mkdir()
    master = Penstock(tmp_path / "penstock", *settings)
    master_folder, slave_folder = tmp_path / "penstock" / "broker", tmp_path / "java" / "store"
    slave = JavaSlave(
        tmp_path / "java",
        brokerRole="SLAVE",
        brokerId=1,
        namesrvAddr=master.nameserver,
        slaveReadEnable="true",
        timerWheelEnable="false",
    )
    try:
        with penstock.Producer(master.nameserver, send_timeout_ms=10_000) as producer:
            wait_until(lambda: _is_replicated(producer), "the Java slave acknowledges")
            send(producer, 1, 400)
            # The slave dies, and goes on where it was.
            slave.restart(crash=True)
            wait_until(lambda: _is_replicated(producer), "the Java slave is back")
            send(producer, 401, 200)
            results = [producer.send(TOPIC, body(601 + number), delay_level=1) for number in range(3)]
            assert {result.durability for result in results} == {"replicated"}
        assert consume(master.nameserver, GROUP, 604) == set(range(604))
        wait_until(lambda: has_taken_over(slave_folder, GROUP), "the Java slave's tables")
        assert master.broker_process.stop() == 0
        # The Java slave hands out all that the Penstock master had.
        assert consume(master.nameserver, "at-the-slave", 604, 90) == set(range(604))
        assert_same_log(master_folder, slave_folder)
        assert queue_entries(master_folder) == queue_entries(slave_folder)
    finally:
        slave.stop()
        master.broker_process.kill()
        master.name_process.kill()


@pytest.mark.feature("ha-slave", "rocketmq-5.3")
@pytest.mark.seed("S1-26", "S1-28", "S1-29", "S1-88")
@pytest.mark.invariant("I7")
def test_a_penstock_slave_follows_a_java_master(tmp_path: Path, java_client: Driver) -> None:
    master = SmallRocketMQ(tmp_path / "java")
    master_folder = tmp_path / "java" / "store"
    options = ("broker.broker_id=1", "broker.role=slave", f"broker.ha_master_address={master.ha_address}")
    arguments = [part for setting in (*options, *SMALL) for part in ("--set", setting)]
    slave = ServerProcess("broker", tmp_path / "slave", "--nameserver", master.nameserver, *arguments)
    try:
        with slave:
            with penstock.Producer(master.nameserver, send_timeout_ms=10_000) as producer:
                send(producer, 0, 300)
                slave.kill()
                send(producer, 300, 150)
                slave.start()
                send(producer, 450, 150)
                for number in range(600, 603):
                    producer.send(TOPIC, body(number), delay_level=1)
            assert consume(master.nameserver, GROUP, 603) == set(range(603))
            wait_until(lambda: has_taken_over(slave.data, GROUP), "the slave's tables")
            wait_until(
                lambda: table(slave.data, "delayOffset.json").get("offsetTable"), "the progress of delays"
            )
            wait_until(lambda: log_of(slave.data) == _last(log_of(master_folder), slave.data), "the same log")
            master.broker_process.kill()
            # The Penstock slave hands out all that the Java master had, to Python and to Java.
            assert consume(master.nameserver, "at-the-slave", 603, 90) == set(range(603))
            peer = Peer(java_client, master)
            consumer = peer.push(TOPIC, group="java-at-the-slave")
            found = peer.received(consumer, 603, wait_ms=90_000)
            assert {number_of(message["body"]) for message in found} == set(range(603))
            peer.end()
            slave.stop()
        assert_same_log(master_folder, slave.data)
        assert queue_entries(master_folder) == queue_entries(slave.data)
    finally:
        master.stop()


def _is_replicated(producer: penstock.Producer) -> bool:
    try:
        return producer.send(TOPIC, body(0)).durability == "replicated"
    except penstock.PenstockError:
        return False


def _last(log: dict[str, bytes], slave: Path) -> dict[str, bytes]:
    """The segments of a log that the slave has, too."""
    return {name: data for name, data in log.items() if (slave / "commitlog" / name).exists()}
