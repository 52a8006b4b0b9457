"""Run a broker on a directory until killed: prints its address, then nothing. For crash tests."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from penstock.broker.broker import Broker
from penstock.runtime import Runtime
from penstock.store import FlushMode
from tests.support.running_broker import BROKER, STORE


async def main(path: str, zookeeper: str = "") -> None:
    options = replace(BROKER, offset_save_interval_ms=50, zookeeper_offsets=zookeeper)
    broker = Broker(options, replace(STORE, flush_mode=FlushMode.SYNC), path, runtime=Runtime.system())
    await broker.start()
    print(broker.address, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
