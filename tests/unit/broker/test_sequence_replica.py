"""The table of sequences on a replica: it follows what is confirmed, and forgets what is cut off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.idempotence import Idempotence
from penstock.broker.master_services import MasterServices
from penstock.broker.options import BrokerOptions
from penstock.broker.sequence_file import FILE_NAME, decode
from penstock.broker.sequence_table import NOT_STORED, Pair, SequenceTable
from penstock.broker.topics import Topics
from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions

OPTIONS = StoreOptions(
    segment_size_bytes=64 << 10,
    queue_file_entries=1_000,
    index_slots=100,
    index_entries=1_000,
    max_message_size_bytes=8 << 10,
)
PAIR = Pair("p", "T", 0)


def append(store: MessageStore, *sequences: int, body: bytes = b"x") -> list[int]:
    """Idempotent sends in a master's log; where each ends."""
    ends = []
    for sequence in sequences:
        properties = {"PENSTOCK_PRODUCER": "p", "PENSTOCK_SEQUENCE": str(sequence)}
        result = store.append(Message("T", body * 100, properties))
        ends.append(result.physical_offset + result.size)
    return ends


def copy(source: MessageStore, replica: MessageStore, end: int | None = None) -> None:
    """What replication does: the master's bytes, cut anywhere."""
    stop = source.log.max_offset if end is None else end
    while replica.log.max_offset < stop:
        at = replica.log.max_offset
        piece = source.slice_for_transfer(at, min(777, stop - at))
        assert piece is not None
        replica.append_replica(piece, at)
        piece.release()


@contextlib.contextmanager
def master_and_replica(path: Path) -> Iterator[tuple[MessageStore, MessageStore]]:
    with (
        MessageStore.open(path / "m", OPTIONS, background=False) as master,
        MessageStore.open(path / "r", OPTIONS, background=False, replica=True, bounded=True) as replica,
    ):
        yield master, replica


def service(store: MessageStore, path: Path, **options: Any) -> Idempotence:
    found = Idempotence(BrokerOptions(**options), Runtime.system(), path / "config")
    found.open(store, cast(Topics, SimpleNamespace(on_delete=[])))
    return found


def follow(found: Idempotence, store: MessageStore) -> None:
    """As many turns as it takes."""
    found.tick()
    while found.read_to < store.dispatch.offset:
        found.tick()


def known(found: Idempotence, *sequences: int) -> list[int]:
    return [sequence for sequence in sequences if found.table.find(PAIR, sequence) != NOT_STORED]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


@pytest.mark.invariant("I5")
def test_a_replica_knows_what_is_confirmed_and_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        with master_and_replica(tmp_path) as (master, replica):
            found = service(replica, tmp_path / "r")
            ends = append(master, *range(600))
            assert master.log.max_offset > 64 << 10, "more than one segment"
            copy(master, replica)
            follow(found, replica)
            assert len(found.table) == 0
            replica.bound(ends[299] + 10)  # inside a record
            follow(found, replica)
            assert known(found, 298, 299, 300) == [298, 299]
            replica.bound(ends[599])
            follow(found, replica)
            assert known(found, *range(600)) == list(range(600))
            await found.stop()
            assert not found.is_ready, "a replica takes no sends"

    run(scenario())


@pytest.mark.invariant("I11")
def test_a_new_master_knows_its_whole_log_and_a_deposed_one_forgets_what_is_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        with master_and_replica(tmp_path) as (master, replica):
            found = service(replica, tmp_path / "r")
            ends = append(master, 0, 1, 2, 3)
            copy(master, replica, ends[3])
            replica.bound(ends[1])
            follow(found, replica)
            assert known(found, 0, 1, 2, 3) == [0, 1]
            # It is elected: all that it has will be confirmed.
            replica.cut_tail()
            replica.replica_mode(False)
            found.recover()
            assert found.is_ready
            assert known(found, 0, 1, 2, 3) == [0, 1, 2, 3]
            # And deposed before it was: its own messages, and the two, are cut off for those of another master.
            (mine,) = append(replica, 9)
            found.table.add(PAIR, 9, mine - 1, 1)
            found.rest()
            assert known(found, 0, 1, 2, 3, 9) == [0, 1]
            replica.bound(replica.dispatch.offset)
            replica.replica_mode(True)
            replica.truncate(ends[1])
            master.replica_mode(True)
            master.truncate(ends[1])
            master.replica_mode(False)
            ends = append(master, 3, 7, body=b"other")
            copy(master, replica)
            replica.bound(ends[1])
            follow(found, replica)
            assert known(found, 0, 1, 2, 3, 7, 9) == [0, 1, 3, 7]
            await found.stop()

    run(scenario())


