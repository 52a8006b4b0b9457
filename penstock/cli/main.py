"""`penstock`: the root of the commands, and the one place where an error becomes a line and an exit code.

Commands are imported when they are called: `penstock --help` loads neither the store nor rich.

    exit codes    0 done, 1 damage found or nothing found, 2 refused or wrongly called, 130 interrupted,
                  141 output closed
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from penstock import __version__
from penstock.cli.complaints import complain
from penstock.cli.lazy_group import LazyGroup
from penstock.cli.signals import EXIT_INTERRUPTED
from penstock.errors import PenstockError

# Name: module, attribute, what `penstock --help` says.
COMMANDS = {
    "acl": ("penstock.cli.acl", "acl", "Add users, show what they may do, explain a refusal."),
    "broker": ("penstock.cli.servers", "broker", "Run a broker."),
    "completion": ("penstock.cli.completion", "completion", "Print or install completion for a shell."),
    "consume": ("penstock.cli.consume", "consume", "Print the messages of TOPIC."),
    "coordinator": ("penstock.cli.servers", "coordinator", "Run a coordinator."),
    "demo": (
        "penstock.cli.demo",
        "demo",
        "Send and receive, crash and recover, then a shop's orders through Spark, with figures.",
    ),
    "dlq": ("penstock.cli.dlq", "dlq", "List dead letters, and send them again."),
    "explain": ("penstock.cli.explain", "explain", "Explain queue ownership and subscriptions."),
    "group": ("penstock.cli.group", "group", "List, describe and reset consumer groups."),
    "message": ("penstock.cli.message", "message", "Look up single messages."),
    "nameserver": ("penstock.cli.servers", "nameserver", "Run a name server."),
    "pipeline": (
        "penstock.cli.pipeline",
        "pipeline",
        "Run jobs on Spark: archive, audit, replay, compact, streaming SQL.",
    ),
    "produce": ("penstock.cli.produce", "produce", "Send the lines of standard input to TOPIC."),
    "push": (
        "penstock.cli.push",
        "push",
        "List clients that brokers push to, and resume parked deliveries.",
    ),
    "set": (
        "penstock.cli.broker_sets",
        "broker_set",
        "List and describe broker sets, elect a master, remove brokers.",
    ),
    "sql": ("penstock.cli.sql", "sql", "Query topics with SQL, the archive and the log together."),
    "status": (
        "penstock.cli.status",
        "status",
        "Show the servers of a cluster: up or down, load, lag, disk.",
    ),
    "store": ("penstock.cli.store", "store", "Look into a store directory without changing it."),
    "topic": ("penstock.cli.topic", "topic", "Create, list, describe and delete topics."),
    "up": ("penstock.cli.servers", "up", "Run a name server and a broker in one process."),
}
HELP_FLAGS = frozenset(("-h", "--help"))
EXIT_REFUSED = 2
EXIT_PIPE_CLOSED = 141


class RootGroup(LazyGroup):
    """Imports a command when it is called, and ends every error in one line."""

    lazy = COMMANDS

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The help and the version are printed here; click would end with 1 where their reader is gone."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            _drop_output()
            raise click.exceptions.Exit(EXIT_PIPE_CLOSED) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Output that nobody reads any more ends the command, also if that shows only at the last flush."""
        if not HELP_FLAGS.intersection(ctx.args):
            _keep_logs_quiet()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            _drop_output()
            return EXIT_PIPE_CLOSED

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name or "penstock", complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            code = _refuse_usage(error)
        except click.ClickException as error:
            code = _refuse(error.format_message())
        except PenstockError as error:
            code = _refuse(str(error))
        except OSError as error:
            code = _refuse(f"{error.filename or 'the disk'}: {error.strerror or error}")
        except click.Abort:
            code = EXIT_INTERRUPTED
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _keep_logs_quiet() -> None:
    """Findings are shown by the commands; without a handler Python would print them a second time. Help needs no
    logging, whose import takes longer than printing it."""
    import logging

    logging.getLogger("penstock").addHandler(logging.NullHandler())


def _refuse(message: str) -> int:
    complain(message)
    return EXIT_REFUSED


def _refuse_usage(error: click.UsageError) -> int:
    """A wrong call in one line; a call without any command gets the help, which is what it asks for."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        click.echo(error.format_message(), err=True)
        return EXIT_REFUSED
    usage = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    return _refuse(error.format_message() + usage)


def _drop_output() -> None:
    """The reader of our output is gone; the flush at exit must not complain about it."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from penstock import _hot

        click.echo(f"penstock {__version__} (hot modules: {_hot.form()})")
        ctx.exit()


@click.group("penstock", cls=RootGroup, context_settings={"help_option_names": sorted(HELP_FLAGS, key=len)})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the form of the hot modules, then exit.",
)
def root() -> None:
    """A message queue that speaks and stores Apache RocketMQ's formats."""


def _open_missing_streams() -> None:
    """A caller may have closed standard streams (`>&-`). Files and sockets must not get their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            while os.open(os.devnull, os.O_RDWR) < number:  # the lowest number that is free
                pass
            setattr(sys, name, os.fdopen(number, mode))


def main() -> None:
    """Entry point. What a terminal cannot show is escaped instead of ending the program."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    root.main()


if __name__ == "__main__":
    main()
