"""Inspection: everything that is wrong with a directory is found and told with its place; nothing is changed."""

import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import OptionError, StoreError, StoreFormatError
from penstock.message import Message, StoredMessage, encode_record
from penstock.runtime import Runtime, SystemDisk
from penstock.store import MessageStore, StoreOptions
from penstock.store.inspection import (
    DamagedRange,
    Issue,
    VerifyReport,
    dump_log,
    dump_queues,
    stats,
    verify,
)
from penstock.store.layout import StorePaths
from penstock.store.sizes import GivenSizes, StoreSizes, detect_sizes
from penstock.testing import ManualClock
from tests.support.sample_stores import (
    SMALL,
    TOPICS,
    body_at,
    flip,
    index_files,
    like_java,
    log_file,
    overwrite,
    queue_file,
    record_positions,
    sample_message,
    topic_at,
    tree_state,
    write_store,
)

INDEX_ENTRIES_AT = 40 + SMALL.index_slots * 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store")


def damage(report: VerifyReport) -> list[Issue]:
    return [issue for issue in report.issues if issue.damage]


def only_damage(path: Path) -> Issue:
    """The one damaged place; a second one would mean that something was reported twice."""
    found = damage(verify(path))
    assert len(found) == 1, found
    return found[0]


def detected(path: Path, **given: int) -> StoreSizes:
    return detect_sizes(SystemDisk(), StorePaths(path), GivenSizes(**given))


# -- sound stores ------------------------------------------------------------------------------------------------


def test_a_sound_store_is_compared_in_full(path: Path) -> None:
    report = verify(path)
    assert report.sound
    assert report.issues == ()
    assert (report.log.records, report.log.damaged_records, report.log.segments) == (400, 0, 3)
    assert (report.queues.topics, report.queues.queues, report.queues.entries) == (3, 6, 400)
    assert (report.index.files, report.index.entries, report.index.compared) == (3, 800, 800)
    assert report.index.unindexed_keys == 0
    assert report.clean
    assert report.to_json()["sound"] is True


@pytest.mark.invariant("I12")
def test_looking_changes_nothing(path: Path) -> None:
    before = tree_state(path)
    verify(path)
    stats(path, exact=True)
    assert len(list(dump_log(path))) == 400
    assert sum(1 for topic in TOPICS for _ in dump_queues(path, topic)) == 400
    assert tree_state(path) == before


