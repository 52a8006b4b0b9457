"""A coordinated set of real processes: three brokers, a coordinator with its state in a file, a name server.

`BrokerSet.master` says who is master by the coordinator's word; `in_sync` waits until so many are in the sync-state
set. `raw` sends one request to one broker, whatever a route would say. `log` reads a dead broker's log as it is.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import RemotingClient
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions
from tests.support.server_processes import ServerProcess, broker, name_server, options
from tests.waiting import wait_until

NAME = "set-a"
SEGMENT = 4 << 20
WAIT_S = 90.0
# A dead master is replaced when its lease is over, and consumers are balanced soon after the coordinator has started.
QUICK_COORDINATOR = options(
    "coordinator",
    master_lease_ms=1_200,
    broker_silent_ms=1_200,
    first_balance_ms=1_000,
    balance_gather_ms=200,
    balance_retry_ms=300,
)
QUICK_BROKER = options("broker", beat_interval_ms=250)


async def _call(address: str, command: Command, timeout_ms: int) -> Command:
    client = RemotingClient(runtime=Runtime.system())
    try:
        return await client.call(address, command, timeout_ms)
    finally:
        await client.close()


def raw(address: str, command: Command, timeout_ms: int = 60_000) -> Command:
    """One request over a connection of its own."""
    return asyncio.run(_call(address, command, timeout_ms))


@dataclass
class BrokerSet:
    """The processes; brokers in the order of their start, which need not be that of their ids."""

    names: ServerProcess
    coordinator: ServerProcess
    brokers: list[ServerProcess]

    def info(self, timeout_ms: int = 60_000) -> ReplicasInfo | None:
        body = json.dumps([NAME]).encode()
        command = Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, body)
        answer = raw(self.coordinator.address, command, timeout_ms)
        assert answer.code == 0, answer
        return BrokerReplicasInfo.decode(answer.body).sets.get(NAME)

    def wait(self, in_sync: int, *, epoch: int = 0, timeout_s: float = WAIT_S) -> ReplicasInfo:
        """Wait until the set has a master of at least this epoch, and so many members in sync."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.info()
            if (
                found is not None
                and found.master_broker_id is not None
                and found.master_epoch >= epoch
                and sum(one.alive for one in found.in_sync) >= in_sync
            ):
                return found
            assert time.monotonic() < deadline, f"{in_sync} in sync are waited for: {found}"
            time.sleep(0.05)

    def master(self, *, epoch: int = 0) -> ServerProcess:
        address = self.wait(1, epoch=epoch).master_address
        return next(one for one in self.brokers if one.address == address)

    def leader(self, in_sync: int = 3) -> tuple[ServerProcess, int]:
        """The master of a set with so many members in sync, and its epoch: of one answer, because a busy machine may
        have another one a moment later."""
        found = self.wait(in_sync)
        return next(one for one in self.brokers if one.address == found.master_address), found.master_epoch

    def replicas(self) -> list[ServerProcess]:
        master = self.master()
        return [one for one in self.brokers if one is not master]

    def log_of(self, node: ServerProcess) -> bytes:
        """A dead broker's log; recovery cuts an incomplete record off."""
        assert not node.is_running
        options = StoreOptions(segment_size_bytes=SEGMENT, queue_file_entries=2000)
        store = MessageStore.open(node.data, options, background=False, replica=True)
        try:
            found, at, end = bytearray(), store.log.min_offset, store.log.max_offset
            while at < end:
                piece = store.slice_for_transfer(at, 1 << 20)
                assert piece is not None
                found += piece
                at += len(piece)
                piece.release()
            return bytes(found)
        finally:
            store.abandon()

    def kill_all(self) -> None:
        for node in self.brokers:
            if node.is_running:
                node.kill()

    def assert_equal_logs(self) -> None:
        """Nothing is being written, and everybody is in sync: the logs are the same, byte for byte."""
        self.wait(len(self.brokers))
        wait_until(lambda: len(set(self.log_ends())) == 1, "logs of one length")
        self.kill_all()
        first, *others = [self.log_of(node) for node in self.brokers]
        assert first
        for other in others:
            assert len(other) == len(first)
            assert other == first

    def log_ends(self) -> list[str]:
        """How far each broker's log goes by its own word, which replicas that are in sync may be behind in."""
        return [log_end(node) for node in self.brokers]


def log_end(node: ServerProcess) -> str:
    """How far a broker's log goes by its own word."""
    answer = raw(node.address, Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    return str(json.loads(answer.body)["table"]["commitLogMaxOffset"])


@contextmanager
def broker_set(
    folder: Path,
    *arguments: str,
    flush: str = "async",
    count: int = 3,
    fillable: bool = False,
    dies_at: Path | None = None,
    coordinator_arguments: tuple[str, ...] = (),
) -> Iterator[BrokerSet]:
    """The set, with everybody in sync. `fillable`: the disks can be filled. `dies_at`: see `dying_server`."""
    names = name_server(folder / "nameserver")
    coordinator = ServerProcess(
        "coordinator", folder / "coordinator", *QUICK_COORDINATOR, *coordinator_arguments
    )
    nodes = [
        broker(
            folder / f"broker-{number}",
            names.address,
            *("--name", NAME, *options("broker", coordinators=coordinator.address), *QUICK_BROKER),
            *arguments,
            flush=flush,
        )
        for number in range(1, count + 1)
    ]
    for node in nodes:
        if fillable:
            node.watch_disk()
        elif dies_at is not None:
            node.dies_at_step(dies_at)
    everybody = [names, coordinator, *nodes]
    try:
        for server in everybody:
            server.launch()
        for server in everybody:
            server.wait_ready()
        found = BrokerSet(names, coordinator, nodes)
        found.wait(count)
        yield found
        for server in everybody:
            assert "Traceback" not in server.complaints(), server.complaints()
    except BaseException as error:
        for server in everybody:
            error.add_note(
                f"standard error of {server.command} {server.port}:\n{server.complaints()[-3_000:]}"
            )
        raise
    finally:
        for server in everybody:
            server.put_down()
