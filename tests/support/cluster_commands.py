"""Commands run in this process against a broker in this process."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from penstock.cli.main import root

# How long an answer may take unless --timeout says so: commands give up, or send again, after 3 s.
PATIENCE_MS = 60_000


def patience(arguments: Sequence[str]) -> dict[str, Any]:
    """click's `default_map` for a command line: the command waits for a slow machine."""
    words = itertools.takewhile(lambda argument: not argument.startswith("-"), arguments)
    found: dict[str, Any] = {"timeout_ms": PATIENCE_MS}
    for word in reversed([*itertools.islice(words, 2)]):
        found = {"timeout_ms": PATIENCE_MS, word: found}
    return found


class Commands:
    """`penstock ...` with a name server set, as a user would who exported PENSTOCK_NAMESERVER."""

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver

    def __call__(self, *arguments: object, text: str | bytes = "", columns: int = 120) -> Result:
        environment = {"PENSTOCK_NAMESERVER": self.nameserver, "COLUMNS": str(columns), "TERM": "dumb"}
        runner = CliRunner(env=environment)
        words = [str(argument) for argument in arguments]
        return runner.invoke(root, words, input=text, default_map=patience(words))

    def ok(self, *arguments: object, text: str | bytes = "") -> str:
        """What it printed; it must have worked."""
        result = self(*arguments, text=text)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def json(self, *arguments: object) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def json_lines(self, *arguments: object, text: str | bytes = "") -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json", text=text).splitlines()]

    def refused(self, *arguments: object) -> str:
        """The one line of complaint."""
        result = self(*arguments)
        assert result.exit_code == 2, (result.output, result.exception)
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        return result.stderr


def lines(items: Sequence[object]) -> str:
    return "".join(f"{item}\n" for item in items)