def test_looking_changes_nothing_after_a_crash_with_a_torn_end(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", clean=False)
    tear(path)
    before = tree_state(path)
    verify(path)
    stats(path, exact=True)
    assert sum(1 for topic in TOPICS for _ in dump_queues(path, topic)) == 400
    assert tree_state(path) == before


def test_a_store_as_java_leaves_it_is_sound(path: Path) -> None:
    report = verify(like_java(path))
    assert report.sound
    assert report.issues == ()


def test_a_fresh_store_is_sound(tmp_path: Path) -> None:
    MessageStore.open(tmp_path / "store", SMALL, background=False).close()
    (tmp_path / "store" / "commitlog").mkdir(exist_ok=True)
    report = verify(tmp_path / "store")
    assert report.sound
    assert report.log.records == 0
    assert list(dump_log(tmp_path / "store")) == []


def test_after_a_crash_what_an_open_rebuilds_is_no_damage(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", clean=False)
    report = verify(path)
    assert report.sound
    assert report.queues.missing_entries + report.queues.entries == 400
    assert {"not closed", "queues behind"} <= {issue.kind for issue in report.issues}


def test_a_queue_that_got_no_file_before_a_crash_is_no_damage(tmp_path: Path) -> None:
    """The manifest may know a queue before its first entries are on disk."""
    store = MessageStore.open(tmp_path, StoreOptions(segment_size_bytes=8 << 20), background=False)
    store.append(Message("orders", b"x"), 0)
    store.queues.save_manifest({("orders", 0): 0}, -1, [], 0, 0, 0)
    store.abandon()
    assert not StorePaths(tmp_path).queue("orders", 0).exists()
    assert damage(verify(tmp_path)) == []
    with MessageStore.open(tmp_path, StoreOptions(segment_size_bytes=8 << 20), background=False) as opened:
        assert [message.body for message in opened.get("orders", 0, 0).messages()] == [b"x"]


def test_a_store_that_retention_has_cut_is_sound(tmp_path: Path) -> None:
    """Queues and index still have entries of records that are gone; they are believed, not reported."""
    clock = ManualClock(hour=4)
    runtime = Runtime(clock=clock)
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, runtime=runtime, background=False) as store:
        for number in range(900):
            store.append(sample_message(number), number // 3 % 2)
        store.flush()
        for segment in sorted((path / "commitlog").iterdir()):
            modified_s = clock.now_ms() / 1000
            os.utime(segment, (modified_s, modified_s))
        clock.advance(73 * 3_600_000)
        assert store.keeper.clean() > 0
        kept = store.log.min_offset
    report = verify(path)
    assert kept > 0
    assert report.sound, report.issues
    assert report.log.start == kept
    assert report.index.compared < report.index.entries
    assert stats(path).messages == stats(path, exact=True).messages == report.log.records


def test_a_topic_deleted_and_made_again_is_no_damage(path: Path) -> None:
    with MessageStore.open(path, SMALL, background=False) as store:
        store.delete_topics(["orders"])
        for number in range(10):
            store.append(Message.of("orders", b"new %d" % number), 0)
    report = verify(path)
    assert report.sound, report.issues
    kinds = [issue.kind for issue in report.issues]
    assert kinds.count("topic begun anew") == 1
    assert kinds.count("topic deleted") == 1  # orders/1 was not made again


def test_half_messages_have_keys_and_no_place_in_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(path, SMALL, background=False) as store:
        for number in range(20):
            kind = 4 if number % 5 == 0 else 0
            request = store.request(Message.of("orders", b"x", keys=f"k{number}"), 0, sys_flag=kind)
            store.append_group([request])
    report = verify(path)
    assert report.sound, report.issues
    assert (report.log.records, report.queues.entries, report.index.compared) == (20, 16, 20)


def test_records_with_ipv6_hosts_and_long_topics_are_understood(tmp_path: Path) -> None:
    from penstock.message import HostAddress

    topic = "%RETRY%" + "g" * 200
    host = HostAddress("fe80::1", 10911)
    with MessageStore.open(tmp_path / "store", SMALL, store_host=host, background=False) as store:
        for number in range(10):
            store.append(Message.of(topic, b"x", keys=f"k{number}"), 0)
    report = verify(tmp_path / "store")
    assert report.sound
    assert report.queues.entries == 10
    rows = list(dump_queues(tmp_path / "store", topic))
    assert [row.store_host for row in rows] == [host] * 10


# -- the log -----------------------------------------------------------------------------------------------------


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    ("place", "bit", "reason"),
    [
        pytest.param(0, 6, "impossible record size", id="size"),
        pytest.param(4, 0, "unknown magic number", id="magic"),
        pytest.param(8, 3, "checksum mismatch", id="checksum"),
        pytest.param(20, 7, "claims offset -", id="queue-offset-negative"),
        pytest.param(26, 0, "claims offset", id="queue-offset-ahead"),
        pytest.param(28, 3, "record says it belongs elsewhere", id="position"),
        pytest.param(85, 1, "lengths do not add up", id="body-length"),
        pytest.param(100, 5, "checksum mismatch", id="body"),
    ],
)
def test_a_flipped_bit_in_a_record_is_reported_with_its_position(
    path: Path, place: int, bit: int, reason: str
) -> None:
    positions = record_positions(path)
    position = positions[30]
    at = position % SMALL.segment_size_bytes
    flip(log_file(path, position), at + place, bit)
    issue = only_damage(path)
    assert issue.kind == "damaged record"
    assert reason in issue.detail
    assert (issue.position, issue.length) == (position, positions[31] - position)
    assert (issue.path, issue.file_position) == (f"commitlog/{0:020d}", at)


@pytest.mark.fault("F7")
@pytest.mark.parametrize("bit", [7, 3])
def test_a_topic_that_cannot_be_is_reported_and_ends(path: Path, bit: int) -> None:
    """RocketMQ's checksum does not cover the topic; bytes that are no text must not stop the inspection."""
    position = record_positions(path)[30]
    overwrite(log_file(path, position), topic_at(path, position), b"\xff" if bit == 7 else b"/")
    issue = only_damage(path)
    assert (issue.kind, issue.position) == ("damaged record", position)
    assert "impossible topic" in issue.detail


@pytest.mark.fault("F7")
def test_a_queue_id_that_was_changed_shows_in_both_queues(path: Path) -> None:
    position = record_positions(path)[30]  # orders/0, offset 5
    overwrite(log_file(path, position), position % SMALL.segment_size_bytes + 12, struct.pack(">i", 7))
    report = verify(path)
    assert [issue.detail for issue in damage(report)] == ["orders/0 offset 5: the log has no such message"]
    assert [issue.detail for issue in report.issues if "orders/7 has 1 messages" in issue.detail]


@pytest.mark.fault("F7")
def test_a_zeroed_page_in_the_log_is_reported_once_with_what_it_took(path: Path) -> None:
    positions = record_positions(path)
    overwrite(log_file(path), 8192, bytes(4096))
    first = max(position for position in positions if position <= 8192)
    following = min(position for position in positions if position >= 12288)
    report = verify(path)
    assert [issue.kind for issue in damage(report)].count("damaged record") in (1, 2)
    taken = [issue for issue in report.issues if issue.kind == "messages lost"]
    assert len(taken) == 6
    assert min(issue.position for issue in damage(report)) == first
    assert sum(issue.length for issue in damage(report)) == following - first


@pytest.mark.fault("F7")
def test_a_sealed_store_shows_every_single_flip_in_a_record(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 60, seal=True)
    positions = record_positions(path)
    rng = random.Random(7)
    original = log_file(path).read_bytes()
    for _ in range(80):
        number = rng.randrange(len(positions) - 1)
        # The last 20 bytes are the seal itself; without it a record is one that was never sealed.
        at = rng.randrange(positions[number], positions[number + 1] - 20)
        flip(log_file(path), at, rng.randrange(8))
        found = damage(verify(path))
        assert any(issue.position == positions[number] for issue in found), (at, found)
        log_file(path).write_bytes(original)


def test_a_missing_segment_is_reported_and_the_rest_is_compared(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 700)
    log_file(path, 65536).unlink()
    report = verify(path)
    first = damage(report)[0]
    assert (first.kind, first.detail) == ("damaged segment", "file is missing")
    assert (first.position, first.length) == (65536, 65536)
    assert len(damage(report)) == 1
    assert 400 < report.log.records < 700
    assert report.index.wrong_entries == 0


def test_a_short_segment_is_reported_with_its_missing_part(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 700)
    with log_file(path, 65536).open("r+b") as file:
        file.truncate(10_000)
    found = {issue.kind: issue for issue in damage(verify(path))}
    assert (found["damaged segment"].position, found["damaged segment"].length) == (75_536, 55_536)
    assert found["damaged segment"].path == f"commitlog/{65536:020d}"


def test_the_last_segment_gone_is_noticed_by_what_was_promised(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 400)
    last = sorted((path / "commitlog").iterdir())[-1]
    last.unlink()
    kinds = {issue.kind for issue in damage(verify(path))}
    assert {"damaged log", "damaged queue"} <= kinds


def tear(path: Path) -> int:
    """Half a record behind the last one; where it begins."""
    positions = record_positions(path)
    data = log_file(path, positions[-1]).read_bytes()
    at = positions[-1] % SMALL.segment_size_bytes
    (size,) = struct.unpack_from(">i", data, at)
    torn = bytearray(data[at : at + size // 2])
    torn[28:36] = struct.pack(">q", positions[-1] + size)
    overwrite(log_file(path, positions[-1]), at + size, bytes(torn))
    return positions[-1] + size


@pytest.mark.fault("F5")
def test_a_torn_end_is_a_note_after_a_crash_and_damage_after_a_clean_stop(tmp_path: Path) -> None:
    crashed = write_store(tmp_path / "crashed", clean=False)
    end = tear(crashed)
    report = verify(crashed)
    assert report.sound
    torn = next(issue for issue in report.issues if issue.kind == "torn end of the log")
    assert (torn.position, report.log.end) == (end, end)
    assert 100 < torn.length < 300
    closed = write_store(tmp_path / "closed")
    end = tear(closed)
    issue = only_damage(closed)
    assert (issue.kind, issue.position) == ("damaged end of the log", end)


def test_a_full_last_segment_without_successor_is_read_to_its_blank_record(path: Path) -> None:
    for later in sorted((path / "commitlog").iterdir())[1:]:
        later.unlink()
    shown = list(dump_log(path))
    assert len(shown) == len(record_positions(path))
    assert not any(isinstance(row, DamagedRange) for row in shown)


# -- queues ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    ("byte", "says"),
    [(6, "leads to"), (8, "leads to"), (11, "leads to"), (12, "tag code"), (19, "tag code")],
)
def test_a_flipped_bit_in_a_queue_entry_is_reported_with_its_place(path: Path, byte: int, says: str) -> None:
    flip(queue_file(path), 5 * 20 + byte, 7)
    issue = only_damage(path)
    assert issue.kind == "damaged queue"
    assert "orders/0 offset 5 " in issue.detail
    assert says in issue.detail
    assert issue.position == record_positions(path)[30]
    assert (issue.path, issue.file_position) == (f"consumequeue/orders/0/{0:020d}", 100)


def test_zeroed_entries_are_told_as_one(path: Path) -> None:
    overwrite(queue_file(path), 200, bytes(400))
    issue = only_damage(path)
    assert "20 entries of orders/0 from offset 10 on are wrong" in issue.detail
    assert issue.file_position == 200


def test_entries_behind_the_end_of_a_queue_are_reported(path: Path) -> None:
    queue = stats_of(path, "orders", 0)
    overwrite(queue_file(path), queue.max_offset * 20, struct.pack(">qiq", 0, 100, 0))
    issue = only_damage(path)
    assert "lead to no record of this queue" in issue.detail
    assert issue.file_position == queue.max_offset * 20


def test_a_queue_that_ends_early_is_damage_after_a_clean_stop(path: Path) -> None:
    queue = stats_of(path, "orders", 0)
    overwrite(queue_file(path), 30 * 20, bytes(2000 - 600))
    found = damage(verify(path))
    assert f"orders/0 ends at offset 30, the log goes on to {queue.max_offset}" in found[0].detail
    assert (found[0].position, found[0].file_position) == (record_positions(path)[180], 600)
    assert len(found) == 1


def test_a_missing_queue_folder_is_damage(path: Path) -> None:
    queue_file(path).unlink()
    queue_file(path).parent.rmdir()
    issue = only_damage(path)
    assert issue.detail.startswith("folder is missing: orders/0 has ")
    assert issue.path == "consumequeue/orders/0"


def test_a_missing_folder_of_a_topic_that_the_broker_does_not_list_is_a_deleted_topic(path: Path) -> None:
    config = path / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text('{"topicConfigTable":{"%RETRY%group-1":{},"SCHEDULE_TOPIC_XXXX":{}}}')
    for queue in (0, 1):
        queue_file(path, queue=queue).unlink()
        queue_file(path, queue=queue).parent.rmdir()
    report = verify(path)
    assert report.sound, report.issues
    assert [issue.kind for issue in report.issues] == ["topic deleted", "topic deleted"]


def test_missing_and_short_queue_files_are_reported(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 1900)
    queue_file(path, offset=100).unlink()
    with queue_file(path, offset=200).open("r+b") as file:
        file.truncate(1000)
    found = [(issue.kind, issue.path.rpartition("/")[2], issue.detail) for issue in damage(verify(path))]
    assert ("damaged queue file", f"{2000:020d}", "file is missing") in found
    assert ("damaged queue file", f"{4000:020d}", "file has 1000 of 2000 bytes") in found
    wrong = [detail for kind, _, detail in found if kind == "damaged queue"]
    assert any("100 entries of orders/0 from offset 100" in detail for detail in wrong)
    assert any("50 entries of orders/0 from offset 250" in detail for detail in wrong)


def test_offsets_that_the_log_skips_are_holes(path: Path) -> None:
    with MessageStore.open(path, SMALL, background=False) as store:
        queue = store.queues.get("orders", 0)
        assert queue is not None
        end = queue.max_offset
        queue.state.next_offset += 2
        position = store.append(sample_message(0), 0).physical_offset
    issue = only_damage(path)
    assert issue.detail == f"orders/0 offsets {end} to {end + 1}: the log has no such message"
    assert issue.position == position


@pytest.mark.invariant("I4")
def test_an_offset_given_out_twice_is_reported(path: Path) -> None:
    with MessageStore.open(path, SMALL, background=False) as store:
        queue = store.queues.get("orders", 0)
        assert queue is not None
        queue.state.next_offset -= 3
        position = store.append(sample_message(0), 0).physical_offset
        used = queue.max_offset - 3
    issue = only_damage(path)
    assert issue.detail == f"orders/0 offset {used} is claimed by a second record"
    assert issue.position == position


def stats_of(path: Path, topic: str, queue_id: int):
    return next(q for q in stats(path).queues if (q.topic, q.queue_id) == (topic, queue_id))


# -- index -------------------------------------------------------------------------------------------------------


@pytest.mark.fault("F7")
@pytest.mark.invariant("I12")
@pytest.mark.parametrize("byte", [0, 3, 4, 11, 14, 15, 19])
def test_a_flipped_bit_in_an_index_entry_is_reported_with_its_place(path: Path, byte: int) -> None:
    at = INDEX_ENTRIES_AT + 33 * 20
    flip(index_files(path)[0], at + byte, 0)
    issue = only_damage(path)
    assert issue.kind == "damaged index"
    assert issue.detail.startswith("entry 33: ")
    assert (issue.path, issue.file_position) == (f"index/{index_files(path)[0].name}", at)
    assert issue.position == record_positions(path)[16]


@pytest.mark.fault("F7")
def test_a_flipped_bit_in_an_index_slot_is_reported_with_its_place(path: Path) -> None:
    file = index_files(path)[0]
    data = file.read_bytes()
    slot = next(s for s in range(SMALL.index_slots) if data[40 + 4 * s : 44 + 4 * s] != bytes(4))
    flip(file, 40 + 4 * slot + 3, 1)
    issue = only_damage(path)
    assert issue.detail.startswith(f"slot {slot} has entry ")
    assert (issue.path, issue.file_position) == (f"index/{file.name}", 40 + 4 * slot)


@pytest.mark.parametrize("at", [0, 16, 24])
def test_a_changed_index_header_is_reported(path: Path, at: int) -> None:
    flip(index_files(path)[0], at + 6, 0)
    issue = only_damage(path)
    assert (issue.kind, issue.file_position) == ("damaged index", at)


def test_keys_that_an_index_file_leaves_out_are_told_with_their_record(path: Path) -> None:
    with MessageStore.open(path, SMALL, background=False) as store:
        position = store.append(sample_message(400), 0).physical_offset
        store.dispatcher.key_count = 0  # as if they had never been entered
        store.append(sample_message(401), 0)
    issue = only_damage(path)
    assert issue.kind == "damaged index"
    assert f"2 keys of records from {position} on are missing before entry " in issue.detail
    assert issue.position == position


def test_an_index_entry_for_a_key_that_the_record_has_not_is_told(path: Path) -> None:
    with MessageStore.open(path, SMALL, background=False) as store:
        store.append(sample_message(400), 0)
        keys = bytes(store.dispatcher.keys[:20])
        store.dispatcher.keys[20:40] = struct.pack(">i", 12345) + keys[4:]  # another key of the same record
        store.append(sample_message(401), 0)
    first, *slots = damage(verify(path))
    assert first.kind == "damaged index"
    assert "with hash 12345" in first.detail
    assert [issue.detail.split()[0] for issue in slots] == [
        "slot",
        "slot",
    ]  # the slot it took, the one it left


def test_an_index_file_of_another_size_or_without_sense_is_damage(path: Path) -> None:
    files = index_files(path)
    with files[0].open("r+b") as file:
        file.truncate(5000)
    overwrite(files[1], 36, struct.pack(">i", 401))
    found = {issue.path: issue.detail for issue in damage(verify(path))}
    assert found[f"index/{files[0].name}"] == "file has 5000 bytes, not 10040"
    assert found[f"index/{files[1].name}"] == "the header makes no sense"


def test_a_lost_newest_index_file_is_noticed_by_the_manifest(path: Path) -> None:
    index_files(path)[-1].unlink()
    issue = only_damage(path)
    assert issue.kind == "damaged index"
    assert "it ends with the record at" in issue.detail


def test_an_index_of_unknown_sizes_is_not_checked_and_said_so(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", SMALL, background=False) as store:
        store.append(sample_message(0), 0)  # the only record is at 0, which nothing can be recognised by
    report = verify(like_java(tmp_path / "store"))
    assert report.sound
    assert not report.index.checked
    assert [issue.kind for issue in report.issues] == ["index not checked"]
    report = verify(tmp_path / "store", GivenSizes(index_slots=500, index_entries=400))
    assert report.index.checked
    assert report.index.compared == 2
    assert report.issues == ()


# -- other files -------------------------------------------------------------------------------------------------


def test_stray_files_are_noted_wherever_they_are(path: Path) -> None:
    for name in (
        "commitlog/notes.txt",
        "consumequeue/readme",
        "consumequeue/orders/x",
        "consumequeue/orders/0/.swp",
        "index/tmp",
    ):
        (path / name).write_bytes(b"?")
    report = verify(path)
    assert report.sound
    assert [issue.kind for issue in report.issues] == ["stray file"] * 5


@pytest.mark.fault("F7")
def test_a_checkpoint_that_promises_more_than_there_is_is_damage(path: Path) -> None:
    flip(path / "checkpoint", 2, 1)
    issue = only_damage(path)
    assert (issue.kind, issue.path, issue.file_position) == ("damaged checkpoint", "checkpoint", 0)


@pytest.mark.fault("F7")
def test_a_checkpoint_with_a_wrong_checksum_is_noted(path: Path) -> None:
    flip(path / "checkpoint", 7, 0)
    values = bytearray((path / "checkpoint").read_bytes())
    values[0:8] = struct.pack(">q", struct.unpack_from(">q", values, 0)[0] - 1000)
    (path / "checkpoint").write_bytes(values)
    report = verify(path)
    assert report.sound
    assert [issue.kind for issue in report.issues] == ["checkpoint not trusted"]


def test_a_short_or_absent_checkpoint_is_told(path: Path) -> None:
    (path / "checkpoint").write_bytes(b"\0" * 100)
    assert only_damage(path).detail == "file has 100 bytes, not 4096"
    (path / "checkpoint").unlink()
    assert [issue.kind for issue in verify(path).issues] == ["no checkpoint"]


@pytest.mark.fault("F7")
def test_a_manifest_that_cannot_be_read_is_damage(path: Path) -> None:
    (path / "penstock.manifest.json").write_bytes(b"{")
    assert only_damage(path).kind == "damaged manifest"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: (path / "x").mkdir(parents=True)])
def test_a_directory_that_is_no_store_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "store")
    for look in (verify, stats, lambda path: list(dump_log(path)), lambda path: list(dump_queues(path, "t"))):
        with pytest.raises(StoreFormatError, match="is not a store"):
            look(tmp_path / "store")


