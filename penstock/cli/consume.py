"""`penstock consume TOPIC`: messages as they come, or all that are there.

With a group the command is a member like any other: queues are divided among the members, offsets are stored
after messages were printed, and the next run goes on from there. Without one it only looks: it reads every
queue, stores nothing and disturbs nobody.

On a terminal messages are rows; in a pipe each one is its body and a newline; --json prints a line of JSON each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import Cluster, administering, client_options, echo_json
from penstock.cli.complaints import awaiting, note, showing_warnings
from penstock.cli.option_types import NumberType, PlaceType
from penstock.cli.signals import sigterm_interrupts

if TYPE_CHECKING:
    from penstock.client.consumer import Consumer
    from penstock.client.received import ReceivedMessage
    from penstock.protocol.bodies import MessageQueue

# RocketMQ's own tools read under this name; brokers keep no offsets for it.
LOOKING_GROUP = "TOOLS_CONSUMER"
AT_ONCE = 256
POLL_S = 0.5
JOIN_TIMEOUT_S = 30.0
COUNT_MAX = (1 << 63) - 1


@click.command()
@click.argument("topic")
@click.option(
    "--group",
    metavar="G",
    help="Consume as a member of this group; without it only look, storing no offsets.",
)
@click.option(
    "--from",
    "place",
    type=PlaceType(),
    help="Begin there; without it where the group is, or at the first message.",
)
@click.option("--max", "limit", type=NumberType(1, COUNT_MAX), help="End after so many messages.")
@click.option("--follow", is_flag=True, help="Wait for new messages instead of ending at the last one.")
@click.option(
    "--tag", "expression", metavar="TAGS", default="*", help="Only these tags, as in 'a || b'; * is all."
)
@click.option(
    "--sql", metavar="CONDITION", default="", help='Only messages whose properties it holds for: "price > 5".'
)
@click.option("--key", "keys", metavar="K", multiple=True, help="Only messages with this key; repeatable.")
@client_options
def consume(
    topic: str,
    group: str | None,
    place: str | int | None,
    limit: int | None,
    follow: bool,
    expression: str,
    sql: str,
    keys: tuple[str, ...],
    cluster: Cluster,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC.

    Ends at the last message, after --max messages, or with --follow on Ctrl-C.
    """
    from penstock.client.consumer import Consumer

    show = _output(as_json)
    wanted = _wanted(expression, sql, keys)
    signing: Any = cluster.signing()
    with administering(cluster) as admin:
        queues = admin.queues(topic)
        consumer = Consumer(
            cluster.address,
            group or LOOKING_GROUP,
            tls=cluster.tls(),
            **signing,
            call_timeout_ms=cluster.timeout_ms,
            start_from=place if place is not None else "first",
            auto_commit=group is not None,
        )
        with consumer, sigterm_interrupts():
            with awaiting(f"joining the group {group}" if group else f"waiting for {cluster.address}"):
                mine = _join(consumer, topic, (expression, sql, keys), queues, alone=group is None)
            if place is not None or group is None:
                _seek(consumer, mine, place or "first")
            ends = {} if follow else {queue: admin.max_offset(queue) for queue in mine}
            try:
                is_empty = True
                with showing_warnings():
                    for messages in _polls(consumer, ends, limit, wanted, follow=follow):
                        is_empty = False
                        show(messages)
                if is_empty and not as_json and sys.stdout.isatty():
                    note(f"no messages for group {group}" if group else "no messages")
            finally:
                if group is not None and sys.exc_info()[0] in (None, KeyboardInterrupt):
                    consumer.commit()


def _join(
    consumer: Consumer,
    topic: str,
    wish: tuple[str, str, tuple[str, ...]],
    queues: Sequence[MessageQueue],
    *,
    alone: bool,
) -> Sequence[MessageQueue]:
    """The queues that are ours to read."""
    if alone:
        consumer.assign(queues)
        return queues
    expression, sql, keys = wish
    consumer.subscribe(topic, expression, sql=sql, keys=keys)
    return [queue for queue in consumer.wait_assigned(JOIN_TIMEOUT_S) if queue.topic == topic]


def _seek(consumer: Consumer, queues: Sequence[MessageQueue], place: str | int) -> None:
    for queue in queues:
        if place == "first":
            consumer.seek_to_first(queue)
        elif place == "last":
            consumer.seek_to_last(queue)
        else:
            consumer.seek_to_time(queue, int(place))


def _wanted(expression: str, sql: str, keys: tuple[str, ...]) -> Callable[[ReceivedMessage], bool]:
    """Which messages are shown. Whoever only looks is given everything and sorts out here."""
    from penstock.client.subscription import check_expression
    from penstock.filters import compile_expression

    if check_expression(expression, sql, keys):
        return lambda message: not frozenset(keys).isdisjoint(message.keys)
    if sql:
        matches = compile_expression(sql).matches
        return lambda message: matches(message.properties)
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    return lambda message: not tags or "*" in tags or message.tag in tags


def _polls(
    consumer: Consumer,
    ends: dict[MessageQueue, int],
    limit: int | None,
    wanted: Callable[[ReceivedMessage], bool],
    *,
    follow: bool,
) -> Iterator[list[ReceivedMessage]]:
    """Lots of messages until there are enough or, unless it follows, the ends are reached that there were."""
    left = limit if limit is not None else COUNT_MAX
    while left > 0:
        if not follow and _is_done(consumer, ends):
            return
        polled = consumer.poll(min(AT_ONCE, left), POLL_S)
        messages = [message for message in polled if wanted(message)]
        if messages:
            left -= len(messages)
            yield messages


def _is_done(consumer: Consumer, ends: dict[MessageQueue, int]) -> bool:
    """Whether no message before the ends is still to come. A queue that is not held may be about to begin anew, as
    after a reset of the group; one that is not ours once that is settled is another member's to finish."""
    positions = [(_position(consumer, queue), end) for queue, end in ends.items()]
    if any(position is None for position, _ in positions):
        consumer.wait_assigned(JOIN_TIMEOUT_S)
        positions = [(_position(consumer, queue), end) for queue, end in ends.items()]
    return all(position is None or position >= end for position, end in positions)


def _position(consumer: Consumer, queue: MessageQueue) -> int | None:
    """How far a queue is read; None for one that is not held at the moment."""
    from penstock.errors import ClientError

    try:
        return consumer.position(queue)
    except ClientError:
        return None


def _output(as_json: bool) -> Callable[[list[ReceivedMessage]], None]:
    """How a lot of messages is printed."""
    from penstock.cli.received import received_json, unpacked

    def show_json(messages: list[ReceivedMessage]) -> None:
        for item in messages:
            echo_json(received_json(item), lines=True)

    def write_bodies(messages: list[ReceivedMessage]) -> None:
        sys.stdout.buffer.writelines(unpacked(item).body + b"\n" for item in messages)
        sys.stdout.buffer.flush()

    if as_json:
        return show_json
    if not sys.stdout.isatty():
        return write_bodies
    from penstock.cli.console import output
    from penstock.cli.messages import MessageTable

    table = MessageTable(output())

    def show_rows(messages: list[ReceivedMessage]) -> None:
        table.add(map(unpacked, messages))

    return show_rows
