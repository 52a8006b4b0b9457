"""Penstock's name server and broker, each in its own process, as `penstock nameserver` and `penstock broker` start them.

Rule: defaults, except for ports, the data directory and offsets on disk within a second, as RocketMQ's fixture has it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.interop.wire.background import Background, free_port
from tests.interop.wire.frames import has_route

READY_S = 30


class Penstock:
    """The pair of processes. `restart` keeps ports and data."""

    name = "penstock"

    def __init__(self, directory: Path, *settings: str) -> None:
        self._directory = directory
        self.store = directory / "broker"
        self._settings = settings
        self.nameserver = f"127.0.0.1:{free_port()}"
        self.broker = f"127.0.0.1:{free_port(neighbours=(-2, 1))}"
        self.name_process = self._start("nameserver", self.nameserver)
        self.broker_process = self._start_broker()

    def restart(self, *, crash: bool = False) -> None:
        """Ends the broker, cleanly or not, and starts it again."""
        if crash:
            self.broker_process.kill()
        else:
            assert self.broker_process.stop() == 0, self.broker_process.log_tail()
        self.broker_process = self._start_broker()

    def stop(self) -> None:
        for process in (self.broker_process, self.name_process):
            assert process.stop() == 0, process.log_tail()

    def log_tail(self) -> str:
        return self.broker_process.log_tail()

    def _start_broker(self) -> Background:
        options = ["--nameserver", self.nameserver, "--set", "broker.offset_save_interval_ms=1000"]
        # Transactions are asked about soon, as RocketMQ's fixture has it.
        options += ["--set", "broker.transaction_check_interval_ms=1000"]
        options += ["--set", "broker.transaction_timeout_ms=4000"]
        # How full the machine's disk is decides nothing here.
        for name in ("max_used", "clean_forcibly", "refuse_writes", "warning"):
            options += ["--set", f"store.disk_{name}_percent=100"]
        # Segments are allocated in full, and temporary directories may be in memory: ten servers took 10 GiB of it.
        options += ["--set", f"store.segment_size_bytes={128 << 20}"]
        for setting in self._settings:
            options += ["--set", setting]
        process = self._start("broker", self.broker, *options)
        process.wait_until(lambda: has_route(self.nameserver, "TBW102"), "the route", READY_S)
        return process

    def _start(self, role: str, address: str, *options: str) -> Background:
        command = [
            sys.executable,
            "-m",
            "penstock.cli.main",
            role,
            "--json",
            "--data",
            str(self._directory / role),
        ]
        log = self._directory / f"{role}.log"
        log.unlink(missing_ok=True)
        process = Background([*command, "--port", address.rpartition(":")[2], *options], log)
        process.wait_until(lambda: _is_ready(log), f"penstock {role}", READY_S)
        return process


def _is_ready(log: Path) -> bool:
    """The ready line is on standard output, in the file with whatever else is printed."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and json.loads(line).get("ready"):
            return True
    return False
