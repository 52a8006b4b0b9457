"""The whole demonstration, short: what `make demo` promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.invariant("I1", "I13", "I15")
@pytest.mark.timeout(600)
def test_every_number_of_the_demonstration_is_as_planned(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    line = [sys.executable, "-m", "penstock.cli.main", "demo", "--dir", str(folder)]
    done = subprocess.run(
        [*line, "--messages", "300", "--seconds", "4"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"},
        check=False,
        capture_output=True,
        text=True,
        timeout=550,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stderr == ""
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
