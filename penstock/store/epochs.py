"""Which epoch wrote which part of the log: RocketMQ's file `epochFileCheckpoint`, and what is decided with it.

An epoch is the time of one master. Text, one line each, ended by a line feed:

    2               how many entries follow
    773307083       their CRC-32 without its highest bit, over all their lines; 0 is not checked
    7-7000          epoch 7 begins at log position 7000, and ends where the next one begins
    8-8000          the last one has no end

Both numbers grow from entry to entry. An epoch that begins where the last one did takes its place: that one wrote
nothing. (RocketMQ refuses the newer one instead, and then counts its bytes as the older one's. Two logs that differ
would look the same.)

Order of a change: the content before it goes to `.bak`, then the new content takes the file's place, each whole and
synced. A file that cannot be read is answered by its `.bak`, which is one change older. That change may be an epoch
whose bytes would then pass for those of the one before, and two logs that differ would look the same; so the `.bak`
serves only a log that holds nothing of its last epoch, and with any other the store is not opened.

The functions are pure. `EpochFile` belongs to one thread.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import LogPositionError, StoreFailedError, StoreFormatError
from penstock.runtime import Disk
from penstock.runtime.disk import write_atomically

_LOG = logging.getLogger("penstock.store")
NUMBER_MAX = (1 << 63) - 1
EPOCH_MAX = (1 << 31) - 1
FILE_BYTES_MAX = 16 << 20


class Epoch(NamedTuple):
    """One entry: an epoch and the log position of its first byte."""

    epoch: int
    start: int


Epochs = tuple[Epoch, ...]


def encode(entries: Sequence[tuple[int, int]]) -> bytes:
    """The file's content."""
    lines = b"".join(b"%d-%d\n" % (epoch, start) for epoch, start in entries)
    return b"%d\n%d\n%s" % (len(entries), zlib.crc32(lines) & 0x7FFFFFFF, lines)


def decode(data: bytes) -> Epochs:
    """Raises ValueError for anything that is no such file."""
    head = data.split(b"\n", 2)
    if len(data) > FILE_BYTES_MAX or len(head) < 3:
        raise ValueError("it has no head")
    count, checksum = _number(head[0].rstrip(b"\r"), EPOCH_MAX), _number(head[1].rstrip(b"\r"), EPOCH_MAX)
    if checksum and zlib.crc32(head[2]) & 0x7FFFFFFF != checksum:
        raise ValueError("its checksum does not match")
    entries = []
    for line in head[2].split():
        epoch, dash, start = line.partition(b"-")
        entries.append(Epoch(_number(epoch, EPOCH_MAX), _number(start, NUMBER_MAX)))
        if not dash or (len(entries) > 1 and not _follows(entries[-1], entries[-2])):
            raise ValueError("its entries do not follow each other")
    if len(entries) != count:
        raise ValueError(f"it has {len(entries)} entries and says {count}")
    return tuple(entries)


def _number(text: bytes, limit: int) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > limit:
        raise ValueError("it has something else where a number should be")
    return int(text)


def _follows(entry: Epoch, last: Epoch) -> bool:
    return entry.epoch > last.epoch and entry.start > last.start


def appended(entries: Epochs, epoch: int, start: int) -> Epochs:
    """With a new epoch. The same one again changes nothing; raises LogPositionError for one that cannot follow."""
    entry = Epoch(epoch, start)
    if not 0 <= epoch <= EPOCH_MAX or not 0 <= start <= NUMBER_MAX:
        raise LogPositionError(f"epoch {epoch} from position {start} on is impossible")
    if entries and entries[-1] == entry:
        return entries
    if entries and entry.epoch > entries[-1].epoch and entry.start == entries[-1].start:
        entries = entries[:-1]
    if entries and not _follows(entry, entries[-1]):
        raise LogPositionError(
            f"epoch {epoch} from position {start} on cannot follow epoch {entries[-1].epoch} "
            f"from position {entries[-1].start} on",
            "truncate the log and its epochs first, or follow the newer master",
        )
    return (*entries, entry)


def truncated(entries: Epochs, position: int) -> Epochs:
    """Without the epochs that begin at or behind a position at which the log was cut."""
    return tuple(entry for entry in entries if entry.start < position)


