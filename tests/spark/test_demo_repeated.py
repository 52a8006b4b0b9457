"""The whole demonstration, twice in one directory: the second run finds nothing of the first in its numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A run takes about a minute on a quiet machine.
RUN_LIMIT_S = 500


def run_demo(folder: Path) -> str:
    line = [sys.executable, "-m", "penstock.cli.main", "demo", "--dir", str(folder)]
    done = subprocess.run(
        [*line, "--messages", "300", "--seconds", "4"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"},
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
@pytest.mark.timeout(2 * RUN_LIMIT_S + 30)
def test_the_demonstration_can_be_repeated_in_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first, second = run_demo(folder), run_demo(folder)
    found = books(second)
    assert found == books(first), "the plan is the same each time, and so is what comes of it"
    assert all(planned == came for planned, came in found.values())
    for what in ("messages sent", "audit: dead letters", "audit: messages stored twice", "messages by SQL"):
        assert what in found, second
    for said in (first, second):
        assert "none twice, none left out" in " ".join(said.split())
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
