"""What tests prove: keeps the outcomes of tests with the markers `seed` and `feature`, and counts the lines.

`@pytest.mark.seed("S3-47")` names lines of docs/seeds.md, `@pytest.mark.feature("order", "rocketmq-5.3")` a row and
the columns of the table in docs/compatibility.md. A name that neither knows ends the run at collection, as does a
marker that the sources do not show (scripts/marked_tests.py reads them without importing).

A case counts for the release that its parameters name. One that runs at RocketMQ itself shows that a test is right,
not that Penstock is: it counts only for what our clients do there.

Environment:
    PENSTOCK_RESULTS   where the JSON files go (default build/results)
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

import pytest

from scripts import marked_tests, outcomes, seed_lines
from scripts.features import FEATURES, SYSTEMS
from scripts.marked_tests import MarkedTest, Pair, pairs
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


def counts_for(parameters: dict[str, object], named: Iterable[Pair]) -> list[Pair]:
    """Of the cells that a test names those that a case with these parameters speaks for."""
    at_rocketmq = parameters.get("server") == "rocketmq"
    found = (RELEASE.search(text) for value in parameters.values() for text in texts(value))
    releases = {f"rocketmq-{match[1]}" for match in found if match} & SYSTEMS.keys()
    return sorted(
        (name, system)
        for name, system in named
        if (not releases or not system.startswith("rocketmq-") or system in releases)
        and (name not in FEATURES or FEATURES[name].at_rocketmq == at_rocketmq)
    )


def _is_ambiguous(counted: list[Pair]) -> bool:
    of_rocketmq = [feature for feature, system in counted if system.startswith("rocketmq-")]
    return len(of_rocketmq) != len(set(of_rocketmq))


def unknown(
    node: str, seeds: Iterable[str], marks: Iterable[tuple[str, ...]], lines: Container[str]
) -> list[str]:
    """What nobody knows of the lines and of the arguments of `feature` that a test names."""
    found = [f"{node}: {seed_lines.PAGE} has no line {seed}" for seed in sorted(seeds) if seed not in lines]
    for name, *systems in marks:
        if name not in FEATURES:
            found.append(f"{node}: scripts/features.py has no feature {name!r}")
            continue
        if not systems:
            found.append(f"{node}: feature({name!r}) names no system: {', '.join(SYSTEMS)}")
        found.extend(
            f"{node}: {name!r} is no feature of {system!r} in scripts/features.py"
            for system in systems
            if system not in FEATURES[name].systems
        )
    return found


class Proofs:
    """The plugin. Workers of xdist attach what a case proves to its reports; the first process gathers them."""

    def __init__(self, config: pytest.Config, *, pure: bool) -> None:
        self._root = config.rootpath
        self._is_worker = hasattr(config, "workerinput")
        self._pure = pure
        self._wrong: dict[str, list[str]] = {}
        self._ran: dict[str, Outcome] = {}
        self._said: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """With workers nothing is collected here, and their complaints then are lost: the sources are asked."""
        if session.config.pluginmanager.has_plugin("dsession"):
            lines = seed_lines.read(self._root)
            wrong = [
                complaint
                for test in marked_tests.read(self._root)
                for complaint in unknown(test.node, test.seeds, test.features, lines)
            ]
            if wrong:
                raise pytest.UsageError("\n".join(wrong))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        lines = seed_lines.read(self._root)
        written: dict[str, dict[str, MarkedTest]] = {}
        for item in items:
            seeds = {str(seed) for mark in item.iter_markers("seed") for seed in mark.args}
            marks = [tuple(str(argument) for argument in mark.args) for mark in item.iter_markers("feature")]
            if seeds or marks:
                node = outcomes.function_of(item.nodeid)
                path = node.partition("::")[0]
                if path not in written:
                    source = (self._root / path).read_text(encoding="utf-8")
                    written[path] = {test.node: test for test in marked_tests.of_source(path, source)}
                wrong = unknown(node, seeds, marks, lines)
                self._note(
                    item,
                    seeds,
                    {pair for mark in marks for pair in pairs(mark)},
                    written[path].get(node),
                    wrong,
                )
                if wrong:
                    self._wrong[item.nodeid] = wrong
        if self._wrong and not self._is_worker:
            raise pytest.UsageError(
                "\n".join(dict.fromkeys(line for some in self._wrong.values() for line in some))
            )

    @staticmethod
    def _note(
        item: pytest.Item, seeds: set[str], named: set[Pair], found: MarkedTest | None, wrong: list[str]
    ) -> None:
        """Attaches to a case what it counts for."""
        node = outcomes.function_of(item.nodeid)
        if found is None or not (seeds <= found.seeds and named <= found.features):
            wrong.append(f"{node}: write its markers out where they are used, as plain texts")
        parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        counted = counts_for(parameters, named)
        if item.nodeid.startswith(outcomes.INTEROP_FOLDER) and _is_ambiguous(counted):
            wrong.append(
                f"{node}: names two releases of RocketMQ, and its parameters do not say which a case is for"
            )
        proven = [] if parameters.get("server") == "rocketmq" else sorted(seeds)
        item.user_properties.append(
            (PROPERTY, {"seeds": proven, "features": [list(pair) for pair in counted]})
        )

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """On a worker, where the run cannot be ended, a wrong marker fails its test."""
        if wrong := self._wrong.get(item.nodeid):
            pytest.fail("\n".join(wrong), pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        proofs: dict[str, Any] | None = dict(report.user_properties).get(PROPERTY)
        if self._is_worker or proofs is None:
            return
        if report.when != "call" and report.outcome == "passed":
            return  # Set-up and tear-down count only when they fail, or skip the test.
        before = self._ran.get(report.nodeid)
        ended = outcomes.worse(before.outcome if before else "skipped", report.outcome)
        counted = tuple((feature, system) for feature, system in proofs["features"])
        self._ran[report.nodeid] = Outcome(ended, tuple(proofs["seeds"]), counted)

    def pytest_sessionfinish(self) -> None:
        """Keeps what ran. A run that proves nothing leaves the files as they are."""
        if self._is_worker or not self._ran:
            return
        marked = marked_tests.read(self._root)
        latest: dict[str, Outcome] = {}
        whole = False
        for kind in outcomes.KINDS:
            ran = {n: o for n, o in self._ran.items() if outcomes.kind_of(n, pure=self._pure) == kind}
            if ran:
                is_whole = outcomes.is_whole(kind, ran, marked)
                kept = outcomes.merge(outcomes.load(kind, self._root), ran, whole=is_whole)
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
