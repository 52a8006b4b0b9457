"""A tree of files changes by whole commits: cut off after every single step, by a kill and by a power loss."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.errors import StoreFormatError, StoreLockedError
from penstock.runtime import Runtime, SystemDisk
from penstock.spark.pipelines.manifest import Entry, FileRecord, Move
from penstock.spark.pipelines.parquet_tree import PARKED_MS, STAGING, ParquetTree
from penstock.testing import FaultyDisk, ManualClock, PowerLostError

DAY = "topic=t/date=2025-01-31"


class NoExchange(SystemDisk):
    """A file system without the one step, as NFS."""

    def exchange(self, first: Path, second: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(first))


def put(disk: SystemDisk | FaultyDisk, path: Path, data: bytes) -> None:
    disk.make_dirs(path.parent)
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.sync()
    file.close()


def visible(root: Path) -> dict[str, bytes]:
    """What a reader finds who takes everything that ends in .parquet."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.parquet"))}


def tree_on(root: Path, disk: SystemDisk | FaultyDisk | None = None) -> ParquetTree:
    return ParquetTree(root, Runtime(disk=disk or SystemDisk(), clock=ManualClock()))


def add(tree: ParquetTree, names: dict[str, bytes], query: str = "q", batch: int = 0) -> None:
    """A commit of new files."""
    disk, moves = tree.runtime.disk, []
    for number, (name, data) in enumerate(names.items()):
        staged = f"{STAGING}/task/{number}.tmp"
        put(disk, tree.root / staged, data)
        moves.append(Move(staged, f"{DAY}/{name}"))
    records = tuple(FileRecord(f"{DAY}/{name}", 1, len(data)) for name, data in names.items())
    with tree.changing() as change:
        if batch > change.state.batches.get(query, -1):
            change.commit(Entry(records, moves=tuple(moves), query=query, batch=batch))


def swap(tree: ParquetTree, keep: dict[str, bytes], new: dict[str, bytes], drop: list[str]) -> None:
    """A commit that replaces the folder."""
    disk = tree.runtime.disk
    tree.make_beside()
    staged = f"@beside/merging/x/{DAY}"
    for name, data in {**keep, **new}.items():
        put(disk, tree.resolve(staged) / name, data)
    disk.sync_dir(tree.resolve(staged))
    records = tuple(FileRecord(f"{DAY}/{name}", 1, len(data)) for name, data in new.items())
    with tree.changing() as change:
        move = Move(staged, DAY, change.park_name(DAY), next(iter(new)))
        change.commit(Entry(records, tuple(f"{DAY}/{name}" for name in drop), (move,)))


FILES = {"a.parquet": b"a", "b.parquet": b"b", "c.parquet": b"c"}


def test_a_commit_puts_every_file_in_its_place(tmp_path: Path) -> None:
    tree = tree_on(tmp_path / "archive")
    add(tree, FILES)
    assert visible(tree.root) == {f"{DAY}/{name}": data for name, data in FILES.items()}
    state = tree.load()
    assert sorted(state.files) == sorted(visible(tree.root))
    assert state.batches == {"q": 0}


@contextmanager
def cut_off(root: Path, steps: int, *, power: bool) -> Iterator[ParquetTree]:
    """A tree whose disk stops after so many changes; then the process is gone, or the machine."""
    disk = FaultyDisk(root.parent, lose_directory_entries=power)
    disk.stop_after(steps)
    try:
        yield tree_on(root, disk)
    finally:
        disk.crash() if power else disk.kill()


def steps_of(root: Path, work: object) -> int:
    """How many changes a piece of work makes on a disk that holds."""
    disk = FaultyDisk(root.parent)
    disk.stop_after(1_000_000)
    work(tree_on(root, disk))
    made = 1_000_000 - (disk.gate.changes_left or 0)
    disk.kill()
    return made


