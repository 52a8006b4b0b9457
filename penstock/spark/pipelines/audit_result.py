"""What an audit found: tables, findings, and how they become JSON and Parquet.

    report.html            for people
    audit.json             findings and tables; long tables are cut to JSON_ROWS rows
    <table>.parquet        every table, whole

Rule: a finding is a problem or a note. Problems decide the exit code; what counts as one is said by `Limits`, so an
audit in a script fails on what its owner cares about. Plain data and driver-side files; no Spark here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.runtime import Disk
from penstock.spark.preflight import check_directory

if TYPE_CHECKING:
    import pyarrow as pa

JSON_ROWS = 1_000
# In a directory whose first audit has not come to its end.
UNFINISHED = ".penstock-audit"
PROBLEM, NOTE = "problem", "note"
# What can be found; those that are a problem unless they are allowed.
KINDS = {
    "altered": "rows that are not the same in the other source",
    "backwards": "messages stored before the one in front of them",
    "dead-letters": "messages that a group gave up",
    "duplicate-ids": "message ids that were stored more than once",
    "duplicate-keys": "keys that were sent more than once with the same body",
    "expired": "messages that were deleted before a group took them",
    "gaps": "offsets that are missing",
    "missing": "rows that the other source has",
    "not-compared": "the other source has nothing in common with this one",
    "order": "messages of a key that came after a later one, by the sequence property",
    "repeated": "offsets that are there more than once",
}
# Notes, and a problem only with a limit.
NOTES = {
    "clock": "messages stored before they were born, by the clocks",
    "hot-keys": "one key has a large part of its topic",
    "lag": "messages that wait for a group",
    "late": "messages of a key that are older than the one in front of them, by born time",
    "latency": "from birth to the store",
    "one-sided": "queues of which nothing was compared with the other source",
    "skew": "one queue has much more than the others",
    "spread-keys": "keys with messages in several queues, which nothing keeps in order",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on a finding is a problem. None: it stays a note."""

    # Kinds that are no problem here.
    allow: frozenset[str] = frozenset()
    # Messages that may wait for a group in a topic.
    lag: int | None = None
    # 99th percentile from birth to the store.
    latency_ms: int | None = None
    # Messages of the largest queue against the mean of its topic.
    skew: float | None = None
    # Part of a topic's keyed messages that one key may have, 0 to 1.
    hot_key: float | None = None

    def __post_init__(self) -> None:
        unknown = sorted(self.allow - KINDS.keys())
        if unknown:
            raise OptionError(f"there is no finding {unknown[0]!r}", f"use some of {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. `count` is how many messages, keys or rows it is about; `table` where they are."""

    kind: str
    severity: str
    topic: str
    count: int
    text: str
    table: str

    @property
    def is_problem(self) -> bool:
        return self.severity == PROBLEM


@dataclass(slots=True)
class AuditResult:
    """An audit that ran to its end."""

    source: str
    against: str
    started_ms: int
    finished_ms: int
    window_s: int
    rows: int
    tables: Mapping[str, pa.Table]
    # Rows that there are beyond those in a table that was cut.
    totals: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    files: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_problem)

    @property
    def exit_code(self) -> int:
        """1 if there are problems, as for the other commands that look for damage."""
        return 1 if self.problems else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "against": self.against or None,
            "started": iso(self.started_ms),
            "finished": iso(self.finished_ms),
            "window_s": self.window_s,
            "rows": self.rows,
            "problems": len(self.problems),
            "findings": [
                {
                    "kind": item.kind,
                    "severity": item.severity,
                    "topic": item.topic,
                    "count": item.count,
                    "text": item.text,
                    "table": item.table,
                }
                for item in self.findings
            ],
            "tables": {name: self._table_json(name, table) for name, table in self.tables.items()},
            "files": self.files,
        }

    def _table_json(self, name: str, table: pa.Table) -> dict[str, Any]:
        rows = table.slice(0, JSON_ROWS).to_pylist()
        return {"total": self.totals.get(name, table.num_rows), "rows": [plain_row(row) for row in rows]}


def iso(time_ms: int) -> str:
    """A time for JSON and for the report: ISO 8601 in UTC with milliseconds."""
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with values that JSON has."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


class ResultFiles:
    """The directory of an audit. One that holds something else is refused, so that nothing of others is replaced.

    The first audit into a directory marks it before it writes anything else: what a killed one leaves is known as
    its own by that, and never guessed by names. With `audit.json` there the mark is not needed any more."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self.directory = directory

    def check(self) -> None:
        """Accept a directory that is not there, that is empty, or that an audit made."""
        check_directory("the report", self.directory)
        if not self._disk.exists(self.directory):
            return
        if any(self._disk.exists(self.directory / name) for name in ("audit.json", UNFINISHED)):
            return
        if self._disk.list(self.directory):
            raise OptionError(
                f"{self.directory} holds something that is no audit",
                "name another directory, or an empty one",
            )

    def prepare(self) -> None:
        """Make the directory, or accept one that an audit made."""
        self.check()
        self._disk.make_dirs(self.directory)
        if self._disk.list(self.directory) == []:
            self._disk.open(self.directory / UNFINISHED, create=True).close()

    def abandon(self) -> None:
        """Remove a directory in which nothing was written."""
        if self._disk.list(self.directory) == [UNFINISHED]:
            self._disk.remove_tree(self.directory)

    def samples(self) -> list[dict[str, Any]]:
        """What earlier audits into this directory saw of the groups; lines that are damaged are left out."""
        try:
            lines = self._disk.read(self.directory / "progress.jsonl").splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def save(self, result: AuditResult, page: str, samples: list[dict[str, Any]]) -> None:
        """Write everything; each file is replaced whole."""
        for name, table in result.tables.items():
            self._replace(f"{name}.parquet", parquet_bytes(table))
            result.files[name] = str(self.directory / f"{name}.parquet")
        result.files["report"] = str(self.directory / "report.html")
        self._replace("progress.jsonl", "".join(json.dumps(row) + "\n" for row in samples).encode())
        self._replace("report.html", page.encode())
        self._replace("audit.json", (json.dumps(result.to_json(), indent=2) + "\n").encode())
        if self._disk.exists(self.directory / UNFINISHED):
            self._disk.remove(self.directory / UNFINISHED)

    def _replace(self, name: str, data: bytes) -> None:
        target = self.directory / name
        temporary = target.with_name(f".{name}.tmp")
        file = self._disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()
        self._disk.rename(temporary, target)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    buffer = pa.BufferOutputStream()
    parquet.write_table(table, buffer)
    return bytes(buffer.getvalue().to_pybytes())
