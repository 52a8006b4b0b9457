"""A group or batch so large that its buffer is given back must still become visible, under either flush."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PropertiesTooLargeError
from penstock.message import Message
from penstock.store import FlushMode, MessageStore, StoreOptions

MIB = 1 << 20


@pytest.mark.parametrize("mode", list(FlushMode))
def test_large_groups_are_visible_and_the_store_closes(tmp_path: Path, mode: FlushMode) -> None:
    options = StoreOptions(
        segment_size_bytes=16 * MIB, queue_file_entries=100, index_slots=50, index_entries=60, flush_mode=mode
    )
    with MessageStore.open(tmp_path, options, background=False) as store:
        for round_number in range(4):  # rolls to the next segment on the way
            body = bytes([round_number]) * (3 * MIB)
            store.append_group([store.request(Message.of("large", body)) for _ in range(2)])
            assert store.max_offset("large", 0) == 2 * (round_number + 1)
            store.append(Message.of("small", b"x"))
        store.append_group([])
    with MessageStore.open(tmp_path, options, background=False) as store:
        assert [store.read("large", 0, i, 1)[0].body[0] for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.abuse("A6")
def test_properties_that_a_seal_would_make_too_large_are_refused_as_such(tmp_path: Path) -> None:
    options = StoreOptions(
        segment_size_bytes=MIB, max_message_size_bytes=8192, index_slots=50, index_entries=60
    )
    with MessageStore.open(tmp_path, options, background=False) as store:
        store.append(Message("t", b"", {"a": "x" * 32764}))
        with pytest.raises(PropertiesTooLargeError):
            store.append(Message("t", b"", {"a": "x" * 32760 + "\0"}))
