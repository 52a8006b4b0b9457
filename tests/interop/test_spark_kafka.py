"""Spark reads the same messages from Penstock and from a real Kafka: the same rows, and the two rates side by side.

The benchmark does the work (`benchmarks/spark_kafka.py`, `make bench-kafka`), in a small size and in a process of its
own: a JVM, two servers and Py4J's threads end with it. Rates are printed and never judged here: this size is mostly
fixed costs, and tests share the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from benchmarks.spark_kafka import NOT_HERE

ROOT = Path(__file__).resolve().parents[2]
SIZES = (1024,)
CASES = 4
# Resolving artefacts for the first time takes a minute or two; after that all of it takes well under one.
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kafka")
    output, result = folder / "output.txt", folder / "result.json"
    command = [sys.executable, "-m", "benchmarks.spark_kafka", "--quick", "--repeats", "1"]
    options = ["--sizes", ",".join(map(str, SIZES)), "--dir", str(folder), "--json", str(result)]
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    said = output.read_text(encoding="utf-8", errors="replace")
    if code == NOT_HERE:
        pytest.skip(said.strip().splitlines()[-1])
    assert code == 0, said[-4000:]
    print(said)
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.invariant("I2")
@pytest.mark.parametrize("size", SIZES)
def test_both_give_the_same_rows(report: dict[str, Any], size: int) -> None:
    """Per queue: count, sum of body lengths, and two digests of offsets, keys and bodies."""
    checked = report["checked"][str(size)]
    assert checked["penstock"] == checked["kafka"]
    assert sum(count for _, count, *_ in checked["penstock"]) == checked["rows"]
    assert sum(size for _, _, size, *_ in checked["penstock"]) == checked["rows"] * size


def test_rates_side_by_side(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Rows per second of Penstock's source divided by those of Kafka's, for the log; never judged."""
    figures = report["figures"]
    assert len(figures) == CASES * len(SIZES)
    with capsys.disabled():
        print(f"\n{'':4}{'Spark ' + report['versions']['spark']:<40} {'Penstock':>12} {'Kafka':>12}  ratio")
        for figure in figures:
            line = f"{figure['name']:<40} {figure['case']:>12,.0f} {figure['baseline']:>12,.0f}"
            print(f"{'':4}{line}  {figure['ratio']:5.2f}")
