"""A consume queue: for one topic queue, where each message is in the log.

Files of 20-byte entries, named by the byte position of their first entry; entry n is at byte 20 n:

      0 log position i64     8 record size i32     12 tags code i64

The queue is derived from the log: entries wait in memory (`QueueState.tail`), go to the file in runs and are
synced before the checkpoint says so; what a crash takes is rebuilt from the log. An entry with size
0x7FFFFFFF stands for an offset that has no record (before the first one kept, or lost to damage).

Reads and changes happen under the store's append lock; syncing the files only keeps them from being deleted
meanwhile.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from penstock._hot.layout import ENTRY_SIZE, FILLER_SIZE, POSITION_MAX
from penstock._hot.queues import QueueState
from penstock._hot.reads import EntrySelection, is_zero
from penstock.runtime import Disk
from penstock.store.findings import Finding, Findings
from penstock.store.layout import StorePaths, parse_position, position_name
from penstock.store.queue_files import OpenFiles, QueueFile

FILLER = (0).to_bytes(8, "big") + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
EMPTY_ENTRY = bytes(ENTRY_SIZE)
UNKNOWN = (-1, -1)
# Entries that are read at once with the last one.
SHORT = 64
# A write inside one of these is done or not when the process is killed; of a longer one, some may be.
PAGE_SIZE = 4096
_LOG = logging.getLogger("penstock.store")


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded entry."""

    position: int
    size: int
    tags_code: int

    @staticmethod
    def decode(data: bytes | memoryview) -> Entry:
        raw = bytes(data)
        return Entry(
            int.from_bytes(raw[:8], "big", signed=True),
            int.from_bytes(raw[8:12], "big", signed=True),
            int.from_bytes(raw[12:20], "big", signed=True),
        )

    @property
    def is_valid(self) -> bool:
        """A written entry; an unwritten one is all zero, and one behind the end of all logs is damage."""
        return 0 <= self.position <= POSITION_MAX >> 1 and self.size > 0

    @property
    def is_filler(self) -> bool:
        return self.size == FILLER_SIZE

    @property
    def end(self) -> int:
        """Log position after the record; a filler has none."""
        return -1 if self.is_filler else self.position + self.size


