"""The timer log: one record for every message that went to the wheel, chained by slot, newest to oldest.

    record, 52 bytes     0 size i32 (52)   4 previous of the chain i64, -1 for none   12 bits i32: 1, 2 roll, 4 delete
                        16 write time ms i64   24 slot minus write time ms i32   28 log position i64   36 size i32
                        40 hash of the real topic i32   44 zero i64
    blank, 16 bytes      0 bytes left i32   4 zero i64   12 magic 0xCBD43194; where record and blank do not fit
    `timerlog/<20 digits>`   files of one size, named by the position of their first byte; zero behind the end

Records follow the order of the timer topic's queue, so their log positions only grow. A record has no checksum:
what it points at is looked at before it is believed. Appends are buffered until `commit`. Owned by one thread,
except `sync`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.runtime import Disk
from penstock.runtime.disk import File
from penstock.store.layout import parse_position, position_name
from penstock.store.timer_wheel import NOWHERE, TimerFilesDamagedError

RECORD_SIZE = 52
BLANK_SIZE = 16
DEFAULT, ROLL, DELETE = 1, 2, 4
_RECORD = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqI")
_BLANK_MAGIC = 0xCBD43194
_CHUNK = RECORD_SIZE * 20_000


class TimerRecord(NamedTuple):
    """A message in the wheel."""

    previous: int
    bits: int
    write_ms: int
    slot_ms: int
    position: int
    size: int
    topic_hash: int

    def encode(self) -> bytes:
        return _RECORD.pack(
            RECORD_SIZE,
            self.previous,
            self.bits,
            self.write_ms,
            self.slot_ms - self.write_ms,
            self.position,
            self.size,
            self.topic_hash,
            0,
        )


class TimerLog:
    """See the module's text."""

    def __init__(self, disk: Disk, folder: Path, file_size: int) -> None:
        self._disk = disk
        self._folder = folder
        self._size = file_size
        self._files: dict[int, File] = {}
        self._unsynced: set[int] = set()
        self._buffer: list[tuple[int, bytes]] = []
        self._next = 0
        # Everything before it is in the files.
        self.end = 0

    @property
    def start(self) -> int:
        """Position of the oldest record that is kept."""
        return min(self._files, default=self.end)

    def load(self) -> bool:
        """Open the files; whether there are any. Raises TimerFilesDamagedError if they are not one log."""
        self.close()
        bases = [base for name in self._disk.list(self._folder) if (base := parse_position(name)) is not None]
        for number, base in enumerate(bases):
            path = self._folder / position_name(base)
            if base != bases[0] + number * self._size or self._disk.size(path) != self._size:
                raise TimerFilesDamagedError(
                    f"timer log file {path.name} does not fit files of {self._size} bytes"
                )
            self._files[base] = self._disk.open(path)
        self.end = self._next = bases[0] if bases else 0
        return bool(bases)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, position: int) -> TimerRecord | None:
        """The record at a position; None if there is none."""
        if position < 0 or position >= self.end:
            return None
        base = position - position % self._size
        file = self._files.get(base)
        return None if file is None else _record(file.pread(RECORD_SIZE, position - base), position)

    def scan(self, position: int, end: int | None = None) -> Iterator[tuple[int, TimerRecord]]:
        """Records from a position on, up to `end`, or up to the first place where there is none."""
        while True:
            base = position - position % self._size
            file = self._files.get(base)
            if file is None:
                return
            data = file.pread(min(_CHUNK, self._size - (position - base)), position - base)
            at = 0
            while at + RECORD_SIZE <= len(data):
                if end is not None and position >= end:
                    return
                record = _record(data[at : at + RECORD_SIZE], position)
                if record is None:
                    break
                yield position, record
                at += RECORD_SIZE
                position += RECORD_SIZE
            if at == 0 or at + RECORD_SIZE <= len(data):
                if not self._is_blank(file, position - base):
                    return
                position = base + self._size

    def _is_blank(self, file: File, at: int) -> bool:
        data = file.pread(BLANK_SIZE, at)
        return len(data) == BLANK_SIZE and _BLANK.unpack(data)[2] == _BLANK_MAGIC

    def found_end(self, end: int) -> None:
        """Recovery says where the log ends; what is behind it is no record, and is made zero."""
        for base in [base for base in self._files if base >= end and base != self.start]:
            self._files.pop(base).close()
            self._disk.remove(self._folder / position_name(base))
        file = self._files.get(end - end % self._size)
        if file is not None:
            first = end % self._size
            for start, stop in list(file.data_ranges(first, self._size)):
                for at in range(start, stop, _CHUNK):
                    count = min(_CHUNK, stop - at)
                    if any(file.pread(count, at)):
                        file.pwrite(bytes(count), at)
                        self._unsynced.add(end - end % self._size)
        self.end = self._next = end

    # -- appending -------------------------------------------------------------------------------------------

    def place(self) -> int:
        """Where the next record goes."""
        at = self._next % self._size
        if at + RECORD_SIZE + BLANK_SIZE <= self._size:
            return self._next
        self._buffer.append((self._next, _BLANK.pack(self._size - at, 0, _BLANK_MAGIC)))
        self._next += self._size - at
        return self._next

    def append(self, record: TimerRecord) -> int:
        """Put a record into the buffer; its position."""
        position = self.place()
        self._buffer.append((position, record.encode()))
        self._next = position + RECORD_SIZE
        return position

    def commit(self) -> None:
        """Write the buffer. Raises OSError; then nothing of it counts."""
        buffer, self._buffer = self._buffer, []
        end, self._next = self._next, self.end
        pieces: list[tuple[int, bytearray]] = []
        for position, data in buffer:
            last = pieces[-1] if pieces else None
            if last is not None and last[0] + len(last[1]) == position and position % self._size:
                last[1].extend(data)
            else:
                pieces.append((position, bytearray(data)))
        for position, piece in pieces:
            base = position - position % self._size
            self._file(base).pwrite(piece, position - base)
            self._unsynced.add(base)
        self.end = self._next = end

    def drop_buffer(self) -> None:
        self._buffer, self._next = [], self.end

    def _file(self, base: int) -> File:
        file = self._files.get(base)
        if file is None:
            self._disk.make_dirs(self._folder)
            file = self._disk.open(self._folder / position_name(base), create=True)
            self._files[base] = file
            file.truncate(self._size)
            self._disk.sync_dir(self._folder)
        return file

    def begin_sync(self) -> list[File]:
        """The files that have to be synced for what is in them now."""
        bases, self._unsynced = self._unsynced, set()
        return [self._files[base] for base in bases if base in self._files]

    # -- the other end ---------------------------------------------------------------------------------------

    def delete_before(self, position: int) -> int:
        """Delete files whose records are all before a position, never the last one; how many."""
        gone = [base for base in sorted(self._files)[:-1] if base + self._size <= min(position, self.end)]
        for base in gone:
            self._unsynced.discard(base)
            self._files.pop(base).close()
            self._disk.remove(self._folder / position_name(base))
        return len(gone)

    def close(self) -> None:
        files, self._files = self._files, {}
        for file in files.values():
            file.close()
        self._unsynced.clear()
        self.drop_buffer()

    def remove(self) -> None:
        """Forget everything."""
        self.close()
        self._disk.remove_tree(self._folder)
        self.end = self._next = 0


def _record(data: bytes, position: int) -> TimerRecord | None:
    if len(data) < RECORD_SIZE:
        return None
    size, previous, bits, write_ms, delay_ms, log_position, log_size, topic_hash, _ = _RECORD.unpack(data)
    is_one = size == RECORD_SIZE and NOWHERE <= previous < position and DEFAULT <= bits <= 7
    if not is_one or write_ms <= 0 or log_position < 0 or log_size <= 0:
        return None
    return TimerRecord(previous, bits, write_ms, write_ms + delay_ms, log_position, log_size, topic_hash)
