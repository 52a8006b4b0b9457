"""The plan of a replay: which rows, cut into slices, frozen before the first row is sent.

    checkpoint/plan.json         source, filters, target, ranges of all queues, slices
    checkpoint/progress.json     how many slices are published, and what was in them

A slice is a range of offsets in some queues: what is staged and published as one, under the replay's id and the
number of the slice. A replay that was interrupted goes on with the slice that is not in its progress; if that was
published all the same, the broker knows its number and adds nothing.

Rules: slices go by store time, so that queues advance together; inside a queue they follow each other without a gap
or an overlap, which keeps its order. A plan is never changed once it is written: whoever asks for something else with
the same checkpoint is refused. Plain code on the driver; no Spark here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from penstock.client.access import FROM_ENVIRONMENT, Access
from penstock.errors import CodecError, OptionError
from penstock.metadata.config_files import ConfigFile
from penstock.metadata.fastjson import JsonObject, JsonValue
from penstock.metadata.json_fields import INT64_MAX, JsonFields
from penstock.runtime import Disk
from penstock.spark.pipelines.audit_sources import QueueKey, Ranges, Source

SLICE_ROWS = 50_000
SLICE_BYTES = 32 << 20
# With a rate, so many seconds of it at once: what is published together becomes visible together.
SLICE_S = 2.0
CELLS_MAX = 65_536
_CELL_BITS = 6


class Cell(NamedTuple):
    """Matching rows among 2^bits neighbouring offsets of a queue."""

    queue: QueueKey
    number: int
    rows: int
    bytes: int
    first_ms: int


@dataclass(frozen=True, slots=True)
class Slice:
    """What is published at once."""

    ranges: Ranges
    rows: int
    bytes: int

    def to_json(self) -> JsonObject:
        return {"rows": self.rows, "bytes": self.bytes, "ranges": ranges_json(self.ranges)}

    @classmethod
    def read(cls, fields: JsonFields) -> Slice:
        rows = fields.integer("rows", 0, 0, INT64_MAX)
        size = fields.integer("bytes", 0, 0, INT64_MAX)
        return cls(_read_ranges(fields, "ranges"), rows, size)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages, and where to: what a person asks for. A checkpoint belongs to one of these."""

    source: Source
    target: str
    nameserver: str
    # SQL over the message columns.
    where: str = ""
    # Messages with one of these keys, and with one of these tags.
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    # Queue by key, instead of one queue for each queue of the source.
    by_key: bool = False
    # Who sends, and how; a checkpoint knows nothing of it, so keys may change between two runs.
    access: Access = field(default=FROM_ENVIRONMENT, compare=False)

    def __post_init__(self) -> None:
        if not self.target:
            raise OptionError("no target topic is given", "say into which with --to TOPIC")
        if not self.nameserver:
            raise OptionError("a replay needs a name server", "say which with --nameserver HOST:PORT")

    @property
    def target_log(self) -> Source:
        """The target as something to read."""
        return Source("log", nameserver=self.nameserver, topics=(self.target,), access=self.access)

    def to_json(self) -> JsonObject:
        source = self.source
        return {
            "source": {
                "kind": source.kind,
                "path": source.path,
                "nameserver": source.nameserver,
                "topics": list(source.topics),
                "start": source.start,
                "end": source.end,
                "start_text": source.start_text,
                "end_text": source.end_text,
            },
            "target": self.target,
            "nameserver": self.nameserver,
            "where": self.where,
            "keys": list(self.keys),
            "tags": list(self.tags),
            "by_key": self.by_key,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run needs to know, also one on another day."""

    id: str
    wanted: JsonObject
    # Home of the target: all rows of a replay go to one broker, which publishes them.
    broker: str
    queues: int
    ranges: Ranges
    slices: tuple[Slice, ...]
    # Where the target ended before the replay, for counting what it added.
    target_ends: Ranges = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.slices)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.slices)

    def in_force(self, wanted: Wanted) -> Wanted:
        """What is wanted, with the times that were meant when the plan was made: `2h` means them for good."""
        kept = JsonFields(self.wanted, "wanted").inner("source")
        times = kept.rest() if kept is not None else {}
        start, end = (time if isinstance(time := times.get(name), int) else None for name in ("start", "end"))
        return replace(wanted, source=replace(wanted.source, start=start, end=end))

    def to_json(self) -> JsonObject:
        return {
            "version": 1,
            "id": self.id,
            "wanted": self.wanted,
            "broker": self.broker,
            "queues": self.queues,
            "ranges": ranges_json(self.ranges),
            "target_ends": ranges_json(self.target_ends),
            "slices": [item.to_json() for item in self.slices],
        }

    @classmethod
    def from_json(cls, value: JsonValue, source: str = "plan.json") -> Plan:
        fields = JsonFields(value, source)
        if fields.integer("version", 0, 0, INT64_MAX) != 1:
            fields.fail("version", "must be 1: another release wrote this plan")
        wanted = fields.inner("wanted")
        return cls(
            id=fields.text("id", ""),
            wanted=wanted.rest() if wanted is not None else {},
            broker=fields.text("broker", ""),
            queues=fields.integer("queues", 1, 1, 1 << 20),
            ranges=_read_ranges(fields, "ranges"),
            target_ends=_read_ranges(fields, "target_ends"),
            slices=tuple(Slice.read(item) for item in fields.object_list("slices")),
        )


@dataclass(frozen=True, slots=True)
class Done:
    """How far a replay is: slices published, the rows in them, and the sum of the hashes of their bodies."""

    slices: int = 0
    rows: int = 0
    content: int = 0

    def plus(self, rows: int, content: int) -> Done:
        return replace(self, slices=self.slices + 1, rows=self.rows + rows, content=self.content + content)

    def to_json(self) -> JsonObject:
        # The sum may be larger than 64 bits: a decimal text.
        return {"slices": self.slices, "rows": self.rows, "content": str(self.content)}

    @classmethod
    def from_json(cls, value: JsonValue, source: str = "progress.json") -> Done:
        fields = JsonFields(value, source)
        content = fields.text("content", "0")
        if not content.removeprefix("-").isdecimal():
            raise CodecError(f"{source}: content is {content[:40]!r}, not a number")
        slices = fields.integer("slices", 0, 0, INT64_MAX)
        return cls(slices, fields.integer("rows", 0, 0, INT64_MAX), int(content))


def ranges_json(ranges: Ranges) -> JsonObject:
    return {str(key): [first, end] for key, (first, end) in sorted(ranges.items())}


def _read_ranges(fields: JsonFields, name: str) -> Ranges:
    inner = fields.inner(name)
    if inner is None:
        return {}
    found: dict[QueueKey, tuple[int, int]] = {}
    for key in inner.rest():
        pair = inner.integer_list(key, 0, INT64_MAX)
        if len(pair) != 2:
            inner.fail(key, "must be a first and an end offset")
        found[QueueKey.parse(key)] = (pair[0], pair[1])
    return found


# -- slicing -----------------------------------------------------------------------------------------------------


def cell_bits(ranges: Ranges, rows_max: int) -> int:
    """How many offsets a cell has, as a power of two: no more than a slice may have rows, but with large sources so
    many that the driver can count the cells."""
    offsets = sum(end - first for first, end in ranges.values())
    fine = min(_CELL_BITS, max(0, rows_max.bit_length() - 3))
    return max(fine, (max(offsets, 1) // CELLS_MAX).bit_length())


def slice_rows(most: int, rate: float | None) -> int:
    """Rows of a slice at most: with a rate, what it allows in SLICE_S."""
    return most if rate is None else max(1, min(most, int(rate * SLICE_S)))


def cut_slices(
    cells: Iterable[Cell], ranges: Ranges, bits: int, *, rows_max: int, bytes_max: int
) -> tuple[Slice, ...]:
    """Cells in the order of time, gathered until a slice is full. A cell is never divided."""
    found: list[Slice] = []
    part: dict[QueueKey, tuple[int, int]] = {}
    rows = size = 0
    for cell in _in_time(cells):
        if part and (rows + cell.rows > rows_max or size + cell.bytes > bytes_max):
            found.append(Slice(part, rows, size))
            part, rows, size = {}, 0, 0
        first, end = ranges[cell.queue]
        low, high = max(first, cell.number << bits), min(end, (cell.number + 1) << bits)
        part[cell.queue] = (part[cell.queue][0] if cell.queue in part else low, high)
        rows, size = rows + cell.rows, size + cell.bytes
    if part:
        found.append(Slice(part, rows, size))
    return tuple(found)


def _in_time(cells: Iterable[Cell]) -> Sequence[Cell]:
    """By time of their first row, but the cells of a queue always by their number: its clock may have gone back."""
    latest: dict[QueueKey, int] = {}
    timed = []
    for cell in sorted(cells, key=lambda cell: (cell.queue, cell.number)):
        latest[cell.queue] = max(latest.get(cell.queue, cell.first_ms), cell.first_ms)
        timed.append((latest[cell.queue], cell.queue, cell.number, cell))
    return [cell for *_, cell in sorted(timed, key=lambda item: item[:3])]


# -- checkpoint --------------------------------------------------------------------------------------------------


class Checkpoint:
    """A directory with a plan and how far it is."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.directory = directory
        self._plan = ConfigFile(disk, directory / "plan.json")
        self._progress = ConfigFile(disk, directory / "progress.json")

    def load(self, wanted: Wanted) -> tuple[Plan, Done] | None:
        """The plan that is there and how far it is; None for a new checkpoint. Refuses another replay's."""
        loaded = self._plan.load(Plan.from_json)
        if loaded is None:
            return None
        plan = loaded.value
        changed = _changes(plan.wanted, wanted.to_json())
        if changed:
            raise OptionError(
                f"checkpoint {self.directory} belongs to another replay: {', '.join(changed)} changed",
                "use a new checkpoint, or the same options again",
            )
        done = self._progress.load(Done.from_json)
        return plan, done.value if done is not None else Done()

    def begin(self, plan: Plan) -> None:
        self._plan.save(plan.to_json())

    def note(self, done: Done) -> None:
        self._progress.save(done.to_json())


def _changes(before: JsonObject, now: JsonObject) -> list[str]:
    """What makes it another replay. A time is the same if it is the same moment, or was written in the same words;
    plans of before have no words."""
    old, new = before.get("source"), now.get("source")
    same: set[str] = set()
    if isinstance(old, dict) and isinstance(new, dict):
        for name in ("start", "end"):
            same.add(f"source.{name}_text")
            if old.get(f"{name}_text") and old.get(f"{name}_text") == new.get(f"{name}_text"):
                same.add(f"source.{name}")
    return [name for name in differences(before, now) if name not in same]


def differences(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """Names of what is not the same, those of the source with a dot."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += [f"{name}.{inner}" for inner in differences(old, new)]
        elif old != new:
            found.append(name)
    return found
