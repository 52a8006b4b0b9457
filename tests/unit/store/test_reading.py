"""Reads by offset, by position, by key and by time: every status, every limit, and no topic's bytes in another's."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import CorruptRecordError, StoreClosedError
from penstock.message import Message, decode_record
from penstock.message.hashing import java_string_hash
from penstock.store import FlushMode, GetStatus, MessageStore, StoreOptions, TimeBoundary, tag_codes
from penstock.store.key_index import QUERY_MAX
from penstock.store.reading import READ_BYTES_MAX, SCAN_BYTES
from penstock.testing import ManualClock
from tests.support.store_checks import open_store, small_options

LOWER, UPPER = TimeBoundary.LOWER, TimeBoundary.UPPER
HUGE = [2**31, 2**31 - 1, 2**62, 2**63 - 1]


def options(**changes: object) -> StoreOptions:
    return small_options(segment_size_bytes=64 * 1024, flush_mode=FlushMode.ASYNC, **changes)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    with open_store(tmp_path, options(), clock=clock) as opened:
        yield opened


def fill(store: MessageStore, count: int, size: int = 10) -> None:
    for i in range(count):
        store.append(Message.of("t", b"%03d" % i + bytes(size), tag=f"tag{i % 4}", keys=f"k{i}"))


# -- by queue offset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "queue", "offset", "status", "next_offset"),
    [
        ("t", 0, 0, GetStatus.FOUND, 3),
        ("t", 0, 2, GetStatus.FOUND, 3),
        ("t", 0, 3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        ("t", 0, 4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        ("t", 0, -1, GetStatus.OFFSET_TOO_SMALL, 0),
        ("t", 1, 0, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("other", 0, 0, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("../t", 0, 0, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        ("empty", 0, 0, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        ("empty", 0, 7, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
    ],
)
def test_status(
    store: MessageStore, topic: str, queue: int, offset: int, status: GetStatus, next_offset: int
) -> None:
    fill(store, 3)
    store.request(Message.of("empty", b"never appended"))
    result = store.get(topic, queue, offset)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert result.count == len(result.messages()) == (3 - offset if status is GetStatus.FOUND else 0)
    assert (result.min_offset, result.max_offset) == ((0, 3) if (topic, queue) == ("t", 0) else (0, 0))


def test_status_when_no_entry_matches_or_can_be_reached(store: MessageStore) -> None:
    fill(store, 3)
    unmatched = store.get("t", 0, 1, tags=["absent"])
    assert (unmatched.status, unmatched.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)
    queue = store.queues.get("t", 0)
    assert queue is not None
    queue.drain()
    queue.close()  # its file is gone from under it
    unreachable = store.get("t", 0, 1)
    assert (unreachable.status, unreachable.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 3)


def test_offsets_without_a_record_are_named_missing(store: MessageStore) -> None:
    fill(store, 2)
    queue = store.queues.get("t", 0)
    assert queue is not None
    queue.fill(2)
    queue.state.next_offset += 2
    fill(store, 1)
    result = store.get("t", 0, 0)
    assert (result.status, result.missing, result.next_offset) == (GetStatus.FOUND, (2, 3), 5)
    assert [m.queue_offset for m in result.messages()] == [0, 1, 4]
    alone = store.get("t", 0, 2, max_count=2)
    assert (alone.status, alone.missing, alone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, (2, 3), 4)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 2), (7, 7), (20, 20), (21, 20), (0, 1), (-5, 1)])
def test_limit_on_the_count(store: MessageStore, asked: int, given: int) -> None:
    fill(store, 20)
    result = store.get("t", 0, 0, max_count=asked)
    assert (result.count, result.next_offset) == (given, given)
    assert [m.queue_offset for m in result.messages()] == list(range(given))


def test_limit_on_bytes_counts_whole_records_and_the_first_is_always_given(store: MessageStore) -> None:
    fill(store, 10, size=200)
    size = store.read("t", 0, 0, 1)[0].size
    assert all(m.size == size for m in store.read("t", 0, 0))
    for max_bytes, count in ((size * 3, 3), (size * 3 - 1, 2), (size, 1), (size - 1, 1), (0, 1), (-9, 1)):
        result = store.get("t", 0, 0, max_bytes=max_bytes)
        assert (result.count, len(result.data), result.next_offset) == (count, count * size, count)


def test_a_record_larger_than_every_limit_is_still_given(store: MessageStore) -> None:
    store.append(Message.of("t", bytes(2048)))
    assert store.get("t", 0, 0, 1, 1).count == 1


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("offset", [-1, -(2**31), -(2**63), -(2**70), *HUGE, 2**70])
def test_impossible_offsets(store: MessageStore, offset: int) -> None:
    fill(store, 3)
    result = store.get("t", 0, offset)
    if offset < 0:
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)
    else:
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 3)
    assert store.reader.slices("t", 0, offset) == []


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("count", [0, -1, -(2**63), *HUGE])
@pytest.mark.parametrize("max_bytes", [0, -1, *HUGE, 2**70])
def test_impossible_counts_and_sizes_are_clamped(store: MessageStore, count: int, max_bytes: int) -> None:
    fill(store, 40)
    result = store.get("t", 0, 0, max_count=count, max_bytes=max_bytes)
    assert result.status is GetStatus.FOUND
    assert result.count == (1 if count <= 0 or max_bytes <= 0 else 40)


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("queue", [-1, -(2**31), *HUGE, 2**70])
def test_impossible_queues(store: MessageStore, queue: int) -> None:
    fill(store, 1)
    assert store.get("t", queue, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert (store.min_offset("t", queue), store.max_offset("t", queue)) == (0, 0)
    assert store.reader.offset_by_time("t", queue, 0) == 0


def test_one_read_looks_at_a_bounded_number_of_entries(store: MessageStore) -> None:
    """A filter that matches nothing must not hold the lock over a whole queue; the reader goes on behind."""
    look = SCAN_BYTES // 20
    requests = [store.request(Message.of("t", b"", tag="a")) for _ in range(look + 5)]
    store.append_group(requests)
    store.append(Message.of("t", b"found", tag="b"))
    first = store.get("t", 0, 0, tags=["b"])
    assert (first.status, first.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, look)
    second = store.get("t", 0, first.next_offset, tags=["b"])
    assert [m.body for m in second.messages()] == [b"found"]
    assert second.next_offset == look + 6


def test_no_answer_is_larger_than_the_largest_frame_allows() -> None:
    assert READ_BYTES_MAX == 128 << 20


def test_reads_run_over_files_memory_and_segments(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options()) as store:
        for i in range(60):
            store.append(Message.of("t", b"%d" % i + bytes(600)))
            if i == 33:
                store.queues.drain()  # entries before are in files of 8, the others in memory
        assert store.log.max_offset > 4 * store.log.segment_size
        for offset in range(60):
            found = store.read("t", 0, offset, 9)
            assert [m.queue_offset for m in found] == list(range(offset, min(60, offset + 9)))
            assert [m.body for m in found] == [b"%d" % m.queue_offset + bytes(600) for m in found]


def test_a_closed_store_does_not_read(store: MessageStore) -> None:
    fill(store, 1)
    store.close()
    with pytest.raises(StoreClosedError):
        store.get("t", 0, 0)
    with pytest.raises(StoreClosedError):
        store.message_at(0)


# -- tags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "residues"), [(["tag1"], {1}), (["tag1", "tag3"], {1, 3}), ([], set()), (["no"], set())]
)
def test_filter_by_tag(store: MessageStore, tags: list[str], residues: set[int]) -> None:
    fill(store, 24)
    wanted = [i for i in range(24) if i % 4 in residues]
    assert [m.queue_offset for m in store.read("t", 0, 0, 32, tags)] == wanted
    by_code = store.get("t", 0, 0, tags=tag_codes(tags))
    assert [m.queue_offset for m in by_code.messages()] == wanted
    assert by_code.next_offset == 24


def test_the_next_offset_of_a_filtered_read_is_behind_the_last_match(store: MessageStore) -> None:
    fill(store, 24)
    result = store.get("t", 0, 0, max_count=2, tags=["tag1"])
    assert [m.queue_offset for m in result.messages()] == [1, 5]
    assert 6 <= result.next_offset <= 9
    after = store.get("t", 0, result.next_offset, max_count=2, tags=["tag1"])
    assert [m.queue_offset for m in after.messages()] == [9, 13]


def test_tags_with_equal_hashes_pass_the_entries(store: MessageStore) -> None:
    """The entry holds only a hash; telling "Aa" from "BB" is the consumer's part, as in RocketMQ."""
    assert java_string_hash("Aa") == java_string_hash("BB") == 2112
    for tag in ("Aa", "BB", "Ab", "Aa"):
        store.append(Message.of("t", tag.encode(), tag=tag))
    assert [m.tag for m in store.read("t", 0, 0, tags=["Aa"])] == ["Aa", "BB", "Aa"]


