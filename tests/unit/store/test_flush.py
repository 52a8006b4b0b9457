"""When the log is synced, how many syncs that takes, and what several threads at once may rely on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FlushTimeoutError
from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, MessageStore, PutStatus, StoreOptions
from penstock.testing import FaultyDisk, ManualClock
from tests.support.store_checks import audit, faulty, open_store, read_queue, small_options

PAGE = 4096


class Rig:
    """An asynchronous store whose clock and disk the test holds."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.clock, self.disk = ManualClock(), faulty(folder)
        values: dict[str, Any] = {"segment_size_bytes": 1 << 20, "max_message_size_bytes": 1 << 16}
        options = small_options(flush_mode=FlushMode.ASYNC, **{**values, **changes})
        self.store = open_store(folder, options, disk=self.disk, clock=self.clock)
        self.store.append(Message.of("t", b"the segment is made"))
        self.store.flush()
        self.disk.log.clear()

    def append(self, size: int) -> None:
        self.store.append(Message.of("t", bytes(size)))

    def after(self, milliseconds: int) -> int:
        """Let time pass and the keeper work; how many syncs of the log came of it."""
        self.clock.advance(milliseconds)
        self.disk.log.clear()
        self.store.keeper.tick()
        return log_syncs(self.disk)


def log_syncs(disk: FaultyDisk) -> int:
    return sum(entry.op == "sync" and entry.path.startswith("commitlog/") for entry in list(disk.log))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "store")
    yield made
    made.store.close()


# -- asynchronous --------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-52")
def test_defaults() -> None:
    options = StoreOptions()
    assert options.flush_mode is FlushMode.ASYNC
    assert options.flush_interval_ms == 500
    assert options.flush_least_pages == 4
    assert options.flush_thorough_interval_ms == 10_000
    assert options.sync_flush_timeout_ms == 5_000


@pytest.mark.seed("S3-52", "S3-54")
def test_async_flush_comes_at_its_interval(rig: Rig) -> None:
    rig.append(5 * PAGE)
    assert rig.after(499) == 0
    assert rig.after(1) == 1
    assert rig.store.flusher.flushed_offset == rig.store.log.max_offset
    rig.append(5 * PAGE)
    assert rig.after(499) == 0
    assert rig.after(1) == 1


def test_async_flush_waits_for_enough_pages(rig: Rig) -> None:
    assert rig.store.log.max_offset < PAGE
    rig.append(3 * PAGE)
    assert rig.store.log.max_offset // PAGE == 3
    assert rig.after(500) == 0
    rig.append(PAGE - 300)
    assert rig.store.log.max_offset // PAGE == 3
    assert rig.after(500) == 0
    rig.append(300)
    assert rig.store.log.max_offset // PAGE == 4
    assert rig.after(500) == 1


def test_async_flush_is_thorough_after_10_seconds(rig: Rig) -> None:
    rig.append(1)
    for _ in range(19):
        assert rig.after(500) == 0
    assert rig.store.flusher.flushed_offset < rig.store.log.max_offset
    assert rig.after(500) == 1
    assert rig.store.flusher.flushed_offset == rig.store.log.max_offset


def test_nothing_to_flush_is_not_flushed(rig: Rig) -> None:
    for _ in range(50):
        assert rig.after(500) == 0


@pytest.mark.parametrize(("pages", "syncs"), [(0, 1), (1, 0)])
def test_the_pages_are_an_option(tmp_path: Path, pages: int, syncs: int) -> None:
    rig = Rig(tmp_path / "store", flush_least_pages=pages, flush_interval_ms=20)
    rig.append(1)
    assert rig.after(19) == 0
    assert rig.after(1) == syncs
    rig.store.close()