@pytest.mark.fault("F7")
@pytest.mark.parametrize("seed", range(4))
def test_no_single_flip_anywhere_ends_an_inspection(tmp_path: Path, seed: int) -> None:
    path = write_store(tmp_path / "store", 300)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    rng = random.Random(seed)
    for _ in range(30):
        file = rng.choice(files)
        original = file.read_bytes()
        flip(file, rng.randrange(len(original)), rng.randrange(8))
        report = verify(path)
        assert report.log.records + report.log.damaged_records >= 299
        assert len(report.issues) < 10, report.issues
        stats(path, exact=True)
        assert len(list(dump_log(path))) >= 299
        file.write_bytes(original)


# -- sizes -------------------------------------------------------------------------------------------------------


def test_sizes_are_found_in_the_files(path: Path) -> None:
    assert detected(path) == StoreSizes(65536, 100, 500, 400)
    assert detected(path, queue_file_entries=7).queue_file_entries == 7
    assert detected(path, segment_size_bytes=4096).segment_size_bytes == 4096


def test_an_empty_directory_has_rocketmqs_sizes(tmp_path: Path) -> None:
    defaults = StoreOptions()
    assert detected(tmp_path) == StoreSizes(1 << 30, 300_000, defaults.index_slots, defaults.index_entries)


