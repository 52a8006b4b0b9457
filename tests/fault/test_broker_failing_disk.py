"""A broker whose disk fails while producers wait: what they are told must be what turns out to be true.

In one process, because the failure is injected below the store. After a failed sync nobody knows whether the message
survives, so its producer is told exactly that; what is sent later is refused, and is not there after the restart.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError, SendFailedError, SendUnknownError
from penstock.runtime import Runtime
from penstock.store import FlushMode, MessageStore
from penstock.testing import FaultyDisk
from penstock.testing.embedded import STORE, EmbeddedBroker
from tests.support.store_checks import read_queue

SYNC = replace(STORE, flush_mode=FlushMode.SYNC)
TOPIC = "orders"


@pytest.mark.fault("F8")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.parametrize("kind", ["single", "batch"])
def test_a_failed_sync_is_unknown_to_who_waited_and_a_failure_to_who_comes_later(
    tmp_path: Path, kind: str
) -> None:
    """The same message may be answered by the compiled way or the ordinary one; both say the same."""
    disk = FaultyDisk(tmp_path)

    async def scenario() -> tuple[PenstockError, list[PenstockError]]:
        embedded = EmbeddedBroker(tmp_path, store=SYNC, runtime=Runtime(disk=disk))
        await embedded.start()
        try:
            async with penstock.AsyncProducer(embedded.address, retries=0) as producer:
                # The first sends make the topic; then the compiled way knows it.
                for number in range(8):
                    assert (await producer.send(TOPIC, b"before %d" % number)).is_ok
                disk.fail_next("sync", errno.EIO, path_contains="commitlog")
                waited = await _error(producer, kind, b"waited")
                later = [await _error(producer, kind, b"later") for _ in range(3)]
        finally:
            await embedded.stop()
        return waited, later

    waited, later = asyncio.run(scenario())
    assert isinstance(waited, SendUnknownError), repr(waited)
    for error in later:
        assert isinstance(error, SendFailedError), repr(error)
    # No power was lost, so recovery finds it: "not stored" would have been wrong.
    with MessageStore.open(tmp_path, SYNC, background=False) as store:
        bodies = [m.body for queue in range(4) for m in read_queue(store, TOPIC, queue)]
    assert sum(body.startswith(b"before") for body in bodies) == 8
    assert b"waited" in bodies
    assert b"later" not in bodies


async def _error(producer: penstock.AsyncProducer, kind: str, body: bytes) -> PenstockError:
    if kind == "single":
        sending = producer.send(TOPIC, body)
    else:
        sending = producer.send_batch([penstock.Message(TOPIC, body) for _ in range(3)])
    with pytest.raises(PenstockError) as caught:
        await sending
    return caught.value
