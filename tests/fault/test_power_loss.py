"""Power loss: what was not synced is lost, kept or torn, as a disk pleases; what was promised is there.

The disk is `FaultyDisk`: real files, played durability. No test here waits for anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.runtime import SeededEntropy
from penstock.store import Durability, FlushMode, MessageStore, StoreOptions
from penstock.testing import FaultyDisk, Keep, ManualClock, keep_random_blocks, keep_unsynced, lose_unsynced
from tests.support.store_checks import (
    CUT_STEP,
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


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    """Lets go of the stores of a test that failed half-way."""
    with ExitStack() as stack:
        yield stack


def shown_serials(store: MessageStore) -> set[int]:
    return {serial_of(m) for queue in store.queues for m in read_queue(store, queue.topic, queue.queue_id)}


def cut_power(disk: FaultyDisk, store: MessageStore, **how: object) -> None:
    disk.crash(**how)  # type: ignore[arg-type]
    store.abandon()


def flushed_store(folder: Path) -> Ledger:
    """A crashed store with some flushed messages in its only segment."""
    ledger = Ledger()
    store = open_store(folder)
    for serial in range(1, 7):
        append(store, serial, ledger, size=10)
    store.abandon()
    return ledger


def torn_group(folder: Path, serials: range, *, seal: bool) -> tuple[FaultyDisk, MessageStore]:
    """A store whose last write, a group, has not been synced."""
    disk = faulty(folder)
    store = open_store(folder, small_options(seal_records=seal), disk=disk)
    requests = [store.request(message_of(s, 4), place_of(s)[1]) for s in serials]
    store.append_group(requests, durability=Durability.MEMORY)
    return disk, store


@pytest.mark.fault("F5")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I11")
@pytest.mark.invariant("I12")
@pytest.mark.long
@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "plain"])
def test_a_torn_group_is_cut_at_every_byte(tmp_path: Path, seal: bool) -> None:
    """RocketMQ's checksum covers the body only: a record torn behind its body must not pass for a whole one."""
    source = tmp_path / "source"
    ledger = flushed_store(source)
    shutil.copytree(source, tmp_path / "probe")
    disk, store = torn_group(tmp_path / "probe", range(100, 102), seal=seal)
    write = disk.last_unsynced_write("commitlog")
    assert write is not None
    assert 200 < write.size < 400
    cut_power(disk, store)
    survivors, failures = [], {}
    for cut in sorted({*range(0, write.size, CUT_STEP), write.size}):
        folder = tmp_path / str(cut)
        shutil.copytree(source, folder)
        disk, store = torn_group(folder, range(100, 102), seal=seal)
        cut_power(disk, store, torn_at=cut, torn_path_contains="commitlog")
        try:
            survivors.append(recovered_from_tear(folder, ledger))
        except AssertionError as error:
            failures[cut] = str(error)[:200]
        shutil.rmtree(folder)
    assert not failures, f"cuts {sorted(failures)} of {write.size}: {next(iter(failures.values()))}"
    assert survivors == sorted(survivors)
    assert set(survivors) == {0, 1, 2}


def recovered_from_tear(folder: Path, ledger: Ledger) -> int:
    """How many messages of the torn group are there; the rest stays gone after another append and crash."""
    store = reopened(folder, ledger)
    whole = shown_serials(store) & {100, 101}
    assert whole == set(range(100, 100 + len(whole))), "a later message survived an earlier one"
    new_ledger = Ledger({key: dict(value) for key, value in ledger.acked.items()}, dict(ledger.positions))
    append(store, 200, new_ledger, size=4)
    store.abandon()
    with reopened(folder, new_ledger) as again:
        assert shown_serials(again) & {100, 101, 200} == whole | {200}
    return len(whole)


@pytest.mark.fault("F5")
@pytest.mark.invariant("I12")
def test_a_tear_close_behind_the_checkpoint_is_seen(tmp_path: Path) -> None:
    """What was on disk before the stop is judged by other rules than what was not: both parts may lie next to each
    other."""
    for missing in (1, 5, 9):
        disk, clock, ledger = faulty(tmp_path / str(missing)), ManualClock(), Ledger()
        store = open_store(tmp_path / str(missing), disk=disk, clock=clock)
        for serial in range(1, 7):
            append(store, serial, ledger)
        clock.advance(15_000)
        store.keeper.tick()
        append(store, 7, durability=Durability.MEMORY)
        write = disk.last_unsynced_write("commitlog")
        assert write is not None
        cut_power(disk, store, torn_at=write.size - missing, torn_path_contains="commitlog")
        with reopened(tmp_path / str(missing), ledger) as again:
            assert shown_serials(again) == set(range(1, 7))


