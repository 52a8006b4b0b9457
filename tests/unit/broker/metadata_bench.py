"""What the tests of topics, groups, members and offsets share: connections without a socket, and a small broker
of the metadata processors behind a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.broker.consumers import Consumers
from penstock.broker.groups import Groups
from penstock.broker.locks import QueueLocks
from penstock.broker.offsets import ConsumerOffsets
from penstock.broker.options import BrokerOptions
from penstock.broker.partition_leases import PartitionLeases
from penstock.broker.processors.consume_stats import ConsumeStatsProcessor
from penstock.broker.processors.groups import GroupsProcessor
from penstock.broker.processors.heartbeat import HeartbeatProcessor
from penstock.broker.processors.offset_admin import OffsetAdminProcessor
from penstock.broker.processors.offsets import OffsetsProcessor
from penstock.broker.processors.partition_leases import PartitionLeasesProcessor
from penstock.broker.processors.queue_locks import QueueLocksProcessor
from penstock.broker.processors.relay import ClientCalls
from penstock.broker.processors.topics import TopicsProcessor
from penstock.broker.producers import Producers
from penstock.broker.retry_names import RetryNames
from penstock.broker.topics import Topics
from penstock.errors import RequestError
from penstock.message import HostAddress, Message
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import loads
from penstock.metadata.table_log import JournaledTable, load_table, read_log
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable, RemotingClient, RemotingServer
from penstock.runtime import Runtime
from penstock.store.message_store import MessageStore
from penstock.store.options import StoreOptions
from tests.unit.broker.journals import journal

STORE_OPTIONS = StoreOptions(
    segment_size_bytes=1 << 20, max_message_size_bytes=1 << 16, index_slots=64, index_entries=64
)
TIMEOUT_MS = 5_000


@dataclass(eq=False)
class FakeConnection:
    """As much of a connection as groups need; it keeps what was sent to it."""

    name: str = "c"
    is_open: bool = True
    peer: HostAddress = field(default_factory=lambda: HostAddress("10.0.0.1", 5000))
    sent: list[Command] = field(default_factory=list)

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def close(self, why: str = "") -> None:
        self.is_open = False

    def notices(self) -> list[str]:
        """Groups that it was told have changed; forgotten with this call."""
        told = [
            command.fields["consumerGroup"]
            for command in self.sent
            if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        ]
        self.sent.clear()
        return told


class FakeRates:
    """Statistics that say the same for everything."""

    def topic_put_tps(self, topic: str) -> float:
        return 2.5

    def group_get_tps(self, group: str, topic: str) -> float:
        return 1.5


class MetadataBroker:
    """The processors of this room over a store, listening on a free port."""

    def __init__(self, path: Path, options: BrokerOptions | None = None) -> None:
        self.options = options or BrokerOptions(broker_name="b-a", cluster_name="c1")
        self.runtime = runtime = Runtime.system()
        self.store = MessageStore.open(path / "store", STORE_OPTIONS, background=False)
        self.journal = journal(self.store.paths.config)
        self.topics = Topics(self.options, runtime, self.journal)
        self.groups = Groups(self.options, runtime, self.journal)
        self.offsets = ConsumerOffsets(self.options, runtime, self.journal)
        self.consumers = Consumers(self.options, runtime.clock)
        self.producers = Producers(self.options, runtime.clock)
        self.locks = QueueLocks(self.options, runtime.clock)
        self.leases = PartitionLeases(self.options, runtime.clock)
        self.table = ProcessorTable()
        for processor in self._processors():
            processor.register(self.table)
        self.server = RemotingServer("127.0.0.1", 0, self.table, runtime=runtime, on_close=self._closed)
        self.clients: list[RemotingClient] = []

    def _processors(self) -> list[Any]:
        topics, groups, offsets, consumers = self.topics, self.groups, self.offsets, self.consumers
        rates, clock = FakeRates(), self.runtime.clock
        names = RetryNames(groups, topics, is_guarded=False)
        return [
            HeartbeatProcessor(self.options, topics, groups, consumers, self.producers),
            QueueLocksProcessor(self.options, topics, groups, self.locks),
            PartitionLeasesProcessor(self.options, topics, groups, self.leases),
            OffsetsProcessor(self.options, topics, groups, offsets, self.leases, self.store),
            TopicsProcessor(
                self.options, topics, names, consumers, offsets, self.store, rates, self._address
            ),
            GroupsProcessor(
                self.options, groups, consumers, self.producers, offsets, self.locks, self.leases
            ),
            ConsumeStatsProcessor(
                self.options, topics, groups, consumers, offsets, self.store, rates, clock, self._address
            ),
            OffsetAdminProcessor(
                self.options, topics, groups, consumers, offsets, self.store, ClientCalls(self.options)
            ),
        ]

    def _address(self) -> str:
        return str(self.server.address)

    def _closed(self, connection: Connection) -> None:
        self.producers.drop_connection(connection)
        self.consumers.drop_connection(connection)

    async def __aenter__(self) -> MetadataBroker:
        for table in (self.topics, self.groups, self.offsets):
            table.load()
            table.start()
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.close()
        await self.server.stop()
        for table in (self.topics, self.groups, self.offsets):
            await table.stop()
        self.store.close()

    def client(self, table: ProcessorTable | None = None) -> Caller:
        client = RemotingClient(table, runtime=self.runtime)
        self.clients.append(client)
        return Caller(client, str(self.server.address))

    def put(self, topic: str, queue_id: int = 0, count: int = 1) -> None:
        for number in range(count):
            self.store.append(Message(topic, b"%d" % number), queue_id)


@dataclass(frozen=True)
class Caller:
    """A client of one broker."""

    client: RemotingClient
    address: str

    async def raw(
        self,
        code: int,
        body: bytes = b"",
        *,
        version: int = 401,
        language: str = "JAVA",
        binary: bool = False,
        **fields: object,
    ) -> Command:
        texts = {name: _text(value) for name, value in fields.items()}
        command = Command(code, texts, body, version=version, language=language, binary=binary)
        return await self.client.call(self.address, command, TIMEOUT_MS)

    async def code(self, code: int, body: bytes = b"", **fields: object) -> int:
        return (await self.raw(code, body, **fields)).code  # type: ignore[arg-type]

    async def json(self, code: int, body: bytes = b"", **fields: object) -> Any:
        response = await self.raw(code, body, **fields)  # type: ignore[arg-type]
        assert response.code == 0, (response.code, response.remark)
        return loads(response.body)

    async def heartbeat(self, client_id: str, *groups: str, topic: str = "T", **more: object) -> Command:
        return await self.raw(RequestCode.HEART_BEAT, heartbeat(client_id, *groups, topic=topic, **more))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def heartbeat(
    client_id: str,
    *groups: str,
    topic: str = "T",
    producers: tuple[str, ...] = (),
    model: str = "CLUSTERING",
    version: int = 1,
    fingerprint: int = 0,
    without_sub: bool = False,
    expression: str = "*",
) -> bytes:
    """A heartbeat as a Java client writes it."""
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": expression,
        "subVersion": version,
        "tagsSet": [],
        "topic": topic,
    }
    consumers = [
        {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": model,
            "subscriptionDataSet": [] if without_sub else [subscription],
            "unitMode": False,
        }
        for group in groups
    ]
    data = {
        "clientID": client_id,
        "consumerDataSet": consumers,
        "heartbeatFingerprint": fingerprint,
        "producerDataSet": [{"groupName": name} for name in producers],
        "withoutSub": without_sub,
    }
    return json.dumps(data, separators=(",", ":")).encode()


@contextmanager
def refused(code: int) -> Iterator[None]:
    """The block raises RequestError with this wire code."""
    with pytest.raises(RequestError) as caught:
        yield
    assert caught.value.code == code, caught.value


def run(work: Awaitable[None]) -> None:
    async def all_of_it() -> None:
        await work

    asyncio.run(all_of_it())


T = TypeVar("T", bound=JournaledTable)


def kept(broker: MetadataBroker, kind: type[T]) -> T:
    """The table as a start after a crash would find it."""
    config = broker.store.paths.config
    disk = broker.runtime.disk
    found = load_table(ConfigFile(disk, config / kind.FILE_NAME), kind, read_log(disk, config)).value
    assert found is not None
    return found
