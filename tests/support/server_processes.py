"""Real `penstock` server processes that tests kill, stop, pause and start again at the same address.

The port of a server is reserved (`penstock.testing.reserved_port`): known before the first start, and nobody else's
while the server is down. Standard error of all lives goes into one file, so that a test can look at what it
complained of.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import penstock
from penstock.testing.reserved_port import ReservedPort
from tests.support.forked_process import ROOT, ForkedProcess

__all__ = ["ROOT", "ServerProcess", "broker", "cluster", "name_server", "options", "wait_known"]

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class ServerProcess:
    """One server and all its lives, always on the same port. `put_down` gives the port back."""

    def __init__(self, command: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.command = command
        self.data = folder / "data"
        self.log = folder / "stderr.log"
        # Its disk is full while this exists, if it is told to `watch_disk`.
        self.full_mark = folder / "disk-is-full"
        self._launcher = ["penstock.cli.main"]
        self._arguments = arguments
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._process: ForkedProcess | None = None

    @property
    def address(self) -> str:
        """Where it listens, whatever it tells clients."""
        return f"127.0.0.1:{self.port}"

    def watch_disk(self) -> None:
        """From its next start on its disk can be filled, and its writes are not the compiled ones."""
        self._launcher = ["tests.fault.cluster.filling_server", str(self.full_mark)]

    def dies_at_step(self, mark: Path) -> None:
        """From its next start on it kills itself at the step of a publication that the file `mark` names."""
        self._launcher = ["tests.fault.dying_server", str(mark)]

    @property
    def can_fill(self) -> bool:
        return len(self._launcher) > 1

    # -- life ------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start it without waiting for it."""
        assert self._process is None, "it runs already"
        line = [*self._launcher, self.command, "--json", "--port", str(self.port)]
        line += ["--data", str(self.data), *self._arguments]
        self._process = ForkedProcess(*line, log=self.log)

    def wait_ready(self) -> dict[str, Any]:
        """What the ready line says."""
        process = self._process
        assert process is not None
        told, deadline = bytearray(), time.monotonic() + READY_TIMEOUT_S
        while not told.endswith(b"\n"):
            left = deadline - time.monotonic()
            chunk = os.read(process.out, 65_536) if is_readable(process.out, left) else b""
            assert chunk, f"{self.command} is not ready, exit code {process.poll()}: {self.complaints()}"
            told += chunk
        facts: dict[str, Any] = json.loads(told)
        return facts

    def start(self) -> float:
        """Start it and wait until it answers; the seconds that took."""
        started = time.monotonic()
        self.launch()
        self.wait_ready()
        return time.monotonic() - started

    def kill(self) -> None:
        """SIGKILL: nothing is saved, flushed or said."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """SIGTERM, and wait until it has ended well; the seconds that took."""
        started = time.monotonic()
        code = self._end(signal.SIGTERM)
        assert code == 0, f"{self.command} ended with {code}: {self.complaints()}"
        return time.monotonic() - started

    def pause(self) -> None:
        """SIGSTOP: alive to the kernel, dead to everybody else."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        assert process is not None, "it does not run"
        ended_before = process.poll()
        assert ended_before is None, f"{self.command} ended by itself, {ended_before}: {self.complaints()}"
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        finally:
            process.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def complaints(self) -> str:
        """Its standard error, in all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.put_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.put_down()
        if error is None:
            assert "Traceback" not in self.complaints(), self.complaints()
        else:
            error.add_note(f"standard error of the {self.command}:\n{self.complaints()[-4_000:]}")

    def put_down(self) -> None:
        """Kill it if it runs, whatever state it is in. It is not started again."""
        self._reserved.release()
        self.let_die()

    def let_die(self) -> None:
        """The same for one that may have died by itself, and is started again."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether something comes in time. Not by `select`, which knows a thousand descriptors: a test that failed before
    may still hold as many."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1000))


def name_server(folder: Path) -> ServerProcess:
    return ServerProcess("nameserver", folder)


def options(section: str, **values: object) -> tuple[str, ...]:
    """The arguments that set options of a server."""
    return tuple(part for name, value in values.items() for part in ("--set", f"{section}.{name}={value}"))


def broker(folder: Path, name_servers: str, *arguments: str, flush: str = "sync") -> ServerProcess:
    """A broker with small segments."""
    files = options("store", flush_mode=flush, segment_size_bytes=4 << 20, queue_file_entries=2000)
    return ServerProcess("broker", folder, "--nameserver", name_servers, *files, *arguments)


@contextmanager
def cluster(
    folder: Path, *arguments: str, flush: str = "sync"
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A name server and a broker that is registered with it."""
    with (
        name_server(folder / "nameserver") as names,
        broker(folder / "broker", names.address, *arguments, flush=flush) as node,
    ):
        wait_known(names.address)
        yield names, node


def wait_known(name_servers: str, *names: str, timeout_s: float = 60.0) -> float:
    """Wait until a name server knows the masters of the named brokers, which answer before they are registered, or
    any broker if none is named; the seconds."""
    started = time.monotonic()
    with penstock.Admin(name_servers, call_timeout_ms=round(timeout_s * 1000)) as admin:
        while True:
            status = admin.cluster_status()
            registered = [found for found in status.brokers if not found.down_since_ms]
            masters = {found.name for found in registered if found.broker_id == 0}
            if masters.issuperset(names) and masters and not any(found.error for found in registered):
                return time.monotonic() - started
            assert time.monotonic() - started < timeout_s, status
            time.sleep(0.02)