def without_beyond(entries: Epochs, log_end: int) -> Epochs:
    """Without the epochs that begin behind the log's end: a crash took their bytes, or they never had any."""
    return tuple(entry for entry in entries if entry.start <= log_end)


def trimmed(entries: Epochs, log_min: int) -> Epochs:
    """Without the epochs all of whose bytes retention has deleted; the last one stays."""
    return tuple(
        entry for i, entry in enumerate(entries) if i + 1 == len(entries) or entries[i + 1].start > log_min
    )


def containing(entries: Sequence[tuple[int, int]], position: int) -> Epoch | None:
    """The epoch that wrote, or will write, the byte at a position."""
    for epoch, start in reversed(entries):
        if start <= position:
            return Epoch(epoch, start)
    return None


def common(
    local: Sequence[tuple[int, int]], local_end: int, remote: Sequence[tuple[int, int]], remote_end: int
) -> int | None:
    """Log position up to which two logs are the same, None if their epochs have nothing in common.

    From the newest epoch back, the first that both have with the same beginning: they are the same up to where the
    first of them ends it.
    """
    remote_ends = dict(_with_ends(remote, remote_end))
    for entry, end in reversed(_with_ends(local, local_end)):
        if entry in remote_ends:
            return min(end, remote_ends[entry])
    return None


def _with_ends(entries: Sequence[tuple[int, int]], log_end: int) -> list[tuple[Epoch, int]]:
    ends = [start for _, start in entries[1:]] + [log_end]
    return [(Epoch(*entry), end) for entry, end in zip(entries, ends, strict=False)]


class EpochFile:
    """The entries of one store, in memory and on disk. A change is durable when its call returns."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._entries: Epochs = ()

    @staticmethod
    def open(disk: Disk, path: Path, log_end: int) -> EpochFile:
        """The entries of a log that ends at `log_end` after its recovery; none if there never was a file."""
        file = EpochFile(disk, path)
        problem = file._load()
        if problem and file._entries and log_end > file._entries[-1].start:
            raise StoreFormatError(
                f"{problem}, and its backup may lack the epoch of the log's end",
                "restore the file, or empty the store and let it copy the master's log anew",
            )
        file._become(without_beyond(file._entries, log_end))
        return file

    def _load(self) -> str:
        """Why the backup had to serve; empty if it did not."""
        problems = []
        for path in (self._path, self._backup):
            if not self._disk.exists(path) or not self._disk.size(path):
                continue
            try:
                self._entries = decode(self._disk.read(path))
            except ValueError as error:
                problems.append(f"{path.name} cannot be used: {error}")
                continue
            if path == self._backup:
                why = problems[0] if problems else f"{self._path.name} is missing or empty"
                _LOG.warning("the epochs are those of %s: %s", path.name, why)
                return why
            return ""
        if problems:
            raise StoreFormatError(
                "; ".join(problems), "restore one of the two files, or remove both and copy the log anew"
            )
        return ""

    @property
    def entries(self) -> Epochs:
        """All epochs, oldest first."""
        return self._entries

    @property
    def last(self) -> Epoch | None:
        return self._entries[-1] if self._entries else None

    def containing(self, position: int) -> Epoch | None:
        """The epoch that wrote, or will write, the byte at a position."""
        return containing(self._entries, position)

    def append(self, epoch: int, start: int) -> None:
        """A new epoch begins; it takes the place of one that began there too and wrote nothing."""
        self._become(appended(self._entries, epoch, start))

    def truncate(self, position: int) -> None:
        """Forget the epochs that begin at or behind a position at which the log was cut."""
        self._become(truncated(self._entries, position))

    def trim(self, log_min: int) -> None:
        """Forget the epochs that retention has deleted."""
        self._become(trimmed(self._entries, log_min))

    def _become(self, entries: Epochs) -> None:
        if entries == self._entries:
            return
        try:
            if not entries:
                # A file that lists nothing would be answered by its backup.
                self._disk.remove(self._backup)
                self._disk.remove(self._path)
                self._disk.sync_dir(self._path.parent)
            else:
                if self._entries:
                    write_atomically(self._disk, self._backup, encode(self._entries))
                write_atomically(self._disk, self._path, encode(entries))
        except OSError as error:
            raise StoreFailedError(
                f"saving {self._path.name} failed: {error}", "check the disk; the epochs before it are kept"
            ) from error
        self._entries = entries
