"""A name server and two brokers for staged publications; each broker can be stopped and started again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from penstock.client.staging import AsyncStaging, Home
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.server import NameServer
from penstock.protocol.bodies.staged import encode_item
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, STORE, EmbeddedBroker

A, B = "broker-a", "broker-b"
TOPIC = [("orders", 4)]


def items(*numbers: int, target: int = 0) -> bytes:
    return b"".join(encode_item(target, b"%d" % n, b"UNIQ_KEY\x01U%d\x02" % n) for n in numbers)


class Pair:
    """A name server and two brokers that can be stopped and started again on their directories."""

    def __init__(self, names: NameServer, folder: Path) -> None:
        self.address = names.address
        self._folder = folder
        self.up: dict[str, EmbeddedBroker] = {}

    async def start(self, name: str) -> None:
        options = replace(BROKER, broker_name=name, name_servers=(self.address,))
        node = EmbeddedBroker(self._folder / name, broker=options, store=STORE)
        await node.start()
        assert node.broker is not None
        await node.broker.registration.wait_registered(60_000)
        self.up[name] = node

    async def stop(self, name: str) -> None:
        await self.up.pop(name).stop()

    def staging(self, retry_ms: int = 300) -> AsyncStaging:
        """What a query that starts anew has."""
        return AsyncStaging(self.address, retry_ms=retry_ms)

    def rows(self, name: str) -> int:
        broker = self.up[name].broker
        assert broker is not None
        return sum(broker.store.max_offset("orders", queue) for queue in range(4))


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    names = NameServer(NameServerOptions(port=0), runtime=Runtime.system())
    await names.start()
    brokers = Pair(names, folder)
    try:
        for name in (A, B):
            await brokers.start(name)
        yield brokers
    finally:
        for name in list(brokers.up):
            await brokers.stop(name)
        await names.stop()


async def batch(staging: AsyncStaging, query: str, number: int, broker: str = "") -> tuple[Home, bool]:
    """Two rows, as the sink writes them: where they are, and whether they were there already."""
    home = await staging.home(query, "orders", broker)
    handle = await staging.stage(home.broker, TOPIC, items(1, 2), 2)
    done = await staging.publish(home.broker, query, number, [handle], topic="orders", tell=home.untold)
    return home, done.already
