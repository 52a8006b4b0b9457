"""A real broker on a free port with small files, and clients that speak to it over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.long_polling import LongPolling
from penstock.broker.options import BrokerOptions
from penstock.message import StoredMessage, decode_record
from penstock.protocol.bodies import ConsumerData, HeartbeatData, MessageModel, ProducerData, SubscriptionData
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import PullSysFlag
from penstock.remoting import ProcessorTable, RemotingClient, RemotingOptions
from penstock.runtime import Runtime
from penstock.runtime.disk import SystemDisk
from penstock.store import StoreOptions
from penstock.testing.scratch_disk import ScratchDisk
from tests.waiting import until

STORE = StoreOptions(
    segment_size_bytes=1 << 20,
    queue_file_entries=1_000,
    index_slots=100,
    index_entries=1_000,
    max_message_size_bytes=64 * 1024,
    delay_levels="1s 2s 3s 4s 5s",
)
BROKER = BrokerOptions(port=0)
BORN = 1_700_000_000_000
# Only what never ends takes so long: thousands of requests in one test, on a busy machine.
SCENARIO_S = 240


def properties(**pairs: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def send_fields(topic: str = "T", queue: int = 0, props: str = "", **more: object) -> dict[str, str]:
    """A V2 send header."""
    fields: dict[str, object] = {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue,
        "f": 0,
        "g": BORN,
        "h": 7,
        "i": props,
        "j": 0,
        "k": "false",
        "m": "false",
    }
    return {name: str(value) for name, value in (fields | more).items() if value is not None}


def batch_item(body: bytes, props: str = "", flag: int = 0) -> bytes:
    text = props.encode()
    size = 22 + len(body) + len(text)
    words = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, flag, len(body)))
    return words + body + len(text).to_bytes(2, "big") + text


def records(data: bytes | bytearray) -> list[StoredMessage]:
    """The stored messages of an answer."""
    found, at, view = [], 0, memoryview(data)
    while at < len(data):
        found.append(decode_record(view[at:]))
        at += found[-1].size
    return found


class Client:
    """One client process: a connection to the broker, and what the broker asks of it."""

    def __init__(self, address: str, handlers: dict[int, Callable[..., Any]] | None = None) -> None:
        table = ProcessorTable()
        for code, handler in (handlers or {}).items():
            table.register(code, handler)
        self.address = address
        self.remoting = RemotingClient(table, runtime=Runtime.system())

    async def call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **header: Any
    ) -> Command:
        timeout = header.pop("timeout_ms", 60_000)
        return await self.remoting.call(self.address, Command(code, fields or {}, body, **header), timeout)

    async def send(self, topic: str = "T", body: bytes = b"hello", queue: int = 0, **props: str) -> Command:
        return await self.call(
            RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue, properties(**props)), body
        )

    async def pull(
        self, topic: str = "T", queue: int = 0, offset: int = 0, *, wait_ms: int = 0, **more: object
    ) -> Command:
        """A pull with its own subscription unless `subscription=None`."""
        subscription = more.pop("subscription", "*")
        flag = int(more.pop("sysFlag", 0))  # type: ignore[call-overload]
        flag |= PullSysFlag.SUSPEND if wait_ms else 0
        flag |= PullSysFlag.SUBSCRIPTION if subscription is not None else 0
        fields: dict[str, object] = {
            "consumerGroup": "consumers",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": flag,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subscription": subscription,
            "subVersion": 0,
            **more,
        }
        code = int(fields.pop("code", RequestCode.PULL_MESSAGE))  # type: ignore[call-overload]
        return await self.call(code, {name: str(v) for name, v in fields.items() if v is not None})

    async def heartbeat(
        self,
        group: str = "consumers",
        topic: str = "T",
        expression: str = "*",
        *,
        client_id: str = "client@1",
        version: int = 401,
        model: MessageModel = MessageModel.CLUSTERING,
        sub_version: int = 1,
        kind: str = "TAG",
    ) -> Command:
        subscription = SubscriptionData.parse(topic, expression, kind, sub_version)
        beat = HeartbeatData(
            client_id,
            (ProducerData("producers"),),
            (ConsumerData(group, message_model=model, subscriptions=(subscription,)),),
        )
        return await self.call(RequestCode.HEART_BEAT, body=beat.encode(), version=version)

    async def close(self) -> None:
        await self.remoting.close()


class Bench:
    """A running broker and its first client."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._clients: list[Client] = []
        self.client = self.connect()

    def connect(self, handlers: dict[int, Callable[..., Any]] | None = None) -> Client:
        client = Client(self.broker.address, handlers)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def running(
    path: Path,
    *,
    store: StoreOptions = STORE,
    runtime: Runtime | None = None,
    remoting: RemotingOptions | None = None,
    fast: bool = True,
    **options: Any,
) -> AsyncIterator[Bench]:
    broker = Broker(
        replace(BROKER, **options),
        store,
        path,
        runtime=without_syncs(runtime or Runtime.system()),
        remoting_options=remoting,
    )
    await broker.start()
    if not fast:
        broker.fast_path.path = None
    bench = Bench(broker)
    try:
        yield bench
    finally:
        await bench.close()
        await broker.stop()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A scenario in a loop of its own, with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(SCENARIO_S):
            await scenario()

    asyncio.run(limited())


def without_syncs(runtime: Runtime) -> Runtime:
    """Unless it has a disk of its own: its files outlive the broker, not the machine, and syncs of a busy disk take
    longer than all the rest."""
    return replace(runtime, disk=ScratchDisk()) if type(runtime.disk) is SystemDisk else runtime


def polling(bench: Bench) -> LongPolling[Any]:
    """The pulls that the broker holds."""
    assert bench.broker.pulls is not None
    return bench.broker.pulls.polling


async def pulls_held(bench: Bench, count: int = 1) -> None:
    """Until the broker holds so many pulls."""
    await until(lambda: len(polling(bench)) == count, f"{count} held pulls")
