"""A store whose files are damaged while it is closed, and what it serves after that."""

from __future__ import annotations

from pathlib import Path

from penstock.store import MessageStore
from penstock.testing import ManualClock
from tests.support.store_checks import (
    Ledger,
    append,
    assert_genuine,
    open_store,
    place_of,
    read_queue,
    serial_of,
    small_options,
)

# The message that is appended after the damage, and where it goes.
NEXT_SERIAL = 1002
NEXT = place_of(NEXT_SERIAL)
OPTIONS = small_options(segment_size_bytes=4096, max_message_size_bytes=1024)


class Sample:
    """A store of four segments and more, all messages of it flushed and known to the checkpoint."""

    def __init__(self, folder: Path, how_it_ended: str) -> None:
        self.folder, self.ledger = folder, Ledger()
        clock = ManualClock()
        store = open_store(folder, OPTIONS, clock=clock)
        for serial in range(1, 80):
            append(store, serial, self.ledger, size=60)
            clock.advance(200)
        self.segments = sorted(p.name for p in (folder / "commitlog").iterdir())
        self.records = {
            serial: (m.physical_offset, m.size)
            for queue in store.queues
            for m in read_queue(store, queue.topic, queue.queue_id)
            for serial in [serial_of(m)]
        }
        self.ends = {(q.topic, q.queue_id): q.max_offset for q in store.queues}
        clock.advance(15_000)
        store.keeper.tick()
        if how_it_ended == "crash":
            store.abandon()
        else:
            store.close()
        assert len(self.segments) >= 4

    def segment_file(self, position: int) -> tuple[Path, int]:
        base = position - position % 4096
        return self.folder / "commitlog" / f"{base:020d}", position - base

    def write(self, position: int, data: bytes) -> None:
        path, at = self.segment_file(position)
        overwrite(path, at, data)

    def flip(self, position: int, bit: int = 0) -> None:
        path, at = self.segment_file(position)
        flip(path, at, bit)

    def lost_to(self, low: int, high: int) -> set[int]:
        """Messages whose records touch [low, high)."""
        return {
            s for s, (position, size) in self.records.items() if position < high and position + size > low
        }


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ (1 << bit)]))


def served(store: MessageStore) -> tuple[set[int], set[tuple[str, int, int]]]:
    """Serial numbers that reads bring, and (topic, queue, offset) that they name as damaged or missing."""
    found: set[int] = set()
    named: set[tuple[str, int, int]] = set()
    for queue in store.queues:
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.get(queue.topic, queue.queue_id, offset, max_count=5)
            assert result.next_offset > offset
            for message in result.messages():
                assert_genuine(message)
                assert (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
                found.add(serial_of(message))
            offsets = {m.queue_offset for m in result.messages()} | {*result.damaged, *result.missing}
            assert offsets == set(range(offset, result.next_offset)), "an offset was passed over in silence"
            named |= {(queue.topic, queue.queue_id, o) for o in (*result.damaged, *result.missing)}
            offset = result.next_offset
    return found, named
