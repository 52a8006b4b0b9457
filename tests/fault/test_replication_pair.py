"""Replication under faults: processes killed, connections cut anywhere, replicas that do not read, power lost.

The coordinator of these sets is the test itself: it decides who is in the sync-state set, and elects one of its live
members when a master was killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.replication import Outcome
from penstock.store import FlushMode, MessageStore, StoreOptions
from tests.effort import by_length, first_seed
from tests.fault.replication_node import STORE
from tests.support.cutting_proxy import CuttingProxy
from tests.support.store_pair import QUICK, Node, bodies, log_bytes, message
from tests.waiting import turns, until

ROOT = Path(__file__).resolve().parents[2]
# By turns the master is killed, and whom chance names.
ROUNDS = by_length(3, 60)


class NodeProcess:
    """A `replication_node.py` and what it said."""

    def __init__(self, folder: Path, node_id: int, mode: FlushMode) -> None:
        self.folder = folder
        self.node_id = node_id
        self.mode = mode
        self.address = ""
        self.acked: set[int] = set()
        self.set: ReplicatedSet | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._state: asyncio.Future[dict[str, Any]] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        self.address = ""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.fault.replication_node",
            str(self.folder),
            str(self.node_id),
            self.mode.value,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        await until(lambda: bool(self.address), "the node listens")

    async def _read(self) -> None:
        while line := await self._process.stdout.readline():
            if not line.endswith(b"\n"):
                return  # killed in the middle of a word
            said = json.loads(line)
            self.address = said.get("address", self.address)
            if "acked" in said:
                first, last = said["acked"]
                self.acked.update(range(first, last + 1))
            if "proposal" in said and self.set is not None:
                self.set.proposed(self, said["proposal"], said["set_epoch"])
            if "state" in said and self._state is not None:
                self._state.set_result(said["state"])

    def tell(self, **order: object) -> None:
        if self._process is not None:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def state(self) -> dict[str, Any]:
        self._state = asyncio.get_running_loop().create_future()
        self.tell(do="state")
        return await asyncio.wait_for(self._state, 90)

    async def end(self, how: signal.Signals | None = None) -> None:
        """Kill it, or stop it cleanly."""
        if self._process is None:
            return
        if how is None:
            self.tell(do="stop")
        else:
            self._process.send_signal(how)
        await asyncio.wait_for(self._process.wait(), 90)
        await self._reading
        self._process.stdin.close()
        self._process._transport.close()  # type: ignore[attr-defined]
        self._process = None


class ReplicatedSet:
    """The nodes, and what a coordinator would know of them."""

    def __init__(self, folder: Path, mode: FlushMode, count: int = 3) -> None:
        self.nodes = [NodeProcess(folder / f"node{n}", n, mode) for n in range(1, count + 1)]
        self.master = self.nodes[0]
        self.members: set[int] = set()
        self.epoch = 0
        self.set_epoch = 0

    async def start(self) -> None:
        for node in self.nodes:
            node.set = self
            await node.start()

    def proposed(self, node: NodeProcess, members: list[int], set_epoch: int) -> None:
        """Compare and set, as metadata does."""
        if node is self.master and set_epoch == self.set_epoch:
            self.members, self.set_epoch = set(members), self.set_epoch + 1
        node.tell(do="decided", members=sorted(self.members), set_epoch=self.set_epoch)

    def elect(self, node: NodeProcess) -> None:
        self.master = node
        self.epoch += 1
        self.set_epoch += 1
        self.members = {node.node_id}
        node.tell(do="lead", epoch=self.epoch, members=[node.node_id], set_epoch=self.set_epoch)
        for other in self.nodes:
            if other is not node:
                other.tell(do="follow", address=node.address, epoch=self.epoch)

    async def fail_over(self) -> None:
        """Elect the live member of the set that has most."""
        ends = {}
        for node in self.nodes:
            if node.is_alive and node.node_id in self.members:
                ends[node.node_id] = (await node.state())["max"]
        self.elect(next(node for node in self.nodes if node.node_id == max(ends, key=lambda one: ends[one])))

    async def joined(self) -> None:
        await until(lambda: len(self.members) == len(self.nodes), "everybody is in the set")

    async def acknowledges(self, count: int = 1) -> None:
        wanted = len(self.master.acked) + count
        await until(lambda: len(self.master.acked) >= wanted, f"{count} more that are acknowledged")

    async def kill(self, victim: NodeProcess) -> None:
        """Kill it under load, let the others go on, and have it come back as a replica."""
        await victim.end(signal.SIGKILL)
        if victim is self.master:
            await self.fail_over()
        else:
            await until(lambda: victim.node_id not in self.members, "it has left the set")
            await self.acknowledges()
            self.master.tell(do="rest")
        await victim.start()
        victim.tell(do="follow", address=self.master.address, epoch=self.epoch)

    async def all_equal(self) -> None:
        async def holds() -> bool:
            return len({(await node.state())["max"] for node in self.nodes}) == 1

        await until(holds, "logs of one length")


def read_numbers(store: MessageStore) -> list[list[int]]:
    """The numbers of each queue, in the order of the queue, checked against what was written."""
    found = []
    for queue in (0, 1):
        numbers = []
        for offset, one in enumerate(store.read("T", queue, 0, 1_000_000)):
            number = int(one.body.split(b":")[0])
            assert one.body == message(number, number % 700).body
            assert one.queue_offset == offset
            numbers.append(number)
        found.append(numbers)
    return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.fault("F1")
@pytest.mark.invariant("I1", "I2", "I3", "I4", "I6", "I7")
@pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])
def test_masters_and_replicas_are_killed_and_nothing_acknowledged_is_lost(
    tmp_path: Path, mode: FlushMode
) -> None:
    chance = random.Random(first_seed(7))

    async def scene() -> set[int]:
        cluster = ReplicatedSet(tmp_path, mode)
        await cluster.start()
        cluster.elect(cluster.nodes[0])
        number = 0
        for round_number in range(ROUNDS):
            number += 1_000_000
            await cluster.joined()
            cluster.master.tell(do="load", first=number)
            await cluster.acknowledges(101 // ROUNDS + 1)
            await asyncio.sleep(chance.uniform(0.05, 0.6))
            await cluster.kill(cluster.master if round_number % 2 == 0 else chance.choice(cluster.nodes))
        await cluster.joined()
        await cluster.all_equal()
        for node in cluster.nodes:
            await node.end()
        return set().union(*(node.acked for node in cluster.nodes))

    acked = asyncio.run(scene())
    logs = set()
    for n in (1, 2, 3):
        with MessageStore.open(
            tmp_path / f"node{n}", StoreOptions(flush_mode=mode, **STORE), read_only=True
        ) as store:
            logs.add(log_bytes(store))
            numbers = read_numbers(store)
            assert all(found == sorted(set(found)) for found in numbers), "each once, in order"
            assert acked <= set(numbers[0]) | set(numbers[1])
    assert len(logs) == 1
    assert len(acked) > 100


# -- connections that break --------------------------------------------------------------------------------------


@pytest.mark.fault("F3")
@pytest.mark.invariant("I7")
@pytest.mark.parametrize("classic", [True, False], ids=["classic", "epochs"])
def test_connections_are_cut_inside_frames(tmp_path: Path, classic: bool) -> None:
    chance = random.Random(11)

    async def scene(proxy: CuttingProxy) -> None:
        master = await Node(tmp_path / "master", 1, classic=classic).start()
        replica = await Node(tmp_path / "replica", 2, classic=classic).start()
        await master.lead(0 if classic else 1)
        proxy.forward_to(master.address)
        await replica.follow(proxy.address, 0 if classic else 1)
        await until(lambda: replica.client.is_following)
        for number in range(40):
            if number == 30:
                proxy.refuse(True)
            proxy.reset(chance.randrange(1, 3_000))
            master.append(number * 10, 10, chance.randrange(400))
            await asyncio.sleep(0.02)
            if number == 35:
                proxy.refuse(False)
        number = 100

        async def is_cut_often() -> bool:
            """How often depends on how fast the machine is: as long as it takes."""
            nonlocal number
            if proxy.cut < 5:
                proxy.reset(chance.randrange(1, 3_000))
                master.append(number * 10, 10, chance.randrange(400))
                number += 1
            return proxy.cut >= 5

        await until(is_cut_often, "connections that are cut")
        end = master.append(1_000_000, 1)
        await until(lambda: replica.store.log.max_offset == end)
        assert log_bytes(replica.store) == log_bytes(master.store)
        await until(lambda: bodies(replica.store) == bodies(master.store))
        await replica.stop()
        await master.stop()

    with CuttingProxy() as proxy:
        asyncio.run(scene(proxy))


@pytest.mark.fault("F3", "F12")
@pytest.mark.invariant("I1", "I5", "I6")
@pytest.mark.parametrize("how", ["swallow", "deafen"])
def test_half_open_connections_hold_a_set_up_only_until_the_member_has_left(tmp_path: Path, how: str) -> None:
    async def scene(proxy: CuttingProxy) -> None:
        master = await Node(tmp_path / "master", 1).start()
        replica = await Node(tmp_path / "replica", 2).start()
        await master.lead(1)
        proxy.forward_to(master.address)
        await replica.follow(proxy.address, 1)
        await until(lambda: master.server.tracker.members == {1, 2})
        getattr(proxy, how)()
        proxy.refuse(True)
        end = master.append(0, 20)
        waiting = asyncio.ensure_future(master.replicated(end))
        await turns()
        assert not waiting.done()
        assert bodies(master.store) == []
        assert await waiting is Outcome.REPLICATED
        assert master.server.tracker.members == {1}
        assert len(bodies(master.store)) == 10
        proxy.refuse(False)
        await until(lambda: master.server.tracker.members == {1, 2})
        assert log_bytes(replica.store) == log_bytes(master.store)
        await replica.stop()
        await master.stop()

    with CuttingProxy() as proxy:
        asyncio.run(scene(proxy))


@pytest.mark.abuse("A15")
@pytest.mark.invariant("I16")
def test_a_replica_that_does_not_read_costs_a_bounded_buffer(tmp_path: Path) -> None:
    """However far behind it is: what it has not taken stays in the log and nowhere else."""

    async def scene() -> None:
        options = QUICK.__class__(send_buffer_bytes=100_000, epoch_batch_bytes=20_000)
        master = await Node(tmp_path / "master", 1, options=options).start()
        await master.lead(1)
        _, writer = await asyncio.open_connection(*master.server.address, limit=1_000)
        writer.transport.pause_reading()
        writer.write(bytes.fromhex("00000001 0000 0000 0000000000000002 00000002 0000000000000000"))
        await until(lambda: len(master.server.replicas()) == 1)
        (link,) = master.server.links
        kept = 0
        for number in range(3_000):
            master.append(number, 1, 5_000)
            await asyncio.sleep(0)
            kept = max(kept, link.transport.get_write_buffer_size())
        assert link.sender.has_more
        assert 0 < kept <= 100_000 + 20_000 + 36
        writer.transport.abort()
        await master.stop()

    asyncio.run(scene())
