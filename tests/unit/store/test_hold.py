"""A hold: what is appended behind it is seen by nobody, and then by everybody at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._hot.queues import QueueState
from penstock._hot.records import RecordBuilder
from penstock.errors import DiskFullError, StoreClosedError
from penstock.message import Message
from penstock.store import Durability, FlushMode, MessageStore, StoreOptions
from penstock.store.reading import GetStatus, TimeBoundary

OPTIONS = StoreOptions(
    segment_size_bytes=64 * 1024,
    queue_file_entries=200,
    index_slots=100,
    index_entries=1000,
    max_message_size_bytes=8 * 1024,
)
BOTH_MODES = pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])


def opened(path: Path, mode: FlushMode = FlushMode.ASYNC) -> MessageStore:
    return MessageStore.open(path, replace(OPTIONS, flush_mode=mode), background=False)


def message(number: int, topic: str = "T", size: int = 0) -> Message:
    return Message.of(topic, b"%d" % number + b"x" * size, tag="t", keys=f"k{number}")


def bodies(store: MessageStore, topic: str = "T", queue: int = 0) -> list[bytes]:
    return [found.body for found in store.read(topic, queue, 0, 10_000)]


@BOTH_MODES
def test_what_is_behind_a_hold_is_seen_by_no_reader(tmp_path: Path, mode: FlushMode) -> None:
    with opened(tmp_path, mode) as store:
        store.append(message(0))
        assert store.hold() == store.log.max_offset
        held = [store.append(message(number), number % 2) for number in range(1, 9)]
        store.flush()
        assert (bodies(store), bodies(store, queue=1)) == ([b"0"], [])
        assert (store.max_offset("T", 0), store.max_offset("T", 1)) == (1, 0)
        assert store.get("T", 0, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert all(store.message_at(result.physical_offset) is None for result in held)
        assert store.reader.query("T", "k3") == []
        assert store.reader.offset_by_time("T", 0, 1 << 60, TimeBoundary.LOWER) == 1
        store.release()
        assert bodies(store) == [b"0", b"2", b"4", b"6", b"8"]
        assert bodies(store, queue=1) == [b"1", b"3", b"5", b"7"]
        assert [found.body for found in store.reader.query("T", "k3")] == [b"3"]
        assert store.message_at(held[0].physical_offset) is not None
        store.append(message(9))
        assert bodies(store)[-1] == b"9"


@BOTH_MODES
def test_listeners_hear_of_a_hold_once_when_it_ends(tmp_path: Path, mode: FlushMode) -> None:
    heard: list[set[tuple[bytes, int]]] = []

    def listen(queues: Sequence[QueueState]) -> None:
        heard.append({(queue.topic, queue.queue_id) for queue in queues})

    with opened(tmp_path, mode) as store:
        store.on_arrival(listen)
        store.hold()
        for number in range(6):
            store.append(message(number, topic="TU"[number % 2]), number % 3)
        assert heard == []
        store.release()
        assert heard == [{(b"T", 0), (b"T", 2), (b"T", 1), (b"U", 1), (b"U", 0), (b"U", 2)}]


def test_every_way_to_append_is_held(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(message(0))
        store.hold()
        state = store.request(message(1)).queue

        def build(builder: RecordBuilder) -> int:
            return builder.add_all([store.request(message(1))], 0)

        store.append_run(build)
        store.append_group([store.request(message(2)), store.request(message(3))])
        item = b"".join(n.to_bytes(4, "big") for n in (23, 0, 0, 0, 1)) + b"4\0\0"
        store.append_batch("T", 0, item * 2)
        assert state.next_offset == 6
        assert bodies(store) == [b"0"]
        store.release()
        assert bodies(store) == [b"0", b"1", b"2", b"3", b"4", b"4"]


def test_what_lies_before_a_hold_is_not_held(tmp_path: Path) -> None:
    """Under synchronous flush it may still wait for its flush when the hold begins."""
    with opened(tmp_path, FlushMode.SYNC) as store:
        store.append(message(0), durability=Durability.MEMORY)
        assert bodies(store) == []
        store.hold()
        store.append(message(1), durability=Durability.MEMORY)
        store.flush()
        assert bodies(store) == [b"0"]
        store.append(message(2), durability=Durability.MEMORY)
        # Released before its flush: then it is the flush that shows it, as always.
        store.release()
        assert bodies(store) == [b"0", b"1"]
        store.flush()
        assert bodies(store) == [b"0", b"1", b"2"]


@BOTH_MODES
def test_a_hold_over_many_segments(tmp_path: Path, mode: FlushMode) -> None:
    with opened(tmp_path, mode) as store:
        store.append(message(0))
        store.hold()
        for number in range(1, 300):
            store.append(message(number, size=1000), durability=Durability.MEMORY)
        store.flush()
        assert len(store.log.segments) > 4
        store.keeper.tick()
        assert store.max_offset("T", 0) == 1
        store.release()
        assert store.max_offset("T", 0) == 300
        assert [int(body.rstrip(b"x")) for body in bodies(store)] == list(range(300))


@BOTH_MODES
@pytest.mark.parametrize("how", ["close", "crash"])
def test_a_hold_does_not_survive_its_store(tmp_path: Path, mode: FlushMode, how: str) -> None:
    store = opened(tmp_path, mode)
    store.append(message(0))
    store.hold()
    for number in range(1, 100):
        store.append(message(number, size=1000), number % 2)
    assert bodies(store) == [b"0"]
    if how == "close":
        store.close()
    else:
        store.abandon()
    with opened(tmp_path, mode) as again:
        assert again.findings.all() == []
        found = [*bodies(again), *bodies(again, queue=1)]
        assert sorted(int(body.rstrip(b"x")) for body in found) == list(range(100))
        again.append(message(100))
        assert bodies(again)[-1] == b"100"


@BOTH_MODES
def test_a_topic_that_is_deleted_under_a_hold_stays_deleted(tmp_path: Path, mode: FlushMode) -> None:
    with opened(tmp_path, mode) as store:
        store.append(message(0, "U"))
        store.hold()
        for number in range(1, 5):
            store.append(message(number, "TU"[number % 2]))
        store.flush()
        assert store.delete_topics(["U"]) == ["U"]
        store.append(message(5, "U"))
        store.flush()
        store.release()
        assert bodies(store) == [b"2", b"4"]
        assert bodies(store, "U") == [b"5"]
    with opened(tmp_path, mode) as store:
        assert bodies(store) == [b"2", b"4"]
        assert bodies(store, "U") == [b"5"]


def test_one_hold_at_a_time_and_none_where_nothing_can_be_written(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.hold()
        with pytest.raises(AssertionError, match="one hold"):
            store.hold()
        store.release()
        store.release()
        store.gate.refuse_writes("the disk is full")
        with pytest.raises(DiskFullError):
            store.hold()
        store.gate.refuse_writes(None)
        store.hold()
        store.release()
    with pytest.raises(StoreClosedError):
        store.hold()
