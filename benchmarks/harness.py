"""How figures are made here.

A case and its baseline do the same amount of the same work and take turns, in bursts of milliseconds where that
is possible (A B B A ...), and the result is the median of the ratios of repeats: on a shared machine absolute
rates wander by a factor of two within seconds, ratios of neighbours much less.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock import _hot


@dataclass(slots=True)
class Figure:
    """One line of a report; rates are per second, in `unit`."""

    name: str
    unit: str
    case: float
    baseline: float
    ratio: float
    spread: tuple[float, float]
    target: float | None = None
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return "" if self.target is None else ("met" if self.ratio >= self.target else "MISSED")


def compare(
    name: str,
    unit: str,
    amount: float,
    case: Callable[[], float],
    baseline: Callable[[], float],
    repeats: int,
    target: float | None = None,
) -> Figure:
    """Both functions return seconds for `amount` of work."""
    case_times, base_times = [], []
    for i in range(repeats):
        first, second = (case, baseline) if i % 2 == 0 else (baseline, case)
        a, b = first(), second()
        case_s, base_s = (a, b) if i % 2 == 0 else (b, a)
        case_times.append(case_s)
        base_times.append(base_s)
    return _figure(name, unit, amount, case_times, base_times, target)


def compare_bursts(
    name: str,
    unit: str,
    amount: float,
    repeat: Callable[[], Iterator[tuple[Callable[[], None], Callable[[], None]]]],
    repeats: int,
    target: float | None = None,
) -> Figure:
    """`repeat` gives pairs of bursts (case, baseline) of one repeat, of `amount` of work in all for each side."""
    case_times, base_times = [], []
    clock = time.perf_counter
    for _ in range(repeats):
        spent = [0.0, 0.0]
        for number, pair in enumerate(repeat()):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                started = clock()
                pair[side]()
                spent[side] += clock() - started
        case_times.append(spent[0])
        base_times.append(spent[1])
    return _figure(name, unit, amount, case_times, base_times, target)


def _figure(
    name: str,
    unit: str,
    amount: float,
    case_times: list[float],
    base_times: list[float],
    target: float | None,
) -> Figure:
    ratios = [base / case for base, case in zip(base_times, case_times, strict=True)]
    figure = Figure(
        name,
        unit,
        amount / statistics.median(case_times),
        amount / statistics.median(base_times),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
        target,
    )
    print_figure(figure)
    return figure


def print_figure(figure: Figure) -> None:
    target = f"  target {figure.target:.2f} {figure.verdict}" if figure.target is not None else ""
    print(
        f"{figure.name:<52} {figure.case:>12,.0f} {figure.unit:<7} raw {figure.baseline:>12,.0f}  "
        f"ratio {figure.ratio:5.2f} ({figure.spread[0]:.2f}..{figure.spread[1]:.2f}){target}",
        flush=True,
    )


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": model or platform.processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "form": _hot.form(),
    }


def require_compiled() -> None:
    """Figures of the pure form are not figures of the product."""
    if _hot.form() != "compiled":
        sys.exit(f"the hot modules are {_hot.form()}, not compiled: run `make setup`")


def save(path: Path, figures: list[Figure], extra: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": machine(), "figures": [asdict(figure) for figure in figures], **extra}
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {path}")
