"""A crash, and the last segment of the log is gone: offsets that queue files prove to have been used stay unused.

The messages were acknowledged as flushed after the newest checkpoint, so neither it nor the manifest's ends know of
them. Consumers have committed these offsets: another message under one of them would be skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.store import MessageStore
from penstock.testing import ManualClock
from tests.support.store_checks import (
    TOPICS,
    Ledger,
    append,
    faulty,
    open_store,
    place_of,
    read_queue,
    serial_of,
    small_options,
)

pytestmark = [pytest.mark.fault("F7"), pytest.mark.invariant("I4")]
OPTIONS = small_options()
PLACES = [(topic, queue) for topic in TOPICS for queue in range(2)]


@dataclass
class Lost:
    """A store that lost its last segment: what was acknowledged, and where each queue was."""

    folder: Path
    ledger: Ledger
    ends: dict[tuple[str, int], int]
    kept: int
    next_serial: int
    segment: Path
    bytes_of_it: bytes


def tick_all(store: MessageStore, clock: ManualClock) -> None:
    """Queue entries into their files, queue files, manifest and checkpoint on disk."""
    clock.advance(OPTIONS.queue_thorough_interval_ms + 1)
    store.keeper.tick()


def lost(folder: Path, **changes: object) -> Lost:
    """Crash after more than a segment of acknowledged messages that only log and queue files have; then the last
    segment goes."""
    clock, ledger = ManualClock(), Ledger()
    store = open_store(folder, OPTIONS, clock=clock)
    serial = 0
    while serial < 60:
        serial += 1
        append(store, serial, ledger)
    tick_all(store, clock)
    sealed = store.log.max_offset
    size = OPTIONS.segment_size_bytes
    while store.log.max_offset // size < sealed // size + 2:
        serial += 1
        append(store, serial, ledger)
    for _ in range(12):
        serial += 1
        append(store, serial, ledger)
    store.queues.drain()
    ends = {place: store.max_offset(*place) for place in PLACES}
    base = store.log.max_offset - store.log.max_offset % size
    store.abandon()
    segment = folder / "commitlog" / f"{base:020d}"
    data = segment.read_bytes()
    segment.unlink()
    return Lost(folder, ledger, ends, base, serial, segment, data)


def assert_gap(store: MessageStore, case: Lost) -> None:
    """Old offsets show the old message or none; the next ones come after all that were used."""
    for serial in range(case.next_serial + 1, case.next_serial + 31):
        place = place_of(serial)
        offset = append(store, serial, case.ledger)  # the ledger refuses an offset that it knows
        assert offset >= case.ends[place], place
    for place in PLACES:
        known = case.ledger.acked[place]
        for message in read_queue(store, *place, holes=True):
            assert known[message.queue_offset] == serial_of(message)
        gone = [offset for offset, serial in known.items() if case.kept <= case.ledger.positions[serial]]
        assert gone, "the segment that is gone had messages of every queue"


def test_used_offsets_are_not_given_to_other_messages(tmp_path: Path) -> None:
    case = lost(tmp_path)
    with open_store(tmp_path, OPTIONS) as store:
        kinds = [finding.kind for finding in store.findings.all()]
        assert "unflushed messages lost" in kinds
        assert_gap(store, case)
        for (topic, queue), end in case.ends.items():
            found = store.get(topic, queue, end - 1, max_count=4)
            assert all(message.queue_offset >= end for message in found.messages())
            assert found.next_offset >= end, "a consumer at the gap goes on behind it"


def test_they_stay_unused_after_more_restarts(tmp_path: Path) -> None:
    """A clean one, and a crash before the first message: what recovery filled in is not needed to know it."""
    case = lost(tmp_path)
    open_store(tmp_path, OPTIONS).abandon()
    with open_store(tmp_path, OPTIONS):
        pass
    open_store(tmp_path, OPTIONS).abandon()
    with open_store(tmp_path, OPTIONS) as store:
        assert_gap(store, case)


def test_a_crash_inside_recovery_does_not_lose_the_proof(tmp_path: Path) -> None:
    for changes in range(1, 400, 7):
        folder = tmp_path / str(changes)
        disk = faulty(folder)
        case = lost(folder)
        disk.stop_after(changes)
        try:
            open_store(folder, OPTIONS, disk=disk).abandon()
        except (OSError, StoreError):
            pass
        done = disk.has_power
        disk.kill()
        with open_store(folder, OPTIONS) as store:
            assert_gap(store, case)
        if done:
            break
    else:
        pytest.fail("recovery never came to its end")


def as_replica(case: Lost) -> MessageStore:
    return open_store(case.folder, OPTIONS, replica=True)


def test_a_replica_takes_the_lost_messages_from_its_master(tmp_path: Path) -> None:
    """The same bytes again: no gap, and every message under its offset."""
    case = lost(tmp_path)
    with as_replica(case) as store:
        start = store.log.max_offset
        end = case.kept + len(case.bytes_of_it.rstrip(b"\x00"))
        assert start <= case.kept
        store.append_replica(case.bytes_of_it[: end - case.kept], max(start, case.kept))
        store.flush()
        assert store.cut_tail() == end
        for place in PLACES:
            found = {message.queue_offset: serial_of(message) for message in read_queue(store, *place)}
            assert found == case.ledger.acked[place]


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_replica_that_becomes_master_without_them_leaves_a_gap(tmp_path: Path, restarts: int) -> None:
    case = lost(tmp_path)
    for _ in range(restarts):
        as_replica(case).abandon()
    with as_replica(case) as store:
        store.cut_tail()
        store.replica_mode(False)
        assert_gap(store, case)


def test_a_replica_that_was_truncated_uses_them_again(tmp_path: Path) -> None:
    """Another master's log counts: what it did not have, nobody confirmed."""
    case = lost(tmp_path)
    with as_replica(case) as store:
        ends = [
            message.physical_offset + message.size
            for place in PLACES
            for message in read_queue(store, *place)
        ]
        common = sorted(ends)[-5]
        store.truncate(common)
        store.replica_mode(False)
        before = {place: store.max_offset(*place) for place in PLACES}
        for serial in range(1_001, 1_013):
            place = place_of(serial)
            assert append(store, serial) == before[place]
            before[place] += 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"\xff" * 20 + data[20:],
        lambda data: bytes(20) + data[20:],
    ],
    ids=["impossible entry", "empty entry"],
)
def test_a_damaged_queue_file_proves_nothing(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Every record is in the log: queues are rebuilt from it, without a gap."""
    case = lost(tmp_path)
    case.segment.write_bytes(case.bytes_of_it)
    topic, queue = PLACES[0]
    newest = max((tmp_path / "consumequeue" / topic / str(queue)).iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    with open_store(tmp_path, OPTIONS) as store:
        assert {place: store.max_offset(*place) for place in PLACES} == case.ends
        for place in PLACES:
            found = {message.queue_offset: serial_of(message) for message in read_queue(store, *place)}
            assert found == case.ledger.acked[place]
