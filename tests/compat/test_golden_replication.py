"""The examples of docs/formats/replication-stream.md against the product, byte for byte."""

from __future__ import annotations

import struct

import pytest

from penstock.replication.frames import (
    EpochTransfer,
    Handshake,
    HandshakeReply,
    MasterFrameReader,
    NewerEpoch,
    ReplicaFrameReader,
    Report,
    ReportReader,
    TablesApplied,
    TablesFrame,
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
from tests.compat.test_golden_bytes import GOLDEN

EPOCHS = ((5, 0), (7, 200))


def test_the_frames_follow_the_rules() -> None:
    assert struct.pack(">q", 236) == GOLDEN["ha-report"]
    assert struct.pack(">qi", 236, 5) + b"water" == GOLDEN["ha-transfer"]
    assert struct.pack(">ihhq", 1, 2, 0, 2) == GOLDEN["ha-handshake"]
    assert struct.pack(">iiqiiqiq", 1, 24, 241, 7, 5, 0, 7, 200) == GOLDEN["ha-handshake-reply"]
    assert struct.pack(">iq", 2, 236) == GOLDEN["ha-epoch-report"]
    assert struct.pack(">iiq", 6, 2, 3) + b"{}" == GOLDEN["ha-tables"]
    assert struct.pack(">iiqiqq", 2, 5, 236, 7, 200, 230) + b"water" == GOLDEN["ha-epoch-transfer"]
    assert struct.pack(">iq", 6, 3) == GOLDEN["ha-tables-applied"]
    assert struct.pack(">iq", 7, 8) == GOLDEN["ha-newer-epoch"]


@pytest.mark.seed("S1-41", "S1-43", "S1-44", "S1-45")
def test_the_frames_are_what_is_written() -> None:
    assert encode_report(236) == GOLDEN["ha-report"]
    assert encode_transfer_head(236, 5) + b"water" == GOLDEN["ha-transfer"]
    assert encode_handshake(Handshake(2, wants_tables=True)) == GOLDEN["ha-handshake"]
    assert encode_handshake_reply(241, 7, EPOCHS) == GOLDEN["ha-handshake-reply"]
    assert encode_epoch_report(236) == GOLDEN["ha-epoch-report"]
    assert encode_tables_head(3, 2) + b"{}" == GOLDEN["ha-tables"]
    assert encode_epoch_transfer_head(236, 5, (7, 200), 230) + b"water" == GOLDEN["ha-epoch-transfer"]
    assert encode_tables_applied(3) == GOLDEN["ha-tables-applied"]
    assert encode_newer_epoch(8) == GOLDEN["ha-newer-epoch"]


def test_the_frames_are_read_as_what_they_are() -> None:
    assert list(ReportReader().feed(GOLDEN["ha-report"])) == [Report(236)]
    (transfer,) = TransferReader(100).feed(GOLDEN["ha-transfer"])
    assert (transfer.position, bytes(transfer.body)) == (236, b"water")
    names = ("ha-handshake", "ha-epoch-report", "ha-tables-applied", "ha-newer-epoch")
    assert list(ReplicaFrameReader().feed(b"".join(GOLDEN[name] for name in names))) == [
        Handshake(2, wants_tables=True),
        Report(236),
        TablesApplied(3),
        NewerEpoch(8),
    ]
    names = ("ha-handshake-reply", "ha-tables", "ha-epoch-transfer")
    reply, tables, bytes_of_7 = MasterFrameReader(100, 100).feed(b"".join(GOLDEN[name] for name in names))
    assert reply == HandshakeReply(241, 7, EPOCHS)
    assert tables == TablesFrame(3, b"{}")
    assert isinstance(bytes_of_7, EpochTransfer)
    assert (bytes_of_7.epoch, bytes_of_7.epoch_start, bytes_of_7.confirm_offset) == (7, 200, 230)
    assert bytes(bytes_of_7.body) == b"water"
