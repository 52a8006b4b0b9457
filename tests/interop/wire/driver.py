"""A client in another language, told what to do: one JSON command per loopback connection, one JSON answer.

The Java side is `Driver.java`, the Go side `driver.go`. No connection outlives its command, so that a driver shared by
tests leaves nothing open in any of them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.interop.wire.background import Background

Json = dict[str, Any]


class DriverError(Exception):
    """The command failed in the client; `kind` is the class of its exception, `code` a broker's answer if any."""

    def __init__(self, answer: Json) -> None:
        super().__init__(f"{answer['error']}: {answer.get('message')}")
        self.kind: str = answer["error"]
        self.code: int | None = answer.get("code")


class Driver:
    """One driver process."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        port_file = directory / "port"
        port_file.unlink(missing_ok=True)
        self.process = Background([*command, str(port_file)], directory / "driver.log")
        self.process.wait_until(port_file.exists, f"the driver {name}")
        self._port = int(port_file.read_text())

    def do(self, command: str, *, wait_s: float = 60, **arguments: Any) -> Json:
        """The answer to one command, or DriverError."""
        arguments["do"] = command
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            connection.settimeout(wait_s)
            connection.sendall(json.dumps(arguments).encode() + b"\n")
            answer = bytearray()
            while piece := connection.recv(65536):
                answer += piece
        if not answer:
            raise DriverError({"error": "NoAnswer", "message": self.process.log_tail()})
        parsed: Json = json.loads(answer)
        if "error" in parsed:
            raise DriverError(parsed)
        return parsed

    def kill(self) -> None:
        self.process.kill()
