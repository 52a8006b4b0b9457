"""A store opened with sizes it was not made with is refused, and left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import StoreFormatError
from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=100,
    index_slots=50,
    index_entries=60,
    max_message_size_bytes=8192,
)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [("segment_size_bytes", 128 * 1024), ("segment_size_bytes", 32768), ("queue_file_entries", 7)],
)
def test_other_sizes_are_refused(tmp_path: Path, name: str, value: int, manifest: bool) -> None:
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        store.append(Message.of("orders", b"body"))
    if not manifest:
        (tmp_path / "penstock.manifest.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreFormatError, match=f"open it with {name}={getattr(OPTIONS, name)}"):
        MessageStore.open(tmp_path, replace(OPTIONS, **{name: value}), background=False)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with MessageStore.open(tmp_path, OPTIONS, background=False) as store:
        assert [m.body for m in store.read("orders", 0, 0)] == [b"body"]
