"""What the tests of replicas share: two logs that part at some point, copying, and the comparison of a copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.store import MessageStore, StoreOptions
from tests.support.store_checks import (
    Ledger,
    append,
    assert_genuine,
    audit,
    open_store,
    read_queue,
    serial_of,
)


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    """The log's bytes, over segments."""
    parts = []
    while start < end:
        view = store.slice_for_transfer(start, end - start)
        assert view is not None, (start, end)
        parts.append(bytes(view))
        view.release()
        start += len(parts[-1])
    return b"".join(parts)


def copy(
    source: MessageStore, target: MessageStore, end: int | None = None, cut: int = 1 << 20, begin: int = 0
) -> None:
    """Bring a replica up to a position of a master's log, at most `cut` bytes at a time."""
    end = source.log.max_offset if end is None else end
    position = target.log.max_offset if target.log.active is not None else begin
    while position < end:
        view = source.slice_for_transfer(position, min(cut, end - position))
        assert view is not None, position
        data = bytes(view)
        view.release()
        position = target.append_replica(data, position)


def records(store: MessageStore) -> list[tuple[int, int, int]]:
    """(position, end, serial) of everything a store shows, in the log's order."""
    found = [m for queue in store.queues for m in read_queue(store, queue.topic, queue.queue_id)]
    return sorted((m.physical_offset, m.physical_offset + m.size, serial_of(m)) for m in found)


def shown(store: MessageStore) -> list[int]:
    return [serial for _, _, serial in records(store)]


@dataclass
class Branches:
    """Two masters' logs: the same up to `fork`, different from there on."""

    old: MessageStore
    new: MessageStore
    fork: int

    def close(self) -> None:
        self.old.close()
        self.new.close()


def make_branches(
    folder: Path,
    options: StoreOptions,
    common: Iterable[int],
    old: Iterable[int],
    new: Iterable[int],
    size: int | None = None,
) -> Branches:
    """What happens when a master goes on writing alone, and another one is elected."""
    first = open_store(folder / "old", options)
    for serial in common:
        append(first, serial, size=size)
    fork = first.log.max_offset
    second = open_store(folder / "new", options, replica=True)
    copy(first, second)
    second.flush()
    second.replica_mode(False)
    for serial in old:
        append(first, serial, size=size)
    for serial in new:
        append(second, serial, size=size)
    return Branches(first, second, fork)


def check_copy(copied: MessageStore, source: MessageStore, at_least: int = 0) -> list[int]:
    """The copy is a prefix of the source, byte for byte; it shows all of that up to its flushed and bounded end, and
    nothing else, by offset and by key. The serials that it shows."""
    end = copied.log.max_offset
    assert at_least <= end <= source.log.max_offset, (at_least, end, source.log.max_offset)
    low = copied.log.min_offset
    assert log_bytes(copied, low, end) == log_bytes(source, low, end)
    visible = copied.dispatch.offset
    expected = [record for record in records(source) if low <= record[0] and record[1] <= visible]
    assert records(copied) == expected
    for queue in copied.queues:
        for message in read_queue(copied, queue.topic, queue.queue_id):
            assert_genuine(message)
            found = copied.reader.query(queue.topic, f"k{serial_of(message)}")
            assert message.queue_offset in [m.queue_offset for m in found], message
    if copied.replica_side.whole_end() == end:
        assert audit(copied).all() == []
    assert copied.findings.damage() == []
    return [serial for _, _, serial in expected]


def is_prefix(copied: MessageStore, source: MessageStore) -> bool:
    end, low = copied.log.max_offset, copied.log.min_offset
    return end <= source.log.max_offset and log_bytes(copied, low, end) == log_bytes(source, low, end)


def ledger_of(store: MessageStore) -> Ledger:
    ledger = Ledger()
    for queue in store.queues:
        for message in read_queue(store, queue.topic, queue.queue_id):
            ledger.add(
                queue.topic,
                queue.queue_id,
                message.queue_offset,
                serial_of(message),
                message.physical_offset,
            )
    return ledger
