"""Power loss and failing disks during publications: before any change of the disk, whatever survives of it.

After each cut the next life must show each batch whole or not at all, and whole if it was answered; and a writer that
then does what Spark does gets every row there exactly once. No test here waits for anything.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker import publication_copies
from penstock.broker.flow_control import UnknownOutcomeError
from penstock.errors import DiskFullError, PenstockError
from penstock.runtime import SeededEntropy
from penstock.store import FlushMode
from penstock.testing import FaultyDisk, Keep, keep_random_blocks, keep_unsynced, lose_unsynced
from tests.fault.publication_bench import Life, Sink
from tests.support.store_checks import CUT_STEP, faulty

BOTH_MODES = pytest.mark.parametrize("mode", [FlushMode.SYNC, FlushMode.ASYNC])


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small writes: more places where a disk can fail."""
    monkeypatch.setattr(publication_copies, "RUN_MESSAGES", 3)


@contextmanager
def a_life(folder: Path, mode: FlushMode, disk: FaultyDisk | None = None) -> Iterator[Life]:
    life = Life(folder, mode, disk)
    try:
        yield life
    finally:
        life.abandon()


async def write_two(life: Life, sink: Sink) -> None:
    """Two batches with ordinary messages around them, over several segments."""
    life.send(1)
    await sink.write(life, 0, 14)
    life.send(2)
    await sink.write(life, 1, 25)
    life.send(3)


def run(life: Life, sink: Sink) -> None:
    asyncio.run(life.run(lambda it: write_two(it, sink)))


def finish(folder: Path, mode: FlushMode, sink: Sink, *, twice: bool = True) -> None:
    """Two more lives: the first brings everything to its end, the second finds it so."""
    with a_life(folder, mode) as life:
        sink.check(life)

        async def again(life: Life) -> None:
            for batch in range(2):
                if batch not in sink.answered:
                    sink.sizes.setdefault(batch, 14 if batch == 0 else 25)
                    await sink.write_again(life, batch)

        asyncio.run(life.run(again))
        sink.check_all(life)
    if not twice:
        return
    with a_life(folder, mode) as life:
        sink.check_all(life)
        last = life.publications.published.last("query")
        assert last is not None
        assert last.batch == 1


@pytest.mark.fault("F6")
@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("mode", "keep", "names_are_lost"),
    [
        (FlushMode.SYNC, lose_unsynced, False),
        (FlushMode.SYNC, None, False),
        (FlushMode.ASYNC, lose_unsynced, True),
        (FlushMode.ASYNC, None, False),
    ],
    ids=["sync-lose", "sync-random", "async-lose-names", "async-random"],
)
def test_the_power_may_go_before_any_change_of_the_disk(
    tmp_path: Path, mode: FlushMode, keep: Keep | None, names_are_lost: bool
) -> None:
    failures: dict[int, str] = {}
    changes, outcomes = 0, set()
    while True:
        folder, sink = tmp_path / str(changes), Sink()
        disk = faulty(folder, lose_directory_entries=names_are_lost)
        disk.stop_after(changes)
        try:
            with a_life(folder, mode, disk) as life:
                run(life, sink)
        except (PenstockError, OSError):
            assert not disk.has_power
        finished = disk.has_power
        disk.crash(keep or keep_random_blocks(SeededEntropy(changes)))
        outcomes.add(len(sink.answered))
        try:
            finish(folder, mode, sink, twice=changes % (4 * CUT_STEP) == 0)
        except Exception as error:
            failures[changes] = f"{type(error).__name__}: {error}"[:400]
        shutil.rmtree(folder, ignore_errors=True)
        if finished:
            break
        changes += CUT_STEP
    assert not failures, f"{len(failures)} of {changes} cuts: {dict(list(failures.items())[:5])}"
    assert outcomes == {0, 1, 2}
    assert changes > 50


@BOTH_MODES
def test_a_flush_half_way_shows_no_half(tmp_path: Path, mode: FlushMode) -> None:
    """Under synchronous flush what is flushed is shown: so the hold must last until all of it is."""
    sink = Sink()
    seen: list[tuple[str, int]] = []

    async def work(life: Life) -> None:
        def watch(step: str) -> None:
            if sum(done == "copied" for done, _ in seen) == 2:
                life.store.flush()
            seen.append((step, life.shown_rows(0)))

        life.publications.on_step = watch
        await sink.write(life, 0, 25)

    with a_life(tmp_path, mode) as life:
        asyncio.run(life.run(work))
        sink.check_all(life)
    assert {rows for _, rows in seen} == {0, 25}
    assert dict(seen)["done"] == 0
    assert dict(seen)["released"] == 25


