"""`penstock push list | resume`: clients that brokers push to, and what is parked for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import EXIT_NOT_FOUND, Cluster, administering, client_options, echo_json
from penstock.cli.complaints import complain, note
from penstock.cli.lazy_group import CommandGroup

if TYPE_CHECKING:
    from penstock.protocol.bodies.push import PushListBody, PushResumed, PushSubscriptionInfo


@click.group(cls=CommandGroup)
def push() -> None:
    """List clients that brokers push to, and resume parked deliveries."""


@push.command("list")
@click.option("--group", default="", help="Only the subscriptions of this group.")
@client_options
def list_clients(group: str, cluster: Cluster, as_json: bool) -> None:
    """List the clients: states, subscriptions, unanswered and parked messages."""
    with administering(cluster) as admin:
        found = admin.push_clients(group)
    if as_json:
        echo_json({name: body.to_json() for name, body in found.items()})
    elif any(body.clients for body in found.values()):
        _show(found)
    else:
        note('no client is pushed to; a consumer asks for it with delivery="push"')


def _show(found: dict[str, PushListBody]) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, name_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    numbers = ("Queue", "Sent", "Done", "Window", "Unanswered", "Since")
    left_off = 0
    for broker, body in found.items():
        left_off += body.left_off
        for client in body.clients:
            head = f"{client.name} at {broker}: {client.state} for {_seconds(client.since_ms)}"
            console.print(Text(printable(head), style="bold"))
            table = plain_table("Group", "Topic", "Queue", "Delivery", *numbers[1:], right=numbers)
            for task in sorted(client.subscriptions, key=_task_place):
                table.add_row(
                    *(
                        name_text(task.group),
                        name_text(task.topic),
                        str(task.queue_id),
                        printable(task.state),
                    ),
                    *(f"{task.sent_offset:,}", f"{task.done_offset:,}", f"{task.window_messages:,}"),
                    *(f"{task.unanswered:,}", _seconds(task.since_ms)),
                )
            if client.subscriptions:
                console.print(table)
            console.print()
    late = sum(body.timeout_queue for body in found.values())
    parked = sum(body.dead_letter_queue for body in found.values())
    click.echo(f"{late} in the timeout queue, {parked} parked")
    if left_off:
        note(f"{count_text(left_off, 'subscription')} not shown; name a --group")


@push.command()
@click.option("--client", default="", help="Resume deliveries to this client.")
@click.option("--group", default="", help="Resume deliveries to this group.")
@client_options
def resume(client: str, group: str, cluster: Cluster, as_json: bool) -> int:
    """Resume parked or held deliveries: of a client, of a group, or of a client in a group."""
    if not client and not group:
        raise click.UsageError("name a --client or a --group", click.get_current_context())
    with administering(cluster) as admin:
        found = admin.resume_push(group, client)
    tasks = [
        (broker, task)
        for broker, several in found.items()
        for task in sorted(several, key=lambda task: (task.client, _task_place(task)))
    ]
    if as_json:
        echo_json([{"broker": broker, **task.to_json()} for broker, task in tasks])
    elif tasks:
        _show_resumed(tasks)
    else:
        complain("nothing is pushed to them; `penstock push list` shows the clients")
    return 0 if tasks else EXIT_NOT_FOUND


def _task_place(task: PushSubscriptionInfo | PushResumed) -> tuple[str, str, int]:
    return task.group, task.topic, task.queue_id


def _show_resumed(tasks: list[tuple[str, PushResumed]]) -> None:
    from itertools import groupby

    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    for (broker, client), several in groupby(tasks, key=lambda item: (item[0], item[1].client)):
        console.print(Text(printable(f"{client} at {broker}"), style="bold"))
        table = plain_table("Group", "Topic", "Queue", "Was", "Now", right=("Queue",))
        for _, task in several:
            now = f"sending from {task.offset:,}" if task.goes_on else task.reason
            place = (name_text(task.group), name_text(task.topic), str(task.queue_id))
            table.add_row(*place, task.was, Text(printable(now)))
        console.print(table)


def _seconds(age_ms: int) -> str:
    return f"{age_ms / 1000:,.1f} s"
