"""Writes what the tests say about compatibility into the documents: `python -m scripts.compatibility`, or `--check`.

The table in docs/compatibility.md has a row for each feature and a column for each system. What a cell says comes
from build/results, where the test runs leave their outcomes; how many tests there are comes from the markers in their
sources. docs/seeds.md gets its column of tests from the markers alone.

`--check` writes nothing and fails if a page does not agree with the markers. It does not need results: how the tests
ended is what the last run said, which of them there are can be seen in the sources.

Rule: a test function counts once. It failed if any of its cases failed in any kind of run; it passed if one passed. A
cell of which some tests have no result here says what it said before, as long as it has as many tests as before: who
has run the unit tests only need not know what the others would say.

Never: writes dates, durations or names of machines.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts import marked_tests, outcomes, seed_lines
from scripts.features import FEATURES, NOT_COVERED, SYSTEMS
from scripts.marked_tests import ROOT, MarkedTest, Pair
from scripts.outcomes import Outcome

PAGE = "docs/compatibility.md"
BEGIN = "<!-- made by `make compatibility` from the results of the tests: do not edit -->"
END = "<!-- end of what is made -->"
ABSENT = "-"
NOTE = "note"
WORKS, FAILED, NOT_RUN = "works", "failed", "not run"
_CELL = re.compile(rf"(?:{WORKS}|{FAILED}|{NOT_RUN}) \((?:\d+ of )?(\d+) tests?\)")


def counted(marked: Iterable[MarkedTest]) -> dict[Pair, list[MarkedTest]]:
    """The tests of each cell."""
    found: dict[Pair, list[MarkedTest]] = {}
    for test in marked:
        for pair in test.features:
            found.setdefault(pair, []).append(test)
    return found


def mistakes(tests: Mapping[Pair, list[MarkedTest]]) -> list[str]:
    """What is wrong with markers and reasons, in words."""
    cells = {(name, system) for name, feature in FEATURES.items() for system in feature.systems}
    return [
        *(
            f"{pair} is named by a test and is no cell of scripts/features.py"
            for pair in sorted(tests.keys() - cells)
        ),
        *(f"{pair} has a reason and is no cell" for pair in sorted(NOT_COVERED.keys() - cells)),
        *(
            f"{pair} has neither tests nor a reason in NOT_COVERED of scripts/features.py"
            for pair in sorted(cells - tests.keys() - NOT_COVERED.keys())
        ),
        *(
            f"{pair} has tests now: remove its reason from NOT_COVERED of scripts/features.py"
            for pair in sorted(tests.keys() & NOT_COVERED.keys())
        ),
    ]


def ends(results: Iterable[Mapping[str, Outcome]]) -> dict[tuple[str, Pair], str]:
    """How each test function ended for each cell that its cases count for."""
    found: dict[tuple[str, Pair], str] = {}
    for of_kind in results:
        for node, outcome in of_kind.items():
            for pair in outcome.features:
                key = outcomes.function_of(node), pair
                found[key] = outcomes.worse(found.get(key, "skipped"), outcome.outcome)
    return found


def cell(pair: Pair, tests: list[MarkedTest], ended: Mapping[tuple[str, Pair], str], before: str = "") -> str:
    """What one cell says; `before` is what it said the last time."""
    if pair in NOT_COVERED:
        said, _, reason = NOT_COVERED[pair].partition(": ")
        return f"{said} ({NOTE} {_notes().index(reason) + 1})" if reason else said
    of_tests = [ended.get((test.node, pair)) for test in tests]
    failed, passed, total = of_tests.count("failed"), of_tests.count("passed"), len(tests)
    if failed:
        return f"**{FAILED} ({failed} of {_tests(total)})**"
    if None in of_tests and without_ends(before) == str(total):
        return before
    if not passed:
        return f"{NOT_RUN} ({_tests(total)})"
    return f"{WORKS} ({_tests(total)})" if passed == total else f"{WORKS} ({passed} of {_tests(total)})"


def _notes() -> list[str]:
    """The reasons, each once, in the order of the rows."""
    found = [NOT_COVERED[(n, s)] for n, f in FEATURES.items() for s in f.systems if (n, s) in NOT_COVERED]
    return list(dict.fromkeys(reason for reason in (text.partition(": ")[2] for text in found) if reason))


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"


def cells_of(made: str) -> dict[Pair, str]:
    """What the cells of a table say."""
    names = {feature.title: name for name, feature in FEATURES.items()}
    rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in made.splitlines()
        if line.startswith("|")
    ]
    return {
        (names[title], system): text
        for title, *texts in rows
        if title in names and len(texts) == len(SYSTEMS)
        for system, text in zip(SYSTEMS, texts, strict=True)
    }


def table(
    tests: Mapping[Pair, list[MarkedTest]],
    ended: Mapping[tuple[str, Pair], str],
    before: Mapping[Pair, str] | None = None,
) -> str:
    """The table and its notes; `before` is what its cells said the last time."""
    said = before or {}
    lines = [
        "| feature | " + " | ".join(SYSTEMS.values()) + " |",
        "|---|" + "---|" * len(SYSTEMS),
    ]
    for name, feature in FEATURES.items():
        cells = [
            cell((name, system), tests.get((name, system), []), ended, said.get((name, system), ""))
            if system in feature.systems
            else ABSENT
            for system in SYSTEMS
        ]
        lines.append(f"| {feature.title} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.extend(f"{number}. {reason}" for number, reason in enumerate(_notes(), 1))
    return "\n".join(lines)


def between(page: str) -> str:
    """What the page has between its two comments."""
    _, begin, rest = page.partition(BEGIN)
    inside, end, _ = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no place for the table: it goes between {BEGIN!r} and {END!r}")
    return inside.strip("\n")


def render(page: str, made: str) -> str:
    between(page)
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def without_ends(made: str) -> str:
    """A table with the number of tests in each cell, whatever became of them."""
    return _CELL.sub(r"\1", made.replace("**", ""))


def differences(root: Path = ROOT) -> list[str]:
    """Where the committed pages do not agree with the markers."""
    marked = marked_tests.read(root)
    tests = counted(marked)
    found = mistakes(tests)
    committed = without_ends(between((root / PAGE).read_text(encoding="utf-8"))).splitlines()
    wanted = without_ends(table(tests, {})).splitlines()
    found.extend(
        f"{PAGE} has {line!r}, which the markers do not say" for line in committed if line not in wanted
    )
    found.extend(f"{PAGE} lacks {line!r}" for line in wanted if line not in committed)
    seeds = (root / seed_lines.PAGE).read_text(encoding="utf-8")
    rows = zip(seeds.splitlines(), seed_lines.render(seeds, marked).splitlines(), strict=True)
    found.extend(f"{seed_lines.PAGE} has {old!r} for {new!r}" for old, new in rows if old != new)
    return found


def write(root: Path = ROOT) -> list[MarkedTest]:
    """Renders both pages; returns the tests without a result here."""
    marked = marked_tests.read(root)
    tests = counted(marked)
    if wrong := mistakes(tests):
        raise ValueError("\n".join(wrong))
    ended = ends(outcomes.load(kind, root).tests for kind in outcomes.KINDS)
    page = root / PAGE
    text = page.read_text(encoding="utf-8")
    page.write_text(render(text, table(tests, ended, cells_of(between(text)))), encoding="utf-8")
    seeds = root / seed_lines.PAGE
    seeds.write_text(seed_lines.render(seeds.read_text(encoding="utf-8"), marked), encoding="utf-8")
    return [
        test
        for test in marked
        if any(ended.get((test.node, pair), "skipped") == "skipped" for pair in test.features)
    ]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        found = differences()
        for line in found:
            print(line)
        if found:
            print("Run: make compatibility")
        return 1 if found else 0
    try:
        unknown = write()
    except ValueError as error:
        print(error)
        return 1
    if unknown:
        print(
            f"{len(unknown)} tests have no result here; their cells say what they said before, or `{NOT_RUN}`."
        )
        print("Run them and then this again:")
        for path in dict.fromkeys(test.path for test in unknown):
            print(f"  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
