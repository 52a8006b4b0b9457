"""A pytest plugin: what runs first, and how long it took.

Order. Work is handed to processes in units, those that take longest first, so that no long test is left alone at the
end. A unit is a file; a file that takes longer than UNIT_S, and whose tests share nothing, is a unit per test. Only
half of the processes start a Spark, as long as there is other work.

Report. At the end: seconds per folder beside their budget (tests/budgets.toml), and the slowest tests. Seconds are
those of all processes together. A folder over its budget is named, and fails nothing: a slow machine is no mistake.

Limit. PENSTOCK_STOP_AT is a time in seconds since 1970: no test starts after it, and the end of the run says how many
did not.

Times of the run go to build/results/times.json, see `scripts/history.py`.
"""

from __future__ import annotations

import os
import re
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scripts import history
from scripts.history import file_of
from tests.effort import LONG

BUDGETS = "tests/budgets.toml"
UNIT_S = 10.0
SPARK = "tests/spark/"
SLOWEST = 20
# A report on fewer seconds than these would be longer than what it tells of.
REPORT_FROM_S = 60.0
LENGTH = "long" if LONG else "short"
OVER = "the time limit of this run was reached"
_SHARED = re.compile(r"scope=\"(module|class|package)\"")


def register(config: pytest.Config, *, keeps: bool) -> None:
    """`keeps`: whether the times of this run are kept, as those of the compiled form are."""
    config.pluginmanager.register(Timing(config, keeps=keeps), "penstock-timing")


class Timing:
    """Orders a run, and measures it. With xdist the workers order, and the first process measures."""

    def __init__(self, config: pytest.Config, *, keeps: bool) -> None:
        self._config = config
        self._root = config.rootpath
        self._keeps = keeps
        self._is_worker = hasattr(config, "workerinput")
        self._expected = Expected(self._root)
        self._stop_at = float(os.environ.get("PENSTOCK_STOP_AT") or "inf")
        self._left_out = 0
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The longest units first; the order within a unit stays."""
        if self._config.pluginmanager.has_plugin("xdist") and (
            self._is_worker or self._config.getoption("numprocesses", None)
        ):
            units = {item.nodeid: self._expected.unit_of(item.nodeid) for item in items}
            items.sort(key=lambda item: -self._expected.seconds(units[item.nodeid]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        expected = self._expected

        class LongestFirst(LoadScopeScheduling):
            """Units in the order in which the workers collected them."""

            def _split_scope(self, nodeid: str) -> str:
                return expected.unit_of(nodeid)

            def _assign_work_unit(self, node: Any) -> None:
                """Half of the processes take units that share a Spark: its first seconds are slow in each of them."""
                takes_spark = self.nodes.index(node) < (len(self.nodes) + 1) // 2
                fitting = (unit for unit in self.workqueue if takes_spark or not unit.startswith(SPARK))
                self.workqueue.move_to_end(next(fitting, next(iter(self.workqueue))), last=False)
                super()._assign_work_unit(node)

        config.option.loadscopereorder = False
        return LongestFirst(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self._stop_at:
            pytest.skip(OVER)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        if report.skipped and OVER in str(report.longrepr):
            self._left_out += 1
            return
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self._is_worker or not self._seconds or not self._keeps:
            return
        option = self._config.option
        is_part = (
            option.keyword
            or getattr(option, "lf", False)
            or any("::" in argument for argument in self._config.args)
        )
        whole = () if is_part or option.maxfail else {file_of(node) for node in self._seconds}
        history.keep(LENGTH, self._seconds, whole, self._failed, self._root)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.section("TIME LIMIT", sep="!")
            terminalreporter.write_line(f"{self._left_out} tests did not run: {OVER}")
        if self._is_worker or sum(self._seconds.values()) < REPORT_FROM_S:
            return
        budgets = tomllib.loads((self._root / BUDGETS).read_text(encoding="utf-8"))["seconds"]
        terminalreporter.section("where the time went")
        for line in report(self._seconds, {} if LONG or not self._keeps else budgets):
            terminalreporter.write_line(line)


class Expected:
    """What the last runs took."""

    def __init__(self, root: Path) -> None:
        known = history.load(root)
        self._root = root
        self._by_test = known.seconds[LENGTH]
        self._by_file = known.of_files(LENGTH)
        self._is_split: dict[str, bool] = {}

    def seconds(self, unit: str) -> float:
        found = self._by_file if file_of(unit) == unit else self._by_test
        return found.get(unit, history.UNKNOWN_S)

    def unit_of(self, node: str) -> str:
        """What is handed out as one: a file, or a test of a long file without shared fixtures."""
        file = file_of(node)
        if file not in self._is_split:
            is_long = self._by_file.get(file, 0.0) > UNIT_S
            self._is_split[file] = is_long and not self._shares(self._root / file)
        return node if self._is_split[file] else file

    def _shares(self, path: Path) -> bool:
        """Whether a fixture of the file or of its folders lives longer than a test."""
        tests = self._root / "tests"
        sources = [path, *(folder / "conftest.py" for folder in path.parents if tests in folder.parents)]
        return any(
            _SHARED.search(source.read_text(encoding="utf-8")) for source in sources if source.exists()
        )


def folder_of(node: str, folders: list[str]) -> str:
    """The budget that a test counts for: the longest name that its path begins with."""
    path = file_of(node)
    fitting = [folder for folder in folders if path.startswith(f"{folder}/")]
    return max(fitting, key=len) if fitting else path.rpartition("/")[0]


def report(seconds: dict[str, float], budgets: dict[str, float]) -> list[str]:
    """The table of folders, the slowest tests, and what is over its budget."""
    spent: dict[str, float] = {}
    counts: dict[str, int] = {}
    for node, taken in seconds.items():
        folder = folder_of(node, [*budgets])
        spent[folder] = spent.get(folder, 0.0) + taken
        counts[folder] = counts.get(folder, 0) + 1
    lines = [f"{'folder':40} {'tests':>6} {'seconds':>8} {'budget':>8}"]
    for folder in sorted(spent, key=lambda name: -spent[name]):
        budget = f"{budgets[folder]:8.0f}" if folder in budgets else f"{'-':>8}"
        lines.append(f"{folder:40} {counts[folder]:6} {spent[folder]:8.1f} {budget}")
    lines.append(f"{'all':40} {len(seconds):6} {sum(spent.values()):8.1f} {sum(budgets.values()):8.0f}")
    lines += ["", f"the {SLOWEST} slowest tests:"]
    slowest = sorted(seconds, key=lambda node: -seconds[node])[:SLOWEST]
    lines += [f"{seconds[node]:8.1f} s  {node}" for node in slowest]
    over = [folder for folder in spent if spent[folder] > budgets.get(folder, float("inf"))]
    lines += [
        f"OVER BUDGET: {folder} took {spent[folder]:.0f} s of {budgets[folder]:.0f} ({BUDGETS})"
        for folder in sorted(over)
    ]
    return lines
