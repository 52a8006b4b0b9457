"""A server of the command line in a process of its own, that tells what it holds when it is asked.

    tests.abuse.observed broker --data DIR ...       what `penstock broker --data DIR ...` is

The process runs the command as it is shipped. Besides, a SIGUSR2 makes it write a line of JSON to a file: tasks
of its loop and objects of its heap, after a collection. Memory, descriptors and threads are read from /proc.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
FACTS = "PENSTOCK_OBSERVED_FACTS"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a process holds. Memory is its own, in bytes: pages of mapped files come and go with the cache."""

    memory: int
    descriptors: int
    sockets: int
    threads: int
    tasks: int
    objects: int


class Observed:
    """Starts the process and waits for its ready line; `stop` ends it as an operator would."""

    def __init__(self, folder: Path, *command: str, ready_s: float = 90.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "server.stderr"
        self._facts_path = folder / "facts.json"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.abuse.observed", *command, "--json"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, FACTS: str(self._facts_path)},
            )
        self.ready = self._wait_until_ready(ready_s)

    def _wait_until_ready(self, seconds: float) -> dict[str, str]:
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        deadline, line = time.monotonic() + seconds, b""
        while b"\n" not in line:
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.kill()
                raise AssertionError(f"the server did not start: {self.log()[-2_000:]}")
            time.sleep(0.01)
            line += self.process.stdout.read() or b""
        found: dict[str, str] = json.loads(line)
        return found

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def facts(self) -> Facts:
        """What it holds now. Raises if it does not answer: its loop or itself would be gone."""
        self._facts_path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 90
        while not self._facts_path.exists():
            assert self.is_alive, f"the server is gone: {self.log()[-2_000:]}"
            assert time.monotonic() < deadline, "the server's loop does not turn any more"
            time.sleep(0.01)
        told = json.loads(self._facts_path.read_text())
        status = dict(line.split(":", 1) for line in self._proc("status").read_text().splitlines())
        links = self._links()
        return Facts(
            int(status["RssAnon"].split()[0]) * 1024,
            len(links),
            sum(link.startswith("socket:") for link in links),
            int(status["Threads"]),
            told["tasks"],
            told["objects"],
        )

    def remote_ports(self, local: int) -> set[int]:
        """Ports of the clients connected to a port of its own.

        The kernel gives one client port to several connections that differ in the server's port.
        """
        inodes = {link[8:-1] for link in self._links() if link.startswith("socket:[")}
        found = set()
        for table in ("net/tcp", "net/tcp6"):
            for line in self._proc(table).read_text().splitlines()[1:]:
                _, own, remote, _, _, _, _, _, _, inode, *_ = line.split()
                if inode in inodes and int(own.rpartition(":")[2], 16) == local:
                    found.add(int(remote.rpartition(":")[2], 16))
        return found

    def _proc(self, name: str) -> Path:
        return Path("/proc", str(self.process.pid), name)

    def _links(self) -> list[str]:
        """Where its descriptors lead to."""
        found = []
        for link in self._proc("fd").iterdir():
            try:
                found.append(os.readlink(link))
            except FileNotFoundError:
                continue  # closed meanwhile
        return found

    # -- ending ----------------------------------------------------------------------------------------------

    def stop(self, seconds: float = 90.0) -> int:
        """The exit status after a SIGTERM."""
        if self.is_alive:
            self.process.terminate()
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.is_alive:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


# -- in the process ------------------------------------------------------------------------------------------


def _tell(number: int, frame: FrameType | None) -> None:
    loop = asyncio._get_running_loop()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    told = {"tasks": len(asyncio.all_tasks(loop)) if loop else -1, "objects": len(gc.get_objects())}
    path = Path(os.environ[FACTS])
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(told))
    temporary.rename(path)


def main() -> None:
    from penstock.cli.main import main as penstock

    signal.signal(signal.SIGUSR2, _tell)
    sys.argv[0] = "penstock"
    penstock()


if __name__ == "__main__":
    main()
