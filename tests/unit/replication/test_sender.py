"""The master's side of a connection, without one."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from penstock.replication.frames import (
    Handshake,
    encode_epoch_report,
    encode_handshake,
    encode_handshake_reply,
    encode_newer_epoch,
    encode_report,
    encode_tables_applied,
)
from penstock.replication.options import ReplicationOptions
from penstock.replication.sender import ClassicSender, EpochSender, Sender
from penstock.replication.steps import (
    Acked,
    Joined,
    Ready,
    Received,
    Superseded,
    TablesAcked,
    TablesChanged,
    Tick,
    Trouble,
)
from tests.support.memory_log import MemoryLeadership, MemoryLog, closed, sent

OPTIONS = ReplicationOptions(transfer_batch_bytes=10, epoch_batch_bytes=10)
LETTERS = bytes(range(65, 91))


def classic(log: MemoryLog, options: ReplicationOptions = OPTIONS) -> ClassicSender:
    return ClassicSender(log, options, 0)


def ready(sender: Sender, now_ms: int = 0, room: int = 1 << 20) -> bytes:
    return sent(sender.handle(Ready(room), now_ms))


def report(sender: Sender, offset: int, now_ms: int = 0) -> list[object]:
    return list(sender.handle(Received(encode_report(offset)), now_ms))


def frame(position: int, body: bytes) -> bytes:
    return struct.pack(">qi", position, len(body)) + body


# -- classic -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-80", "S1-81", "S1-86")
def test_nothing_is_sent_before_the_first_report_which_says_where_to_begin() -> None:
    sender = classic(MemoryLog(LETTERS))
    assert ready(sender, now_ms=6_000) == b""
    assert report(sender, 5) == [Acked(5)]
    assert ready(sender, room=1) == frame(5, LETTERS[5:15])
    assert report(sender, 15) == [Acked(15)]
    assert ready(sender) == frame(15, LETTERS[15:25]) + frame(25, LETTERS[25:])
    assert not sender.has_more


@pytest.mark.seed("S1-29")
def test_an_empty_slave_begins_with_the_last_file() -> None:
    log = MemoryLog(bytes(100), base=64, segment_size=64)
    sender = classic(log)
    report(sender, 0)
    assert sender.position == 128
    assert ready(sender) == b"".join(frame(at, bytes(min(10, 164 - at))) for at in range(128, 164, 10))


def test_an_empty_master_begins_at_zero() -> None:
    log = MemoryLog()
    sender = classic(log)
    report(sender, 0)
    assert ready(sender) == b""
    log.append(b"abc")
    assert ready(sender) == frame(0, b"abc")


def test_a_frame_ends_with_its_segment() -> None:
    log = MemoryLog(bytes(30), segment_size=16)
    sender = classic(log)
    report(sender, 10)
    assert ready(sender) == frame(10, bytes(6)) + frame(16, bytes(10)) + frame(26, bytes(4))


@pytest.mark.seed("S1-78")
def test_joined_reports_count_as_the_last_of_them() -> None:
    sender = classic(MemoryLog(LETTERS))
    report(sender, 2)
    ready(sender)
    data = encode_report(3) + encode_report(4) + encode_report(5)
    assert sender.handle(Received(data[:19]), 0) == [Acked(4)]
    assert sender.handle(Received(data[19:]), 0) == [Acked(5)]


@pytest.mark.seed("S1-73", "S1-74", "S1-75", "S1-76", "S1-77")
def test_a_report_counts_when_all_eight_bytes_are_there_and_any_byte_is_a_sign_of_life() -> None:
    sender = classic(MemoryLog(LETTERS))
    for at, byte in enumerate(encode_report(9)):
        steps = sender.handle(Received(bytes([byte])), at * 10_000)
        assert steps == ([Acked(9)] if at == 7 else [])
        assert sender.handle(Tick(), at * 10_000) == []
    assert sender._reader.kept_bytes == 0


def test_room_bounds_what_is_sent_at_once() -> None:
    sender = classic(MemoryLog(bytes(64)))
    report(sender, 1)
    assert len(ready(sender, room=25)) == 3 * 22
    assert sender.position == 31


def test_heartbeats_carry_the_next_position() -> None:
    sender = classic(MemoryLog(LETTERS))
    report(sender, 26)
    assert ready(sender, now_ms=4_999) == b""
    assert ready(sender, now_ms=5_000) == frame(26, b"")
    assert ready(sender, now_ms=5_001) == b""
    assert ready(sender, now_ms=10_000) == frame(26, b"")


@pytest.mark.fault("F2", "F3")
def test_a_silent_slave_is_dropped() -> None:
    sender = classic(MemoryLog(LETTERS))
    for now_ms in range(1_000, 15_001, 1_000):
        assert sender.handle(Tick(), now_ms) == []
    report(sender, 0, now_ms=15_000)
    for now_ms in range(16_000, 35_001, 1_000):
        assert sender.handle(Tick(), now_ms) == []
    assert closed(sender.handle(Tick(), 35_001))
    assert sender.is_closed
    assert report(sender, 3) == []


@pytest.mark.fault("F2", "F9")
def test_an_own_pause_is_no_silence_of_the_slave() -> None:
    sender = classic(MemoryLog(LETTERS))
    assert sender.handle(Tick(), 60_000) == [], (
        "this process stood still; what the slave said is not read yet"
    )
    for now_ms in range(61_000, 80_001, 1_000):
        assert sender.handle(Tick(), now_ms) == []
    assert closed(sender.handle(Tick(), 80_001))


@pytest.mark.invariant("I7")
def test_a_slave_that_is_ahead_is_sent_nothing_even_when_the_log_has_grown_past_it() -> None:
    log = MemoryLog(LETTERS)
    sender = classic(log)
    first = report(sender, 30)
    assert [type(step) for step in first] == [Trouble], "and is not counted as a copy"
    log.append(bytes(20))
    assert ready(sender) == b""
    assert ready(sender, now_ms=5_000) == frame(30, b""), "it stays connected, as Java's would"
    assert report(sender, 30) == []


def test_a_slave_that_needs_what_is_deleted_is_sent_nothing() -> None:
    sender = classic(MemoryLog(bytes(100), base=64))
    assert [type(step) for step in report(sender, 10)] == [Trouble]
    assert ready(sender) == b""
    assert ready(sender, now_ms=5_000) == frame(10, b"")


def test_a_slave_that_retention_has_overtaken_is_named_once() -> None:
    log = MemoryLog(bytes(100))
    sender = classic(log)
    report(sender, 1)
    ready(sender, room=1)
    log.base, log.data = 64, log.data[64:]
    steps = sender.handle(Ready(1_000), 0)
    assert [type(step) for step in steps] == [Trouble]
    assert "from 11 on" in steps[0].text
    assert sender.handle(Ready(1_000), 0) == []


@pytest.mark.abuse("A16")
def test_reports_that_cannot_be_true_end_the_connection() -> None:
    for offsets in ([3, 14], [3, 13, 2], [-1]):
        sender = classic(MemoryLog(LETTERS))
        steps: list[object] = []
        for offset in offsets:
            steps = report(sender, offset)
            ready(sender, room=1)
        assert closed(steps)
        assert sender.is_closed


def test_a_limit_per_second_is_kept() -> None:
    sender = classic(
        MemoryLog(bytes(100), segment_size=128), replace(OPTIONS, transfer_bytes_per_second_max=25)
    )
    report(sender, 1)
    assert len(ready(sender)) == 25 + 3 * 12
    assert ready(sender, now_ms=999) == b""
    assert len(ready(sender, now_ms=1_000)) == 25 + 3 * 12


# -- epochs ------------------------------------------------------------------------------------------------------


def epoch_sender(
    log: MemoryLog, leadership: MemoryLeadership | None = None, options: ReplicationOptions = OPTIONS
) -> EpochSender:
    return EpochSender(log, leadership or MemoryLeadership(), 1, options, 0)


def greet(
    sender: EpochSender, offset: int | None = 0, *, tables: bool = False, last_file: bool = False
) -> list[Any]:
    hello = Handshake(2, from_last_file=last_file, wants_tables=tables)
    steps = list(sender.handle(Received(encode_handshake(hello)), 0))
    if offset is not None:
        steps += sender.handle(Received(encode_epoch_report(offset)), 0)
    return steps


def epoch_frame(position: int, epoch: tuple[int, int], confirm: int, body: bytes) -> bytes:
    return struct.pack(">iiqiqq", 2, len(body), position, *epoch, confirm) + body


def test_a_handshake_is_answered_with_the_epochs() -> None:
    leadership = MemoryLeadership(7, ((5, 0), (7, 20)))
    sender = epoch_sender(MemoryLog(LETTERS), leadership)
    steps = greet(sender, None)
    assert steps[0] == Joined(2, False, False)
    assert sent(steps) == encode_handshake_reply(26, 7, [(5, 0), (7, 20)])
    assert ready(sender) == b"", "the report says where to begin"


def test_frames_end_with_their_epoch_and_carry_the_confirm_offset() -> None:
    leadership = MemoryLeadership(7, ((5, 0), (7, 24)), confirm_offset=23)
    sender = epoch_sender(MemoryLog(LETTERS), leadership)
    assert Acked(20) in greet(sender, 20)
    assert ready(sender) == (
        epoch_frame(20, (5, 0), 23, LETTERS[20:24]) + epoch_frame(24, (7, 24), 23, LETTERS[24:26])
    )


def test_an_empty_replica_begins_with_the_first_byte_or_the_last_file() -> None:
    log = MemoryLog(bytes(150), base=64)
    first, last = epoch_sender(log), epoch_sender(log)
    greet(first, 0)
    greet(last, 0, last_file=True)
    assert (first.position, last.position) == (64, 192)


def test_a_new_confirm_offset_is_told_soon_though_there_are_no_bytes() -> None:
    leadership = MemoryLeadership(confirm_offset=20)
    sender = epoch_sender(MemoryLog(LETTERS), leadership)
    greet(sender, 20)
    ready(sender, now_ms=100)
    leadership.confirm_offset = 26
    assert sender.owes_confirm
    assert ready(sender, now_ms=105) == b""
    assert ready(sender, now_ms=110) == epoch_frame(26, (1, 0), 26, b"")
    assert not sender.owes_confirm
    assert ready(sender, now_ms=200) == b""


@pytest.mark.invariant("I6")
@pytest.mark.fault("F12")
def test_word_of_a_newer_epoch_ends_everything() -> None:
    sender = epoch_sender(MemoryLog(LETTERS))
    greet(sender, 20)
    steps = sender.handle(Received(encode_newer_epoch(2) + encode_epoch_report(20)), 0)
    assert steps[0] == Superseded(2)
    assert closed(steps)
    assert len(steps) == 2, "what the replica says after it is no acknowledgement"
    assert ready(sender) == b""


def test_word_of_an_epoch_that_is_not_newer_only_ends_the_connection() -> None:
    sender = epoch_sender(MemoryLog(LETTERS))
    greet(sender, 20)
    steps = sender.handle(Received(encode_newer_epoch(1)), 0)
    assert len(steps) == 1
    assert closed(steps)


@pytest.mark.abuse("A1")
@pytest.mark.parametrize(
    "data",
    [
        encode_epoch_report(0),
        encode_tables_applied(0),
        encode_handshake(Handshake(1)),
        encode_handshake(Handshake(2)) * 2,
        encode_handshake(Handshake(2)) + encode_epoch_report(27),
        encode_handshake(Handshake(2)) + encode_epoch_report(5) + encode_epoch_report(6),
        encode_handshake(Handshake(2)) + encode_epoch_report(5) + encode_epoch_report(4),
        encode_handshake(Handshake(2, wants_tables=True)) + encode_epoch_report(5) + encode_tables_applied(1),
    ],
)
def test_a_replica_that_does_not_keep_to_the_protocol_is_dropped(data: bytes) -> None:
    sender = epoch_sender(MemoryLog(LETTERS))
    assert closed(sender.handle(Received(data), 0))


def tables_frame(sequence: int, body: bytes) -> bytes:
    return struct.pack(">iiq", 6, len(body), sequence) + body


def test_tables_go_first_and_only_to_those_that_ask() -> None:
    leadership = MemoryLeadership(sequence=4, tables=b"all")
    log = MemoryLog(LETTERS)
    asks, does_not = epoch_sender(log, leadership), epoch_sender(log, leadership)
    greet(asks, 26, tables=True)
    greet(does_not, 26)
    for sender in (asks, does_not):
        sender.handle(TablesChanged(4, b"included"), 0)
    assert ready(does_not) == b""
    assert ready(asks) == tables_frame(4, b"all")
    for sender in (asks, does_not):
        sender.handle(TablesChanged(5, b"change"), 0)
    assert ready(does_not) == b""
    assert asks.has_more
    assert ready(asks) == tables_frame(5, b"change")
    assert asks.handle(Received(encode_tables_applied(5)), 0) == [TablesAcked(5)]


@pytest.mark.invariant("I16")
@pytest.mark.abuse("A15")
def test_changes_for_a_replica_that_does_not_read_become_one_snapshot() -> None:
    leadership = MemoryLeadership(tables=b"first")
    sender = epoch_sender(MemoryLog(), leadership, replace(OPTIONS, tables_queue_bytes_max=100))
    greet(sender, 0, tables=True)
    ready(sender)
    for sequence in range(1, 51):
        sender.handle(TablesChanged(sequence, b"x" * 30), 0)
    leadership.sequence, leadership.tables = 50, b"all of it"
    assert ready(sender) == tables_frame(50, b"all of it")
    assert leadership.asked == 2


def test_tables_that_are_too_large_are_said_to_be_and_the_log_goes_on() -> None:
    leadership = MemoryLeadership(tables=b"x" * 11)
    sender = epoch_sender(MemoryLog(b"abc"), leadership, replace(OPTIONS, tables_bytes_max=10))
    greet(sender, 0, tables=True)
    steps = sender.handle(Ready(100), 0)
    assert isinstance(steps[0], Trouble)
    assert sent(steps) == epoch_frame(0, (1, 0), 0, b"abc")


def test_a_position_before_all_epochs_is_named() -> None:
    sender = epoch_sender(MemoryLog(LETTERS), MemoryLeadership(2, ((2, 20),)))
    assert "as old as position 10" in greet(sender, 10)[-1].text
    assert ready(sender) == b""
