"""The key index: hash files by which messages are found by `topic#key`.

Keys arrive from the dispatcher in memory and are entered in bulk. Write order of one file: entries and slots,
then a sync, then the header that counts them; so after a crash the header never counts an entry that is not
there, the slots are rebuilt from the entries, and the log is read again from the last counted entry on.

Has a lock of its own, so that entering keys does not hold up appends. Lock order: this one before the store's
append lock.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock._hot.index import PAGE, SlotTable, find_key, key_hash_of
from penstock._hot.layout import ENTRY_SIZE, INDEX_HEADER_SIZE
from penstock._hot.mapped import MappedBytes
from penstock.message.hashing import java_string_hash
from penstock.runtime import File, Runtime
from penstock.store.findings import Finding, Findings
from penstock.store.layout import StorePaths
from penstock.store.options import StoreOptions

_HEADER = struct.Struct(
    ">q"  # store time of the first entry
    "q"  # store time of the last entry
    "q"  # log position of the first entry's record
    "q"  # log position of the last entry's record
    "i"  # slots in use
    "i"  # number of the next entry; entries are numbered from 1
)
# A key on its way to the index: hash, log position, store time.
_KEY = struct.Struct(">iqq")
QUERY_MAX = 64


@dataclass(slots=True)
class IndexHeader:
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy: int = 0
    end_phy: int = 0
    used_slots: int = 0
    next_entry: int = 1

    @staticmethod
    def decode(data: bytes) -> IndexHeader:
        header = IndexHeader(*_HEADER.unpack_from(data, 0))
        header.next_entry = max(header.next_entry, 1)
        return header

    def encode(self) -> bytes:
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy,
            self.end_phy,
            self.used_slots,
            self.next_entry,
        )


class IndexFile:
    """One file; only the newest is written, and only while it has a `table`."""

    def __init__(self, file: File, header: IndexHeader, view: MappedBytes, options: StoreOptions) -> None:
        self.file = file
        self.header = header
        self.view = view
        self.table: SlotTable | None = None
        # What the header may say after the next sync: entries and slots up to here are in the file.
        self.written = header
        self.dirty = False
        self._options = options
        self._entries_at = INDEX_HEADER_SIZE + options.index_slots * 4

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def is_full(self) -> bool:
        return self.header.next_entry >= self._options.index_entries

    @property
    def has_room(self) -> bool:
        return self.current_header().next_entry < self._options.index_entries

    def is_never_written(self, slot: int) -> bool:
        """Whether a slot lies in a hole of the file: no key, and not to be touched through the map (a full tmpfs has
        no page for it, which is a SIGBUS)."""
        at = INDEX_HEADER_SIZE + slot * 4
        return self.table is None and next(self.file.data_ranges(at, at + 4), None) is None

    def open_table(self, *, rebuild: bool) -> SlotTable:
        """The slots in memory, copied from the file or, after a crash, made anew from the entries."""
        options = self._options
        table = SlotTable(mmap.mmap(-1, options.index_slots * 4), options.index_slots, options.index_entries)
        header = self.header
        table.next_entry, table.used_slots = header.next_entry, header.used_slots
        table.begin_timestamp, table.end_timestamp = header.begin_timestamp, header.end_timestamp
        table.begin_phy, table.end_phy = header.begin_phy, header.end_phy
        if rebuild:
            table.rebuild(self.view)
            # Slots that no entry claims any more must be zero in the file too.
            table.dirty[:] = b"\x01" * len(table.dirty)
        else:
            for low, high in self.file.data_ranges(INDEX_HEADER_SIZE, self._entries_at):
                table.memory[low - INDEX_HEADER_SIZE : high - INDEX_HEADER_SIZE] = self.view.slice(low, high)
        self.table = table
        return table

    def rebuild(self) -> None:
        """After a crash: slots from the counted entries, in memory and in the file."""
        self.open_table(rebuild=True)
        self.write_slots()

    def put(self, keys: bytearray, first: int, count: int) -> int:
        """Enter keys and write their entries to the file; how many were taken before it was full.

        The slots go out with the next `sync`: keys hit them everywhere, so that writing them each time would be
        twenty megabytes for every few keys. Until then searches use the table.
        """
        table = self.table or self.open_table(rebuild=False)
        before = self.current_header()
        entries = table.put_keys(keys, first, count)
        if entries:
            try:
                self.file.pwrite(entries, self._entries_at + before.next_entry * ENTRY_SIZE)
            except OSError:
                self._go_back(before)
                raise
            self.dirty = True
        return len(entries) // ENTRY_SIZE

    def _go_back(self, before: IndexHeader) -> None:
        """The file could not take the entries: the table must not have them either."""
        counted, self.header = self.header, before
        broken, self.table = self.table, None
        if broken is not None:
            broken.release()
        try:
            self.open_table(rebuild=True)
        finally:
            self.header = counted

    def write_slots(self) -> None:
        """Dirty pages of the table go out in runs: one write for neighbours. What fails stays dirty."""
        table = self.table
        if table is None:
            return
        page = table.dirty.find(1)
        # A view, not a slice: copying megabytes of slots would hold the interpreter lock while appends wait.
        with memoryview(table.memory) as slots:
            while page >= 0:
                stop = table.dirty.find(0, page)
                stop = len(table.dirty) if stop < 0 else stop
                low, high = page * PAGE, min(stop * PAGE, self._options.index_slots * 4)
                with slots[low:high] as run:
                    self.file.pwrite(run, INDEX_HEADER_SIZE + low)
                page = table.dirty.find(1, stop)
        table.dirty[:] = bytes(len(table.dirty))
        self.written = self.current_header()

    def first_phy(self) -> int:
        """Log position of the first entry's record, -1 without an entry."""
        return self._phy_of(1) if self.current_header().next_entry > 1 else -1

    def _phy_of(self, number: int) -> int:
        at = self._entries_at + number * ENTRY_SIZE + 4
        return int.from_bytes(self.view.slice(at, at + 8), "big", signed=True)

    def cut(self, position: int, time_of: Callable[[int], int]) -> None:
        """Forget the entries of records at or after a log position, durably; at least one entry stays."""
        header = self.current_header()
        low, high = 1, header.next_entry
        while low < high:
            middle = (low + high) // 2
            if self._phy_of(middle) < position:
                low = middle + 1
            else:
                high = middle
        end_phy = self._phy_of(low - 1)
        at = self._entries_at + (low - 1) * ENTRY_SIZE + 12
        seconds = int.from_bytes(self.view.slice(at, at + 4), "big", signed=True)
        # Entries keep whole seconds; the record knows better, if it is still there.
        end_time = time_of(end_phy) or header.begin_timestamp + seconds * 1000 + 999
        if self.table is not None:
            self.table.release()
        self.header = replace(header, end_phy=end_phy, end_timestamp=end_time, next_entry=low)
        self.rebuild()
        self.sync()
        self.dirty = False

    def current_header(self) -> IndexHeader:
        """What the header would say if everything entered were counted."""
        table = self.table
        if table is None:
            return self.header
        return IndexHeader(
            table.begin_timestamp,
            table.end_timestamp,
            table.begin_phy,
            table.end_phy,
            table.used_slots,
            table.next_entry,
        )

    def sync(self) -> None:
        """Entries and slots first, then the header that counts them."""
        header = self.written
        self.file.sync()
        self.file.pwrite(header.encode(), 0)
        self.file.sync()
        self.header = header

    def close(self) -> None:
        if self.table is not None:
            self.table.release()
            self.table = None
        self.view.release()
        self.file.close()


