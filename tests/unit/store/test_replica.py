"""A store as a replica: bytes in, cut anywhere; bytes out; who may see what; and becoming a master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.errors import LogPositionError, StoreFormatError, StoreRoleError
from penstock.runtime import SeededEntropy
from penstock.store import FlushMode, MessageStore
from tests.support.store_checks import (
    Ledger,
    append,
    append_group,
    check_store,
    message_of,
    open_store,
    read_queue,
    serial_of,
    small_options,
)

ASYNC = small_options(flush_mode=FlushMode.ASYNC)


@pytest.fixture
def stores() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def copy(source: MessageStore, target: MessageStore, end: int | None = None, cut: int = 1 << 20) -> None:
    """Bring the replica up to a position of the master's log, at most `cut` bytes at a time."""
    end = source.log.max_offset if end is None else end
    while (position := target.log.max_offset) < end:
        view = source.slice_for_transfer(position, min(cut, end - position))
        assert view is not None
        assert target.append_replica(view, position) == position + len(view)
        view.release()


def shown(store: MessageStore) -> list[int]:
    messages = [m for queue in store.queues for m in read_queue(store, queue.topic, queue.queue_id)]
    return [serial_of(m) for m in sorted(messages, key=lambda m: m.physical_offset)]


def record_ends(store: MessageStore) -> list[int]:
    messages = [m for queue in store.queues for m in read_queue(store, queue.topic, queue.queue_id)]
    return sorted(m.physical_offset + m.size for m in messages)


@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I7")
@pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])
@pytest.mark.parametrize("seed", range(6))
def test_a_log_copied_in_any_pieces_is_the_same_log(
    tmp_path: Path, stores: ExitStack, seed: int, mode: FlushMode
) -> None:
    options = small_options(flush_mode=mode)
    entropy, ledger = SeededEntropy(seed), Ledger()
    master = stores.enter_context(open_store(tmp_path / "master", options))
    replica = stores.enter_context(open_store(tmp_path / "replica", options, replica=True))
    for serial in range(1, 120):
        append(master, serial, ledger)
        while entropy.below(3):
            position = replica.log.max_offset
            view = master.slice_for_transfer(position, 1 + entropy.below(900))
            if view is not None:
                replica.append_replica(bytes(view), position)
            if entropy.below(2):
                replica.flush()
    copy(master, replica)
    replica.flush()
    check_store(replica, ledger)
    assert replica.log.max_offset == master.log.max_offset > 2 * options.segment_size_bytes
    for segment in master.log.segments:
        assert segment is not None
        twin = replica.log.segment_of(segment.base)
        assert twin is not None
        assert bytes(twin.view.slice(0, twin.size)) == bytes(segment.view.slice(0, segment.size))


def test_a_replica_refuses_messages_and_a_master_refuses_bytes(tmp_path: Path, stores: ExitStack) -> None:
    store = stores.enter_context(open_store(tmp_path, ASYNC, replica=True))
    request = store.request(message_of(1), 0)
    for refused in (
        lambda: append(store, 1),
        lambda: store.append_group([request]),
        lambda: store.append_run(lambda builder: 0),
        lambda: store.append_batch("orders", 0, b"x"),
        store.hold,
    ):
        with pytest.raises(StoreRoleError, match="send to the master"):
            refused()
    store.keeper.clean()  # looks at the disk, which is content
    with pytest.raises(StoreRoleError):
        append(store, 1)
    assert not store.is_writable
    store.replica_mode(False)
    append(store, 1)
    with pytest.raises(StoreRoleError, match="not a replica"):
        store.append_replica(b"x", store.log.max_offset)
    store.replica_mode(True)
    with pytest.raises(StoreRoleError):
        append(store, 2)


def test_an_empty_replica_begins_at_a_segment(tmp_path: Path, stores: ExitStack) -> None:
    master = stores.enter_context(open_store(tmp_path / "master", ASYNC))
    for serial in range(1, 120):
        append(master, serial)
    size = master.log.segment_size
    last = master.log.max_offset // size * size
    replica = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    with pytest.raises(LogPositionError, match="inside a segment"):
        replica.append_replica(b"x" * 10, last + 1)
    view = master.slice_for_transfer(last, size)
    assert view is not None
    replica.append_replica(view[:100], last)
    with pytest.raises(LogPositionError, match="do not continue the log"):
        replica.append_replica(view[100:], last + 101)
    with pytest.raises(LogPositionError, match="do not continue the log"):
        replica.append_replica(bytes(size), last + 100)
    replica.append_replica(view[100:], last + 100)
    view.release()
    assert (replica.log.min_offset, replica.log.max_offset) == (last, master.log.max_offset)
    assert shown(replica) == shown(master)[-len(shown(replica)) :]
    assert len(shown(replica)) > 3
    replica.close()
    again = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    assert shown(again) == shown(master)[-len(shown(again)) :]
    again.replica_mode(False)
    assert append(again, 200) == append(master, 200)


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("mode", [FlushMode.ASYNC, FlushMode.SYNC])
def test_a_bound_hides_every_record_that_it_does_not_cover(
    tmp_path: Path, stores: ExitStack, mode: FlushMode
) -> None:
    """At every byte of the log: nothing at or behind the bound is seen by offset, position or key."""
    store = stores.enter_context(open_store(tmp_path / "probe", small_options(flush_mode=mode)))
    for serial in range(1, 40):
        append(store, serial, size=serial)
    ends = record_ends(store)
    bounded = stores.enter_context(
        open_store(tmp_path / "bounded", small_options(flush_mode=mode), bounded=True)
    )
    for serial in range(1, 40):
        append(bounded, serial, size=serial)
    assert shown(bounded) == []
    for position in range(ends[-1] + 1):
        assert bounded.bound(position) == position
        count = sum(end <= position for end in ends)
        assert bounded.dispatch.offset == (ends[count - 1] if count else 0) or position % 8192 == 0
        if position in ends or position + 1 in ends:
            assert shown(bounded) == list(range(1, count + 1))
            assert bool(bounded.reader.query(*key_of(count + 1))) is False
    assert bounded.findings.all() == []
    assert bounded.bound(5) == ends[-1]
    append(bounded, 41)
    assert len(shown(bounded)) == 39
    assert bounded.bound(None) is None
    assert len(shown(bounded)) == 40


