"""`penstock status`: the servers of a cluster, up or down, their load, lag and disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.cli.clients import Cluster, administering, client_options, echo_json
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.client.admin import Admin
    from penstock.client.admin_results import BrokerStatus, ClusterStatus

T = TypeVar("T")
EXIT_UNHEALTHY = 1
WIDE = 110
# Each group is asked for at every broker; of more groups the lag is left to `group list --details`.
GROUPS_MAX = 200
GROUPS_SHOWN = 3
# Key of --json, RocketMQ's name for it among the figures of a broker.
NUMBERS = {
    "started_timestamp": "bootTimestamp",
    "disk_used_ratio": "commitLogDiskRatio",
    "log_start_bytes": "commitLogMinOffset",
    "log_end_bytes": "commitLogMaxOffset",
    "index_behind_bytes": "dispatchBehindBytes",
    "oldest_message_timestamp": "earliestMessageTimeStamp",
    "messages_in": "msgPutTotalTodayNow",
    "messages_out": "msgGetTotalTodayNow",
    "failed_puts": "putMessageFailedTimes",
    "put_latency_99_ms": "putLatency99",
    "sends_waiting": "sendThreadPoolQueueSize",
    "pulls_waiting": "pullThreadPoolQueueSize",
}


@click.command()
@client_options
def status(cluster: Cluster, as_json: bool) -> int:
    """Show the servers of a cluster: up or down, load, lag, disk.

    Ends with 1 if a name server or a broker is down or does not answer, or if there is no broker.
    """
    with administering(cluster) as admin:
        found = admin.cluster_status()
        healthy = found.is_healthy and bool(found.brokers)
        # Brokers that are all down have taken the topics and groups with them.
        is_up = any(not broker.error for broker in found.brokers) or not found.brokers
        topics = _known(admin.list_topics) if is_up else None
        groups = _known(admin.list_groups) if is_up else None
        lags = _known(lambda: _lags(admin, groups or [])) if groups is not None else None
    if as_json:
        echo_json(
            {
                "healthy": healthy,
                "name_servers": [
                    {"address": address, "answers": answers}
                    for address, answers in found.name_servers.items()
                ],
                "brokers": [_broker_json(broker, found.brokers) for broker in found.brokers],
                "topics": None if topics is None else len(topics),
                "groups": None if groups is None else len(groups),
                "lag_messages": None if lags is None else sum(lags.values()),
                "lag_messages_by_group": lags,
            }
        )
    else:
        _show(found, topics, groups, lags, healthy)
    return 0 if healthy else EXIT_UNHEALTHY


def _known(ask: Callable[[], T]) -> T | None:
    """The answer, or None if a server does not give it, which is what this command is about."""
    try:
        return ask()
    except PenstockError:
        return None


def _lags(admin: Admin, groups: Sequence[str]) -> dict[str, int] | None:
    """The groups that have messages to consume, and how many; None of too many groups."""
    if len(groups) > GROUPS_MAX:
        return None
    lags = {name: admin.describe_group(name).lag for name in groups}
    return {name: lag for name, lag in sorted(lags.items(), key=lambda item: (-item[1], item[0])) if lag}


def _broker_json(broker: BrokerStatus, brokers: Sequence[BrokerStatus]) -> dict[str, object]:
    numbers = {key: broker.figure(name) for key, name in NUMBERS.items()}
    return {
        "name": broker.name,
        "role": _role(broker),
        "id": broker.member_id,
        "cluster": broker.cluster,
        "address": broker.address,
        "version": broker.version,
        "put_tps": broker.put_tps,
        "get_tps": broker.get_tps,
        "error": broker.error,
        "down_since_ms": broker.down_since_ms or None,
        "uptime_s": _uptime_s(broker),
        **{
            key: int(number) if number is not None and number.is_integer() else number
            for key, number in numbers.items()
        },
        "behind_master_bytes": _behind(broker, brokers),
    }


def _role(broker: BrokerStatus) -> str:
    return "master" if broker.is_master else "replica"


def _behind(broker: BrokerStatus, brokers: Sequence[BrokerStatus]) -> int | None:
    """How much of its master's log a replica lacks."""
    master = next((one for one in brokers if one.is_master and _set(one) == _set(broker)), None)
    end = broker.figure("commitLogMaxOffset")
    whole = master.figure("commitLogMaxOffset") if master is not None else None
    return None if broker.is_master or end is None or whole is None else max(int(whole - end), 0)


