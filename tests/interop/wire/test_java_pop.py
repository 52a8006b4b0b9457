"""RocketMQ's own 5.3 push consumer in POP mode at Penstock: the broker divides, hands out, and takes back what is not
acknowledged. The mode of a group is set with RocketMQ's own mqadmin."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.wire.conftest import Drivers
from tests.interop.wire.mqadmin import MqAdmin
from tests.interop.wire.peer import Peer, bodies
from tests.interop.wire.penstock_server import Penstock
from tests.waiting import wait_until

pytestmark = pytest.mark.feature("pop", "rocketmq-5.3")
CLIENT = "java-5.3.3"
INVISIBLE_MS = 5_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    running = Penstock(tmp_path_factory.mktemp("pop"))
    yield running
    running.stop()


@pytest.fixture
def peer(server: Penstock, drivers: Drivers) -> Iterator[Peer]:
    found = Peer(drivers.get(CLIENT), server)
    yield found
    found.end()


@pytest.fixture(scope="module")
def set_mode(server: Penstock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., None]]:
    with MqAdmin(server, tmp_path_factory.mktemp("mqadmin")) as admin:

        def set_it(topic: str, group: str, mode: str = "POP", share: int = 0) -> None:
            words = ("-b", server.broker, "-t", topic, "-g", group, "-m", mode, "-q", str(share))
            printed = admin.run("setConsumeMode", *words)
            assert "success" in str(printed), printed

        yield set_it


def test_pop_consumers_share_a_topic(peer: Peer, set_mode: Callable[..., None]) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("group")
    set_mode(topic, group)
    names = [peer.push(topic, group=group, pop=INVISIBLE_MS, batch=4) for _ in range(2)]
    peer.send(topic, [{"body": f"m{i}", "tags": "t", "keys": f"k{i}"} for i in range(100)])

    def found() -> list[dict[str, object]]:
        return [message for name in names for message in peer.received(name, 0)]

    wait_until(lambda: len(found()) >= 100, "all messages are popped")
    # Nothing is popped twice while it is invisible, and nothing comes again that was acknowledged.
    time.sleep(INVISIBLE_MS / 1000 + 2)
    assert bodies(found()) == sorted(f"m{i}" for i in range(100))
    assert {message["tags"] for message in found()} == {"t"}


@pytest.mark.feature("sql-filters", "rocketmq-5.3")
def test_pop_consumers_choose_by_an_sql_expression(peer: Peer, set_mode: Callable[..., None]) -> None:
    topic, group = peer.create_topic(queues=2), peer.fresh("group")
    set_mode(topic, group)
    consumer = peer.push(topic, group=group, pop=INVISIBLE_MS, sql="price > 3 and shop = 'north'")
    shops = ("north", "south")
    sent = [
        {"body": f"m{i}", "properties": {"price": str(i), "shop": shop}} for i in range(8) for shop in shops
    ]
    peer.send(topic, sent)
    wanted = [f"m{i}" for i in range(4, 8)]
    assert bodies(peer.received(consumer, len(wanted))) == wanted
    # What did not match is passed over for good, and what matched is acknowledged.
    time.sleep(INVISIBLE_MS / 1000 + 2)
    assert bodies(peer.received(consumer, 0)) == wanted
    peer.send(topic, sent)
    assert bodies(peer.received(consumer, 2 * len(wanted))) == sorted(2 * wanted)


def test_messages_of_a_killed_consumer_come_to_another(
    peer: Peer, drivers: Drivers, set_mode: Callable[..., None]
) -> None:
    topic, group = peer.create_topic(queues=2), peer.fresh("group")
    set_mode(topic, group)
    doomed = drivers.start(CLIENT)
    try:
        stuck = peer.push(topic, group=group, driver=doomed, pop=INVISIBLE_MS, sleep=60_000)
        peer.send(topic, [f"m{i}" for i in range(8)])
        assert len(peer.received(stuck, 4, driver=doomed)) >= 4
    finally:
        doomed.kill()
    began = time.monotonic()
    consumer = peer.push(topic, group=group, pop=INVISIBLE_MS)
    assert set(bodies(peer.received(consumer, 8, wait_ms=30_000))) == {f"m{i}" for i in range(8)}
    tries = Counter(message["reconsumeTimes"] for message in peer.received(consumer, 0))
    assert tries[1] >= 4, tries
    print(f"{tries[1]} came again within {time.monotonic() - began:.1f} s")


def test_a_refused_message_comes_when_its_time_is_over(peer: Peer, set_mode: Callable[..., None]) -> None:
    """The client asks for a new invisible time; ten seconds are the shortest that it knows."""
    topic, group = peer.create_topic(queues=1), peer.fresh("group")
    set_mode(topic, group)
    consumer = peer.push(topic, group=group, pop=INVISIBLE_MS, fail=1)
    peer.send(topic, ["hard"])
    first, second = peer.received(consumer, 2, wait_ms=30_000)
    assert (first["reconsumeTimes"], second["reconsumeTimes"]) == (0, 1)
    assert (first["topic"], second["topic"]) == (topic, topic)
    assert second["storeTimestamp"] - first["storeTimestamp"] >= 9_000
    time.sleep(2)
    assert len(peer.received(consumer, 0)) == 2


def test_a_group_pops_one_topic_and_pulls_another(peer: Peer, set_mode: Callable[..., None]) -> None:
    """Who lets the broker divide is told topic by topic; who divides by itself goes on pulling."""
    popped, pulled, group = peer.create_topic(queues=4), peer.create_topic(queues=4), peer.fresh("group")
    set_mode(popped, group)
    first = peer.push(popped, group=group, pop=INVISIBLE_MS)
    peer.send(popped, [f"p{i}" for i in range(20)])
    assert bodies(peer.received(first, 20)) == sorted(f"p{i}" for i in range(20))
    peer.close(first)
    second = peer.push(pulled, group=group, pop=INVISIBLE_MS)
    peer.send(pulled, [f"q{i}" for i in range(20)])
    assert bodies(peer.received(second, 20)) == sorted(f"q{i}" for i in range(20))
    wait_until(lambda: len(peer.assigned(second)) == 4, "its queues are there to be pulled")
    peer.close(second)
    third = peer.push(popped, group=group)
    peer.send(popped, [f"r{i}" for i in range(20)])
    # It goes on where the group has popped to.
    assert bodies(peer.received(third, 20)) == sorted(f"r{i}" for i in range(20))


@pytest.mark.parametrize("share", [1])
def test_clients_pop_their_own_share_and_that_of_the_next(
    peer: Peer, set_mode: Callable[..., None], share: int
) -> None:
    topic, group = peer.create_topic(queues=6), peer.fresh("group")
    set_mode(topic, group, share=share)
    names = [peer.push(topic, group=group, pop=INVISIBLE_MS) for _ in range(3)]
    peer.send(topic, [f"m{i}" for i in range(60)])

    def found() -> list[dict[str, object]]:
        return [message for name in names for message in peer.received(name, 0)]

    wait_until(lambda: len(found()) >= 60, "all messages are popped")
    assert bodies(found()) == sorted(f"m{i}" for i in range(60))


@pytest.mark.fault("F1")
@pytest.mark.invariant("I1")
def test_nothing_is_lost_when_the_broker_is_killed(drivers: Drivers, tmp_path: Path) -> None:
    server = Penstock(tmp_path)
    peer = Peer(drivers.get(CLIENT), server)
    try:
        topic, group = peer.create_topic(queues=4), peer.fresh("group")
        with MqAdmin(server, tmp_path) as admin:
            words = ("-b", server.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
            assert "success" in str(admin.run("setConsumeMode", *words))
        sent = [f"m{i}" for i in range(200)]
        peer.send(topic, sent)
        consumer = peer.push(topic, group=group, pop=INVISIBLE_MS, batch=8, sleep=20)
        peer.received(consumer, 40)
        server.restart(crash=True)
        wait_until(
            lambda: {message["body"] for message in peer.received(consumer, 0)} == set(sent),
            "everything is popped",
        )
        found = peer.received(consumer, 0)
        print(f"{len(found) - len(sent)} of {len(sent)} came again after the kill")
    finally:
        peer.end()
        server.stop()
