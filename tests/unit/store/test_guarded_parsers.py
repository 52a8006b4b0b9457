"""No parser of the hot modules reads behind its input, however its lengths lie: see `guarded_parsers.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import by_length, first_seed
from tests.unit.store.guarded_parsers import NAMES

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = by_length(1, 50)
# Less than that and the inputs are not those that the parser was made for.
INPUTS_MIN = 20


@pytest.mark.long
@pytest.mark.timeout(by_length(300, 3_600))
@pytest.mark.abuse("A1", "A3", "A4")
@pytest.mark.parametrize("name", NAMES)
def test_a_parser_reads_nothing_behind_its_input(name: str) -> None:
    for seed in range(first_seed(1), first_seed(1) + ROUNDS):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "tests.unit.store.guarded_parsers", name, str(seed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"PENSTOCK_SEED={seed}: {done.returncode}\n{done.stderr[-4_000:]}"
        assert int(done.stdout) >= INPUTS_MIN


@pytest.mark.parametrize("kind", ["view", "bytes"])
def test_the_guard_is_there(kind: str) -> None:
    """A read of one byte behind the input ends the process: else the tests above would prove nothing."""
    program = (
        "import ctypes; from tests.guard_page import GuardedMemory; "
        f"data = GuardedMemory(100).{kind}(b'abc'); "
        "at = ctypes.addressof(ctypes.c_ubyte.from_buffer(data)) if isinstance(data, memoryview) else "
        "id(data) + bytes.__basicsize__ - 1; "
        "print(ctypes.string_at(at, 3) == b'abc', flush=True); ctypes.string_at(at + 3, 2)"
    )
    # Under a sanitizer this is its report, which is asked for here and no finding.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert done.returncode != 0
