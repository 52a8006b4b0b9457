"""The frames of both streams, cut anywhere, joined, and lying."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FrameError
from penstock.replication.frames import (
    EPOCHS_MAX,
    EpochTransfer,
    FrameReader,
    Handshake,
    HandshakeReply,
    MasterFrameReader,
    NewerEpoch,
    ReplicaFrameReader,
    Report,
    ReportReader,
    TablesApplied,
    TablesFrame,
    Transfer,
    TransferReader,
    encode_epoch_report,
    encode_epoch_transfer_head,
    encode_handshake,
    encode_handshake_reply,
    encode_newer_epoch,
    encode_report,
    encode_tables_applied,
    encode_tables_head,
    encode_transfer_head,
)

LIMIT = 1000


def master_reader() -> MasterFrameReader:
    return MasterFrameReader(LIMIT, LIMIT)


def plain(frame: object) -> object:
    """A frame whose body can be compared after its buffer is gone."""
    if isinstance(frame, Transfer):
        return Transfer(frame.position, bytes(frame.body))  # type: ignore[arg-type]
    if isinstance(frame, EpochTransfer):
        values = (frame.position, frame.epoch, frame.epoch_start, frame.confirm_offset)
        return EpochTransfer(*values, bytes(frame.body))  # type: ignore[arg-type]
    return frame


def read(reader: FrameReader[Any], *pieces: bytes) -> list[object]:
    return [plain(frame) for piece in pieces for frame in reader.feed(piece)]


@pytest.mark.seed("S1-39", "S1-40", "S1-41", "S1-70")
def test_a_classic_report_is_eight_bytes() -> None:
    assert encode_report(0x0102030405060708) == bytes([1, 2, 3, 4, 5, 6, 7, 8])
    assert read(ReportReader(), encode_report(77)) == [Report(77)]


@pytest.mark.seed("S1-42", "S1-43", "S1-44", "S1-45", "S1-57", "S1-60")
def test_a_classic_transfer_is_position_size_and_bytes() -> None:
    frame = encode_transfer_head(1 << 40, 5) + b"water"
    assert frame == struct.pack(">qi", 1 << 40, 5) + b"water"
    assert len(encode_transfer_head(0, 0)) == 12
    assert read(TransferReader(LIMIT), frame) == [Transfer(1 << 40, b"water")]  # type: ignore[arg-type]


def test_epoch_frames_are_what_rocketmq_writes() -> None:
    assert encode_handshake(Handshake(3, from_last_file=True)) == struct.pack(">ihhq", 1, 1, 0, 3)
    assert encode_handshake(Handshake(3, is_learner=True)) == struct.pack(">ihhq", 1, 0, 1, 3)
    assert encode_epoch_report(99) == struct.pack(">iq", 2, 99)
    reply = encode_handshake_reply(500, 7, [(5, 0), (7, 400)])
    assert reply == struct.pack(">iiqi", 1, 24, 500, 7) + struct.pack(">iqiq", 5, 0, 7, 400)
    head = encode_epoch_transfer_head(450, 10, (7, 400), 440)
    assert head == struct.pack(">iiqiqq", 2, 10, 450, 7, 400, 440)
    assert len(head) == 36


def test_our_own_frames() -> None:
    assert encode_handshake(Handshake(3, wants_tables=True)) == struct.pack(">ihhq", 1, 2, 0, 3)
    assert encode_tables_head(8, 4) == struct.pack(">iiq", 6, 4, 8)
    assert encode_tables_applied(8) == struct.pack(">iq", 6, 8)
    assert encode_newer_epoch(9) == struct.pack(">iq", 7, 9)


@pytest.mark.seed("S1-78", "S1-79")
def test_of_joined_reports_only_the_last_complete_one_counts() -> None:
    reader = ReportReader()
    joined = encode_report(10) + encode_report(20) + encode_report(30)[:5]
    assert read(reader, joined) == [Report(20)]
    assert reader.kept_bytes == 5
    assert read(reader, encode_report(30)[5:] + encode_report(40)) == [Report(40)]
    assert reader.kept_bytes == 0


TO_REPLICA = b"".join(
    [
        encode_handshake_reply(500, 7, [(5, 0), (7, 400)]),
        encode_tables_head(3, 6) + b"tables",
        encode_epoch_transfer_head(450, 0, (7, 400), 440),
        encode_epoch_transfer_head(450, 10, (7, 400), 440) + b"0123456789",
        encode_tables_head(4, 0),
    ]
)
REPLICA_FRAMES = [
    HandshakeReply(500, 7, ((5, 0), (7, 400))),
    TablesFrame(3, b"tables"),
    EpochTransfer(450, 7, 400, 440, b""),  # type: ignore[arg-type]
    EpochTransfer(450, 7, 400, 440, b"0123456789"),  # type: ignore[arg-type]
    TablesFrame(4, b""),
]
TO_MASTER = b"".join(
    [
        encode_handshake(Handshake(3, True, True, True)),
        encode_epoch_report(0),
        encode_tables_applied(5),
        encode_epoch_report(1 << 62),
        encode_newer_epoch(9),
    ]
)
MASTER_FRAMES = [Handshake(3, True, True, True), Report(0), TablesApplied(5), Report(1 << 62), NewerEpoch(9)]
CLASSIC = encode_transfer_head(0, 3) + b"abc" + encode_transfer_head(3, 0) + encode_transfer_head(3, 1) + b"d"
CLASSIC_FRAMES = [Transfer(0, b"abc"), Transfer(3, b""), Transfer(3, b"d")]  # type: ignore[arg-type]
STREAMS: list[tuple[Callable[[], FrameReader[Any]], bytes, list[Any]]] = [
    (lambda: TransferReader(LIMIT), CLASSIC, CLASSIC_FRAMES),
    (ReplicaFrameReader, TO_MASTER, MASTER_FRAMES),
    (master_reader, TO_REPLICA, REPLICA_FRAMES),
]
each_stream = pytest.mark.parametrize(
    ("make", "data", "frames"), STREAMS, ids=["classic", "to-master", "to-replica"]
)


@each_stream
@pytest.mark.seed("S1-58", "S1-59", "S1-63", "S1-65", "S1-67", "S1-68")
@pytest.mark.fault("F3")
def test_frames_joined_and_cut_at_every_byte(
    make: Callable[[], FrameReader[Any]], data: bytes, frames: list[Any]
) -> None:
    assert read(make(), data) == frames
    assert read(make(), *(data[at : at + 1] for at in range(len(data)))) == frames
    for cut in range(len(data)):
        assert read(make(), data[:cut], data[cut:]) == frames


@given(st.lists(st.integers(0, len(TO_REPLICA))))
def test_frames_cut_in_any_pieces(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(TO_REPLICA)]
    pieces = [TO_REPLICA[a:b] for a, b in itertools.pairwise(ends)]
    assert read(master_reader(), *pieces) == REPLICA_FRAMES


def test_a_body_outlives_the_next_bytes() -> None:
    reader = TransferReader(LIMIT)
    first = encode_transfer_head(0, 3) + b"abc"
    frames = [*reader.feed(first[:5]), *reader.feed(first[5:] + first[:7]), *reader.feed(first[7:])]
    assert [bytes(frame.body) for frame in frames] == [b"abc", b"abc"]


@pytest.mark.abuse("A1", "A16")
@pytest.mark.parametrize(
    ("make", "data"),
    [
        (ReportReader, encode_report(-1)),
        (lambda: TransferReader(LIMIT), struct.pack(">qi", 0, LIMIT + 1)),
        (lambda: TransferReader(LIMIT), struct.pack(">qi", 0, -1)),
        (lambda: TransferReader(LIMIT), struct.pack(">qi", -1, 0)),
        (lambda: TransferReader(LIMIT), struct.pack(">qi", (1 << 63) - 1, 1)),
        (ReplicaFrameReader, struct.pack(">iq", 3, 0)),
        (ReplicaFrameReader, struct.pack(">iq", -1, 0)),
        (ReplicaFrameReader, struct.pack(">iq", 2, -1)),
        (ReplicaFrameReader, struct.pack(">iq", 6, -1)),
        (ReplicaFrameReader, struct.pack(">iq", 7, -1)),
        (ReplicaFrameReader, struct.pack(">ihhq", 1, 0, 0, -5)),
        (master_reader, struct.pack(">ii", 1, 13)),
        (master_reader, struct.pack(">ii", 1, -12)),
        (master_reader, struct.pack(">ii", 1, 12 * (EPOCHS_MAX + 1))),
        (master_reader, struct.pack(">ii", 2, LIMIT + 1)),
        (master_reader, struct.pack(">ii", 2, -1)),
        (master_reader, struct.pack(">ii", 6, LIMIT + 1)),
        (master_reader, struct.pack(">ii", 6, -1)),
        (master_reader, struct.pack(">ii", 9, 0)),
        (master_reader, struct.pack(">iiqiqq", 2, 0, -1, 1, 0, 0)),
        (master_reader, struct.pack(">iiqiqq", 2, 1, 5, 1, 6, 0) + b"x"),
        (master_reader, struct.pack(">iiqi", 1, 0, -1, 1)),
        (master_reader, encode_handshake_reply(9, 7, [(5, 4), (5, 6)])),
        (master_reader, encode_handshake_reply(9, 7, [(5, 4), (6, 4)])),
        (master_reader, encode_handshake_reply(9, 7, [(8, 4)])),
    ],
)
def test_a_size_or_a_value_that_cannot_be_true_is_refused(
    make: Callable[[], FrameReader[Any]], data: bytes
) -> None:
    reader = make()
    with pytest.raises(FrameError):
        read(reader, data)
    assert reader.kept_bytes < 32, "nothing was kept for it"


def test_frames_before_a_broken_one_are_read() -> None:
    frames = master_reader().feed(encode_tables_head(4, 0) + struct.pack(">ii", 2, -1))
    assert next(frames) == TablesFrame(4, b"")
    with pytest.raises(FrameError):
        next(frames)


def test_a_master_lists_its_newest_thousand_epochs() -> None:
    epochs = [(number, number * 10) for number in range(1, 1502)]
    (reply,) = read(MasterFrameReader(LIMIT, LIMIT), encode_handshake_reply(99_999, 1501, epochs))
    assert isinstance(reply, HandshakeReply)
    assert reply.epochs == tuple(epochs[-1000:])