def test_the_thorough_interval_is_an_option(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", flush_thorough_interval_ms=1000)
    rig.append(1)
    assert [rig.after(500), rig.after(500)] == [0, 1]
    rig.store.close()


def test_a_flush_covers_every_segment_oldest_first(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", segment_size_bytes=8192, max_message_size_bytes=4096)
    for _ in range(8):
        rig.append(3000)
    end = rig.store.log.max_offset
    assert end > 3 * 8192
    rig.disk.log.clear()
    assert rig.store.flush() == end
    synced = [entry.path for entry in rig.disk.log if entry.op == "sync"]
    assert synced == [f"commitlog/{i * 8192:020d}" for i in range(end // 8192 + 1)]
    rig.disk.log.clear()
    assert rig.store.flush() == end
    assert log_syncs(rig.disk) == 0
    rig.store.close()


# -- synchronous ---------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-53")
def test_under_sync_flush_the_answer_comes_after_the_sync(tmp_path: Path) -> None:
    disk = faulty(tmp_path)
    with open_store(tmp_path, disk=disk) as store:
        store.append(Message.of("t", b"first"))
        for i in range(5):
            disk.log.clear()
            result = store.append(Message.of("t", b"%d" % i))
            ops = [(entry.op, entry.path.split("/")[0]) for entry in disk.log]
            assert ops == [("pwrite", "commitlog"), ("sync", "commitlog")]
            assert store.flusher.flushed_offset == result.physical_offset + result.size


def test_what_nobody_waited_for_is_flushed_by_the_keeper(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, disk=faulty(tmp_path), clock=clock) as store:
        store.append(Message.of("t", b"x"), durability=Durability.MEMORY)
        assert store.max_offset("t", 0) == 0
        clock.advance(500)
        store.keeper.tick()
        assert store.flusher.flushed_offset == store.log.max_offset
        assert store.max_offset("t", 0) == 1


@pytest.mark.seed("S3-52", "S3-53")
@pytest.mark.fault("F9")
def test_many_waiters_few_syncs(tmp_path: Path) -> None:
    disk, threads, each = faulty(tmp_path), 8, 15
    with open_store(tmp_path, small_options(segment_size_bytes=1 << 20), disk=disk) as store:
        store.append(Message.of("t", b"first"))
        disk.log.clear()
        disk.sync_delay_s = 0.02
        together = threading.Barrier(threads)
        reached: list[tuple[Durability, bool]] = []

        def work(number: int) -> None:
            together.wait(60)
            for i in range(each):
                result = store.append(Message.of("t", b"%d %d" % (number, i)), number)
                end = result.physical_offset + result.size
                reached.append((result.durability, store.flusher.flushed_offset >= end))

        in_threads(work, threads)
        assert reached == [(Durability.FLUSHED, True)] * (threads * each)
        assert each <= log_syncs(disk) <= threads * each * 3 // 4
        assert store.meters.counters["flushes"] == log_syncs(disk) + 1
        for number in range(threads):
            mine = [m.body for m in read_queue(store, "t", number) if m.body != b"first"]
            assert mine == [b"%d %d" % (number, i) for i in range(each)]


@pytest.mark.fault("F9")
def test_waiting_ends_at_the_time_limit_and_says_so(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options(sync_flush_timeout_ms=30), disk=faulty(tmp_path)) as store:
        store.append(Message.of("t", b"first"))
        with store.flusher._lock:  # somebody else's sync that does not end
            result = store.append(Message.of("t", b"slow"))
            assert (result.status, result.durability) == (PutStatus.FLUSH_DISK_TIMEOUT, Durability.MEMORY)
            assert store.max_offset("t", 0) == 1
            with pytest.raises(FlushTimeoutError, match="within 5 ms") as late:
                store.flush(timeout_ms=5)
            assert late.value.outcome_unknown
        store.flush()
        assert [m.body for m in store.read("t", 0, 0)] == [b"first", b"slow"]


def in_threads(work: Any, count: int) -> None:
    """Run `work(number)` in so many threads; the first error is this test's."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.mark.invariant("I1", "I2", "I3", "I4", "I5")
@pytest.mark.parametrize("mode", list(FlushMode))
def test_four_writers_and_two_readers_on_real_files(tmp_path: Path, mode: FlushMode) -> None:
    """For a while on the real disk with the keeper's thread: what is read is whole, in order, and never more than
    what may be seen; at the end everything is there."""
    options = small_options(
        segment_size_bytes=64 * 1024, flush_mode=mode, queue_file_entries=64, flush_interval_ms=5
    )
    acked: list[list[bytes]] = [[] for _ in range(4)]
    done = threading.Event()

    def write(store: MessageStore, number: int) -> None:
        until, serial = time.monotonic() + 0.5, 0
        while serial <= 20 or (time.monotonic() < until and serial < 2000):
            bodies = [b"%d %d" % (number, serial + i) + bytes(serial % 50) for i in range(1 + serial % 4)]
            group = [store.request(Message.of("t", body, keys=f"w{number}"), number) for body in bodies]
            store.append_group(group)
            assert [r.queue_offset for r in group] == list(range(serial, serial + len(group)))
            acked[number] += bodies
            serial += len(bodies)

    def read(store: MessageStore, number: int) -> None:
        offsets = [0] * 4
        while not done.is_set():
            for queue in range(4):
                known = len(acked[queue])
                result = store.get("t", queue, offsets[queue], max_count=50)
                assert (result.damaged, result.missing) == ((), ())
                for message in result.messages():
                    assert (message.topic, message.queue_id) == ("t", queue)
                    assert message.queue_offset == offsets[queue]
                    assert message.body.startswith(b"%d %d" % (queue, offsets[queue]))
                    if mode is FlushMode.SYNC:
                        end = message.physical_offset + message.size
                        assert store.flusher.flushed_offset >= end
                    offsets[queue] += 1
                assert store.max_offset("t", queue) >= known
            assert len(store.reader.query("t", f"w{number}", 5)) <= 5

    with MessageStore.open(tmp_path, options, runtime=Runtime()) as store:
        errors: list[BaseException] = []

        def guarded(number: int) -> None:
            try:
                (write if number < 4 else read)(store, number)
            except BaseException as error:
                errors.append(error)

        writers = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
        readers = [threading.Thread(target=guarded, args=(n,)) for n in (4, 5)]
        for thread in (*writers, *readers):
            thread.start()
        for thread in writers:
            thread.join(60)
        done.set()
        for thread in readers:
            thread.join(60)
        if errors:
            raise errors[0]
        check_all(store, acked)
    with open_store(tmp_path, options) as again:
        check_all(again, acked)


def check_all(store: MessageStore, acked: list[list[bytes]]) -> None:
    for number in range(4):
        assert len(acked[number]) > 10
        assert [m.body for m in read_queue(store, "t", number)] == acked[number]
    assert audit(store).all() == []
    assert store.findings.all() == []
