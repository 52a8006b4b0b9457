"""A name server on a free port and peers that talk to it over sockets, for the tests of this folder."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from penstock.metadata.config_files import DataVersion
from penstock.nameserver import NameServer, NameServerOptions
from penstock.protocol.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper, body_crc32
from penstock.protocol.codes import CURRENT_VERSION, RequestCode
from penstock.protocol.command import Command
from penstock.protocol.headers import RegisterBrokerRequestHeader
from penstock.remoting import ProcessorTable, RemotingClient
from penstock.runtime import Runtime
from tests.support.nameserver_brokers import topics, version

# For an answer that waits for a sync, on a disk that others use as well.
ANSWER_MS = 30_000


class Peer:
    """A broker, client or administrator: one connection to one name server."""

    def __init__(self, address: str, runtime: Runtime, table: ProcessorTable | None = None) -> None:
        self.address = address
        self.client = RemotingClient(table, runtime=runtime)

    async def ask(
        self, code: int, body: bytes = b"", *, version: int = CURRENT_VERSION, **fields: Any
    ) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        command = Command(code, texts, body, version=version)
        return await self.client.call(self.address, command, ANSWER_MS)

    async def register(self, **changes: Any) -> Command:
        return await self.client.call(self.address, register_command(**changes), ANSWER_MS)

    async def register_oneway(self, **changes: Any) -> None:
        await self.client.send(self.address, register_command(**changes))

    async def route(self, topic: str = "T", **fields: Any) -> Command:
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **fields)

    async def close(self) -> None:
        await self.client.close()


def register_command(
    *,
    tables: dict[str, Any] | None = None,
    data_version: DataVersion | None = None,
    mappings: dict[str, Any] | None = None,
    is_compressed: bool = False,
    is_checked: bool = True,
    wire_version: int = CURRENT_VERSION,
    body: bytes | None = None,
    **fields: Any,
) -> Command:
    """REGISTER_BROKER as a broker sends it; `fields` are those of the header."""
    wrapper = TopicConfigSerializeWrapper(
        data_version or version(), topics("T") if tables is None else tables, mapping_infos=mappings or {}
    )
    content = RegisterBrokerBody(wrapper)
    if body is None:
        body = content.encode_compressed(wire_version) if is_compressed else content.encode()
    values = {
        "broker_name": "broker-a",
        "broker_addr": "10.0.0.1:10911",
        "cluster_name": "c",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
        "compressed": is_compressed,
        "body_crc32": body_crc32(body) if is_checked else 0,
        **fields,
    }
    header = RegisterBrokerRequestHeader(**values)
    return Command(RequestCode.REGISTER_BROKER, header.encode(), body, version=wire_version)


@contextlib.asynccontextmanager
async def name_server(runtime: Runtime | None = None, **options: Any) -> AsyncIterator[NameServer]:
    """A running server; port 0 unless told otherwise."""
    server = NameServer(NameServerOptions(**{"port": 0, **options}), runtime=runtime or Runtime.system())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def peer(
    server: NameServer, runtime: Runtime | None = None, table: ProcessorTable | None = None
) -> AsyncIterator[Peer]:
    found = Peer(server.address, runtime or Runtime.system(), table)
    try:
        yield found
    finally:
        await found.close()


def over_sockets(test: Callable[[NameServer, Peer], Awaitable[None]], **options: Any) -> None:
    """Run a test with one server and one peer."""

    async def run() -> None:
        async with name_server(**options) as server, peer(server) as one:
            await test(server, one)

    asyncio.run(run())
