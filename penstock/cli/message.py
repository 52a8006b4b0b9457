"""`penstock message get | value | trace | recall | waiting`: one message by its id, or those with a key; the value of
a key, from its partition; what happened to a message; messages that wait for their time, and taking one back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import (
    EXIT_NOT_FOUND,
    SEE_TOPICS,
    Cluster,
    administering,
    client_options,
    echo_json,
)
from penstock.cli.complaints import complain
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.received import ReceivedMessage


@click.group(cls=CommandGroup)
def message() -> None:
    """Look up single messages."""


@message.command()
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--key", metavar="K", help="All messages of the topic with this key, instead of an ID.")
@click.option("--topic", metavar="T", default="", help="Topic of the message; needed with --key.")
@click.option(
    "--max", "limit", type=NumberType(1, 10_000), default=32, help="With --key, at most so many (32)."
)
@client_options
def get(
    message_id: str | None,
    key: str | None,
    topic: str,
    limit: int,
    cluster: Cluster,
    as_json: bool,
) -> int:
    """Show the message ID, or the messages with a key.

    ID is what a send returned, either kind. Ends with 1 if there is no such message.
    """
    if (message_id is None) == (key is None):
        raise click.UsageError("name an ID or --key, one of them", click.get_current_context())
    if key is not None and not topic:
        raise click.UsageError("--key needs --topic", click.get_current_context())
    with administering(cluster, SEE_TOPICS) as admin:
        if message_id is not None:
            found = _by_id(admin, message_id, topic)
        else:
            found = admin.query_messages(topic, key or "", limit=limit)
    if as_json:
        from penstock.cli.received import received_json

        for item in found:
            echo_json(received_json(item), lines=message_id is None)
    elif message_id is None:
        _show_rows(found)
    elif found:
        _show(found[0])
    return 0 if found else EXIT_NOT_FOUND


@message.command()
@click.argument("topic")
@click.argument("key")
@click.option("--all", "whole", is_flag=True, help="Every value, oldest first; without it the newest.")
@click.option(
    "--max", "limit", type=NumberType(1, 100_000), default=1_000, help="With --all, at most so many (1000)."
)
@client_options
def value(topic: str, key: str, whole: bool, limit: int, cluster: Cluster, as_json: bool) -> int:
    """Show the value of KEY in TOPIC: the body of the newest message with it.

    Looks in the partition that the key hashes to, where a producer with partition_by_key sends it (`penstock produce
    --by-key`). Ends with 1 if there is none.
    """
    with administering(cluster, SEE_TOPICS) as admin:
        found = admin.read_by_key(topic, key, limit=limit if whole else 1, whole=whole)
    if as_json:
        from penstock.cli.received import received_json

        echo_json(
            {
                "key": found.key,
                "topic": found.queue.topic,
                "broker": found.queue.broker_name,
                "queue": found.queue.queue_id,
                "values": [received_json(item) for item in found.messages],
            }
        )
    elif whole:
        _show_rows(list(found.messages))
    elif found.latest is not None:
        _show(found.latest)
    return 0 if found.messages else EXIT_NOT_FOUND


@message.command()
@click.argument("message_id", metavar="ID")
@click.option(
    "--trace-topic",
    metavar="T",
    default="RMQ_SYS_TRACE_TOPIC",
    help="Topic that the clients write traces to (RMQ_SYS_TRACE_TOPIC).",
)
@client_options
def trace(message_id: str, trace_topic: str, cluster: Cluster, as_json: bool) -> int:
    """Show what happened to the message ID: sent, taken by which group, done or not.

    ID is the one that its producer gave it. Only clients that write traces are seen (`trace=True`, enableMsgTrace).
    """
    from penstock.cli.message_trace import record_json, show_trace

    with administering(cluster) as admin:
        found = admin.trace_message(message_id, trace_topic=trace_topic)
    if as_json:
        echo_json([record_json(record) for record in found])
    else:
        from penstock.cli.console import output

        show_trace(output(), found)
    return 0 if found else EXIT_NOT_FOUND


@message.command()
@click.argument("handle", metavar="HANDLE")
@client_options
def recall(handle: str, cluster: Cluster, as_json: bool) -> None:
    """Take back a message that waits for its time, by the HANDLE that its send gave.

    It never comes then. Refused if its time has come, or if there is no such broker.
    """
    with administering(cluster) as admin:
        message_id = admin.recall_message(handle)
    if as_json:
        echo_json({"recalled": message_id})
    else:
        from penstock.cli.escaping import one_line

        click.echo(one_line(f"message {message_id} is recalled"))


@message.command()
@click.option("--topic", metavar="T", default="", help="Only messages of this topic.")
@client_options
def waiting(topic: str, cluster: Cluster, as_json: bool) -> None:
    """Show how many messages wait for their time, by broker and topic, and for how long.

    Messages with a delay level wait elsewhere and are not counted.
    """
    with administering(cluster) as admin:
        found = admin.timers_waiting()
    from penstock.cli.message_waiting import show_waiting, waiting_json

    if as_json:
        echo_json(waiting_json(found, topic))
    else:
        from penstock.cli.console import output

        show_waiting(output(), found, topic)


def _by_id(admin: Admin, message_id: str, topic: str) -> list[ReceivedMessage]:
    from penstock.errors import ClientError

    try:
        return [admin.get_message(message_id, topic)]
    except ClientError as error:
        if type(error) is not ClientError:  # a reason of its own: no route, closed
            raise
        complain(f"{error.message}; " + ("check the id" if topic else "check the id, or look in its --topic"))
        return []


def _show_rows(found: list[ReceivedMessage]) -> None:
    from penstock.cli.console import output
    from penstock.cli.messages import MessageTable
    from penstock.cli.received import unpacked

    table = MessageTable(output())
    if found:
        table.add(unpacked(item) for item in found)
    table.close()


def _show(found: ReceivedMessage) -> None:
    """Everything, a line for each."""
    from rich.text import Text

    from penstock.cli.console import output, time_text
    from penstock.cli.escaping import body_text, printable
    from penstock.cli.received import unpacked

    stored = unpacked(found)
    body, encoding = body_text(stored.body)
    lines = [
        ("id", found.msg_id),
        ("offset id", found.offset_msg_id),
        ("place", f"{stored.topic}/{stored.queue_id} @ {stored.queue_offset:,} on {stored.store_host}"),
        (
            "stored",
            f"{time_text(stored.store_timestamp)}, {stored.size:,} bytes at {stored.physical_offset:,}",
        ),
        ("sent", f"{time_text(stored.born_timestamp)} from {stored.born_host}"),
        ("tag", stored.tag or "-"),
        ("keys", " ".join(found.keys) or "-"),
        ("tries", str(stored.reconsume_times)),
        *((f"  {name}", value) for name, value in stored.properties.items()),
    ]
    console = output()
    for name, value in lines:
        console.print(Text(printable(f"{name:<14}{value}")))
    console.print(
        Text(f"{'body':<14}{len(stored.body):,} bytes{', as base64' if encoding == 'base64' else ''}")
    )
    console.print()
    for line in body.splitlines() or [""]:
        console.print(Text(printable(line)))
