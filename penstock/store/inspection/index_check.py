"""Index files against the log: the keys of the log entered anew, in memory, and compared with each file.

Entries are in the order of dispatch, so both sides are read once, side by side: what the log's keys would make
of a file is built by the code that writes index files, and must equal it byte for byte, chains and slots
included. Where they differ the next few on both sides are looked at to tell a wrong entry from a missing key or
an entry too many. Entries of records that retention took, or that are damaged, are believed.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable

from penstock._hot.index import SlotTable
from penstock._hot.layout import ENTRY_SIZE, INDEX_HEADER_SIZE
from penstock._hot.mapped import MappedBytes
from penstock.runtime import File
from penstock.store.inspection.report import IndexTotals
from penstock.store.inspection.view import StoreView
from penstock.store.key_index import IndexHeader
from penstock.store.sizes import index_file_names

LOOK_AHEAD = 256
BATCH_MAX = 1 << 16
SLOTS_TOLD_MAX = 100
_ENTRY = struct.Struct(">iqii")  # key hash, log position, seconds since the first entry, previous entry
_KEY = struct.Struct(">iqq")  # key hash, log position, store time


class IndexFileCheck:
    """One file and the table that the log's keys make of it."""

    def __init__(self, file: File, header: IndexHeader, slots: int, entries: int) -> None:
        self.path = str(file.path)
        self.header = header
        self.slots = slots
        self._file = file
        self.entries_at = INDEX_HEADER_SIZE + slots * 4
        self.view = MappedBytes(file.map(self.entries_at + entries * ENTRY_SIZE))
        # Whether the newest entry compared was taken from the file, which knows its time in seconds only.
        self.believed = False
        self.table = SlotTable(mmap.mmap(-1, slots * 4), slots, entries)

    @property
    def next_entry(self) -> int:
        """Number of the entry to compare next."""
        return int(self.table.next_entry)

    @property
    def left(self) -> int:
        """Entries not compared yet."""
        return self.header.next_entry - self.next_entry

    def place_of(self, number: int) -> int:
        return self.entries_at + number * ENTRY_SIZE

    def entry(self, number: int) -> tuple[int, int, int, int]:
        at = self.place_of(number)
        key_hash, position, seconds, previous = _ENTRY.unpack(self.view.slice(at, at + ENTRY_SIZE))
        return key_hash, position, seconds, previous

    def is_repeated(self, number: int) -> bool:
        """Whether an entry is one of the entries of the same record right before it, once more."""
        wanted, before = self.entry(number)[:2], number - 1
        while before > 0 and self.entry(before)[1] == wanted[1]:
            if self.entry(before)[:2] == wanted:
                return True
            before -= 1
        return False

    def believe(self) -> int:
        """Take the next entry as the file has it; its log position."""
        key_hash, position, seconds, _ = self.entry(self.next_entry)
        timestamp = self.header.begin_timestamp + max(seconds, 0) * 1000
        self.table.put_keys(bytearray(_KEY.pack(key_hash, position, timestamp)), 0, 1)
        self.believed = True
        return position

    def put(self, keys: bytearray, first: int, count: int) -> int:
        """Enter keys; how many of the entries they make are the file's, from the first on. The rest is undone."""
        at = self.place_of(self.next_entry)
        self.believed = False
        made = self.table.put_keys(keys, first, count)
        found = self.view.slice(at, at + len(made))
        if found == made:
            return count
        good = 0
        while (
            made[good * ENTRY_SIZE : (good + 1) * ENTRY_SIZE]
            == found[good * ENTRY_SIZE : (good + 1) * ENTRY_SIZE]
        ):
            good += 1
        self._undo(made, good)
        return good

    def _undo(self, made: bytearray, keep: int) -> None:
        for at in range(len(made) - ENTRY_SIZE, keep * ENTRY_SIZE - 1, -ENTRY_SIZE):
            key_hash, _, _, previous = _ENTRY.unpack_from(made, at)
            slot_at = key_hash % self.slots * 4
            self.table.memory[slot_at : slot_at + 4] = previous.to_bytes(4, "big")
            self.table.next_entry -= 1
            self.table.used_slots -= previous == 0

    def wrong_slots(self) -> list[tuple[int, int, int]]:
        """(slot, what the file has, what the entries say) of slots that differ."""
        wrong: list[tuple[int, int, int]] = []
        step = 1 << 16
        for low in range(0, self.slots * 4, step):
            high = min(low + step, self.slots * 4)
            found = bytes(self.view.slice(INDEX_HEADER_SIZE + low, INDEX_HEADER_SIZE + high))
            made = bytes(memoryview(self.table.memory)[low:high])
            if found != made:
                for at in range(0, high - low, 4):
                    have, want = found[at : at + 4], made[at : at + 4]
                    if have != want:
                        have_number = int.from_bytes(have, "big", signed=True)
                        wrong.append(((low + at) // 4, have_number, int.from_bytes(want, "big")))
        return wrong

    def close(self) -> None:
        self.table.release()
        self.view.release()
        self._file.close()


class IndexCheck:
    """Give `feed` to a pass, then call `finish`. Used by one thread, closed by its owner."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._issues = view.issues
        self._disk = view.runtime.disk
        self._slots, self._entries = view.sizes.index_slots, view.sizes.index_entries
        self._names = index_file_names(self._disk, view.paths)
        self._pending = bytearray()
        self._batch = LOOK_AHEAD
        self._file: IndexFileCheck | None = None
        self._last_position = -1
        self._is_lost: Callable[[int, int], bool] = lambda first, last: False
        self._files = len(self._names)
        self._counted = self._compared = self._wrong = self._wrong_slots = self._unindexed = 0
        for name in self._disk.list(view.paths.index):
            if name not in self._names:
                self._issues.note("stray file", "not an index file", path=str(view.paths.index / name))
        if self._files and not view.sizes.index_known:
            self._issues.note(
                "index not checked",
                "the sizes of its files are not known; give slots and entries",
                path=str(view.paths.index),
            )
            self._names = []

    def use_damage(self, is_lost: Callable[[int, int], bool]) -> None:
        """How to ask whether a part of the log is damaged."""
        self._is_lost = is_lost

    def feed(self, keys: bytearray, count: int) -> None:
        """Keys of records, in the order of the log, as the dispatcher left them."""
        self._pending += memoryview(keys)[: count * ENTRY_SIZE]
        self._compare(LOOK_AHEAD)

    def finish(self) -> IndexTotals:
        """Compare what is left on either side."""
        self._compare(0)
        while self._current() is not None:
            self._leftover()
        manifest = self._view.manifest
        if manifest is not None and self._view.sizes.index_known and self._last_position < manifest.index_end:
            self._issues.damage(
                "damaged index",
                f"it ends with the record at {self._last_position}, it had that at {manifest.index_end}",
                position=manifest.index_end,
                path=str(self._view.paths.index),
            )
        return IndexTotals(
            checked=self._view.sizes.index_known,
            files=self._files,
            entries=self._counted,
            compared=self._compared,
            wrong_entries=self._wrong,
            wrong_slots=self._wrong_slots,
            unindexed_keys=self._unindexed,
        )

    # -- files -----------------------------------------------------------------------------------------------

    def _current(self) -> IndexFileCheck | None:
        """The file being compared, with entries left; opens the next ones until there is such a file."""
        while self._file is None or self._file.left <= 0:
            self._close_file()
            if not self._names:
                return None
            self._file = self._open(self._names.pop(0))
            if self._file is not None:
                self._skip_deleted(self._file)
        return self._file

    def _open(self, name: str) -> IndexFileCheck | None:
        """A file that can be compared, or what is wrong with it."""
        path = self._view.paths.index / name
        size, wanted = self._disk.size(path), INDEX_HEADER_SIZE + self._slots * 4 + self._entries * ENTRY_SIZE
        if size != wanted:
            self._issues.damage("damaged index", f"file has {size} bytes, not {wanted}", path=str(path))
            return None
        file = self._disk.open(path, write=False)
        header = IndexHeader.decode(file.pread(INDEX_HEADER_SIZE, 0))
        if not 1 <= header.next_entry <= self._entries or header.begin_phy < 0:
            file.close()
            self._issues.damage("damaged index", "the header makes no sense", path=str(path), at=0)
            return None
        self._counted += header.next_entry - 1
        return IndexFileCheck(file, header, self._slots, self._entries)

    def _skip_deleted(self, file: IndexFileCheck) -> None:
        """Entries of records that retention took come first and have nothing to be compared with."""
        log_min = self._view.log.min_offset
        while file.left > 0 and 0 <= file.entry(file.next_entry)[1] < log_min:
            self._last_position = file.believe()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            # The slots of the newest file are made again after a crash, so until then they mean nothing.
            if self._view.clean or self._names:
                self._compare_slots(file)
                if file.header.next_entry > 1:
                    self._compare_header(file)
        finally:
            file.close()

    def _compare_slots(self, file: IndexFileCheck) -> None:
        wrong = file.wrong_slots()
        self._wrong_slots += len(wrong)
        for slot, have, want in wrong[:SLOTS_TOLD_MAX]:
            self._issues.damage(
                "damaged index",
                f"slot {slot} has entry {have}, its newest is {want}",
                path=file.path,
                at=INDEX_HEADER_SIZE + slot * 4,
            )

    def _compare_header(self, file: IndexFileCheck) -> None:
        header, table = file.header, file.table
        pairs = (
            ("time of the first entry", header.begin_timestamp, table.begin_timestamp, 0),
            ("time of the last entry", header.end_timestamp // 1000, table.end_timestamp // 1000, 8),
            ("position of the first entry", header.begin_phy, table.begin_phy, 16),
            ("position of the last entry", header.end_phy, table.end_phy, 24),
        )
        for name, have, want, at in pairs:
            if have != want and not (at == 8 and file.believed):
                self._issues.damage(
                    "damaged index",
                    f"{name} is {have} in the header, {want} in the file",
                    path=file.path,
                    at=at,
                )

    # -- side by side ----------------------------------------------------------------------------------------

    def _key(self, number: int) -> tuple[int, int]:
        """Hash, as the index keeps it, and position of a waiting key."""
        key_hash, position, _ = _KEY.unpack_from(self._pending, number * ENTRY_SIZE)
        return (0 if key_hash == -0x80000000 else abs(key_hash)), position

    def _compare(self, keep: int) -> None:
        """Compare waiting keys, but for the last `keep`, which later decisions may need to look at."""
        done, total = 0, len(self._pending) // ENTRY_SIZE
        while done < total - keep:
            file = self._current()
            if file is None:
                self._unindexed += total - keep - done
                done = total - keep
                break
            if file.next_entry == 1 or self._last_position < self._view.log.min_offset:
                skipped = self._skip_before(done, total, file.entry(file.next_entry)[1])
                self._unindexed += skipped
                done += skipped
                if done >= total - keep:
                    break
            count = min(total - done, file.left, self._batch)
            good = file.put(self._pending, done, count)
            self._compared += good
            done += good
            if good:
                self._last_position = self._key(done - 1)[1]
            self._batch = min(self._batch * 2, BATCH_MAX) if good == count else 16
            if good < count:
                done += self._resolve(file, done, total)
        del self._pending[: done * ENTRY_SIZE]

    def _skip_before(self, done: int, total: int, position: int) -> int:
        """Keys of records before the first entry of a file: they were never indexed, or their file is gone."""
        low, high = done, total
        while low < high:
            middle = (low + high) // 2
            if self._key(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        # A first entry that leads nowhere must not hide everything behind it.
        return low - done if low < total or position >= self._view.end.position else 0

    def _resolve(self, file: IndexFileCheck, done: int, total: int) -> int:
        """Entry and key differ: decide what that is, and how many keys it settles."""
        number = file.next_entry
        key_hash, position, seconds, previous = file.entry(number)
        wanted = self._key(done)
        if (key_hash, position) == wanted:
            self._tell(file, number, position, f"time {seconds} or previous entry {previous} is wrong")
            return self._take_key(file, done)
        if file.is_repeated(number) or self._is_lost(position, position + 1):
            self._last_position = file.believe()  # entered twice after a restart, or its record is damaged
            return 0
        follows = number + 1 < file.header.next_entry and done + 1 < total
        if not follows or file.entry(number + 1)[:2] != self._key(done + 1):
            for ahead in range(1, min(LOOK_AHEAD, total - done)):
                if self._key(done + ahead) == (key_hash, position):
                    self._missing(file, done, ahead)
                    return ahead
            for ahead in range(1, min(LOOK_AHEAD, file.left)):
                if file.entry(number + ahead)[:2] == wanted:
                    self._tell(file, number, position, f"the record at {position} has no such key")
                    file.believe()
                    return 0
        self._tell(
            file, number, wanted[1], f"leads to {position} with hash {key_hash}, not {wanted[1]}, {wanted[0]}"
        )
        return self._take_key(file, done)

    def _take_key(self, file: IndexFileCheck, done: int) -> int:
        """Go on as if the file had the entry that the log's key makes."""
        key = self._pending[done * ENTRY_SIZE : (done + 1) * ENTRY_SIZE]
        file.table.put_keys(key, 0, 1)
        file.believed = False
        self._last_position = self._key(done)[1]
        return 1

    def _tell(self, file: IndexFileCheck, number: int, position: int, what: str) -> None:
        self._wrong += 1
        self._issues.damage(
            "damaged index",
            f"entry {number}: {what}",
            position=position,
            path=file.path,
            at=file.place_of(number),
        )

    def _missing(self, file: IndexFileCheck, done: int, count: int) -> None:
        self._unindexed += count
        self._issues.damage(
            "damaged index",
            f"{count} keys of records from {self._key(done)[1]} on are missing before entry {file.next_entry}",
            position=self._key(done)[1],
            path=file.path,
            at=file.place_of(file.next_entry),
        )

    def _leftover(self) -> None:
        """Entries for which the log has no key any more: behind its end, in damage, or wrong."""
        file = self._current()
        if file is None:
            return
        position = file.entry(file.next_entry)[1]
        beyond = position >= self._view.end.position and not self._view.clean
        if not (beyond or file.is_repeated(file.next_entry) or self._is_lost(position, position + 1)):
            self._tell(file, file.next_entry, position, "the log has no such record or key")
        self._last_position = file.believe()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
