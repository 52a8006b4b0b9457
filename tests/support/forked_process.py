"""Modules of Python that run as processes, forked off a server that has imported Penstock already.

A fresh interpreter spends most of a second of processor time on imports, and these tests start hundreds. What is
forked is otherwise a process of its own: it has the environment, the working directory and the standard streams that
`python -m MODULE` would have, and may be killed, stopped and waited for in the same way. The fork server begins with
the first test (`tests/conftest.py`), so that no test counts as the one that leaked it.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pty
import runpy
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = [
    "penstock.broker.broker",
    "penstock.cli.console",
    "penstock.__main__",
    "penstock.cli.main",
    "penstock.cli.servers",
    "penstock.client.admin",
    "penstock.client.consumer",
    "penstock.client.producer",
    "penstock.coordinator.server",
    "penstock.nameserver.server",
    "penstock.testing.embedded",
    "tests.fault.crash_writer",
    "tests.support.forked_process",
    "tests.support.patient_command",
    "tests.fault.replica_writer",
    "tests.fault.staging_broker",
    "tests.fault.transaction_broker",
]

_CONTEXT = multiprocessing.get_context("forkserver")
STREAMS = (0, 1, 2)


def begin() -> None:
    """Start the fork server."""
    _CONTEXT.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def _run(
    module: str, arguments: tuple[str, ...], environment: dict[str, str], out: Connection, log: str
) -> None:
    """In the new process: become `python -m module arguments`."""
    os.dup2(out.fileno(), 1)
    out.close()
    if log:
        errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(errors, 2)
        os.close(errors)
    _become(module, arguments, environment, ROOT)


def _run_in_terminal(
    module: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    folder: Path,
    terminal: Connection,
    streams: dict[int, Connection],
) -> None:
    """The same with a controlling terminal, which stands for the standard streams that are not given."""
    os.setsid()
    fcntl.ioctl(terminal.fileno(), termios.TIOCSCTTY, 0)
    for number in STREAMS:
        os.dup2(streams.get(number, terminal).fileno(), number)
    for connection in (terminal, *streams.values()):
        connection.close()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.stdin = open(0)  # noqa: SIM115
    _become(module, arguments, environment, folder)


def _become(module: str, arguments: tuple[str, ...], environment: dict[str, str], folder: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    sys.modules.pop(module, None)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class _Child:
    """A running process, with the methods of `subprocess.Popen` that the tests need. `given` are closed once the
    process has them."""

    def __init__(
        self, target: Callable[..., None], values: tuple[object, ...], reading: Connection, *given: Connection
    ) -> None:
        self._reading = reading
        self._process = _CONTEXT.Process(target=target, args=values, name=str(values[0]), daemon=True)
        try:
            self._process.start()
        except BaseException:
            self._reading.close()
            raise
        finally:
            for connection in given:
                connection.close()
        pid = self._process.pid
        assert pid is not None
        self.pid = pid
        self.returncode: int | None = None

    @property
    def out(self) -> int:
        """The descriptor to read its output from; of a terminal, also to type on."""
        return self._reading.fileno()

    def poll(self) -> int | None:
        """How it ended, as in `subprocess`; None while it runs."""
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout_s or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """The fork server may have seen its end a moment earlier."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it runs, and let go of everything."""
        if self._reading.closed:
            return
        self.kill()
        self.wait()
        self._process.close()
        self._reading.close()


class ForkedProcess(_Child):
    """`python -m module arguments`; its standard output is a pipe, its standard error a file."""

    def __init__(self, module: str, *arguments: str, log: Path | None = None) -> None:
        reading, writing = _CONTEXT.Pipe(duplex=False)
        super().__init__(
            _run, (module, arguments, dict(os.environ), writing, str(log or "")), reading, writing
        )


class TerminalProcess(_Child):
    """The same in a terminal of this many rows and columns. `streams` replaces standard streams by copies of other
    descriptors."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        folder: Path,
        size: tuple[int, int],
        streams: Mapping[int, int],
    ) -> None:
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        terminal = Connection(its)
        others = {number: Connection(os.dup(one)) for number, one in streams.items()}
        values = (module, arguments, dict(environment), folder, terminal, others)
        super().__init__(_run_in_terminal, values, Connection(ours), terminal, *others.values())
