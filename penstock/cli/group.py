"""`penstock group list | describe | reset`; moving offsets to and from ZooKeeper is in `group_offsets`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import (
    SEE_TOPICS,
    Cluster,
    administering,
    client_options,
    confirm,
    echo_json,
    require_group,
)
from penstock.cli.complaints import note
from penstock.cli.group_offsets import export_offsets, import_offsets
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import PlaceType

if TYPE_CHECKING:
    from penstock.client.admin_results import GroupDescription

# RocketMQ's names.
WORDS = {
    "CLUSTERING": "clustering: each message to one member",
    "BROADCASTING": "broadcasting: each message to every member",
    "CONSUME_PASSIVELY": "with a listener",
    "CONSUME_ACTIVELY": "pulling",
    "CONSUME_POP": "popping",
    "CONSUME_FROM_FIRST_OFFSET": "new queues from the first message",
    "CONSUME_FROM_LAST_OFFSET": "new queues from the last message",
    "CONSUME_FROM_TIMESTAMP": "new queues from a time",
}


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe and reset consumer groups."""


group.add_command(export_offsets)
group.add_command(import_offsets)


@group.command("list")
@click.option("--internal", is_flag=True, help="Also the groups that the system made for itself.")
@click.option("--details", is_flag=True, help="Members and lag of each; asks every broker for every group.")
@client_options
def list_groups(internal: bool, details: bool, cluster: Cluster, as_json: bool) -> None:
    """List the consumer groups."""
    with administering(cluster) as admin:
        names = admin.list_groups(internal=internal)
        found = [admin.describe_group(name) for name in names] if details else []
    if as_json:
        echo_json([group_json(item) for item in found] if details else names)
    elif not names:
        note("no groups; a group is made by its first consumer")
    elif details:
        _show_list(found)
    else:
        from penstock.cli.escaping import printable

        for name in names:
            click.echo(printable(name))


def _show_list(found: list[GroupDescription]) -> None:
    from penstock.cli.console import name_text, output, plain_table

    numbers = ("Members", "Lag", "Out/s")
    table = plain_table("Group", *numbers, "Model", right=numbers)
    for item in found:
        figures = (f"{len(item.members)}", f"{item.lag:,}", f"{item.consume_tps:,.1f}")
        table.add_row(name_text(item.name), *figures, item.message_model.lower())
    output().print(table)


@group.command()
@click.argument("name")
@client_options
def describe(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show the members of the group NAME and how far they are in each queue."""
    with administering(cluster) as admin:
        require_group(admin, name)
        found = admin.describe_group(name)
    if as_json:
        echo_json(group_json(found))
        return
    from rich.text import Text

    from penstock.cli.console import count_text, name_text, output, plain_table, time_text
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(found.name), style="bold"))
    words = (found.message_model, found.consume_type, found.consume_from)
    state = ", ".join(WORDS.get(word, word.lower()) for word in words if word)
    console.print(Text(printable(state) if found.is_online else "no member is online"))
    lag, retries = count_text(found.lag, "message"), f"at most {count_text(found.retry_max_times, 'retry')}"
    console.print(Text(f"lag {lag}, {found.consume_tps:,.1f} out/s, {retries} of a message"))
    for topic, expression in sorted(found.subscriptions.items()):
        console.print(Text(printable(f"subscribes to {topic}: {expression}", 400)))
    if found.members:
        members = plain_table("Member", "Address", "Language")
        for member in found.members:
            members.add_row(
                name_text(member.client_id), printable(member.address), printable(member.language.lower())
            )
        console.print()
        console.print(members)
    if found.progress:
        numbers = ("Queue", "Committed", "End", "Lag")
        table = plain_table("Topic", "Broker", *numbers, "Last consumed", right=numbers)
        for item in found.progress:
            place = (name_text(item.queue.topic), name_text(item.queue.broker_name), str(item.queue.queue_id))
            offsets = (f"{item.committed:,}", f"{item.end:,}", f"{item.lag:,}")
            table.add_row(*place, *offsets, time_text(item.last_consumed_ms))
        console.print()
        console.print(table)


@group.command()
@click.argument("name")
@click.option("--topic", metavar="T", required=True, help="In this topic.")
@click.option("--to", "place", type=PlaceType(), required=True, help="Where the group goes on.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def reset(name: str, topic: str, place: str | int, yes: bool, cluster: Cluster, as_json: bool) -> None:
    """Move the group NAME in a topic to its first or last message or to a time.

    Works while consumers are online: they go on from there. Moving back delivers messages again, moving
    forward leaves some out.
    """
    with administering(cluster, SEE_TOPICS) as admin:
        admin.queues(topic)
        confirm(f"Move the group {name} in {topic} to {_place(place)}?", yes)
        moved = admin.reset_offsets(name, topic, place)
    if as_json:
        echo_json(
            [
                {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
                for queue, offset in sorted(moved.items())
            ]
        )
        return
    from penstock.cli.console import name_text, output, plain_table

    table = plain_table("Topic", "Broker", "Queue", "Goes on at", right=("Queue", "Goes on at"))
    for queue, offset in sorted(moved.items()):
        row = (name_text(queue.topic), name_text(queue.broker_name), str(queue.queue_id), f"{offset:,}")
        table.add_row(*row)
    output().print(table)


def _place(place: str | int) -> str:
    from penstock.cli.console import time_text

    return time_text(place) if isinstance(place, int) else f"the {place} message"


def group_json(found: GroupDescription) -> dict[str, object]:
    return {
        "group": found.name,
        "online": found.is_online,
        "lag": found.lag,
        "lag_messages": found.lag,
        "consume_tps": found.consume_tps,
        "message_model": found.message_model,
        "consume_type": found.consume_type,
        "consume_from": found.consume_from,
        "retry_max_times": found.retry_max_times,
        "subscriptions": found.subscriptions,
        "members": [
            {
                "client_id": member.client_id,
                "address": member.address,
                "language": member.language,
                "version": member.version,
            }
            for member in found.members
        ],
        "queues": [
            {
                "topic": item.queue.topic,
                "broker": item.queue.broker_name,
                "queue": item.queue.queue_id,
                "committed": item.committed,
                "end": item.end,
                "lag": item.lag,
                "last_consumed_timestamp": item.last_consumed_ms,
            }
            for item in found.progress
        ],
    }