@pytest.mark.fault("F6")
@pytest.mark.invariant("I11")
@pytest.mark.parametrize(
    "seed",
    range(25),
)
def test_a_stale_tail_never_becomes_valid_again(tmp_path: Path, stores: ExitStack, seed: int) -> None:
    """Records after a hole are dropped durably: new records of the same size fill the hole exactly, and what
    lay behind it must not join them after the next crash."""
    options = small_options(segment_size_bytes=64 * 1024)
    entropy = SeededEntropy(seed)
    ledger = Ledger()
    disk = faulty(tmp_path)
    store = open_store(tmp_path, options, disk=disk)
    stores.callback(store.abandon)
    for serial in range(6, 36, 6):
        append(store, serial, ledger, size=700)
    first = 60
    group = [store.request(message_of(first + 6 * i, 700), 0) for i in range(30)]
    store.append_group(group, durability=Durability.MEMORY)
    cut_power(disk, store, keep=keep_random_blocks(entropy))
    for generation in range(1, 4):
        disk = faulty(tmp_path)
        store = open_store(tmp_path, options, disk=disk)
        stores.callback(store.abandon)
        check_store(store, ledger)
        before = shown_serials(store)
        if generation == 1 and len(before) == 5 + 30:
            pytest.fail("no block of the group was lost: choose another seed")
        if seed % 2:  # the power goes again right after recovery
            cut_power(disk, store, keep=keep_random_blocks(entropy))
            disk = faulty(tmp_path)
            store = open_store(tmp_path, options, disk=disk)
            stores.callback(store.abandon)
            check_store(store, ledger)
            assert shown_serials(store) == before
        serial = 6 * 1000 * generation
        append(store, serial, ledger, size=700)
        cut_power(disk, store, keep=keep_unsynced if seed % 3 else keep_random_blocks(entropy))
        with open_store(tmp_path, options) as checked:
            check_store(checked, ledger)
            assert shown_serials(checked) == before | {serial}