def test_a_cut_below_what_was_known_takes_it_out_of_table_and_file(tmp_path: Path) -> None:
    """No confirmed record is ever cut; if one were, it would not be called stored."""

    async def scenario() -> None:
        with (
            MessageStore.open(tmp_path / "m", OPTIONS, background=False) as master,
            MessageStore.open(tmp_path / "r", OPTIONS, background=False, replica=True) as replica,
        ):
            found = service(replica, tmp_path / "r")
            ends = append(master, 0, 1, 2)
            copy(master, replica)
            replica.flush()
            follow(found, replica)
            await found.stop()
            replica.truncate(ends[0])
            master.replica_mode(True)
            master.truncate(ends[0])
            master.replica_mode(False)
            append(master, 5, 6, body=b"other")
            copy(master, replica)
            replica.flush()
            follow(found, replica)
            assert known(found, 0, 1, 2, 5, 6) == [0, 5, 6]
            await found.stop()
            table = SequenceTable(100, 100)
            decode((tmp_path / "r" / "config" / FILE_NAME).read_bytes(), table)
            assert [table.find(PAIR, n) >= 0 for n in (0, 1, 2, 5, 6)] == [True, False, False, True, True]

    run(scenario())


def test_only_the_part_of_the_log_that_is_young_enough_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            append(store, *range(600))
            everything = service(store, tmp_path)
            everything.recover()
            assert known(everything, *range(600)) == list(range(600))
            nothing = service(store, tmp_path, idempotence_expiry_ms=0)
            await asyncio.sleep(0.01)
            nothing.open(store, cast(Topics, SimpleNamespace(on_delete=[])))
            nothing.recover()
            left = known(nothing, *range(600))
            assert left
            assert left == list(range(left[0], 600))
            assert left[0] > 100, "older segments are passed over"

    run(scenario())


@pytest.mark.fault("F4")
def test_a_file_that_cannot_be_written_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
            found = service(store, tmp_path, idempotence_save_interval_ms=1)
            found.recover()
            append(store, 1)
            store.flush()
            (tmp_path / "config").write_bytes(b"in the way")
            await found.stop()
            assert FILE_NAME in caplog.text
            (tmp_path / "config").unlink()
            await found.stop()
            assert (tmp_path / "config" / FILE_NAME).exists()

    run(scenario())


@pytest.mark.invariant("I1")
def test_whoever_was_about_to_lead_and_did_not_follows_on(tmp_path: Path) -> None:
    """The election was overtaken: the services of a master were prepared, never started, and are told to stop."""

    async def scenario() -> None:
        with master_and_replica(tmp_path) as (master, replica):
            ends = append(master, 1, 2, 3)
            copy(master, replica)
            replica.bound(ends[-1])
            found = service(replica, tmp_path)
            found.confirmed_offset = lambda: replica.dispatch.offset
            found.recover()
            services = MasterServices.__new__(MasterServices)
            services.is_running, services._sequences = False, found
            await services.stop()
            assert not found.is_ready
            ends = append(master, 4, 5, 6)
            copy(master, replica)
            replica.bound(ends[-1])
            follow(found, replica)
            replica.flush()
            await found.stop()
            again = service(replica, tmp_path)
            again.recover()
            assert known(again, *range(1, 7)) == [1, 2, 3, 4, 5, 6]

    run(scenario())


@pytest.mark.invariant("I1")
def test_a_topic_that_was_deleted_and_made_anew_while_a_replica_was_away_is_a_new_one(tmp_path: Path) -> None:
    """The replica never saw the topic missing: only the store knows what lies before the deletion."""

    async def scenario() -> None:
        with master_and_replica(tmp_path) as (master, replica):
            ends = append(master, 1, 2, 3)
            copy(master, replica)
            replica.bound(ends[-1])
            found = service(replica, tmp_path)
            follow(found, replica)
            master.delete_topics(["T"])
            replica.follow_deletions(master.deleted_topics)
            ends = append(master, 7)
            copy(master, replica)
            replica.bound(ends[-1])
            follow(found, replica)
            found.recover()
            assert known(found, *range(1, 8)) == [7]

    run(scenario())
