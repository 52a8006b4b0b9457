"""Chapters of the demonstration: a node as `penstock up` runs it, and the Python client against it.

The node lives in a thread of this process and listens on free ports of this machine; everything between client
and broker goes over real sockets. Ends with the number of messages that were sent, received once, and received
again, so that the last lines of the demonstration can tell the truth about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.options import BrokerOptions
from penstock.cli.demo_workload import OPTIONS, TAGS, message_of
from penstock.cli.node import Node, NodeOptions
from penstock.cli.options import ProcessOptions
from penstock.client.admin import Admin
from penstock.client.consumer import Consumer
from penstock.client.loop_thread import LoopThread
from penstock.client.producer import Producer
from penstock.message import Message
from penstock.nameserver.options import NameServerOptions
from penstock.remoting import RemotingOptions

SINGLE_SENDS = 500
TOPIC = "orders"
GROUP = "demonstration"
RECEIVE_LIMIT_S = 20.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What went through the node."""

    sent: int
    received: int
    again: int
    lag: int

    @property
    def is_whole(self) -> bool:
        return self.received == self.sent and self.again == 0 and self.lag == 0


def exchange(directory: Path, count: int, title: Say, say: Say) -> Exchange:
    """Start a node, send and receive through it, stop it; `title` begins a step, `say` adds a line to it."""
    title("Start a name server and a broker, as `penstock up` does")
    started = time.perf_counter()
    with running_node(directory) as node:
        facts = node.facts()
        say(
            f"name server {facts['nameserver']}, broker {facts['broker']}, "
            f"ready in {(time.perf_counter() - started) * 1000:.0f} ms"
        )
        address = facts["nameserver"]
        sent = _send(address, count, title, say)
        received, again = receive(address, len(sent), title, say)
        with Admin(address) as admin:
            lag = admin.describe_group(GROUP).lag
            found = admin.get_message(next(iter(sent)), TOPIC)
        say(f"lag of the group {lag:,}; message {found.msg_id} found by its id")
        return Exchange(len(sent), len(received & sent), again, lag)


@contextmanager
def running_node(data: Path) -> Iterator[Node]:
    """A name server and a broker on free ports, with their data in this directory."""
    options = NodeOptions(
        process=ProcessOptions(data=str(data)),
        nameserver=NameServerOptions(port=0),
        broker=BrokerOptions(port=0),
        store=OPTIONS,
        remoting=RemotingOptions(),
        tls=None,
    )
    thread = LoopThread("penstock-demo-node")
    try:
        node = Node(options)
        thread.run(node.start())
        try:
            yield node
        finally:
            thread.run(node.stop())
    finally:
        thread.stop()


def _message(number: int) -> Message:
    made = message_of(number)
    return Message.of(TOPIC, made.body, tag=TAGS[number % len(TAGS)], keys=f"order-{number}")


def _send(address: str, count: int, title: Say, say: Say) -> set[str]:
    """One at a time, each on disk before its answer; then as fast as they go. The ids of all."""
    single = min(SINGLE_SENDS, count)
    title("Send with penstock.Producer, the broker flushing before it answers")
    ids: set[str] = set()
    with Admin(address) as admin:
        admin.create_topic(TOPIC, 4)  # else the first send would pay for it
    with Producer(address) as producer:
        waits = []
        for number in range(single):
            started = time.perf_counter()
            ids.add(producer.send(_message(number)).msg_id)
            waits.append((time.perf_counter() - started) * 1000)
        waits.sort()
        middle, slow = waits[len(waits) // 2], waits[min(len(waits) * 99 // 100, len(waits) - 1)]
        say(f"{single:,} of 1 KiB one after the other: median {middle:.2f} ms, 99 % within {slow:.2f} ms")
        started = time.perf_counter()
        futures = [producer.send_async(_message(number)) for number in range(single, count)]
        ids.update(future.result().msg_id for future in futures)
        seconds = max(time.perf_counter() - started, 0.001)
    if futures:
        rate = f"{int(len(futures) / seconds):,} messages/s, {len(futures) * 1024 / seconds / 1e6:,.1f} MB/s"
        say(f"{len(futures):,} more, batched by the client: {rate}")
    return ids


def receive(address: str, count: int, title: Say, say: Say) -> tuple[set[str], int]:
    """The ids that a group of one consumer received, and how many came more than once."""
    title("Receive with penstock.Consumer, as a group that begins at the first message")
    ids: set[str] = set()
    total = 0
    started = time.perf_counter()
    with Consumer(address, GROUP, start_from="first") as consumer:
        consumer.subscribe(TOPIC, " || ".join(TAGS))
        while len(ids) < count and time.perf_counter() - started < RECEIVE_LIMIT_S:
            messages = consumer.poll(512, 1.0)
            total += len(messages)
            ids.update(message.msg_id for message in messages)
        seconds = max(time.perf_counter() - started, 0.001)
        consumer.commit()
    say(f"{len(ids):,} received in {seconds:.2f} s, {int(len(ids) / seconds):,} messages/s, joining included")
    return ids, total - len(ids)