class Session:
    """Random work on a store; knows what the disk must have whatever happens now."""

    def __init__(self, folder: Path, options: StoreOptions, disk: FaultyDisk, seed: int, first: int) -> None:
        self.clock = ManualClock()
        self.clock.advance(first)
        self.store = open_store(folder, options, disk=disk, clock=self.clock)
        self.entropy = SeededEntropy(seed)
        self.serial = first
        # (position after the record, topic, queue, offset, serial, position)
        self.written: list[tuple[int, str, int, int, int, int]] = []

    def work(self, steps: int) -> None:
        for _ in range(steps):
            [self._single, self._single, self._group, self._batch, self._unwaited, self._tick][
                self.entropy.below(6)
            ]()

    def flushed(self, ledger: Ledger) -> None:
        """Put what is on the disk into the ledger."""
        end = self.store.flusher.flushed_offset
        for record_end, topic, queue, offset, serial, position in self.written:
            if record_end <= end:
                ledger.add(topic, queue, offset, serial, position)

    def _note(self, serial: int, offset: int, position: int, size: int) -> None:
        self.written.append((position + size, *place_of(serial), offset, serial, position))

    def _single(self, **options: object) -> None:
        self.serial += 1
        result = self.store.append(message_of(self.serial), place_of(self.serial)[1], **options)  # type: ignore[arg-type]
        self._note(self.serial, result.queue_offset, result.physical_offset, result.size)
        if result.durability >= Durability.FLUSHED:
            assert self.store.flusher.flushed_offset >= result.physical_offset + result.size

    def _unwaited(self) -> None:
        self._single(durability=Durability.MEMORY)

    def _group(self) -> None:
        serials = range(self.serial + 1, self.serial + 2 + self.entropy.below(15))
        requests = [self.store.request(message_of(s), place_of(s)[1]) for s in serials]
        self.store.append_group(requests)
        for serial, request in zip(serials, requests, strict=True):
            self._note(serial, request.queue_offset, request.physical_offset, request.size)
        self.serial = serials.stop

    def _batch(self) -> None:
        serials = range(self.serial + 6, self.serial + 24, 6)
        topic, queue = place_of(serials[0])
        placed = self.store.append_batch(topic, queue, batch_of(serials))
        # Sizes of the single records are not told; the end of the batch is what counts for all of them.
        for i, serial in enumerate(serials):
            self.written.append(
                (
                    placed.physical_offset + placed.size,
                    topic,
                    queue,
                    placed.first_queue_offset + i,
                    serial,
                    placed.physical_offset,
                )
            )
        self.serial = serials.stop

    def _tick(self) -> None:
        self.clock.advance(100 + self.entropy.below(12_000))
        self.store.keeper.tick()


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.seed("S3-53")
@pytest.mark.seed("S3-54")
@pytest.mark.parametrize(
    "names_are_lost",
    [
        pytest.param(False, id="names-kept"),
        pytest.param(
            True,
            id="names-lost",
        ),
    ],
)
@pytest.mark.parametrize(
    "mode",
    [
        FlushMode.SYNC,
        pytest.param(
            FlushMode.ASYNC,
        ),
    ],
)
@pytest.mark.parametrize("seed", range(12))
def test_what_was_flushed_survives_any_power_loss(
    tmp_path: Path, seed: int, mode: FlushMode, names_are_lost: bool
) -> None:
    options = small_options(flush_mode=mode, queue_file_entries=400, index_slots=2000, index_entries=600)
    ledger, entropy = Ledger(), SeededEntropy(seed)
    kept_fractions = (0.0, 0.5, 0.9, 1.0)
    for life in range(4):
        disk = faulty(tmp_path / "store", lose_directory_entries=names_are_lost)
        session = Session(tmp_path / "store", options, disk, seed * 10 + life, (life + 1) * 100_000)
        try:
            # Without a flush an offset may outlive its record; it is not given out again.
            check_store(session.store, ledger, holes=mode is FlushMode.ASYNC)
            session.work(entropy.below(40))
            session.flushed(ledger)
        finally:
            fraction = kept_fractions[(seed + life) % 4]
            cut_power(
                disk,
                session.store,
                keep=keep_random_blocks(entropy, fraction),
                kept_entries=entropy.below(disk.unsynced_entries + 1) if fraction else 0,
            )
    with open_store(tmp_path / "store", options) as store:
        check_store(store, ledger, holes=mode is FlushMode.ASYNC)


