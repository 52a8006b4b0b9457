"""`penstock up`, `nameserver`, `broker`, `coordinator`: options become a node, which serves until a signal.

Standard output carries one ready line (or one JSON object), so that a script knows when and where; warnings and
log lines go to standard error. Nothing listens beyond this machine unless told in so many words.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.option_types import NumberType

if TYPE_CHECKING:
    from penstock.cli.config import Configuration
    from penstock.cli.node import Node

PORT = NumberType(0, 65_535)
EXIT_UNREACHABLE = 1
Command = Callable[..., int]


def _common(command: Command) -> Command:
    """Options that every server command takes."""
    decorators = (
        click.option(
            "--config",
            "files",
            metavar="FILE",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Read options from a TOML file or RocketMQ's broker.conf or namesrv.properties; repeatable.",
        ),
        click.option(
            "--set",
            "pairs",
            metavar="SECTION.OPTION=VALUE",
            multiple=True,
            help="Set any option of docs/configuration.md, as in store.flush_mode=sync.",
        ),
        click.option(
            "--listen-anywhere",
            is_flag=True,
            default=None,
            help="Allow a --host that other machines can reach without access control.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="From which level on log lines go to standard error (warning).",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON."),
    )
    return functools.reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), command)


_DATA = click.option("--data", metavar="DIR", help="Keep messages and settings here (./penstock-data).")
_HOST = click.option("--host", metavar="H", help="Listen on this address (127.0.0.1).")
_ADVERTISE = click.option(
    "--advertise", metavar="ADDRESS", help="Tell clients this address, as host or host:port."
)


@click.command()
@_DATA
@_HOST
@click.option("--port", type=PORT, help="Port of the broker (10911); 0 takes a free one.")
@click.option("--nameserver-port", type=PORT, help="Port of the name server (9876); 0 takes a free one.")
@click.option(
    "--coordinator", "is_coordinated", is_flag=True, help="Run a coordinator too, and the broker under it."
)
@click.option("--coordinator-port", type=PORT, help="Port of the coordinator (9877); 0 takes a free one.")
@_ADVERTISE
@_common
def up(
    host: str | None,
    port: int | None,
    nameserver_port: int | None,
    is_coordinated: bool,
    coordinator_port: int | None,
    **others: Any,
) -> int:
    """Run a name server and a broker in one process.

    Prints one line when both answer, and stops cleanly on Ctrl-C or SIGTERM; a second signal ends it at once. With
    --coordinator consumers can have their queues divided by a server, and topics are made on demand; the state of
    the coordinator is in the data directory.
    """
    flags = [
        ("--host", "nameserver.host", host),
        ("--host", "broker.host", host),
        ("--port", "broker.port", port),
        ("--nameserver-port", "nameserver.port", nameserver_port),
    ]
    if is_coordinated or coordinator_port is not None:
        flags += [
            ("--host", "coordinator.host", host),
            ("--coordinator-port", "coordinator.port", coordinator_port),
        ]
        return _run("up", ("nameserver", "broker", "coordinator"), flags, **others)
    return _run("up", ("nameserver", "broker"), flags, **others)


@click.command()
@_DATA
@_HOST
@click.option("--port", type=PORT, help="Port to listen on (9876); 0 takes a free one.")
@_common
def nameserver(host: str | None, port: int | None, **others: Any) -> int:
    """Run a name server.

    Several may run side by side; they know nothing of each other, and every broker registers with all of them.
    """
    flags = [("--host", "nameserver.host", host), ("--port", "nameserver.port", port)]
    return _run("nameserver", ("nameserver",), flags, **others)


@click.command()
@_DATA
@_HOST
@click.option("--port", type=PORT, help="Port to listen on (10911); 0 takes a free one.")
@click.option(
    "--nameserver",
    "name_servers",
    metavar="HOST:PORT",
    help="Register with these name servers; several are separated by ; (PENSTOCK_NAMESERVER).",
)
@click.option("--name", metavar="NAME", help="Name of the broker (broker-a).")
@click.option("--cluster", metavar="NAME", help="Cluster that it belongs to (DefaultCluster).")
@_ADVERTISE
@_common
def broker(
    host: str | None,
    port: int | None,
    name_servers: str | None,
    name: str | None,
    cluster: str | None,
    **others: Any,
) -> int:
    """Run a broker.

    It registers with the name servers it is given and keeps its messages in --data, which may be the store
    directory of a RocketMQ broker.
    """
    flags = [
        ("--host", "broker.host", host),
        ("--port", "broker.port", port),
        ("--nameserver", "broker.name_servers", name_servers),
        ("--name", "broker.broker_name", name),
        ("--cluster", "broker.cluster_name", cluster),
    ]
    return _run("broker", ("broker",), flags, **others)


@click.command()
@_DATA
@_HOST
@click.option("--port", type=PORT, help="Port to listen on (9877); 0 takes a free one.")
@click.option(
    "--metadata",
    metavar="STORE",
    help="Keep the state in sqlite:PATH (metadata.db in --data), or in zookeeper:HOST:PORT,HOST:PORT[/ROOT].",
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Tell brokers, clients and other coordinators this address."
)
@_common
def coordinator(
    host: str | None, port: int | None, metadata: str | None, advertise: str | None, **others: Any
) -> int:
    """Run a coordinator.

    It elects masters of broker sets and watches over their leases. Several share a ZooKeeper ensemble: one leads,
    the others take over from it. One alone keeps its state in a file.
    """
    flags = [
        ("--host", "coordinator.host", host),
        ("--port", "coordinator.port", port),
        ("--metadata", "coordinator.metadata", metadata),
        ("--advertise", "coordinator.advertised_address", advertise),
    ]
    return _run("coordinator", ("coordinator",), flags, **others)


def _run(command: str, roles: Sequence[str], flags: Sequence[tuple[str, str, object]], **others: Any) -> int:
    from penstock.errors import MetadataUnavailableError

    try:
        return _run_node(command, roles, flags, **others)
    except MetadataUnavailableError as error:
        import logging

        # A supervisor starts it again; whoever reads the log finds the address that did not answer.
        logging.getLogger(f"penstock.{command}").error("%s", error)
        return EXIT_UNREACHABLE


def _run_node(
    command: str,
    roles: Sequence[str],
    flags: Sequence[tuple[str, str, object]],
    *,
    files: Sequence[Path],
    pairs: Sequence[str],
    data: str | None,
    listen_anywhere: bool | None,
    log_level: str | None,
    as_json: bool,
    advertise: str | None = None,
) -> int:
    from penstock.cli.complaints import complain
    from penstock.cli.descriptors import fit, raise_limit
    from penstock.cli.logs import log_to_stderr
    from penstock.cli.node import Node, NodeOptions
    from penstock.cli.serving import serve

    flags = [
        *flags,
        ("--data", "data", data),
        ("--listen-anywhere", "listen_anywhere", listen_anywhere),
        ("--log-level", "log_level", log_level),
        ("--advertise", "broker.advertised_address", advertise),
    ]
    configuration = _configure(roles, files, flags, pairs)
    options = NodeOptions.of(configuration, roles)
    store = options.store if options.broker is not None else None
    remoting, store, warnings = fit(raise_limit(), options.remoting, store)
    options = replace(options, remoting=remoting, store=store or options.store)
    log_to_stderr(options.process.log_level)
    for warning in [*configuration.warnings, *warnings, *_uncompiled()]:
        complain(warning)
    node = Node(options)
    return serve(node, lambda: _say_ready(command, node, as_json), options.process.stop_timeout_ms)


def _uncompiled() -> list[str]:
    """A warning if the installation found no compiler. PENSTOCK_PURE=1 asks for this form."""
    from penstock import _hot

    if os.environ.get("PENSTOCK_PURE") == "1" or _hot.form() == "compiled":
        return []
    return [
        "the hot modules are not compiled: everything works, but several times slower; install a C compiler and the "
        "headers of Python and then penstock again, or a wheel for this version of Python"
    ]


def _configure(
    roles: Sequence[str],
    files: Sequence[Path],
    flags: Sequence[tuple[str, str, object]],
    pairs: Sequence[str],
) -> Configuration:
    """All sources, the lowest first."""
    from penstock.cli.config import Configuration

    sections = [*roles, "remoting", "tls", "access", *(("store",) if "broker" in roles else ())]
    configuration = Configuration(sections)
    for path in files:
        configuration.add_file(path, role=roles[0] if len(roles) == 1 else None)
    configuration.add_environment(os.environ)
    if roles == ("broker",) and not os.environ.get("PENSTOCK_BROKER_NAME_SERVERS"):
        name_servers = os.environ.get("PENSTOCK_NAMESERVER") or None  # the one that the client commands read
        configuration.add_flags([("PENSTOCK_NAMESERVER", "broker.name_servers", name_servers)])
    configuration.add_flags(flags)
    configuration.add_pairs(pairs)
    return configuration


def _say_ready(command: str, node: Node, as_json: bool) -> None:
    from penstock.cli.escaping import one_line

    facts = node.facts()
    if as_json:
        import json

        click.echo(json.dumps({"ready": True, "command": command, "pid": os.getpid(), **facts}))
    else:
        labels = {
            "nameserver": "name server",
            "broker": "broker",
            "coordinator": "coordinator",
            "metadata": "metadata",
            "data": "data",
        }
        parts = [one_line(f"{label} {facts[name]}") for name, label in labels.items() if name in facts]
        if sys.stdout.isatty():
            click.echo("\n  ".join([f"penstock {command} is ready; Ctrl-C stops it", *parts]))
        else:
            click.echo(f"penstock {command} is ready: {', '.join(parts)}")
