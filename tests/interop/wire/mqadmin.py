"""RocketMQ's own mqadmin, and what it prints in a form in which two servers can be compared.

As processes of their own the commands would take most of their time for starting and stopping a JVM, so one JVM runs them
all; that the ordinary way of starting works too is shown once.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.interop.wire.driver import Driver
from tests.interop.wire.peer import Server
from tests.interop.wire.rocketmq_server import mqadmin_command

_TIMEOUT_S = 120
_SIDE_BY_SIDE = 12
# mqadmin puts bodies of messages there and says so; nothing can change the place.
_BODY_PATH = re.compile(r"Message Body Path: +(/tmp/rocketmq/msgbodys/\S+)")
_OF_OTHERS = re.compile(r"%RETRY%|%DLQ%|(session|topic|go-|py-)[\w-]*$")
# One line for each delay level that was used.
_LEVELS = re.compile(r"scheduleMessageOffset_\d+")
_LOGGED = re.compile(r"(WARN|ERROR) ")
# What a command itself throws is no log.
_LOGGED_EXCEPTION = re.compile(r"(?!\S*SubCommandException)(\S+Exception\b|Caused by: |\t)")
_NOISE = re.compile(r"(\tat |See https?:|For more information|\t\.\.\. )")
_WORDS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d{3})?"), "<time>"),
    (re.compile(r"\b1[789]\d{11}\b"), "<time>"),
    (re.compile(r"\b(?:[0-9A-F]{56}|[0-9A-F]{32})\b"), "<id>"),
    (re.compile(r"(?<=msgbodys/)\S+"), "<id>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"V5_3_3-penstock-[\d.]+"), "V5_3_3-penstock"),
    (re.compile(r"\d+\.\d+"), "<number>"),
    (re.compile(r"(?<=DESC: ).*"), "(text)"),
    (re.compile(r"[^ =]+@(push|producer)-[\w-]+"), "<client>"),
    (re.compile(r"(?<=CommitLog Offset:)( +)\d+"), r"\1<place>"),
    # How far behind the timer is, what was read today, how many topics there are: all of it depends on the moment.
    (re.compile(r"\b\d+-\d+(?=\()"), "<figures>"),
    (re.compile(r"^(DefaultCluster +broker-a)( +\d+){4}$"), r"\1 <figures>"),
    (re.compile(r"(?<= OK, )\d+"), "<figure>"),
    # It would part the cells of the table of differences.
    (re.compile(r"\|"), "/"),
)


@dataclass(frozen=True, slots=True)
class Printed:
    """What one command did."""

    exit_code: int
    output: str

    def flat(self) -> dict[str, str]:
        """Exit code and lines by number, with what can only differ replaced and runs of blanks as one."""
        lines = [" ".join(_worded(line).split()) for line in _without_log(self.output.splitlines())]
        return {"exit": str(self.exit_code)} | {
            f"line {i}": line for i, line in enumerate(filter(None, lines), 1)
        }

    def sorted(self) -> dict[str, str]:
        """The same for lists that have no order: each line is its own name. What other tests left is left out."""
        flat = self.flat()
        lines = sorted(value for key, value in flat.items() if key != "exit" and not _OF_OTHERS.match(value))
        return {"exit": flat["exit"]} | dict.fromkeys(lines, "(there)")

    def keyed(self) -> dict[str, str]:
        """The same for `name : value` lines: values are figures, names are compared."""
        lines = (line for line in self.output.splitlines() if ":" in line and not _LEVELS.match(line))
        names = (line.partition(":")[0].strip() for line in lines)
        return {"exit": str(self.exit_code)} | {
            re.sub(r"_/.*", "_<path>", name): "<figure>" for name in names
        }


def _without_log(lines: Iterable[str]) -> Iterator[str]:
    """Leaves out what the client inside mqadmin logs, with the exceptions of its log, and the frames of all stacks."""
    is_logged = False
    for line in lines:
        is_logged = bool(_LOGGED.match(line)) or (is_logged and bool(_LOGGED_EXCEPTION.match(line)))
        if not is_logged and not _NOISE.match(line):
            yield line


def _worded(line: str) -> str:
    for pattern, word in _WORDS:
        line = pattern.sub(word, line)
    return line


class MqAdmin:
    """The commands at one server. Most run in one JVM, several at a time; see `AdminTool.java`."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory
        command = mqadmin_command(directory, "penstock.interop.admin.AdminTool")
        self._driver = Driver("mqadmin", [*command, server.nameserver], directory)

    def __enter__(self) -> MqAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.kill()

    def run(self, *words: str) -> Printed:
        output = self._driver.do("mqadmin", words=words, wait_s=_TIMEOUT_S)["output"]
        for path in _BODY_PATH.findall(output):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        return Printed(0, output)

    def run_all(self, commands: Iterable[Sequence[str]]) -> list[Printed]:
        """Commands that do not depend on each other; results in order."""
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            return list(pool.map(lambda words: self.run(*words), commands))

    def run_process(self, *words: str) -> Printed:
        """A command as an operator starts it."""
        command = mqadmin_command(self._directory, "org.apache.rocketmq.tools.command.MQAdminStartup")
        done = subprocess.run(
            [*command, *words, "-n", self._server.nameserver],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return Printed(done.returncode, done.stdout)
