"""Run a broker on a directory until killed, for POP: prints its address, then nothing."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from penstock.broker.broker import Broker
from penstock.runtime import Runtime
from tests.support.running_broker import BROKER, STORE


async def main(path: str, buffer: str = "") -> None:
    options = replace(BROKER, offset_save_interval_ms=50, pop_buffer=bool(buffer))
    broker = Broker(options, STORE, path, runtime=Runtime.system())
    await broker.start()
    print(broker.address, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
