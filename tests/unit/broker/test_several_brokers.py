"""Two brokers side by side at one name server: what they share, which is nothing, and what clients make of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.client.async_admin import AsyncAdmin
from penstock.client.async_consumer import AsyncConsumer
from penstock.client.async_producer import AsyncProducer
from penstock.client.received import ReceivedMessage
from penstock.message import Message
from penstock.nameserver.server import NameServer
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, NAMESERVER, STORE
from penstock.testing.scratch_disk import ScratchDisk
from tests.waiting import until

NAMES = ("broker-a", "broker-b")
COUNT = 40


@asynccontextmanager
async def two_brokers(folder: Path) -> AsyncIterator[tuple[str, dict[str, Broker]]]:
    """The name server's address, and two masters of different names that are registered there."""
    runtime = Runtime(disk=ScratchDisk())
    nameserver = NameServer(NAMESERVER, runtime=runtime)
    await nameserver.start()
    running: dict[str, Broker] = {}
    try:
        for name in NAMES:
            options = replace(BROKER, broker_name=name, name_servers=(nameserver.address,))
            running[name] = Broker(options, STORE, folder / name, runtime=runtime)
            await running[name].start()
            await running[name].registration.wait_registered(60_000)
        yield nameserver.address, running
    finally:
        for broker in running.values():
            await broker.stop()
        await nameserver.stop()


async def send_some(producer: AsyncProducer, first: int) -> dict[str, set[str]]:
    """Texts that were acknowledged, by the name of the broker that has them."""
    found: dict[str, set[str]] = {}
    for number in range(first, first + COUNT):
        text = f"<message {number}>"
        result = await producer.send(Message("T", text.encode()))
        found.setdefault(result.queue.broker_name, set()).add(text)
    return found


def texts_in(folder: Path) -> set[str]:
    """What lies in a broker's log."""
    logs = b"".join(path.read_bytes() for path in (folder / "commitlog").iterdir())
    return {found.decode() for found in re.findall(rb"<message \d+>", logs)}


@pytest.mark.feature("clustering", "fifth-seed")
@pytest.mark.seed("S1-25", "S1-30", "S4-11", "S4-16")
def test_brokers_side_by_side_share_topics_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_brokers(tmp_path) as (address, running):
            assert [broker.connections for broker in running.values()] == [set(), set()], (
                "nobody calls another"
            )
            async with AsyncAdmin(address) as admin:
                await admin.create_topic("T", queues=2)
            received: set[str] = set()

            async def listen(message: ReceivedMessage) -> None:
                received.add(message.body.decode())

            async with (
                AsyncConsumer(address, "g", listener=listen, start_from="first") as consumer,
                AsyncProducer(address, "p", send_timeout_ms=60_000) as producer,
            ):
                await consumer.subscribe("T")
                # Partitions of a topic are on both: twice the brokers is twice the room and the disks.
                sent = await send_some(producer, 0)
                assert {name: len(texts) for name, texts in sent.items()} == dict.fromkeys(NAMES, COUNT // 2)
                await until(lambda: received == sent["broker-a"] | sent["broker-b"])
                # One that is gone takes its own messages out of reach; the other takes what is sent from now on.
                await running["broker-a"].stop()
                later = await send_some(producer, COUNT)
                assert set(later) == {"broker-b"}
                await until(lambda: later["broker-b"] <= received)
        assert texts_in(tmp_path / "broker-a") == sent["broker-a"]
        assert texts_in(tmp_path / "broker-b") == sent["broker-b"] | later["broker-b"]

    asyncio.run(scenario())
