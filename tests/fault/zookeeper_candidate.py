"""A process that stands for election and says, many times a second, whether it believes to lead:

python -m tests.fault.zookeeper_candidate ADDRESS IDENTITY SESSION_TIMEOUT_MS
123456789 leader 3          monotonic milliseconds of the machine, what it believes, its term
"""

import asyncio
import sys

from penstock.coordinator.metadata import metadata_store


async def main(address: str, identity: str, session_timeout_ms: int) -> None:
    store = metadata_store(address, session_timeout_ms=session_timeout_ms)
    await store.start()
    election = store.election("/lead", identity)
    await election.start()
    while True:
        before_ms = store.clock_ms
        belief = "leader" if election.is_leader else "other"
        # Stopped between the two, it could not tell when it believed what: such a moment is left out.
        if store.clock_ms - before_ms <= 2:
            sys.stdout.write(f"{before_ms} {belief} {election.term}\n")
            sys.stdout.flush()
        await asyncio.sleep(0.01)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
