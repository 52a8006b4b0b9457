"""The plugin that orders and measures a run (tests/timing.py), by a pytest of its own on a small project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import timing

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = (
    "from tests import timing\n\ndef pytest_configure(config):\n    timing.register(config, keeps=True)\n"
)
TESTS = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "conftest.py": CONFTEST,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
        "tests/test_short.py": TESTS,
        "tests/test_long.py": TESTS,
        "tests/test_shared.py": 'import pytest\n\n@pytest.fixture(scope="module")\ndef x():\n    pass\n\n'
        + TESTS,
        "tests/budgets.toml": '[seconds]\n"tests" = 1\n',
        "tests/history.json": json.dumps(
            {"short": {"tests/test_short.py": 1, "tests/test_long.py": 50, "tests/test_shared.py": 60}}
        ),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PENSTOCK_"))
    }
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:penstock",
            "-p",
            "no:cacheprovider",
            *arguments,
            "tests",
        ],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_longest_file_is_handed_out_first(project: Path) -> None:
    lines = [line for line in run(project, "-n", "1").splitlines() if "PASSED" in line]
    files = [line.rpartition("tests/")[2].partition("::")[0] for line in lines]
    assert files == ["test_shared.py"] * 2 + ["test_long.py"] * 2 + ["test_short.py"] * 2


def test_a_unit_is_a_file_or_a_test_of_a_long_file_that_shares_nothing(project: Path) -> None:
    expected = timing.Expected(project)
    assert expected.unit_of("tests/test_short.py::test_one") == "tests/test_short.py"
    assert expected.unit_of("tests/test_shared.py::test_one") == "tests/test_shared.py"
    assert expected.unit_of("tests/test_long.py::test_one") == "tests/test_long.py::test_one"
    assert expected.seconds("tests/test_new.py") == 3.0


def test_no_test_starts_after_the_limit_and_the_end_says_how_many_did_not(project: Path) -> None:
    for arguments in ((), ("-n", "1")):
        output = run(project, *arguments, PENSTOCK_STOP_AT=str(time.time() - 1))
        assert "6 tests did not run: the time limit of this run was reached" in output
    assert "did not run" not in run(project, PENSTOCK_STOP_AT=str(time.time() + 600))


def test_a_run_keeps_the_seconds_of_its_tests(project: Path) -> None:
    run(project, "-n", "2")
    kept = json.loads((project / "build/results/times.json").read_text())["short"]
    assert sorted(kept) == [
        f"tests/test_{name}.py::test_{n}" for name in ("long", "shared", "short") for n in ("one", "two")
    ]


def test_the_report_names_folders_over_their_budget() -> None:
    seconds = {"tests/unit/a/test_x.py::test_1": 7.0, "tests/unit/test_y.py::test_1": 1.0}
    lines = timing.report(seconds, {"tests/unit/a": 5, "tests/unit": 5})
    assert lines[-1] == "OVER BUDGET: tests/unit/a took 7 s of 5 (tests/budgets.toml)"
    assert sum(line.startswith("OVER BUDGET") for line in lines) == 1
    assert "     7.0 s  tests/unit/a/test_x.py::test_1" in lines
