"""The hot modules under AddressSanitizer and UndefinedBehaviorSanitizer: `make asan`.

    python -m scripts.asan [--minutes N] [--jobs N] [-- PYTEST ARGUMENT...]

Compiles them into build/asan, beside the release form, and runs in that form what runs uncompiled too (the tests of
the hot modules and their importers, golden bytes, property tests, corpora) and the fuzzers of frames and stores.
Servers that tests start load the same modules. The first wrong read, write or sum ends the process that did it. The
report of a read or write is printed at the end, and fails the run even if the test did not mind that a process died;
that of a sum goes to the standard error of the process.

Needs gcc with its sanitizers. Leaks are not looked for: an interpreter never gives everything back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scripts import uncompiled
from scripts.history import ROOT

BUILD = ROOT / "build" / "asan"
MODULES = BUILD / "modules"
REPORTS = BUILD / "reports"
FUZZERS = (
    "tests/abuse/test_forged_records.py",
    "tests/abuse/test_framing.py",
    "tests/abuse/test_mutated_frames.py",
    "tests/fault/test_mutated_stores.py",
)
# Asks a sanitizer's opinion of a read behind the end, so that a run that would not notice one does not pass.
CONTROL = "import ctypes; data = ctypes.create_string_buffer(64); ctypes.CDLL(None).memcmp(data, data, 4096)"


def environment() -> dict[str, str]:
    """What a process needs to load the modules in this form."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_absolute():
        raise SystemExit(
            "make asan: gcc has no libasan.so; install its sanitizers (libasan of the same version)"
        )
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        "PENSTOCK_HOT_MODULES": str(MODULES / "penstock" / "_hot"),
        "PENSTOCK_EXPECT": "compiled",
        # A small quarantine: tests of servers compare their memory before and after.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=4:"
        f"log_path={REPORTS / 'report'}",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


def build() -> None:
    """Compile what changed."""
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(MODULES)],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_ASAN": "1"},
        check=True,
    )


def control(env: dict[str, str]) -> None:
    """The modules load, all of them in this form, and a wrong read is reported."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import penstock._hot as hot; print(hot.form(), hot.checks.__file__)"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if loaded.returncode or loaded.stdout.split()[:1] != ["compiled"] or str(MODULES) not in loaded.stdout:
        raise SystemExit(f"make asan: the modules do not load in this form:\n{loaded.stdout}{loaded.stderr}")
    caught = subprocess.run(
        [sys.executable, "-c", CONTROL], cwd=ROOT, env=env, capture_output=True, check=False
    )
    if not caught.returncode or not reports():
        raise SystemExit("make asan: a read behind the end of a buffer went unnoticed")


def reports() -> list[Path]:
    return sorted(REPORTS.glob("report*"))


def clear_reports() -> None:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)


def files() -> list[str]:
    """The test files of this form."""
    return [*sorted(uncompiled.files()), *FUZZERS]


def run(jobs: int, until: float | None, arguments: Sequence[str] = ()) -> int:
    """Build, run and judge; the exit status."""
    build()
    env = environment()
    clear_reports()
    control(env)
    clear_reports()
    if until is not None:
        env["PENSTOCK_STOP_AT"] = str(until)
    chosen = [argument for argument in arguments if argument.startswith("tests/")]
    status = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(jobs),
            # Its handler would come before that of the sanitizer.
            "-p",
            "no:faulthandler",
            *([] if chosen else files()),
            *arguments,
        ],
        cwd=ROOT,
        env=env,
        check=False,
    ).returncode
    found = reports()
    for report in found:
        print(f"== {report.relative_to(ROOT)}\n{report.read_text(errors='replace')[:8_000]}")
    if found:
        print(f"make asan: {len(found)} reports of a sanitizer")
    return status or int(bool(found))


def main(arguments: Sequence[str]) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="make asan", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="no test starts after that; 0: no limit")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "pytest", nargs="*", help="behind --: arguments of pytest; test files take the place of all"
    )
    options = parser.parse_args(arguments)
    until = time.time() + options.minutes * 60 if options.minutes else None
    return run(options.jobs, until, options.pytest)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
