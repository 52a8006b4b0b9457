"""The disk that tests see: never too full to write, however full the machine's disk is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.runtime.disk import SystemDisk
from penstock.store import MessageStore, StoreOptions

BLOCK = 4096


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which 96 of 100 blocks are used."""
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        found = list(real(path))
        found[0:5] = [BLOCK, BLOCK, 1_000_000, 40_000, 40_000]
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.mark.usefixtures("full_disk")
def test_store_of_a_test_takes_messages_on_a_full_disk(tmp_path: Path) -> None:
    assert SystemDisk().usage(tmp_path).used_percent == 50
    with MessageStore.open(tmp_path, StoreOptions(segment_size_bytes=8 << 20)) as store:
        store.append(Message("T", b"it"))
        assert [message.body for message in store.read("T", 0, 0)] == [b"it"]
