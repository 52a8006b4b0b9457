"""A replica loses its power: before any change of a handshake that cuts its log back, and while it copies.

The cores run on real stores over `FaultyDisk`, with a wire in memory between them: nothing here waits for anything.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.replication.options import ReplicationOptions
from penstock.replication.receiver import EpochReceiver
from penstock.replication.sender import EpochSender
from penstock.replication.steps import Stored
from penstock.replication.store_log import StoreLog
from penstock.runtime import Disk, Runtime, SeededEntropy, SystemDisk
from penstock.store import FlushMode, MessageStore
from penstock.store.epochs import EpochFile
from penstock.testing import FaultyDisk, Keep, keep_random_blocks, keep_unsynced, lose_unsynced
from tests.support.memory_log import MemoryLeadership, Wire
from tests.support.store_pair import SMALL, log_bytes, message

STORE = replace(SMALL, segment_size_bytes=16 * 1024, flush_mode=FlushMode.SYNC)
OPTIONS = ReplicationOptions(epoch_batch_bytes=1_000)


class Side:
    """A store and its epochs on some disk."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        runtime = Runtime(disk=disk or SystemDisk())
        self.store = MessageStore.open(
            folder, STORE, runtime=runtime, background=False, replica=True, bounded=True
        )
        self.epochs = EpochFile.open(runtime.disk, folder / "epochFileCheckpoint", self.store.log.max_offset)

    def write(self, epoch: int, numbers: range) -> None:
        """As the master of an epoch."""
        self.store.cut_tail()
        if self.epochs.last is None or self.epochs.last.epoch < epoch:
            self.epochs.append(epoch, self.store.log.max_offset)
        self.store.replica_mode(False)
        for number in numbers:
            self.store.append(message(number, number % 300), number % 2)
        self.store.replica_mode(True)

    def connect(self, master: Side, chance: random.Random) -> SyncedWire:
        epoch = master.epochs.entries[-1][0]
        end = master.store.log.max_offset
        leadership = MemoryLeadership(epoch, master.epochs.entries, end)
        self.store.flush()
        wire = SyncedWire(
            EpochSender(StoreLog(master.store), leadership, 1, OPTIONS, 0),
            EpochReceiver(StoreLog(self.store), self.epochs, 2, epoch, OPTIONS, 0),
            chance,
        )
        wire.side = self
        wire.connect()
        return wire


class SyncedWire(Wire):
    """Now and then the replica flushes, as its group commit would."""

    side: Side

    def step(self) -> None:
        super().step()
        if self.chance.random() < 0.3 and self.receiver.awaits_flush:
            self.side.store.flush()
            self._of_receiver(self.receiver.handle(Stored(), self.now_ms))


def settled(replica: Side, master: Side, chance: random.Random) -> None:
    """Follow until everything is copied and acknowledged."""
    wire = replica.connect(master, chance)
    wire.settle()
    assert wire.reasons == []
    assert wire.acked == master.store.log.max_offset


def assert_copy(folder: Path, master: Side) -> None:
    """After one more crash the copy is what it was: nothing stale becomes valid again."""
    again = Side(folder)
    try:
        assert log_bytes(again.store) == log_bytes(master.store)
        assert again.epochs.entries == master.epochs.entries
    finally:
        again.store.abandon()


@pytest.fixture
def branches(tmp_path: Path) -> tuple[Path, Side]:
    """A deposed master with a tail of its own, over several segments, and the new master.

    The deposed one had not all of the first epoch when it wrote its tail. So whoever forgets the second epoch before
    its bytes are gone takes some of them for bytes of the first.
    """
    old, new = Side(tmp_path / "old"), Side(tmp_path / "new")
    new.write(1, range(40))
    settled(old, new, random.Random(1))
    parted = old.store.log.max_offset
    new.write(1, range(40, 80))
    old.write(2, range(100, 300))
    new.write(3, range(200, 260))
    assert old.epochs.entries == ((1, 0), (2, parted))
    assert new.epochs.entries[1][1] > parted + 1_000
    old.store.flush()
    new.store.flush()
    old.store.abandon()
    return tmp_path / "old", new


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.fault("F1", "F5", "F6")
@pytest.mark.invariant("I7", "I11")
@pytest.mark.parametrize("keep", [lose_unsynced, keep_unsynced, None], ids=["lost", "kept", "some"])
def test_power_is_lost_before_every_change_of_a_cut(
    tmp_path: Path, branches: tuple[Path, Side], keep: Keep | None
) -> None:
    source, master = branches
    changes, survived = 0, 0
    while True:
        folder = tmp_path / "again"
        shutil.copytree(source, folder)
        disk = FaultyDisk(folder)
        replica = Side(folder, disk)
        chance = random.Random(changes)
        disk.stop_after(changes)
        try:
            settled(replica, master, chance)
            finished = disk.has_power
        except (OSError, StoreError, AssertionError):
            assert not disk.has_power, "nothing but the power failed"
            finished = False
        disk.crash(keep=keep or keep_random_blocks(SeededEntropy(changes)))
        replica.store.abandon()
        recovered = Side(folder)
        survived += recovered.store.log.max_offset > 0
        settled(recovered, master, chance)
        assert log_bytes(recovered.store) == log_bytes(master.store)
        recovered.store.abandon()
        assert_copy(folder, master)
        shutil.rmtree(folder)
        if finished:
            break
        changes += 1 if changes < 60 else 7
    master.store.abandon()
    assert changes > 60
    assert survived > 60


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1", "I5")
@pytest.mark.parametrize("seed", range(12))
def test_what_a_synchronous_replica_acknowledged_is_there_after_power_loss(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    master = Side(tmp_path / "master")
    master.write(1, range(100))
    folder = tmp_path / "replica"
    acked = -1
    for round_number in range(5):
        disk = FaultyDisk(folder)
        replica = Side(folder, disk)
        assert replica.store.log.max_offset >= acked
        assert log_bytes(replica.store) == log_bytes(master.store)[: replica.store.log.max_offset]
        wire = replica.connect(master, chance)
        for _ in range(chance.randrange(60)):
            wire.step()
        assert wire.reasons == []
        acked = max(acked, wire.acked)
        disk.crash(keep=keep_random_blocks(SeededEntropy(seed * 10 + round_number)))
        replica.store.abandon()
    replica = Side(folder)
    settled(replica, master, chance)
    assert log_bytes(replica.store) == log_bytes(master.store)
    assert acked > 0
    replica.store.abandon()
    master.store.abandon()