def _set(broker: BrokerStatus) -> tuple[str, str]:
    return broker.cluster, broker.name


def _show(
    found: ClusterStatus,
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    lags: Mapping[str, int] | None,
    healthy: bool,
) -> None:
    from rich.text import Text

    from penstock.cli.console import count_text, output
    from penstock.cli.escaping import one_line, printable

    console = output()
    for address, answers in found.name_servers.items():
        line = Text(printable(f"name server {address}  "))
        console.print(line.append("answers" if answers else "does not answer", "" if answers else "bold red"))
    counts = [
        count_text(len(names), noun)
        for names, noun in ((topics, "topic"), (groups, "group"))
        if names is not None
    ]
    console.print(
        Text(", ".join(counts) or "topics and groups are not known: the brokers that know them do not answer")
    )
    if groups is not None:
        console.print(Text(printable(_lag_text(lags), 400)))
    by_cluster = groupby(sorted(found.brokers, key=_place), key=lambda broker: broker.cluster)
    for cluster, brokers in by_cluster:
        console.print()
        console.print(Text(printable(f"cluster {cluster}"), style="bold"))
        console.print(_table(list(brokers), wide=console.width >= WIDE))
    console.print()
    troubled = [broker for broker in found.brokers if broker.error]
    for broker in troubled:
        text = f"{broker.name} ({_role(broker)}) at {broker.address}: {broker.error}"
        console.print(Text(one_line(text), style="red"))
    if not found.brokers:
        verdict = "no broker is registered; `penstock up` or `penstock broker` starts one"
    else:
        verdict = "all answer" if healthy else "NOT ALL ANSWER"
    console.print(Text(verdict, style="bold green" if healthy else "bold red"))


def _lag_text(lags: Mapping[str, int] | None) -> str:
    from penstock.cli.console import count_text

    if lags is None:
        return "lag is not known; `penstock group list --details` asks for each group"
    largest = ", ".join(f"{name} {lag:,}" for name, lag in list(lags.items())[:GROUPS_SHOWN])
    more = ", ..." if len(lags) > GROUPS_SHOWN else ""
    return f"lag {count_text(sum(lags.values()), 'message')}{f': {largest}{more}' if lags else ''}"


def _place(broker: BrokerStatus) -> tuple[str, str, int]:
    return broker.cluster, broker.name, broker.broker_id


def _table(brokers: list[BrokerStatus], *, wide: bool) -> Table:
    from rich.text import Text

    from penstock.cli.console import name_text, plain_table, size_text
    from penstock.cli.escaping import one_line

    numbers = ("In/s", "Out/s", "Behind", "Disk")
    has_replicas = any(not broker.is_master for broker in brokers)
    shown = [name for name in numbers if has_replicas or name != "Behind"]
    columns = ("Broker", "Role", "Id", "Address", *shown, "Up", *(("Version",) if wide else ()))
    table = plain_table(*columns, right=("Id", *numbers))
    for broker in brokers:
        cells = dict.fromkeys(shown, "-")
        if not broker.error:
            behind, used = _behind(broker, brokers), broker.figure("commitLogDiskRatio")
            cells |= {"In/s": f"{broker.put_tps:,.1f}", "Out/s": f"{broker.get_tps:,.1f}"}
            cells |= {"Behind": size_text(behind)} if behind is not None else {}
            cells |= {"Disk": f"{used * 100:.0f} %"} if used is not None else {}
        up = (
            Text("down" if broker.down_since_ms else "no answer", style="red")
            if broker.error
            else _uptime(broker)
        )
        table.add_row(
            name_text(broker.name),
            _role(broker),
            str(broker.member_id),
            one_line(broker.address),
            *(cells[name] for name in shown),
            up,
            *((name_text(broker.version),) if wide else ()),
        )
    return table


def _uptime_s(broker: BrokerStatus) -> int | None:
    """RocketMQ says it in words: `[ 0 days, 1 hours, 2 minutes, 3 seconds ]`."""
    from re import findall

    parts = findall(r"(\d{1,9}) (day|hour|minute|second)", broker.figures.get("runtime", ""))
    spans = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    return sum(int(number) * spans[unit] for number, unit in parts) if parts else None


def _uptime(broker: BrokerStatus) -> str:
    from penstock.cli.console import span_text

    seconds = _uptime_s(broker)
    return "-" if seconds is None else span_text(seconds)
