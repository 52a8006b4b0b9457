"""What became of the tests that prove something: one JSON file per kind of run, in build/results.

    {"kind": "compiled", "run": 3, "tests": {NODE: {"outcome": "passed", "run": 3, "seeds": [], "features": []}}}

A run of everything replaces the file. A part of the tests, for instance one folder, replaces what it ran and leaves
the rest; which run an outcome is of is written beside it, so that a report on one run counts nothing older, while
the compatibility table can be made from pieces.

Rule: the kind of a test follows from its folder and from the form of the hot modules: `interop`, `compiled`, `pure`.

Ownership: the process that runs the tests writes, at its end; a file appears whole or not at all.

Never: says when or on which machine something ran: the documents made of it are the same everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts import uncompiled
from scripts.marked_tests import ROOT, MarkedTest, Pair

KINDS = ("compiled", "pure", "interop")
INTEROP_FOLDER = "tests/interop"
_SEVERITY = {"skipped": 0, "passed": 1, "failed": 2}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case of a test ended, and what it proves if it passed."""

    outcome: str
    seeds: tuple[str, ...] = ()
    features: tuple[Pair, ...] = ()
    run: int = 0


@dataclass(slots=True)
class Results:
    """One file."""

    kind: str
    run: int = 0
    tests: dict[str, Outcome] = field(default_factory=dict)

    def latest(self) -> dict[str, Outcome]:
        """Those of the last run."""
        return {node: found for node, found in self.tests.items() if found.run == self.run}


def directory(root: Path = ROOT) -> Path:
    return Path(os.environ.get("PENSTOCK_RESULTS") or root / "build" / "results")


def kind_of(node: str, *, pure: bool) -> str:
    if node.startswith(f"{INTEROP_FOLDER}/"):
        return "interop"
    return "pure" if pure else "compiled"


def belongs(test: MarkedTest, kind: str) -> bool:
    """Whether a whole run of that kind runs this test."""
    is_interop = test.path.startswith(f"{INTEROP_FOLDER}/")
    if kind == "pure":
        return test.path in uncompiled.files()
    return is_interop == (kind == "interop")


def function_of(node: str) -> str:
    """The test function of a case: its node id without the parameters."""
    return node.partition("[")[0]


def is_whole(kind: str, nodes: Iterable[str], marked: Iterable[MarkedTest]) -> bool:
    """Whether these cases are of all the marked tests of this kind."""
    ran = {function_of(node) for node in nodes}
    return all(test.node in ran for test in marked if belongs(test, kind))


def worse(one: str, other: str) -> str:
    """Of two ends the one that counts: a failure before a pass, a pass before a skip."""
    return max(one, other, key=_SEVERITY.__getitem__)


def load(kind: str, root: Path = ROOT) -> Results:
    """What was kept; an absent file is no results, one that cannot be read is an error that names it."""
    path = directory(root) / f"{kind}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Results(kind)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}. Remove it and run the tests again.") from error
    tests = {
        node: Outcome(
            found["outcome"],
            tuple(found["seeds"]),
            tuple((feature, system) for feature, system in found["features"]),
            found["run"],
        )
        for node, found in kept["tests"].items()
    }
    return Results(kind, kept["run"], tests)


def merge(old: Results, ran: Mapping[str, Outcome], *, whole: bool) -> Results:
    """What is kept after a run; a whole one replaces what was there."""
    number = old.run + 1
    kept = {} if whole else dict(old.tests)
    kept |= {node: Outcome(found.outcome, found.seeds, found.features, number) for node, found in ran.items()}
    return Results(old.kind, number, kept)


def save(results: Results, root: Path = ROOT) -> None:
    folder = directory(root)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "kind": results.kind,
            "run": results.run,
            "tests": {
                node: {
                    "outcome": found.outcome,
                    "run": found.run,
                    "seeds": list(found.seeds),
                    "features": [list(pair) for pair in found.features],
                }
                for node, found in sorted(results.tests.items())
            },
        },
        indent=1,
    )
    unfinished = folder / f".{results.kind}.{os.getpid()}"
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(folder / f"{results.kind}.json")
