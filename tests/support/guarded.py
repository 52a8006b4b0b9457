"""A name server and a broker with access control, in this process, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.security import AccessOptions, Credentials, NodeAccess, SigningHook
from penstock.testing.embedded import EmbeddedBroker
from tests.support.running_broker import SCENARIO_S

SECRET = "app-secret-do-not-tell"
ADMIN_SECRET = "admin-secret-do-not-tell"
USERS = f"""
[users.app]
secret = "{SECRET}"
roles = ["producer", "consumer"]
topics = ["orders"]
groups = ["billing"]

[users.reader]
secret = "{SECRET}"
roles = ["consumer"]
topics = ["public"]
groups = ["readers"]

[users.admin]
secret = "{ADMIN_SECRET}"
roles = ["admin"]
"""
APP = {"access_key": "app", "secret_key": SECRET}
READER = {"access_key": "reader", "secret_key": SECRET}
ADMIN = {"access_key": "admin", "secret_key": ADMIN_SECRET}


@asynccontextmanager
async def guarded(
    tmp_path: Path, tls: Any = None, users: str = USERS, **options: Any
) -> AsyncIterator[EmbeddedBroker]:
    """Running until the block ends; its users are in `access.toml`."""
    (tmp_path / "access.toml").write_text(users)
    access = NodeAccess.of(AccessOptions(enabled=True, **options), tmp_path, Runtime.system())
    server = EmbeddedBroker(tmp_path / "data", tls=tls, access=access)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SCENARIO_S):
            await test()

    asyncio.run(main())


class PatientClient(RemotingClient):
    """Waits for answers as long as a busy machine takes."""

    async def call(self, address: str, command: Command, timeout_ms: int = 60_000) -> Command:
        return await super().call(address, command, timeout_ms)


@asynccontextmanager
async def caller(keys: dict[str, str] | None) -> AsyncIterator[RemotingClient]:
    """A bare client that signs with these keys, or not at all."""
    runtime = Runtime.system()
    hook = None if keys is None else SigningHook(Credentials(keys["access_key"], keys["secret_key"]), runtime)
    client = PatientClient(runtime=runtime, hook=hook)
    try:
        yield client
    finally:
        await client.close()


async def code_of(client: RemotingClient, address: str, command: Command) -> int:
    return (await client.call(address, command)).code
