"""The whole demonstration, short, in the directory of an earlier one: what `make demo` promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.demo_orders import make_plan
from tests.effort import LONG
from tests.spark.processes import quick_submit

ROOT = Path(__file__).resolve().parents[2]
# A run takes about a minute on a quiet machine.
RUN_LIMIT_S = 500


def run_demo(folder: Path, *more: str) -> str:
    line = [sys.executable, "-m", "penstock.cli.main", "demo", "--dir", str(folder)]
    done = subprocess.run(
        [*line, "--messages", "300", "--seconds", "4", *more],
        cwd=folder.parent,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "TERM": "dumb",
            "PYSPARK_SUBMIT_ARGS": quick_submit(),
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def books(said: str) -> dict[str, tuple[str, str]]:
    """Rows of the table at the end: what was planned and what was found."""
    return {
        row[1].strip(): (row[2], row[3])
        for line in said.splitlines()
        if (row := re.match(r"\W*([a-z][\w ,:]+?) +([\d,]+) +([\d,]+) *\W*$", line))
    }


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.invariant("I1", "I13", "I15")
@pytest.mark.long
@pytest.mark.timeout(2 * RUN_LIMIT_S + 30)
def test_every_number_of_the_demonstration_is_as_planned_each_time(tmp_path: Path) -> None:
    """The long variant makes the first run with Spark as well."""
    folder = tmp_path / "demo"
    first = run_demo(folder) if LONG else run_demo(folder, "--without-spark")
    said = run_demo(folder)
    planned = re.search(r"the shop's books: (\d+) of (\d+) numbers as planned", said)
    assert planned is not None, said
    assert planned[1] == planned[2]
    assert "DIFFERS" not in said
    assert re.search(r"[\d,]+ messages, [\d,]+ of them from the archive; none twice, none left out", said), (
        said
    )
    assert "Try next: open " in said
    # Everything is in the one directory, and nothing beside it.
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    for name in (
        "audit/report.html",
        "node.toml",
        "orders.toml",
        "archive",
        "pipeline",
        "logs/spark.log",
        "store",
    ):
        assert (folder / name).exists(), name
    found = books(said)
    if LONG:
        assert found == books(first), "the plan is the same each time, and so is what comes of it"
    assert found["messages sent"][0] == f"{make_plan(4).in_all:,}", "the plan is the same each time"
    assert all(wanted == came for wanted, came in found.values())
    for what in ("messages sent", "audit: dead letters", "audit: messages stored twice", "messages by SQL"):
        assert what in found, said
