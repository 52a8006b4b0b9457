"""Progress of streaming queries on the terminal, in a log, or as JSON.

Rule: people read standard error, programs standard output. On a terminal each query has one line that changes;
elsewhere each batch is a line; with JSON each batch is an object in a line of standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from penstock.cli.clients import echo_json
from penstock.cli.escaping import one_line

if TYPE_CHECKING:
    from penstock.spark.progress import Batch, Report


@contextmanager
def reporting(*, as_json: bool = False) -> Iterator[Report]:
    """What to call with each batch."""
    if as_json:
        yield _print_json
    elif sys.stderr.isatty():
        with _live() as report:
            yield report
    else:
        yield _print_line


def _print_json(batch: Batch) -> None:
    echo_json(batch.json(), lines=True)


def _print_line(batch: Batch) -> None:
    click.echo(one_line(batch_text(batch)), err=True)


def batch_text(batch: Batch) -> str:
    """A batch in a line, after the name of its query if it has one."""
    line = batch.line(queues=True)
    return f"{batch.query}  {line}" if batch.query else line


@contextmanager
def _live() -> Iterator[Report]:
    """The last batch of each query, rewritten in place; the last ones stay on the screen."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    lines: dict[str, Text] = {}
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with Live(console=console, refresh_per_second=8) as live:

        def report(batch: Batch) -> None:
            lines[batch.query] = Text(one_line(batch_text(batch)), no_wrap=True, overflow="ellipsis")
            live.update(Group(*lines.values()))

        yield report
