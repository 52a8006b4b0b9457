"""`penstock dlq list | show | redrive | export`: the messages that consumers gave up.

    exit codes    0 done, 1 nothing found or not everything done, 2 refused or wrongly called

Redriving names what is meant: everything (`--all`), or some (by id, key, reason, time, topic), or a sample of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.clients import (
    EXIT_NOT_FOUND,
    Cluster,
    administering,
    check_brokers,
    client_options,
    echo_json,
    require_group,
)
from penstock.cli.complaints import complain
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import IntParam, NumberType, parse_time_ms
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.dead_letters import DeadLetter
    from penstock.client.redriving import RedriveResult

T = TypeVar("T")
SAMPLE_MAX = 100_000


class MomentType(IntParam):
    """A time: ISO 8601, `10m` ago, or milliseconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = value if isinstance(value, int) else parse_time_ms(str(value))
        if found is None:
            self.fail(
                f"{str(value)[:40]!r} is not a time: write 2025-01-31T12:00:00Z, or 10m for ago", param, ctx
            )
        return found


def selecting(command: Callable[..., T]) -> Callable[..., T]:
    """The options that say which dead letters are meant; they become the command's `chosen`."""

    @functools.wraps(command)
    def with_chosen(
        *arguments: Any,
        ids: tuple[str, ...],
        key: str,
        reason: str,
        topic: str,
        since: int | None,
        until: int | None,
        sample: int | None,
        **others: Any,
    ) -> T:
        given: dict[str, Any] = {
            "ids": ids,
            "key": key,
            "reason": reason,
            "topic": topic,
            "since_ms": since,
            "until_ms": until,
            "sample": sample,
        }
        return command(*arguments, chosen={name: value for name, value in given.items() if value}, **others)

    decorators = (
        click.option(
            "--id", "ids", metavar="ID", multiple=True, help="Only this one, by any id; repeatable."
        ),
        click.option("--key", metavar="K", default="", help="Only those with this key."),
        click.option("--reason", metavar="TEXT", default="", help="Only those whose reason holds this text."),
        click.option("--topic", metavar="T", default="", help="Only those that were sent to this topic."),
        click.option("--since", type=MomentType(), help="Only those that died then or later; 10m is ago."),
        click.option("--until", type=MomentType(), help="Only those that died before."),
        click.option(
            "--sample",
            type=NumberType(1, SAMPLE_MAX),
            help="Of all these, so many; the same command picks the same ones.",
        ),
    )
    return functools.reduce(lambda made, decorator: decorator(made), reversed(decorators), with_chosen)


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List dead letters, and send them again."""


@dlq.command(name="list")
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@client_options
def list_groups(groups: tuple[str, ...], cluster: Cluster, as_json: bool) -> int:
    """Show which groups have dead letters and why, or those of each GROUP.

    Reasons are grouped: what differs from message to message, such as numbers, is shown as #.
    """
    from penstock.cli.console import counting

    with administering(cluster) as admin, counting("reading") as progress:
        found = admin.dead_letters.groups(*groups, progress=progress)
        if not found:
            check_brokers(admin)
        for group in sorted(set(groups) - {summary.group for summary in found}):
            _is_known(admin, group)
    if as_json:
        from penstock.cli.dlq_tables import summary_json

        echo_json([summary_json(summary) for summary in found])
    else:
        from penstock.cli.console import output
        from penstock.cli.dlq_tables import show_summaries

        show_summaries(output(), found)
    return EXIT_NOT_FOUND if not found or any(summary.error for summary in found) else 0


@dlq.command()
@click.argument("group")
@selecting
@click.option("--max", "limit", type=NumberType(1, 1_000_000), default=100, help="At most so many (100).")
@client_options
def show(group: str, chosen: dict[str, Any], limit: int, cluster: Cluster, as_json: bool) -> int:
    """Show the dead letters of GROUP, the oldest first."""
    shown = 0
    with administering(cluster) as admin:
        letters = _first(_known(admin, group, admin.dead_letters.read(group, **chosen)), limit)
        if as_json:
            from penstock.cli.dlq_tables import letter_json

            for letter in letters:
                shown += 1
                echo_json(letter_json(letter), lines=True)
        else:
            from penstock.cli.console import output
            from penstock.cli.dlq_tables import show_letters

            shown = show_letters(output(), letters)
    return 0 if shown else EXIT_NOT_FOUND


def _is_known(admin: Admin, group: str) -> bool:
    """Nothing was found: say so if there is no such group."""
    try:
        require_group(admin, group)
    except PenstockError as error:
        complain(str(error))
        return False
    return True


def _known(admin: Admin, group: str, items: Iterator[T], *, needed: bool = False) -> Iterator[T]:
    """The items; where there are none, the group should be there, or, if `needed`, the command ends."""
    first = next(items, None)
    if first is None:
        if not _is_known(admin, group) and needed:
            click.get_current_context().exit(EXIT_NOT_FOUND)
        return iter(())
    return chain((first,), items)


def _first(letters: Iterator[DeadLetter], limit: int) -> Iterator[DeadLetter]:
    for number, letter in enumerate(letters):
        if number >= limit:
            return
        yield letter


@dlq.command()
@click.argument("group")
@selecting
@click.option("--all", "everything", is_flag=True, help="All of them; needed if nothing else says which.")
@click.option("--to", metavar="TOPIC", default="", help="Send them there, not to the topics they came from.")
@click.option("--rate", type=click.FloatRange(0.1, 1_000_000), help="At most so many a second.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=NumberType(0, 3_600),
    default=0,
    help="How long to wait if somebody else redrives this group (0).",
)
@client_options
def redrive(
    group: str,
    chosen: dict[str, Any],
    everything: bool,
    to: str,
    rate: float | None,
    dry_run: bool,
    wait: int,
    cluster: Cluster,
    as_json: bool,
) -> int:
    """Send dead letters of GROUP again, to the topics they came from.

    Every message is told with its result: sent, skipped because it was sent again before, or failed and why. A
    command that was interrupted may be given again: nothing is sent twice. Dead letters stay where they are.
    """
    if not chosen and not everything:
        raise click.UsageError(
            "say which: --all, or --id, --key, --reason, --topic, --since, --until, --sample",
            click.get_current_context(),
        )
    from penstock.cli.console import counting
    from penstock.cli.dlq_tables import Tally, result_json, result_line

    tally = Tally()
    with administering(cluster) as admin, counting("redriving", printing=True) as progress:
        results: Iterator[RedriveResult] = admin.dead_letters.redrive(
            group, to=to, rate=rate or 0, dry_run=dry_run, wait_s=wait, **chosen
        )
        try:
            for result in _known(admin, group, results):
                tally.add(result)
                if as_json:
                    echo_json(result_json(result), lines=True)
                else:
                    click.echo(result_line(result))
                progress(tally.count)
        except BaseException:
            if not as_json and tally.count:
                click.echo(f"so far: {tally.line()}")
            raise
    if not as_json:
        click.echo(tally.line())
    return 0 if tally.count and not tally.failed else EXIT_NOT_FOUND


@dlq.command()
@click.argument("group")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@selecting
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "parquet"]),
    help="JSON lines or Parquet; by the end of FILE's name otherwise.",
)
@client_options
def export(
    group: str, path: str, chosen: dict[str, Any], form: str | None, cluster: Cluster, as_json: bool
) -> int:
    """Write the dead letters of GROUP to FILE, - for standard output.

    Parquet needs the extra `spark`: in a clone, `pip install '.[spark]'`. An existing file is replaced when all of
    the new one is written.
    """
    from penstock.cli.console import counting
    from penstock.cli.dlq_export import exported

    if path != "-" and not Path(path).parent.is_dir():
        raise PenstockError(f"there is no directory {Path(path).parent}", "make it, or name another FILE")
    if form is None:
        form = "parquet" if path.endswith(".parquet") else "jsonl"
    with administering(cluster) as admin, counting("exporting", printing=path == "-") as progress:
        letters = _known(admin, group, admin.dead_letters.read(group, **chosen), needed=True)
        count = exported(letters, path, form, progress)
    if path != "-":
        from penstock.cli.console import count_text
        from penstock.cli.escaping import one_line

        if as_json:
            echo_json({"group": group, "file": path, "format": form, "messages": count})
        else:
            click.echo(one_line(f"{count_text(count, 'dead letter')} of {group} in {path}"))
    return 0 if count else EXIT_NOT_FOUND
