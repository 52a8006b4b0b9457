"""The programs of examples/ run against a node; `tests/spark/test_example.py` runs the one with Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import node_process

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PRINTED = {
    "orders": [
        'dead letter: {"id": 3, "item": "cup", "price": -7}, because of a price of -7',
        "order 1: paid, 0 tries before",
        "order 2: paid, 1 tries before",
        "order 2: the bank does not answer, again in a second",
    ],
    "reminders": [
        "order 1 was paid: its reminder is taken back",
        "price: 4 for tea",
        "reminder: order 2 is not paid",
    ],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = Path(sys.executable).with_name("penstock")
    with node_process(command, tmp_path_factory.mktemp("node"), os.environ) as node:
        yield node.address


@pytest.mark.parametrize("name", PRINTED)
def test_example_runs(name: str, address: str) -> None:
    """Twice against the same node: a newcomer will."""
    environment = {**os.environ, "PENSTOCK_NAMESERVER": address, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == PRINTED[name]


def test_examples_are_small_and_listed() -> None:
    programs = sorted(EXAMPLES.glob("*.py"))
    assert {path.stem for path in programs} == {*PRINTED, "spark_counts"}
    page = (EXAMPLES / "README.md").read_text("utf-8")
    for path in programs:
        assert len(path.read_text("utf-8").splitlines()) <= 60
        assert f"({path.name})" in page
