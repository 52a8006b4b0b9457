"""A broker that is not where its route says: routes are asked for at once, not with the next round."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import ConnectError
from penstock.nameserver.server import NameServer
from penstock.runtime import Runtime
from penstock.testing.embedded import BROKER, NAMESERVER, STORE
from penstock.testing.scratch_disk import ScratchDisk


@pytest.mark.fault("F1")
def test_whoever_asks_again_finds_who_took_its_place(tmp_path: Path) -> None:
    async def life() -> None:
        runtime = Runtime(disk=ScratchDisk())
        names = NameServer(NAMESERVER, runtime=runtime)
        await names.start()

        async def broker(folder: str) -> Broker:
            options = replace(BROKER, name_servers=(names.address,))
            found = Broker(options, STORE, tmp_path / folder, runtime=runtime)
            await found.start()
            await found.registration.wait_registered(60_000)
            return found

        first = await broker("first")
        place = penstock.MessageQueue("T", BROKER.broker_name, 0)
        async with penstock.AsyncAdmin(names.address, route_interval_ms=300_000) as admin:
            await admin.create_topic("T", queues=1)
            assert await admin.read_messages(place, 0) == []
            await first.stop()
            second = await broker("second")
            second.topics.ensure("T", 1)
            async with penstock.AsyncProducer(names.address) as producer:
                await producer.send("T", b"to the second")
            failures = 0
            async with asyncio.timeout(60):
                while True:
                    try:
                        found = await admin.read_messages(place, 0)
                        break
                    except ConnectError:
                        failures += 1
                        await asyncio.sleep(0.1)
            assert [message.body for message in found] == [b"to the second"]
            assert failures > 0, "the old route was never in use"
        await second.stop()
        await names.stop()

    asyncio.run(life())
