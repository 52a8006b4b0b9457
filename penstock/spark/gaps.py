"""Gaps: messages that a read should have found and did not, and what becomes of that.

    fail      the query stops; the error names the queue, the range, and what can be done
    report    the range becomes a row of the gap table, and the read goes on behind it
    skip      the read goes on, with a line in the log

The gap table is a directory of JSON files, one row each, that `spark.read.json` reads:

    topic, broker, queue_id, first_offset, last_offset (inclusive), reason, found_at, where (planning | reading)

Rules: a row's file is named by its queue, its first offset and its reason, and appears whole or not at all: a task
or a batch that is run again writes the same row, and one that finds more of the same gap replaces it. The directory
must be one that driver and executors see alike: a shared path, or a URI that pyarrow's file systems know. Runs on
the driver (planning) and on executors (reading).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from penstock._hot.layout import GONE, NO_RECORD, ROW_REASONS
from penstock.client.scan_results import QueueId
from penstock.errors import GapError, OptionError
from penstock.runtime import SystemClock, SystemEntropy
from penstock.spark.options import OnGap

logger = logging.getLogger(__name__)
PREFIX = "gap-"
# A file's name has 255 bytes at most, of which offset, reason and the half-written file's number need 60.
PLACE_BYTES_MAX, PLACE_BYTES_KEPT = 190, 100


class Reason(StrEnum):
    """Why messages are not there; the first word of a row's reason."""

    DELETED = "deleted"  # retention was faster
    DAMAGED = "damaged"  # a record fails its checksum or its lengths
    MISSING = "missing"  # the broker has the offsets, and no records for them
    LOST = "lost"  # the queue ends before an offset that was there once


# What a decoder says of an offset without a row, where that is no damage of a record.
_NO_DAMAGE = {ROW_REASONS[NO_RECORD]: Reason.MISSING, ROW_REASONS[GONE]: Reason.DELETED}
_WHAT_TO_DO = {
    Reason.DELETED: "read more often, keep messages longer (file_reserved_hours), or begin at a later position",
    Reason.DAMAGED: "`penstock store verify` shows the damage, a replica may have the records",
    Reason.MISSING: "`penstock store verify` on the broker's directory shows what is damaged",
    Reason.LOST: "was the topic created anew, or did the broker lose its last messages in a crash? "
    "A new checkpoint begins from startingPosition",
}


@dataclass(frozen=True, slots=True)
class Gap:
    """One row of the gap table."""

    topic: str
    broker: str
    queue_id: int
    first_offset: int
    last_offset: int
    reason: str
    found_at: str
    where: str

    @property
    def rows(self) -> int:
        return self.last_offset - self.first_offset + 1


class Gaps:
    """Deals with gaps as an option says. Can be pickled; opens the table when it is needed."""

    def __init__(self, on_gap: OnGap, table: str = "") -> None:
        self.on_gap = on_gap
        self.table = table

    def found(
        self, queue: QueueId, first: int, last: int, reason: Reason, detail: str = "", *, where: str
    ) -> None:
        """Offsets first to last, inclusive, cannot be read. Returns if the read may go on."""
        text = f"{reason.value}: {detail}" if detail else reason.value
        count = last - first + 1
        message = (
            f"{count} message{'s' if count != 1 else ''} of topic {queue.topic}, "
            f"broker {queue.broker or '(store directory)'}, queue {queue.queue_id}, "
            f"offsets {first} to {last}: {text}"
        )
        if self.on_gap is OnGap.FAIL:
            raise GapError(
                message,
                f"{_WHAT_TO_DO[reason]}; or set onGap to skip, or to report with a gapTable, to go on without them",
            )
        logger.warning("left out: %s", message)
        if self.on_gap is OnGap.REPORT:
            found = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
            now = found.isoformat(timespec="milliseconds")
            write_gap(
                self.table,
                Gap(queue.topic, queue.broker, queue.queue_id, first, last, text, now, where),
                reason,
            )


def reason_for(damage: str) -> Reason:
    """Which reason a decoder's words stand for."""
    return _NO_DAMAGE.get(damage, Reason.DAMAGED)


# -- the table ---------------------------------------------------------------------------------------------------


def write_gap(table: str, gap: Gap, reason: Reason) -> None:
    """Add a row; nothing happens if it is there."""
    system, root = _open(table)
    place = f"{quote(gap.topic, safe='')}-{quote(gap.broker, safe='')}-{gap.queue_id}"
    if len(place) > PLACE_BYTES_MAX:
        # The row itself says which queue it is of; its name only has to be the same each time, and no other's.
        place = f"{place[:PLACE_BYTES_KEPT]}~{hashlib.sha256(place.encode()).hexdigest()}"
    name = f"{place}-{gap.first_offset:020d}-{reason.value}"
    path = f"{root}/{PREFIX}{name}.json"
    try:
        system.create_dir(root, recursive=True)
        known = _read(system, path)
        if known is not None and known.last_offset >= gap.last_offset:
            return
        half = f"{root}/.{name}.{os.getpid()}.{SystemEntropy().bytes(4).hex()}"
        with system.open_output_stream(half) as stream:
            stream.write(json.dumps(asdict(gap)).encode() + b"\n")
        system.move(half, path)
    except OSError as error:
        raise GapError(
            f"a gap cannot be written to gapTable {table}: {error}", "name a directory that can be written"
        ) from error


def read_gaps(table: str) -> list[Gap]:
    """All rows, by queue and offset; none if there is no such directory."""
    from pyarrow import fs

    system, root = _open(table)
    found: list[Gap] = []
    for item in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
        if item.base_name.startswith(PREFIX) and item.base_name.endswith(".json"):
            gap = _read(system, item.path)
            if gap is not None:
                found.append(gap)
    return sorted(found, key=lambda gap: (gap.topic, gap.broker, gap.queue_id, gap.first_offset))


def missing_offsets(gaps: Iterable[Gap]) -> dict[QueueId, list[tuple[int, int]]]:
    """Ranges [first, end) without messages, by queue; rows that overlap count once."""
    merged: dict[QueueId, list[tuple[int, int]]] = {}
    for gap in sorted(gaps, key=lambda gap: (gap.topic, gap.broker, gap.queue_id, gap.first_offset)):
        ranges = merged.setdefault(QueueId(gap.topic, gap.broker, gap.queue_id), [])
        if ranges and gap.first_offset <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], gap.last_offset + 1))
        else:
            ranges.append((gap.first_offset, gap.last_offset + 1))
    return merged


def _read(system: Any, path: str) -> Gap | None:
    try:
        with system.open_input_stream(path) as stream:
            return Gap(**json.loads(stream.read()))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        raise GapError(
            f"{path} is no row of a gap table: {error}", "name a directory for gaps alone"
        ) from error


def _open(table: str) -> tuple[Any, str]:
    """File system and path of a directory or URI."""
    from pyarrow import fs

    if "://" not in table and not table.startswith("file:"):
        return fs.LocalFileSystem(), os.path.abspath(table)
    try:
        system, path = fs.FileSystem.from_uri(table)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"gapTable {table!r} cannot be opened: {error}", "name a directory or a URI as file:///..."
        ) from error
    return system, path.rstrip("/")
