"""The checkpoint: up to which store time log, queues and index are known to be on disk.

      0 physicMsgTimestamp    8 logicsMsgTimestamp    16 indexMsgTimestamp
     24 masterFlushedOffset  32 confirmPhyOffset
     40 ours: magic i32      44 flushed offset i64    52 CRC-32 of bytes 0..51 as u32
    (4096 bytes, big-endian, the rest zero)

An older seal has no flushed offset, and its checksum at 44; then confirmPhyOffset is both.

Rule: a value is written only after what it promises was synced, so an old checkpoint is always safe and only
costs time. The checksum is ours: a Java broker leaves it as it is, which shows as a mismatch; then, as after
damage, the times are not used and recovery reads the whole log.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime import Disk
from penstock.runtime.disk import write_in_sector

SIZE = 4096
_VALUES = struct.Struct(">5q")
_SEAL = struct.Struct(">iqI")
_MAGIC = 0x50454E32  # "PEN2"
_OLD_SEAL = struct.Struct(">iI")
_OLD_MAGIC = 0x50454E31  # "PEN1"
SAFETY_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    """Times are store times of records, in milliseconds; offsets are log positions."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    # What the replicas have as well, or without any what is flushed: a promise of visibility.
    confirm_offset: int = 0
    flushed_offset: int = 0
    trusted: bool = True
    sealed: bool = False

    @property
    def durable_offset(self) -> int:
        """The log is on disk at least up to here; only our own seal vouches for it."""
        return self.flushed_offset if self.trusted and self.sealed else 0

    @property
    def min_timestamp(self) -> int:
        """Everything stored up to this time is on disk, in the log and in the queues."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - SAFETY_MS)

    def encode(self) -> bytes:
        values = _VALUES.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        )
        sealed = values + struct.pack(">iq", _MAGIC, self.flushed_offset)
        return sealed + struct.pack(">I", zlib.crc32(sealed))

    @staticmethod
    def decode(data: bytes) -> Checkpoint:
        """Values of a file; `trusted` is False where they may not be used to skip anything."""
        if len(data) < _VALUES.size:
            return Checkpoint(trusted=False)
        checkpoint = Checkpoint(*_VALUES.unpack_from(data, 0))
        if len(data) >= _VALUES.size + _SEAL.size:
            magic, flushed, checksum = _SEAL.unpack_from(data, _VALUES.size)
            if magic == _MAGIC:
                checkpoint.flushed_offset = flushed
                checkpoint.sealed = checkpoint.trusted = zlib.crc32(data[: _VALUES.size + 12]) == checksum
            elif magic == _OLD_MAGIC:
                _, checksum = _OLD_SEAL.unpack_from(data, _VALUES.size)
                checkpoint.flushed_offset = checkpoint.confirm_offset
                checkpoint.sealed = checkpoint.trusted = zlib.crc32(data[: _VALUES.size + 4]) == checksum
            else:
                # No seal: a Java broker's, trusted as it trusts itself, unless something else is there, or nothing: a
                # page of zeros may have been ours.
                is_sealless = not any(data[_VALUES.size : _VALUES.size + _SEAL.size])
                checkpoint.trusted = is_sealless and any(data[: _VALUES.size])
        if min(*_VALUES.unpack_from(data, 0), checkpoint.flushed_offset) < 0:
            checkpoint.trusted = False
        return checkpoint


class CheckpointFile:
    """Reads and writes the file; used by the keeper thread, and by the owner at open and close."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def load(self) -> Checkpoint:
        """The stored values; an absent file is an untrusted empty checkpoint."""
        if not self._disk.exists(self._path):
            return Checkpoint(trusted=False)
        return Checkpoint.decode(self._disk.read(self._path)[:SIZE])

    def save(self, checkpoint: Checkpoint) -> None:
        """56 bytes inside one disk sector: written whole or not at all."""
        write_in_sector(self._disk, self._path, checkpoint.encode(), SIZE)
