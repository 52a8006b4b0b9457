"""The root of the command line: quick help, version, and the promise that every command can be imported."""

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock import __version__, _hot
from penstock.cli.main import COMMANDS, root

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def imported_by(*arguments: str) -> set[str]:
    """Modules in a process after a command has run there."""
    code = (
        "import json, sys\n"
        "from penstock.cli.main import root\n"
        "try:\n    root.main(sys.argv[1:])\nexcept SystemExit as done:\n    assert done.code == 0, done.code\n"
        "print('\\n' + json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        check=True,
        text=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed(closed: str) -> None:
    """As those of services and cron jobs may be: what is opened next must not get its number."""
    command = f"exec '{sys.executable}' -m penstock produce orders --nameserver 127.0.0.1:1 {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert ("no name server answers" in done.stderr) == ("2>&-" not in closed)
    assert "Traceback" not in done.stderr


def paths(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command with its parents, as it is typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*before, name)
        if isinstance(command, click.Group):
            yield from paths(command, (*before, name))


PATHS = [(), *paths(root)]
EACH_COMMAND = pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "penstock")
HEAVY = (
    "asyncio",
    "rich",
    "uvloop",
    *(f"penstock.{room}" for room in ("store", "_hot", "message", "client")),
)
HEAVY_ROOMS = tuple(
    f"penstock.{room}" for room in ("broker", "nameserver", "remoting", "protocol", "runtime")
)
HELP_MODULES_MAX = 180


def test_there_is_every_command() -> None:
    assert {" ".join(path) for path in PATHS} >= {
        *("up", "nameserver", "broker", "produce", "consume", "status", "demo", "message get"),
        *(f"topic {name}" for name in ("create", "list", "describe", "delete")),
        *(f"group {name}" for name in ("list", "describe", "reset")),
        *(f"store {name}" for name in ("verify", "dump", "stats")),
    }


@EACH_COMMAND
def test_help_loads_nothing_heavy(path: tuple[str, ...]) -> None:
    modules = imported_by(*path, "--help")
    assert "penstock.cli.main" in modules
    assert {
        name for name in modules if f"{name}.".startswith(tuple(f"{h}." for h in HEAVY + HEAVY_ROOMS))
    } == set()


@EACH_COMMAND
def test_help_imports_few_modules(path: tuple[str, ...]) -> None:
    """What makes help slow is imports: some 130 modules take a tenth of a second, and asyncio alone adds 100."""
    assert len(imported_by(*path, "--help")) < HELP_MODULES_MAX


@EACH_COMMAND
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    command: click.Command = root
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(path)} {parameter.opts}"
            assert parameter.help.endswith((".", ")")), parameter.help


@pytest.mark.parametrize(
    "path", [path for path in PATHS if len(path) == 2 or path in (("status",), ("consume",))]
)
def test_json_everywhere(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(root, [*path, "--help"])
    assert "--json" in result.output


def test_the_version_tells_the_form_of_the_hot_modules() -> None:
    result = CliRunner().invoke(root, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"penstock {__version__} (hot modules: {_hot.form()})\n"


def test_pure_hot_modules_are_told_as_such() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "--version"],
        cwd=ROOT,
        env={**os.environ, "PENSTOCK_PURE": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == f"penstock {__version__} (hot modules: pure)\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_listed_command_exists_and_is_described(name: str) -> None:
    module, attribute, described = COMMANDS[name]
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.get_short_help_str(200).rstrip(".") == described.rstrip(".")
    assert name in CliRunner().invoke(root, ["--help"]).output


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(root, [])
    assert result.exit_code == 2
    assert "Usage: penstock" in result.output


def test_an_unknown_command_is_refused_in_one_line() -> None:
    result = CliRunner().invoke(root, ["launch\x1b[2J"])
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: No such command")
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1
