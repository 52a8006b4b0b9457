"""A broker that kills itself with SIGKILL at a given step of a transaction.

    python -m tests.fault.transaction_broker DATA STEP CHECKS

Prints its address. CHECKS is how often it asks about a transaction before it parks it.
Steps are writes of the log, told apart by the topics that they are for:

    half-before, half-after          the half message
    commit-before, commit-after      the committed message and its mark
    commit-torn                      the same, when only the message is in the log
    rollback-before, rollback-after  the mark alone
    back-before, back-after          a copy that was put back, before anybody is asked
    park-torn, park-after            a copy that was parked, without and with its mark
    none                             it lives until it is killed
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from penstock._hot.records import AppendRequest
from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_DONE_TOPIC, HALF_TOPIC
from penstock.runtime import Runtime
from tests.support.running_broker import STORE


def kind_of(requests: Sequence[AppendRequest]) -> str:
    """What a write of the log is about."""
    topics = {request.queue.topic.decode() for request in requests}
    if HALF_TOPIC in topics:
        return "back" if HALF_DONE_TOPIC in topics else "half"
    if HALF_DONE_TOPIC not in topics:
        return "other"
    if CHECK_MAX_TOPIC in topics:
        return "park"
    return "commit" if len(topics) > 1 else "rollback"


def deadly(broker: Broker, step: str) -> None:
    """Die where the step says."""
    store = broker.store
    whole = store.append_group

    def append_group(requests: Sequence[AppendRequest], **more: Any) -> Any:
        kind, _, moment = step.partition("-")
        if kind_of(requests) != kind:
            return whole(requests, **more)
        if moment == "torn":
            whole(requests[:-1], **more)
        elif moment == "after":
            whole(requests, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")

    store.append_group = append_group  # type: ignore[method-assign]


async def main(data: str, step: str, checks: str) -> None:
    options = BrokerOptions(
        port=0,
        transaction_check_interval_ms=100,
        transaction_timeout_ms=300,
        transaction_check_max=int(checks),
        offset_save_interval_ms=50,
    )
    broker = Broker(options, STORE, data, runtime=Runtime.system())
    await broker.start()
    deadly(broker, step)
    print(broker.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
