"""A name server and brokers that do what a test tells them, on real sockets.

Each broker keeps what it was sent and answers as RocketMQ does; `behave` replaces the answer to sends.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.protocol.bodies.heartbeat import HeartbeatData
from penstock.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingServer
from penstock.runtime import Runtime
from penstock.testing.reserved_port import ReservedPort

Behaviour = Callable[[Connection, Command], "Command | Awaitable[Command | None] | None"]


def split_batch(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Body, properties and flag of each record of a batch."""
    found, at = [], 0
    while at < len(body):
        size, magic, crc, flag, body_size = struct.unpack_from(">iiiii", body, at)
        assert (magic, crc) == (0, 0)
        data = body[at + 20 : at + 20 + body_size]
        (text_size,) = struct.unpack_from(">h", body, at + 20 + body_size)
        start = at + 22 + body_size
        found.append((data, body[start : start + text_size], flag))
        assert size == 22 + body_size + text_size
        at += size
    assert at == len(body)
    return found


class FakeServer:
    """Something that listens and counts what it is asked."""

    def __init__(self) -> None:
        self.table = ProcessorTable()
        self.server: RemotingServer | None = None
        self.requests: list[Command] = []
        # Kept while it is stopped: it may start again, and nobody else answers there meanwhile.
        self._reserved = ReservedPort()
        self.port = self._reserved.number

    async def start(self) -> None:
        self.server = RemotingServer("127.0.0.1", self.port, self.table, runtime=Runtime.system())
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(10)
            self.server = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, code: int) -> int:
        return sum(request.code == code for request in self.requests)


class FakeBroker(FakeServer):
    def __init__(self, name: str, broker_id: int = 0) -> None:
        super().__init__()
        self.name = name
        self.broker_id = broker_id
        self.stored: list[tuple[str, int, bytes, bytes]] = []  # topic, queue, body, properties
        self.offsets: dict[tuple[str, int], int] = {}
        self.heartbeats: list[HeartbeatData] = []
        self.behave: Behaviour | None = None
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.table.register(code, self._send)
        self.table.register(RequestCode.HEART_BEAT, self._heartbeat)
        self.table.register(RequestCode.UNREGISTER_CLIENT, self._note)

    def _note(self, connection: Connection, request: Command) -> Command:
        self.requests.append(request)
        return request.answer()

    def _heartbeat(self, connection: Connection, request: Command) -> Command:
        self.heartbeats.append(HeartbeatData.decode(request.body))
        return self._note(connection, request)

    def _send(self, connection: Connection, request: Command) -> object:
        self.requests.append(request)
        if self.behave is not None:
            return self.behave(connection, request)
        return self.store(request)

    def store(self, request: Command, code: int = 0, **fields: str) -> Command:
        """Keep the messages and answer as a broker does."""
        topic, queue_id = request.fields["b"], int(request.fields["e"])
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            messages = split_batch(bytes(request.body))
        else:
            messages = [(bytes(request.body), request.fields["i"].encode(), int(request.fields["h"]))]
        first = self.offsets.get((topic, queue_id), 0)
        self.offsets[topic, queue_id] = first + len(messages)
        self.stored += [(topic, queue_id, body, properties) for body, properties, _ in messages]
        ids = ",".join(f"{self.port:08X}{first + n:024X}" for n in range(len(messages)))
        answer = {
            "msgId": ids,
            "queueId": str(queue_id),
            "queueOffset": str(first),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            **fields,
        }
        return request.answer(code, fields=answer)


class FakeNameServer(FakeServer):
    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, TopicRouteData] = {}
        self.behave: Behaviour | None = None
        self.table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)

    def _route(self, connection: Connection, request: Command) -> object:
        self.requests.append(request)
        if self.behave is not None:
            return self.behave(connection, request)
        route = self.routes.get(request.fields["topic"])
        if route is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no topic")
        return request.answer(body=route.encode())


class FakeCluster:
    """One name server and some brokers."""

    def __init__(self, *brokers: FakeBroker) -> None:
        self.name_server = FakeNameServer()
        self.brokers = brokers

    @property
    def address(self) -> str:
        return self.name_server.address

    def add_topic(
        self, topic: str, queues: int = 2, perm: int = 6, brokers: tuple[FakeBroker, ...] = ()
    ) -> None:
        chosen = brokers or self.brokers
        self.name_server.routes[topic] = TopicRouteData(
            tuple(BrokerData("c", broker.name, {broker.broker_id: broker.address}) for broker in chosen),
            tuple(QueueData(broker.name, queues, queues, perm) for broker in chosen),
        )

    @property
    def stored(self) -> list[tuple[str, int, bytes, bytes]]:
        return [message for broker in self.brokers for message in broker.stored]


@asynccontextmanager
async def cluster(brokers: int = 1, topics: tuple[str, ...] = ("T",), queues: int = 2):
    fake = FakeCluster(*(FakeBroker(f"broker-{'abcdef'[n]}") for n in range(brokers)))
    await fake.name_server.start()
    for broker in fake.brokers:
        await broker.start()
    for topic in topics:
        fake.add_topic(topic, queues)
    try:
        yield fake
    finally:
        for broker in fake.brokers:
            await broker.stop()
        await fake.name_server.stop()
