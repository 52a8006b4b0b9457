"""`penstock set list | describe | elect | clean`: broker sets as their coordinator sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.clients import (
    EXIT_NOT_FOUND,
    Cluster,
    ask_coordinators,
    confirm,
    coordinator_options,
    echo_json,
    reaching,
)
from penstock.cli.complaints import complain, note
from penstock.cli.lazy_group import CommandGroup
from penstock.cli.option_types import NumberType
from penstock.errors import PenstockError, did_you_mean

if TYPE_CHECKING:
    from penstock.protocol.command import Command

# A designated master waits until the lease of the present one has run out.
ELECTION_TIMEOUT_MS = 10_000


@click.group("set", cls=CommandGroup)
def broker_set() -> None:
    """List and describe broker sets, elect a master, remove brokers."""


@broker_set.command("list")
@coordinator_options
def list_sets(cluster: Cluster, as_json: bool) -> None:
    """List the broker sets: masters, brokers in sync, brokers alive."""
    status = _status(cluster)
    found = status["brokerSets"]
    if as_json:
        echo_json(found)
        return
    from penstock.cli.console import name_text, output, plain_table

    if not found:
        note("no broker sets; brokers join one with the option broker.coordinators")
        return
    table = plain_table("Set", "Cluster", "Master", "Epoch", "In sync", "Alive", right=("Master", "Epoch"))
    for name, one in sorted(found.items()):
        alive = [number for number, member in sorted(one["members"].items()) if member["isAlive"]]
        numbers = (_number(one["masterId"]), str(one["masterEpoch"]))
        sync = ", ".join(map(str, one["syncStateSet"]))
        table.add_row(name_text(name), name_text(one["cluster"]), *numbers, sync, ", ".join(alive) or "none")
    output().print(table)


@broker_set.command()
@click.argument("name")
@coordinator_options
def describe(name: str, cluster: Cluster, as_json: bool) -> int:
    """Show the brokers of the set NAME: roles, epochs, ends of their logs."""
    known = _status(cluster)["brokerSets"]
    one = known.get(name)
    if one is None:
        advice = did_you_mean(name, known) or "`penstock set list` shows the sets"
        complain(f"there is no broker set {name[:255]!r}; {advice}")
        return EXIT_NOT_FOUND
    if as_json:
        echo_json(one)
        return 0
    from rich.text import Text

    from penstock.cli.console import output, plain_table
    from penstock.cli.escaping import printable

    console = output()
    console.print(Text(printable(name), style="bold"))
    lease = f"lease for {one['leaseMs'] / 1000:.1f} s" if one["leaseMs"] else "no lease"
    master = f"master {_number(one['masterId'])} in epoch {one['masterEpoch']}, {lease}"
    console.print(Text(printable(f"cluster {one['cluster']}, {master}", 400)))
    members = plain_table(
        "Broker", "State", "Epoch", "End of log", "Confirmed", "Last beat", right=("Epoch", "End of log")
    )
    for number, member in sorted(one["members"].items(), key=lambda item: int(item[0])):
        words = ["master" if int(number) == one["masterId"] else "replica"]
        words += ["in sync" if int(number) in one["syncStateSet"] else "not in sync"]
        words += [] if member["isAlive"] else ["down"]
        figures = (str(member["epoch"]), f"{member['maxOffset']:,}", f"{member['confirmOffset']:,}")
        members.add_row(number, ", ".join(words), *figures, f"{member['silentMs'] / 1000:.1f} s ago")
    console.print()
    console.print(members)
    return 0


@broker_set.command()
@click.argument("name")
@click.option("--broker", "broker_id", type=NumberType(1, 2**31 - 1), help="Elect this one.")
@coordinator_options
def elect(name: str, broker_id: int | None, cluster: Cluster, as_json: bool) -> None:
    """Elect a master for the set NAME.

    --broker names one that is in sync: the present master gets no further lease and is replaced when its lease
    ends, after some two seconds.
    """
    from penstock.protocol.codes import RequestCode
    from penstock.protocol.command import Command
    from penstock.protocol.headers.controller import ElectMasterRequestHeader, ElectMasterResponseHeader

    header = ElectMasterRequestHeader(
        broker_name=name,
        broker_id=-1 if broker_id is None else broker_id,
        designate_elect=broker_id is not None,
    )
    command = Command(RequestCode.CONTROLLER_ELECT_MASTER, header.encode())
    try:
        answer = ElectMasterResponseHeader.decode(_change(cluster, command).fields)
    except PenstockError as error:
        hint = error.hint or f"`penstock set describe {name}` shows who may be elected with --broker"
        raise PenstockError(error.message, hint) from error
    if as_json:
        echo_json({"masterBrokerId": answer.master_broker_id, "masterEpoch": answer.master_epoch})
    else:
        click.echo(f"broker {answer.master_broker_id} is master in epoch {answer.master_epoch}")


@broker_set.command()
@click.argument("name")
@click.option(
    "--broker", "broker_ids", type=NumberType(1, 2**31 - 1), multiple=True, help="Repeatable; else all."
)
@click.option("--living", is_flag=True, help="Also brokers that are alive.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@coordinator_options
def clean(
    name: str, broker_ids: tuple[int, ...], living: bool, yes: bool, cluster: Cluster, as_json: bool
) -> None:
    """Remove brokers that will not come back from the set NAME.

    Their files are not touched.
    """
    from penstock.protocol.codes import RequestCode
    from penstock.protocol.command import Command
    from penstock.protocol.headers.controller import CleanControllerBrokerDataRequestHeader

    which = f"broker {', '.join(map(str, broker_ids))}" if broker_ids else "all brokers"
    confirm(f"Remove {which} of {name}?", yes)
    header = CleanControllerBrokerDataRequestHeader(
        broker_name=name,
        broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
        is_clean_living_broker=living,
    )
    _change(cluster, Command(RequestCode.CLEAN_BROKER_DATA, header.encode()))
    if as_json:
        echo_json({"cleaned": list(broker_ids)})
    else:
        click.echo(f"removed: {which}")


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)


def _status(cluster: Cluster) -> dict[str, Any]:
    """What the coordinator that leads says."""
    import json

    from penstock.protocol.codes import RequestCode
    from penstock.protocol.command import Command

    def read(answer: Command) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(check(answer).body)
        return status

    from penstock.remoting import check

    with reaching():
        status = read(_call(cluster, Command(RequestCode.COORDINATOR_STATUS)))
    if not status["isLeader"] and status["leader"]:
        leader = replace(cluster, address=status["leader"])
        status = read(_call(leader, Command(RequestCode.COORDINATOR_STATUS)))
    return status


def _change(cluster: Cluster, command: Command) -> Command:
    from penstock.remoting import check

    with reaching():
        return check(_call(cluster, command, max(cluster.timeout_ms, ELECTION_TIMEOUT_MS)))


def _call(cluster: Cluster, command: Command, timeout_ms: int | None = None) -> Command:
    return ask_coordinators(cluster, lambda coordinators: coordinators.call(command, timeout_ms))
