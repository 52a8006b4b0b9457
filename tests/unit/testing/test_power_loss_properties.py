"""The faulty disk against a model: a whole image of what is durable, and the set of dirty blocks.

The disk keeps old bytes of what changed; the model keeps a copy of everything. They share no idea but the
page cache's rules, so that a mistake in one shows.
"""

import errno
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime import SeededEntropy
from penstock.testing import BLOCK_BYTES, FaultyDisk, keep_random_blocks, keep_unsynced

IMAGE_BYTES = 4 * BLOCK_BYTES

# Few blocks and many edges: most steps meet what an earlier step left.
edges = st.sampled_from([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES])
offsets = edges | st.integers(0, IMAGE_BYTES // 2)
sizes = edges | st.integers(0, IMAGE_BYTES // 2)
letters = st.integers(1, 255)
writes = st.tuples(st.just("pwrite"), offsets, sizes, letters)
steps = st.lists(
    st.one_of(
        writes,
        writes,
        st.tuples(st.just("sync")),
        st.tuples(st.just("sync fails")),
        st.tuples(st.just("truncate"), sizes),
        st.tuples(st.just("allocate"), st.integers(1, IMAGE_BYTES // 2)),
    ),
    max_size=12,
)


@dataclass
class Model:
    """One file: its bytes now, its bytes on disk, and which blocks a sync would write."""

    now: bytearray = field(default_factory=lambda: bytearray(IMAGE_BYTES))
    size: int = 0
    durable: bytearray = field(default_factory=lambda: bytearray(IMAGE_BYTES))
    durable_size: int = 0
    dirty: set[int] = field(default_factory=set)

    def pwrite(self, offset: int, size: int, letter: int) -> None:
        if size:
            self.now[offset : offset + size] = bytes([letter]) * size
            self.size = max(self.size, offset + size)
            self.dirty.update(range(offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES + 1))

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.dirty.update(range(size // BLOCK_BYTES, (self.size - 1) // BLOCK_BYTES + 1))
            self.now[size:] = bytes(IMAGE_BYTES - size)
        self.size = size

    def sync(self) -> None:
        for block in self.dirty:
            part = slice(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES)
            self.durable[part] = self.now[part]
        self.dirty.clear()
        self.durable_size = self.size
        self.durable[self.size :] = bytes(IMAGE_BYTES - self.size)

    def apply(self, step: tuple) -> None:
        match step:
            case ("pwrite", offset, size, letter):
                self.pwrite(offset, size, letter)
            case ("truncate", size):
                self.truncate(size)
            case ("allocate", size):
                self.size = max(self.size, size)
            case ("sync",):
                self.sync()
            case ("sync fails",):
                self.dirty.clear()


@contextmanager
def played(history: list[tuple]):
    """A disk on which the history happened, its only file's path, and the model of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        disk, model = FaultyDisk(Path(folder)), Model()
        file = disk.open(path, create=True)
        for step in history:
            model.apply(step)
            match step:
                case ("pwrite", offset, size, letter):
                    file.pwrite(bytes([letter]) * size, offset)
                case ("truncate", size):
                    file.truncate(size)
                case ("allocate", size):
                    file.allocate(size)
                case ("sync",):
                    file.sync()
                case ("sync fails",):
                    disk.fail_next("sync", errno.EIO)
                    with pytest.raises(OSError):
                        file.sync()
        assert path.read_bytes() == model.now[: model.size]
        yield disk, path, model
        if disk.has_power:
            disk.kill()


@pytest.mark.fault("F6")
@pytest.mark.fault("F8")
@given(steps)
def test_a_crash_leaves_exactly_what_was_synced(history: list[tuple]) -> None:
    with played(history) as (disk, path, model):
        disk.crash()
        assert path.read_bytes() == model.durable[: model.durable_size]


@pytest.mark.fault("F6")
@given(steps, st.integers(0, 2**32))
def test_every_block_is_the_synced_one_or_the_newest(history: list[tuple], seed: int) -> None:
    with played(history) as (disk, path, model):
        disk.crash(keep_random_blocks(SeededEntropy(seed)))
        found = path.read_bytes()
        assert len(found) in (model.durable_size, model.size)
        found = found.ljust(IMAGE_BYTES, b"\0")
        end = min(model.size, model.durable_size)
        for block in range(-(-end // BLOCK_BYTES)):
            part = slice(block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, end))
            allowed = [model.durable[part]]
            if block in model.dirty:
                allowed.append(model.now[part])
            assert found[part] in allowed, f"block {block}"


@pytest.mark.fault("F5")
@given(steps, writes.filter(lambda write: write[2] > 0), st.floats(0, 1))
def test_a_torn_write_keeps_its_beginning(history: list[tuple], last: tuple, fraction: float) -> None:
    history = [step for step in history if step[0] != "sync fails"]
    with played([*history, last]) as (disk, path, model):
        _, offset, size, letter = last
        cut = round(size * fraction)
        expected = Model()
        for step in history:
            expected.apply(step)
        expected.pwrite(offset, cut, letter)
        disk.crash(torn_at=cut)
        # The write may have reached beyond the end: then the file ends at the cut, or where it ended before.
        assert path.read_bytes() == expected.now[: max(expected.size, min(model.size, offset + cut))]


@pytest.mark.fault("F6")
@given(steps)
def test_luck_loses_nothing(history: list[tuple]) -> None:
    history = [step for step in history if step[0] != "sync fails"]
    with played(history) as (disk, path, model):
        disk.crash(keep_unsynced)
        assert path.read_bytes() == model.now[: model.size]


@given(steps)
def test_a_killed_process_loses_nothing(history: list[tuple]) -> None:
    with played(history) as (disk, path, model):
        disk.kill()
        assert path.read_bytes() == model.now[: model.size]


name = st.sampled_from(["a", "b", "c"])
name_steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), name),
        st.tuples(st.just("rename"), name, name),
        st.tuples(st.just("remove"), name),
    ),
    max_size=10,
)


@pytest.mark.fault("F6")
@given(name_steps, st.integers(0, 10), st.integers(0, 10))
def test_names_after_a_crash_are_those_of_a_moment_after_the_last_sync(
    history: list[tuple], synced_at: int, kept: int
) -> None:
    """Each moment's names are recorded; the crash may only show one between the last sync and the end."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        disk = FaultyDisk(root, lose_directory_entries=True)
        moments = [{}]
        for number, step in enumerate(history):
            match step:
                case ("create", one) if not disk.exists(root / one):
                    file = disk.open(root / one, create=True)
                    file.close()
                    # Written past the disk, so that a file can be told from another of the same name.
                    (root / one).chmod(0o600 + number % 8)
                case ("rename", one, other) if one != other and disk.exists(root / one):
                    disk.rename(root / one, root / other)
                case ("remove", one):
                    disk.remove(root / one)
            now = {path.name: path.stat().st_mode for path in root.iterdir()}
            if now != moments[-1]:
                moments.append(now)
            if number == synced_at:
                disk.sync_dir(root)
                moments = [now]
        pending = disk.unsynced_entries
        disk.crash(kept_entries=kept)
        found = {path.name: path.stat().st_mode for path in root.iterdir()}
        assert found in moments
        if kept >= pending:
            assert found == moments[-1]
        if kept == 0:
            assert found == moments[0]
