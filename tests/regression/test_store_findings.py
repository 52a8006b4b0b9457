"""The smallest form of each store bug that the fault tests found. An expected failure is a bug still open; when it
is mended, its mark goes and the test stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.message import Message
from penstock.store import Durability, FlushMode
from penstock.testing import ManualClock
from tests.support.store_checks import (
    Ledger,
    append,
    audit,
    faulty,
    open_store,
    place_of,
    reopened,
    small_options,
)


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
def test_a_flushed_message_survives_the_loss_of_unsynced_names(tmp_path: Path) -> None:
    disk, ledger = faulty(tmp_path / "store", lose_directory_entries=True), Ledger()
    store = open_store(tmp_path / "store", disk=disk)
    append(store, 1, ledger)
    disk.crash()
    store.abandon()
    reopened(tmp_path / "store", ledger).close()


@pytest.mark.fault("F5")
@pytest.mark.invariant("I2")
@pytest.mark.parametrize("seal", [False, True])
def test_a_record_torn_in_its_properties_is_not_a_message(tmp_path: Path, seal: bool) -> None:
    disk = faulty(tmp_path)
    store = open_store(tmp_path, small_options(seal_records=seal), disk=disk)
    result = store.append(Message("t", b"body", {"KEYS": "a-long-key"}), durability=Durability.MEMORY)
    disk.crash(torn_at=result.size - 5 - 20 * seal, torn_path_contains="commitlog")
    store.abandon()
    with open_store(tmp_path) as again:
        assert again.read("t", 0, 0) == []


@pytest.mark.fault("F7")
def test_the_oldest_offset_does_not_go_back_when_a_rebuilt_queue_is_opened_again(tmp_path: Path) -> None:
    clock, options = ManualClock(), small_options(file_reserved_hours=1)
    store = open_store(tmp_path, options, clock=clock)
    for serial in range(6, 600, 6):
        append(store, serial)
    clock.advance(10**13)
    store.keeper.request_clean()
    assert store.keeper.clean() > 0
    kept_from = store.min_offset("orders", 0)
    assert kept_from % options.queue_file_entries, "the first kept offset must lie inside a queue file"
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    with open_store(tmp_path, options) as rebuilt:
        assert rebuilt.min_offset("orders", 0) == kept_from
    with open_store(tmp_path, options) as again:
        assert again.min_offset("orders", 0) == kept_from
        assert again.get("orders", 0, kept_from).missing == ()


NO_SPACE_FOR_SLOTS = """
import errno, gc, logging, sys
from pathlib import Path
from tests.support.store_checks import ManualClock, append, faulty, open_store

logging.disable()
folder = Path(sys.argv[1])
disk, clock, errors = faulty(folder), ManualClock(), []
store = open_store(folder, disk=disk, clock=clock)
disk.fail_next("pwrite", errno.ENOSPC, path_contains="index", after=1, times=None)
for serial in range(1, 40):
    append(store, serial)
    clock.advance(15_000)
    try:
        store.keeper.tick()
    except Exception as error:
        errors.append(error)  # kept, as a log record or a status page would keep it
