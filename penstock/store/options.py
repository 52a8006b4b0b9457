"""Every setting of a store, validated once when the options are made.

The defaults are RocketMQ's, except where a field says why not. `docs/configuration.md` is generated from
this file: the comment above a field is its documentation. Parsing of files, environment and flags is the
command line's work, not this module's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from penstock.errors import OptionError

GIB = 1 << 30
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushMode(Enum):
    """When a message counts as stored."""

    ASYNC = "async"
    SYNC = "sync"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store keeps its files. A directory is opened with the sizes it was written with."""

    # Size of one commit log segment. All segments of a directory have the same size (mappedFileSizeCommitLog).
    segment_size_bytes: int = GIB
    # Entries in one consume queue file; an entry takes 20 bytes (mappedFileSizeConsumeQueue / 20).
    queue_file_entries: int = 300_000
    # Queue files that are open at once, each with up to two descriptors (ulimit -n) and a map (vm.max_map_count); a
    # store may have many more queues. The server commands lower it to what their process may open.
    queue_files_open_max: int = 512
    # Whether keys are indexed at all (messageIndexEnable).
    index_enabled: bool = True
    # Hash slots of one index file (maxHashSlotNum).
    index_slots: int = 5_000_000
    # Entries of one index file, of which number 0 is never used (maxIndexNum).
    index_entries: int = 20_000_000
    # The largest body, or encoded batch, that is accepted (maxMessageSize).
    max_message_size_bytes: int = 4 * 1024 * 1024
    # `sync`: an append is answered, and its message visible, after fdatasync. `async`: after the write; the disk
    # follows at the interval below (flushDiskType).
    flush_mode: FlushMode = FlushMode.ASYNC
    # Async flush: how often unflushed pages are looked at (flushIntervalCommitLog).
    flush_interval_ms: int = 500
    # Async flush: pages of 4 KiB that must be waiting before a flush (flushCommitLogLeastPages).
    flush_least_pages: int = 4
    # Async flush: after this time everything is flushed, however little (flushCommitLogThoroughInterval).
    flush_thorough_interval_ms: int = 10_000
    # How long an append waits for its flush before the outcome is reported as unknown (syncFlushTimeout).
    sync_flush_timeout_ms: int = 5_000
    # How often queue entries go to their files (flushIntervalConsumeQueue).
    queue_flush_interval_ms: int = 1_000
    # Pages a queue must have waiting before its file is synced (flushConsumeQueueLeastPages).
    queue_flush_least_pages: int = 2
    # After this time every queue is synced and the checkpoint moves up (flushConsumeQueueThoroughInterval). RocketMQ
    # waits 60 s; a shorter time makes recovery after a crash read less.
    queue_thorough_interval_ms: int = 10_000
    # Part of the active segment, in percent, at which the next one is created ahead of its need. It takes a second or
    # two where the disk is busy, in which a fast writer fills most of a segment.
    prepare_next_at_percent: int = 25
    # Add a checksum of the whole record to every record as a property; RocketMQ's own checksum covers only the body
    # (enabledAppendPropCRC). It is checked wherever it is found, whatever this says.
    seal_records: bool = False
    # Check the checksum of every record that is read. Damage is then left out of the answer and reported.
    verify_reads: bool = True
    # How often retention looks for files to delete (cleanResourceInterval).
    clean_interval_ms: int = 10_000
    # Hours of the day, local time, at which expired segments are deleted; several are separated by `;` (deleteWhen).
    delete_when: str = "04"
    # How long a segment is kept after its last write (fileReservedTime).
    file_reserved_hours: int = 72
    # Consumer groups that retention waits for, separated by `;`: a segment stays until each of them has committed
    # offsets behind its messages, in the topics in which the group has any. An archive is such a group
    # (penstock-archive). Over disk_clean_forcibly_percent segments go all the same, and that is logged as an error.
    retention_groups: tuple[str, ...] = ()
    # Segments deleted in one round at most (deleteFileBatchMax).
    delete_batch_max: int = 10
    # Disk use in percent over which expired segments are deleted at any hour (diskMaxUsedSpaceRatio).
    disk_max_used_percent: int = 75
    # Disk use in percent over which segments are deleted although not expired (diskSpaceCleanForciblyRatio).
    disk_clean_forcibly_percent: int = 85
    # Whether that may happen (cleanFileForciblyEnable).
    clean_forcibly_enabled: bool = True
    # Disk use in percent over which writes are refused. RocketMQ refuses at its warning level (90); Penstock as soon
    # as it has to clean by force.
    disk_refuse_writes_percent: int = 85
    # Disk use in percent that is reported as critical (diskSpaceWarningLevelRatio).
    disk_warning_percent: int = 90
    # How much of the log the background scrubber reads per second; 0 turns it off.
    scrub_bytes_per_second: int = 16 * 1024 * 1024
    # Delay of each delay level, first level 1 (messageDelayLevel).
    delay_levels: str = DELAY_LEVELS

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 0:
                raise OptionError(f"{field.name} is {value}", "use a number that is not negative")
        self._require(self.segment_size_bytes >= 4096, "segment_size_bytes", "use at least 4096")
        self._require(self.segment_size_bytes <= 1 << 31, "segment_size_bytes", "use at most 2 GiB")
        self._require(self.queue_file_entries >= 1, "queue_file_entries", "use at least 1")
        self._require(self.queue_files_open_max >= 1, "queue_files_open_max", "use at least 1")
        self._require(self.index_slots >= 1, "index_slots", "use at least 1")
        self._require(self.index_entries >= 2, "index_entries", "use at least 2")
        self._require(
            1 <= self.max_message_size_bytes <= self.segment_size_bytes,
            "max_message_size_bytes",
            "a message has to fit into one segment",
        )
        for name in ("flush_interval_ms", "queue_flush_interval_ms", "clean_interval_ms", "delete_batch_max"):
            self._require(getattr(self, name) >= 1, name, "use at least 1")
        for name in ("disk_max_used_percent", "disk_clean_forcibly_percent", "disk_refuse_writes_percent"):
            self._require(1 <= getattr(self, name) <= 100, name, "use a percentage from 1 to 100")
        self._require(1 <= self.disk_warning_percent <= 100, "disk_warning_percent", "use 1 to 100")
        self._require(1 <= self.prepare_next_at_percent <= 100, "prepare_next_at_percent", "use 1 to 100")
        self._require(all(self.retention_groups), "retention_groups", "name consumer groups")
        self._require(bool(self.delete_hours), "delete_when", "name hours from 00 to 23, as in 04 or 04;16")
        self._require(bool(self.delays_ms), "delay_levels", "list delays as in `1s 5s 1m`")

    def _require(self, holds: bool, name: str, hint: str) -> None:
        if not holds:
            raise OptionError(f"{name} is {getattr(self, name)!r}", hint)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours named by `delete_when`; empty if it cannot be read."""
        parts = [part.strip() for part in self.delete_when.split(";") if part.strip()]
        if not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
            return frozenset()
        return frozenset(int(part) for part in parts)

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delays of the levels; empty if they cannot be read."""
        units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        delays = []
        for part in self.delay_levels.split():
            number, unit = part[:-1], units.get(part[-1])
            if unit is None or not number.isascii() or not number.isdigit():
                return ()
            delays.append(int(number) * unit)
        return tuple(delays)

    @property
    def queue_file_size_bytes(self) -> int:
        return self.queue_file_entries * 20

    @property
    def index_file_size_bytes(self) -> int:
        return 40 + self.index_slots * 4 + self.index_entries * 20
