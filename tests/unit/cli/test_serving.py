"""A server process: ready once, stopped by the first signal, ended by the second, whatever its loop is doing."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli import serving

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import asyncio, os, sys, time
from penstock.cli import serving

class Fake:
    async def start(self):
        {start}
    async def stop(self):
        print("stopping", flush=True)
        {stop}

if "asyncio" in sys.argv:
    sys.modules["uvloop"] = None
print(type(serving.new_event_loop()).__module__.split(".")[0], flush=True)
sys.exit(serving.serve(Fake(), lambda: print("ready", flush=True), {timeout}))
"""
LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def run_fake(
    loop: str, *, start: str = "pass", stop: str = "pass", timeout: int = 20_000
) -> subprocess.Popen[str]:
    code = SCRIPT.format(start=start, stop=stop, timeout=timeout)
    process = subprocess.Popen(
        [sys.executable, "-c", code, loop],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    used = process.stdout.readline().strip()
    if used != loop:
        process.kill()
        process.communicate()
        pytest.skip(f"{loop} is not installed")
    return process


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@LOOPS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_cleanly(loop: str, number: int) -> None:
    process = run_fake(loop)
    assert next_line(process) == "ready"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopping\n", "")


@LOOPS
def test_the_second_signal_ends_it_at_once(loop: str) -> None:
    process = run_fake(loop, stop="await asyncio.sleep(600)")
    assert next_line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    assert next_line(process) == "stopping"
    time.sleep(serving.SAME_MOMENT_S + 0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.count("\n") == 1
    assert "second signal" in err


@LOOPS
def test_a_signal_sent_twice_in_one_moment_counts_once(loop: str) -> None:
    """As timeout(1) does: to the process, and to its group."""
    process = run_fake(loop, stop="await asyncio.sleep(0.1)")
    assert next_line(process) == "ready"
    # Both are there when it runs again, however slow the machine is.
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopping\n", "")


@LOOPS
def test_the_second_signal_counts_while_a_long_start_keeps_the_loop_busy(loop: str) -> None:
    process = run_fake(loop, start="print('busy', flush=True); exec('while True: time.sleep(0.01)')")
    assert next_line(process) == "busy"
    process.send_signal(signal.SIGINT)
    time.sleep(serving.SAME_MOMENT_S + 0.05)
    assert process.poll() is None
    # The process counts from when it gets to the first one, which may be late.
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(serving.SAME_MOMENT_S + 0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "second signal" in err) == (130, True)


@LOOPS
def test_a_signal_during_the_start_stops_after_it(loop: str, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    start = f"print('busy', flush=True)\n        while not os.path.exists({str(sent)!r}): await asyncio.sleep(0.01)"
    process = run_fake(loop, start=start)
    assert next_line(process) == "busy"
    process.send_signal(signal.SIGTERM)
    sent.touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "stopping\n", "")


def test_a_stop_that_takes_too_long_is_ended() -> None:
    process = run_fake("asyncio", stop="await asyncio.sleep(60)", timeout=100)
    assert next_line(process) == "ready"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "longer than 100 ms" in err) == (1, True)


def test_a_start_that_fails_is_not_stopped() -> None:
    process = run_fake("asyncio", start="raise RuntimeError('no')")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "RuntimeError: no" in err
    assert out == ""


class Broken:
    """A service that cannot start."""

    async def start(self) -> None:
        assert not gc.isenabled()
        raise OSError("no port")

    async def stop(self) -> None:
        pass


def test_a_start_that_fails_leaves_the_interpreter_as_it_was() -> None:
    switch_s = sys.getswitchinterval()
    with pytest.raises(OSError, match="no port"):
        serving.serve(Broken(), lambda: None, 20_000)
    assert (gc.isenabled(), gc.get_freeze_count(), sys.getswitchinterval()) == (True, 0, switch_s)
