"""How the demonstration speaks: parts, numbered steps, lines, commands that one could type, tables, one live line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.padding import Padding
from rich.text import Text

from penstock.cli.console import output, plain_table
from penstock.cli.escaping import one_line, printable

INDENT = 3
LINE_EVERY_S = 5.0
Say = Callable[[str], None]


class Telling:
    """Standard output in the order of the story; the live line is shown on terminals, and seldom elsewhere."""

    def __init__(self) -> None:
        self.console = output()
        self.started = time.perf_counter()
        self._step = 0

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def part(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, style="bold magenta"))

    def title(self, text: str) -> None:
        self._step += 1
        self.console.print()
        self.console.print(Text(f"{self._step}. {text}", style="bold cyan"))

    def say(self, text: str) -> None:
        self._indented(Text(one_line(text)))

    def command(self, text: str) -> None:
        """What one would type for what happens next."""
        self._indented(Text(f"$ {one_line(text)}", style="dim"))

    def warn(self, text: str) -> None:
        self._indented(Text(one_line(text), style="bold red"))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()
    ) -> None:
        table = plain_table(*columns, right=right)
        for row in rows:
            table.add_row(*(Text(_shown(value)) for value in row))
        self._indented(table)

    def _indented(self, what: object) -> None:
        self.console.print(Padding(what, (0, 0, 0, INDENT), expand=False))  # type: ignore[arg-type]

    @contextmanager
    def live(self) -> Iterator[Say]:
        """A line that is rewritten on a terminal; elsewhere a line every few seconds."""
        if self.console.is_terminal:
            with self.console.status("") as status:
                yield lambda text: status.update(Text(one_line(text)))
            return
        last = -LINE_EVERY_S

        def now_and_then(text: str) -> None:
            nonlocal last
            if self.seconds() - last >= LINE_EVERY_S:
                last = self.seconds()
                self.say(text)

        yield now_and_then


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))
