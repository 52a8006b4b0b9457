"""File sizes of a directory nobody described: found in the files themselves.

Segments and queue files are named by position, so a size is consistent when every position is a multiple of it.
The consistent size that most files have wins, and of several the largest, because a damaged file is rather too short
than too long. An index file's two
sizes are hidden in one length: they are RocketMQ's defaults, or they are found by looking for the newest
entry, which the header names, at a place where everything else fits too. Where nothing fits they stay unknown.

Reads only. No state, any thread.
"""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import asdict, dataclass

from penstock._hot.layout import ENTRY_SIZE, INDEX_HEADER_SIZE
from penstock.errors import OptionError, StoreFormatError
from penstock.runtime import Disk
from penstock.store.key_index import IndexHeader
from penstock.store.layout import StorePaths, parse_position
from penstock.store.options import StoreOptions
from penstock.store.queue_table import Manifest

PAGE = 4096
CANDIDATES_MAX = 100_000
DEFAULTS = StoreOptions()


@dataclass(frozen=True, slots=True)
class GivenSizes:
    """What the caller knows; None means: find out."""

    segment_size_bytes: int | None = None
    queue_file_entries: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Sizes to open a directory with. `index_slots` is 0 where an index exists whose sizes are unknown."""

    segment_size_bytes: int
    queue_file_entries: int
    index_slots: int
    index_entries: int

    @property
    def index_known(self) -> bool:
        return self.index_slots > 0

    def options(self) -> StoreOptions:
        """Options for a store of these sizes; everything else as by default."""
        defaults = StoreOptions()
        return StoreOptions(
            segment_size_bytes=self.segment_size_bytes,
            queue_file_entries=self.queue_file_entries,
            index_slots=self.index_slots or defaults.index_slots,
            index_entries=self.index_entries or defaults.index_entries,
            max_message_size_bytes=min(defaults.max_message_size_bytes, self.segment_size_bytes),
        )

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def detect_sizes(disk: Disk, paths: StorePaths, given: GivenSizes) -> StoreSizes:
    """The sizes of a directory; what is given is not looked for."""
    if (given.index_slots is None) != (given.index_entries is None):
        raise OptionError("only one of the two index sizes is given", "give slots and entries, or neither")
    segment = given.segment_size_bytes
    if segment is None:
        segment = found_segment_size(disk, paths)
    entries = given.queue_file_entries
    if entries is None:
        entries = found_queue_file_size(disk, paths) // ENTRY_SIZE
    if given.index_slots is not None and given.index_entries is not None:
        return StoreSizes(segment, entries, given.index_slots, given.index_entries)
    return StoreSizes(segment, entries, *_index_sizes(disk, paths))


def require_sizes(disk: Disk, paths: StorePaths, options: StoreOptions, manifest: Manifest) -> None:
    """Refuse a directory made with other sizes: opening it with these would look like damage everywhere."""
    found = {
        "segment_size_bytes": manifest.segment_size_bytes or found_segment_size(disk, paths, 0),
        "queue_file_entries": manifest.queue_file_entries
        or found_queue_file_size(disk, paths, 0) // ENTRY_SIZE,
    }
    for name, has in found.items():
        asked = getattr(options, name)
        if has and has != asked:
            raise StoreFormatError(
                f"{paths.root} was made with {name}={has}, the options say {asked}",
                f"open it with {name}={has}",
            )


def consistent_size(files: list[tuple[int, int]], unit: int, default: int) -> int:
    """The size that most files have, a multiple of `unit` of which all positions are multiples; of several the
    largest. `files`: position, size."""
    counts = Counter(size for _, size in files)
    for size, _ in sorted(counts.items(), key=lambda found: (found[1], found[0]), reverse=True):
        if size and size % unit == 0 and all(position % size == 0 for position, _ in files):
            return size
    return default


def found_segment_size(disk: Disk, paths: StorePaths, default: int = DEFAULTS.segment_size_bytes) -> int:
    """Size of the segments, or the default where there are none."""
    files = []
    for name in disk.list(paths.commit_log):
        position = parse_position(name)
        if position is not None and not disk.is_dir(paths.commit_log / name):
            files.append((position, disk.size(paths.commit_log / name)))
    size = consistent_size(files, 1, default)
    lone = sum(other == size for _, other in files) == 1
    if size % PAGE and lone and all(position % DEFAULTS.segment_size_bytes == 0 for position, _ in files):
        return default  # a size that nobody configures and no second file confirms: the file is short
    return size


def found_queue_file_size(
    disk: Disk, paths: StorePaths, default: int = DEFAULTS.queue_file_size_bytes
) -> int:
    """Size of the queue files, or the default where there are none."""
    files = []
    for topic in disk.list(paths.consume_queue):
        for queue in (
            disk.list(paths.consume_queue / topic) if disk.is_dir(paths.consume_queue / topic) else []
        ):
            folder = paths.consume_queue / topic / queue
            for name in disk.list(folder) if disk.is_dir(folder) else []:
                position = parse_position(name)
                if position is not None and not disk.is_dir(folder / name):
                    files.append((position, disk.size(folder / name)))
    return consistent_size(files, ENTRY_SIZE, default)


def index_file_names(disk: Disk, paths: StorePaths) -> list[str]:
    """Names of what may be index files, oldest first."""
    return [
        name
        for name in disk.list(paths.index)
        if name.isascii() and name.isdigit() and not disk.is_dir(paths.index / name)
    ]


def _index_sizes(disk: Disk, paths: StorePaths) -> tuple[int, int]:
    defaults = StoreOptions()
    names = index_file_names(disk, paths)
    sizes = {name: disk.size(paths.index / name) for name in names}
    if not names or defaults.index_file_size_bytes in sizes.values():
        return defaults.index_slots, defaults.index_entries
    for name in reversed(names):
        found = _sizes_in_file(disk, paths, name, sizes[name])
        if found is not None:
            return found
    return 0, 0


def _sizes_in_file(disk: Disk, paths: StorePaths, name: str, size: int) -> tuple[int, int] | None:
    """Slots and entries of one file, from the place of its newest entry; None if there is no such place."""
    if size <= INDEX_HEADER_SIZE + ENTRY_SIZE:
        return None
    file = disk.open(paths.index / name, write=False)
    try:
        header = IndexHeader.decode(file.pread(INDEX_HEADER_SIZE, 0))
        if header.next_entry <= 1 or header.end_phy <= 0:
            return None
        with file.map(size) as data:
            wanted = header.end_phy.to_bytes(8, "big")
            at = data.rfind(wanted)
            for _ in range(CANDIDATES_MAX):
                if at < 0:
                    break
                slots = _slots_if_newest(data, at - 4, header)
                if slots:
                    return slots, (size - INDEX_HEADER_SIZE - slots * 4) // ENTRY_SIZE
                at = data.rfind(wanted, 0, at + 7)
    finally:
        file.close()
    return None


def _slots_if_newest(data: mmap.mmap, newest_at: int, header: IndexHeader) -> int:
    """Number of slots, if the newest entry is at `newest_at`; 0 if that cannot be."""
    entries_at = newest_at - (header.next_entry - 1) * ENTRY_SIZE
    slots, odd = divmod(entries_at - INDEX_HEADER_SIZE, 4)
    room = len(data) - entries_at
    if slots < 1 or odd or room % ENTRY_SIZE or room < header.next_entry * ENTRY_SIZE:
        return 0
    first = data[entries_at + ENTRY_SIZE : entries_at + 2 * ENTRY_SIZE]
    if any(data[entries_at : entries_at + ENTRY_SIZE]) or any(first[12:]):
        return 0  # entry 0 is never used; entry 1 has nothing before it
    if first[4:12] != header.begin_phy.to_bytes(8, "big", signed=True):
        return 0
    key_hash = int.from_bytes(data[newest_at : newest_at + 4], "big", signed=True)
    slot_at = INDEX_HEADER_SIZE + max(key_hash, 0) % slots * 4
    newest = int.from_bytes(data[slot_at : slot_at + 4], "big", signed=True)
    # After a crash the slots may know entries that the header does not count yet.
    return slots if newest >= header.next_entry - 1 else 0
