"""The help of every command, in 80 columns, as people last read and approved it.

make screens     write what the commands say now into tests/unit/cli/help.txt; then read the difference
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.cli.main import root

STORED = Path(__file__).with_name("help.txt")
WIDTH = 80


def commands(
    command: click.Command = root, parent: click.Context | None = None, name: str = "penstock"
) -> Iterator[tuple[str, click.Context]]:
    """Every command with its whole name, groups before what they hold."""
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path, context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None, child
            yield from commands(found, context, child)


HELP = {path: context.command.get_help(context) for path, context in commands()}


def screens() -> str:
    return "\n".join(f"$ {path} --help\n{text}\n" for path, text in HELP.items())


def stored() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in f"\n{STORED.read_text(encoding='utf-8')}".split("\n$ ")[1:]:
        command, _, text = part.partition(" --help\n")
        found[command] = text.rstrip("\n")
    return found


@pytest.mark.parametrize("path", HELP)
def test_help_is_as_it_was_approved(path: str) -> None:
    assert HELP[path] == stored().get(path), "read the difference; if it is meant, run: make screens"


def test_every_stored_help_is_of_a_command() -> None:
    assert [*stored()] == [*HELP]


@pytest.mark.parametrize("path", HELP)
def test_help_fits_a_terminal_of_80_columns(path: str) -> None:
    assert [line for line in HELP[path].splitlines() if len(line) > WIDTH] == []


if __name__ == "__main__":
    STORED.write_text(screens(), encoding="utf-8")
    sys.stdout.write(f"{STORED}: {len(HELP)} commands\n")