def test_rocketmqs_index_size_is_known_without_looking(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with (tmp_path / "index" / "20260101000000000").open("wb") as file:
        file.truncate(420_000_040)
    assert (detected(tmp_path).index_slots, detected(tmp_path).index_entries) == (5_000_000, 20_000_000)


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({0: 65536, 65536: 65536}, 65536),
        ({0: 65536, 65536: 100}, 65536),
        ({0: 100, 65536: 65536}, 65536),
        ({0: 65536 + 4096, 65536: 65536}, 65536),
        ({131072: 65536}, 65536),
        ({0: 5000}, 1 << 30),
        ({0: 5000, 5000: 5000}, 5000),
        ({}, 1 << 30),
    ],
)
def test_the_largest_consistent_segment_size_wins(tmp_path: Path, files: dict[int, int], size: int) -> None:
    (tmp_path / "commitlog").mkdir()
    for position, length in files.items():
        with (tmp_path / "commitlog" / f"{position:020d}").open("wb") as file:
            file.truncate(length)
    assert detected(tmp_path).segment_size_bytes == size


def test_one_index_size_alone_says_nothing(path: Path) -> None:
    with pytest.raises(OptionError, match="only one"):
        detected(path, index_slots=500)


# -- dump and stats ----------------------------------------------------------------------------------------------