@pytest.mark.fault("F5")
@BOTH_MODES
def test_a_recovery_that_is_cut_as_well_is_finished_by_the_next(tmp_path: Path, mode: FlushMode) -> None:
    """The first life ends with a publication half-way; the second is cut before each of its own changes."""
    source, sink = tmp_path / "source", Sink()
    disk = faulty(source)
    with a_life(source, mode, disk) as life:
        life.publications.on_step = _cut_at(disk, "copied", 3)
        with pytest.raises((PenstockError, OSError)):
            run(life, sink)
    disk.crash(keep_unsynced)
    assert sink.answered == set()
    changes, has_power = 0, False
    while not has_power:
        folder = tmp_path / str(changes)
        shutil.copytree(source, folder)
        disk = faulty(folder)
        disk.stop_after(changes)
        try:
            with a_life(folder, mode, disk):
                pass
        except (PenstockError, OSError):
            assert not disk.has_power
        has_power = disk.has_power
        disk.crash(keep_random_blocks(SeededEntropy(changes)))
        with a_life(folder, mode) as life:
            # Under asynchronous flush the decision itself may be lost: then nothing is there, and that is right.
            assert life.shown_rows(0) in ((14,) if mode is FlushMode.SYNC else (0, 14))
        shutil.rmtree(folder)
        changes += 1
    assert changes > 10


def _cut_at(disk: FaultyDisk, step: str, count: int):  # type: ignore[no-untyped-def]
    left = count

    def watch(done: str) -> None:
        nonlocal left
        left -= done == step
        if left == 0:
            disk.stop_after(0)

    return watch


