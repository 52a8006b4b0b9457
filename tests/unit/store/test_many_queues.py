"""What each of very many queues costs: looks at the directory when a store opens, and memory.

`python -m benchmarks.scale --queues` has the figures for 100,000; here each queue counts, and no clock does.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.runtime import File, Runtime
from penstock.runtime.disk import Entries
from penstock.store import MessageStore
from penstock.testing.scratch_disk import ScratchDisk
from tests.support.store_checks import small_options

QUEUES = 300
# Not more than the store keeps open, so that each open of a file is the first one.
OPTIONS = small_options(queue_files_open_max=2 * QUEUES, segment_size_bytes=1 << 20, queue_file_entries=1_000)


class CountingDisk(ScratchDisk):
    """Counts what is asked about queues."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def _count(self, what: str, path: Path) -> None:
        self.asked[what] += "consumequeue" in path.parts

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> File:
        self._count("open", path)
        return super().open(path, create=create, write=write)

    def is_dir(self, path: Path) -> bool:
        self._count("look", path)
        return super().is_dir(path)

    def size(self, path: Path) -> int:
        self._count("look", path)
        return super().size(path)

    def list(self, path: Path) -> list[str]:
        self._count("list", path)
        return super().list(path)

    def entries(self, path: Path) -> Entries:
        self._count("list", path)
        return super().entries(path)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with a message in each queue, stopped in order."""
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        for queue in range(QUEUES):
            store.append(Message.of("T", b"x"), queue)
    return tmp_path


def test_a_store_looks_at_each_queue_once_when_it_opens(filled: Path) -> None:
    disk = CountingDisk()
    with MessageStore.open(filled, OPTIONS, runtime=Runtime(disk=disk), background=False) as store:
        assert disk.asked["list"] <= QUEUES + 2
        assert disk.asked["open"] <= QUEUES
        assert disk.asked["look"] <= 2
        assert [len(store.read("T", queue, 0)) for queue in range(QUEUES)] == [1] * QUEUES


def test_retention_does_not_open_queues_whose_oldest_message_is_still_there(filled: Path) -> None:
    disk = CountingDisk()
    few = small_options(queue_files_open_max=4, segment_size_bytes=1 << 20, queue_file_entries=1_000)
    with MessageStore.open(filled, few, runtime=Runtime(disk=disk), background=False) as store:
        disk.asked.clear()
        for queue in store.queues:
            queue.correct_min(store.log.min_offset)
        assert disk.asked["open"] == 0


def test_a_queue_takes_little_memory(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        store.append(Message.of("T", b"x"))
        tracemalloc.start()
        try:
            for queue in range(1, QUEUES):
                store.queues.get_or_create("T", queue)
            used = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert used / QUEUES < 1_000
