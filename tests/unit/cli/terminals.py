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
from dataclasses import dataclass
from typing import IO

ROWS = 24
# Colours, cursor moves and erasures, which a terminal acts on and does not show.
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


@dataclass(frozen=True)
class Screen:
    """How a command ended, and everything that it wrote to the terminal."""

    exit_code: int
    raw: str

    @property
    def text(self) -> str:
        return _CONTROLS.sub("", self.raw)


def run_in_terminal(
    nameserver: str,
    *arguments: object,
    piped: str | None = None,
    typed: str = "",
    output: IO[bytes] | None = None,
    columns: int = 80,
) -> Screen:
    """Run a command with standard output and error on a terminal.

    Standard input is the terminal too, where `typed` is typed; or a pipe with the text `piped`. With `output`,
    standard output is that file.
    """
    ours, its = pty.openpty()
    process: subprocess.Popen[bytes] | None = None
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *(str(argument) for argument in arguments)],
            stdin=its if piped is None else subprocess.PIPE,
            stdout=its if output is None else output,
            stderr=its,
            env={**environment, "PENSTOCK_NAMESERVER": nameserver, "TERM": "xterm-256color"},
        )
        os.close(its)
        its = -1
        if piped is not None:
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(piped.encode())
        if typed:
            os.write(ours, typed.encode())
        shown = _read_all(ours)
        return Screen(process.wait(60), shown)
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def _read_all(terminal: int) -> str:
    """What is written until the last process that has the terminal open ends."""
    data = bytearray()
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        data += piece
    return data.decode(errors="replace")
