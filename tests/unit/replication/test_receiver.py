"""The replica's side of a connection, without one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from penstock.replication.frames import (
    Handshake,
    encode_epoch_report,
    encode_handshake,
    encode_handshake_reply,
    encode_newer_epoch,
    encode_report,
    encode_tables_applied,
    encode_tables_head,
)
from penstock.replication.options import ReplicationOptions
from penstock.replication.receiver import ClassicReceiver, EpochReceiver, Receiver
from penstock.replication.steps import (
    ApplyTables,
    Close,
    Connected,
    Follow,
    Following,
    Received,
    Stored,
    TablesDone,
    Tick,
)
from tests.support.memory_log import MemoryEpochs, MemoryLog, closed, sent

OPTIONS = ReplicationOptions()


def frame(position: int, body: bytes) -> bytes:
    return struct.pack(">qi", position, len(body)) + body


def classic(log: MemoryLog) -> ClassicReceiver:
    receiver = ClassicReceiver(log, OPTIONS, 0)
    receiver.handle(Connected(), 0)
    return receiver


def got(receiver: Receiver, data: bytes, now_ms: int = 0) -> list[object]:
    return list(receiver.handle(Received(data), now_ms))


# -- classic -----------------------------------------------------------------------------------------------------


@pytest.mark.seed("S1-40", "S1-56")
def test_the_first_report_asks_and_acknowledges() -> None:
    receiver = ClassicReceiver(MemoryLog(b"abc"), OPTIONS, 0)
    assert sent(receiver.handle(Connected(), 0)) == encode_report(3)


@pytest.mark.seed("S1-48", "S1-55", "S1-56")
def test_it_reports_when_the_interval_has_passed() -> None:
    receiver = classic(MemoryLog(b"abc"))
    assert receiver.handle(Tick(), 4_999) == []
    assert sent(receiver.handle(Tick(), 5_000)) == encode_report(3)
    assert receiver.handle(Tick(), 9_999) == []
    assert sent(receiver.handle(Tick(), 10_000)) == encode_report(3)


@pytest.mark.seed("S1-50", "S1-51", "S1-63", "S1-64", "S1-66", "S1-67")
def test_whole_frames_are_appended_and_reported() -> None:
    log = MemoryLog(b"abc")
    receiver = classic(log)
    data = frame(3, b"def") + frame(6, b"") + frame(6, b"gh")
    assert got(receiver, data[:14]) == []
    assert sent(got(receiver, data[14:40])) == encode_report(6)
    assert sent(got(receiver, data[40:])) == encode_report(8)
    assert log.data == b"abcdefgh"
    assert receiver.received_bytes == 5


@pytest.mark.seed("S1-61", "S1-69")
@pytest.mark.invariant("I7")
@pytest.mark.parametrize("position", [2, 4, 100])
@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_frame_that_does_not_continue_the_log_ends_the_connection(position: int, body: bytes) -> None:
    log = MemoryLog(b"abc")
    reason = closed(got(classic(log), frame(position, body)))
    assert str(position) in reason
    assert "3" in reason
    assert log.data == b"abc"


def test_what_came_before_a_mismatch_is_kept_and_reported() -> None:
    log = MemoryLog(b"abc")
    steps = got(classic(log), frame(3, b"d") + frame(9, b"x") + frame(4, b"e"))
    assert sent(steps) == encode_report(4)
    assert closed(steps)
    assert log.data == b"abcd"


@pytest.mark.seed("S1-62")
def test_an_empty_log_takes_any_start() -> None:
    log = MemoryLog(segment_size=64)
    receiver = classic(log)
    assert sent(got(receiver, frame(128, b"abc"))) == encode_report(131)
    assert (log.base, log.data) == (128, b"abc")


@pytest.mark.seed("S1-52")
@pytest.mark.fault("F2", "F3")
def test_a_silent_master_is_left() -> None:
    receiver = classic(MemoryLog(b"abc"))
    got(receiver, frame(3, b""), now_ms=1_000)
    for now_ms in range(1_000, 21_001, 1_000):
        assert not any(isinstance(step, Close) for step in receiver.handle(Tick(), now_ms))
    assert closed(receiver.handle(Tick(), 21_001))
    assert receiver.is_closed
    assert got(receiver, frame(3, b"d")) == []


@pytest.mark.fault("F2", "F9")
def test_an_own_pause_is_no_silence_of_the_master() -> None:
    receiver = classic(MemoryLog(b"abc"))
    for pause_end_ms in (60_000, 120_000):
        steps = receiver.handle(Tick(), pause_end_ms)
        assert not any(isinstance(step, Close) for step in steps), "what the master said is not read yet"


@pytest.mark.abuse("A1")
def test_a_size_that_lies_ends_the_connection() -> None:
    log = MemoryLog(b"abc")
    assert closed(got(classic(log), struct.pack(">qi", 3, 1 << 30)))
    assert log.data == b"abc"


@pytest.mark.fault("F4")
def test_a_full_disk_ends_the_connection_for_a_while() -> None:
    log = MemoryLog(b"abc")
    log.full_at = 4
    steps = got(classic(log), frame(3, b"de"))
    assert isinstance(steps[-1], Close)
    assert steps[-1].retry_ms == OPTIONS.retry_interval_ms


@pytest.mark.seed("S0-32")
@pytest.mark.invariant("I5")
@pytest.mark.fault("F6")
def test_under_synchronous_flush_only_what_is_on_disk_is_reported() -> None:
    log = MemoryLog(b"abc")
    log.flushed = 3
    receiver = classic(log)
    assert got(receiver, frame(3, b"def")) == []
    assert receiver.awaits_flush
    log.flushed = 5
    assert sent(receiver.handle(Stored(), 0)) == encode_report(5)
    assert sent(receiver.handle(Tick(), 5_000)) == encode_report(5)
    log.flushed = 6
    assert sent(receiver.handle(Stored(), 0)) == encode_report(6)
    assert not receiver.awaits_flush


# -- epochs ------------------------------------------------------------------------------------------------------


def follower(
    log: MemoryLog, epochs: MemoryEpochs, epoch: int = 0, options: ReplicationOptions = OPTIONS
) -> EpochReceiver:
    receiver = EpochReceiver(log, epochs, 2, epoch, options, 0)
    receiver.handle(Connected(), 0)
    return receiver


def epoch_frame(position: int, epoch: tuple[int, int], confirm: int, body: bytes) -> bytes:
    return struct.pack(">iiqiqq", 2, len(body), position, *epoch, confirm) + body


def test_it_introduces_itself() -> None:
    options = replace(OPTIONS, sync_from_last_file=True, is_learner=True)
    receiver = EpochReceiver(MemoryLog(), MemoryEpochs(), 2, 0, options, 0)
    hello = encode_handshake(Handshake(2, from_last_file=True, wants_tables=True, is_learner=True))
    assert sent(receiver.handle(Connected(), 0)) == hello
    assert receiver.handle(Tick(), 6_000) == [], "a report has to wait for the handshake"


def test_an_empty_replica_asks_for_everything_at_once() -> None:
    receiver = follower(MemoryLog(), MemoryEpochs())
    steps = got(receiver, encode_handshake_reply(50, 3, [(1, 0), (3, 40)]))
    assert steps[0] == Following(3)
    assert sent(steps) == encode_epoch_report(0)


@pytest.mark.invariant("I7", "I11")
def test_what_the_master_never_had_is_cut_before_anything_is_asked_for() -> None:
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0), (2, 50), (4, 70))
    receiver = follower(log, epochs)
    steps = got(receiver, encode_handshake_reply(100, 5, [(1, 0), (2, 50), (3, 60), (5, 90)]))
    assert log.cuts == [60]
    assert epochs.entries == ((1, 0), (2, 50))
    assert sent(steps) == encode_epoch_report(60)


def test_a_log_that_is_a_prefix_is_not_touched() -> None:
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0))
    assert sent(got(follower(log, epochs), encode_handshake_reply(100, 1, [(1, 0)]))) == encode_epoch_report(
        80
    )
    assert log.cuts == []


def test_epochs_whose_bytes_a_crash_took_do_not_count() -> None:
    log, epochs = MemoryLog(bytes(50)), MemoryEpochs((1, 0), (2, 50), (3, 60))
    got(follower(log, epochs), encode_handshake_reply(100, 4, [(1, 0), (4, 50)]))
    assert epochs.entries == ((1, 0),)
    assert log.cuts == []


@pytest.mark.invariant("I12")
def test_a_log_that_shares_nothing_is_left_alone_and_says_so() -> None:
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0))
    steps = got(follower(log, epochs), encode_handshake_reply(100, 2, [(2, 0)]))
    assert "shares no epoch" in closed(steps)
    assert log.cuts == []
    assert closed(
        got(follower(MemoryLog(bytes(80)), MemoryEpochs()), encode_handshake_reply(100, 2, [(2, 0)]))
    )


@pytest.mark.invariant("I12")
def test_unconfirmed_log_of_a_first_master_is_discarded() -> None:
    """It stopped before any replica had a byte; the next master's log begins at the same place."""
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0))
    log.confirmed = 0
    steps = got(follower(log, epochs), encode_handshake_reply(100, 2, [(2, 0)]))
    assert sent(steps) == encode_epoch_report(0)
    assert log.cuts == [0]
    assert epochs.entries == ()
    # The master has lost the beginning of its log, or never had it: what is here may be all there is.
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0))
    log.confirmed = 0
    assert "shares no epoch" in closed(got(follower(log, epochs), encode_handshake_reply(640, 2, [(2, 64)])))
    assert log.cuts == []


