"""Options of `penstock pipeline audit` and `replay`: times, durations, limits, and help without Spark."""

import subprocess
import sys

import click
import click.testing
import pytest

from penstock.cli.pipeline_audit import audit
from penstock.cli.pipeline_replay import replay
from penstock.cli.pipeline_steps import DurationType, ShareType, TimeType


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("5m", 300), ("1 h", 3_600), ("2d", 172_800)]
)
def test_durations(text: str, seconds: int) -> None:
    assert DurationType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "5x", "-1", "1.5h", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="no duration"):
        DurationType().convert(text, None, None)


def test_times_and_shares() -> None:
    assert TimeType().convert("2026-05-01T12:00:00Z", None, None) == 1_777_636_800_000
    assert ShareType(0, 1).convert("0.25", None, None) == 0.25
    for kind, text in (
        (TimeType(), "soon"),
        (ShareType(0, 1), "2"),
        (ShareType(0, 1), "x"),
        (ShareType(0, 1), "nan"),
    ):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


@pytest.mark.parametrize("command", [audit, replay], ids=lambda command: command.name)
def test_help_names_every_option(command: click.Command) -> None:
    shown = click.testing.CliRunner().invoke(command, ["--help"])
    assert shown.exit_code == 0
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


@pytest.mark.parametrize("name", ["audit", "replay"])
def test_help_loads_no_spark(name: str) -> None:
    code = (
        "import sys; from penstock.cli.main import root\n"
        f"code = root.main(['pipeline', '{name}', '--help'], standalone_mode=False)\n"
        "assert not {'pyspark', 'pyarrow'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
