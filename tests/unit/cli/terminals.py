"""`penstock ...` as a process in a pseudo-terminal, as a person runs it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from tests.support.forked_process import ROOT, TerminalProcess
from tests.support.server_processes import is_readable
from tests.support.terminal_model import rendered
from tests.waiting import DEADLINE_S

ROWS = 24
CTRL_C, END_OF_INPUT = "\x03", "\x04"
# Colours, cursor moves and erasures, which a terminal acts on and does not show.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_NOT_INHERITED = ("COLUMNS", "LINES", "NO_COLOR", "PENSTOCK_NAMESERVER", "PENSTOCK_COORDINATOR")


@dataclass(frozen=True)
class Screen:
    """How a command ended, and everything that it wrote to the terminal."""

    exit_code: int
    raw: str
    columns: int

    @property
    def text(self) -> str:
        """All that was ever shown, also what was erased again."""
        return _CONTROLS.sub("", self.raw)

    @property
    def shown(self) -> str:
        """What is left on the terminal at the end."""
        return rendered(self.raw, self.columns)


class Process(Protocol):
    """`out` is its terminal."""

    pid: int

    @property
    def out(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout_s: float) -> int: ...


class Terminal:
    """A running command and its terminal."""

    def __init__(self, process: Process, columns: int) -> None:
        self.process = process
        self._columns = columns
        self._output = bytearray()

    def type(self, text: str) -> None:
        os.write(self.process.out, text.encode())

    def wait_shown(self, text: str) -> None:
        """Wait until the command has written this."""
        deadline = time.monotonic() + DEADLINE_S
        while text.encode() not in self._output:
            assert time.monotonic() < deadline, f"no {text!r} in {bytes(self._output)!r}"
            assert self._read(), f"ended without {text!r}: {bytes(self._output)!r}"

    def finish(self) -> Screen:
        """Wait until the command ends."""
        deadline = time.monotonic() + DEADLINE_S
        while is_readable(self.process.out, max(deadline - time.monotonic(), 0)) and self._read():
            pass
        assert time.monotonic() < deadline, f"it does not end: {bytes(self._output)!r}"
        code = self.process.wait(max(deadline - time.monotonic(), 1))
        return Screen(code, self._output.decode(errors="replace"), self._columns)

    def _read(self) -> bool:
        try:
            piece = os.read(self.process.out, 65_536)
        except OSError:  # EIO: every process has closed the other side
            return False
        self._output += piece
        return bool(piece)


def _inherited() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}


@contextmanager
def terminal(
    *arguments: object,
    environment: Mapping[str, str],
    folder: Path = ROOT,
    columns: int = 80,
    streams: Mapping[int, int] | None = None,
) -> Iterator[Terminal]:
    """Run a command with its standard streams on a terminal, or on the descriptors in `streams`."""
    process = TerminalProcess(
        "tests.support.patient_command",
        *(str(argument) for argument in arguments),
        environment={**_inherited(), **environment},
        folder=folder,
        size=(ROWS, columns),
        streams=streams or {},
    )
    try:
        yield Terminal(process, columns)
    finally:
        process.close()


def run_in_terminal(
    nameserver: str,
    *arguments: object,
    piped: str | None = None,
    typed: str = "",
    until: str = "",
    output: IO[bytes] | None = None,
    columns: int = 80,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> Screen:
    """Run a command with standard output and error on a terminal until it ends.

    Standard input is the terminal too, where `typed` is typed once
    the command has shown `until`; or a pipe with the text `piped`. With `output`,
    standard output is that file.
    """
    streams = {1: output.fileno()} if output is not None else {}
    reading, writing = os.pipe()
    try:
        if piped is not None:
            streams[0] = reading
            os.write(writing, piped.encode())
        os.close(writing)
        writing = -1
        variables = {"PENSTOCK_NAMESERVER": nameserver, **(environment or {})}
        with terminal(
            *arguments, environment=variables, folder=folder, columns=columns, streams=streams
        ) as running:
            running.wait_shown(until)
            if typed:
                running.type(typed)
            return running.finish()
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


class FreshProcess:
    """A command in an interpreter of its own, with what `Terminal` needs of a process."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, columns: int
    ) -> None:
        self.out, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments],
            stdin=its,
            stdout=its,
            stderr=its,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            # The terminal on standard input becomes the one whose Ctrl-C is heard.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
        )
        os.close(its)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        return self._process.wait(timeout_s)

    def close(self) -> None:
        os.close(self.out)
        self._process.kill()
        self._process.wait()


@contextmanager
def fresh_terminal(
    *arguments: str, environment: Mapping[str, str], folder: Path = ROOT, columns: int = 80
) -> Iterator[Terminal]:
    """Run a command as `terminal` does, from the start of its interpreter."""
    process = FreshProcess(arguments, {**_inherited(), **environment}, folder, columns)
    try:
        yield Terminal(process, columns)
    finally:
        process.close()
