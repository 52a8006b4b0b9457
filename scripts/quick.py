"""The tests of `make quick`: those most likely to find a mistake in the change at hand, in about two minutes.

    python -m scripts.quick [--base REV] [--room NAME] [--seconds N] [--jobs N] [-- PYTEST ARGUMENT...]

What counts as changed: files that differ from the point where the branch left `--base`, committed or not; with
`--room` every file of that package. Chosen are, in this order:

    1  test files that changed
    2  tests of the changed modules: they import one, or lie in the folder of its package
    3  tests that start processes, by `tests/processes.toml`: no import leads from them to what they test
    4  tests that import a module that imports a changed one

Within each, files that found more per second come first. Files are taken while they fit into the time. What was left
out is printed, with the time it would take.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grimp

from scripts import history, imports
from scripts.history import ROOT, UNKNOWN_S
from scripts.imports import test_files
from scripts.soak import split

PROCESSES = "tests/processes.toml"
# Of the two minutes: until the processes of a run have collected their tests, and until the last has ended.
OVERHEAD_S = 25.0
# Files whose change may break any test.
EVERYTHING = ("tests/conftest.py", "pyproject.toml", "requirements.lock")


@dataclass(frozen=True, slots=True)
class Choice:
    """A test file with the reason why it is of interest; a smaller rank is of more."""

    file: str
    rank: int
    reason: str
    seconds: float
    failures: int

    @property
    def order(self) -> tuple[int, float]:
        return self.rank, -(1 + self.failures) / (self.seconds + 0.5)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def changed_files(base: str) -> list[str]:
    """Files that differ from where this branch left `base`, and files that git does not know yet."""
    try:
        start = git("merge-base", base, "HEAD").strip()
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"git knows no revision {base!r} here: {error.stderr.strip()}") from None
    differing = git("diff", "--name-only", start).splitlines()
    return sorted({*differing, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def module_of(file: str) -> str:
    """The module of a source file; empty for a file that is none."""
    if not file.endswith(".py"):
        return ""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def files_of_room(room: str) -> list[str]:
    """Every source file of a package or module of penstock/."""
    place = ROOT / "penstock" / room.removeprefix("penstock.").replace(".", "/")
    found = [*place.rglob("*.py")] if place.is_dir() else [*place.parent.glob(f"{place.name}.py")]
    if not found:
        names = {path.name.removesuffix(".py") for path in (ROOT / "penstock").iterdir()}
        rooms = sorted(name for name in names if name.isidentifier() and not name.startswith("__"))
        raise SystemExit(f"there is no package penstock/{room}; there are {', '.join(rooms)}")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def choices(changed: Sequence[str]) -> list[Choice]:
    """Every test file that has to do with the change, the most interesting first."""
    known = history.load()
    times = known.of_files("short")
    graph = grimp.build_graph("penstock", cache_dir=str(ROOT / "build" / "grimp"))
    modules = {name for file in changed if (name := module_of(file)) in graph.modules}
    rooms = {".".join(name.split(".")[:2]) for name in modules}
    importers = {
        found for name in modules for found in graph.find_modules_that_directly_import(name)
    } - modules
    helpers = {module_of(file) for file in changed if file.startswith("tests/") and not _is_test(file)}
    started = tomllib.loads((ROOT / PROCESSES).read_text(encoding="utf-8"))["rooms"]
    by_process = {
        file
        for room in rooms
        for pattern in started.get(room.partition(".")[2], ())
        for file in _glob(pattern)
    }
    found: list[Choice] = []
    for file in test_files():
        names = imports.with_helpers(file)
        rank, reason = _reason(file, names, set(changed), modules | helpers, rooms, importers, by_process)
        if rank:
            seconds, failures = times.get(file, UNKNOWN_S), known.failures.get(file, 0)
            found.append(Choice(file, rank, reason, seconds, failures))
    return sorted(found, key=lambda choice: choice.order)


def _is_test(file: str) -> bool:
    return file.rpartition("/")[2].startswith("test_")


def _glob(pattern: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)]


def _reason(
    file: str,
    names: set[str],
    changed: set[str],
    modules: set[str],
    rooms: set[str],
    importers: set[str],
    by_process: set[str],
) -> tuple[int, str]:
    if file in changed:
        return 1, "changed"
    if names & modules:
        return 2, "imports what changed"
    if any(file.startswith(f"tests/unit/{room.partition('.')[2].replace('.', '/')}/") for room in rooms):
        return 2, "tests a package that changed"
    if file in by_process:
        return 3, "starts processes of what changed"
    if names & importers:
        return 4, "imports what imports it"
    return 0, ""


def fill(found: Iterable[Choice], seconds: float) -> tuple[list[Choice], list[Choice]]:
    """Those that fit into the time, and those that do not. A changed test always fits."""
    taken: list[Choice] = []
    left_out: list[Choice] = []
    for choice in found:
        if choice.rank == 1 or choice.seconds <= seconds:
            taken.append(choice)
            seconds -= choice.seconds
        else:
            left_out.append(choice)
    return taken, left_out


def default_base() -> str:
    """Where this branch began: `origin/main` or `main`; on that itself the last commit."""
    for name in ("origin/main", "main"):
        known = subprocess.run(
            ["git", "rev-parse", "-q", "--verify", name],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        if known.returncode == 0 and known.stdout != git("rev-parse", "HEAD"):
            return name
    return "HEAD"


def main(arguments: Sequence[str]) -> int:
    """Choose, tell, run."""
    own, for_pytest = split(arguments)
    parser = argparse.ArgumentParser(prog="make quick", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="", help="the revision to compare with (default: main)")
    parser.add_argument("--room", default="", help="a package of penstock/, as if all of it had changed")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="tell only")
    options = parser.parse_args(own)
    base = options.base or default_base()
    changed = files_of_room(options.room) if options.room else changed_files(base)
    since = f"penstock/{options.room}" if options.room else f"since {base}"
    if not changed:
        print(f"nothing changed {since}: name a package (make quick ROOM=store) or a revision (BASE=HEAD~3)")
        return 0
    found = choices(changed)
    budget = (options.seconds - OVERHEAD_S) * max(options.jobs, 1)
    taken, left_out = fill(found, budget)
    print(f"{len(changed)} files changed {since}; {len(found)} test files have to do with them")
    for file in [file for file in changed if file in EVERYTHING]:
        print(f"{file} concerns every test: run make test")
    if not taken:
        return 0
    if left_out:
        seconds = sum(choice.seconds for choice in left_out)
        print(f"left out: {len(left_out)} files, {seconds:.0f} s of tests (make test runs them):")
        for choice in left_out:
            print(f"  {choice.seconds:6.1f} s  {choice.file}  ({choice.reason})")
    seconds = sum(choice.seconds for choice in taken)
    print(f"running {len(taken)} files, {seconds:.0f} s of tests in {options.jobs} processes", flush=True)
    if options.dry_run:
        return 0
    line = [sys.executable, "-m", "pytest", "-n", str(options.jobs), *(choice.file for choice in taken)]
    return subprocess.run([*line, *for_pytest], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
