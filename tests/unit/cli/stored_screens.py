"""Screens of commands as people last read and approved them, in tests/unit/cli/screens/.

make screens     write what the commands show now; then read the difference

What differs from run to run (times, ids, ports, rates) is replaced by a text of the same width, so that a stored
screen still shows whether everything fits.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support.terminal_model import rendered
from tests.unit.cli.terminals import Screen, run_in_terminal

FOLDER = Path(__file__).with_name("screens")
WRITING = os.environ.get("PENSTOCK_SCREENS") == "write"
Replacement = str | Callable[[re.Match[str]], str]


def cut(text: str) -> Callable[[re.Match[str]], str]:
    """So much of the text as there is room for."""
    return lambda match: text[: len(match[0])]


def aligned(shown: str, *, right: bool = False) -> Callable[[re.Match[str]], str]:
    """`shown` in place of the match with the blanks around it."""

    def replace(match: re.Match[str]) -> str:
        width = max(len(match[0]), len(shown))
        return shown.rjust(width) if right else shown.ljust(width)

    return replace


# What stands for the addresses of a run; others become the broker's. Ports that the system hands out are larger.
ADDRESSES = {
    "broker": "127.0.0.1:10911",
    "coordinator": "127.0.0.1:19877",
    "free": "127.0.0.1:19999",
    "guarded": "127.0.0.1:19443",
    "plaintext": "127.0.0.1:19080",
    "silent": "127.0.0.1:18888",
    "taken": "19876",
    "web": "127.0.0.1:18080",
}
# Replaced by as many characters before the terminal breaks lines.
SAME_WIDTH: tuple[tuple[str, Replacement], ...] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{3})?)?(?=Z|\b)", cut("2026-01-31T12:00:00.000")),
    (r"(?:(?<=m)|\b)(?:[0-9A-F]{32,}|[0-9A-F]{8,}(?=…))", cut("0123456789ABCDEF" * 4)),
    (r"\b127\.0\.0\.1:(?!1\d{4})\d{5}\b", ADDRESSES["broker"]),
    (r"\b1[78]\d{11}\b", "1769860800000"),
    (r"\b\d\.\d s ago", "0.1 s ago"),
    (r"(?<=shown this once: )\S{32}", cut("secret-" * 5)),
    (r"lease for \d\.\d s", "lease for 1.2 s"),
)
# And afterwards, in this order.
VARYING: tuple[tuple[str, Replacement], ...] = (
    (r"\b\d+\.\d{2} s\b", "0.01 s"),
    (r"\b\d\.\d{3} s\b", "0.005 s"),
    (r"\b[\d,]+ messages/s", "10,000 messages/s"),
    (r"\b[\d,.]+ MB/s, [\d,]+ records/s", "10.0 MB/s, 10,000 records/s"),
    (r"divided .* ago", "divided 10 ms ago"),
    (r"\bround \d+", "round 1"),
    (r" +\d+\.\d s$", aligned("0.1 s", right=True)),
    (r"\b\d[\d,]*\.\d (in|out)/s", r"0.1 \1/s"),
    (r" +\d[\d,]*\.\d(?=  | *$)", aligned("0.1", right=True)),
    (r"(?:\d+ minutes?, )?\b\d+ seconds?(?= +V|$)", "5 seconds"),
    (r"\b(Up|5 seconds) +(?=V)", lambda match: f"{match[1]:<11}"),
    (r"\b\d{1,2} % used, [\d.]+ [GT]iB free", "40 % used, 20.5 GiB free"),
    (r" *\b\d{1,2} %", aligned("40 %", right=True)),
    (
        r'("(?:[gp][eu]t_tps|uptime_s|disk_used_ratio|messages_\w+|log_end_bytes|put_latency\w+)": )[\d.]+',
        r"\g<1>0.1",
    ),
    (r"(127\.0\.0\.1)@\d+#\d+ *", r"\1@4711#1234567890123456789  "),
    (r"^Member +(?=Address)", f"{'Member':<36}"),
)


def ruled(text: str) -> str:
    """The lines below the heads of tables, as long as their tables after replacements."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line and not line.strip("─"):
            below = (row for row in lines[number + 1 :])
            rows = [lines[number - 1], *takewhile(bool, below)]
            lines[number] = "─" * max(map(len, rows))
    return "\n".join(lines)


@dataclass(frozen=True)
class Case:
    """A command line without `penstock`, with {names} for what differs from run to run; what is on its standard
    input, or typed once it has shown `until`."""

    line: str
    piped: str | None = None
    typed: str = ""
    until: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        input_ = f"printf {self.piped!r} | " if self.piped else ""
        line = re.sub(r"{(\w+)}", lambda match: ADDRESSES.get(match[1], match[1].upper()), self.line)
        return f"$ {input_}penstock {line}".rstrip()


def _replaced(text: str, patterns: tuple[tuple[str, Replacement], ...]) -> str:
    for pattern, shown in patterns:
        text = re.sub(pattern, shown, text, flags=re.MULTILINE)
    return text


class Screens:
    """The stored screens of one file, and what the commands show in this run."""

    def __init__(self, name: str, folder: Path, nameserver: str, columns: int = 80, **names: str) -> None:
        self.path = FOLDER / (f"{name}.txt" if columns == 80 else f"{name}-{columns}.txt")
        self.folder = folder
        self.nameserver = nameserver
        self.columns = columns
        self.names = names
        self._found: list[str] = []

    def show(
        self,
        line: str,
        *,
        piped: str | None = None,
        typed: str = "",
        until: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> Screen:
        """Run a command and keep its screen."""
        case = Case(line, piped, typed, until, variables or {})
        return self.keep(case, self.run(case))

    def run(self, case: Case) -> Screen:
        return run_in_terminal(
            self.nameserver,
            *shlex.split(case.line.format(**self.names)),
            piped=case.piped,
            typed=case.typed,
            until=case.until,
            columns=self.columns,
            folder=self.folder,
            environment=case.environment,
        )

    def keep(self, case: Case, screen: Screen) -> Screen:
        assert WRITING or "Traceback" not in screen.text, f"{case.title}\n{screen.text}"
        text = self._normal(screen)
        self._found.append("\n".join([case.title, *([text] if text else []), f"[{screen.exit_code}]", ""]))
        return screen

    def _normal(self, screen: Screen) -> str:
        text = screen.raw.replace(str(self.folder), "/srv/shop")
        for name, value in self.names.items():
            if name in ADDRESSES:
                text = text.replace(value, ADDRESSES[name])
        text = rendered(_replaced(text, SAME_WIDTH), self.columns)
        return ruled(_replaced(text, VARYING))

    def compare(self) -> None:
        """Every screen is as it was approved; with PENSTOCK_SCREENS=write, they are from now on."""
        found = "\n".join(self._found)
        if WRITING:
            self.path.write_text(found, encoding="utf-8")
            return
        stored = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if found != stored:
            changes = difflib.unified_diff(
                stored.splitlines(), found.splitlines(), "stored", "shown", lineterm="", n=8
            )
            pytest.fail("read the difference; if it is meant, run: make screens\n" + "\n".join(changes))