@pytest.mark.parametrize("tag", ["überweisung", "标签", "😀", "a" * 500, "polygenelubricants"])
def test_unusual_tags(store: MessageStore, tag: str) -> None:
    """Outside ASCII, outside the basic plane, long, and one whose hash is the smallest negative number."""
    for i in range(4):
        store.append(Message.of("t", b"%d" % i, tag=tag if i % 2 else "plain"))
    assert [m.body for m in store.read("t", 0, 0, tags=[tag])] == [b"1", b"3"]


def test_a_message_without_a_tag_matches_no_tag(store: MessageStore) -> None:
    store.append(Message.of("t", b"bare"))
    assert store.read("t", 0, 0, tags=["a"]) == []
    assert [m.body for m in store.read("t", 0, 0)] == [b"bare"]


# -- by time -------------------------------------------------------------------------------------------------


def spread(store: MessageStore, clock: ManualClock, *gaps_ms: int) -> list[int]:
    """One message after each gap; their store times."""
    times = []
    for gap in gaps_ms:
        clock.advance(gap)
        times.append(store.append(Message.of("t", b"x")).store_timestamp)
    return times


@pytest.mark.parametrize("boundary", [LOWER, UPPER])
def test_search_by_time_agrees_with_a_walk(
    store: MessageStore, clock: ManualClock, boundary: TimeBoundary
) -> None:
    """Equal times, gaps, before the first and after the last: each millisecond around every message."""
    chooser = random.Random(7)
    times = spread(store, clock, *(chooser.choice([0, 0, 1, 2, 5, 100]) for _ in range(60)))
    assert len(set(times)) < 60
    for at in sorted({t + d for t in times for d in (-1, 0, 1)}):
        if boundary is LOWER:
            expected = next((i for i, t in enumerate(times) if t >= at), 60)
        else:
            expected = max((i for i, t in enumerate(times) if t <= at), default=0)
        assert store.reader.offset_by_time("t", 0, at, boundary) == expected, at - times[0]


