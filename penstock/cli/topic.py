"""`penstock topic create | list | describe | delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import (
    SEE_TOPICS,
    Cluster,
    administering,
    check_brokers,
    client_options,
    confirm,
    echo_json,
)
from penstock.cli.complaints import note
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import NumberType
from penstock.errors import PenstockError, RouteNotFoundError

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.admin_results import TopicDescription

PERMISSIONS = {"read-write": 6, "read": 4, "write": 2}
PERMISSION_NAMES = {number: name for name, number in PERMISSIONS.items()}


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--queues", type=NumberType(1, 16_384), default=4, help="Queues on every broker (4).")
@click.option(
    "--permission", type=click.Choice(list(PERMISSIONS)), default="read-write", help="What clients may do."
)
@click.option("--cluster", "at", metavar="NAME", default="", help="Only on the brokers of this cluster.")
@click.option("--update", is_flag=True, help="Change the topic if it exists.")
@click.option(
    "--shrink",
    is_flag=True,
    help="With --update: allow fewer queues, which hides the messages of the others.",
)
@client_options
def create(
    name: str,
    queues: int,
    permission: str,
    at: str,
    update: bool,
    shrink: bool,
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Create the topic NAME on every broker."""
    if shrink and not update:
        raise click.UsageError("--shrink needs --update", click.get_current_context())
    with administering(cluster) as admin:
        if not update and _exists(admin, name):
            raise PenstockError(f"topic {name} exists already", "add --update to change it")
        admin.create_topic(name, queues, permission=PERMISSIONS[permission], cluster=at, shrink=shrink)
        found = admin.describe_topic(name)
    if as_json:
        echo_json(topic_json(found))
    else:
        from penstock.cli.console import count_text
        from penstock.cli.escaping import one_line

        click.echo(
            one_line(f"topic {name}: {count_text(len(found.queues), 'queue')} on {', '.join(found.brokers)}")
        )


def _exists(admin: Admin, name: str) -> bool:
    try:
        return bool(admin.queues(name))
    except RouteNotFoundError:
        return False


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also the topics that the system made for itself.")
@click.option(
    "--details", is_flag=True, help="Queues and messages of each; asks every broker for every topic."
)
@client_options
def list_topics(internal: bool, details: bool, cluster: Cluster, as_json: bool) -> None:
    """List the topics."""
    with administering(cluster) as admin:
        names = admin.list_topics(internal=internal)
        if not names:
            check_brokers(admin)
        found = [_described(admin, name) for name in names] if details else []
    if as_json:
        echo_json([topic_json(item) for item in found if item] if details else names)
    elif not names:
        note("no topics; `penstock topic create NAME` makes one")
    elif details:
        _show_list([item for item in found if item])
    else:
        from penstock.cli.escaping import printable

        for name in names:
            click.echo(printable(name))


def _described(admin: Admin, name: str) -> TopicDescription | None:
    try:
        return admin.describe_topic(name)
    except RouteNotFoundError:  # deleted since it was listed
        return None


def _show_list(found: list[TopicDescription]) -> None:
    from penstock.cli.console import name_text, output, plain_table

    table = plain_table("Topic", "Brokers", "Queues", "Messages", "In/s", right=("Brokers", "Queues"))
    for column in table.columns[3:]:
        column.justify = "right"
    for item in found:
        numbers = (
            f"{len(item.brokers)}",
            f"{len(item.queues)}",
            f"{item.messages:,}",
            f"{item.put_tps:,.1f}",
        )
        table.add_row(name_text(item.name), *numbers)
    output().print(table)


@topic.command()
@click.argument("name")
@client_options
def describe(name: str, cluster: Cluster, as_json: bool) -> None:
    """Show the queues of the topic NAME, how full they are, and which groups read it."""
    with administering(cluster) as admin:
        found, groups = admin.describe_topic(name), admin.groups_of_topic(name)
    if as_json:
        echo_json({**topic_json(found), "groups": groups})
        return
    from rich.text import Text

    from penstock.cli.console import count_text, name_text, output, plain_table, time_text
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(found.name), style="bold"))
    for broker, address in found.brokers.items():
        allowed = PERMISSION_NAMES.get(found.permissions.get(broker, 0), "none")
        console.print(Text(printable(f"broker {broker} at {address}, {allowed}")))
    console.print(Text(f"{count_text(found.messages, 'message')}, {found.put_tps:,.1f} in/s"))
    console.print(Text(printable(f"groups {', '.join(groups) or 'none'}")))
    console.print()
    numbers = ("Queue", "From", "To", "Messages")
    table = plain_table("Broker", *numbers, "Last stored", right=numbers)
    for item in found.queues:
        offsets = (f"{item.min_offset:,}", f"{item.max_offset:,}", f"{item.messages:,}")
        place = (name_text(item.queue.broker_name), str(item.queue.queue_id))
        table.add_row(*place, *offsets, time_text(item.last_update_ms))
    console.print(table)


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_options
def delete(name: str, yes: bool, cluster: Cluster, as_json: bool) -> None:
    """Delete the topic NAME with all its messages."""
    with administering(cluster, SEE_TOPICS) as admin:
        found = admin.describe_topic(name)
        confirm(f"Delete the topic {name} with {found.messages:,} messages?", yes)
        admin.delete_topic(name)
    if as_json:
        echo_json({"deleted": name, "messages": found.messages})
    else:
        from penstock.cli.escaping import one_line

        click.echo(one_line(f"topic {name} is deleted, with {found.messages:,} messages"))


def topic_json(found: TopicDescription) -> dict[str, object]:
    return {
        "topic": found.name,
        "messages": found.messages,
        "put_tps": found.put_tps,
        "brokers": [
            {
                "name": name,
                "address": address,
                "permission": PERMISSION_NAMES.get(found.permissions.get(name, 0), "none"),
                "attributes": found.attributes.get(name, {}),
            }
            for name, address in found.brokers.items()
        ],
        "queues": [
            {
                "broker": item.queue.broker_name,
                "queue": item.queue.queue_id,
                "min_offset": item.min_offset,
                "max_offset": item.max_offset,
                "messages": item.messages,
                "last_stored_timestamp": item.last_update_ms,
            }
            for item in found.queues
        ],
    }
