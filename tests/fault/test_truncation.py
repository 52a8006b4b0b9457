"""Cutting a replica's log: in place, at every boundary, through power loss at any change, and never half.

The case of rocketmq #10666: a truncation that only resets memory lets the stale tail become valid again after a
crash. Here the tail is gone from the disk before anything new is appended.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import (
    CorruptRecordError,
    DiskFullError,
    LogPositionError,
    StoreError,
    StoreFailedError,
    StoreRoleError,
)
from penstock.runtime import SeededEntropy
from penstock.store import FlushMode, MessageStore, StoreOptions
from penstock.testing import FaultyDisk, Keep, ManualClock, keep_random_blocks, keep_unsynced, lose_unsynced
from tests.effort import by_length
from tests.support.replica_checks import (
    Branches,
    check_copy,
    copy,
    is_prefix,
    ledger_of,
    log_bytes,
    make_branches,
    records,
    shown,
)
from tests.support.store_checks import CUT_STEP, append, check_store, faulty, open_store, small_options

ASYNC = small_options(flush_mode=FlushMode.ASYNC, segment_size_bytes=4096)
SYNC = small_options(segment_size_bytes=4096)
SEGMENT = 4096
BOTH = pytest.mark.parametrize("options", [ASYNC, SYNC], ids=["async", "sync"])


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    """Lets go of the stores of a test that failed half-way."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Branches]:
    """Several segments, queue files and index files before the fork and behind it; records of many sizes."""
    found = make_branches(
        tmp_path_factory.mktemp("branches"), SYNC, range(1, 33), range(33, 75), range(1033, 1075)
    )
    yield found
    found.close()


def boundaries(store: MessageStore) -> list[int]:
    return sorted({0} | {end for _, end, _ in records(store)} | set(range(0, store.log.max_offset, SEGMENT)))


@pytest.mark.invariant("I7")
@pytest.mark.invariant("I11")
@BOTH
def test_a_log_may_be_cut_at_every_boundary(
    tmp_path: Path, stores: ExitStack, branches: Branches, options: StoreOptions
) -> None:
    """One store, cut further and further back; each time as if it had never been longer, also after a restart."""
    ends = boundaries(branches.old)
    store = open_store(tmp_path / "copy", options, replica=True)
    copy(branches.old, store)
    store.flush()
    store.keeper.tick()
    for number, position in enumerate(reversed(ends)):
        store.truncate(position)
        assert store.log.max_offset == position
        assert store.flusher.flushed_offset <= position
        assert shown(store) == [serial for _, end, serial in records(branches.old) if end <= position]
        if number % 7 == 0:
            check_copy(store, branches.old, position)
        if number % 11 == 0:
            store.close()
            store = open_store(tmp_path / "copy", options, replica=True)
            assert store.report.clean
        elif number % 13 == 0:
            store.abandon()
            store = open_store(tmp_path / "copy", options, replica=True)
        assert store.log.max_offset == position
        assert store.findings.all() == []
    stores.enter_context(store)
    copy(branches.new, store)
    store.flush()
    check_copy(store, branches.new, branches.new.log.max_offset)


@pytest.mark.invariant("I4")
@pytest.mark.invariant("I7")
@BOTH
def test_a_deposed_master_follows_its_successor(
    tmp_path: Path, stores: ExitStack, options: StoreOptions
) -> None:
    made = make_branches(tmp_path, options, range(1, 40), range(40, 90), range(1040, 1060))
    stores.callback(made.close)
    made.old.keeper.tick()
    made.old.replica_mode(True)
    made.old.truncate(made.fork)
    copy(made.new, made.old, cut=333)
    made.old.flush()
    check_copy(made.old, made.new, made.new.log.max_offset)
    # And becomes master again: no offset is used twice, none is left out.
    made.old.cut_tail()
    made.old.replica_mode(False)
    made.new.replica_mode(True)
    ledger = ledger_of(made.old)
    for serial in range(2000, 2040):
        append(made.old, serial, ledger)
    made.old.flush()
    check_store(made.old, ledger)
    copy(made.old, made.new)
    made.new.flush()
    check_copy(made.new, made.old, made.old.log.max_offset)