def scripted_life(folder: Path, disk: FaultyDisk, ledger: Ledger, options: StoreOptions) -> None:
    """Everything a store does with its disk: appends of all kinds, rolls, ticks, retention, close, open."""
    clock = ManualClock()
    store = open_store(folder, options, disk=disk, clock=clock)
    try:
        for serial in range(1, 13):
            append(store, serial, ledger)
        append_group(store, range(20, 60), ledger)
        clock.advance(15_000)
        store.keeper.tick()
        for serial in range(60, 100):
            append(store, serial, ledger)
        clock.advance(15_000)
        store.keeper.tick()
        clock.advance(2 * 3_600_000 + int(1e12))  # files carry the machine's time, which is far ahead
        store.keeper.request_clean()
        active = store.log.active
        assert active is not None
        ledger.forget_below(active.base)
        assert store.keeper.clean() > 0
        append_group(store, range(100, 110), ledger)
        store.close()
        store = open_store(folder, options, disk=disk, clock=clock)
        append(store, 110, ledger)
        store.close()
    finally:
        store.abandon()


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I11")
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("keep", "names_are_lost"),
    [(lose_unsynced, False), (keep_unsynced, False), (lose_unsynced, True)],
    ids=["lose", "keep", "lose-names"],
)
def test_the_power_may_go_before_any_change_of_the_disk(
    tmp_path: Path, keep: Keep, names_are_lost: bool
) -> None:
    options = small_options(file_reserved_hours=1)
    failures: dict[int, str] = {}
    changes = 0
    while True:
        folder, ledger = tmp_path / str(changes), Ledger()
        disk = faulty(folder, lose_directory_entries=names_are_lost)
        disk.stop_after(changes)
        try:
            scripted_life(folder, disk, ledger, options)
        except (StoreError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        disk.crash(keep)
        try:
            twice_checked(folder, ledger, options)
        except Exception as error:
            failures[changes] = f"{type(error).__name__}: {error}"[:400]
        shutil.rmtree(folder)
        if finished:
            break
        changes += CUT_STEP
    assert not failures, f"{len(failures)} of {changes} cuts: {dict(list(failures.items())[:5])}"
    assert changes > 150


def twice_checked(folder: Path, ledger: Ledger, options: StoreOptions) -> None:
    """Recover, use, crash without a stop, recover again."""
    store = reopened(folder, ledger, options)
    append(store, 500, ledger)
    store.abandon()
    with reopened(folder, ledger, options) as store:
        append(store, 501, ledger)


@pytest.mark.fault("F5")
@pytest.mark.invariant("I11")
@pytest.mark.parametrize("mode", [FlushMode.SYNC, FlushMode.ASYNC])
def test_power_loss_during_recovery_changes_nothing(tmp_path: Path, mode: FlushMode) -> None:
    """Recovery is cut before each of its changes; the next one finds the same messages."""
    options = small_options(flush_mode=mode, segment_size_bytes=16 * 1024)
    source, ledger = tmp_path / "source", Ledger()
    disk = faulty(source)
    clock = ManualClock()
    store = open_store(source, options, disk=disk, clock=clock)
    for serial in range(1, 40):
        append(store, serial, ledger, durability=Durability.FLUSHED)
    clock.advance(15_000)
    store.keeper.tick()
    for serial in range(40, 80):
        append(store, serial, ledger, durability=Durability.FLUSHED)
    append(store, 80, durability=Durability.MEMORY)
    append(store, 81, size=900, durability=Durability.MEMORY)
    cut_power(disk, store, torn_at=300, torn_path_contains="commitlog")
    changes, has_power = 0, False
    while not has_power:
        folder = tmp_path / str(changes)
        shutil.copytree(source, folder)
        disk = faulty(folder)
        disk.stop_after(changes)
        opened = ExitStack()
        try:
            opened.callback(open_store(folder, options, disk=disk).abandon)
        except (StoreError, OSError):
            assert not disk.has_power
        has_power = disk.has_power
        disk.crash(keep_random_blocks(SeededEntropy(changes)))
        opened.close()
        with reopened(folder, ledger, options) as store:
            assert shown_serials(store) - set(range(1, 80)) <= {80}
        shutil.rmtree(folder)
        changes += 1
    assert changes > 10


@pytest.mark.fault("F1")
@pytest.mark.fault("F5")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
@pytest.mark.long
@pytest.mark.parametrize(
    ("keep", "names_are_lost"),
    [
        (keep_unsynced, False),
        (lose_unsynced, False),
        (lose_unsynced, True),
        (keep_random_blocks(SeededEntropy(1)), False),
        (keep_random_blocks(SeededEntropy(2)), True),
    ],
    ids=["kill", "lose", "lose-names", "random", "random-lose-names"],
)
def test_queues_that_are_built_anew_have_no_hole_when_that_is_cut_short(
    tmp_path: Path, keep: Keep, names_are_lost: bool
) -> None:
    """Recovery clears what queues have from the place on that it reads the log from, over several files each. Whoever
    stops it in the middle of that leaves entries, cleared ones and old ones; the next recovery begins at the same
    place, and must not take what was cleared for entries of older records."""
    source, ledger, clock = tmp_path / "source", Ledger(), ManualClock()
    store = open_store(source, clock=clock)
    for serial in range(1, 50):
        clock.advance(1_000)
        append(store, serial, ledger)
    clock.advance(15_000)
    store.keeper.tick()
    for serial in range(50, 190):
        append(store, serial, ledger)
    for queue in store.queues:
        queue.drain()
    store.abandon()
    with open_store(source, read_only=True) as probe:
        assert 0 < probe.report.start < probe.log.max_offset // 2
    failures: dict[int, str] = {}
    changes = 0
    while True:
        folder = tmp_path / str(changes)
        shutil.copytree(source, folder)
        disk = FaultyDisk(folder, lose_directory_entries=names_are_lost)
        disk.stop_after(changes)
        try:
            open_store(folder, disk=disk).abandon()
        except (StoreError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        disk.crash(keep)
        try:
            reopened(folder, ledger).abandon()
        except Exception as error:
            failures[changes] = f"{type(error).__name__}: {error}"[:300]
        shutil.rmtree(folder)
        if finished:
            break
        changes += CUT_STEP
    assert not failures, f"{len(failures)} of {changes} cuts: {dict(list(failures.items())[:3])}"
    assert changes > 40
