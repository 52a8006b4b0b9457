"""A deleted topic stays deleted: after a clean stop, after a crash, and when a topic of its name comes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.message import Message
from penstock.store import MessageStore, StoreOptions

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=100,
    index_slots=50,
    index_entries=60,
    max_message_size_bytes=8192,
)


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in store.read("orders", 0, 0)]


@pytest.mark.parametrize("ending", ["close", "abandon"])
@pytest.mark.parametrize("lost_queues", [False, True])
@pytest.mark.invariant("I1", "I2")
def test_messages_of_the_old_topic_never_come_back(tmp_path: Path, ending: str, lost_queues: bool) -> None:
    store = MessageStore.open(tmp_path, OPTIONS, background=False)
    for i in range(5):
        store.append(Message.of("orders", b"old%d" % i))
    store.append(Message.of("kept", b"stays"))
    assert store.delete_topics(["orders", "unknown"]) == ["orders"]
    assert bodies(store) == []
    for i in range(3):
        assert store.append(Message.of("orders", b"new%d" % i)).queue_offset == i
    for round_number in range(3):
        getattr(store, ending)()
        if lost_queues and round_number == 1:
            for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        store = MessageStore.open(tmp_path, OPTIONS, background=False)
        assert bodies(store) == [b"new0", b"new1", b"new2"]
        assert store.max_offset("orders", 0) == 3
        assert [m.body for m in store.read("kept", 0, 0)] == [b"stays"]
        assert store.keeper.audit.run().wrong_entries == 0
        assert store.findings.damage() == []
    store.close()


@pytest.mark.parametrize("ending", ["close", "abandon"])
def test_a_topic_that_was_only_deleted_is_gone(tmp_path: Path, ending: str) -> None:
    store = MessageStore.open(tmp_path, OPTIONS, background=False)
    for i in range(5):
        store.append(Message.of("orders", b"old%d" % i), i % 2)
    store.delete_topics(["orders"])
    getattr(store, ending)()
    with MessageStore.open(tmp_path, OPTIONS, background=False) as again:
        assert again.queues.get("orders", 0) is None
        assert again.queues.get("orders", 1) is None
