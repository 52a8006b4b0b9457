"""`penstock explain group | topic`: who owns which queue of a group that a coordinator balances, and why; which
groups read a topic, in which mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import Cluster, ask_coordinators, coordinator_options, echo_json
from penstock.cli.lazy_group import CommandGroup

if TYPE_CHECKING:
    from penstock.protocol.bodies.explanation import ExplanationBody
    from penstock.protocol.bodies.subscriptions import SubscriptionsBody


@click.group(cls=CommandGroup)
def explain() -> None:
    """Explain queue ownership and subscriptions."""


@explain.command()
@click.argument("name")
@coordinator_options
def group(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show who owns which queue of the group NAME, who is to own it, and why.

    Knows the groups whose consumers chose balance="coordinator".
    """
    found = ask_coordinators(cluster, lambda coordinators: coordinators.explain(name))
    if as_json:
        echo_json(found.to_json())
    else:
        _show(found)


@explain.command()
@click.argument("name")
@coordinator_options
def topic(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show the subscriptions of the topic NAME: one for each mode in which it is read, with its groups.

    Knows the groups whose consumers chose balance="coordinator".
    """
    found = ask_coordinators(cluster, lambda coordinators: coordinators.subscriptions(name))
    if as_json:
        echo_json(found.to_json())
    else:
        _show_topic(found)


def _show_topic(found: SubscriptionsBody) -> None:
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(found.topic), style="bold"))
    if not found.subscriptions:
        console.print(Text("no group that this coordinator balances reads it"))
    table = plain_table(
        "Subscription", "Group", "Binding", "Consumers", "Queues", right=("Consumers", "Queues")
    )
    for one in found.subscriptions:
        for group in one.groups:
            figures = (group.binding.value, str(group.consumers), str(group.queues))
            table.add_row(name_text(one.name), name_text(group.group), *figures)
    if found.subscriptions:
        console.print()
        console.print(table)
    console.print()
    text = f"a point_to_point consumer that names no group is in {found.join}"
    console.print(Text(printable(text, 400)))


def _show(found: ExplanationBody) -> None:
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(found.group), style="bold"))
    console.print(
        Text(printable(f"{found.mode}, binding {found.binding}: {', '.join(found.subscriptions)}", 1_000))
    )
    console.print(Text(printable(f"term {found.term}, round {found.round}: {found.state}", 1_000)))
    members = plain_table("Member", "Queues", "Last beat", "State", right=("Queues", "Last beat"))
    for member in found.members:
        beat = f"{member.beat_ago_ms / 1000:.1f} s ago"
        members.add_row(
            name_text(member.client_id), str(member.queues), beat, Text(printable(member.state, 400))
        )
    console.print()
    console.print(members)
    queues = plain_table("Topic", "Broker", "Queue", "Owner", "Why", right=("Queue",))
    for item in found.queues:
        place = (name_text(item.queue.topic), name_text(item.queue.broker_name), str(item.queue.queue_id))
        queues.add_row(*place, name_text(item.owner or "nobody"), Text(printable(item.why, 1_000)))
    console.print()
    console.print(queues)
