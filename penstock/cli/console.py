"""How the commands speak: tables and text for people, JSON for programs.

Rule: standard output carries the outcome, standard error carries progress (only on a terminal) and complaints.
Text goes into rich as `Text`, never as markup, after `escaping.printable`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from penstock.cli.escaping import printable

WIDE = 110
# Between two columns of a table; and the least that a name or a text is cut to.
GAP = 2
CELL_MIN = 12
_PLAIN = Console(width=1_000)
Update = Callable[[int, int], None]


class OutputConsole(Console):
    """Standard output. A closed pipe is told like any other, so that one place decides what it means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    return OutputConsole(highlight=False, markup=False, emoji=False)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """ASCII only, so that no terminal acts on what a message contains."""
    click.echo(json.dumps(value, indent=indent, default=str))


@contextmanager
def progress_bar(title: str) -> Iterator[Update]:
    """A bar on standard error for work that is told as (bytes done, bytes in all); nothing off a terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with _progress(console, *columns) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _RateColumn(ProgressColumn):
    """Steps per second; empty until two updates have shown one."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextmanager
def counting(title: str, *, printing: bool = False) -> Iterator[Callable[[int], None]]:
    """A count and its rate on standard error, for work whose end is not known; nothing off a terminal.

    `printing`: the work writes lines to standard output. On the same terminal they show the progress, and a count
    would get between them.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,.0f}"),
        _RateColumn(),
    )
    with _progress(console, *columns, hidden=printing and sys.stdout.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done: bar.update(task, completed=done)


def _progress(console: Console, *columns: ProgressColumn, hidden: bool = False) -> Progress:
    # rich would send standard output to standard error meanwhile, in lines of the terminal's width.
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=hidden or not console.is_terminal,
    )


# -- values ------------------------------------------------------------------------------------------------------


def size_text(count: int) -> str:
    """Bytes in binary units."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def count_text(count: int, noun: str) -> str:
    """A number of things: `1 file`, `2,000 entries`."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def span_text(seconds: int) -> str:
    """A span of time in its two largest units: `1 day, 3 hours`, `2 minutes, 1 second`."""
    parts: list[str] = []
    left = seconds
    for noun, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count or (noun == "second" and not parts):
            parts.append(count_text(count, noun))
    return ", ".join(parts[:2])


def rate_text(count: int, duration_ms: int) -> str:
    """Megabytes (10^6) per second."""
    return f"{count / max(duration_ms, 1) / 1000:,.1f} MB/s"


def time_text(timestamp_ms: int) -> str:
    """A store time as ISO 8601 in UTC with milliseconds; a number no calendar has stays a number."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


class FittingTable(Table):
    """A table without frames that fits the terminal.

    Cells say what may be done with them: `str` (ids, times, numbers) is always shown whole, `name_text` may be cut,
    other texts may go on in the next line. Where that is not enough, each row becomes lines of name and value.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if any(column.width is not None for column in self.columns):  # laid out by its maker
            return super().__rich_console__(console, options)
        widths = self._fitted(options.max_width - GAP * (len(self.columns) - 1))
        if widths is None:
            return iter(self._records(options.max_width))
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        return super().__rich_console__(console, options)

    def _fitted(self, width: int) -> list[int] | None:
        """The widths of the columns, or None if they do not fit; the widest give way first."""
        cells = [[column.header, *column.cells] for column in self.columns]
        widths = [max(map(_width, column)) for column in cells]
        least = [
            wanted if all(isinstance(cell, str) for cell in column[1:]) else min(wanted, CELL_MIN)
            for wanted, column in zip(widths, cells, strict=True)
        ]
        while sum(widths) > width:
            room, at = max(
                (wanted - at_least, at)
                for at, (wanted, at_least) in enumerate(zip(widths, least, strict=True))
            )
            if room <= 0:
                return None
            widths[at] -= 1
        return widths

    def _records(self, width: int) -> Iterator[Text]:
        names = [str(column.header) for column in self.columns]
        indent = max(map(cell_len, names)) + GAP
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            if number:
                yield Text()
            for name, value in zip(names, row, strict=True):
                whole = value if isinstance(value, Text) else Text(str(value))
                whole.no_wrap, whole.overflow = False, "fold"
                first, *others = whole.wrap(_PLAIN, max(width - indent, CELL_MIN)) or [Text()]
                yield Text(f"{name:<{indent}}").append_text(first)
                yield from (Text(" " * indent).append_text(line) for line in others)


def _width(cell: object) -> int:
    lines = (cell.plain if isinstance(cell, Text) else str(cell)).split("\n")
    return max(map(cell_len, lines))


def plain_table(*columns: str, right: Sequence[str] = ()) -> FittingTable:
    """A table without frames; `right` names the columns of numbers."""
    table = FittingTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def name_text(name: str) -> Text:
    """The name of a topic, group or client in one line; RocketMQ allows 255 characters."""
    return Text(printable(name), no_wrap=True, overflow="ellipsis")
