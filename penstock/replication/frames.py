"""The two replication streams in bytes, and readers for either side of each.

    classic, replica to master      classic, master to replica
    0                 8             0                 8        12
    +-----------------+             +-----------------+--------+----------------+
    | max offset  i64 |             | position    i64 | size   | size log bytes |
    +-----------------+             +-----------------+--------+----------------+

    epochs, replica to master                         epochs, master to replica
    handshake 1  | flags i16 | learner i16 | id i64   handshake 1 | size | max i64 | epoch i32 | entries of 12 bytes
    transfer  2  | max offset i64                     transfer  2 | size | position i64 | epoch i32
    tables    6  | sequence i64                                   | epoch start i64 | confirm i64 | log bytes
    newer     7  | epoch i64                          tables    6 | size | sequence i64 | body

The first field of an epoch frame is its kind, an i32, and `size` is an i32. Kinds 6 and 7 are ours. The whole grammar
is in `docs/formats/replication-stream.md`.

Rule: a reader takes bytes as they come, joined or in part, and keeps no more than one frame. A size that cannot be
true raises FrameError before anything is kept for it. No I/O here.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import FrameError

# (epoch, log position of its first byte), ascending in both.
Epoch = tuple[int, int]

HANDSHAKE, TRANSFER, TABLES, NEWER_EPOCH = 1, 2, 6, 7
FLAG_LAST_FILE, FLAG_TABLES = 1, 2
EPOCHS_MAX = 1000
POSITION_MAX = (1 << 63) - 1

_REPORT = struct.Struct(">q")
_CLASSIC = struct.Struct(">qi")
_HANDSHAKE = struct.Struct(">ihhq")
_WORD = struct.Struct(">iq")
_HANDSHAKE_REPLY = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")
_TABLES = struct.Struct(">iiq")
_KIND = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Log bytes of a classic master; without any it is a heartbeat."""

    position: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Handshake:
    """A replica introduces itself."""

    replica_id: int
    from_last_file: bool = False
    wants_tables: bool = False
    is_learner: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """How far a replica has the log."""

    offset: int


@dataclass(frozen=True, slots=True)
class TablesApplied:
    """A replica has applied side tables up to a sequence number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class NewerEpoch:
    """A replica follows a newer epoch than the master's."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """A master's end, its epoch, and the epochs of its log."""

    max_offset: int
    epoch: int
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class EpochTransfer:
    """Log bytes of one epoch; without any it is a heartbeat."""

    position: int
    epoch: int
    epoch_start: int
    confirm_offset: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class TablesFrame:
    """Side tables, or changes to them; what the bytes mean is the broker's business."""

    sequence: int
    body: bytes


ReplicaFrame = Handshake | Report | TablesApplied | NewerEpoch
MasterFrame = HandshakeReply | EpochTransfer | TablesFrame
FrameT = TypeVar("FrameT")


# -- writing -----------------------------------------------------------------------------------------------------


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_transfer_head(position: int, size: int) -> bytes:
    return _CLASSIC.pack(position, size)


def encode_handshake(frame: Handshake) -> bytes:
    flags = (FLAG_LAST_FILE if frame.from_last_file else 0) | (FLAG_TABLES if frame.wants_tables else 0)
    return _HANDSHAKE.pack(HANDSHAKE, flags, int(frame.is_learner), frame.replica_id)


def encode_epoch_report(offset: int) -> bytes:
    return _WORD.pack(TRANSFER, offset)


def encode_tables_applied(sequence: int) -> bytes:
    return _WORD.pack(TABLES, sequence)


def encode_newer_epoch(epoch: int) -> bytes:
    return _WORD.pack(NEWER_EPOCH, epoch)


def encode_handshake_reply(max_offset: int, epoch: int, epochs: Sequence[Epoch]) -> bytes:
    """Only the newest epochs fit; a replica that shares none of them has to begin anew."""
    listed = epochs[-EPOCHS_MAX:]
    head = _HANDSHAKE_REPLY.pack(HANDSHAKE, len(listed) * _EPOCH.size, max_offset, epoch)
    return head + b"".join(_EPOCH.pack(*entry) for entry in listed)


def encode_epoch_transfer_head(position: int, size: int, epoch: Epoch, confirm_offset: int) -> bytes:
    return _TRANSFER.pack(TRANSFER, size, position, epoch[0], epoch[1], confirm_offset)


def encode_tables_head(sequence: int, size: int) -> bytes:
    return _TABLES.pack(TABLES, size, sequence)


# -- reading -----------------------------------------------------------------------------------------------------


class FrameReader(ABC, Generic[FrameT]):
    """Bytes in, frames out. Bodies are views of what was fed, valid for as long as somebody holds them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def kept_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[FrameT]:
        """The frames that are complete now. To be used up before the next call; frames before a broken one count."""
        if self._rest:
            self._rest += data
            source: bytes | bytearray | memoryview = self._rest
        else:
            source = data
        view = memoryview(source)
        at, size = 0, len(view)
        while at < size:
            length = self._length(view, at, size - at)
            if length == 0 or length > size - at:
                break
            frame = self._decode(view, at, length)
            at += length
            if frame is not None:
                yield frame
        if at < size:
            if at or source is not self._rest:
                # A new buffer: views of the old one may still be held, and then it cannot change its size.
                self._rest = bytearray(view[at:])
        elif source is self._rest:
            self._rest = bytearray()

    @abstractmethod
    def _length(self, view: memoryview, at: int, available: int) -> int:
        """Bytes of the frame at `at`, 0 if that cannot be said yet."""

    @abstractmethod
    def _decode(self, view: memoryview, at: int, length: int) -> FrameT | None:
        """The frame, which is complete; None if a later one makes it void."""


class ReportReader(FrameReader[Report]):
    """What a classic slave says: only the last complete offset of what came together matters."""

    def _length(self, view: memoryview, at: int, available: int) -> int:
        return available - available % _REPORT.size

    def _decode(self, view: memoryview, at: int, length: int) -> Report:
        (offset,) = _REPORT.unpack_from(view, at + length - _REPORT.size)
        return Report(_position(offset, "reported offset"))


class TransferReader(FrameReader[Transfer]):
    """What a classic master says."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__()
        self._body_bytes_max = body_bytes_max

    def _length(self, view: memoryview, at: int, available: int) -> int:
        if available < _CLASSIC.size:
            return 0
        position, size = _CLASSIC.unpack_from(view, at)
        _log_bytes(position, size, self._body_bytes_max)
        return _CLASSIC.size + int(size)

    def _decode(self, view: memoryview, at: int, length: int) -> Transfer:
        position, _ = _CLASSIC.unpack_from(view, at)
        return Transfer(position, view[at + _CLASSIC.size : at + length])


