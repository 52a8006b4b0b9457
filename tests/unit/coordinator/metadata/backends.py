"""The three backends behind one handle, so that one test holds all of them to the same contract."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.coordinator.metadata import MetadataStore, metadata_store
from penstock.testing.metadata import MemoryEnsemble, MemoryMetadata
from penstock.testing.zookeeper import ZooKeeperEnsemble, end_session

_roots = itertools.count(1)


class Backend:
    """One place where entries are kept; `open` is one process that uses it."""

    name = ""
    # Whether a second process may use it at the same time.
    is_shared = True

    def store(self) -> MetadataStore:
        raise NotImplementedError

    async def end_session(self, store: MetadataStore) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def open(self) -> AsyncIterator[MetadataStore]:
        store = self.store()
        await store.start()
        try:
            yield store
        finally:
            await store.stop()

    def run(self, life: Callable[[MetadataStore], Awaitable[None]]) -> None:
        """One process for the length of a test."""

        async def whole() -> None:
            async with self.open() as store:
                await life(store)

        asyncio.run(whole())

    def run_two(self, life: Callable[[MetadataStore, MetadataStore], Awaitable[None]]) -> None:
        """Two processes; or, where there can only be one, the same one twice."""

        async def whole() -> None:
            async with self.open() as one:
                if not self.is_shared:
                    await life(one, one)
                    return
                async with self.open() as two:
                    await life(one, two)

        asyncio.run(whole())


class MemoryBackend(Backend):
    name = "memory"

    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble()

    def store(self) -> MetadataStore:
        return self.ensemble.client()

    async def end_session(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryMetadata)
        store.expire()


class SqliteBackend(Backend):
    name = "sqlite"
    is_shared = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metadata.db"

    def store(self) -> MetadataStore:
        return metadata_store(f"sqlite:{self.path}")


class ZooKeeperBackend(Backend):
    name = "zookeeper"

    def __init__(self, servers: ZooKeeperEnsemble) -> None:
        self.servers = servers
        # Each test has a root of its own.
        self.root = f"/test-{next(_roots)}"

    def store(self) -> MetadataStore:
        return metadata_store(f"zookeeper:{self.servers.hosts}{self.root}")

    async def end_session(self, store: MetadataStore) -> None:
        client_id = store.client_id  # type: ignore[attr-defined]
        await asyncio.to_thread(end_session, self.servers.hosts, client_id)


async def settle() -> None:
    """Long enough for news that must not come."""
    await asyncio.sleep(0.1)
