"""More queues than files may be open: opened when needed, closed again, and never under somebody's hands."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import StoreFailedError
from penstock.message import Message
from penstock.runtime import Runtime, SystemDisk
from penstock.store import MessageStore
from penstock.store.queue_files import OpenFiles, QueueFile
from penstock.store.queue_table import SYNC_ALL_FROM
from penstock.testing.scratch_disk import ScratchDisk
from tests.effort import by_length
from tests.support.store_checks import small_options

QUEUES = by_length(60, 600)
FEW = small_options(queue_files_open_max=4, segment_size_bytes=1 << 20)


def open_queue_files(folder: Path) -> int:
    """Descriptors of this process that lead to queue files of a store, maps included."""
    own = Path("/proc/self/fd")
    found = 0
    for name in os.listdir(own):
        try:
            found += f"{folder}/consumequeue/" in os.readlink(own / name)
        except FileNotFoundError:
            continue
    return found


def bodies(store: MessageStore, queue: int) -> list[bytes]:
    return [message.body for message in store.read(f"T{queue % 7}", queue, 0)]


def test_few_files_are_open_and_every_queue_is_read(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, FEW, background=False) as store:
        for number in range(12):  # files have 8 entries, so each queue gets a second one
            for queue in range(QUEUES):
                store.append(Message.of(f"T{queue % 7}", b"%d" % number), queue)
            store.keeper.finish()
            assert open_queue_files(tmp_path) <= 8
        for queue in range(QUEUES):
            assert bodies(store, queue) == [b"%d" % number for number in range(12)]
            assert open_queue_files(tmp_path) <= 8
    assert open_queue_files(tmp_path) == 0
    with MessageStore.open(tmp_path, FEW, background=False) as store:
        assert not store.findings.all()
        assert open_queue_files(tmp_path) <= 8
        for queue in range(QUEUES):
            assert bodies(store, queue) == [b"%d" % number for number in range(12)]


def test_readers_writers_and_syncs_at_once(tmp_path: Path) -> None:
    """Each closes files that another one needs next: nobody may read through a map that is gone, or sync a descriptor
    that is another file's by now."""
    rounds = by_length(30, 600)
    errors: list[BaseException] = []
    stop = threading.Event()

    def guarded(work: object) -> None:
        try:
            while not stop.is_set():
                work()  # type: ignore[operator]
        except BaseException as error:  # told to the test, which fails
            errors.append(error)
            stop.set()

    with MessageStore.open(tmp_path, FEW, background=False) as store:

        def read() -> None:
            for queue in range(QUEUES):
                found = bodies(store, queue)
                assert found == [b"%d" % number for number in range(len(found))]

        def sync() -> None:
            store.keeper.finish()

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (read, read, sync)]
        for thread in threads:
            thread.start()
        for number in range(rounds):
            if stop.is_set():
                break
            for queue in range(QUEUES):
                store.append(Message.of(f"T{queue % 7}", b"%d" % number), queue)
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert open_queue_files(tmp_path) <= 8
        for queue in range(QUEUES):
            assert len(bodies(store, queue)) == min(rounds, 32)


@dataclass(frozen=True)
class Folder:
    """Stands for a queue."""

    folder: Path


def test_a_pinned_file_is_not_closed_and_a_sync_closes_no_other(tmp_path: Path) -> None:
    disk, opened = SystemDisk(), OpenFiles(SystemDisk(), 1)
    files = []
    for number in range(3):
        path = tmp_path / f"{number}"
        file = disk.open(path, create=True)
        file.truncate(20)
        file.close()
        files.append(QueueFile(opened, Folder(tmp_path), path.name, 0, 20))
    first, second, third = files
    view = first.view
    with opened.pinned(second) as file:
        assert view.size == 20, "a sync happens without the lock under which maps are read"
        third.view.slice(0, 20)
        assert view.size == 0
        file.sync()
        second.file.pwrite(b"x", 0)
        first.file.pwrite(b"x", 0)
        file.sync()
    for one in files:
        one.close()
    assert len(opened) == 0


@pytest.mark.fault("F7")
@pytest.mark.parametrize("damage", ["cut off", "emptied", "gone", "longer"])
def test_a_look_at_the_expected_end_is_not_taken_for_a_check_that_failed(tmp_path: Path, damage: str) -> None:
    """A start looks at one entry of each queue: where that is not what the manifest says, at all of them."""
    with MessageStore.open(tmp_path, FEW, background=False) as store:
        for number in range(5):
            store.append(Message.of("T", b"%d" % number), 0)
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020}"
    data = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(data[:60] + bytes(len(data) - 60))
    elif damage == "emptied":
        path.write_bytes(bytes(len(data)))
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:100] + data[80:100] + data[120:])
    with MessageStore.open(tmp_path, FEW, background=False) as store:
        assert [message.body for message in store.read("T", 0, 0)] == [b"%d" % number for number in range(5)]
        assert store.append(Message.of("T", b"next"), 0).queue_offset == (6 if damage == "longer" else 5)


def test_a_store_has_many_more_queues_than_descriptors(tmp_path: Path) -> None:
    """0.1 kept two descriptors for each queue with messages, and failed with "Too many open files"."""
    script = """
import resource, sys
from penstock.message import Message
from penstock.store import MessageStore
from tests.support.store_checks import small_options
limit = 160
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
options = small_options(queue_files_open_max=32, segment_size_bytes=1 << 20)
for expected in (0, 1):
    with MessageStore.open(sys.argv[1], options, background=False) as store:
        assert len(store.read("T", 299, 0)) == expected
        for queue in range(300):
            store.append(Message.of("T", b"x"), queue)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=300)


class BulkDisk(ScratchDisk):
    """Counts how queue files are synced, and fails on order."""

    def __init__(self) -> None:
        self.at_once = 0
        self.error: OSError | None = None

    @property
    def can_sync_all(self) -> bool:
        return True

    def sync_all(self, path: Path) -> None:
        self.at_once += 1
        if self.error is not None:
            raise self.error


def test_many_queues_are_synced_at_once_and_few_one_by_one(tmp_path: Path) -> None:
    """A sync for each took 12 ms on a busy disk: two minutes to stop a broker whose 10,000 queues got a message."""
    disk = BulkDisk()
    with MessageStore.open(tmp_path, FEW, runtime=Runtime(disk=disk), background=False) as store:
        for queue in range(SYNC_ALL_FROM - 1):
            store.append(Message.of("T", b"x"), queue)
        store.keeper.finish()
        assert disk.at_once == 0
        for queue in range(SYNC_ALL_FROM):
            store.append(Message.of("T", b"x"), queue)
        store.keeper.finish()
        assert disk.at_once == 1
        store.keeper.finish()
        assert disk.at_once == 1, "nothing is left to sync"


@pytest.mark.fault("F8")
def test_a_sync_of_many_that_fails_is_never_taken_for_done(tmp_path: Path) -> None:
    disk = BulkDisk()
    store = MessageStore.open(tmp_path, FEW, runtime=Runtime(disk=disk), background=False)
    for queue in range(SYNC_ALL_FROM):
        store.append(Message.of("T", b"x"), queue)
    disk.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StoreFailedError):
        store.keeper.finish()
    with pytest.raises(StoreFailedError):
        store.append(Message.of("T", b"x"), 0)
    store.abandon()
    manifest = tmp_path / "penstock.manifest.json"
    assert not manifest.exists(), "it would promise entries that may be lost"
