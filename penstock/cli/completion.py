"""`penstock completion`: the script by which a shell completes commands and options with Tab."""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock.errors import PenstockError

# The variable by which a script asks for completions; click reads it at the start of every call.
VARIABLE = "_PENSTOCK_COMPLETE"
SHELLS = ("bash", "fish", "zsh")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write the script to where new shells of yours find it.")
def completion(shell: str | None, install: bool) -> None:
    """Print or install completion for a shell.

    SHELL is bash, fish or zsh; without it, the shell that the variable SHELL names.
    """
    shell = shell or _own_shell()
    script = _script(shell)
    if not install:
        click.echo(script)
        return
    place = _place(shell)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(script + "\n", encoding="utf-8")
    click.echo(f"{place} is written; it works in new shells")
    if shell == "zsh":
        click.echo(
            f"for zsh, ~/.zshrc has to say:\n  fpath=({place.parent} $fpath); autoload -Uz compinit; compinit"
        )


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL") or "").name
    if name not in SHELLS:
        raise PenstockError(
            f"no completion for the shell {name or '(SHELL is not set)'}", f"name one of {', '.join(SHELLS)}"
        )
    return name


def _script(shell: str) -> str:
    from click.shell_completion import get_completion_class

    from penstock.cli.main import root

    found = get_completion_class(shell)
    if found is None:
        raise PenstockError(f"no completion for the shell {shell}", f"name one of {', '.join(SHELLS)}")
    complete = found(root, {}, "penstock", VARIABLE)
    return complete.source_template % complete.source_vars()


def _place(shell: str) -> Path:
    """Where each shell looks for completions of its user by itself; zsh has no such place."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / "penstock",
        "fish": config / "fish" / "completions" / "penstock.fish",
        "zsh": data / "zsh" / "site-functions" / "_penstock",
    }[shell]
