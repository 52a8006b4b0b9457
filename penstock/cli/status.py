"""`penstock status`: who is there and how they are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

import click

from penstock.cli.clients import Cluster, administering, client_options, echo_json
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.client.admin_results import BrokerStatus, ClusterStatus

EXIT_UNHEALTHY = 1
WIDE = 110


@click.command()
@client_options
def status(cluster: Cluster, as_json: bool) -> int:
    """Show the brokers of the cluster and how they are.

    Ends with 1 if a name server or a broker does not answer, or if there is no broker.
    """
    with administering(cluster) as admin:
        found = admin.cluster_status()
        topics, groups = _count(admin.list_topics), _count(admin.list_groups)
    healthy = found.is_healthy and bool(found.brokers)
    if as_json:
        echo_json(
            {
                "healthy": healthy,
                "name_servers": [
                    {"address": address, "answers": answers}
                    for address, answers in found.name_servers.items()
                ],
                "brokers": [_broker_json(broker) for broker in found.brokers],
                "topics": topics,
                "groups": groups,
            }
        )
    else:
        _show(found, topics, groups, healthy)
    return 0 if healthy else EXIT_UNHEALTHY


def _count(names: Callable[[], list[str]]) -> int | None:
    """How many there are; not known if somebody does not answer, which is what this command is about."""
    try:
        return len(names())
    except PenstockError:
        return None


def _broker_json(broker: BrokerStatus) -> dict[str, object]:
    return {
        "name": broker.name,
        "id": broker.broker_id,
        "cluster": broker.cluster,
        "address": broker.address,
        "version": broker.version,
        "put_tps": broker.put_tps,
        "get_tps": broker.get_tps,
        "error": broker.error,
        "down_since_ms": broker.down_since_ms or None,
        "figures": broker.figures,
    }


def _show(found: ClusterStatus, topics: int | None, groups: int | None, healthy: bool) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, output
    from penstock.cli.escaping import printable

    console = output()
    for address, answers in found.name_servers.items():
        line = Text(printable(f"name server {address}  "))
        console.print(line.append("answers" if answers else "does not answer", "" if answers else "bold red"))
    counts = [
        count_text(count, noun) for count, noun in ((topics, "topic"), (groups, "group")) if count is not None
    ]
    console.print(Text(", ".join(counts) or "topics and groups are not known: not all answer"))
    by_cluster = groupby(sorted(found.brokers, key=_place), key=lambda broker: broker.cluster)
    for cluster, brokers in by_cluster:
        console.print()
        console.print(Text(printable(f"cluster {cluster}"), style="bold"))
        console.print(_table(list(brokers), wide=console.width >= WIDE))
    console.print()
    if not found.brokers:
        verdict = "no broker is registered; `penstock up` or `penstock broker` starts one"
    else:
        verdict = "all answer" if healthy else "NOT ALL ANSWER"
    console.print(Text(verdict, style="bold green" if healthy else "bold red"))


def _place(broker: BrokerStatus) -> tuple[str, str, int]:
    return broker.cluster, broker.name, broker.broker_id


def _table(brokers: list[BrokerStatus], *, wide: bool) -> Table:
    from rich.text import Text

    from penstock.cli.console import name_text, plain_table
    from penstock.cli.escaping import one_line

    numbers = ("In/s", "Out/s", "Disk")
    columns = ("Broker", "Id", "Address", *numbers, "Up", *(("Version",) if wide else ()))
    table = plain_table(*columns, right=("Id", *numbers))
    for broker in brokers:
        place = (name_text(broker.name), str(broker.broker_id), Text(one_line(broker.address)))
        if broker.error:
            table.add_row(*place, "-", "-", "-", Text(one_line(broker.error), style="red"))
            continue
        rates = (f"{broker.put_tps:,.1f}", f"{broker.get_tps:,.1f}")
        version = (name_text(broker.version),) if wide else ()
        table.add_row(*place, *rates, _disk(broker), _uptime(broker), *version)
    return table


def _disk(broker: BrokerStatus) -> str:
    """Used part of the disk, as the broker says: a fraction."""
    try:
        return f"{float(broker.figures.get('commitLogDiskRatio', '')) * 100:.0f} %"
    except ValueError:
        return "-"


def _uptime(broker: BrokerStatus) -> str:
    """Since when the broker runs, in its own words, `[ 0 days, 1 hours, 2 minutes, 3 seconds ]`."""
    from penstock.cli.escaping import printable

    text = broker.figures.get("runtime", "").strip("[] ")
    parts = [part for part in text.split(", ") if part and not part.startswith("0 ")]
    return printable(", ".join(parts[:2]) or "-", 40)
