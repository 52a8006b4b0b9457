"""Messages for arbitrary times with unmodified clients, at RocketMQ and at Penstock; and each on the other's directory."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.java_release import missing_tools
from tests.interop.wire.conftest import Drivers
from tests.interop.wire.driver import DriverError
from tests.interop.wire.peer import Peer, Server, bodies
from tests.interop.wire.penstock_server import Penstock
from tests.interop.wire.rocketmq_server import RocketMQ
from tests.waiting import wait_until

JAVA = "java-5.3.3"
# A second is RocketMQ's precision; the rest is for a busy machine.
LATE_MAX_MS = 10_000


@pytest.fixture
def timer_peer(server: Server, drivers: Drivers) -> Iterator[Peer]:
    """The Java client that knows times, at each server."""
    found = Peer(drivers.get(JAVA), server)
    yield found
    found.end()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.feature("arbitrary-delay", "rocketmq-5.3")
@pytest.mark.seed("S2-36")
@pytest.mark.invariant("I8")
def test_a_message_comes_at_its_time(timer_peer: Peer) -> None:
    topic = timer_peer.create_topic(queues=1)
    consumer = timer_peer.push(topic)
    start_ms = now_ms()
    results = timer_peer.send(
        topic,
        [
            {"body": "seconds", "delaySec": 2, "keys": "k", "tags": "t"},
            {"body": "milliseconds", "delayMs": 2_500},
            {"body": "moment", "deliverMs": start_ms + 4_250},
            {"body": "past", "deliverMs": start_ms - 60_000},
        ],
    )
    assert {result["status"] for result in results} == {"SEND_OK"}
    assert [bool(result.get("recallHandle")) for result in results] == [True, True, True, False]
    found = {message["body"]: message for message in timer_peer.received(consumer, 4, wait_ms=30_000)}
    for body, ahead_ms in (("seconds", 2_000), ("milliseconds", 2_500), ("moment", 4_250)):
        late_ms = found[body]["storeTimestamp"] - start_ms - ahead_ms
        assert -5 <= late_ms < LATE_MAX_MS, (body, late_ms)
        properties = found[body]["properties"]
        assert properties["REAL_TOPIC"] == topic
        assert {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= properties.keys()
    assert (found["seconds"]["keys"], found["seconds"]["tags"]) == ("k", "t")
    assert found["past"]["storeTimestamp"] - start_ms < 2_000 + LATE_MAX_MS


@pytest.mark.feature("arbitrary-delay", "rocketmq-5.3")
@pytest.mark.abuse("A18")
def test_a_time_too_far_ahead_is_refused(timer_peer: Peer) -> None:
    topic = timer_peer.create_topic(queues=1)
    for spec in ({"delaySec": 259_300}, {"deliverMs": 2**63 - 1}):
        with pytest.raises(DriverError) as refused:
            timer_peer.send(topic, [{"body": "never", **spec}])
        assert refused.value.code == 13


@pytest.mark.feature("recall", "rocketmq-5.3")
def test_a_recalled_message_never_comes(timer_peer: Peer) -> None:
    topic = timer_peer.create_topic(queues=1)
    consumer = timer_peer.push(topic)
    due_ms = now_ms() + 6_000
    results = timer_peer.send(topic, [{"body": f"m{number}", "deliverMs": due_ms} for number in range(3)])
    handle = results[1]["recallHandle"]
    answer = timer_peer.driver.do("recall", name=timer_peer.producer(), topic=topic, handle=handle)
    assert answer["msgId"] == results[1]["msgId"]
    timer_peer.received(consumer, 2, wait_ms=30_000)
    time.sleep(1.5)
    assert bodies(timer_peer.received(consumer, 3, wait_ms=10)) == ["m0", "m2"]
    with pytest.raises(DriverError) as refused:
        timer_peer.driver.do("recall", name=timer_peer.producer(), topic=topic, handle=handle)
    assert refused.value.code == 604


@pytest.mark.feature("arbitrary-delay", "rocketmq-5.3")
def test_a_go_client_can_ask_for_a_time_by_property(go_peer: Peer) -> None:
    topic = go_peer.fresh("topic")
    start_ms = now_ms()
    go_peer.send(topic, [{"body": "later", "properties": {"TIMER_DELAY_MS": "2000"}}])
    (message,) = go_peer.received(go_peer.push(topic), 1, wait_ms=30_000)
    assert message["storeTimestamp"] - start_ms >= 1_995


# -- each other's directory ------------------------------------------------------------------------------------


def timed(peer: Peer, topic: str, start_ms: int) -> None:
    peer.send(
        topic,
        [{"body": f"m{number}", "deliverMs": start_ms + 1_000 + number * 500} for number in range(60)],
    )


@pytest.mark.feature("arbitrary-delay", "rocketmq-5.3")
@pytest.mark.fault("F15")
@pytest.mark.invariant("I8")
def test_timers_of_a_java_broker_go_on_at_penstock(tmp_path: Path, drivers: Drivers) -> None:
    if missing_tools() is not None:
        pytest.skip(str(missing_tools()))
    java = RocketMQ(tmp_path)
    peer = Peer(drivers.get(JAVA), java)
    try:
        topic = peer.create_topic(queues=1)
        start_ms = now_ms()
        timed(peer, topic, start_ms)
        consumer = peer.push(topic)
        peer.received(consumer, 5, wait_ms=30_000)
        time.sleep(2.5)  # its checkpoint is written every second
        before = {message["body"] for message in peer.received(consumer, 60, wait_ms=10)}
    finally:
        peer.end()
        java.stop()
    assert 5 <= len(before) < 60
    (tmp_path / "ours").mkdir()
    shutil.copytree(tmp_path / "store", tmp_path / "ours" / "broker")
    sizes = (f"store.segment_size_bytes={64 << 20}", "store.queue_file_entries=15000")
    more = ("store.index_slots=25000", "store.index_entries=100000")
    ours = Penstock(tmp_path / "ours", *sizes, *more)
    peer = Peer(drivers.get(JAVA), ours)
    try:
        consumer = peer.push(topic)

        def all_are_there() -> bool:
            """By body: some come twice, so that sixty are not yet all of them."""
            return len({message["body"] for message in peer.received(consumer, 200, wait_ms=10)}) == 60

        wait_until(all_are_there, "every message comes")
        time.sleep(1)
        found = peer.received(consumer, 200, wait_ms=10)
        log = ours.log_tail()
    finally:
        peer.end()
        ours.stop()
    assert {message["body"] for message in found} == {f"m{number}" for number in range(60)}
    # What its last second delivered after the checkpoint may come again.
    assert len(found) <= 60 + 6
    for message in found:
        if message["body"] not in before:
            due_ms = start_ms + 1_000 + int(message["body"][1:]) * 500
            assert message["storeTimestamp"] >= due_ms - 5
    assert "made anew" not in log


@pytest.mark.fault("F15")
def test_timers_of_penstock_go_on_at_a_java_broker(tmp_path: Path, drivers: Drivers) -> None:
    """It opens our wheel, timer log and checkpoint, and delivers what waits; what we delivered it does not again."""
    if missing_tools() is not None:
        pytest.skip(str(missing_tools()))
    (tmp_path / "ours").mkdir()
    sizes = (f"store.segment_size_bytes={64 << 20}", "store.queue_file_entries=15000")
    more = ("store.index_slots=25000", "store.index_entries=100000")
    ours = Penstock(tmp_path / "ours", *sizes, *more)
    peer = Peer(drivers.get(JAVA), ours)
    try:
        topic = peer.create_topic(queues=1)
        start_ms = now_ms()
        timed(peer, topic, start_ms)
        before = {message["body"] for message in peer.received(peer.push(topic), 5, wait_ms=30_000)}
    finally:
        peer.end()
        ours.stop()
    assert 5 <= len(before) < 60
    (tmp_path / "java").mkdir()
    shutil.copytree(tmp_path / "ours" / "broker", tmp_path / "java" / "store")
    java = RocketMQ(tmp_path / "java")
    peer = Peer(drivers.get(JAVA), java)
    try:
        consumer = peer.push(topic)
        peer.received(consumer, 60, wait_ms=90_000)
        time.sleep(3)
        found = peer.received(consumer, 200, wait_ms=10)
    finally:
        peer.end()
        java.stop()
    counts = Counter(message["body"] for message in found)
    assert set(counts) == {f"m{number}" for number in range(60)}
    # What came in the second in which we stopped may come again.
    assert sum(counts.values()) <= 60 + 6
    for message in found:
        # Its precision is a second, and it may be early by that.
        due_ms = start_ms + 1_000 + int(message["body"][1:]) * 500
        assert message["storeTimestamp"] >= due_ms - 1_005
