"""The long variants of tests, for a given time: `make soak MINUTES=30 SEED=7`.

    python -m scripts.soak [--minutes N] [--seed N] [--jobs N] [-- PYTEST ARGUMENT...]

Every test with a long variant runs once with the first seed, then once with the next, until the time is used; no
test starts after that. With 0 minutes each runs once. A failure ends the soak after its round, and the seed that
repeats it is printed; directories and histories of failed tests stay where pytest says.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

from scripts.history import ROOT
from scripts.slices import NOTHING_COLLECTED, long_files


def main(arguments: Sequence[str]) -> int:
    """See the module's text."""
    own, for_pytest = split(arguments)
    parser = argparse.ArgumentParser(prog="make soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="0: each long variant once")
    parser.add_argument("--seed", type=int, help="the first seed (default: another one each time)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(own)
    first = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    stop_at = time.time() + options.minutes * 60 if options.minutes else float("inf")
    seed = first
    while True:
        print(f"== long variants, PENSTOCK_SEED={seed}", flush=True)
        status = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-n",
                str(options.jobs),
                "-m",
                "long",
                *long_files(),
                *for_pytest,
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PENSTOCK_LONG": "1",
                "PENSTOCK_SEED": str(seed),
                "PENSTOCK_STOP_AT": str(stop_at),
            },
            check=False,
        ).returncode
        if status == NOTHING_COLLECTED:
            print("no test with a long variant is chosen by these arguments")
            return 2
        if status:
            print(f"FAILED with seed {seed}; again: make soak MINUTES=0 SEED={seed}")
            return status
        if not options.minutes or time.time() > stop_at:
            print(f"passed: seeds {first} to {seed}")
            return 0
        seed += 1


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of the script and, behind `--`, those of pytest."""
    words = [*arguments]
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
