"""The checkpoint: its seal, Java's form, damage, and that it never promises what is not synced."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.runtime import SystemDisk
from penstock.store import Durability, FlushMode, MessageStore
from penstock.store.checkpoint import SIZE, Checkpoint, CheckpointFile
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import faulty, open_store, small_options

VALUES = (1_700_000_000_000, 1_700_000_001_000, 1_699_999_000_000, 4096, 8192, 16384)


def java_form(*values: int) -> bytes:
    return struct.pack(">5q", *values[:5]).ljust(SIZE, b"\0")


def older_form(*values: int) -> bytes:
    sealed = struct.pack(">5q", *values[:5]) + b"PEN1"
    return (sealed + struct.pack(">I", zlib.crc32(sealed))).ljust(SIZE, b"\0")


@pytest.mark.parametrize("values", [VALUES, (0, 0, 0, 0, 0, 0), (2**63 - 1,) * 6])
def test_values_come_back_sealed(tmp_path: Path, values: tuple[int, ...]) -> None:
    file = CheckpointFile(SystemDisk(), tmp_path / "checkpoint")
    file.save(Checkpoint(*values))
    found = file.load()
    assert (tmp_path / "checkpoint").stat().st_size == SIZE == 4096
    assert (found.physic_timestamp, found.logics_timestamp, found.index_timestamp) == values[:3]
    assert (found.master_flushed_offset, found.confirm_offset, found.flushed_offset) == values[3:]
    assert (found.trusted, found.sealed, found.durable_offset) == (True, True, values[5])


def test_the_older_seal_has_one_offset_for_both() -> None:
    found = Checkpoint.decode(older_form(*VALUES))
    assert (found.trusted, found.sealed) == (True, True)
    assert found.durable_offset == found.confirm_offset == VALUES[4]
    damaged = bytearray(older_form(*VALUES))
    damaged[35] ^= 1
    assert not Checkpoint.decode(bytes(damaged)).trusted


def test_javas_form_is_trusted_for_times_but_vouches_for_no_offset() -> None:
    found = Checkpoint.decode(java_form(*VALUES))
    assert (found.trusted, found.sealed, found.durable_offset) == (True, False, 0)
    assert found.physic_timestamp == VALUES[0]
    assert Checkpoint.decode(java_form(*VALUES)[:40]).physic_timestamp == VALUES[0]


@pytest.mark.fault("F7")
def test_every_flipped_bit_is_noticed() -> None:
    data = Checkpoint(*VALUES).encode()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = Checkpoint.decode(bytes(damaged))
        assert (found.trusted, found.durable_offset) == (False, 0), bit


@pytest.mark.fault("F7")
@pytest.mark.parametrize("size", range(41))
def test_a_short_file(size: int) -> None:
    found = Checkpoint.decode(Checkpoint(*VALUES).encode()[:size])
    assert found.trusted == (size >= 40)
    assert (found.sealed, found.durable_offset) == (False, 0)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("number", range(5))
def test_negative_values_are_not_trusted(number: int) -> None:
    values = list(VALUES)
    values[number] = -1
    assert not Checkpoint.decode(java_form(*values)).trusted
    assert not Checkpoint.decode(Checkpoint(*values).encode()).trusted


def test_an_absent_file_is_not_trusted(tmp_path: Path) -> None:
    found = CheckpointFile(SystemDisk(), tmp_path / "none").load()
    assert (found.trusted, found.min_timestamp) == (False, 0)


def test_a_java_broker_that_wrote_over_it_leaves_a_seal_that_does_not_match() -> None:
    data = java_form(*(value + 1 for value in VALUES))[:40] + Checkpoint(*VALUES).encode()[40:]
    assert not Checkpoint.decode(data).trusted


@pytest.mark.parametrize(
    ("physic", "logics", "expected"), [(10_000, 20_000, 7000), (20_000, 10_000, 7000), (2999, 2999, 0)]
)
def test_the_time_up_to_which_everything_is_on_disk_keeps_3_seconds(
    physic: int, logics: int, expected: int
) -> None:
    assert Checkpoint(physic, logics).min_timestamp == expected


def test_saving_syncs_the_file_and_at_first_its_name(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    file = CheckpointFile(disk, tmp_path / "checkpoint")
    file.save(Checkpoint(*VALUES))
    ops = [entry.op for entry in disk.log]
    assert ops == ["open", "truncate", "pwrite", "sync", "sync_dir"]
    disk.log.clear()
    file.save(Checkpoint(*VALUES))
    assert [entry.op for entry in disk.log] == ["pwrite", "sync"]


# -- what it promises ----------------------------------------------------------------------------------------


class Promise:
    """Replays a disk's log: which files have writes that no sync covers when the checkpoint is written."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.dirty_at: list[set[str]] = []
        dirty: set[str] = set()
        for entry in disk.log:
            if entry.op == "pwrite" and entry.path == "checkpoint":
                self.dirty_at.append(set(dirty))
            elif entry.op == "pwrite":
                dirty.add(entry.path)
            elif entry.op == "sync":
                dirty.discard(entry.path)


