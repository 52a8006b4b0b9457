"""How far timers have come: `config/timercheck`, 4096 bytes, big-endian, the rest zero.

     0 read time ms i64        slots before it are delivered         24 master's queue offset i64   see below
     8 timer log position i64  up to here log and wheel are synced   32 state version i64
    16 queue offset i64        next of the timer topic to enqueue    40 timestamp i64               48 counter i64
    64 ours: magic i32         68 exact time ms i64                  76 CRC-32 of bytes 0..55 and 68..75

A message whose queue offset is below the master's, and whose time is not after the exact one, is delivered; no
other is known to be. The exact time is in the second that begins with the read time. A Java broker writes the first
56 bytes only: then the checksum does not fit, and the read time is all that counts.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime import Disk
from penstock.runtime.disk import make_lasting_dirs
from penstock.store.timer_wheel import slot_time

SIZE = 4096
WIRE_SIZE = 56
_VALUES = struct.Struct(">7q")
_SEAL = struct.Struct(">iqI")
_SEAL_AT = 64
_MAGIC = 0x50454E54  # "PENT"


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Times in milliseconds; `read_ms` is exact."""

    read_ms: int = 0
    log_position: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def wire(self) -> bytes:
        """As a slave asks for it (60)."""
        return _VALUES.pack(
            slot_time(self.read_ms),
            self.log_position,
            self.queue_offset,
            self.master_offset,
            self.state_version,
            self.timestamp_ms,
            self.counter,
        )

    def encode(self) -> bytes:
        values = self.wire()
        exact = struct.pack(">q", self.read_ms)
        seal = _SEAL.pack(_MAGIC, self.read_ms, zlib.crc32(values + exact))
        return values + bytes(_SEAL_AT - len(values)) + seal

    @staticmethod
    def decode(data: bytes) -> TimerCheckpoint | None:
        """The values; None where there are none that can be meant."""
        if len(data) < _VALUES.size:
            return None
        values = _VALUES.unpack_from(data)
        if min(values[:4]) < 0:
            return None
        read_ms = values[0]
        if len(data) >= _SEAL_AT + _SEAL.size:
            magic, exact, checksum = _SEAL.unpack_from(data, _SEAL_AT)
            covered = data[:WIRE_SIZE] + struct.pack(">q", exact)
            if magic == _MAGIC and checksum == zlib.crc32(covered) and slot_time(exact) == read_ms:
                read_ms = exact
        return TimerCheckpoint(read_ms, *values[1:])


class TimerCheckpointFile:
    """Reads and writes the file."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def load(self) -> TimerCheckpoint | None:
        if not self._disk.exists(self._path):
            return None
        return TimerCheckpoint.decode(self._disk.read(self._path)[:SIZE])

    def save(self, checkpoint: TimerCheckpoint) -> None:
        """80 bytes inside one disk sector: written whole or not at all."""
        created = not self._disk.exists(self._path)
        if created:
            make_lasting_dirs(self._disk, self._path.parent)
        file = self._disk.open(self._path, create=True)
        try:
            if file.size() != SIZE:
                file.truncate(SIZE)
            file.pwrite(checkpoint.encode(), 0)
            file.sync()
        finally:
            file.close()
        if created:
            self._disk.sync_dir(self._path.parent)
