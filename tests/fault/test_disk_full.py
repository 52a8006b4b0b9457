"""F4: the disk is full at every place where the store writes; then space returns, without a restart."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import DiskFullError, StoreError
from penstock.store import FlushMode, MessageStore
from penstock.testing import ManualClock, keep_unsynced
from tests.support.store_checks import (
    Ledger,
    append,
    append_group,
    batch_of,
    check_store,
    faulty,
    message_of,
    open_store,
    place_of,
    read_queue,
    reopened,
    serial_of,
    small_options,
)

pytestmark = pytest.mark.fault("F4")

SITES = [
    ("pwrite", "commitlog"),
    ("allocate", "prepare"),
    ("open", "prepare"),
    ("rename", "prepare"),
    ("make_dirs", "consumequeue"),
    ("open", "consumequeue"),
    ("truncate", "consumequeue"),
    ("pwrite", "consumequeue"),
    ("open", "index"),
    ("truncate", "index"),
    ("pwrite", "index"),
    ("pwrite", "checkpoint"),
    ("open", "manifest"),
    ("pwrite", "manifest"),
    ("rename", "manifest"),
]


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    """Lets go of the stores of a test that failed half-way."""
    with ExitStack() as stack:
        yield stack


def tick(store: MessageStore, clock: ManualClock) -> None:
    """A keeper's round; like its thread, a test only notes that a round failed."""
    clock.advance(15_000)
    try:
        store.keeper.tick()
    except OSError as error:
        store.keeper.failed(error)


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.parametrize("mode", [FlushMode.SYNC, FlushMode.ASYNC])
@pytest.mark.parametrize(
    ("operation", "where", "after"),
    [(*site, after) for site in SITES for after in (0, 1)],
)
def test_no_space_at_one_place(
    tmp_path: Path, stores: ExitStack, operation: str, where: str, after: int, mode: FlushMode
) -> None:
    """The writer sees DiskFullError or nothing at all; reads go on; nothing is lost; space brings it back."""
    options = small_options(flush_mode=mode)
    disk, clock, ledger = faulty(tmp_path), ManualClock(), Ledger()
    store = open_store(tmp_path, options, disk=disk, clock=clock)
    stores.callback(store.abandon)
    for serial in range(1, 30):
        append(store, serial, ledger)
    tick(store, clock)
    disk.fail_next(operation, errno.ENOSPC, path_contains=where, after=after, times=None)
    refused = []
    for serial in range(30, 120):
        try:
            append(store, serial, ledger)
        except DiskFullError:
            refused.append(serial)
        if serial % 20 == 0:
            tick(store, clock)
            for place in ledger.acked:
                assert store.get(*place, 0).count > 0
    assert disk.calls[operation] > 0
    disk.clear_faults()
    for serial in refused:
        append(store, serial, ledger)
    append_group(store, range(200, 230), ledger)
    tick(store, clock)
    assert check_store(store, ledger) == ledger.count
    disk.crash(keep_unsynced)
    store.abandon()
    with reopened(tmp_path, ledger, options) as again:
        assert sum(len(read_queue(again, *place)) for place in ledger.acked) == ledger.count


@pytest.mark.invariant("I4")
def test_offsets_of_refused_messages_are_not_burnt(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, disk=disk) as store:
        assert append(store, 6) == 0
        disk.fail_next("pwrite", errno.ENOSPC, path_contains="commitlog", times=3)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                append(store, 12)
        with pytest.raises(DiskFullError):
            store.append_batch("orders", 0, batch_of([18, 24]))
        assert append(store, 30) == 1
        assert store.append_batch("orders", 0, batch_of([36, 42])).first_queue_offset == 2


@pytest.mark.parametrize("partial_bytes", [1, 60, 130, 200, 300, 421])
@pytest.mark.invariant("I11")
def test_what_a_short_write_left_behind_never_comes_back(tmp_path: Path, partial_bytes: int) -> None:
    """A refused group may have left whole records on the disk; a shorter record is then written over them."""
    disk, ledger = faulty(tmp_path), Ledger()
    store = open_store(tmp_path, disk=disk)
    append(store, 6, ledger, size=20)
    requests = [store.request(message_of(s, 20), place_of(s)[1]) for s in (12, 18, 24)]
    disk.fail_next("pwrite", errno.ENOSPC, path_contains="commitlog", partial_bytes=partial_bytes)
    with pytest.raises(DiskFullError):
        store.append_group(requests)
    assert [request.size for request in requests] == [0, 0, 0]
    append(store, 30, ledger, size=20)
    disk.crash(keep_unsynced)
    store.abandon()
    with reopened(tmp_path, ledger) as again:
        assert [serial_of(m) for m in read_queue(again, "orders", 0)] == [6, 30]


def test_a_disk_that_fills_up_serves_reads_and_goes_on_when_space_returns(tmp_path: Path) -> None:
    """No orders here: the disk itself has a limit, and files grow into it."""
    disk, clock, ledger = faulty(tmp_path), ManualClock(), Ledger()
    store = open_store(tmp_path, disk=disk, clock=clock)
    for serial in range(1, 10):
        append(store, serial, ledger)
    tick(store, clock)
    disk.space_limit_bytes = disk.used_bytes + 9_000
    refused = 0
    for serial in range(10, 300):
        try:
            append(store, serial, ledger)
        except DiskFullError:
            refused += 1
        if serial % 50 == 0:
            tick(store, clock)
    assert refused > 50
    for place in ledger.acked:
        assert len(read_queue(store, *place)) == len(ledger.acked[place])
    disk.space_limit_bytes = None
    clock.advance(15_000)
    store.keeper.tick()
    for serial in range(300, 340):
        append(store, serial, ledger)
    assert check_store(store, ledger) == ledger.count
    store.close()
    reopened(tmp_path, ledger).close()


def test_a_store_that_cannot_be_opened_for_lack_of_space_says_so_and_opens_later(tmp_path: Path) -> None:
    ledger = Ledger()
    store = open_store(tmp_path)
    for serial in range(1, 60):
        append(store, serial, ledger)
    store.abandon()
    changes = 0
    while True:
        disk = faulty(tmp_path)
        for operation in ("pwrite", "allocate", "truncate", "open", "rename", "make_dirs"):
            disk.fail_next(operation, errno.ENOSPC, after=changes, times=None)
        try:
            store = open_store(tmp_path, disk=disk)
        except (StoreError, OSError):
            disk.kill()
        else:
            store.abandon()
            disk.kill()
            break
        changes += 1
        assert changes < 300
    assert changes > 3
    reopened(tmp_path, ledger).close()
