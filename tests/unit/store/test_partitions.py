"""What a partition is: messages that stay after they were read, one sequential file of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.store import MessageStore, StoreOptions
from penstock.store.consume_queue import Entry

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=100,
    index_slots=50,
    index_entries=60,
    max_message_size_bytes=8192,
)


@pytest.mark.feature("retained-messages", "fifth-seed")
@pytest.mark.seed("S4-4")
def test_reading_a_message_does_not_delete_it(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        store.append(Message.of("orders", b"once"))
        assert [m.body for m in store.read("orders", 0, 0)] == [b"once"]
        assert [m.body for m in store.read("orders", 0, 0)] == [b"once"]


@pytest.mark.seed("S4-6")
def test_the_queue_is_persistent(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        store.append(Message.of("orders", b"kept"))
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        assert [m.body for m in store.read("orders", 0, 0)] == [b"kept"]


@pytest.mark.seed("S4-43", "S4-44")
def test_each_partition_has_a_file_of_its_own_written_in_order(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        for i in range(30):
            store.append(Message.of("orders", b"%d" % i), i % 3)
    for partition in range(3):
        (file,) = (tmp_path / "consumequeue" / "orders" / str(partition)).iterdir()
        data = file.read_bytes()
        entries = [Entry.decode(data[at : at + 20]) for at in range(0, 220, 20)]
        assert [entry.is_valid for entry in entries] == [True] * 10 + [False]
        assert all(a.position < b.position for a, b in itertools.pairwise(entries[:10]))
