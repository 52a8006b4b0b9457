"""Transactional producers of Java and Go at both servers, and a directory with open transactions that changes hands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.interop.java_release import missing_tools
from tests.interop.wire.conftest import JAVA_CLIENTS, Drivers
from tests.interop.wire.frames import Wire
from tests.interop.wire.peer import Peer, Server, bodies
from tests.interop.wire.penstock_server import Penstock
from tests.interop.wire.rocketmq_server import RocketMQ
from tests.interop.wire.servers import or_skip
from tests.interop.wire.test_go_client import make_group, make_topic
from tests.waiting import wait_until

# A Java broker's directory has its file sizes; Penstock is told of them.
JAVA_SIZES = (
    "store.segment_size_bytes=67108864",
    "store.queue_file_entries=15000",
    "store.index_slots=25000",
    "store.index_entries=100000",
)
# Body, what the local work comes to, and what a question is answered with.
KINDS = [
    ("committed", "commit", "commit"),
    ("rolled back", "rollback", "rollback"),
    ("found committed", "unknown", "commit"),
    ("found rolled back", "unknown", "rollback"),
]
VISIBLE = ["committed", "found committed"]


def check_kinds(peer: Peer, topic: str, consumer: str) -> None:
    """RocketMQ keeps marks of what has ended in memory for a while, and under load it asks about some of that: then
    its producers end it once more, and a committed message is there twice. Penstock does neither."""
    name = peer.transacting()
    results = peer.transact(name, topic, KINDS)
    assert {result["status"] for result in results} == {"SEND_OK"}
    wait_until(lambda: visible(peer, consumer) == VISIBLE, "what is committed is consumed")
    for message in peer.received(consumer, 2):
        (result,) = [r for r, (body, _, _) in zip(results, KINDS, strict=True) if body == message["body"]]
        assert message["msgId"] == result["msgId"]
        assert message["properties"]["TRAN_MSG"] == "true"
        assert message["keys"] == f"k-{message['body']}"
    wait_until(
        lambda: {each["body"] for each in peer.questions(name)} >= {"found committed", "found rolled back"},
        "both are asked about",
    )
    assert {question["topic"] for question in peer.questions(name)} == {topic}
    time.sleep(2.5)  # rounds of checks, in which nothing more may happen
    assert visible(peer, consumer) == VISIBLE
    if peer.server.name == "penstock":
        assert sorted(question["body"] for question in peer.questions(name)) == [
            "found committed",
            "found rolled back",
        ]
        assert bodies(peer.received(consumer, 3, wait_ms=500)) == VISIBLE


def visible(peer: Peer, consumer: str) -> list[str]:
    return sorted({*bodies(peer.received(consumer, 1_000, wait_ms=100))})


@pytest.mark.feature("transactions", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
def test_java_transactions_end_as_their_producer_says(peer: Peer) -> None:
    topic = peer.create_topic(queues=4)
    check_kinds(peer, topic, peer.push(topic))


@pytest.mark.feature("transactions", "rocketmq-5.3")
@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
def test_go_transactions_end_as_their_producer_says(go_peer: Peer) -> None:
    topic = make_topic(go_peer)
    check_kinds(go_peer, topic, go_peer.push(topic, group=make_group(go_peer, topic)))


class Answers:
    """What the body says that questions are to be answered with."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()

    def check(self, message: penstock.ReceivedMessage) -> penstock.TransactionState:
        self.asked.add(message.body)
        keep = message.body.startswith(b"keep")
        return penstock.TransactionState.COMMIT if keep else penstock.TransactionState.ROLLBACK


@pytest.mark.feature("python-clients", "rocketmq-5.3")
@pytest.mark.seed("S2-37")
@pytest.mark.invariant("I9")
def test_python_transactions_end_as_their_program_says(server: Server) -> None:
    topic, listener = Peer.fresh("py-topic"), Answers()
    with penstock.Admin(server.nameserver) as admin:
        admin.create_topic(topic, 4)
    with penstock.Producer(
        server.nameserver, Peer.fresh("py-group"), transaction_listener=listener
    ) as producer:
        with producer.transaction(topic, b"committed", tag="t", keys="k1"):
            pass
        with pytest.raises(KeyError), producer.transaction(topic, b"rolled back"):
            raise KeyError
        for body in (b"keep it", b"drop it"):
            with producer.transaction(topic, body) as transaction:
                transaction.unknown()
        wait_until(lambda: listener.asked >= {b"keep it", b"drop it"}, "both are asked about")
        found: set[bytes] = set()
        with penstock.Consumer(server.nameserver, Peer.fresh("py-readers"), start_from="first") as consumer:
            consumer.subscribe(topic)
            deadline = time.monotonic() + 40
            while found != {b"committed", b"keep it"} and time.monotonic() < deadline:
                found |= {message.body for message in consumer.poll(32, timeout_s=0.5)}
            time.sleep(2)
            found |= {message.body for message in consumer.poll(32, timeout_s=0.5)}
        assert found == {b"committed", b"keep it"}