@pytest.mark.fault("F1")
@pytest.mark.fault("F5")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_cut_off_at_any_step_a_batch_is_there_whole_or_not_at_all(tmp_path: Path, power: bool) -> None:
    later = {"d.parquet": b"d", "e.parquet": b"e"}
    total = steps_of(tmp_path / "dry" / "archive", lambda tree: (add(tree, FILES), add(tree, later, batch=1)))
    committed = 0
    for step in range(0, total, 1 if power else 3):
        root = tmp_path / f"{step}" / "archive"
        root.mkdir(parents=True)
        add(tree_on(root), FILES)
        before = visible(root)
        with _maybe(), cut_off(root, step, power=power) as tree:
            add(tree, later, batch=1)
        # Whatever is seen before anybody repairs anything: whole files, each once, nothing of before is missing.
        seen = visible(root)
        assert before.items() <= seen.items()
        assert set(seen) <= set(before) | {f"{DAY}/{name}" for name in later}
        again = tree_on(root)
        with again.changing() as change:
            change.sweep(STAGING)
        after = visible(root)
        assert len(after) in (len(before), len(before) + len(later)), step
        assert sorted(again.load().files) == sorted(after)
        committed += len(after) > len(before)
        # Spark runs the batch again: the outcome is the same as without the crash.
        add(again, later, batch=1)
        assert visible(root) == before | {f"{DAY}/{name}": data for name, data in later.items()}
    assert 0 < committed < total


@contextmanager
def _maybe() -> Iterator[None]:
    try:
        yield
    except PowerLostError:
        pass


@pytest.mark.fault("F1")
@pytest.mark.fault("F5")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_cut_off_at_any_step_a_swap_shows_old_or_new_but_never_both(tmp_path: Path, power: bool) -> None:
    old = {f"{DAY}/{name}": data for name, data in FILES.items()}
    new = {f"{DAY}/ab.parquet": b"ab", f"{DAY}/c.parquet": b"c"}

    def work(tree: ParquetTree) -> None:
        swap(tree, {"c.parquet": b"c"}, {"ab.parquet": b"ab"}, ["a.parquet", "b.parquet"])

    dry = tmp_path / "dry" / "archive"
    dry.mkdir(parents=True)
    add(tree_on(dry), FILES)
    outcomes = set()
    for step in range(0, steps_of(dry, work), 1 if power else 3):
        root = tmp_path / f"{step}" / "archive"
        root.mkdir(parents=True)
        add(tree_on(root), FILES)
        with _maybe(), cut_off(root, step, power=power) as tree:
            work(tree)
        # This disk has no exchange: for a moment the folder may be away, but it is never a mixture.
        assert visible(root) in (old, new, {}), step
        again = tree_on(root)
        with again.changing():
            pass
        assert visible(root) in (old, new), step
        assert sorted(again.load().files) == sorted(visible(root))
        outcomes.add(len(visible(root)))
    assert outcomes == {2, 3}


@pytest.mark.parametrize("disk", [SystemDisk(), NoExchange()], ids=["exchange", "two renames"])
def test_a_swap_replaces_the_folder_and_parks_the_old_one_out_of_sight(
    tmp_path: Path, disk: SystemDisk
) -> None:
    tree = tree_on(tmp_path / "archive", disk)
    add(tree, FILES)
    swap(tree, {"c.parquet": b"c"}, {"ab.parquet": b"ab"}, ["a.parquet", "b.parquet"])
    assert visible(tree.root) == {f"{DAY}/ab.parquet": b"ab", f"{DAY}/c.parquet": b"c"}
    assert sorted(tree.load().files) == sorted(visible(tree.root))
    parked = [path.name for path in tree.resolve("@beside/replaced").rglob("*.parquet")]
    assert sorted(parked) == sorted(FILES)
    with tree.changing() as change:
        assert change.sweep_parked() == 0
        tree.runtime.clock.advance(PARKED_MS)
        assert change.sweep_parked() == 1
    assert not list(tree.beside().rglob("*.parquet"))