def key_of(serial: int) -> tuple[str, str]:
    return message_of(serial).topic, f"k{serial}"


@pytest.mark.invariant("I4")
@pytest.mark.invariant("I5")
def test_a_new_master_goes_on_after_what_nobody_has_seen(tmp_path: Path, stores: ExitStack) -> None:
    master = stores.enter_context(open_store(tmp_path / "master", ASYNC))
    replica = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True, bounded=True))
    ledger = Ledger()
    append_group(master, range(1, 50), ledger)
    copy(master, replica, cut=77)
    assert shown(replica) == []
    replica.bound(record_ends(master)[9])
    assert shown(replica) == list(range(1, 11))
    replica.replica_mode(False)
    append_group(replica, range(50, 60), ledger)  # raises if an offset is given out twice
    replica.bound(replica.log.max_offset)
    check_store(replica, ledger)


def test_a_log_that_ends_inside_a_record_is_no_masters(tmp_path: Path, stores: ExitStack) -> None:
    master = stores.enter_context(open_store(tmp_path / "master", ASYNC))
    for serial in range(1, 10):
        append(master, serial)
    replica = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    copy(master, replica, end=master.log.max_offset - 1)
    with pytest.raises(StoreRoleError, match="cut_tail"):
        replica.replica_mode(False)
    assert replica.is_replica
    assert shown(replica) == list(range(1, 9))
    copy(master, replica)
    replica.replica_mode(False)
    assert append(replica, 10) == append(master, 10)


def test_transfer_reads_to_the_end_of_a_segment_and_of_the_log(tmp_path: Path, stores: ExitStack) -> None:
    store = stores.enter_context(open_store(tmp_path, ASYNC))
    assert store.slice_for_transfer(0, 100) is None
    for serial in range(1, 100):
        append(store, serial)
    size, end = store.log.segment_size, store.log.max_offset
    assert end > size
    for position, expected in ((0, 100), (size - 30, 30), (end - 7, 7), (size, 100)):
        view = store.slice_for_transfer(position, 100)
        assert view is not None
        assert len(view) == expected
        view.release()
    for position in (-1, end, end + 1, 1 << 40):
        assert store.slice_for_transfer(position, 100) is None


def test_a_master_with_segments_of_another_size_is_noticed(tmp_path: Path, stores: ExitStack) -> None:
    master = stores.enter_context(open_store(tmp_path / "master", small_options(segment_size_bytes=4096)))
    for serial in range(1, 60):
        append(master, serial)
    replica = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    with pytest.raises(StoreFormatError, match="same segment_size_bytes"):
        copy(master, replica)
    options = small_options(segment_size_bytes=16384, flush_mode=FlushMode.ASYNC)
    wide = stores.enter_context(open_store(tmp_path / "wide", options, replica=True))
    with pytest.raises(StoreFormatError, match="same segment_size_bytes"):
        copy(master, wide, cut=100)


def test_a_topic_deleted_at_the_master_does_not_come_back_with_its_last_bytes(
    tmp_path: Path, stores: ExitStack
) -> None:
    """The replica hears of it before the topic's last messages arrive."""
    master = stores.enter_context(open_store(tmp_path / "master", ASYNC))
    replica = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    append_group(master, range(1, 40))
    copy(master, replica, end=record_ends(master)[20])
    assert master.delete_topics(["orders"]) == ["orders"]
    replica.follow_deletions(master.deleted_topics)
    copy(master, replica)
    assert {queue.topic for queue in replica.queues} == {"payments", "%RETRY%billing"}
    assert append(master, 300) == append(master, 306) - 1 == 0
    copy(master, replica)
    assert shown(replica) == shown(master)
    replica.close()
    again = stores.enter_context(open_store(tmp_path / "replica", ASYNC, replica=True))
    assert shown(again) == shown(master)
