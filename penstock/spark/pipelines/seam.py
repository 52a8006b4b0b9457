"""Where the archive ends and the live log begins: ranges of offsets, what is in them, what is missing.

A range is a pair (first, last), both inclusive, as in file names; a span is half open, as in positions. Rule: a
message is read from the archive if its offset is in an archived range, and from the log otherwise. So nothing comes
twice, whatever both of them hold, and a hole in the archive is filled as long as the log has it.

Plain numbers: no Spark, no disk, no network. The driver plans with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]
Span = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in as few ranges as possible, ascending."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(last, result[-1][1]))
        else:
            result.append((first, last))
    return result


def overlaps(ranges: Iterable[Range]) -> list[tuple[Range, Range]]:
    """Pairs of neighbours that share offsets."""
    ordered = sorted(ranges)
    return [(before, after) for before, after in pairwise(ordered) if after[0] <= before[1]]


def covers(have: Sequence[Range], wanted: Range) -> bool:
    """Whether merged ranges hold every offset of one range."""
    return any(first <= wanted[0] and wanted[1] <= last for first, last in have)


def missing(have: Sequence[Range], span: Span) -> list[Span]:
    """The parts of a span that merged ranges do not hold, ascending."""
    at, end = span
    parts: list[Span] = []
    for first, last in have:
        if last < at:
            continue
        if first >= end:
            break
        if at < first:
            parts.append((at, first))
        at = max(at, last + 1)
    if at < end:
        parts.append((at, end))
    return parts


def next_offsets(ranges: Mapping[str, Sequence[Range]]) -> dict[str, int]:
    """Where a writer that lost its place goes on: after the last archived offset of each queue."""
    return {key: max(last for _, last in parts) + 1 for key, parts in ranges.items() if parts}


@dataclass(frozen=True, slots=True)
class Layer:
    """One read of the log: from where to where in each queue. A queue that has several parts needs several layers."""

    starts: dict[str, int]
    ends: dict[str, int]

    @property
    def rows(self) -> int:
        return sum(self.ends[key] - start for key, start in self.starts.items())


@dataclass(frozen=True, slots=True)
class Seam:
    """How one topic is put together: layers of the log beside the archive, and offsets that neither has."""

    layers: tuple[Layer, ...]
    lost: dict[str, list[Range]]


def plan(archived: Mapping[str, Sequence[Range]], live: Mapping[str, Span]) -> Seam:
    """`archived` are merged ranges, `live` the spans that the log has, by queue.

    Offsets between the archive's end and the log's beginning are lost: retention was faster than the archive. So are
    holes inside the archive that the log no longer has. What lies before the archive's first offset and is not in
    the log was never meant to be there.
    """
    parts = {key: missing(archived.get(key, ()), span) for key, span in live.items()}
    depth = max((len(spans) for spans in parts.values()), default=0)
    layers = []
    for level in range(depth):
        chosen = {key: spans[level] for key, spans in parts.items() if level < len(spans)}
        starts = {key: span[0] for key, span in sorted(chosen.items())}
        layers.append(Layer(starts, {key: chosen[key][1] for key in starts}))
    lost = {key: _lost(ranges, live[key]) for key, ranges in archived.items() if ranges and key in live}
    return Seam(tuple(layers), {key: ranges for key, ranges in sorted(lost.items()) if ranges})


def _lost(archived: Sequence[Range], live: Span) -> list[Range]:
    holes = missing(archived, (archived[0][0], max(archived[-1][1] + 1, live[0])))
    cut = [(first, min(end, live[0])) for first, end in holes]
    return [(first, end - 1) for first, end in cut if first < end]
