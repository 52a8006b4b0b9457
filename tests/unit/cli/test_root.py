"""The root of the command line: quick help, version, and the promise that every command can be imported."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock import __version__, _hot
from penstock.cli.main import COMMANDS, root

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize(
    "arguments", [("--help",), ("store", "--help"), ("store", "verify", "--help"), ("demo", "-h")]
)
def test_help_loads_neither_the_store_nor_rich(arguments: tuple[str, ...]) -> None:
    modules = imported_by(*arguments)
    assert "penstock.cli.main" in modules
    assert not {name for name in modules if name.split(".")[0] == "rich"}
    assert not {
        name for name in modules if name.startswith(("penstock.store", "penstock._hot", "penstock.message"))
    }


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