@pytest.mark.invariant("I6")
@pytest.mark.fault("F12")
def test_a_master_of_an_older_epoch_gets_no_acknowledgement_and_is_told() -> None:
    log, epochs = MemoryLog(bytes(80)), MemoryEpochs((1, 0))
    receiver = follower(log, epochs, epoch=3)
    steps = got(receiver, encode_handshake_reply(70, 2, [(1, 0)]) + epoch_frame(70, (1, 0), 0, b"x"))
    assert sent(steps) == encode_newer_epoch(3)
    assert closed(steps)
    assert log.cuts == []


@pytest.mark.invariant("I6")
def test_following_a_newer_epoch_ends_the_connection_of_the_older_one() -> None:
    log, epochs = MemoryLog(bytes(10)), MemoryEpochs((1, 0))
    receiver = follower(log, epochs, epoch=1)
    got(receiver, encode_handshake_reply(10, 1, [(1, 0)]))
    assert receiver.handle(Follow(1), 0) == []
    assert closed(receiver.handle(Follow(2), 0))
    assert got(receiver, epoch_frame(10, (1, 0), 0, b"late")) == []
    assert receiver.handle(Tick(), 5_000) == []
    assert len(log.data) == 10


def following(log: MemoryLog, epochs: MemoryEpochs, epoch: int = 9) -> EpochReceiver:
    receiver = follower(log, epochs)
    got(receiver, encode_handshake_reply(log.max_offset, epoch, epochs.entries))
    assert receiver.is_following
    return receiver


