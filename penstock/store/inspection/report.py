"""What an inspection says: issues with their places, and totals. Plain data that can be printed or made JSON.

Rule: an issue is damage when messages or their entries are affected in a way that opening the store would not
be expected to meet; everything else (a store not closed cleanly, entries that the next open builds) is a note.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from penstock.store.checkpoint import Checkpoint
from penstock.store.findings import Finding
from penstock.store.sizes import StoreSizes

KEPT_PER_KIND = 1_000


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing found. `position` and `length` are in the log (-1: the log is not concerned); `path` is
    relative to the store, and `file_position` a byte of that file (-1: no single place in it)."""

    kind: str
    detail: str
    damage: bool
    position: int = -1
    length: int = 0
    path: str = ""
    file_position: int = -1

    def to_json(self) -> dict[str, object]:
        return asdict(self)


class IssueList:
    """Collects issues, bounded per kind; counts them all. Used by one thread."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._kept: list[Issue] = []
        self._counts: Counter[str] = Counter()
        self.total = 0
        self.damage_total = 0

    def add(self, issue: Issue) -> None:
        self.total += 1
        self.damage_total += issue.damage
        self._counts[issue.kind] += 1
        if self._counts[issue.kind] <= KEPT_PER_KIND:
            self._kept.append(issue)

    def damage(
        self, kind: str, detail: str, *, position: int = -1, length: int = 0, path: str = "", at: int = -1
    ) -> None:
        self.add(Issue(kind, detail, True, position, length, self.relative(path), at))

    def note(
        self, kind: str, detail: str, *, position: int = -1, length: int = 0, path: str = "", at: int = -1
    ) -> None:
        self.add(Issue(kind, detail, False, position, length, self.relative(path), at))

    def take(self, finding: Finding) -> None:
        """What a part of the store noticed while its files were opened."""
        self.add(
            Issue(
                finding.kind,
                finding.detail,
                finding.is_damage,
                finding.position,
                finding.length,
                self.relative(finding.path),
            )
        )

    def relative(self, path: str) -> str:
        return path.removeprefix(self._root)

    def sorted(self) -> tuple[Issue, ...]:
        """Damage first, then by place."""
        return tuple(
            sorted(
                self._kept, key=lambda i: (not i.damage, i.position < 0, i.position, i.path, i.file_position)
            )
        )


@dataclass(frozen=True, slots=True)
class LogTotals:
    """The log as it was read."""

    segments: int = 0
    start: int = 0
    end: int = 0
    records: int = 0
    bytes: int = 0
    damaged_records: int = 0
    damaged_bytes: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Queues compared with the log."""

    topics: int = 0
    queues: int = 0
    entries: int = 0
    wrong_entries: int = 0
    missing_entries: int = 0


@dataclass(frozen=True, slots=True)
class IndexTotals:
    """Index files compared with the log; `checked` is False where their sizes are not known."""

    checked: bool = True
    files: int = 0
    entries: int = 0
    compared: int = 0
    wrong_entries: int = 0
    wrong_slots: int = 0
    unindexed_keys: int = 0


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`."""

    path: str
    form: str
    sizes: StoreSizes
    clean: bool
    in_use: bool
    log: LogTotals
    queues: QueueTotals
    index: IndexTotals
    checkpoint: Checkpoint
    issues: tuple[Issue, ...] = ()
    issues_total: int = 0
    damage_total: int = 0
    duration_ms: int = 0

    @property
    def sound(self) -> bool:
        return self.damage_total == 0

    @property
    def bytes_per_second(self) -> int:
        return self.log.bytes * 1000 // max(self.duration_ms, 1)

    def to_json(self) -> dict[str, object]:
        value = asdict(self)
        value["sound"] = self.sound
        value["bytes_per_second"] = self.bytes_per_second
        return value


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue: offsets [min_offset, max_offset), and how many of them have a message. `bytes` of their
    records is known only where the log was read (else -1)."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    bytes: int = -1


@dataclass(frozen=True, slots=True)
class FileStats:
    """Files of one kind: how many, their lengths, and how much of that was ever written."""

    files: int = 0
    size_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The outcome of `stats`. Messages are counted by queue entries, or in the log where `exact`."""

    path: str
    form: str
    sizes: StoreSizes
    clean: bool
    in_use: bool
    exact: bool
    messages: int
    log: LogTotals
    queues: tuple[QueueStats, ...]
    index_entries: int
    checkpoint: Checkpoint
    files: dict[str, FileStats] = field(default_factory=dict)
    disk_total_bytes: int = 0
    disk_used_percent: int = 0
    disk_available_bytes: int = 0
    duration_ms: int = 0

    def to_json(self) -> dict[str, object]:
        return asdict(self)
