"""Reads with a filter over the properties: what is chosen, where a read ends, what cannot be read."""

from __future__ import annotations

from pathlib import Path

from penstock.message import Message, decode_properties
from penstock.store import GetStatus, MessageStore, StoreOptions

OPTIONS = StoreOptions(
    segment_size_bytes=1 << 20,
    queue_file_entries=100,
    index_slots=100,
    index_entries=1_000,
    max_message_size_bytes=1 << 19,
)


class Filter:
    """Wants some numbers, and gives up after a count of records."""

    def __init__(self, wanted: set[int], patience: int = 10_000) -> None:
        self._wanted = wanted
        self._patience = patience
        self.seen: list[int] = []

    def accepts(self, properties: bytes) -> bool:
        self.seen.append(int(decode_properties(properties)["n"]))
        return self.seen[-1] in self._wanted

    def is_spent(self) -> bool:
        return len(self.seen) >= self._patience


def filled(path: Path, count: int, body: bytes = b"x") -> MessageStore:
    store = MessageStore.open(path, OPTIONS, background=False)
    for i in range(count):
        store.append(Message("T", body, properties={"n": str(i)}), 0)
    return store


def numbers(
    store: MessageStore, wanted: Filter, offset: int = 0, **limits: int
) -> tuple[list[int], int, GetStatus]:
    result = store.get("T", 0, offset, **limits, wanted=wanted)
    return [int(item.properties["n"]) for item in result.messages()], result.next_offset, result.status


def test_a_read_takes_what_its_filter_wants(tmp_path: Path) -> None:
    with filled(tmp_path, 250) as store:
        assert numbers(store, Filter({3, 120, 249})) == ([3, 120, 249], 250, GetStatus.FOUND)
        assert numbers(store, Filter({3, 120, 249}), 4) == ([120, 249], 250, GetStatus.FOUND)
        assert numbers(store, Filter(set())) == ([], 250, GetStatus.NO_MATCHED_MESSAGE)
        assert numbers(store, Filter(set()), 250)[2] is GetStatus.OFFSET_OVERFLOW_ONE


def test_a_read_ends_at_its_limits_and_goes_on_from_there(tmp_path: Path) -> None:
    with filled(tmp_path, 900) as store:
        wanted = Filter(set(range(0, 900, 10)))
        assert numbers(store, wanted, max_count=3) == ([0, 10, 20], 21, GetStatus.FOUND)
        assert wanted.seen == [*range(21)], "nothing is looked at twice or in vain"
        size = len(store.get("T", 0, 0, 1).data)
        assert numbers(store, Filter({5, 6, 7}), max_bytes=2 * size) == ([5, 6], 7, GetStatus.FOUND)
        assert numbers(store, Filter({899})) == ([], 800, GetStatus.NO_MATCHED_MESSAGE)
        assert numbers(store, Filter({4, 50}, patience=10)) == ([4], 10, GetStatus.FOUND)
        assert numbers(store, Filter({50}, patience=0)) == ([], 1, GetStatus.NO_MATCHED_MESSAGE)


def test_large_records_are_few_for_one_read(tmp_path: Path) -> None:
    """A filter must not make one read touch the whole log."""
    with filled(tmp_path, 45, b"x" * 400_000) as store:
        wanted = Filter(set())
        assert numbers(store, wanted)[1] == len(wanted.seen) == 20


def test_a_read_ahead_covers_what_a_filtered_read_looks_at(tmp_path: Path) -> None:
    with filled(tmp_path, 30) as store:
        reads: list[tuple[int, int]] = []
        store.reader._read_ahead = lambda start, end: reads.append((start, end))  # type: ignore[method-assign]
        store.reader.warm("T", 0, 5, 1, 100, None, Filter({29}))
        assert reads == [(store.reader.entries("T", 0, 5, 1)[0].position, store.log.max_offset)]