class ReplicaFrameReader(FrameReader[ReplicaFrame]):
    """What a replica says to the master of its epoch."""

    def _length(self, view: memoryview, at: int, available: int) -> int:
        if available < _KIND.size:
            return 0
        (kind,) = _KIND.unpack_from(view, at)
        if kind == HANDSHAKE:
            return _HANDSHAKE.size
        if kind in (TRANSFER, TABLES, NEWER_EPOCH):
            return _WORD.size
        raise FrameError(
            f"a replica sent a frame of kind {kind}", "is it one of another replication protocol?"
        )

    def _decode(self, view: memoryview, at: int, length: int) -> ReplicaFrame:
        if length == _HANDSHAKE.size:
            _, flags, learner, replica_id = _HANDSHAKE.unpack_from(view, at)
            return Handshake(
                _position(replica_id, "replica id"),
                bool(flags & FLAG_LAST_FILE),
                bool(flags & FLAG_TABLES),
                learner == 1,
            )
        kind, value = _WORD.unpack_from(view, at)
        if kind == TRANSFER:
            return Report(_position(value, "reported offset"))
        if kind == TABLES:
            return TablesApplied(_position(value, "sequence of tables"))
        return NewerEpoch(_position(value, "epoch"))


class MasterFrameReader(FrameReader[MasterFrame]):
    """What the master of an epoch says."""

    def __init__(self, body_bytes_max: int, tables_bytes_max: int) -> None:
        super().__init__()
        self._body_bytes_max = body_bytes_max
        self._tables_bytes_max = tables_bytes_max

    def _length(self, view: memoryview, at: int, available: int) -> int:
        if available < _KIND.size * 2:
            return 0
        (kind,) = _KIND.unpack_from(view, at)
        (size,) = _KIND.unpack_from(view, at + _KIND.size)
        if kind == HANDSHAKE:
            if not 0 <= size <= EPOCHS_MAX * _EPOCH.size or size % _EPOCH.size:
                raise FrameError(f"a handshake with {size} bytes of epochs")
            return _HANDSHAKE_REPLY.size + int(size)
        if kind == TRANSFER:
            _log_bytes(0, size, self._body_bytes_max)
            return _TRANSFER.size + int(size)
        if kind == TABLES:
            if not 0 <= size <= self._tables_bytes_max:
                raise FrameError(
                    f"side tables of {size} bytes", f"at most {self._tables_bytes_max} are accepted"
                )
            return _TABLES.size + int(size)
        raise FrameError(
            f"a master sent a frame of kind {kind}", "is it one of another replication protocol?"
        )

    def _decode(self, view: memoryview, at: int, length: int) -> MasterFrame:
        (kind,) = _KIND.unpack_from(view, at)
        if kind == HANDSHAKE:
            _, _, max_offset, epoch = _HANDSHAKE_REPLY.unpack_from(view, at)
            epochs = tuple(_EPOCH.iter_unpack(view[at + _HANDSHAKE_REPLY.size : at + length]))
            return _checked(HandshakeReply(_position(max_offset, "end of the log"), epoch, epochs))
        if kind == TABLES:
            _, _, sequence = _TABLES.unpack_from(view, at)
            return TablesFrame(
                _position(sequence, "sequence of tables"), bytes(view[at + _TABLES.size : at + length])
            )
        _, size, position, epoch, epoch_start, confirm = _TRANSFER.unpack_from(view, at)
        _log_bytes(position, size, self._body_bytes_max)
        if not 0 <= epoch_start <= position and size:
            raise FrameError(f"bytes at {position} in an epoch that begins at {epoch_start}")
        return EpochTransfer(position, epoch, epoch_start, confirm, view[at + _TRANSFER.size : at + length])


def _position(value: int, what: str) -> int:
    if value < 0:
        raise FrameError(f"the {what} is {value}", "it cannot be negative")
    return value


def _log_bytes(position: int, size: int, size_max: int) -> None:
    """Refuse sizes that lie before a byte is kept for them."""
    if not 0 <= size <= size_max:
        raise FrameError(f"a frame with {size} log bytes", f"at most {size_max} are accepted")
    if position < 0 or position + size > POSITION_MAX:
        raise FrameError(f"a frame with log bytes at {position}")


def _checked(reply: HandshakeReply) -> HandshakeReply:
    """Epochs ascend, or nothing could be concluded from them."""
    before: Epoch = (-1, -1)
    for entry in reply.epochs:
        if entry[0] <= before[0] or entry[1] <= before[1]:
            raise FrameError(f"epoch {entry[0]} from {entry[1]} follows epoch {before[0]} from {before[1]}")
        before = entry
    if before[0] > reply.epoch:
        raise FrameError(f"a master of epoch {reply.epoch} has bytes of epoch {before[0]}")
    return reply
