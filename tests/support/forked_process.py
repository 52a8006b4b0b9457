"""Modules of Python that run as processes, forked off a server that has imported Penstock already.

A fresh interpreter spends most of a second of processor time on imports, and these tests start hundreds. What is
forked is otherwise a process of its own: it has the environment, the working directory and the standard streams that
`python -m MODULE` would have, and may be killed, stopped and waited for in the same way. The fork server begins with
the first test (`tests/conftest.py`), so that no test counts as the one that leaked it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = [
    "penstock.broker.broker",
    "penstock.cli.main",
    "penstock.cli.servers",
    "penstock.coordinator.server",
    "penstock.nameserver.server",
    "penstock.testing.embedded",
    "tests.fault.crash_writer",
    "tests.support.forked_process",
    "tests.fault.replica_writer",
    "tests.fault.staging_broker",
    "tests.fault.transaction_broker",
]

_CONTEXT = multiprocessing.get_context("forkserver")


def begin() -> None:
    """Start the fork server."""
    _CONTEXT.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()
    forkserver.ensure_running()


def _run(
    module: str, arguments: tuple[str, ...], environment: dict[str, str], out: Connection, log: str
) -> None:
    """In the new process: become `python -m module arguments`."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    os.dup2(out.fileno(), 1)
    out.close()
    if log:
        errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(errors, 2)
        os.close(errors)
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    sys.modules.pop(module, None)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ForkedProcess:
    """A running process, with the methods of `subprocess.Popen` that the tests need; `out` is its standard output."""

    def __init__(self, module: str, *arguments: str, log: Path | None = None) -> None:
        self._reading, writing = _CONTEXT.Pipe(duplex=False)
        values = (module, arguments, dict(os.environ), writing, str(log or ""))
        self._process = _CONTEXT.Process(target=_run, args=values, name=module, daemon=True)
        try:
            self._process.start()
        except BaseException:
            self._reading.close()
            raise
        finally:
            writing.close()
        pid = self._process.pid
        assert pid is not None
        self.pid = pid
        self.returncode: int | None = None

    @property
    def out(self) -> int:
        """The descriptor to read its standard output from."""
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
