"""Completion of commands, in a real shell where there is one, and suggestions for misspelt ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import root

BIN = Path(sys.executable).parent


def penstock(*words: str, home: Path, login: str = "/bin/bash") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "SHELL": login, "PATH": f"{BIN}:{os.environ['PATH']}"}
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    return subprocess.run(
        [BIN / "penstock", *words], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("penstock sta", ["status"]),
        ("penstock topic d", ["delete", "describe"]),
        ("penstock produce --dur", ["--durability"]),
    ],
)
def test_a_real_bash_completes_with_what_was_installed(
    tmp_path: Path, line: str, expected: list[str]
) -> None:
    done = penstock("completion", "--install", home=tmp_path)
    place = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "penstock"
    assert (done.returncode, done.stderr) == (0, "")
    assert str(place) in done.stdout
    script = f"""
        source {place}
        COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _penstock_completion penstock
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    found = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.split() == expected


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_each_shell_has_a_script_that_asks_penstock(tmp_path: Path, shell: str) -> None:
    printed = penstock("completion", shell, home=tmp_path)
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in printed.stdout
    installed = penstock("completion", shell, "--install", home=tmp_path)
    assert installed.returncode == 0
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.read_text() == printed.stdout
    assert ("fpath" in installed.stdout) == (shell == "zsh")


def test_an_unknown_shell_is_refused(tmp_path: Path) -> None:
    done = penstock("completion", home=tmp_path, login="/bin/tcsh")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no completion for the shell tcsh; name one of bash, fish, zsh" in done.stderr


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["statsu"], "No such command 'statsu'. Did you mean status?"),
        (["pipeline", "archve"], "No such command 'archve'. Did you mean archive?"),
        (["topic", "creat"], "No such command 'creat'. Did you mean 'create'?"),
        (["zzzzzz"], "No such command 'zzzzzz'."),
    ],
)
def test_a_misspelt_command_suggests_the_nearest(words: list[str], near: str) -> None:
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 2
    assert near in done.output