def stored(folder: Path) -> Checkpoint:
    return CheckpointFile(SystemDisk(), folder / "checkpoint").load()


def fill(store: MessageStore, count: int) -> int:
    for i in range(count):
        last = store.append(Message.of(f"t{i % 3}", bytes(500), keys=f"k{i}"))
    return last.store_timestamp


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("mode", list(FlushMode))
def test_log_queues_and_index_are_synced_before_the_checkpoint_says_so(
    tmp_path: Path, mode: FlushMode
) -> None:
    disk, clock = faulty(tmp_path), ManualClock()
    with open_store(tmp_path, small_options(flush_mode=mode), disk=disk, clock=clock) as store:
        store.keeper.tick()
        for _ in range(3):
            clock.advance(10_000)
            newest = fill(store, 40)
            disk.log.clear()
            store.keeper.tick()
            promise = Promise(disk)
            assert promise.dirty_at == [set()]
            kinds = {e.path.split("/")[0] for e in disk.log if e.op == "sync" and e.path != "checkpoint"}
            assert {"consumequeue", "index"} <= kinds
            found = stored(tmp_path)
            assert (found.physic_timestamp, found.logics_timestamp) == (newest, newest)
            assert found.confirm_offset == store.flusher.flushed_offset == store.log.max_offset


def test_what_is_not_flushed_is_not_promised(tmp_path: Path) -> None:
    disk, clock = faulty(tmp_path), ManualClock()
    options = small_options(flush_mode=FlushMode.ASYNC, flush_interval_ms=10**9)
    with open_store(tmp_path, options, disk=disk, clock=clock) as store:
        first = fill(store, 4)
        store.flush()
        store.keeper.tick()
        flushed = store.log.max_offset
        clock.advance(10_000)
        fill(store, 4)
        store.keeper.tick()
        found = stored(tmp_path)
        assert found.confirm_offset == flushed < store.log.max_offset
        assert found.physic_timestamp == first


@pytest.mark.invariant("I5")
def test_under_sync_flush_queues_are_promised_as_far_as_they_are_visible(tmp_path: Path) -> None:
    disk, clock = faulty(tmp_path), ManualClock()
    options = small_options(flush_interval_ms=10**9)
    with open_store(tmp_path, options, disk=disk, clock=clock) as store:
        seen = fill(store, 4)
        clock.advance(10_000)
        store.append(Message.of("t0", b"unseen"), durability=Durability.MEMORY)
        store.keeper.tick()
        found = stored(tmp_path)
        assert (found.logics_timestamp, found.physic_timestamp) == (seen, 0)


def test_a_round_that_is_not_thorough_leaves_the_queues_time(tmp_path: Path) -> None:
    disk, clock = faulty(tmp_path), ManualClock()
    with open_store(tmp_path, disk=disk, clock=clock) as store:
        store.keeper.tick()
        first = fill(store, 3)
        clock.advance(10_000)
        store.keeper.tick()
        assert stored(tmp_path).logics_timestamp == first
        clock.advance(1000)
        second = fill(store, 3)
        store.keeper.tick()
        found = stored(tmp_path)
        assert (found.physic_timestamp, found.logics_timestamp) == (second, first)


def test_a_clean_close_promises_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    newest = fill(store, 10)
    end = store.log.max_offset
    store.close()
    found = stored(tmp_path)
    assert (found.physic_timestamp, found.logics_timestamp, found.confirm_offset) == (newest, newest, end)
    assert found.trusted
    assert found.sealed
