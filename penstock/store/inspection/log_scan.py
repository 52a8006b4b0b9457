"""Steps over a log whose end nobody tells: where it ends, what lies behind the end, what follows damage.

Recovery answers the same questions in order to change the files. Here nothing is changed, every record between
the first and the last that can be recognised counts as part of the log, and whatever is not a record in between
is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock._hot.checks import check
from penstock._hot.layout import BAD_CHECKSUM, BLANK, REASONS
from penstock._hot.reads import find_record, is_zero, walk
from penstock.errors import CorruptRecordError
from penstock.message import StoredMessage, decode_record
from penstock.store.commit_log import CommitLog
from penstock.store.segment import Segment

STEP = 1 << 20
PROBE = 8 << 20


@dataclass(frozen=True, slots=True)
class LogEnd:
    """`position` is after the last record; `torn_bytes` is how far beyond it something was written."""

    position: int
    torn_bytes: int


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Part of the log that is no record."""

    position: int
    length: int
    reason: str


def find_end(log: CommitLog) -> LogEnd:
    """The end of the log, from the last segment in which a record can be recognised; nothing is checksummed."""
    position = log.min_offset
    for segment in reversed(log.segments):
        if segment is not None:
            first = first_record(segment, 0, segment.available)
            if first >= 0:
                position = _walk_to_end(segment, first)
                break
    if position % log.segment_size == 0 and position > log.min_offset and log.segment_of(position) is None:
        # Full and without a successor: the end is where the blank record begins, as a Java broker sees it.
        position = _blank_start(log, position)
    return LogEnd(position, _torn_bytes(log, position))


def _walk_to_end(segment: Segment, start: int) -> int:
    while True:
        stop, why, _, _ = walk(segment.view, start, segment.available, segment.base, False)
        if why == BLANK:
            return segment.base + segment.size
        following = first_record(segment, stop + 1, segment.available) if why else -1
        if following < 0:
            return segment.base + stop
        start = following


def _blank_start(log: CommitLog, position: int) -> int:
    segment = log.segment_of(position - 1)
    if segment is None:
        return position
    start = max(first_record(segment, 0, segment.available), 0)
    while True:
        stop, why, _, _ = walk(segment.view, start, segment.available, segment.base, False)
        following = first_record(segment, stop + 1, segment.available) if why not in (0, BLANK) else -1
        if following < 0:
            return segment.base + stop
        start = following


def _torn_bytes(log: CommitLog, end: int) -> int:
    """How far behind the end anything but zeros was written, in its segment and in later ones."""
    torn = 0
    for segment in log.segments:
        if segment is None or segment.base + segment.size <= end:
            continue
        start = max(end - segment.base, 0)
        if start and _is_blank(segment, start):
            continue  # after a blank record the rest of a segment means nothing
        for low, high in segment.file.data_ranges(start, segment.available):
            for at in range(low, high, STEP):
                stop = min(at + STEP, high)
                if not is_zero(segment.view, at, stop):
                    content = bytes(segment.view.slice(at, stop)).rstrip(b"\0")
                    torn = segment.base + at + len(content) - end
    return torn


def _is_blank(segment: Segment, local: int) -> bool:
    return check(segment.view.source, local, segment.available, segment.base + local, False) == BLANK


def first_record(segment: Segment, start: int, end: int) -> int:
    """First valid record at or after `start` in a segment, or -1; only written parts are searched."""
    if (
        start + 8 <= end
        and check(segment.view.source, start, min(end, start + PROBE), segment.base + start) > 0
    ):
        return start
    for low, high in segment.file.data_ranges(start, end):
        found = find_record(segment.view, max(start, low - 8), high, segment.base)
        if found >= 0:
            return found
    return -1


def after_damage(segment: Segment, local: int, end: int, why: int) -> int:
    """Where, at most at `end`, the log goes on after something that is no valid record."""
    if why == BAD_CHECKSUM:  # its lengths add up, so the next record is where it says
        return min(local + int.from_bytes(segment.view.slice(local, local + 4), "big"), end)
    following = first_record(segment, local + 1, end)
    return end if following < 0 else following


def records_from(log: CommitLog, start: int, end: int) -> Iterator[StoredMessage | DamagedRange]:
    """Every record from the first at or after `start`, decoded and checked, and what is damaged in between."""
    position = max(start, log.min_offset)
    aligned = position == log.min_offset
    while position < end:
        segment = log.segment_of(position)
        boundary = position - position % log.segment_size + log.segment_size
        if segment is None or position - segment.base >= segment.available:
            yield DamagedRange(position, min(boundary, end) - position, "no such part of the log")
            position, aligned = boundary, True
            continue
        local, visible = position - segment.base, min(end - segment.base, segment.available)
        if not aligned and local:
            local = _record_at_or_after(segment, local, visible)
        aligned = True
        position = segment.base + local
        if local >= visible:
            position = boundary if visible == segment.available == segment.size else segment.base + visible
            continue
        found = check(segment.view.source, local, visible, position)
        if found == BLANK:
            position = boundary
        elif found > 0:
            yield _decoded(segment, local, found)
            position += found
        else:
            following = after_damage(segment, local, visible, found)
            yield DamagedRange(position, following - local, REASONS[found])
            position = segment.base + following


def _record_at_or_after(segment: Segment, local: int, visible: int) -> int:
    """A wanted position may be anywhere in a record or in damage: go on at the first whole record."""
    found = first_record(segment, local, visible)
    return visible if found < 0 else found


def _decoded(segment: Segment, local: int, size: int) -> StoredMessage | DamagedRange:
    try:
        return decode_record(segment.view.slice(local, local + size), segment.base + local, verify=False)
    except CorruptRecordError as error:
        return DamagedRange(segment.base + local, size, error.message)