def test_equal_times_give_the_first_or_the_last_of_them(store: MessageStore, clock: ManualClock) -> None:
    times = spread(store, clock, 10, 10, 0, 0, 10)
    at = times[1]
    assert times[1:4] == [at] * 3
    assert store.reader.offset_by_time("t", 0, at, LOWER) == 1
    assert store.reader.offset_by_time("t", 0, at, UPPER) == 3
    assert store.reader.offset_by_time("t", 0, at + 1, LOWER) == 4
    assert store.reader.offset_by_time("t", 0, at + 1, UPPER) == 3


@pytest.mark.abuse("A16")
@pytest.mark.parametrize(
    ("at", "lower", "upper"), [(-(2**63), 0, 0), (-1, 0, 0), (0, 0, 0), (2**63 - 1, 3, 2), (2**70, 3, 2)]
)
def test_times_outside_all_messages(
    store: MessageStore, clock: ManualClock, at: int, lower: int, upper: int
) -> None:
    spread(store, clock, 1, 1, 1)
    assert store.reader.offset_by_time("t", 0, at, LOWER) == lower
    assert store.reader.offset_by_time("t", 0, at, UPPER) == upper


def test_search_by_time_of_unknown_and_empty_queues(store: MessageStore) -> None:
    store.request(Message.of("empty", b""))
    for boundary in TimeBoundary:
        assert store.reader.offset_by_time("absent", 0, 5, boundary) == 0
        assert store.reader.offset_by_time("empty", 0, 5, boundary) == 0


def test_search_by_time_steps_over_offsets_without_a_record(store: MessageStore, clock: ManualClock) -> None:
    first = spread(store, clock, 10, 10)
    queue = store.queues.get("t", 0)
    assert queue is not None
    queue.fill(5)
    queue.state.next_offset += 5
    last = spread(store, clock, 100)[0]
    assert store.reader.offset_by_time("t", 0, first[1], LOWER) == 1
    assert store.reader.offset_by_time("t", 0, last, UPPER) == 7
    assert store.reader.offset_by_time("t", 0, first[1], UPPER) == 1


# -- by key --------------------------------------------------------------------------------------------------


def test_find_by_key_newest_first(store: MessageStore) -> None:
    for i in range(5):
        store.append(Message.of("t", b"%d" % i, keys=f"same own{i}"))
    assert [m.body for m in store.reader.query("t", "same")] == [b"4", b"3", b"2", b"1", b"0"]
    assert [m.body for m in store.reader.query("t", "own3")] == [b"3"]
    assert store.reader.query("t", "own") == []
    assert store.reader.query("t", "same own3") == []


