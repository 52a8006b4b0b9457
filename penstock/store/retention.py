"""What is deleted, when, and when writes are refused.

The decision is a function without I/O: usage, hour, file ages in; what to do out. Deleting follows the log:
segments first, then queue files and index files whose records are all gone. Groups that retention was told to wait
for keep what they have not taken yet, as long as the disk is not too full.

Seeds: scan every 10 s, delete at 04:00, keep 72 h, refuse writes and clean by force at 85 % disk use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.runtime import DiskUsage
from penstock.store.options import StoreOptions

MANUAL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class SegmentAge:
    """A segment as retention sees it: never the one being written."""

    base: int
    modified_ms: int
    size: int = 0

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class Needed:
    """What groups have not taken yet: pairs of a topic and the next offset of each of its queues, 0 where none is
    named; and the log position of the oldest message that a timer holds. `everything` is for as long as nobody has
    said."""

    offsets: tuple[tuple[str, Mapping[int, int]], ...] = ()
    position: int | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What one round does."""

    delete: tuple[int, ...]
    refuse_writes: bool
    critical: bool
    forced: bool
    used_percent: int
    # Deleted by force although needed.
    needed: tuple[int, ...] = ()


def plan_round(
    options: StoreOptions,
    usage: DiskUsage,
    now_ms: int,
    hour: int,
    manual: bool,
    segments: Sequence[SegmentAge],
    needed_from: int | None = None,
) -> RetentionPlan:
    """Decide one round; `segments` are those that may be deleted, oldest first. `needed_from` is the log position of
    the oldest record that somebody still needs, None if nobody does.

    1. expired segments go at the hour of deletion, on demand, or when the disk is over the first limit;
    2. over the second limit segments go although not expired;
    3. a segment that reaches beyond `needed_from` stays, unless the disk is over the second limit;
    4. deletion is oldest first and stops at the first segment that stays.
    """
    used = usage.used_percent
    forced = options.clean_forcibly_enabled and used > options.disk_clean_forcibly_percent
    due = forced or manual or hour in options.delete_hours or used > options.disk_max_used_percent
    delete: list[int] = []
    needed: list[int] = []
    if due:
        for segment in segments[: options.delete_batch_max]:
            expired = segment.modified_ms + options.file_reserved_hours * 3_600_000 <= now_ms
            is_needed = needed_from is not None and segment.end > needed_from
            if not forced and (is_needed or not expired):
                break
            delete.append(segment.base)
            if is_needed:
                needed.append(segment.base)
    return RetentionPlan(
        delete=tuple(delete),
        refuse_writes=used > options.disk_refuse_writes_percent,
        critical=used > options.disk_warning_percent,
        forced=forced,
        used_percent=used,
        needed=tuple(needed),
    )
