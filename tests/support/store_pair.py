"""Two stores with a replication port between them, in one loop; for tests of the drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

from penstock.message import Message
from penstock.replication import ALL_IN_SYNC, HaClient, HaServer, Outcome, Proposal, ReplicationOptions
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, MessageStore, StoreOptions
from penstock.store.epochs import EpochFile

SMALL = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=200,
    index_slots=100,
    index_entries=1000,
    max_message_size_bytes=8 * 1024,
)
# As in production, only quicker.
QUICK = ReplicationOptions(
    heartbeat_interval_ms=200,
    housekeeping_interval_ms=800,
    wait_interval_ms=50,
    reconnect_interval_ms=50,
    rejoin_interval_ms=20,
    retry_interval_ms=50,
    review_interval_ms=10,
    in_sync_lag_ms_max=300,
    join_timeout_ms=200,
)


def message(number: int, size: int = 100) -> Message:
    return Message.of("T", b"%d:" % number + b"x" * size, tag="t", keys=f"k{number}")


def log_bytes(store: MessageStore) -> bytes:
    """The whole log, with the fillers of its segments."""
    parts = []
    position = store.log.min_offset
    while (piece := store.slice_for_transfer(position, 1 << 30)) is not None:
        parts.append(bytes(piece))
        position += len(piece)
    assert position == store.log.max_offset
    return b"".join(parts)


def bodies(store: MessageStore, queue: int = 0) -> list[bytes]:
    return [found.body for found in store.read("T", queue, store.min_offset("T", queue), 1_000_000)]


class Node:
    """A store that can lead and follow. Its coordinator grants whatever is proposed, unless a test says otherwise."""

    def __init__(
        self,
        path: Path,
        node_id: int = 1,
        *,
        options: ReplicationOptions = QUICK,
        mode: FlushMode = FlushMode.ASYNC,
        classic: bool = False,
        background: bool = False,
        has_tables: bool = True,
        store_options: StoreOptions = SMALL,
        network: Runtime | None = None,
    ) -> None:
        self.node_id = node_id
        self.options = options
        self.runtime = Runtime.system()
        # What replication goes over.
        self.network = network or self.runtime
        self.store = MessageStore.open(
            path,
            replace(store_options, flush_mode=mode),
            background=background,
            replica=True,
            bounded=not classic,
        )
        epochs_path = self.store.paths.root / "epochFileCheckpoint"
        self.epochs = (
            None if classic else EpochFile.open(self.runtime.disk, epochs_path, self.store.log.max_offset)
        )
        self.applied: list[bytes] = []
        self.proposals: list[Proposal] = []
        self.superseded_by: list[int] = []
        self.grants = True
        self.tables = b"snapshot"
        self.server = HaServer(
            self.store,
            options,
            self.network,
            own_id=node_id,
            epochs=self.epochs,
            snapshot=(lambda: self.tables) if has_tables else None,
            on_proposal=self._proposed,
            on_superseded=self.superseded_by.append,
        )
        self.client: HaClient | None = None

    def _proposed(self, proposal: Proposal) -> None:
        self.proposals.append(proposal)
        if self.grants and self.server.tracker is not None:
            self.server.tracker.decided(proposal.members, proposal.set_epoch + 1)

    @property
    def address(self) -> str:
        return "{}:{}".format(*self.server.address)

    async def start(self) -> Node:
        await self.server.start()
        return self

    async def follow(self, address: str, epoch: int = 0) -> None:
        """Become a replica, or one of another master."""
        if self.client is None:
            self.server.step_down()
            self.client = HaClient(
                self.store,
                self.options,
                self.network,
                replica_id=self.node_id,
                epochs=self.epochs,
                on_tables=self.applied.append,
            )
            await self.client.start()
        self.client.follow(address, epoch)

    async def lead(self, epoch: int = 0, members: set[int] | None = None, set_epoch: int = 1) -> None:
        if self.client is not None:
            await self.client.stop()
            self.client = None
        if epoch:
            self.server.lead(epoch, members or {self.node_id}, set_epoch)
        else:
            self.server.serve()

    def append(self, first: int, count: int = 1, size: int = 100) -> int:
        """Messages as a broker appends them; how far the log reaches then."""
        for number in range(first, first + count):
            request = self.store.request(message(number, size), number % 2)
            self.store.append_group([request], durability=Durability.MEMORY)
            self.server.appended()
        return self.store.log.max_offset

    def replicated(
        self, position: int, need: int = ALL_IN_SYNC, timeout_ms: int | None = None
    ) -> Awaitable[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.server.when_replicated(position, need, future.set_result, timeout_ms)
        return future

    async def stop(self, *, crash: bool = False) -> None:
        if self.client is not None:
            await self.client.stop()
            self.client = None
        await self.server.stop()
        if crash:
            self.store.abandon()
        else:
            self.store.close()
