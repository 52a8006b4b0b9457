"""A server that stopped while it dialled another one that was down printed a traceback.

The attempt outlives its callers if they are cancelled, and its error was retrieved by none of them. Found by the
shell blocks of the cluster page.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from penstock.errors import ConnectError
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.testing.reserved_port import ReservedPort


def test_an_attempt_fails_after_its_callers_were_cancelled() -> None:
    complaints: list[dict[str, Any]] = []

    async def run(address: str) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        client = RemotingClient(runtime=Runtime.system())
        caller = asyncio.ensure_future(client.connection(address))
        await asyncio.sleep(0)  # the caller has begun the attempt, which waits for the kernel
        attempts = list(client._connecting.values())
        assert len(attempts) == 1
        caller.cancel()
        await asyncio.wait([caller, *attempts])
        assert caller.cancelled()
        attempts.clear()
        gc.collect()
        await asyncio.sleep(0)
        with pytest.raises(ConnectError):
            await client.connection(address)
        await client.close()

    with ReservedPort() as down:
        asyncio.run(run(f"127.0.0.1:{down.number}"))
    gc.collect()
    assert complaints == []
