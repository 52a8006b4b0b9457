"""Processes that tests start, and the ports they are given.

Rule: a process started here ends with the test run, also when that is killed, and keeps no descriptor open in it:
what the process prints goes to a file. Ports are free ones of the loopback interface.

Ownership: calls block the calling thread. Never: waits without a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class NotReady(Exception):
    """A process did not become ready; the message ends with what it printed last."""


class Background:
    """One process, its standard output and error in a file."""

    def __init__(
        self, command: Sequence[str], log_path: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it only makes a system call
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running:
                raise NotReady(f"{what} ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise NotReady(f"{what} was not ready in {timeout_s} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self, timeout_s: float = 30) -> int:
        """Asks it to end; the exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL: a crash."""
        self._process.kill()
        self._process.wait()

    def log_tail(self, line_count: int = 40) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-line_count:]) or "(nothing)"


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(*, neighbours: Sequence[int] = ()) -> int:
    """A port that nobody listens on now; so are the ports at the given distances from it."""
    for _ in range(1000):
        port = random.randrange(20_000, 30_000)
        if all(_is_free(port + distance) for distance in (0, *neighbours)):
            return port
    raise NotReady("no free port between 20000 and 30000")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=1)):
            return True
    except OSError:
        return False
