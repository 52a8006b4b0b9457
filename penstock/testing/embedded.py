"""A real broker and its name server in this process, on free ports, for as long as a test needs them.

    with penstock.testing.broker() as address:
        with penstock.Producer(address) as producer: ...

    async with penstock.testing.async_broker() as address: ...

Rules: nothing about it is a stand-in but the disk's syncs, which are left out, and sizes of files, which are
small. It runs in a thread with an event loop of its own (`broker`) or in the caller's loop (`async_broker`), in
a temporary directory. Leaving the block ends threads, sockets and files, also if the block raised.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.client.loop_thread import LoopThread
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.server import NameServer
from penstock.remoting import TlsOptions
from penstock.runtime import Runtime
from penstock.security import OPEN, NodeAccess
from penstock.store.options import StoreOptions
from penstock.testing.scratch_disk import ScratchDisk, scratch_parent

REGISTER_WAIT_MS = 5_000
STORE = StoreOptions(
    segment_size_bytes=16 << 20,
    queue_file_entries=4_096,
    index_slots=16_384,
    index_entries=65_536,
    scrub_bytes_per_second=0,
    # The machine's disk may be as full as it likes; a test is about something else.
    disk_max_used_percent=100,
    disk_clean_forcibly_percent=100,
    disk_refuse_writes_percent=100,
    disk_warning_percent=100,
)
BROKER = BrokerOptions(broker_name="test-broker", port=0, delay_save_interval_ms=1_000)
NAMESERVER = NameServerOptions(port=0)


class EmbeddedBroker:
    """A name server and a broker; `start` and `stop` belong to one event loop.

    `directory` keeps the data if it is given, so that a second one can be started on it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        broker: BrokerOptions = BROKER,
        store: StoreOptions = STORE,
        nameserver: NameServerOptions = NAMESERVER,
        runtime: Runtime | None = None,
        tls: TlsOptions | None = None,
        access: NodeAccess = OPEN,
    ) -> None:
        self._given = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.broker_options = broker
        self.store_options = store
        self.runtime = runtime or Runtime(disk=ScratchDisk())
        self._tls, self._access = tls, access
        self.nameserver = NameServer(nameserver, runtime=self.runtime, tls=tls, access=access)
        self.broker: Broker | None = None

    @property
    def address(self) -> str:
        """Of the name server: what producers and consumers are given."""
        return self.nameserver.address

    @property
    def broker_address(self) -> str:
        return self.broker.address if self.broker is not None else ""

    async def start(self) -> None:
        """Ready when a producer's first question to the name server would be answered with this broker."""
        try:
            await self.nameserver.start()
            options = replace(
                self.broker_options, name_servers=(self.address, *self.broker_options.name_servers)
            )
            broker = Broker(
                *(options, self.store_options, self._directory()),
                runtime=self.runtime,
                tls=self._tls,
                access=self._access,
            )
            self.broker = broker
            await broker.start()
            await broker.registration.wait_registered(REGISTER_WAIT_MS)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop both and delete the temporary directory."""
        broker, self.broker = self.broker, None
        try:
            if broker is not None:
                await broker.stop()
        finally:
            try:
                await self.nameserver.stop()
            finally:
                if self._temporary is not None:
                    self._temporary.cleanup()
                    self._temporary = None

    def _directory(self) -> Path:
        if self._given is not None:
            return self._given
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-test-", dir=scratch_parent())
        return Path(self._temporary.name)


@contextmanager
def broker(directory: Path | None = None, **options: Any) -> Iterator[str]:
    """The address of the name server of a broker that runs in a thread until the block ends.

    `options` are fields of `BrokerOptions`; those of the store go into `store={...}`.
    """
    embedded = _make(directory, options)
    thread = LoopThread("penstock-test-broker")
    try:
        thread.run(embedded.start())
        try:
            yield embedded.address
        finally:
            thread.run(embedded.stop())
    finally:
        thread.stop()


@asynccontextmanager
async def async_broker(directory: Path | None = None, **options: Any) -> AsyncIterator[str]:
    """The same in the loop of the caller."""
    embedded = _make(directory, options)
    await embedded.start()
    try:
        yield embedded.address
    finally:
        await embedded.stop()


def _make(directory: Path | None, options: Mapping[str, Any]) -> EmbeddedBroker:
    given = dict(options)
    store = replace(STORE, **given.pop("store", {}))
    return EmbeddedBroker(directory, broker=replace(BROKER, **given), store=store)
