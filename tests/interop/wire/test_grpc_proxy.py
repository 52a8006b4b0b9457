"""RocketMQ's own gRPC proxy 5.3.3 in cluster mode, with the gRPC client of RocketMQ 5 behind it, at both servers.

The proxy asks the broker for everything with RocketMQ's remoting protocol: pops with long polls, acknowledgements by
handles that it has added to, changes of the invisible time, half messages, recalls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.interop.java_release import missing_tools
from tests.interop.wire.driver import Driver, Json
from tests.interop.wire.frames import Wire
from tests.interop.wire.grpc_proxy import GrpcProxy, grpc_client_command
from tests.interop.wire.peer import Peer, Server
from tests.interop.wire.servers import or_skip
from tests.interop.wire.session_admin import group_config
from tests.waiting import wait_until

pytestmark = pytest.mark.feature("pop", "rocketmq-5.3")
# The shortest that the proxy takes.
INVISIBLE_MS = 10_000


@dataclass
class Grpc:
    """The driver, its proxy and the server behind that."""

    server: Server
    driver: Driver
    endpoints: str

    def topic(self, kind: str) -> str:
        """A new topic for messages of this kind: NORMAL, FIFO, DELAY or TRANSACTION."""
        name = Peer.fresh(f"grpc-{kind.lower()}")
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        with Wire(self.server.broker) as wire:
            assert wire.call(17, fields).code == 0
        return name

    def group(self, *, in_order: bool = False) -> str:
        name = Peer.fresh("grpc-group")
        with Wire(self.server.broker) as wire:
            assert wire.call(200, body=group_config(name, consumeMessageOrderly=in_order)).code == 0
        return name

    def client(self, kind: str, topic: str, **more: Any) -> Callable[..., Json]:
        """A new producer, simple or push consumer; what it does is asked for by command."""
        name = Peer.fresh(kind)
        self.driver.do(kind, name=name, topic=topic, endpoints=self.endpoints, **more)
        return partial(self._do, name, topic)

    def _do(self, name: str, topic: str, command: str, **arguments: Any) -> Json:
        return self.driver.do(command, name=name, topic=topic, **arguments)

    def sender(self, topic: str, **more: Any) -> Callable[..., Json]:
        return self.client("producer", topic, **more)

    def reader(self, topic: str, group: str, **more: Any) -> Callable[..., Json]:
        return self.client("simple", topic, group=group, waitMs=5_000, **more)


@pytest.fixture(scope="module")
def grpc(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grpc]:
    proxy = or_skip(lambda: GrpcProxy(tmp_path_factory.mktemp("proxy"), server), missing_tools())
    directory = tmp_path_factory.mktemp("grpc")
    driver = Driver("grpc", or_skip(lambda: grpc_client_command(directory), None), directory)
    yield Grpc(server, driver, proxy.endpoints)
    driver.kill()
    proxy.stop()


def received(reader: Callable[..., Json], count: int, *, wait_s: float = 40) -> list[Json]:
    """So many messages, by as many requests as that takes."""
    found: list[Json] = []
    deadline = time.monotonic() + wait_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        found += reader("receive", count=16, invisibleMs=INVISIBLE_MS)["messages"]
    return found


def bodies(messages: list[Json]) -> list[str]:
    return sorted(message["body"] for message in messages)


def specs(*texts: str, **more: Any) -> list[Json]:
    return [{"body": text, **more} for text in texts]


def test_messages_are_received_acknowledged_and_come_again(grpc: Grpc) -> None:
    topic = grpc.topic("NORMAL")
    reader, sender = grpc.reader(topic, grpc.group(), tag="wanted"), grpc.sender(topic)
    sender("send", messages=specs("a", "b", "c", tag="wanted", keys="k", properties={"x": "1"}))
    sender("send", messages=specs("d", tag="other"))
    found = received(reader, 3)
    assert bodies(found) == ["a", "b", "c"]
    assert {(m["tag"], *m["keys"], m["properties"]["x"], m["attempt"]) for m in found} == {
        ("wanted", "k", "1", 1)
    }
    first, second, third = found
    reader("ack", msgId=first["msgId"])
    # Twice, as a client whose answer was lost.
    reader("ack", msgId=first["msgId"])
    reader("change", msgId=second["msgId"], invisibleMs=30_000)
    reader("ack", msgId=second["msgId"])
    reader("change", msgId=third["msgId"], invisibleMs=INVISIBLE_MS)
    [again] = received(reader, 1)
    assert (again["body"], again["attempt"]) == (third["body"], 2)
    reader("ack", msgId=again["msgId"])
    assert reader("receive", count=16, invisibleMs=INVISIBLE_MS)["messages"] == []


def test_a_late_acknowledgement_succeeds_without_effect(grpc: Grpc) -> None:
    """The gRPC client repeats an acknowledgement that fails, without an end."""
    topic = grpc.topic("NORMAL")
    reader, other = (grpc.reader(topic, group) for group in [grpc.group()] * 2)
    grpc.sender(topic)("send", messages=specs("slow"))
    [first] = received(reader, 1)
    [again] = received(other, 1)
    assert (again["msgId"], again["attempt"]) == (first["msgId"], 2)
    other("ack", msgId=again["msgId"])
    reader("ack", msgId=first["msgId"])


def test_messages_of_a_group_come_in_order(grpc: Grpc) -> None:
    topic = grpc.topic("FIFO")
    reader, sender = grpc.reader(topic, grpc.group(in_order=True)), grpc.sender(topic)
    texts = [f"m{number}" for number in range(6)]
    sender("send", messages=specs(*texts, group="one"))
    seen = []
    while len(seen) < len(texts):
        lot = reader("receive", count=4, invisibleMs=INVISIBLE_MS)["messages"]
        seen += [message["body"] for message in lot]
        assert {message["group"] for message in lot} <= {"one"}
        for message in lot:
            reader("ack", msgId=message["msgId"])
    assert seen == texts


def test_push_consumers_get_what_they_refused_again(grpc: Grpc) -> None:
    plain, ordered = grpc.topic("NORMAL"), grpc.topic("FIFO")
    texts = ["m0", "m1", "m2"]
    grpc.sender(plain)("send", messages=specs(*texts))
    grpc.sender(ordered)("send", messages=specs(*texts, group="one"))
    loose = grpc.client("push", plain, group=grpc.group(), fail=1)
    strict = grpc.client("push", ordered, group=grpc.group(in_order=True), fail=1)

    def attempts(push: Callable[..., Json]) -> list[tuple[str, int]]:
        return [(message["body"], message["attempt"]) for message in push("noted")["messages"]]

    wait_until(lambda: len(attempts(strict)) == 6, "all is tried twice in order")
    assert attempts(strict) == [(text, attempt) for text in texts for attempt in (1, 2)]
    wait_until(lambda: len(attempts(loose)) == 6, "all is tried twice")
    assert sorted(attempts(loose)) == [(text, attempt) for text in texts for attempt in (1, 2)]
    for push in (loose, strict):
        push("close")


def test_delayed_messages_come_in_time_unless_they_are_recalled(grpc: Grpc) -> None:
    topic = grpc.topic("DELAY")
    reader, sender = grpc.reader(topic, grpc.group()), grpc.sender(topic)
    due_ms = int(time.time() * 1000) + 5_000
    kept, recalled = (
        sender("send", messages=specs(text, deliverMs=due_ms))["results"][0] for text in ("kept", "recalled")
    )
    assert sender("recall", handle=recalled["recallHandle"])["msgId"] == recalled["msgId"]
    [found] = received(reader, 1)
    assert (found["body"], found["msgId"]) == ("kept", kept["msgId"])
    # To the second, as the timer of a broker has it.
    assert found["at"] >= due_ms - 1_000
    reader("ack", msgId=found["msgId"])
    assert reader("receive", count=16, invisibleMs=INVISIBLE_MS)["messages"] == []


def test_transactions_are_committed_rolled_back_and_asked_about(grpc: Grpc) -> None:
    topic = grpc.topic("TRANSACTION")
    reader, sender = grpc.reader(topic, grpc.group()), grpc.sender(topic, check="commit")
    for end in ("commit", "rollback"):
        sender("transaction", messages=specs(end), end=end)
    [committed] = received(reader, 1)
    assert committed["body"] == "commit"
    reader("ack", msgId=committed["msgId"])
    sender("transaction", messages=specs("open"), end="none")
    if grpc.server.name == "penstock":
        # RocketMQ's first question comes a minute after its start at the earliest.
        [answered] = received(reader, 1)
        assert answered["body"] == "open"
        assert bodies(sender("noted")["messages"]) == ["open"]
        reader("ack", msgId=answered["msgId"])