def test_an_exchange_that_was_cut_off_before_parking_is_finished(tmp_path: Path) -> None:
    class DiesAfterExchange(SystemDisk):
        def rename(self, source: Path, target: Path) -> None:
            if "replaced" in str(target):
                raise PowerLostError("now")
            super().rename(source, target)

    tree = tree_on(tmp_path / "archive")
    add(tree, FILES)
    with pytest.raises(PowerLostError):
        swap(
            tree_on(tree.root, DiesAfterExchange()),
            {"c.parquet": b"c"},
            {"ab.parquet": b"ab"},
            ["a.parquet", "b.parquet"],
        )
    assert sorted(path.rsplit("/", 1)[1] for path in visible(tree.root)) == ["ab.parquet", "c.parquet"]
    with tree.changing() as change:
        assert sorted(change.state.files) == sorted(visible(tree.root))


def test_without_a_place_beside_the_root_it_is_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(SystemDisk):
        def make_dirs(self, path: Path) -> None:
            if path.name.startswith(".archive"):
                raise PermissionError(errno.EACCES, "no", str(path))
            super().make_dirs(path)

    tree = tree_on(tmp_path / "archive", Alone())
    add(tree, FILES)
    swap(tree, {"c.parquet": b"c"}, {"ab.parquet": b"ab"}, ["a.parquet", "b.parquet"])
    assert tree.beside() == tree.root / "_beside"
    assert tree_on(tree.root).beside() == tree.root / "_beside"


def test_a_folder_beside_the_root_that_is_on_another_device_is_not_used(tmp_path: Path) -> None:
    """The root was moved to another disk, with a link in its old place; the folder beside it stayed."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    root = tmp_path / "archive"
    add(tree_on(root), FILES)
    swap(tree_on(root), {"c.parquet": b"c"}, {"ab.parquet": b"ab"}, ["a.parquet", "b.parquet"])
    old = root.parent / ".archive.beside"
    parked = sorted(old.rglob("*"))
    with TemporaryDirectory(dir=memory) as elsewhere:
        shutil.move(root, f"{elsewhere}/archive")
        root.symlink_to(f"{elsewhere}/archive")
        swap(tree_on(root), {}, {"abc.parquet": b"abc"}, ["ab.parquet", "c.parquet"])
        tree = tree_on(root)
        with tree.changing() as change:
            assert list(change.state.files) == [f"{DAY}/abc.parquet"]
        assert visible(root / DAY) == {"abc.parquet": b"abc"}
        assert tree.beside() == root / "_beside"
        assert sorted(old.rglob("*")) == parked, "nobody asked for it to be removed"


def test_a_commit_whose_files_are_not_there_changes_nothing(tmp_path: Path) -> None:
    tree = tree_on(tmp_path / "archive")
    with tree.changing() as change, pytest.raises(StoreFormatError, match="share the directory"):
        change.commit(Entry((FileRecord("x.parquet", 1, 1),), moves=(Move("_staging/none", "x.parquet"),)))
    assert tree.load().sequence == 0
    assert tree.manifest.pending() is None


def test_an_intent_whose_files_were_removed_by_hand_is_told(tmp_path: Path) -> None:
    tree = tree_on(tmp_path / "archive")
    add(tree, FILES)
    tree.manifest.announce(
        Entry((FileRecord("x.parquet", 1, 1),), moves=(Move("_staging/none", "x.parquet"),)), tree.load(), 0
    )
    with pytest.raises(StoreFormatError, match="neither staged nor in place"), tree.changing():
        pass


def test_one_commit_at_a_time(tmp_path: Path) -> None:
    tree = tree_on(tmp_path / "archive")
    with (
        tree.changing(),
        pytest.raises(StoreLockedError, match="another commit"),
        tree_on(tree.root).changing(),
    ):
        pass
    with tree.changing():
        pass


def test_one_archiver_at_a_time(tmp_path: Path) -> None:
    tree = tree_on(tmp_path / "archive")
    lock = tree.own("archive.lock", "archiving to")
    with pytest.raises(StoreLockedError, match=f"archiving to.*process {os.getpid()}"):
        tree_on(tree.root).own("archive.lock", "archiving to")
    lock.release()
    tree_on(tree.root).own("archive.lock", "archiving to").release()
