"""Deleting a topic while its files are synced: the store went out of service, and the manifest was written twice.

The keeper syncs queue files and saves the manifest without the append lock. A topic that was deleted at that moment
took its files away (`StoreFailedError`: no more writes until a restart), or both wrote the same temporary file. Found
by a storm of mutated requests; anybody who may delete topics could do it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from penstock.message import Message
from penstock.store import MessageStore
from penstock.store.inspection import verify
from tests.support.store_checks import small_options

SECONDS = 1.5


@pytest.mark.abuse("A14")
def test_a_topic_is_deleted_while_the_keeper_syncs(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, small_options(), background=False)
    failures: list[BaseException] = []
    stopping = threading.Event()

    def keep() -> None:
        try:
            while not stopping.is_set():
                store.keeper.sync_derived(0)
        except BaseException as error:
            failures.append(error)

    keeper = threading.Thread(target=keep)
    keeper.start()
    deadline, rounds = time.monotonic() + SECONDS, 0
    try:
        while (time.monotonic() < deadline or rounds <= 10) and not failures:
            topic = f"T{rounds % 5}"
            for queue_id in range(4):
                store.append(Message(topic, b"x"), queue_id)
            assert store.delete_topics([topic]) == [topic]
            rounds += 1
    finally:
        stopping.set()
        keeper.join()
    assert failures == []
    store.append(Message("After", b"still in service"))
    store.close()
    assert verify(tmp_path).sound
    with MessageStore.open(tmp_path, small_options(), background=False) as again:
        assert [queue.topic for queue in again.queues] == ["After"]
        assert again.findings.all() == []