def test_an_epoch_is_written_down_before_its_first_byte() -> None:
    log, epochs = MemoryLog(bytes(10)), MemoryEpochs((1, 0))
    receiver = following(log, epochs)
    log.full_at = 10
    assert closed(got(receiver, epoch_frame(10, (3, 10), 0, b"x")))
    assert epochs.entries == ((1, 0), (3, 10))
    assert len(log.data) == 10


def test_bytes_epochs_and_confirm_offset_are_taken_in_one_go() -> None:
    log, epochs = MemoryLog(bytes(10)), MemoryEpochs((1, 0))
    receiver = following(log, epochs)
    data = (
        epoch_frame(10, (1, 0), 5, b"ab")
        + epoch_frame(12, (3, 12), 40, b"cd")
        + epoch_frame(14, (3, 12), 12, b"")
    )
    assert sent(got(receiver, data)) == encode_epoch_report(14)
    assert log.data[10:] == b"abcd"
    assert epochs.entries == ((1, 0), (3, 12))
    assert log.bounds == [5, 14], "never beyond the own end, never back"
    assert receiver.confirm_offset == 14


@pytest.mark.invariant("I6", "I7")
@pytest.mark.parametrize(
    "data",
    [
        epoch_frame(10, (2, 3), 0, b"x"),
        epoch_frame(10, (1, 0), 0, b"x"),
        epoch_frame(10, (4, 9), 0, b"x"),
        epoch_frame(10, (10, 10), 0, b"x"),
        epoch_frame(11, (3, 5), 0, b"x"),
        epoch_frame(9, (3, 5), 0, b""),
        encode_handshake_reply(10, 9, [(1, 0)]),
    ],
    ids=["older", "oldest", "begins-elsewhere", "of-no-master", "gap", "back", "second-handshake"],
)
def test_bytes_that_cannot_be_next_end_the_connection(data: bytes) -> None:
    log, epochs = MemoryLog(bytes(10)), MemoryEpochs((1, 0), (3, 5))
    assert closed(got(following(log, epochs), data))
    assert len(log.data) == 10
    assert epochs.entries == ((1, 0), (3, 5))


def test_nothing_is_taken_before_the_handshake() -> None:
    log = MemoryLog()
    for data in (epoch_frame(0, (1, 0), 0, b"x"), encode_tables_head(1, 0)):
        assert closed(got(follower(log, MemoryEpochs()), data))
    assert not log.data


def test_tables_are_acknowledged_when_they_are_applied() -> None:
    receiver = following(MemoryLog(bytes(10)), MemoryEpochs((1, 0)))
    data = encode_tables_head(4, 3) + b"all" + epoch_frame(10, (1, 0), 0, b"x")
    steps = got(receiver, data)
    assert steps[0] == ApplyTables(4, b"all")
    assert sent(steps) == encode_epoch_report(11)
    assert sent(receiver.handle(TablesDone(4), 0)) == encode_tables_applied(4)
    assert closed(got(receiver, encode_tables_head(3, 0)))
