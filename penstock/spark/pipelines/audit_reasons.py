"""Why messages are missing, as far as the read itself could tell: deleted, damaged, or never there.

The read of a live log or a store directory notes what it could not read in a gap table (`penstock.spark.gaps`); an
audit finds gaps by counting. Here the two meet: a gap gets the reasons of the notes that overlap it.

Rule: a note adds a word to a gap that was found and never makes one. Driver only, a few thousand rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.gaps import Gap

_REASONS_MAX = 3


def with_reasons(gaps: pa.Table, gap_table: str) -> pa.Table:
    """The table of gaps with a column `reason`; empty text where nothing is known."""
    import pyarrow as pa

    notes: list[Gap] = []
    if gap_table and gaps.num_rows:
        from penstock.spark.gaps import read_gaps

        notes = read_gaps(gap_table)
    return gaps.append_column("reason", pa.array(reasons_of(gaps.to_pylist(), notes), pa.string()))


def reasons_of(gaps: Iterable[dict[str, Any]], notes: Iterable[Gap]) -> list[str]:
    """For each gap the reasons of the notes that overlap it, the first few different ones."""
    by_queue: dict[tuple[object, ...], list[Gap]] = {}
    for note in sorted(notes, key=lambda note: note.first_offset):
        by_queue.setdefault((note.topic, note.broker, note.queue_id), []).append(note)
    found = []
    for gap in gaps:
        some = by_queue.get((gap["topic"], gap["broker"], gap["queue_id"]), [])
        last = bisect_right([note.first_offset for note in some], gap["last_offset"])
        reasons = {note.reason: None for note in some[:last] if note.last_offset >= gap["first_offset"]}
        found.append("; ".join(list(reasons)[:_REASONS_MAX]))
    return found
