"""A broker that kills itself with SIGKILL at a given step of a publication, or of finishing one after a crash.

    python -m tests.fault.staging_broker DATA PORT NAMESERVER FLUSH STEP COUNT

Prints a line when it answers. With STEP `none` it lives until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace

from penstock.broker import publication_copies, publications
from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.runtime import Runtime
from penstock.store import FlushMode
from penstock.testing.embedded import STORE


def deadly(step: str, count: int) -> None:
    """Die at the count-th time that a step is done."""
    left = count

    def watch(done: str) -> None:
        nonlocal left
        left -= done == step
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    publications._no_step = watch


async def main(data: str, port: str, name_server: str, flush: str, step: str, count: str) -> None:
    publication_copies.RUN_MESSAGES = 7
    deadly(step, int(count))
    options = BrokerOptions(port=int(port), name_servers=(name_server,), publication_save_interval_ms=50)
    store = replace(
        STORE, flush_mode=FlushMode(flush), segment_size_bytes=1 << 20, max_message_size_bytes=65_536
    )
    broker = Broker(options, store, data, runtime=Runtime.system())
    await broker.start()
    await broker.registration.wait_registered(10_000)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
