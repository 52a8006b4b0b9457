"""A Penstock with access control, and the unmodified clients that sign: Java's hook in both releases.

The server is `penstock up` in a process of its own; its users are in the file that the test writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.interop.java_release import JavaBuild, prepare_build
from tests.interop.wire.background import Background
from tests.interop.wire.driver import Driver
from tests.interop.wire.rocketmq_server import JVM_OPTIONS, mqadmin_command

READY_S = 30


class GuardedServer:
    """Name server and broker in one process."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self._log = directory / "server.log"
        command = [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "up",
            "--json",
            "--data",
            str(directory / "data"),
        ]
        command += ["--port", "0", "--nameserver-port", "0", "--set", "access.enabled=true"]
        for setting in settings:
            command += ["--set", setting]
        for name in ("max_used", "clean_forcibly", "refuse_writes", "warning"):
            command += ["--set", f"store.disk_{name}_percent=100"]
        self._process = Background(command, self._log)
        self._process.wait_until(lambda: bool(self._facts()), "penstock up", READY_S)
        self.nameserver = self._facts()["nameserver"]
        self.broker = self._facts()["broker"]

    def _facts(self) -> dict[str, str]:
        for line in self.log().splitlines():
            if line.startswith("{") and json.loads(line).get("ready"):
                found: dict[str, str] = json.loads(line)
                return found
        return {}

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        assert self._process.stop() == 0, self._process.log_tail()


def access_driver(version: str, directory: Path, *options: str) -> Driver:
    """The client of a release with its signing hook."""
    line = version.rpartition(".")[0]
    home = prepare_build(JavaBuild(f"access-{version}", f"access-{line}", ("driver", "access")))
    command = ["java", *JVM_OPTIONS, "-Xmx256m", f"-Duser.home={directory}", *options]
    command += ["-Drocketmq.client.rebalance.waitInterval=1000"]
    class_path = f"{home / 'classes'}:{home / 'lib'}/*"
    return Driver(
        f"access-{version}", [*command, "-cp", class_path, "penstock.interop.access.AccessTool"], directory
    )


def admin_driver(directory: Path, nameserver: str) -> Driver:
    """RocketMQ 5.3's mqadmin in one JVM."""
    command = mqadmin_command(directory, "penstock.interop.admin.AdminTool")
    files = directory / "mqadmin"
    files.mkdir()
    return Driver("mqadmin", [*command, nameserver], files)