@pytest.mark.seed("S4-5")
def test_messages_are_shown_in_the_order_of_the_log_and_of_their_queues(path: Path) -> None:
    rows = [row for row in dump_log(path) if isinstance(row, StoredMessage)]
    assert [row.physical_offset for row in rows] == record_positions(path)
    assert [row.body for row in rows] == [sample_message(number).body for number in range(400)]
    queue = [row for row in dump_queues(path, "orders", 1, start=10) if isinstance(row, StoredMessage)]
    assert [row.queue_offset for row in queue] == list(range(10, len(queue) + 10))
    assert {row.queue_id for row in dump_queues(path, "orders") if isinstance(row, StoredMessage)} == {0, 1}


def test_a_dump_of_the_log_begins_at_the_first_whole_record(path: Path) -> None:
    positions = record_positions(path)
    for start, first in ((positions[50], 50), (positions[50] + 1, 51), (65536, None), (1 << 40, None)):
        rows = [row for row in dump_log(path, start=start) if isinstance(row, StoredMessage)]
        expected = [position for position in positions if position >= start]
        assert [row.physical_offset for row in rows] == expected
        assert first is None or rows[0].physical_offset == positions[first]


@pytest.mark.invariant("I12")
def test_damage_takes_its_place_in_a_dump(path: Path) -> None:
    positions = record_positions(path)
    flip(log_file(path), body_at(path, positions[30]))
    rows = list(dump_log(path))
    assert rows[30] == DamagedRange(positions[30], positions[31] - positions[30], "checksum mismatch")
    assert len(rows) == 400
    row = list(dump_queues(path, "orders", 0))[5]
    assert isinstance(row, DamagedRange)
    assert (row.position, row.reason) == (positions[30], "orders/0 offset 5 is damaged")


