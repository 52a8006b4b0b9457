"""Group commit in an event loop: one sync for many, order kept, failures final, nothing left behind."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.errors import FlushFailedError, LogPositionError, StoreClosedError, StoreError
from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import Durability, FlushMode, MessageStore, StoreOptions
from penstock.store.loop_flush import LoopFlusher
from penstock.store.segment import Segment
from penstock.testing.disk import FaultyDisk

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=100,
    index_slots=50,
    index_entries=60,
    max_message_size_bytes=8192,
    flush_mode=FlushMode.SYNC,
)


def append(store: MessageStore, body: bytes) -> int:
    """Append without waiting; the end that has to be flushed."""
    request = store.request(Message.of("loop", body))
    store.append_group([request], durability=Durability.MEMORY)
    return request.physical_offset + request.size


@pytest.mark.seed("S3-52", "S3-53")
@pytest.mark.invariant("I5")
def test_many_waiters_share_a_sync_and_see_only_what_is_flushed(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            flusher = LoopFlusher(store)
            flusher.start()
            order: list[int] = []
            try:
                done = asyncio.get_running_loop().create_future()
                for i in range(500):
                    end = append(store, b"%d" % i)

                    def ready(error: object, i: int = i, end: int = end) -> None:
                        assert error is None
                        assert store.flusher.flushed_offset >= end
                        assert store.max_offset("loop", 0) > i
                        order.append(i)
                        if i == 499:
                            done.set_result(None)

                    flusher.when_flushed(end, ready)
                    assert store.max_offset("loop", 0) <= max(order, default=-1) + 1
                await asyncio.wait_for(done, 60)
            finally:
                flusher.stop()
            assert order == list(range(500))
            assert len(store.read("loop", 0, 0, 1000)) == 500

    asyncio.run(scenario())


def test_rolls_are_synced_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            flusher = LoopFlusher(store)
            flusher.start()
            try:
                ends = [append(store, b"x" * 5000) for _ in range(60)]
                assert len([s for s in store.log.segments if s]) > 3
                await asyncio.wait_for(flusher.flushed(ends[-1]), 60)
                assert store.flusher.flushed_offset == ends[-1]
                await asyncio.wait_for(flusher.flushed(ends[0]), 60)
            finally:
                flusher.stop()

    asyncio.run(scenario())


@pytest.mark.fault("F8")
def test_a_failed_sync_reaches_every_waiter_and_is_final(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        store = MessageStore.open(tmp_path, OPTIONS, runtime=Runtime(disk=disk), background=False)
        flusher = LoopFlusher(store)
        first = append(store, b"first")
        flusher.start()
        try:
            await asyncio.wait_for(flusher.flushed(first), 60)
            disk.fail_next("sync", errno.EIO, path_contains="commitlog")
            waits = [flusher.flushed(append(store, b"lost %d" % i)) for i in range(5)]
            results = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 60)
            assert all(isinstance(result, FlushFailedError) for result in results)
            with pytest.raises(FlushFailedError):
                await flusher.flushed(store.log.max_offset)
            with pytest.raises(FlushFailedError):
                append(store, b"refused")
            assert store.max_offset("loop", 0) == 1
        finally:
            flusher.stop()
            store.abandon()

    asyncio.run(scenario())


def test_stopping_tells_who_still_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            flusher = LoopFlusher(store)
            flusher.start()
            waiting = flusher.flushed(append(store, b"x"))
            flusher.stop()
            with pytest.raises(StoreClosedError):
                await waiting
            with pytest.raises(StoreClosedError):
                await flusher.flushed(append(store, b"y"))

    asyncio.run(scenario())


@pytest.mark.invariant("I11")
@pytest.mark.parametrize("compiled", [False, True], ids=["through-the-door", "own-thread"])
def test_a_sync_that_began_before_a_cut_promises_nothing_behind_it(tmp_path: Path, compiled: bool) -> None:
    """The log is cut while a sync runs: who waited for the part that is gone is told, the flushed position stays
    true, and no descriptor is closed under the thread."""

    async def scenario() -> None:
        disk = FaultyDisk(tmp_path)
        runtime = Runtime() if compiled else Runtime(disk=disk)
        with MessageStore.open(tmp_path, OPTIONS, background=False, runtime=runtime) as store:
            ends = [append(store, b"x" * 6000) for _ in range(30)]  # over three segments
            flusher = LoopFlusher(store)
            flusher.start()
            try:
                outcome: dict[int, StoreError | None] = {}
                for end in (ends[2], ends[28], ends[29]):
                    flusher.when_flushed(end, lambda error, end=end: outcome.__setitem__(end, error))  # type: ignore[misc]
                store.replica_mode(True)
                store.truncate(ends[4])
                assert store.flusher.flushed_offset <= ends[4]
                await asyncio.wait_for(flusher.flushed(ends[4]), 60)
                assert store.flusher.flushed_offset == ends[4] == store.log.max_offset
                assert outcome[ends[2]] is None
                assert isinstance(outcome[ends[28]], LogPositionError)
                assert isinstance(outcome[ends[29]], LogPositionError)
                with pytest.raises(LogPositionError):
                    await asyncio.wait_for(flusher.flushed(ends[29]), 60)
                store.replica_mode(False)
                again = append(store, b"again")
                await asyncio.wait_for(flusher.flushed(again), 60)
                assert store.max_offset("loop", 0) == 6
            finally:
                flusher.stop()

    asyncio.run(scenario())


def test_a_thread_that_waits_for_a_flush_is_told_of_a_cut(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        first, second = append(store, b"first"), append(store, b"second")
        store.replica_mode(True)
        store.truncate(first)
        with pytest.raises(LogPositionError, match="not stored any more"):
            store.flush(second)
        assert store.flush(first) == first


@pytest.mark.invariant("I5")
def test_what_another_thread_has_synced_meanwhile_is_told(tmp_path: Path) -> None:
    """The keeper's flush comes between a caller's question and the look for work: there is none, and yet somebody
    waits."""

    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            flusher = LoopFlusher(store)
            flusher.start()
            take = store.flusher.take_work

            def late() -> list[tuple[Segment, int]]:
                store.flush()
                return take()

            try:
                for turn in range(3):
                    end = append(store, b"%d" % turn)
                    store.flusher.take_work = late  # type: ignore[method-assign]
                    await asyncio.wait_for(flusher.flushed(end), 60)
                    assert store.flusher.flushed_offset >= end
                    assert store.max_offset("loop", 0) == turn + 1
                store.flusher.take_work = take  # type: ignore[method-assign]
                await asyncio.wait_for(flusher.flushed(append(store, b"last")), 60)
            finally:
                flusher.stop()

    asyncio.run(scenario())


@pytest.mark.invariant("I5")
def test_a_sync_that_another_thread_saw_fail_is_no_success_here(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            flusher = LoopFlusher(store)
            flusher.start()
            take = store.flusher.take_work

            def failed_before() -> list[tuple[Segment, int]]:
                work = take()
                store.flusher.fail(work[0][0], OSError(errno.EIO, "lost"))
                return work

            store.flusher.take_work = failed_before  # type: ignore[method-assign]
            try:
                before = store.flusher.flushed_offset
                with pytest.raises(FlushFailedError):
                    await asyncio.wait_for(flusher.flushed(append(store, b"x")), 60)
                assert store.flusher.flushed_offset == before
            finally:
                flusher.stop()
                store.abandon()

    asyncio.run(scenario())