def test_every_other_position_is_refused_and_nothing_changes(
    tmp_path: Path, stores: ExitStack, branches: Branches
) -> None:
    store = stores.enter_context(open_store(tmp_path, ASYNC, replica=True))
    copy(branches.old, store, end=branches.fork)
    good = set(boundaries(branches.old))
    before = log_bytes(store, 0, branches.fork)
    for position in range(3 * SEGMENT // 2):
        if position not in good:
            with pytest.raises(LogPositionError, match="no record ends there"):
                store.truncate(position)
    for position in (-1, branches.fork + 1, 1 << 50):
        with pytest.raises(LogPositionError, match="it has 0 to"):
            store.truncate(position)
    assert log_bytes(store, 0, branches.fork) == before
    store.truncate(branches.fork)
    check_copy(store, branches.old, branches.fork)
    store.replica_mode(False)
    with pytest.raises(StoreRoleError, match="only a replica"):
        store.truncate(0)
    assert store.cut_tail() == branches.fork


@BOTH
def test_an_incomplete_record_is_cut_off_at_every_byte(
    tmp_path: Path, stores: ExitStack, branches: Branches, options: StoreOptions
) -> None:
    """Promotion, after the stream broke anywhere: inside a record, a blank record, or what fills up a segment."""
    store = stores.enter_context(open_store(tmp_path, options, replica=True))
    ends = boundaries(branches.old)
    starts_of_blanks = [max(e for e in ends if e < base) for base in ends if base and base % SEGMENT == 0]
    first = starts_of_blanks[0] - 300
    for stop in range(first, SEGMENT + 300, 7):
        copy(branches.old, store, end=stop)
        store.flush()
        whole = max(end for end in ends if end <= stop)
        assert store.certain_offset <= whole
        assert store.cut_tail() == whole == store.log.max_offset
    store.replica_mode(False)
    ledger = ledger_of(store)
    append(store, 5000, ledger)
    store.flush()
    check_store(store, ledger)


@pytest.mark.invariant("I11")
@BOTH
def test_a_replica_that_ends_inside_a_record_stops_and_starts_again(
    tmp_path: Path, stores: ExitStack, branches: Branches, options: StoreOptions
) -> None:
    """Cleanly or by a crash, at many places: nothing is taken for damage, and copying goes on."""
    ends = boundaries(branches.old)
    clock = ManualClock()
    store = open_store(tmp_path, options, replica=True, clock=clock)
    for number, stop in enumerate(range(100, branches.fork, 171)):
        copy(branches.old, store, end=stop)
        store.flush()
        clock.advance(15_000)
        store.keeper.tick()
        if number % 2:
            store.close()
        else:
            store.abandon()
        store = open_store(tmp_path, options, replica=True, clock=clock)
        whole = max(end for end in ends if end <= stop)
        # A blank header is as good as the blanks behind it, which mean nothing.
        assert store.log.max_offset in (whole, -(-stop // SEGMENT) * SEGMENT)
        assert store.report.clean == bool(number % 2)
        assert store.findings.all() == []
    stores.enter_context(store)
    copy(branches.old, store)
    store.flush()
    check_copy(store, branches.old, branches.old.log.max_offset)


def life_with_a_cut(
    folder: Path, disk: FaultyDisk, branches: Branches, options: StoreOptions, steps: list[str], changes: int
) -> None:
    """A deposed master: its own tail, part of it not yet flushed, the cut, its successor's bytes. The power goes so
    many changes after the cut has begun; `steps` says what was finished."""
    clock = ManualClock()
    store = open_store(folder, options, disk=disk, clock=clock, replica=True)
    try:
        copy(branches.old, store, end=branches.fork + 3000)
        store.flush()
        clock.advance(15_000)
        store.keeper.tick()
        copy(branches.old, store)
        steps.append("tail")
        disk.stop_after(changes)
        store.truncate(branches.fork)
        steps.append("cut")
        copy(branches.new, store, cut=1500, end=branches.fork + 2000)
        store.flush()
        steps.append("followed")
        clock.advance(15_000)
        store.keeper.tick()
        copy(branches.new, store)
        store.flush()
        steps.append("done")
        store.close()
    finally:
        store.abandon()


@pytest.mark.fault("F6")
@pytest.mark.invariant("I7")
@pytest.mark.invariant("I11")
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("options", "keep", "names_are_lost"),
    [
        (SYNC, lose_unsynced, True),
        (SYNC, None, True),
        (ASYNC, lose_unsynced, True),
        (ASYNC, keep_unsynced, False),
        (ASYNC, None, True),
    ],
    ids=["sync-lose", "sync-random", "async-lose", "async-keep", "async-random"],
)
def test_the_power_may_go_before_any_change(
    tmp_path: Path, branches: Branches, options: StoreOptions, keep: Keep | None, names_are_lost: bool
) -> None:
    """rocketmq #10666. After a cut that returned nothing of the old tail is ever there; before, the log is the old
    one or the cut one; and following the new master leads to its log, byte for byte."""
    failures: dict[int, str] = {}
    changes, finished = 0, False
    while not finished:
        folder, steps = tmp_path / str(changes), ["begun"]
        disk = faulty(folder, lose_directory_entries=names_are_lost)
        try:
            life_with_a_cut(folder, disk, branches, options, steps, changes)
        except (StoreError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        entropy = SeededEntropy(changes)
        disk.crash(
            keep or keep_random_blocks(entropy),
            kept_entries=entropy.below(disk.unsynced_entries + 1) if keep is None else 0,
        )
        try:
            after_power_loss(folder, branches, options, steps[-1])
        except Exception as error:
            failures[changes] = f"after {steps[-1]}: {type(error).__name__}: {error}"[:600]
        shutil.rmtree(folder)
        changes += CUT_STEP
    assert not failures, f"{len(failures)} of {changes} cuts: {dict(list(failures.items())[:5])}"
    assert changes > 100


def after_power_loss(folder: Path, branches: Branches, options: StoreOptions, step: str) -> None:
    with open_store(folder, options, read_only=True) as reader:
        assert is_prefix(reader, branches.old) or is_prefix(reader, branches.new)
        seen = shown(reader)
    store = open_store(folder, options, replica=True)
    try:
        assert shown(store) == seen
        if step in ("cut", "followed", "done"):
            flushed = {
                "cut": branches.fork,
                "followed": branches.fork + 1000,
                "done": branches.new.log.max_offset,
            }
            check_copy(store, branches.new, flushed[step])
        elif is_prefix(store, branches.old):
            check_copy(store, branches.old, branches.fork)
        else:
            check_copy(store, branches.new)
        assert store.queues.manifest.cut_to == -1
        if not is_prefix(store, branches.new):
            store.truncate(branches.fork)
        store.abandon()
        store = open_store(folder, options, replica=True)
        assert is_prefix(store, branches.new)
        copy(branches.new, store, cut=900)
        store.flush()
        check_copy(store, branches.new, branches.new.log.max_offset)
    finally:
        store.abandon()


@pytest.mark.fault("F6")
@pytest.mark.invariant("I11")
@pytest.mark.long
@BOTH
def test_power_loss_while_an_interrupted_cut_is_finished(
    tmp_path: Path, branches: Branches, options: StoreOptions
) -> None:
    """The cut stops at a change, and finishing it at the next open stops at every change of that."""
    total = cut_changes(tmp_path / "probe", branches, options)
    assert total > 20
    for first in range(3, total, CUT_STEP * by_length(3, 5)):
        source = tmp_path / f"cut-{first}"
        interrupted_cut(source, branches, options, first)
        second, finished = 0, False
        while not finished:
            folder = tmp_path / f"{first}-{second}"
            shutil.copytree(source, folder)
            disk = faulty(folder, lose_directory_entries=True)
            disk.stop_after(second)
            opened = ExitStack()
            try:
                opened.callback(open_store(folder, options, disk=disk, replica=True).abandon)
            except (StoreError, OSError):
                assert not disk.has_power
            finished = disk.has_power
            disk.crash(keep_random_blocks(SeededEntropy(second)))
            opened.close()
            after_power_loss(folder, branches, options, "tail")
            shutil.rmtree(folder)
            second += 3
        shutil.rmtree(source)


def cut_changes(folder: Path, branches: Branches, options: StoreOptions) -> int:
    """How many changes of the disk a cut takes."""
    disk = faulty(folder)
    store = open_store(folder, options, disk=disk, replica=True)
    copy(branches.old, store)
    store.flush()
    store.keeper.tick()
    before = len(disk.log)
    store.truncate(branches.fork)
    changes = len(disk.log) - before
    store.abandon()
    return changes


def interrupted_cut(folder: Path, branches: Branches, options: StoreOptions, changes: int) -> None:
    disk = faulty(folder, lose_directory_entries=True)
    store = open_store(folder, options, disk=disk, replica=True)
    copy(branches.old, store)
    store.flush()
    store.keeper.tick()
    disk.stop_after(changes)
    with pytest.raises(StoreError):
        store.truncate(branches.fork)
    disk.crash(keep_random_blocks(SeededEntropy(changes)))
    store.abandon()


@pytest.mark.fault("F6")
@pytest.mark.invariant("I11")
@pytest.mark.parametrize("seed", range(8))
def test_a_stale_tail_does_not_join_new_records_of_the_same_size(tmp_path: Path, seed: int) -> None:
    """rocketmq #10666 to the letter: new records fill exactly the place of some old ones, and the power goes."""
    made = make_branches(tmp_path, ASYNC, range(6, 60, 6), range(60, 180, 6), range(6060, 6180, 6), size=300)
    disk = faulty(tmp_path / "copy", lose_directory_entries=bool(seed % 2))
    store = open_store(tmp_path / "copy", ASYNC, disk=disk, replica=True)
    copy(made.old, store)
    store.flush()
    store.truncate(made.fork)
    ends = [end for _, end, _ in records(made.new) if end > made.fork]
    copy(made.new, store, end=ends[seed])
    if seed % 3 == 0:
        store.flush()
    disk.crash(keep_unsynced if seed % 3 else lose_unsynced)
    store.abandon()
    with open_store(tmp_path / "copy", ASYNC, replica=True) as again:
        found = check_copy(again, made.new, ends[seed] if seed % 3 == 0 else made.fork)
        assert not set(found) & set(range(60, 180))
    made.close()


@pytest.mark.invariant("I2")
def test_readers_never_see_half_of_a_cut(tmp_path: Path, stores: ExitStack, branches: Branches) -> None:
    """Readers of all kinds in other threads while the log goes back and forth between two masters."""
    options = replace(ASYNC, verify_reads=False)
    store = stores.enter_context(open_store(tmp_path, options, replica=True))
    copy(branches.old, store, end=branches.fork)
    allowed = {position: {serial} for position, _, serial in records(branches.old)}
    for position, _, serial in records(branches.new):
        allowed.setdefault(position, set()).add(serial)
    stop, problems, reads = threading.Event(), [], [0]

    def read() -> None:
        try:
            while not stop.is_set():
                for queue in store.queues:
                    cuts = len(store.log.cuts)
                    low = max(store.max_offset(queue.topic, queue.queue_id) - 6, 0)
                    result = store.get(queue.topic, queue.queue_id, low)
                    assert (result.damaged, result.missing) == ((), ())
                    for message in result.messages():
                        serial = int(message.body.split(b"|", 1)[0])
                        assert serial in allowed[message.physical_offset]
                        assert message.queue_offset >= low
                        try:
                            found = store.message_at(message.physical_offset)
                        except CorruptRecordError:
                            # After a cut, a record of the other branch may reach over this position.
                            assert len(store.log.cuts) > cuts
                            found = None
                        assert (
                            found is None
                            or int(found.body.split(b"|", 1)[0]) in allowed[found.physical_offset]
                        )
                        reads[0] += 1
                    store.reader.query(queue.topic, "k100")
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(25):
            source = (branches.old, branches.new)[turn % 2]
            copy(source, store, cut=2000)
            store.truncate(branches.fork)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert reads[0] > 100
    assert store.findings.damage() == []


@pytest.mark.fault("F4")
@pytest.mark.fault("F8")
def test_a_cut_that_fails_stops_the_store_and_a_restart_finishes_it(
    tmp_path: Path, stores: ExitStack, branches: Branches
) -> None:
    disk = faulty(tmp_path)
    store = open_store(tmp_path, ASYNC, disk=disk, replica=True)
    copy(branches.old, store)
    store.flush()
    disk.fail_next("pwrite", 28, path_contains="manifest")
    with pytest.raises(DiskFullError, match="nothing was cut"):
        store.truncate(branches.fork)
    check_copy(store, branches.old, branches.old.log.max_offset)
    disk.fail_next("sync", 5, path_contains="commitlog")
    with pytest.raises(StoreFailedError, match="cutting the log"):
        store.truncate(branches.fork)
    assert store.has_failed
    with pytest.raises(StoreFailedError):
        store.append_replica(b"x", store.log.max_offset)
    assert shown(store) == [serial for _, end, serial in records(branches.old) if end <= branches.fork]
    store.close()
    again = stores.enter_context(open_store(tmp_path, ASYNC, replica=True))
    assert not again.report.clean
    assert [finding.kind for finding in again.findings.all()] == ["interrupted cut"]
    check_copy(again, branches.new, branches.fork)
    assert again.log.max_offset == branches.fork


@pytest.mark.fault("F7")
def test_a_replica_whose_log_is_lost_begins_anew_where_its_master_says(
    tmp_path: Path, stores: ExitStack, branches: Branches
) -> None:
    """Queues remember positions that are gone: that keeps an empty log neither from stopping nor from following."""
    store = open_store(tmp_path, ASYNC, replica=True)
    copy(branches.old, store)
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "commitlog").mkdir()
    store = open_store(tmp_path, ASYNC, replica=True)
    assert store.log.max_offset == 0
    assert store.cut_tail() == 0
    store.close()
    assert not (tmp_path / "abort").exists()
    expected = [record for record in records(branches.old) if record[0] >= SEGMENT]
    store = open_store(tmp_path, ASYNC, replica=True)
    copy(branches.old, store, begin=SEGMENT, end=2 * SEGMENT)
    for crash in (True, False, False):
        assert records(store) == [record for record in expected if record[1] <= 2 * SEGMENT]
        if crash:
            store.abandon()
        else:
            store.close()
        store = open_store(tmp_path, ASYNC, replica=True)
        assert store.findings.all() == []
    stores.enter_context(store)
    copy(branches.old, store)
    assert records(store) == expected
    assert store.reader.query("orders", "k30")
