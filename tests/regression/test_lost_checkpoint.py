"""A crash, a damaged record and a lost checkpoint together: what the manifest knows is kept all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.message import Message
from penstock.runtime import Runtime
from penstock.store import MessageStore, StoreOptions
from penstock.testing import ManualClock

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=1000,
    index_slots=50,
    index_entries=600,
    max_message_size_bytes=8192,
)


@pytest.mark.fault("F7")
@pytest.mark.invariant("I1", "I12")
@pytest.mark.parametrize("checkpoint", ["gone", "flipped", "sound"])
def test_messages_behind_the_damage_stay(tmp_path: Path, checkpoint: str) -> None:
    clock = ManualClock()
    store = MessageStore.open(tmp_path, OPTIONS, runtime=Runtime(clock=clock), background=False)
    results = [store.append(Message.of("t", b"%4d" % i + b"x" * 100)) for i in range(300)]
    clock.advance(20_000)
    store.keeper.tick()
    store.abandon()
    path = tmp_path / "checkpoint"
    if checkpoint == "gone":
        path.unlink()
    elif checkpoint == "flipped":
        data = bytearray(path.read_bytes())
        data[5] ^= 4
        path.write_bytes(data)
    segment = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(segment.read_bytes())
    data[results[10].physical_offset + 100] ^= 1
    segment.write_bytes(data)
    with MessageStore.open(tmp_path, OPTIONS, runtime=Runtime(clock=clock), background=False) as again:
        read = {m.queue_offset for offset in range(0, 300, 30) for m in again.read("t", 0, offset, 30)}
        assert read == set(range(300)) - {10}
        assert next(f.position for f in again.findings.damage()) == results[10].physical_offset
        assert again.max_offset("t", 0) == 300