def test_a_missing_part_of_the_log_takes_its_place_in_a_dump(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 700)
    log_file(path, 65536).unlink()
    gaps = [row for row in dump_log(path) if isinstance(row, DamagedRange)]
    assert [(row.position, row.length) for row in gaps] == [(65536, 65536)]


def test_topics_and_queues_that_are_not_there_are_refused_with_those_that_are(path: Path) -> None:
    with pytest.raises(StoreError, match="it has %RETRY%group-1, SCHEDULE_TOPIC_XXXX, orders"):
        list(dump_queues(path, "nothing"))
    with pytest.raises(StoreError, match="it has 0, 1"):
        list(dump_queues(path, "orders", 9))


def test_statistics_count_by_entries_or_in_the_log(path: Path) -> None:
    quick, exact = stats(path), stats(path, exact=True)
    assert quick.messages == exact.messages == 400
    assert [replace(queue, bytes=-1) for queue in exact.queues] == list(quick.queues)
    assert sum(queue.bytes for queue in exact.queues) == exact.log.bytes
    assert quick.log.first_timestamp == exact.log.first_timestamp == 1_700_000_000_000
    assert quick.log.last_timestamp == exact.log.last_timestamp
    assert quick.index_entries == 800
    assert quick.files["commitlog"].size_bytes == 3 * 65536
    assert quick.files["commitlog"].files == 3
    assert quick.log.end == record_positions(path)[-1] + len(encoded(list(dump_log(path))[-1]))


def encoded(row: StoredMessage | DamagedRange) -> bytes:
    assert isinstance(row, StoredMessage)
    return encode_record(row)
