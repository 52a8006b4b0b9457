"""RocketMQ's own mqadmin, and what it prints in a form in which two servers can be compared.

Each command is a process of its own, as an operator starts it. Several run side by side: one spends most of its seconds
waiting for its own shutdown.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.interop.wire.peer import Server
from tests.interop.wire.rocketmq_server import mqadmin_command

_TIMEOUT_S = 120
_SIDE_BY_SIDE = 4
# mqadmin puts bodies of messages there and says so; nothing can change the place.
_BODY_PATH = re.compile(r"Message Body Path: +(/tmp/rocketmq/msgbodys/\S+)")
_NOISE = re.compile(r"^(WARN |\tat |See https?:|For more information|\t\.\.\. )")
_WORDS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d{3})?"), "<time>"),
    (re.compile(r"\b1[789]\d{11}\b"), "<time>"),
    (re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b"), "<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\d+\.\d+"), "<number>"),
    (re.compile(r"(?<=DESC: ).*"), "(text)"),
    (re.compile(r"[^ =]+@(push|producer)-[\w-]+"), "<client>"),
    (re.compile(r"(?<=CommitLog Offset:)( +)\d+"), r"\1<place>"),
)


@dataclass(frozen=True, slots=True)
class Printed:
    """What one command did."""

    exit_code: int
    output: str

    def flat(self) -> dict[str, str]:
        """Exit code and lines by number, with what can only differ replaced and runs of blanks as one."""
        lines = [" ".join(_worded(line).split()) for line in self.output.splitlines() if not _NOISE.match(line)]
        return {"exit": str(self.exit_code)} | {f"line {i}": line for i, line in enumerate(filter(None, lines), 1)}

    def sorted(self) -> dict[str, str]:
        """The same for lists that have no order: each line is its own name."""
        flat = self.flat()
        lines = sorted(value for key, value in flat.items() if key != "exit")
        return {"exit": flat["exit"]} | dict.fromkeys(lines, "(there)")

    def keyed(self) -> dict[str, str]:
        """The same for `name : value` lines: values are figures, names are compared."""
        names = (line.partition(":")[0].strip() for line in self.output.splitlines() if ":" in line)
        return {"exit": str(self.exit_code)} | {re.sub(r"_/.*", "_<path>", name): "<figure>" for name in names}


def _worded(line: str) -> str:
    for pattern, word in _WORDS:
        line = pattern.sub(word, line)
    return line


class MqAdmin:
    def __init__(self, server: Server, directory: Path) -> None:
        self._command = mqadmin_command(directory)
        self._server = server
        self._directory = directory

    def run(self, *words: str) -> Printed:
        command = [*self._command, *words, "-n", self._server.nameserver]
        done = subprocess.run(
            command,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        for path in _BODY_PATH.findall(done.stdout):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return Printed(done.returncode, done.stdout)

    def run_all(self, commands: Iterable[Sequence[str]]) -> list[Printed]:
        """Commands that do not depend on each other; results in order."""
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            return list(pool.map(lambda words: self.run(*words), commands))
