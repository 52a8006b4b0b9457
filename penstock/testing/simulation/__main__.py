"""Replays the history of a seed, or looks for a seed whose history breaks something."""

from __future__ import annotations

import argparse
import sys

from penstock.protocol.bodies.balance import Binding
from penstock.testing.simulation import BalanceReport, Broken, Report, simulate, simulate_balance


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first history")
    parser.add_argument("--count", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--balance", action="store_true", help="of a balanced group instead of a broker set")
    parser.add_argument("--ring", action="store_true", help="with --balance: queues are bound by a ring")
    arguments = parser.parse_args()
    write = sys.stdout.write
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        try:
            show = _print if arguments.trace else None
            report: Report | BalanceReport
            if arguments.balance:
                binding = Binding.RING if arguments.ring else Binding.EVEN
                report = simulate_balance(seed, show=show, binding=binding)
            else:
                report = simulate(seed, show=show)
        except Broken as broken:
            write(f"{broken}\n")
            return 1
        write(f"{report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
