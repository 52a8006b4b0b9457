"""The lines of the seeds: which are proven by a test, which are decided in writing, which are left.

docs/seeds.md has a row for each: what it says and, where that settles it, the decision; the column of tests is
written by `make compatibility` from the markers.

    python -m scripts.seed_lines compiled pure     how far the last `make test` got

Rule: a line is proven in a run if a test that names it passed and none failed. A decision beside a proof is a note; a
line without proof needs one. `pending: ...` in the place of a decision is neither.

Never: takes a test that was skipped for a proof.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts import marked_tests, outcomes
from scripts.marked_tests import ROOT, MarkedTest
from scripts.outcomes import Outcome

PAGE = "docs/seeds.md"
ROW = re.compile(r"^\| (S\d-\d+) \| (.*?) \|(.*?)\|(.*?)\|$", re.M)
PENDING = "pending"
_FILES_SHOWN = 2
_IDS_SHOWN = 40


@dataclass(frozen=True, slots=True)
class SeedLine:
    id: str
    says: str
    proven_by: str
    decided: str

    @property
    def is_pending(self) -> bool:
        return self.decided.startswith(PENDING)

    @property
    def is_decided(self) -> bool:
        return bool(self.decided) and not self.is_pending


def read(root: Path = ROOT) -> dict[str, SeedLine]:
    """The rows of the page by their ids; two with one id are an error."""
    found: dict[str, SeedLine] = {}
    for match in ROW.finditer((root / PAGE).read_text(encoding="utf-8")):
        line = SeedLine(match[1], match[2], match[3].strip(), match[4].strip())
        if line.id in found:
            raise ValueError(f"{PAGE} has two rows for {line.id}: remove one")
        found[line.id] = line
    return found


def tests_of(marked: Iterable[MarkedTest]) -> dict[str, list[MarkedTest]]:
    """The tests that name each line."""
    found: dict[str, list[MarkedTest]] = {}
    for test in marked:
        for seed in test.seeds:
            found.setdefault(seed, []).append(test)
    return found


def proof_cell(tests: list[MarkedTest]) -> str:
    """The files of these tests, the one with most of them first."""
    files: dict[str, int] = {}
    for test in tests:
        files[test.path] = files.get(test.path, 0) + 1
    ordered = sorted(files, key=lambda path: (-files[path], path))
    shown = ", ".join(f"`{path}`" for path in ordered[:_FILES_SHOWN])
    more = len(ordered) - _FILES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def render(page: str, marked: Iterable[MarkedTest]) -> str:
    """The page with its column of tests as the markers have it; a line that got a test is no longer pending."""
    tests = tests_of(marked)

    def row(match: re.Match[str]) -> str:
        found = tests.get(match[1], [])
        decided = match[4].strip()
        if found and decided.startswith(PENDING):
            decided = ""
        return f"| {match[1]} | {match[2]} |{_cell(proof_cell(found))}|{_cell(decided)}|"

    return ROW.sub(row, page)


def _cell(text: str) -> str:
    return f" {text} " if text else " "


def ends(found: Iterable[Outcome]) -> dict[str, str]:
    """For each line that these outcomes name how its tests ended: failed, passed or skipped."""
    by_line: dict[str, str] = {}
    for outcome in found:
        for seed in outcome.seeds:
            by_line[seed] = outcomes.worse(by_line.get(seed, "skipped"), outcome.outcome)
    return by_line


def report(lines: Mapping[str, SeedLine], found: Iterable[Outcome], *, whole: bool) -> list[str]:
    """What the end of a run says."""
    by_line = ends(found)
    proven = {seed for seed, end in by_line.items() if end == "passed"}
    failed = sorted((seed for seed, end in by_line.items() if end == "failed"), key=_place)
    if not whole:
        said = [
            f"seed lines: {len(proven)} proven here, of {len(by_line)} that the tests of this run name "
            f"(part of the tests ran; there are {len(lines)} lines)"
        ]
        skipped = sorted((seed for seed, end in by_line.items() if end == "skipped"), key=_place)
        return [*said, *_listed("their tests failed", failed), *_listed("their tests were skipped", skipped)]
    decided = [seed for seed, line in lines.items() if line.is_decided and seed not in proven]
    left = [seed for seed in lines if seed not in proven and seed not in decided and seed not in failed]
    return [
        f"seed lines: {len(lines)}. {len(proven)} are proven by tests that passed in this run, "
        f"{len(decided)} are decided in writing ({PAGE}), {len(left) + len(failed)} are left",
        *_listed("their tests failed", failed),
        *_listed("left", left),
    ]


def _listed(title: str, ids: list[str]) -> list[str]:
    if not ids:
        return []
    more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
    return [f"  {title}: {' '.join(ids[:_IDS_SHOWN])}{more}"]


def _place(seed: str) -> tuple[str, int]:
    document, _, number = seed.partition("-")
    return document, int(number)


def main(kinds: list[str]) -> int:
    """How far the last run got; of `make test` that is compiled and uncompiled together."""
    marked = marked_tests.read()
    latest = {kind: outcomes.load(kind).latest() for kind in kinds}
    whole = all(outcomes.is_whole(kind, found, marked) for kind, found in latest.items())
    found = [outcome for of_kind in latest.values() for outcome in of_kind.values()]
    for line in report(read(), found, whole=whole):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
