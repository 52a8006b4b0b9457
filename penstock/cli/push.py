"""`penstock push list | resume`: clients that brokers push to, and what is parked for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import EXIT_NOT_FOUND, Cluster, administering, client_options, echo_json

if TYPE_CHECKING:
    from penstock.protocol.bodies.push import PushListBody, PushResumed


@click.group()
def push() -> None:
    """List clients that brokers push to, and have parked deliveries go on."""


@push.command("list")
@click.option("--group", default="", help="Only the subscriptions of this group.")
@client_options
def list_clients(group: str, cluster: Cluster, as_json: bool) -> None:
    """List the clients: their state, their subscriptions, what is unanswered, what is parked, and since when."""
    with administering(cluster) as admin:
        found = admin.push_clients(group)
    if as_json:
        echo_json({name: body.to_json() for name, body in found.items()})
    elif any(body.clients for body in found.values()):
        _show(found)
    else:
        click.echo('nobody is pushed to; a consumer asks for it with delivery="push"', err=True)


def _show(found: dict[str, PushListBody]) -> None:
    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    numbers = ("Queue", "Sent", "Done", "Window", "Unanswered", "Since")
    table = plain_table(
        *("Client", "Broker", "State", "Group", "Topic", "Queue", "Delivery"), *numbers[1:], right=numbers
    )
    left_off = 0
    for broker, body in found.items():
        left_off += body.left_off
        for client in body.clients:
            who = (name_text(client.name), name_text(broker))
            how = printable(f"{client.state} {_seconds(client.since_ms)}")
            if not client.subscriptions:
                table.add_row(*who, how, *[""] * 9)
            for task in client.subscriptions:
                figures = (
                    *(f"{task.sent_offset:,}", f"{task.done_offset:,}", f"{task.window_messages:,}"),
                    *(f"{task.unanswered:,}", _seconds(task.since_ms)),
                )
                place = (name_text(task.group), name_text(task.topic), str(task.queue_id))
                table.add_row(*who, how, *place, printable(task.state), *figures)
    output().print(table)
    late = sum(body.timeout_queue for body in found.values())
    parked = sum(body.dead_letter_queue for body in found.values())
    click.echo(f"{late} in the timeout queue, {parked} parked")
    if left_off:
        click.echo(f"{left_off} subscriptions are not shown; name a --group", err=True)


@push.command()
@click.option("--client", default="", help="The client whose deliveries are to go on.")
@click.option("--group", default="", help="The group whose deliveries are to go on.")
@client_options
def resume(client: str, group: str, cluster: Cluster, as_json: bool) -> int:
    """Have deliveries go on that are parked or held: of a client, of a group, or of a client in a group."""
    if not client and not group:
        raise click.UsageError("name a --client or a --group", click.get_current_context())
    with administering(cluster) as admin:
        found = admin.resume_push(group, client)
    tasks = [(broker, task) for broker, several in found.items() for task in several]
    if as_json:
        echo_json([{"broker": broker, **task.to_json()} for broker, task in tasks])
    elif tasks:
        _show_resumed(tasks)
    else:
        click.echo("penstock: nothing is pushed to them; `penstock push list` shows who there is", err=True)
    return 0 if tasks else EXIT_NOT_FOUND


def _show_resumed(tasks: list[tuple[str, PushResumed]]) -> None:
    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    table = plain_table("Client", "Broker", "Group", "Topic", "Queue", "Was", "Now", right=("Queue",))
    for broker, task in tasks:
        row: list[Any] = [name_text(task.client), name_text(broker), name_text(task.group)]
        now = f"goes on at {task.offset:,}" if task.goes_on else task.reason
        table.add_row(*row, name_text(task.topic), str(task.queue_id), task.was, printable(now))
    output().print(table)


def _seconds(age_ms: int) -> str:
    return f"{age_ms / 1000:,.1f} s"
