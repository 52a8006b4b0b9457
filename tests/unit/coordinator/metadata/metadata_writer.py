"""A process that owns a metadata file and says what it has written, until it is killed: `python -m ... PATH`."""

import asyncio
import itertools
import sys

from penstock.coordinator.metadata import Create, Set, metadata_store


async def main(path: str) -> None:
    store = metadata_store(f"sqlite:{path}")
    await store.start()
    found = await store.get("/counter")
    first = 0 if found is None else int(found.value) + 1
    if found is None:
        await store.create("/counter", b"-1")
    await store.create("/live/me", b"", ephemeral=True)
    for number in itertools.count(first):
        # Two entries that must never be seen apart.
        await store.transact([Set("/counter", b"%d" % number), Create(f"/rows/{number:08d}", b"%d" % number)])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