def test_find_by_unique_key(store: MessageStore) -> None:
    store.append(Message("t", b"u", {"UNIQ_KEY": "AC110001", "KEYS": "plain"}))
    for key in ("AC110001", "plain"):
        assert [m.body for m in store.reader.query("t", key)] == [b"u"]


def test_keys_with_equal_hashes_are_told_apart(store: MessageStore) -> None:
    assert java_string_hash("t#Aa") == java_string_hash("t#BB")
    for key in ("Aa", "BB", "Aa", "BB", "BB"):
        store.append(Message.of("t", key.encode(), keys=key))
    assert [m.queue_offset for m in store.reader.query("t", "Aa")] == [2, 0]
    assert [m.queue_offset for m in store.reader.query("t", "BB")] == [4, 3, 1]


@pytest.mark.abuse("A26")
def test_topic_and_key_that_run_together_alike_are_told_apart(store: MessageStore) -> None:
    for topic in ("tAa", "tBB"):
        store.append(Message.of(topic, topic.encode(), keys="key"))
    assert java_string_hash("tAa#key") == java_string_hash("tBB#key")
    assert [m.body for m in store.reader.query("tAa", "key")] == [b"tAa"]
    assert [m.body for m in store.reader.query("tBB", "key")] == [b"tBB"]


def test_a_key_used_twice_in_one_message_finds_it_once(store: MessageStore) -> None:
    store.append(Message("t", b"x", {"UNIQ_KEY": "k", "KEYS": "k k  k "}))
    assert len(store.reader.query("t", "k")) == 1


@pytest.mark.abuse("A16")
@pytest.mark.parametrize(
    ("limit", "given"), [(1, 1), (2, 2), (64, 64), (65, 64), (0, 1), (-3, 1), (2**63, 64)]
)
def test_limit_of_a_query(store: MessageStore, limit: int, given: int) -> None:
    assert QUERY_MAX == 64
    store.append_group([store.request(Message.of("t", b"", keys="k")) for _ in range(70)])
    found = store.reader.query("t", "k", limit)
    assert [m.queue_offset for m in found] == list(range(69, 69 - given, -1))


def test_query_in_a_range_of_times(store: MessageStore, clock: ManualClock) -> None:
    times = []
    for gap in (0, 400, 400, 400, 5000, 1):
        clock.advance(gap)
        times.append(store.append(Message.of("t", b"", keys="k")).store_timestamp)
    for low in range(6):
        for high in range(low, 6):
            found = store.reader.query("t", "k", 32, times[low], times[high])
            assert [m.queue_offset for m in found] == list(range(high, low - 1, -1)), (low, high)
    assert store.reader.query("t", "k", 32, times[3] + 1, times[4] - 1) == []
    assert store.reader.query("t", "k", 32, times[5], times[0]) == []
    assert store.reader.query("t", "k", 32, -(2**62), 2**62) == store.reader.query("t", "k")


def test_a_query_finds_what_was_appended_just_now_and_nothing_unflushed(tmp_path: Path) -> None:
    with open_store(tmp_path, small_options(flush_mode=FlushMode.SYNC)) as store:
        store.append_group([store.request(Message.of("t", b"seen", keys="k"))])
        assert [m.body for m in store.reader.query("t", "k")] == [b"seen"]


def test_without_an_index_nothing_is_found_by_key(tmp_path: Path) -> None:
    with open_store(tmp_path, options(index_enabled=False)) as store:
        store.append(Message.of("t", b"x", keys="k"))
        assert store.reader.query("t", "k") == []
        assert len(store.read("t", 0, 0)) == 1
    assert not (tmp_path / "index").exists()


# -- by log position -----------------------------------------------------------------------------------------


def test_message_at_a_position(store: MessageStore) -> None:
    fill(store, 5)
    for message in store.read("t", 0, 0):
        assert store.message_at(message.physical_offset) == message


@pytest.mark.abuse("A16")
@pytest.mark.parametrize("position", [-1, -(2**63), *HUGE, 64 * 1024 - 1, 2**70])
def test_no_message_at_impossible_positions(store: MessageStore, position: int) -> None:
    fill(store, 2)
    assert store.message_at(position) is None