class KeyIndex:
    """All index files, oldest first."""

    def __init__(
        self,
        runtime: Runtime,
        paths: StorePaths,
        options: StoreOptions,
        findings: Findings,
        *,
        read_only: bool,
    ) -> None:
        self._runtime = runtime
        self._folder = paths.index
        self._options = options
        self._findings = findings
        self._read_only = read_only
        self._files: list[IndexFile] = []
        self._held = bytearray()
        # A failed sync is final, here as everywhere: whoever enters keys looks at this.
        self.sync_failure: OSError | None = None
        self.lock = threading.RLock()

    def load(self, *, unclean: bool) -> None:
        """Open the files. After a crash the newest one's slots are rebuilt from its counted entries."""
        disk = self._runtime.disk
        for name in disk.list(self._folder):
            path = self._folder / name
            if not name.isdigit() or disk.is_dir(path):
                self._findings.add(Finding("stray file", "not an index file, left alone", path=str(path)))
                continue
            size = disk.size(path)
            if size != self._options.index_file_size_bytes:
                self._drop(path, f"has {size} bytes, not {self._options.index_file_size_bytes}")
                continue
            self._files.append(self._open(path))
        kept = []
        for index_file in self._files:
            header = index_file.header
            if not 1 <= header.next_entry <= self._options.index_entries or header.end_phy < 0:
                index_file.close()
                self._drop(index_file.path, "its header makes no sense")
            else:
                kept.append(index_file)
        self._files = kept
        if unclean and self._files and not self._read_only:
            self._files[-1].rebuild()

    def _drop(self, path: Path, why: str) -> None:
        self._findings.add(Finding("index file dropped", f"{why}; rebuilt from the log", path=str(path)))
        if not self._read_only:
            self._runtime.disk.remove(path)

    def _open(self, path: Path) -> IndexFile:
        file = self._runtime.disk.open(path, write=not self._read_only)
        header = IndexHeader.decode(file.pread(INDEX_HEADER_SIZE, 0))
        return IndexFile(
            file, header, MappedBytes(file.map(self._options.index_file_size_bytes)), self._options
        )

    @property
    def end_phy(self) -> int:
        """Log position of the newest record that is indexed, -1 if none is."""
        return self._end_phy([index_file.current_header() for index_file in self._files])

    @staticmethod
    def _end_phy(headers: list[IndexHeader]) -> int:
        return next((header.end_phy for header in reversed(headers) if header.next_entry > 1), -1)

    @property
    def entries(self) -> int:
        return sum(index_file.current_header().next_entry - 1 for index_file in self._files)

    @property
    def file_count(self) -> int:
        return len(self._files)

    def put(self, keys: bytearray, count: int) -> None:
        """Enter pending keys, rolling to a new file when one is full.

        What cannot be written is kept and comes first the next time, so that the index misses nothing.
        """
        with self.lock:
            if self._held:
                keys, count = self._held + keys[: count * ENTRY_SIZE], len(self._held) // ENTRY_SIZE + count
                self._held = bytearray()
            done = 0
            try:
                while done < count:
                    if not self._files or not self._files[-1].has_room:
                        self._roll()
                    done += self._files[-1].put(keys, done, count - done)
            except OSError:
                self._held = keys[done * ENTRY_SIZE : count * ENTRY_SIZE]
                raise

    def _roll(self) -> None:
        disk = self._runtime.disk
        previous = self._files[-1] if self._files else None
        if previous is not None:
            previous.write_slots()
            try:
                previous.sync()
            except OSError as error:
                self.sync_failure = error
                raise
            if previous.table is not None:
                previous.table.release()
                previous.table = None
            previous.dirty = False
        name = self._runtime.clock.file_name_time()
        if previous is not None and name <= previous.path.name:
            name = f"{int(previous.path.name) + 1:017d}"
        if not disk.is_dir(self._folder):
            disk.make_dirs(self._folder)
            disk.sync_dir(self._folder.parent)
        file = disk.open(self._folder / name, create=True)
        try:
            file.truncate(self._options.index_file_size_bytes)
        except OSError:
            file.close()
            disk.remove(file.path)
            raise
        header = IndexHeader()
        if previous is not None:
            header.begin_phy = header.end_phy = previous.header.end_phy
            header.begin_timestamp = header.end_timestamp = previous.header.end_timestamp
        view = MappedBytes(file.map(self._options.index_file_size_bytes))
        self._files.append(IndexFile(file, header, view, self._options))
        disk.sync_dir(self._folder)

    @property
    def full_timestamp(self) -> int:
        """End time of the newest file that is full and therefore synced: the checkpoint's index time."""
        full = [f.header.end_timestamp for f in self._files if f.is_full and f.table is None]
        return max(full, default=0)

    def write_slots(self) -> None:
        """Before `sync`: everything that was entered is in the files. A full disk is not final here."""
        with self.lock:
            for index_file in self._files:
                if index_file.dirty:
                    index_file.write_slots()

    def sync(self) -> int:
        """Make what `write_slots` wrote durable and count it; log position of the newest record counted."""
        with self.lock:
            for index_file in self._files:
                if index_file.dirty:
                    index_file.sync()
                    # Keys entered since the slots were written belong to the next sync.
                    index_file.dirty = index_file.header != index_file.current_header()
            return self._end_phy([index_file.header for index_file in self._files])

    def find(self, queue_topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> list[int]:
        """Log positions, newest first, of records that may have the key: the caller compares the key itself."""
        wanted = key_hash_of(java_string_hash(f"{queue_topic}#{key}"))
        found: list[int] = []
        with self.lock:
            for index_file in reversed(self._files):
                header = index_file.current_header()
                if (
                    header.next_entry <= 1
                    or header.begin_timestamp > end_ms
                    or header.end_timestamp < begin_ms
                ):
                    continue
                if index_file.is_never_written(wanted % self._options.index_slots):
                    continue
                found += find_key(
                    index_file.view,
                    index_file.table,
                    self._options.index_slots,
                    header.next_entry,
                    header.begin_timestamp,
                    wanted,
                    begin_ms,
                    end_ms,
                    limit - len(found),
                )
                if len(found) >= limit:
                    break
        return found

    def delete_before(self, log_min: int) -> int:
        """Delete leading files all of whose records are gone, never the last; how many."""
        deleted = 0
        with self.lock:
            while len(self._files) > 1 and self._files[0].header.end_phy < log_min:
                index_file = self._files.pop(0)
                path = index_file.path
                index_file.close()
                self._runtime.disk.remove(path)
                deleted += 1
        return deleted

    def names(self) -> list[str]:
        """Names of the files, oldest first."""
        with self.lock:
            return [index_file.path.name for index_file in self._files]

    def lost_files(self, expected: list[str]) -> list[str]:
        """Files that should be here and are not."""
        present = {index_file.path.name for index_file in self._files}
        return [name for name in expected if name not in present]

    def clear(self, why: str) -> None:
        """Drop all files: the index is built again from the log."""
        while self._files:
            index_file = self._files.pop()
            index_file.close()
            self._drop(index_file.path, why)

    def cut(self, position: int) -> None:
        """The log was cut at `position`: files that reach beyond it, and an empty one behind them, are dropped, to be
        built again."""
        while self._files and (
            self._files[-1].header.next_entry <= 1 or self._files[-1].header.end_phy >= position
        ):
            index_file = self._files.pop()
            path = index_file.path
            index_file.close()
            self._drop(path, f"it reaches beyond the log's end at {position}")

    def remaining(self, position: int) -> list[str]:
        """Names of the files that a cut at a log position leaves."""
        with self.lock:
            return [f.path.name for f in self._files if 0 <= f.first_phy() < position]

    def cut_entries(self, position: int, time_of: Callable[[int], int]) -> int:
        """The log is cut at `position`: entries from there on go, durably; log position of the newest record counted.

        `time_of` tells the store time of the record at a log position.
        """
        with self.lock:
            while self._files and not 0 <= self._files[-1].first_phy() < position:
                index_file = self._files.pop()
                index_file.close()
                if not self._read_only:
                    self._runtime.disk.remove(index_file.path)
                    self._runtime.disk.sync_dir(self._folder)
            newest = self._files[-1] if self._files and not self._read_only else None
            if newest is not None and newest.current_header().end_phy >= position:
                newest.cut(position, time_of)
            kept = len(self._held) // ENTRY_SIZE
            while kept and _KEY.unpack_from(self._held, (kept - 1) * ENTRY_SIZE)[1] >= position:
                kept -= 1
            del self._held[kept * ENTRY_SIZE :]
            return self._end_phy([index_file.header for index_file in self._files])

    def close(self) -> None:
        with self.lock:
            for index_file in self._files:
                index_file.close()
            self._files = []