class ConsumeQueue:
    """Files and memory tail of one queue. A store may have 100,000 of them."""

    __slots__ = (
        "_disk",
        "_files",
        "_findings",
        "_first_live",
        "_lost_names",
        "_new_folder",
        "_open_files",
        "_paths",
        "_per_file",
        "_read_only",
        "_syncing",
        "born_at",
        "is_gone",
        "min_offset",
        "queue_id",
        "state",
        "topic",
        "unsynced_entries",
    )

    def __init__(
        self,
        disk: Disk,
        paths: StorePaths,
        topic: str,
        queue_id: int,
        entries_per_file: int,
        findings: Findings,
        *,
        read_only: bool = False,
        born_at: int = -1,
        open_files: OpenFiles | None = None,
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._open_files = OpenFiles(disk, read_only=read_only) if open_files is None else open_files
        self._per_file = entries_per_file
        self._findings = findings
        self._read_only = read_only
        self._files: list[QueueFile] = []
        self.topic = topic
        self.queue_id = queue_id
        self.state = QueueState(topic.encode(), queue_id)
        self.state.owner = self
        # Records that end at or before this log position belong to a deleted topic of the same name.
        self.born_at = self.state.max_phy = born_at
        self.min_offset = 0
        # Offset of the first entry whose record is known to be there, and where that is; -1 if it was not looked for.
        self._first_live = UNKNOWN
        self.unsynced_entries = 0
        self._new_folder = False
        self._lost_names = False
        # Held while the files are synced, and while they are deleted with their topic.
        self._syncing = threading.Lock()
        # Deleted with its topic.
        self.is_gone = False

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    @property
    def folder(self) -> Path:
        return self._paths.queue(self.topic, self.queue_id)

    @property
    def max_offset(self) -> int:
        """One past the newest visible offset."""
        return self.state.tail_first + self.state.tail_count

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    @property
    def first_offset(self) -> int:
        """Offset of the first entry that has a place in a file, readable or not."""
        return self._files[0].first if self._files else self.state.tail_first

    # -- loading and cutting ---------------------------------------------------------------------------------

    def load(self, expected_end: int | None = None) -> None:
        """Find the files and the end: after the last valid entry, looking back from the last file.

        `expected_end`: where it is if nothing happened since it was noted, which one look can tell.
        """
        size = self._per_file * ENTRY_SIZE
        names = []
        for name, found in self._disk.entries(self.folder):
            position = parse_position(name)
            if position is None or found < 0 or position % size:
                self._note("stray file", "not a queue file of this size, left alone", name)
            elif found != size:
                # Derived data: drop it, recovery writes it again.
                self._note("queue file dropped", "wrong size, rebuilt from the log", name)
                if not self._read_only:
                    self._disk.remove(self.folder / name)
            else:
                names.append((position, name))
        for position, name in names:
            first = position // ENTRY_SIZE
            if self._files and self._files[-1].first + self._per_file != first:
                self._note("queue file dropped", "the file before it is missing", name)
                if not self._read_only:
                    self._disk.remove(self.folder / name)
                continue
            self._files.append(QueueFile(self._open_files, self, name, first, size))
        if self._files:
            self.min_offset = self._files[0].first
        if expected_end is None or not self._ends_at(expected_end):
            self._find_end()

    def _ends_at(self, end: int) -> bool:
        """Whether the entry before an offset is the last one, and one of a record: then that is the end."""
        last = self._files[-1] if self._files else None
        if last is None or not last.first < end < last.first + self._per_file:
            return False
        # Most queues are short: one read has their first entry, too.
        at = end - 1 - last.first
        low = 0 if at < SHORT else at
        data = last.file.pread((at + 2 - low) * ENTRY_SIZE, low * ENTRY_SIZE)
        entry = Entry.decode(data[-2 * ENTRY_SIZE : -ENTRY_SIZE])
        if not entry.is_valid or entry.is_filler or data[-ENTRY_SIZE:] != EMPTY_ENTRY:
            return False
        self.state.restart(end, max(entry.end, self.born_at))
        if not low and len(self._files) == 1:
            self._found_live(last.first, Entry.decode(data[:ENTRY_SIZE]))
        return True

    def _found_live(self, offset: int, entry: Entry) -> None:
        if entry.is_valid and not entry.is_filler:
            self._first_live = (offset, entry.position)

    def _note(self, kind: str, detail: str, name: str) -> None:
        self._findings.add(Finding(kind, detail, path=str(self.folder / name)))

    def _find_end(self) -> None:
        end = self._files[0].first if self._files else 0
        for queue_file in reversed(self._files):
            count = self._valid_entries(queue_file)
            if count:
                end = queue_file.first + count
                break
        self._end_at(end)

    def _end_at(self, end: int) -> None:
        """Make `end` the end, in files and memory, and remember where in the log the newest record ends."""
        state = self.state
        if end <= self._first_live[0]:
            self._first_live = UNKNOWN
        while len(self._files) > 1 and self._files[-1].first >= end:
            self._drop_file(len(self._files) - 1)
        if end >= state.tail_first and state.tail_count:
            state.keep_tail(end - state.tail_first)
        else:
            state.restart(end, -1)
        state.max_phy = self.born_at
        for offset in range(end - 1, max(self.min_offset, end - 1024) - 1, -1):
            entry = self.entry(offset)
            if entry is not None and entry.is_valid and not entry.is_filler:
                state.max_phy = max(entry.end, self.born_at)
                break

    def _valid_entries(self, queue_file: QueueFile) -> int:
        """Entries up to the first invalid one, found by halving: written entries come first.

        Read from the file and not through its map: most of it was never written, and on a tmpfs touching a hole needs
        a free page, which is a SIGBUS where there is none.
        """
        low, high = 0, self._per_file
        while low < high:
            middle = (low + high) // 2
            if Entry.decode(queue_file.file.pread(ENTRY_SIZE, middle * ENTRY_SIZE)).is_valid:
                low = middle + 1
            else:
                high = middle
        return low

    def _entry_in(self, queue_file: QueueFile, index: int) -> Entry:
        at = index * ENTRY_SIZE
        return Entry.decode(queue_file.view.slice(at, at + ENTRY_SIZE))

    def _drop_file(self, number: int) -> None:
        queue_file = self._files.pop(number)
        queue_file.close()
        if not self._read_only:
            self._disk.remove(queue_file.path)
            self._lost_names = True

    def cut_point(self, position: int) -> tuple[int, int]:
        """For a cut of the log: the offset after the last record before `position`, and where that record is."""
        end = self._first_at_or_after(position)
        for offset in range(end - 1, max(self.min_offset, end - 1024) - 1, -1):
            entry = self.entry(offset)
            if entry is not None and not entry.is_filler:
                return end, entry.position
        return end, -1

    def show_all(self) -> None:
        """Count from the first entry that has a place in a file again, whether or not its record is there."""
        self.min_offset = self.first_offset

    def hide_from(self, end: int) -> None:
        """Show nothing from an offset on; the files follow with `cut_to`. The tail is empty."""
        self._first_live = UNKNOWN
        self.state.restart(end, self.state.max_phy)

    def cut_to(self, end: int, log_end: int) -> None:
        """Make `end` the end, durably, whatever the files hold behind it, now that the log ends at `log_end`."""
        self.born_at = min(self.born_at, log_end)
        if not self._read_only:
            for queue_file in self._files:
                view, first = queue_file.view, max(end - queue_file.first, 0) * ENTRY_SIZE
                # Ever written is little of it; what a cut that was interrupted has cleared already is none.
                for low, high in list(queue_file.file.data_ranges(first, view.size)):
                    if not is_zero(view, low, high):
                        queue_file.file.pwrite(bytes(high - low), low)
                        queue_file.dirty = True
        if end <= self.max_offset:
            self._end_at(end)
        self.state.next_offset = self.max_offset
        if not self._read_only:
            self.sync()

    def cut(self, position: int) -> None:
        """Drop entries of records at or after a log position: they are rebuilt, or gone with the log's end."""
        end = self._first_at_or_after(position, cut_before=True)
        if not self._read_only:
            self._clear_files(min(end, self.state.tail_first))
        if end < self.max_offset:
            self._end_at(end)
        # What stays lies before the cut. A damaged entry that says otherwise must not hide what is dispatched.
        self.state.max_phy = max(min(self.state.max_phy, position), self.born_at)

    def _clear_files(self, start: int) -> None:
        """Have nothing in the files from an offset on: a cut queue must not show its old entries after the next load.

        From the end backwards, so that whoever is killed in the middle leaves entries without a hole: files first,
        then the pages of the last one, each in a write of its own. The names are gone for good before the first page
        is cleared, or else a power loss could bring them back behind cleared ones.
        """
        count = len(self._files)
        while len(self._files) > 1 and self._files[-1].first >= start:
            self._drop_file(len(self._files) - 1)
        if len(self._files) < count:
            self._disk.sync_dir(self.folder)
        for queue_file in self._files[-1:]:
            view, first = queue_file.view, max(start - queue_file.first, 0) * ENTRY_SIZE
            for low, high in reversed(list(queue_file.file.data_ranges(min(first, view.size), view.size))):
                for page in range((high - 1) // PAGE_SIZE * PAGE_SIZE, low - PAGE_SIZE, -PAGE_SIZE):
                    at, stop = max(page, low), min(page + PAGE_SIZE, high)
                    if not is_zero(view, at, stop):
                        queue_file.file.pwrite(bytes(stop - at), at)
                        queue_file.dirty = True

    def _first_at_or_after(self, position: int, *, cut_before: bool = False) -> int:
        """Smallest offset whose record is at or after a log position; fillers and damaged entries count with what
        follows them.

        `cut_before`: a cut at this place may have been interrupted. What it cleared was at or after it, too.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            probe = middle
            entry = self.entry(probe)
            while entry is not None and probe + 1 < high:
                if not entry.is_filler and (entry.is_valid or cut_before):
                    break
                probe += 1
                entry = self.entry(probe)
            if entry is None or entry.is_filler or not entry.is_valid or entry.position >= position:
                high = middle
            else:
                low = probe + 1
        return low

    def _after_fillers(self, offset: int) -> int:
        """The first offset at or after this one that has a record; the end if none has."""
        while offset < self.max_offset:
            stop = min(offset + 1024, self.max_offset)
            entries = self.entry_bytes(offset, stop)
            for i in range(0, len(entries), ENTRY_SIZE):
                if entries[i + 8 : i + 12] != FILLER[8:12]:
                    return offset + i // ENTRY_SIZE
            offset = stop
        return offset

    def position_from(self, offset: int) -> int | None:
        """Log position of the first record at or after an offset, None if there is none yet."""
        entry = self.entry(self._after_fillers(max(offset, self.min_offset)))
        return None if entry is None else entry.position

    def clear(self) -> None:
        """Drop all files: the queue is built again from the log."""
        while self._files:
            self._drop_file(len(self._files) - 1)
        self.min_offset = 0
        self._first_live = UNKNOWN
        self.state.restart(0, self.born_at)

    # -- reading ---------------------------------------------------------------------------------------------

    def entry(self, offset: int) -> Entry | None:
        """One entry, or None outside [min, max)."""
        if offset < self.min_offset or offset >= self.max_offset:
            return None
        if offset >= self.state.tail_first:
            return Entry.decode(self.state.tail_bytes(offset, offset + 1))
        queue_file = self._file_of(offset)
        return None if queue_file is None else self._entry_in(queue_file, offset - queue_file.first)

    def _file_of(self, offset: int) -> QueueFile | None:
        if not self._files:
            return None
        number = (offset - self._files[0].first) // self._per_file
        return self._files[number] if 0 <= number < len(self._files) else None

    def entry_bytes(self, first: int, last: int) -> bytes:
        """The entries with offsets [first, last) as they are; fewer if files are missing."""
        parts = []
        while first < last:
            if first >= self.state.tail_first:
                parts.append(self.state.tail_bytes(first, last))
                break
            queue_file = self._file_of(first)
            if queue_file is None:
                break
            stop = min(last, self.state.tail_first, queue_file.first + self._per_file)
            start = (first - queue_file.first) * ENTRY_SIZE
            parts.append(bytes(queue_file.view.slice(start, start + (stop - first) * ENTRY_SIZE)))
            first = stop
        return b"".join(parts)

    def select(self, selection: EntrySelection, offset: int, scan_max: int) -> None:
        """Let the selection look at up to `scan_max` entries from `offset` on, in files and memory."""
        end = min(self.max_offset, offset + scan_max)
        while offset < end and not selection.full:
            if offset >= self.state.tail_first:
                selection.scan_bytes(self.state.tail_bytes(offset, end), offset)
                return
            queue_file = self._file_of(offset)
            if queue_file is None:
                return
            stop = min(end, self.state.tail_first, queue_file.first + self._per_file)
            selection.scan_mapped(
                queue_file.view, (offset - queue_file.first) * ENTRY_SIZE, stop - offset, offset
            )
            offset = stop

    # -- writing ---------------------------------------------------------------------------------------------

    def start_at(self, offset: int) -> None:
        """The first record this queue gets is not number 0: everything before was deleted long ago."""
        self.state.restart(offset, self.born_at)
        self.min_offset = offset
        self._first_live = UNKNOWN

    def fill(self, count: int) -> None:
        """Offsets whose records are lost: they keep their numbers, so that none is ever given out twice."""
        max_phy = self.state.max_phy
        for _ in range(count):
            self.state.add_entry(0, FILLER_SIZE, 0)
        self.state.max_phy = max_phy

    def replace(self, offset: int, entry: bytes) -> None:
        """Repair one entry in its file."""
        queue_file = self._file_of(offset)
        if queue_file is not None and offset < self.state.tail_first and not self._read_only:
            queue_file.file.pwrite(entry, (offset - queue_file.first) * ENTRY_SIZE)
            queue_file.dirty = True
            self.min_offset = min(self.min_offset, offset)
            self._first_live = UNKNOWN

    def drain(self) -> int:
        """Write the entries waiting in memory to the files; how many. Nothing is lost if it raises."""
        state, moved = self.state, 0
        while state.tail_count:
            first = state.tail_first
            queue_file = self._file_of(first) or self._add_file(first)
            stop = min(first + state.tail_count, queue_file.first + self._per_file)
            queue_file.file.pwrite(state.tail_bytes(first, stop), (first - queue_file.first) * ENTRY_SIZE)
            queue_file.dirty = True
            state.drop_tail(stop - first)
            moved += stop - first
        self.unsynced_entries += moved
        return moved

    def drain_if_possible(self) -> None:
        """The same while a store is busy: what cannot be written stays in memory, for the keeper to try again."""
        try:
            self.drain()
        except OSError as error:
            _LOG.warning("entries of %r stay in memory: %s", self, error)

    def _add_file(self, offset: int) -> QueueFile:
        first = offset - offset % self._per_file
        if not self._disk.is_dir(self.folder):
            self._disk.make_dirs(self.folder)
            self._new_folder = True
        name = position_name(first * ENTRY_SIZE)
        file = self._disk.open(self.folder / name, create=True)
        try:
            file.truncate(self._per_file * ENTRY_SIZE)
            if offset > first:
                file.pwrite(FILLER * (offset - first), 0)
        except OSError:
            self._disk.remove(file.path)
            raise
        finally:
            file.close()
        queue_file = QueueFile(self._open_files, self, name, first, self._per_file * ENTRY_SIZE)
        self._files.append(queue_file)
        return queue_file

    def sync(self) -> None:
        """Make the files durable, also their names. Takes a copy of the list: files may be added meanwhile."""
        with self._syncing:
            if not self.is_gone:
                self._sync()

    def begin_sync(self) -> None:
        """Somebody is about to sync all files of the store: what is written from now on is not part of it. If that
        fails the store has failed."""
        with self._syncing:
            for queue_file in list(self._files):
                queue_file.dirty = False
            self._lost_names = self._new_folder = False
            self.unsynced_entries = 0

    def _sync(self) -> None:
        synced = False
        for queue_file in list(self._files):
            if queue_file.dirty:
                # Cleared first, so that entries written meanwhile are not forgotten; set again if the sync failed.
                queue_file.dirty = False
                try:
                    with self._open_files.pinned(queue_file) as file:
                        file.sync()
                except OSError:
                    queue_file.dirty = True
                    raise
                synced = True
        if synced or self._lost_names:
            self._lost_names = False
            self._disk.sync_dir(self.folder)
        if self._new_folder:
            self._new_folder = False
            for folder in (
                self.folder.parent,
                self.folder.parent.parent,
                self.folder.parent.parent.parent,
            ):
                self._disk.sync_dir(folder)
        self.unsynced_entries = 0

    # -- retention -------------------------------------------------------------------------------------------

    def correct_min(self, log_min: int) -> None:
        """The oldest readable offset, now that the log begins at `log_min`. The newest offset stays.

        Costs nothing where the record that was the oldest one is still there: there may be 100,000 queues.
        """
        if self._files and self.min_offset < self._files[0].first:
            self.min_offset = self._files[0].first
        offset, position = self._first_live
        if offset == self.min_offset and position >= log_min:
            return
        newest = self.entry(self.max_offset - 1)
        if newest is not None and newest.is_filler:
            newest = None
        if newest is not None and newest.position < log_min:
            self.min_offset = self.max_offset
        else:
            self.min_offset = self._after_fillers(self._first_at_or_after(log_min))
            oldest = self.entry(self.min_offset)
            if oldest is not None:
                self._found_live(self.min_offset, oldest)

    def delete_before(self, log_min: int) -> int:
        """Delete leading files all of whose records are gone, never the last file; how many."""
        deleted = 0
        while len(self._files) > 1:
            last = self._entry_in(self._files[0], self._per_file - 1)
            if not last.is_filler and last.position >= log_min:
                break
            self._drop_file(0)
            deleted += 1
        self.correct_min(log_min)
        return deleted

    def close(self) -> None:
        for queue_file in self._files:
            queue_file.close()
        self._files = []

    def destroy(self) -> None:
        """Delete the queue with its files."""
        with self._syncing:
            self.is_gone = True
            self.close()
            self._disk.remove_tree(self.folder)
