"""`penstock explain group`: who owns which queue of a group that a coordinator balances, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.clients import Cluster, echo_json, reaching
from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from penstock.protocol.bodies.explanation import ExplanationBody

DEFAULT_COORDINATOR = "127.0.0.1:9877"


@click.group()
def explain() -> None:
    """Say why things are as they are."""


@explain.command()
@click.argument("name")
@click.option(
    "--coordinator",
    metavar="HOST:PORT",
    envvar="PENSTOCK_COORDINATOR",
    default=DEFAULT_COORDINATOR,
    help=f"Coordinator; several are separated by ; (PENSTOCK_COORDINATOR, {DEFAULT_COORDINATOR}).",
)
@click.option(
    "--timeout",
    "timeout_ms",
    metavar="MS",
    type=NumberType(1, 600_000),
    default=3_000,
    help="How long one answer may take, in milliseconds (3000).",
)
@click.option("--tls", is_flag=True, help="Connect with TLS.")
@click.option(
    "--tls-trusted",
    metavar="FILE",
    envvar="PENSTOCK_TLS_TRUSTED",
    help="Connect with TLS and trust the certificates in this PEM file (PENSTOCK_TLS_TRUSTED).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def group(
    name: str, coordinator: str, timeout_ms: int, tls: bool, tls_trusted: str | None, as_json: bool
) -> None:
    """Show who owns which queue of the group NAME, who is to own it, and why.

    Knows the groups whose consumers chose balance="coordinator".
    """
    cluster = Cluster(coordinator, timeout_ms, tls_trusted, tls)
    with reaching(cluster):
        found = _ask(cluster, name)
    if as_json:
        echo_json(found.to_json())
    else:
        _show(found)


def _ask(cluster: Cluster, name: str) -> ExplanationBody:
    import asyncio

    from penstock.client.coordinators import Coordinators
    from penstock.client.options import parse_coordinators
    from penstock.errors import OptionError
    from penstock.remoting import RemotingClient
    from penstock.runtime import Runtime

    addresses = parse_coordinators(cluster.nameserver)
    if not addresses:
        raise OptionError("no coordinator was named", "write --coordinator HOST:PORT")

    async def ask() -> ExplanationBody:
        remoting = RemotingClient(runtime=Runtime.system(), tls=cluster.tls())
        try:
            return await Coordinators(addresses, remoting, cluster.timeout_ms).explain(name)
        finally:
            await remoting.close()

    return asyncio.run(ask())


def _show(found: ExplanationBody) -> None:
    from rich.text import Text

    from penstock.cli.console import name_text, output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(found.group), style="bold"))
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