@pytest.mark.fault("F7")
@BOTH_MODES
def test_a_full_disk_holds_a_publication_up_and_shows_no_part_of_it(
    tmp_path: Path, mode: FlushMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.broker import publications

    monkeypatch.setattr(publications, "SPACE_RETRY_MS", 5)
    disk, sink = faulty(tmp_path), Sink()
    seen: list[int] = []
    waited = 0

    async def work(life: Life) -> None:
        nonlocal waited
        await sink.write(life, 0, 14)
        steps = 0

        def fill_up(step: str) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                full = {"path_contains": "commitlog", "times": 5, "partial_bytes": 100}
                disk.fail_next("pwrite", errno.ENOSPC, **full)  # type: ignore[arg-type]

        life.publications.on_step = fill_up
        writing = asyncio.ensure_future(sink.write(life, 1, 25))
        while not writing.done():
            seen.append(life.shown_rows(1))
            waited += 1
            await asyncio.sleep(0.001)
        await writing

    with a_life(tmp_path, mode, disk) as life:
        asyncio.run(life.run(work))
        sink.check_all(life)
    assert set(seen) <= {0, 25}
    assert waited > 10
    disk.kill()
    with a_life(tmp_path, mode) as life:
        sink.check_all(life)


@pytest.mark.fault("F7")
@BOTH_MODES
def test_a_full_disk_before_the_decision_is_a_refusal(tmp_path: Path, mode: FlushMode) -> None:
    disk, sink = faulty(tmp_path), Sink()

    async def work(life: Life) -> None:
        sink.sizes[0] = 14
        sink.handles[0] = [life.stage(0, 0, 14)]
        disk.fail_next("pwrite", errno.ENOSPC, path_contains="commitlog")
        with pytest.raises(PenstockError, match="try again"):
            await sink.write(life, 0, 14)
        life.send(1)
        life.store.flush()
        assert [m.body for m in life.store.read("orders", 0, 0)] == [b"plain 1"], "nothing is held any more"
        await sink.write(life, 0, 14)

    with a_life(tmp_path, mode, disk) as life:
        asyncio.run(life.run(work))
        sink.check_all(life)


@pytest.mark.fault("F7")
@BOTH_MODES
def test_a_broker_that_stops_while_the_disk_is_full_leaves_the_rest_to_the_next(
    tmp_path: Path, mode: FlushMode
) -> None:
    disk, sink = faulty(tmp_path), Sink()

    async def work(life: Life) -> None:
        begun, steps = asyncio.Event(), 0

        def fill_up(step: str) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                disk.fail_next("pwrite", errno.ENOSPC, path_contains="commitlog", times=None)
                begun.set()

        life.publications.on_step = fill_up
        writing = asyncio.ensure_future(sink.write(life, 0, 25))
        await begun.wait()
        await life.publications.stop()
        with pytest.raises(UnknownOutcomeError, match="next start"):
            await writing
        assert life.shown_rows(0) == 0
        disk.clear_faults()

    with a_life(tmp_path, mode, disk) as life:
        asyncio.run(life.run(work))
        life.store.close()  # cleanly: a hold is not on disk
    disk.fail_next("pwrite", errno.ENOSPC, path_contains="commitlog", times=None)
    with pytest.raises(DiskFullError):
        Life(tmp_path, mode, disk)
    disk.kill()
    with a_life(tmp_path, mode) as life:
        sink.check_all(life)


@pytest.mark.fault("F8")
@BOTH_MODES
@pytest.mark.parametrize("kind", ["pwrite", "sync"])
def test_a_disk_that_fails_for_good_is_an_unknown_outcome_and_shows_no_part(
    tmp_path: Path, mode: FlushMode, kind: str
) -> None:
    disk, sink = faulty(tmp_path), Sink()

    async def work(life: Life) -> None:
        await sink.write(life, 0, 14)
        seen = 0

        def fail(step: str) -> None:
            nonlocal seen
            seen += 1
            if seen == 4:
                disk.fail_next(kind, errno.EIO, path_contains="commitlog")

        life.publications.on_step = fail
        with pytest.raises(UnknownOutcomeError):
            await sink.write(life, 1, 25)
        assert life.store.has_failed
        # A failed write comes before the release; so does a failed sync where a message is shown when it is synced.
        if kind == "pwrite" or mode is FlushMode.SYNC:
            assert life.shown_rows(1) == 0

    with a_life(tmp_path, mode, disk) as life:
        asyncio.run(life.run(work))
    disk.kill()
    finish(tmp_path, mode, sink)


@BOTH_MODES
def test_a_mistake_of_our_own_half_way_stops_the_store_and_the_next_start_finishes(
    tmp_path: Path, mode: FlushMode
) -> None:
    sink = Sink()

    async def work(life: Life) -> None:
        def fail(step: str) -> None:
            if step == "all copied":
                raise ZeroDivisionError

        life.publications.on_step = fail
        with pytest.raises(UnknownOutcomeError, match="ZeroDivisionError"):
            await sink.write(life, 0, 14)
        assert life.store.has_failed
        assert life.shown_rows(0) == 0

    with a_life(tmp_path, mode) as life:
        asyncio.run(life.run(work))
    with a_life(tmp_path, mode) as life:
        sink.check_all(life)


def test_staged_rows_that_damage_has_taken_are_named_and_the_rest_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only after the decision: before it, such a handle publishes nothing."""
    sink, mode = Sink(), FlushMode.SYNC
    handles: list[str] = []

    async def work(life: Life) -> None:
        sink.sizes[0] = 18
        handles.extend(life.stage(0, first, 6) for first in (0, 6, 12))
        sink.handles[0] = handles
        disk.stop_after(10_000)
        life.publications.on_step = _cut_at(disk, "begun", 1)
        with pytest.raises((PenstockError, OSError)):
            await sink.write(life, 0, 18)

    disk = faulty(tmp_path)
    with a_life(tmp_path, mode, disk) as life:
        asyncio.run(life.run(work))
    disk.crash(keep_unsynced)
    position, size = (int(part) for part in handles[1].split(".")[:2])
    segment = tmp_path / "commitlog" / f"{position - position % 8192:020d}"
    content = bytearray(segment.read_bytes())
    content[position % 8192 + size // 2] ^= 1
    # Known to be on disk, so recovery keeps what follows.
    segment.write_bytes(content)
    with a_life(tmp_path, mode) as life:
        found = life.shown_rows(0)
    if found:  # else the cut took the decision along with the damaged record
        assert found == 12
        assert "6 messages of query cannot be published" in caplog.text


@BOTH_MODES
def test_a_damaged_copy_is_not_made_up_for_by_another(tmp_path: Path, mode: FlushMode) -> None:
    """The copies in the log are counted; where one cannot be, the last one's key says how far it went."""
    sink = Sink()

    async def work(life: Life) -> None:
        sink.sizes[0] = 18
        sink.handles[0] = [life.stage(0, first, 6) for first in (0, 6, 12)]
        life.publications.on_step = _raise_at("copied", 4)
        with pytest.raises(UnknownOutcomeError):
            await sink.write(life, 0, 18)

    with a_life(tmp_path, mode) as life:
        asyncio.run(life.run(work))
        copies = [(position, size) for position, size, prepared in _records(life) if prepared > 0]
    assert len(copies) == 12
    position, _ = copies[3]
    segment = tmp_path / "commitlog" / f"{position - position % 8192:020d}"
    content = bytearray(segment.read_bytes())
    at = position % 8192
    content[at + 76 : at + 84] = bytes(8)  # it does not say any more what decided it
    segment.write_bytes(content)
    with a_life(tmp_path, mode) as life:
        sink.check_all(life)


def _raise_at(step: str, count: int):  # type: ignore[no-untyped-def]
    left = count

    def watch(done: str) -> None:
        nonlocal left
        left -= done == step
        if left == 0:
            raise ZeroDivisionError

    return watch


def _records(life: Life) -> list[tuple[int, int, int]]:
    """Position, size and prepared offset of every record."""
    found, position = [], 0
    while position < life.store.log.max_offset:
        head = life.store.log.slice(position, 91)
        if head is None or int.from_bytes(head[4:8], "big") == 0xCBD43194:
            position += 8192 - position % 8192
            continue
        size = int.from_bytes(head[:4], "big")
        found.append((position, size, int.from_bytes(head[76:84], "big")))
        position += size
    return found
