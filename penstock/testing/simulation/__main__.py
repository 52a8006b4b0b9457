"""Replays the history of a seed, or looks for a seed whose history breaks something."""

from __future__ import annotations

import argparse
import sys

from penstock.testing.simulation import Broken, simulate


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first history")
    parser.add_argument("--count", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    write = sys.stdout.write
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            report = simulate(seed, show=_print if arguments.trace else None)
        except Broken as broken:
            write(f"{broken}\n")
            return 1
        write(f"{report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
