"""One node of a replicated set as a process of its own: a store with both sides of replication, and no broker.

Takes orders as JSON lines on standard input and says what happens on standard output:

    {"do": "lead", "epoch", "members", "set_epoch"}     {"do": "follow", "address", "epoch"}
    {"do": "decided", "members", "set_epoch"}           {"do": "load", "first"}      {"do": "rest"}
    {"do": "state"}                                     {"do": "stop"}

    {"address"}  {"proposal", "set_epoch"}  {"acked": [first, last]}  {"state": {...}}  {"superseded"}  {"stopped"}

A load appends groups of messages with rising numbers and says which of them every member of the set has.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from penstock.replication import ALL_IN_SYNC, HaClient, HaServer, Outcome, Proposal, ReplicationOptions
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, MessageStore, StoreOptions
from penstock.store.epochs import EpochFile
from penstock.store.loop_flush import LoopFlusher
from tests.disk_limits import NO_DISK_LIMITS
from tests.support.store_pair import message

GROUP = 4
WAITING_MAX = 40
STORE = {
    "segment_size_bytes": 256 * 1024,
    "queue_file_entries": 2_000,
    "index_slots": 1_000,
    "index_entries": 20_000,
    "max_message_size_bytes": 64 * 1024,
    **NO_DISK_LIMITS,
}
OPTIONS = ReplicationOptions(
    rejoin_interval_ms=50, review_interval_ms=20, in_sync_lag_ms_max=2_000, wait_interval_ms=200
)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Node:
    def __init__(self, path: Path, node_id: int, mode: FlushMode) -> None:
        runtime = Runtime.system()
        self.store = MessageStore.open(
            path, StoreOptions(flush_mode=mode, **STORE), replica=True, bounded=True
        )
        self.epochs = EpochFile.open(
            runtime.disk, self.store.paths.root / "epochFileCheckpoint", self.store.log.max_offset
        )
        self.flusher = LoopFlusher(self.store)
        self.server = HaServer(
            self.store,
            OPTIONS,
            runtime,
            own_id=node_id,
            epochs=self.epochs,
            snapshot=lambda: b"{}",
            on_proposal=self.proposed,
            on_superseded=lambda epoch: say(superseded=epoch),
        )
        self.client = HaClient(
            self.store, OPTIONS, runtime, replica_id=node_id, epochs=self.epochs, flusher=self.flusher
        )
        self.is_following = False
        self.load: asyncio.Task[None] | None = None
        self.waiting = 0

    def proposed(self, proposal: Proposal) -> None:
        say(proposal=sorted(proposal.members), set_epoch=proposal.set_epoch)

    async def run(self) -> None:
        self.flusher.start()
        await self.server.start()
        say(address="{}:{}".format(*self.server.address))
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if order["do"] == "stop":
                break
            await getattr(self, "do_" + order.pop("do"))(**order)
        await self.do_rest()
        await self.client.stop()
        await self.server.stop()
        self.flusher.stop()
        self.store.close()
        say(stopped=True)

    async def do_lead(self, epoch: int, members: list[int], set_epoch: int) -> None:
        if self.is_following:
            await self.client.stop()
            self.is_following = False
        self.server.lead(epoch, members, set_epoch)

    async def do_follow(self, address: str, epoch: int) -> None:
        if not self.is_following:
            await self.do_rest()
            self.server.step_down()
            await self.client.start()
            self.is_following = True
        self.client.follow(address, epoch)

    async def do_decided(self, members: list[int], set_epoch: int) -> None:
        if self.server.tracker is not None:
            self.server.tracker.decided(members, set_epoch)

    async def do_state(self) -> None:
        tracker = self.server.tracker
        say(
            state={
                "max": self.store.log.max_offset,
                "epochs": self.epochs.entries,
                "following": self.is_following and self.client.is_following,
                "members": sorted(tracker.members) if tracker is not None else [],
                "confirm": tracker.confirm_offset if tracker is not None else 0,
            }
        )

    async def do_load(self, first: int) -> None:
        self.load = asyncio.get_running_loop().create_task(self.append_for_ever(first))

    async def do_rest(self) -> None:
        if self.load is not None:
            self.load.cancel()
            await asyncio.gather(self.load, return_exceptions=True)
            self.load = None

    async def append_for_ever(self, number: int) -> None:
        """As a broker does it: written at once, flushed by the group commit and copied at the same time."""
        store, server = self.store, self.server
        while True:
            if self.waiting < WAITING_MAX:
                group = range(number, number + GROUP)
                number += GROUP
                requests = [store.request(message(n, n % 700), n % 2) for n in group]
                store.append_group(requests, durability=Durability.MEMORY)
                self.waiting += 1
                server.when_replicated(store.log.max_offset, ALL_IN_SYNC, partial(self.ended, group))
                server.appended()
                if store.options.flush_mode is FlushMode.SYNC:
                    self.flusher.when_flushed(store.log.max_offset, lambda error: server.appended())
            await asyncio.sleep(0.0005)

    def ended(self, group: range, outcome: Outcome) -> None:
        self.waiting -= 1
        if outcome is Outcome.REPLICATED:
            say(acked=[group[0], group[-1]])


if __name__ == "__main__":
    asyncio.run(Node(Path(sys.argv[1]), int(sys.argv[2]), FlushMode(sys.argv[3])).run())