disk.clear_faults()
kinds = sorted({type(error).__name__ for error in errors})
assert kinds == ["OSError"], kinds
store.close()
del store
gc.collect()
"""


@pytest.mark.fault("F4")
def test_a_store_without_space_for_index_slots_goes_on_and_closes(tmp_path: Path) -> None:
    """In a process of its own: as long as this is broken, it ends in damaged memory and SIGSEGV."""
    root = Path(__file__).resolve().parents[2]
    finished = subprocess.run(
        [sys.executable, "-c", NO_SPACE_FOR_SLOTS, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("mode", list(FlushMode))
def test_listeners_hear_of_every_arrival(tmp_path: Path, mode: FlushMode) -> None:
    with open_store(tmp_path, small_options(flush_mode=mode)) as store:
        arrivals: list[tuple[bytes, int]] = []
        store.on_arrival(lambda queues: arrivals.extend((q.topic, q.queue_id) for q in queues))
        for serial in (6, 12):
            append(store, serial)
        assert arrivals == [(b"orders", 0), (b"orders", 0)]


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
def test_an_audit_compares_the_queues_of_the_first_segment(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for serial in range(6, 60, 6):
            append(store, serial)
    path = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[3 * 20 + 7] ^= 4
    path.write_bytes(data)
    with open_store(tmp_path) as store:
        assert len(store.log.segments) == 1
        assert [finding.position >= 0 for finding in audit(store).damage()] == [True]


@pytest.mark.fault("F6")
@pytest.mark.invariant("I12")
def test_offsets_that_a_power_loss_took_are_reported_or_given_out_again(tmp_path: Path) -> None:
    options = small_options(flush_mode=FlushMode.ASYNC, queue_file_entries=400)
    disk, clock = faulty(tmp_path), ManualClock()
    store = open_store(tmp_path, options, disk=disk, clock=clock)
    for serial in range(6, 36, 6):
        append(store, serial)
    clock.advance(10_500)
    store.keeper.tick()
    assert store.flusher.flushed_offset == store.log.max_offset
    for serial in range(36, 66, 6):
        append(store, serial)
    clock.advance(9_900)  # the queues' thorough sync is due, the log's thorough flush is not
    store.keeper.sync_derived(0)
    disk.crash()
    store.abandon()
    with open_store(tmp_path, options) as again:
        phantom = range(len(again.read("orders", 0, 0)), again.max_offset("orders", 0))
        assert not phantom or any("orders/0" in finding.detail for finding in again.findings.all()), phantom


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
def test_flushed_messages_keep_their_keys_when_the_index_was_ahead_of_the_log(tmp_path: Path) -> None:
    options = small_options(flush_mode=FlushMode.ASYNC)
    disk, clock = faulty(tmp_path), ManualClock()
    store = open_store(tmp_path, options, disk=disk, clock=clock)
    append(store, 6, durability=Durability.FLUSHED)
    append(store, 12)
    clock.advance(9_000)
    store.keeper.sync_derived(0)
    disk.crash()
    store.abandon()
    with open_store(tmp_path, options) as again:
        assert [m.queue_offset for m in again.read("orders", 0, 0)] == [0]
        assert [m.queue_offset for m in again.reader.query("orders", "k6")] == [0]


@pytest.mark.invariant("I5")
def test_under_sync_flush_a_message_is_not_found_by_position_before_it_is_flushed(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        result = store.append(Message("t", b"body"), durability=Durability.MEMORY)
        assert store.max_offset("t", 0) == 0
        assert store.message_at(result.physical_offset) is None


class RetentionInBetween(list[Any]):
    """A list of segments whose first one is deleted by another thread just before it is sliced."""

    delete: Any = None

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and self.delete is not None:
            delete, self.delete = self.delete, None
            delete()
        return super().__getitem__(index)


@pytest.mark.invariant("I1")
def test_a_flush_during_retention_does_not_skip_a_segment(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options(flush_mode=FlushMode.ASYNC)) as store:
        serial = 6
        while store.log.max_offset < 8192:
            append(store, serial, size=500)
            serial += 6
        store.flush()
        while store.log.max_offset < 2 * 8192:
            append(store, serial, size=500)
            serial += 6
        segments = RetentionInBetween(store.log.segments)
        store.log.segments = segments
        oldest, middle = segments[0], segments[1]
        segments.delete = lambda: store.log.remove_segment(oldest)
        store.flush()
        assert store.flusher.flushed_offset == store.log.max_offset
        assert middle.flushed == middle.size, "called flushed, never synced"


def test_the_messages_of_these_tests_share_a_queue() -> None:
    assert {place_of(serial) for serial in range(6, 600, 6)} == {("orders", 0)}