@pytest.mark.feature("transactions", "rocketmq-5.3", "rocketmq-4.9")
@pytest.mark.fault("F1")
@pytest.mark.invariant("I9")
def test_a_broker_that_was_killed_asks_about_what_was_open(peer: Peer) -> None:
    topic, group = peer.create_topic(queues=4), peer.fresh("transactors")
    name = peer.transacting(group=group)
    sent = [(f"m{n}", "unknown", "unknown") for n in range(5)]
    peer.transact(name, topic, sent)
    time.sleep(1.5)  # some were put back by then
    peer.server.restart(crash=True)
    peer.driver.do("close", name=name)
    answering(peer, topic, group)
    check_seen(peer, peer.push(topic), ["hello", *(body for body, _, _ in sent)])


def check_seen(peer: Peer, consumer: str, wanted: list[str]) -> None:
    """These are seen and no others; at Penstock each of them once. RocketMQ asks every second, while the marks of what
    was answered are in its memory for three, and commits once more for each answer."""
    wait_until(lambda: visible(peer, consumer) == wanted, "what was open is committed")
    time.sleep(3)
    assert visible(peer, consumer) == wanted
    if peer.server.name == "penstock":
        found = bodies(peer.received(consumer, 1_000, wait_ms=100))
        # What a Java broker had committed twice before it died is its own.
        assert [body for body in found if body != "done"] == [body for body in wanted if body != "done"]


def answering(peer: Peer, topic: str, group: str) -> str:
    """A producer that says "commit" to every question; brokers know a 5.3 client only once it has sent something."""
    name = peer.transacting(group=group, answer="commit")
    peer.transact(name, topic, [("hello", "commit", "commit")])
    return name


# -- directories that change hands -------------------------------------------------------------------------------


@pytest.fixture
def java_peers(drivers: Drivers) -> Iterator[list[Peer]]:
    """Peers that a test makes at servers of its own, ended with it."""
    found: list[Peer] = []
    yield found
    for one in found:
        one.end()


def leave_open(peer: Peer, group: str) -> str:
    """Transactions of each kind, three of them open; the topic."""
    topic = peer.create_topic(queues=2)
    name = peer.transacting(group=group)
    peer.transact(name, topic, [("done", "commit", "commit"), ("undone", "rollback", "rollback")])
    peer.transact(name, topic, [(f"open{n}", "unknown", "unknown") for n in range(3)])
    seen = bodies(peer.received(peer.push(topic), 1))
    assert set(seen) == {"done"}
    assert peer.server.name != "penstock" or len(seen) == 1
    # Asked about, so put back; and RocketMQ keeps marks in memory for three seconds.
    wait_until(lambda: len(peer.questions(name)) >= 3, "they are asked about")
    time.sleep(4)
    peer.end()
    return topic


def take_over(peer: Peer, topic: str, group: str) -> None:
    """Everything is there once, when the producer has said so."""
    consumer = peer.push(topic)
    # Once, unless the broker before, if it was Java's, had committed it twice: see `check_seen`.
    assert set(bodies(peer.received(consumer, 1, wait_ms=20_000))) == {"done"}
    name = answering(peer, topic, group)
    check_seen(peer, consumer, ["done", "hello", "open0", "open1", "open2"])
    assert {question["topic"] for question in peer.questions(name)} == {topic}
    with Wire(peer.server.broker) as wire:  # the broker knows that nothing is open
        assert wire.call(30, {"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "queueId": "0"}).code == 0


@pytest.mark.feature("transactions", "rocketmq-5.3")
@pytest.mark.invariant("I9")
def test_penstock_goes_on_with_open_transactions_of_a_java_broker(
    tmp_path: Path, drivers: Drivers, java_peers: list[Peer]
) -> None:
    java = or_skip(lambda: RocketMQ(_made(tmp_path / "java")), missing_tools())
    group = Peer.fresh("transactors")
    try:
        java_peers.append(Peer(drivers.get(JAVA_CLIENTS[0]), java))
        topic = leave_open(java_peers[0], group)
    finally:
        java.stop()
    shutil.copytree(tmp_path / "java" / "store", tmp_path / "penstock" / "broker")
    server = Penstock(tmp_path / "penstock", *JAVA_SIZES)
    try:
        java_peers.append(Peer(drivers.get(JAVA_CLIENTS[0]), server))
        take_over(java_peers[1], topic, group)
        java_peers[1].end()
    finally:
        server.stop()


@pytest.mark.feature("transactions", "rocketmq-5.3")
@pytest.mark.invariant("I9")
def test_a_java_broker_goes_on_with_open_transactions_of_penstock(
    tmp_path: Path, drivers: Drivers, java_peers: list[Peer]
) -> None:
    reason = missing_tools()
    if reason is not None:
        pytest.skip(reason)
    server = Penstock(_made(tmp_path / "penstock"), *JAVA_SIZES)
    group = Peer.fresh("transactors")
    try:
        java_peers.append(Peer(drivers.get(JAVA_CLIENTS[0]), server))
        topic = leave_open(java_peers[0], group)
    finally:
        server.stop()
    shutil.copytree(tmp_path / "penstock" / "broker", _made(tmp_path / "java") / "store")
    java = or_skip(lambda: RocketMQ(tmp_path / "java"), missing_tools())
    try:
        java_peers.append(Peer(drivers.get(JAVA_CLIENTS[0]), java))
        take_over(java_peers[1], topic, group)
        java_peers[1].end()
    finally:
        java.stop()


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
