"""What tests prove: keeps the outcomes of tests with the markers `seed` and `feature`, and counts the lines.

`@pytest.mark.seed("S3-47")` names lines of docs/seeds.md, `@pytest.mark.feature("order", "rocketmq-5.3")` a row and
the columns of the table in docs/compatibility.md. A name that neither knows ends the run at collection, as does a
marker that the sources do not show (scripts/marked_tests.py reads them without importing).

A case counts for the release that its parameters name. One that runs at RocketMQ itself shows that a test is right,
not that Penstock is: it counts only for what our clients do there.

Environment:
    PENSTOCK_RESULTS   where the JSON files go (default build/results)
    PENSTOCK_RERUN     1: this run repeats tests of the last one and belongs to it; set by scripts/run-tests
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from scripts import marked_tests, outcomes, seed_lines
from scripts.features import FEATURES, SYSTEMS
from scripts.marked_tests import Pair
from scripts.outcomes import Outcome

PROPERTY = "penstock_proofs"
RELEASE = re.compile(r"(?:^|-)(\d+\.\d+)\.\d+$")


def register(config: pytest.Config, *, pure: bool) -> None:
    config.pluginmanager.register(Proofs(config, pure=pure), "penstock-proofs")


def texts(value: object) -> Iterator[str]:
    """The texts of a parameter, also of one that is a tuple."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from texts(part)


def counts_for(parameters: dict[str, object], pairs: Iterable[Pair]) -> list[Pair]:
    """Of the cells that a test names those that a case with these parameters speaks for."""
    at_rocketmq = parameters.get("server") == "rocketmq"
    found = (RELEASE.search(text) for value in parameters.values() for text in texts(value))
    releases = {f"rocketmq-{match[1]}" for match in found if match} & SYSTEMS.keys()
    return sorted(
        (name, system)
        for name, system in pairs
        if (not releases or not system.startswith("rocketmq-") or system in releases)
        and (name not in FEATURES or FEATURES[name].at_rocketmq == at_rocketmq)
    )


def _is_ambiguous(pairs: list[Pair]) -> bool:
    of_rocketmq = [feature for feature, system in pairs if system.startswith("rocketmq-")]
    return len(of_rocketmq) != len(set(of_rocketmq))


class Proofs:
    """The plugin. Workers of xdist attach what a case proves to its reports; the first process gathers them."""

    def __init__(self, config: pytest.Config, *, pure: bool) -> None:
        self._root = config.rootpath
        self._is_worker = hasattr(config, "workerinput")
        self._pure = pure
        self._ran: dict[str, Outcome] = {}
        self._said: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        lines = seed_lines.read(self._root)
        written = {test.node: test for test in marked_tests.read(self._root)}
        wrong: dict[str, None] = {}
        for item in items:
            seeds = {str(seed) for mark in item.iter_markers("seed") for seed in mark.args}
            pairs = set(self._pairs(item, wrong))
            if not seeds and not pairs:
                continue
            node = outcomes.function_of(item.nodeid)
            wrong |= dict.fromkeys(
                f"{node}: {seed_lines.PAGE} has no line {seed}" for seed in sorted(seeds - lines.keys())
            )
            found = written.get(node)
            if found is None or not (seeds <= found.seeds and pairs <= found.features):
                wrong[f"{node}: write its markers out where they are used, as plain texts"] = None
            parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
            if item.nodeid.startswith(outcomes.INTEROP_FOLDER) and _is_ambiguous(
                counts_for(parameters, pairs)
            ):
                wrong[
                    f"{node}: names two releases of RocketMQ, and its parameters do not say which one a case is for"
                ] = None
            if parameters.get("server") == "rocketmq":
                seeds = set()
            proofs = {"seeds": sorted(seeds), "features": [list(p) for p in counts_for(parameters, pairs)]}
            item.user_properties.append((PROPERTY, proofs))
        if wrong:
            raise pytest.UsageError("\n".join(wrong))

    def _pairs(self, item: pytest.Item, wrong: dict[str, None]) -> Iterator[Pair]:
        for mark in item.iter_markers("feature"):
            name, *systems = [str(argument) for argument in mark.args] or [""]
            node = outcomes.function_of(item.nodeid)
            if name not in FEATURES:
                wrong[f"{node}: scripts/features.py has no feature {name!r}"] = None
            elif not systems:
                wrong[f"{node}: feature({name!r}) names no system: {', '.join(SYSTEMS)}"] = None
            for system in systems:
                if name in FEATURES and system not in FEATURES[name].systems:
                    wrong[f"{node}: {name!r} is no feature of {system!r} in scripts/features.py"] = None
                yield name, system

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        proofs: dict[str, Any] | None = dict(report.user_properties).get(PROPERTY)
        if self._is_worker or proofs is None:
            return
        if report.when != "call" and report.outcome == "passed":
            return  # Set-up and tear-down count only when they fail, or skip the test.
        before = self._ran.get(report.nodeid)
        ended = outcomes.worse(before.outcome if before else "skipped", report.outcome)
        pairs = tuple((feature, system) for feature, system in proofs["features"])
        self._ran[report.nodeid] = Outcome(ended, tuple(proofs["seeds"]), pairs)

    def pytest_sessionfinish(self) -> None:
        """Keeps what ran. A run that proves nothing leaves the files as they are."""
        if self._is_worker or not self._ran:
            return
        again = os.environ.get("PENSTOCK_RERUN") == "1"
        marked = marked_tests.read(self._root)
        latest: dict[str, Outcome] = {}
        whole = False
        for kind in outcomes.KINDS:
            ran = {n: o for n, o in self._ran.items() if outcomes.kind_of(n, pure=self._pure) == kind}
            if ran:
                is_whole = outcomes.is_whole(kind, ran, marked)
                kept = outcomes.merge(outcomes.load(kind, self._root), ran, again=again, whole=is_whole)
                outcomes.save(kept, self._root)
                latest |= kept.latest()
                whole |= kind == "compiled" and outcomes.is_whole(kind, kept.latest(), marked)
        self._said = seed_lines.report(seed_lines.read(self._root), latest.values(), whole=whole)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._said:
            terminalreporter.section("seeds")
            for line in self._said:
                terminalreporter.write_line(line)