def test_no_position_inside_a_record_gives_a_message(store: MessageStore) -> None:
    store.append(Message.of("t", bytes(range(256))))
    store.append(Message.of("t", b"second"))
    size = store.read("t", 0, 0, 1)[0].size
    refused = {}
    for position in range(1, size):
        try:
            assert store.message_at(position) is None
        except CorruptRecordError as error:
            refused[position] = error.position
    assert all(said == position for position, said in refused.items())
    assert store.message_at(store.log.max_offset) is None


# -- without a copy ------------------------------------------------------------------------------------------


@pytest.mark.seed("S3-56", "S3-59")
def test_slices_are_views_of_the_map(store: MessageStore, tmp_path: Path) -> None:
    fill(store, 5)
    views = store.reader.slices("t", 0, 1, 3)
    assert [decode_record(view).queue_offset for view in views] == [1, 2, 3]
    assert all(isinstance(view.obj, mmap.mmap) for view in views)
    assert b"".join(views) == bytes(store.get("t", 0, 1, 3).data)
    assert all(view.readonly for view in views)
    changed = decode_record(views[0]).physical_offset + 88  # the first byte of its body
    with open(tmp_path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(changed)
        file.write(b"#")
    assert bytes(views[0])[88:91] == b"#01"  # no copy: what changes in the file is seen
    for view in views:
        view.release()


@pytest.mark.parametrize(
    ("topic", "offset", "count", "given"), [("t", 3, 9, 2), ("no", 0, 1, 0), ("t", 5, 1, 0)]
)
def test_how_many_slices(store: MessageStore, topic: str, offset: int, count: int, given: int) -> None:
    fill(store, 5)
    assert len(store.reader.slices(topic, 0, offset, count)) == given


@pytest.mark.seed("S3-57", "S3-58")
def test_what_was_read_does_not_change_when_more_is_written(store: MessageStore) -> None:
    fill(store, 3)
    before = store.get("t", 0, 0)
    copy = bytes(before.data)
    fill(store, 100, size=1000)
    assert bytes(before.data) == copy
    assert store.log.max_offset > store.log.segment_size
    assert [m.queue_offset for m in store.read("t", 0, 0, 3)] == [0, 1, 2]


# -- between topics ------------------------------------------------------------------------------------------


@pytest.mark.abuse("A26")
@pytest.mark.invariant("I2")
def test_bytes_of_one_topic_never_reach_another(tmp_path: Path) -> None:
    """Similar names, equal lengths, equal hashes; groups that mix them; batches and single messages in turn."""
    topics = ["a", "b", "Aa", "BB", "topic-1", "topic-2", "%RETRY%x", "t" * 126 + "1", "t" * 126 + "2"]
    chooser = random.Random(26)
    with open_store(tmp_path, small_options()) as store:
        sent: dict[tuple[str, int], list[bytes]] = {}
        for _ in range(60):
            group = []
            for _ in range(chooser.randrange(1, 12)):
                topic, queue = chooser.choice(topics), chooser.randrange(2)
                body = f"{topic}/{queue}|".encode() * chooser.randrange(1, 6)
                sent.setdefault((topic, queue), []).append(body)
                group.append(store.request(Message.of(topic, body, tag="same", keys="same"), queue))
            store.append_group(group)
        for (topic, queue), bodies in sent.items():
            found = store.read(topic, queue, 0, 1000, ["same"])
            assert [m.body for m in found] == bodies
            assert {(m.topic, m.queue_id) for m in found} == {(topic, queue)}
            assert {m.topic for m in store.reader.query(topic, "same", 64)} == {topic}
            for view in store.reader.slices(topic, queue, 0, 1000):
                assert decode_record(view).topic == topic
                view.release()


@pytest.mark.abuse("A26")
@pytest.mark.invariant("I2", "I12")
@pytest.mark.parametrize("other", ["tBB", "tAaa", "t"])
def test_an_entry_that_leads_to_another_topic_is_damage(store: MessageStore, other: str) -> None:
    """The record there has the same queue id, the same offset and, for tBB, a name of the same length and hash."""
    for topic in ("tAa", other):
        store.append(Message.of(topic, topic.encode()))
    store.queues.drain()
    mine, theirs = store.queues.get("tAa", 0), store.queues.get(other, 0)
    assert mine is not None
    assert theirs is not None
    mine.replace(0, theirs.entry_bytes(0, 1))
    result = store.get("tAa", 0, 0)
    assert (result.damaged, bytes(result.data), result.next_offset) == ((0,), b"", 1)
    assert [m.body for m in store.read(other, 0, 0)] == [other.encode()]
    assert len(store.findings.damage()) == 1
    store.get("tAa", 0, 0)
    assert len(store.findings.damage()) == 1  # said once
