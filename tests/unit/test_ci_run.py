"""What `.ci/run` reports: with a Makefile of three small targets in place of ours."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Run:
    """`.ci/run` in a directory of its own."""

    def __init__(self, folder: Path, change: tuple[str, str] = ("", ""), **targets: str) -> None:
        (folder / ".ci").mkdir()
        script = Path(shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run"))
        text = script.read_text()
        assert change[0] in text
        script.write_text(text.replace(*change, 1))
        recipes = {
            "check": "true",
            "test": "true",
            "interop-core": "true",
            "slice-in-time": "true",
            **targets,
        }
        lines = [f"{target}:\n\t@{recipe}\n" for target, recipe in recipes.items()]
        (folder / "Makefile").write_text(f".PHONY: {' '.join(recipes)}\n" + "".join(lines))
        self.folder = folder
        self.process = subprocess.Popen(
            [folder / ".ci" / "run"],
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "MAKEFLAGS": ""},
        )

    def end(self) -> tuple[int, list[str]]:
        """The exit status, and the report without the times."""
        out, _ = self.process.communicate(timeout=60)
        report = out[out.rindex("== .ci/run: ") :].splitlines()
        return self.process.returncode, [" ".join(w for w in line.split() if w != "s") for line in report]

    def wait_for(self, name: str) -> str:
        deadline = time.monotonic() + 60
        path = self.folder / name
        while not path.exists() or not path.read_text().endswith("\n"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return path.read_text().strip()


def test_all_of_it_passes(tmp_path: Path) -> None:
    status, report = Run(tmp_path).end()
    assert (status, report[0]) == (0, "== .ci/run: passed")
    assert [line.split()[1] for line in report[1:]] == ["check", "test", "interop-core", "slice-in-time"]
    assert all(line.endswith(" ok") for line in report[1:])


def test_the_first_that_fails_ends_it(tmp_path: Path) -> None:
    status, report = Run(tmp_path, check="exit 3").end()
    assert (status, report[0]) == (2, "== .ci/run: FAILED (exit 2)"), "make's own status"
    assert [(line.split()[1], line.split()[-1]) for line in report[1:]] == [("check", "2")]


def test_failed_tests_fail_the_run(tmp_path: Path) -> None:
    status, report = Run(tmp_path, test="exit 3").end()
    assert status == 2
    assert [(line.split()[1], line.split()[-1]) for line in report[1:]] == [("check", "ok"), ("test", "2")]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_is_reported_and_leaves_nothing_running(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    run = Run(tmp_path, test="echo $$$$ > pid; sleep 600; true")
    child = int(run.wait_for("pid"))
    run.process.send_signal(number)
    found, report = run.end()
    assert (found, report[0]) == (status, f"== .ci/run: INTERRUPTED ({number.name})")
    assert report[1].endswith(" ok")
    assert report[2].startswith("make test")
    assert report[2].endswith(f"interrupted by {number.name}")
    assert len(report) == 3
    wait_until_gone(child)


def test_a_signal_right_after_the_start_of_a_step_ends_the_step(tmp_path: Path) -> None:
    """The shell was stopped between starting it and noting its process: it went on for as long as it liked."""
    late = "    until [ -e signalled ]; do sleep 0.01; done\n    job=$!\n"
    run = Run(tmp_path, ("    job=$!\n", late), check="echo $$$$ > pid; sleep 600; true")
    child = int(run.wait_for("pid"))
    run.process.send_signal(signal.SIGTERM)
    (tmp_path / "signalled").touch()
    status, report = run.end()
    assert (status, report[0]) == (143, "== .ci/run: INTERRUPTED (SIGTERM)")
    assert report[1].endswith("interrupted by SIGTERM")
    wait_until_gone(child)


def test_a_step_that_was_killed_is_not_one_that_failed(tmp_path: Path) -> None:
    run = Run(tmp_path, check="kill -9 $$PPID")
    status, report = run.end()
    assert (status, report[0]) == (137, "== .ci/run: FAILED (ended by SIGKILL)")
    assert report[1].endswith("ended by SIGKILL")


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline, "the step's own process is still there"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """A process that has ended and that nobody has asked about does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    run = Run(tmp_path, check="trap '' TERM; echo $$$$ > pid; while :; do sleep 0.1; done")
    child = int(run.wait_for("pid"))
    deadline = time.monotonic() + 60
    while run.process.poll() is None:
        assert time.monotonic() < deadline
        run.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    status, report = run.end()
    assert (status, report[0]) == (143, "== .ci/run: INTERRUPTED (SIGTERM)")
    wait_until_gone(child)
