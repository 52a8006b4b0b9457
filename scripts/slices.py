"""Ten slices of what is too long for every landing: long variants, interop tests beyond the core, and `make asan`.

    python -m scripts.slices core                             the interop tests that every landing runs
    python -m scripts.slices run [--minutes N] [--number N]   the slice whose turn it is, or slice N
    python -m scripts.slices advance                          the next landing runs the next slice
    python -m scripts.slices list                             what is in each

The counter is tests/slice-counter. `make slice` runs the slice whose turn it is and advances the counter, which is
then committed with the change: the gate runs the one after it. So ten landings run everything.

Rule: files are spread over the slices by their times in tests/history.json, the longest first, each into the slice
with the least to do: the same files and times make the same slices everywhere. A slice that does not fit into its
time says how many of its tests did not run.

Long tests that `reported` in tests/slices.toml names run like the others, but their failures do not fail the slice.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field

from scripts import asan, history
from scripts.history import ROOT, UNKNOWN_S

COUNT = 10
COUNTER = ROOT / "tests" / "slice-counter"
SETTINGS = ROOT / "tests" / "slices.toml"
LONG_MARKER = "pytest.mark.long"
NOTHING_COLLECTED = 5
REPORTED_MAX = 5
# What compiling for `make asan` takes, and how much longer its tests take than in the release form.
ASAN_BUILD_S, ASAN_SLOWER = 60.0, 2.0


@dataclass(slots=True)
class Slice:
    """Files whose long variants run, files of interop tests, and files that run under sanitizers."""

    long: list[str] = field(default_factory=list)
    interop: list[str] = field(default_factory=list)
    asan: list[str] = field(default_factory=list)
    seconds: float = 0.0


def core() -> list[str]:
    """The interop tests of every landing."""
    found: list[str] = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["core"]
    return found


def reported() -> list[str]:
    """Node ids of long tests that fail now and then: their failures are reported and do not fail a slice."""
    found: list[str] = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["reported"]
    if len(found) > REPORTED_MAX:
        raise SystemExit(f"{SETTINGS}: {len(found)} reported tests, at most {REPORTED_MAX}: fix some of them")
    return found


def _files(folder: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("test_*.py"))


def long_files() -> list[str]:
    """Files with a long variant."""
    interop = set(_files("tests/interop"))
    marked = (file for file in _files("tests") if LONG_MARKER in (ROOT / file).read_text(encoding="utf-8"))
    return [file for file in marked if file not in interop]


def slices() -> list[Slice]:
    """All of them."""
    times = {length: history.load_committed().of_files(length) for length in history.LENGTHS}
    left_out = set(core())
    work = [(times["long"].get(file, UNKNOWN_S * 20), "long", file) for file in long_files()]
    work += [
        (times["short"].get(file, UNKNOWN_S * 4), "interop", file)
        for file in _files("tests/interop")
        if file not in left_out
    ]
    found = [Slice() for _ in range(COUNT)]
    # All files under sanitizers are in one slice: compiling in that form takes minutes.
    sanitized = asan.files()
    work.append(
        (ASAN_BUILD_S + sum(times["short"].get(file, 1.0) for file in sanitized) * ASAN_SLOWER, "asan", "")
    )
    for seconds, kind, file in sorted(work, key=lambda item: (-item[0], item[2])):
        least = min(found, key=lambda one: one.seconds)
        if kind == "asan":
            least.asan = sanitized
        else:
            (least.long if kind == "long" else least.interop).append(file)
        least.seconds += seconds
    return found


def number() -> int:
    """The slice whose turn it is."""
    return int(COUNTER.read_text(encoding="utf-8")) % COUNT


def advance() -> None:
    COUNTER.write_text(f"{int(COUNTER.read_text(encoding='utf-8')) + 1}\n", encoding="utf-8")


def run_tests(arguments: Sequence[str], jobs: int, until: float | None = None, *, long: bool = False) -> int:
    """The exit status of pytest, for long variants or for interop tests; no test chosen is no failure."""
    environment = {"PENSTOCK_EXPECT": "compiled", "PENSTOCK_LONG": "1" if long else "0"}
    if until is not None:
        environment["PENSTOCK_STOP_AT"] = str(until)
    before = [] if long else ["scripts/with-maven"]
    status = subprocess.run(
        [*before, sys.executable, "-m", "pytest", "-n", str(jobs), "-rs", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    ).returncode
    return 0 if status == NOTHING_COLLECTED else status


def run(one: Slice, jobs: int, until: float | None) -> int:
    """The parts of a slice; each runs even if an earlier one failed."""
    status = 0
    undecided = [node for node in reported() if history.file_of(node) in one.long]
    if one.long:
        others = [word for node in undecided for word in ("--deselect", node)]
        status = run_tests(["-m", "long", *others, *one.long], jobs, until, long=True)
    if undecided:
        outcome = "FAILED" if run_tests(undecided, jobs, until, long=True) else "passed"
        print(f"reported, without deciding: {outcome}: {', '.join(undecided)}", flush=True)
    if one.interop:
        status = run_tests(one.interop, jobs, until) or status
    if one.asan:
        status = asan.run(jobs, until) or status
    return status


def main(arguments: Sequence[str]) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="scripts.slices", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["core", "run", "advance", "list"])
    parser.add_argument("--number", type=int)
    parser.add_argument("--minutes", type=float, default=0.0, help="a time limit; 0: none")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    chosen = number() if options.number is None else options.number % COUNT
    if options.what == "advance":
        advance()
        print(f"the next landing runs slice {number()} of {COUNT}: commit {COUNTER.relative_to(ROOT)}")
        return 0
    if options.what == "list":
        for index, one in enumerate(slices()):
            print(f"slice {index}{' (next)' if index == chosen else ''}: about {one.seconds:.0f} s of tests")
            print("".join(f"  long     {file}\n" for file in one.long), end="")
            print("".join(f"  interop  {file}\n" for file in one.interop), end="")
            print("".join(f"  asan     {file}\n" for file in one.asan), end="")
        return 0
    if options.what == "core":
        return run_tests(core(), options.jobs)
    until = time.time() + options.minutes * 60 if options.minutes else None
    one = slices()[chosen]
    print(
        f"slice {chosen} of {COUNT}: {len(one.long)} files of long variants, {len(one.interop)} of interop tests, "
        f"{len(one.asan)} under sanitizers",
        flush=True,
    )
    return run(one, options.jobs, until)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
