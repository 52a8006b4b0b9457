"""The files of one consume queue, read where they are: no repair, no guess, few open files at a time.

`ConsumeQueue` halves its way to the end of a queue and drops what it does not understand; an inspector must see
all of it. Here a queue ends after the last entry that is not all zero, and a missing file reads as zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from penstock._hot.layout import ENTRY_SIZE
from penstock.runtime import Disk, File
from penstock.store.consume_queue import FILLER, Entry
from penstock.store.inspection.report import IssueList
from penstock.store.layout import StorePaths, parse_position, position_name

OPEN_FILES_MAX = 64
FILE_CHUNK = 1 << 16
FILLERS_AT_ONCE = 256


class FileCache:
    """Files open for reading; the one unused longest is closed when there are too many."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: OrderedDict[Path, File] = OrderedDict()

    def get(self, path: Path) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._disk.open(path, write=False)
            if len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(path)
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class QueueFiles:
    """One queue. `first` is the offset of the first entry of its first file, `end` one past the last written."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        paths: StorePaths,
        topic: str,
        queue_id: int,
        entries_per_file: int,
        issues: IssueList,
    ) -> None:
        self._disk = disk
        self._files = files
        self.folder = paths.queue(topic, queue_id)
        self._per_file = entries_per_file
        self.topic = topic
        self.queue_id = queue_id
        self.file_firsts = self._load(issues)
        self.first = self.file_firsts[0] if self.file_firsts else 0
        self.end = self._find_end()

    def _load(self, issues: IssueList) -> list[int]:
        size = self._per_file * ENTRY_SIZE
        firsts: list[int] = []
        for name in self._disk.list(self.folder):
            position, path = parse_position(name), self.folder / name
            if position is None or position % size or self._disk.is_dir(path):
                issues.note("stray file", "not a queue file of this size", path=str(path))
                continue
            first, length = position // ENTRY_SIZE, self._disk.size(path)
            if length != size:
                issues.damage("damaged queue file", f"file has {length} of {size} bytes", path=str(path))
            if firsts and first != firsts[-1] + self._per_file:
                missing = position_name((firsts[-1] + self._per_file) * ENTRY_SIZE)
                issues.damage("damaged queue file", "file is missing", path=str(self.folder / missing))
            firsts.append(first)
        return firsts

    def path_of(self, offset: int) -> Path:
        return self.folder / position_name(offset // self._per_file * self._per_file * ENTRY_SIZE)

    def place_of(self, offset: int) -> int:
        """Byte of an entry in its file."""
        return offset % self._per_file * ENTRY_SIZE

    def _find_end(self) -> int:
        for first in reversed(self.file_firsts):
            file = self._files.get(self.path_of(first))
            ranges = list(file.data_ranges(0, min(file.size(), self._per_file * ENTRY_SIZE)))
            for low, high in reversed(ranges):
                for stop in range(high, low, -FILE_CHUNK):
                    start = max(low, stop - FILE_CHUNK)
                    content = file.pread(stop - start, start).rstrip(b"\0")
                    if content:
                        return first + -(-(start + len(content)) // ENTRY_SIZE)
        return self.first

    def read(self, first: int, last: int) -> bytes:
        """Entries [first, last) as they are; zeros where there is no file or it is too short."""
        parts = []
        while first < last:
            file_first = first - first % self._per_file
            stop = min(last, file_first + self._per_file)
            wanted = (stop - first) * ENTRY_SIZE
            part = b""
            if file_first in self.file_firsts:
                part = self._files.get(self.path_of(first)).pread(wanted, self.place_of(first))
            parts.append(part.ljust(wanted, b"\0"))
            first = stop
        return b"".join(parts)

    def entry(self, offset: int) -> Entry:
        return Entry.decode(self.read(offset, offset + 1))

    def first_at_or_after(self, position: int) -> int:
        """Smallest offset whose record is at or after a log position, by halving; fillers lead to the next."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            probe = self._first_real(middle, high)
            if probe == high or self.entry(probe).position >= position:
                high = middle
            else:
                low = probe + 1
        return low

    def _first_real(self, offset: int, end: int) -> int:
        """First offset in [offset, end) that is no filler, or `end`; a queue may begin with very many."""
        while offset < end:
            stop = min(end, offset + FILLERS_AT_ONCE)
            entries = self.read(offset, stop)
            if entries != FILLER * (stop - offset):
                for at in range(0, len(entries), ENTRY_SIZE):
                    if entries[at : at + ENTRY_SIZE] != FILLER:
                        return offset + at // ENTRY_SIZE
            offset = stop
        return end


def queue_folders(disk: Disk, paths: StorePaths, issues: IssueList) -> Iterator[tuple[str, int]]:
    """Topic and id of every queue folder; what is none of them is noted."""
    for topic in disk.list(paths.consume_queue):
        folder = paths.consume_queue / topic
        if not disk.is_dir(folder):
            issues.note("stray file", "not a topic", path=str(folder))
            continue
        for name in disk.list(folder):
            if name.isascii() and name.isdigit() and str(int(name)) == name and disk.is_dir(folder / name):
                yield topic, int(name)
            else:
                issues.note("stray file", "not a queue", path=str(folder / name))
