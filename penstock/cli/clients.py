"""What the commands share that talk to a cluster: which name server, how long to wait, what to say if it fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.option_types import NumberType
from penstock.errors import CallTimeoutError, ConnectError, PenstockError, ResponseError

if TYPE_CHECKING:
    from penstock.client.admin import Admin

T = TypeVar("T")
DEFAULT_NAME_SERVER = "127.0.0.1:9876"
EXIT_NOT_FOUND = 1


def client_options(command: Callable[..., T]) -> Callable[..., T]:
    """`--nameserver`, `--timeout` and `--json`."""
    decorators = (
        click.option(
            "--nameserver",
            metavar="HOST:PORT",
            envvar="PENSTOCK_NAMESERVER",
            default=DEFAULT_NAME_SERVER,
            help=f"Name server; several are separated by ; (PENSTOCK_NAMESERVER, {DEFAULT_NAME_SERVER}).",
        ),
        click.option(
            "--timeout",
            "timeout_ms",
            metavar="MS",
            type=NumberType(1, 600_000),
            default=3_000,
            help="How long one answer may take, in milliseconds (3000).",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
    )
    return functools.reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), command)


@contextmanager
def reaching(nameserver: str) -> Iterator[None]:
    """A cluster that does not answer, or refuses, is told with what to do about it."""
    try:
        yield
    except ConnectError as error:
        raise PenstockError(
            error.message,
            f"is it running? `penstock up` starts one here; --nameserver or PENSTOCK_NAMESERVER (now {nameserver}) "
            "names another",
        ) from error
    except CallTimeoutError as error:
        raise PenstockError(
            error.message, "try again, or give it longer with --timeout; `penstock status` says who answers"
        ) from error
    except ResponseError as error:
        raise PenstockError(f"refused: {error.remark or f'code {error.code}'}", error.hint) from error


@contextmanager
def administering(nameserver: str, timeout_ms: int) -> Iterator[Admin]:
    """An admin client of the cluster."""
    from penstock.client.admin import Admin

    with reaching(nameserver), Admin(nameserver, call_timeout_ms=timeout_ms) as admin:
        yield admin


def echo_json(value: Any, *, lines: bool = False) -> None:
    """One document, or one of several lines; ASCII only, so that no terminal acts on what a message contains."""
    import json

    click.echo(json.dumps(value, indent=None if lines else 2, default=str))


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost; a script, which cannot be asked, has to say --yes."""
    import sys

    from penstock.cli.escaping import one_line

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{one_line(question)} Add --yes to say so", click.get_current_context())
    click.confirm(one_line(question), abort=True, err=True)
