"""The timer wheel: for every second of two weeks the first and the last record of its chain in the timer log.

    slot, 32 bytes       0 time in units i64   8 first i64   16 last i64   24 count i32   28 magic i32 (0)
    file `timerwheel`    1209600 slots = 38707200 bytes, big-endian; slot number = time in units mod 1209600

A unit is 1000 ms, RocketMQ's precision. A slot that names another time than the wanted one is empty. Changes are in
memory until `write`, which the owner calls after the timer log was synced: so a slot on disk never points at a record
that is not. The file is sparse and is made with the first change. Owned by one thread, except `write` and
`count_ahead`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StoreError
from penstock.runtime import Disk
from penstock.runtime.disk import File

PRECISION_MS = 1_000
DAYS_SLOTS = 7 * 86_400
SLOTS = 2 * DAYS_SLOTS
SLOT_SIZE = 32
SIZE = SLOTS * SLOT_SIZE
NOWHERE = -1
_SLOT = struct.Struct(">qqqii")


class TimerFilesDamagedError(StoreError):
    """Wheel or timer log cannot be what they should be; they are made anew from the timer topic."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One second: when it begins, where its chain in the timer log begins and ends, and how long it is."""

    time_ms: int
    first: int
    last: int
    count: int


def slot_time(time_ms: int) -> int:
    """The beginning of the slot that a time is in."""
    return time_ms - time_ms % PRECISION_MS


class TimerWheel:
    """See the module's text."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        # By number: what the file has not got yet, and what is being written.
        self._changed: dict[int, Slot] = {}
        self._writing: dict[int, Slot] = {}

    def load(self) -> bool:
        """Open the file; whether there is one. Raises TimerFilesDamagedError if it is no wheel."""
        self.close()
        if not self._disk.exists(self._path):
            return False
        size = self._disk.size(self._path)
        if size != SIZE:
            raise TimerFilesDamagedError(f"{self._path.name} has {size} bytes, a wheel has {SIZE}")
        self._file = self._disk.open(self._path)
        return True

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of a time; None if it is empty."""
        found = self.occupant(time_ms)
        return found if found is not None and found.time_ms == slot_time(time_ms) else None

    def occupant(self, time_ms: int) -> Slot | None:
        """Whatever is in the place of that slot: another time's, two weeks away, may be."""
        number = time_ms // PRECISION_MS % SLOTS
        found = self._changed.get(number) or self._writing.get(number)
        if found is not None:
            return found
        if self._file is None:
            return None
        data = self._file.pread(SLOT_SIZE, number * SLOT_SIZE)
        if len(data) < SLOT_SIZE:
            raise TimerFilesDamagedError(f"{self._path.name} ends before slot {number}")
        units, first, last, count, _ = _SLOT.unpack(data)
        if not units:
            return None
        if units % SLOTS != number or last < first or first < NOWHERE:
            raise TimerFilesDamagedError(f"slot {number} of {self._path.name} is damaged")
        return None if last == NOWHERE else Slot(units * PRECISION_MS, first, last, count)

    def unwritten(self) -> dict[int, Slot]:
        """What the file has not got yet, by slot number; for `count_ahead`."""
        return {**self._writing, **self._changed}

    def count_ahead(self, from_ms: int, seconds: int, unwritten: Mapping[int, Slot]) -> list[int]:
        """Records in each of the next so many seconds. In any thread: reads the file alone, and is told the rest.
        Slots that cannot be read count as empty, this is for people to look at."""
        start, counts = from_ms // PRECISION_MS, [0] * seconds
        file = self._file
        at = 0
        while at < seconds:
            number = (start + at) % SLOTS
            count = min(seconds - at, SLOTS - number)
            data = b"" if file is None else file.pread(count * SLOT_SIZE, number * SLOT_SIZE)
            for place, (units, _, last, records, _) in enumerate(
                _SLOT.iter_unpack(data[: count * SLOT_SIZE])
            ):
                if units == start + at + place and last != NOWHERE:
                    counts[at + place] = max(records, 0)
            at += count
        for slot in unwritten.values():
            place = slot.time_ms // PRECISION_MS - start
            if 0 <= place < seconds:
                counts[place] = slot.count
        return counts

    def put(self, slot: Slot) -> None:
        self._changed[slot.time_ms // PRECISION_MS % SLOTS] = slot

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def is_clean(self) -> bool:
        return not self._changed and not self._writing

    def begin_write(self) -> None:
        """What has changed so far is what the next `write` writes."""
        self._writing, self._changed = {**self._writing, **self._changed}, {}

    def write(self) -> None:
        """Write and sync what `begin_write` has set apart; in any thread. Raises OSError; it can be tried again."""
        if not self._writing:
            return
        file = self._file
        if file is None:
            self._disk.make_dirs(self._path.parent)
            file = self._disk.open(self._path, create=True)
            file.truncate(SIZE)
            self._disk.sync_dir(self._path.parent)
            self._file = file
        for start, data in _runs(self._writing):
            file.pwrite(data, start)
        file.sync()

    def end_write(self) -> None:
        """It is written."""
        self._writing = {}

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """Forget everything."""
        self.close()
        self._changed, self._writing = {}, {}
        self._disk.remove(self._path)


def _runs(slots: dict[int, Slot]) -> list[tuple[int, bytes]]:
    """Neighbouring slots as one write each."""
    runs: list[tuple[int, bytearray]] = []
    end = -1
    for number in sorted(slots):
        slot = slots[number]
        data = _SLOT.pack(slot.time_ms // PRECISION_MS, slot.first, slot.last, slot.count, 0)
        if number == end:
            runs[-1][1].extend(data)
        else:
            runs.append((number * SLOT_SIZE, bytearray(data)))
        end = number + 1
    return [(start, bytes(data)) for start, data in runs]
