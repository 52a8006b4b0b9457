"""How long test files take and how often they find something. Schedules runs, and chooses the tests of `make quick`.

    tests/history.json          in the repository: {"short": {FILE or TEST: s}, "long": {...}, "failures": {FILE: n}}
    build/results/times.json    the same of this clone, with seconds per test; it wins where both know a file

    python -m scripts.history     write what this clone knows into tests/history.json (`make times`)

Rule: seconds are those of set-up, test and clean-up together, of all cases of a file.
Never: decides anything; a file without a time is taken for one of middling length.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = "tests/history.json"
LOCAL = "build/results/times.json"
UNKNOWN_S = 3.0
LONG_TEST_S = 5.0
LENGTHS = ("short", "long")


def file_of(node: str) -> str:
    """The file of a node id."""
    return node.partition("::")[0]


@dataclass(slots=True)
class History:
    """Seconds by length and node id, and failures by file. In the repository short tests of a file are one entry."""

    seconds: dict[str, dict[str, float]] = field(default_factory=lambda: {length: {} for length in LENGTHS})
    failures: dict[str, int] = field(default_factory=dict)

    def of_files(self, length: str) -> dict[str, float]:
        """Seconds by file."""
        found: dict[str, float] = {}
        for node, seconds in self.seconds[length].items():
            found[file_of(node)] = found.get(file_of(node), 0.0) + seconds
        return found


def load_committed(root: Path = ROOT) -> History:
    """What the repository knows: the same in every clone."""
    return _read(root / COMMITTED)


def load(root: Path = ROOT) -> History:
    """What the repository and this clone know."""
    known, local = load_committed(root), _read(root / LOCAL)
    for length in LENGTHS:
        measured = local.of_files(length)
        kept = {node: time for node, time in known.seconds[length].items() if file_of(node) not in measured}
        known.seconds[length] = kept | local.seconds[length]
    for file, count in local.failures.items():
        known.failures[file] = known.failures.get(file, 0) + count
    return known


def _read(path: Path) -> History:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return History()  # Times only help: a damaged file of the build folder must not end a run.
    return History(
        {length: dict(found.get(length, {})) for length in LENGTHS}, dict(found.get("failures", {}))
    )


def _write(path: Path, history: History) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        **{
            length: {node: round(s, 2) for node, s in sorted(history.seconds[length].items())}
            for length in LENGTHS
        },
        "failures": dict(sorted(history.failures.items())),
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    unfinished.replace(path)


def keep(
    length: str,
    ran: Mapping[str, float],
    whole_files: Iterable[str],
    failed: Iterable[str],
    root: Path = ROOT,
) -> None:
    """Add a run to what this clone knows. Of `whole_files` every test ran, so older tests of them are forgotten."""
    local = _read(root / LOCAL)
    whole = set(whole_files)
    kept = {node: time for node, time in local.seconds[length].items() if file_of(node) not in whole}
    local.seconds[length] = kept | dict(ran)
    for file in {file_of(node) for node in failed}:
        local.failures[file] = local.failures.get(file, 0) + 1
    _write(root / LOCAL, local)


def condensed(seconds: Mapping[str, float]) -> dict[str, float]:
    """Long tests by themselves, and the others of each file together; files that are gone are left out."""
    found: dict[str, float] = {}
    for node, taken in seconds.items():
        if (ROOT / file_of(node)).exists():
            kept_as = node if taken >= LONG_TEST_S else file_of(node)
            found[kept_as] = found.get(kept_as, 0.0) + taken
    return found


def main() -> int:
    """Write the times that this clone knows into the repository."""
    known = load()
    kept = History(
        {length: condensed(known.seconds[length]) for length in LENGTHS},
        {file: count for file, count in known.failures.items() if (ROOT / file).exists()},
    )
    _write(ROOT / COMMITTED, kept)
    (ROOT / LOCAL).unlink(missing_ok=True)
    files = kept.of_files("short")
    print(f"{COMMITTED}: {len(files)} files, {sum(files.values()):.0f} s of tests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
