"""What replicas were sent beside the log, kept until the tables' own files have it: `config/sideTables.log`.

    i32 size, i32 CRC-32 of the body, body          again and again; the first one may be a snapshot of all tables

The files of topics, groups and offsets are written every few seconds. A broker that is killed between would come back
with older offsets than it has acknowledged to its master, and might be elected. So a change is here before it is
acknowledged or sent, and is applied again at the next start. It is written, not synced: it outlives the process, not
the machine. A torn end is cut off. When the file has grown long, a snapshot takes its place. Owned by the event loop.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import StoreError
from penstock.runtime import Disk
from penstock.runtime.disk import File, make_lasting_dirs, write_atomically

_LOG = logging.getLogger("penstock.broker")
FILE_NAME = "sideTables.log"
LENGTH_MAX = 4 << 20
_HEAD = struct.Struct(">II")


class TableJournal:
    """One file. `read` first, then `begin`, then `append`."""

    def __init__(self, disk: Disk, config: Path, length_max: int = LENGTH_MAX) -> None:
        self._disk = disk
        self._path = config / FILE_NAME
        self._length_max = length_max
        self._file: File | None = None
        self._length = self._limit = 0

    def read(self) -> Iterator[bytes]:
        """Every change, the oldest first, up to a torn end."""
        data = self._disk.read(self._path) if self._disk.exists(self._path) else b""
        at = 0
        while at + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if len(body) != size or zlib.crc32(body) != checksum:
                _LOG.warning("%s is torn after %d bytes; what follows is left out", self._path.name, at)
                return
            yield body
            at += _HEAD.size + size

    def begin(self, snapshot: bytes) -> None:
        """Begin anew with all tables as they are. Raises StoreError if that fails; what was there is then kept."""
        self.close()
        record = _record(snapshot)
        try:
            make_lasting_dirs(self._disk, self._path.parent)
            write_atomically(self._disk, self._path, record)
            self._file = self._disk.open(self._path)
        except OSError as error:
            raise StoreError(f"writing {self._path.name} failed: {error}", "check the disk") from error
        self._length = len(record)
        # Large tables are not written again for every few changes.
        self._limit = max(self._length_max, 2 * self._length)

    def append(self, body: bytes, snapshot: Callable[[], bytes]) -> None:
        """Keep a change, already made in the tables. Raises StoreError if it is not kept."""
        if self._file is None or self._length + len(body) > self._limit:
            self.begin(snapshot())
            return
        record = _record(body)
        try:
            self._file.pwrite(record, self._length)
        except OSError as error:
            raise StoreError(f"writing {self._path.name} failed: {error}", "check the disk") from error
        self._length += len(record)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """The tables' own files have everything."""
        self.close()
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_dir(self._path.parent)


def _record(body: bytes) -> bytes:
    return _HEAD.pack(len(body), zlib.crc32(body)) + body
