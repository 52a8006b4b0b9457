"""What the commands share that talk to a cluster: which name server, how long to wait, what to say if it fails."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from penstock.cli.complaints import awaiting, complain, note
from penstock.cli.option_types import NumberType
from penstock.errors import (
    CallTimeoutError,
    ConnectError,
    PenstockError,
    ResponseError,
    RouteNotFoundError,
    did_you_mean,
)

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.coordinators import Coordinators
    from penstock.remoting import TlsOptions

T = TypeVar("T")
DEFAULT_NAME_SERVER = "127.0.0.1:9876"
DEFAULT_COORDINATOR = "127.0.0.1:9877"
EXIT_NOT_FOUND = 1
TOPICS_COMPARED = 5_000
SEE_TOPICS = "`penstock topic list` shows the topics"
SEE_STATUS = "`penstock status` shows which servers answer"


def warn_of_secret(what: str, instead: str) -> None:
    """A secret was given on the command line: every process of the machine can read it there."""
    complain(f"{what}: `ps` shows this secret to every user of this machine; use {instead}")


def _secret_flag(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        warn_of_secret(
            "--secret-key is deprecated", "--secret-file FILE, --credentials FILE or PENSTOCK_SECRET_KEY"
        )
    return value


def secret_of(secret_key: str | None, secret_file: str | None) -> str:
    """The secret of --secret-key or --secret-file; empty where neither is given."""
    if secret_file is None:
        return secret_key or ""
    if secret_key is not None:
        raise click.UsageError("--secret-key and --secret-file both give the secret. Leave --secret-key out")
    from pathlib import Path

    from penstock.runtime import SystemDisk
    from penstock.security.credentials import secret_from_file

    return secret_from_file(Path(secret_file), SystemDisk())


# Who asks, and over TLS or not: for every command that talks to a cluster.
ACCESS_OPTIONS = (
    click.option("--tls", is_flag=True, help="Connect with TLS."),
    click.option(
        "--tls-trusted",
        metavar="FILE",
        envvar="PENSTOCK_TLS_TRUSTED",
        help="Connect with TLS and trust the certificates in this PEM file (PENSTOCK_TLS_TRUSTED).",
    ),
    click.option(
        "--tls-certificate",
        metavar="FILE",
        help="Connect with TLS and show the certificate in this PEM file, which has its key too.",
    ),
    click.option("--access-key", metavar="NAME", help="Sign requests as this user (PENSTOCK_ACCESS_KEY)."),
    click.option(
        "--secret-file",
        metavar="FILE",
        help="Read the user's secret from the first line of this file (or set PENSTOCK_SECRET_KEY).",
    ),
    click.option(
        "--secret-key",
        metavar="SECRET",
        callback=_secret_flag,
        help="Deprecated: the user's secret, which `ps` shows to everyone. Use --secret-file.",
    ),
    click.option(
        "--credentials",
        metavar="FILE",
        help="Read both keys from a TOML file or RocketMQ's tools.yml (PENSTOCK_CREDENTIALS).",
    ),
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Whom a command talks to, and how: the address is a name server's or, for some commands, a coordinator's."""

    address: str
    timeout_ms: int
    tls_trusted: str | None = None
    with_tls: bool = False
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    credentials: str | None = None
    tls_certificate: str | None = None

    def signing(self) -> dict[str, str]:
        """What a client is told to sign with; what is not given here it finds in the environment."""
        if self.access_key or self.secret_key:
            return {"access_key": self.access_key or "", "secret_key": self.secret_key or ""}
        return {"credentials_file": self.credentials} if self.credentials else {}

    def tls(self) -> TlsOptions | None:
        """None where connections are plain."""
        if not self.with_tls and self.tls_trusted is None and self.tls_certificate is None:
            return None
        from penstock.remoting import TlsOptions

        return TlsOptions(trusted=self.tls_trusted or "", certificate=self.tls_certificate or "")


def client_options(command: Callable[..., T]) -> Callable[..., T]:
    """`--json`, and the options that become the command's `cluster`, which is found through a name server."""
    return _cluster_options(
        command, "--nameserver", "Name server", "PENSTOCK_NAMESERVER", DEFAULT_NAME_SERVER
    )


def coordinator_options(command: Callable[..., T]) -> Callable[..., T]:
    """The same for a command that asks the coordinators."""
    return _cluster_options(
        command, "--coordinator", "Coordinator", "PENSTOCK_COORDINATOR", DEFAULT_COORDINATOR
    )


def _cluster_options(
    command: Callable[..., T], flag: str, what: str, variable: str, default: str
) -> Callable[..., T]:
    @functools.wraps(command)
    def with_cluster(
        *arguments: Any,
        address: str,
        timeout_ms: int,
        tls: bool,
        tls_trusted: str | None,
        access_key: str | None,
        secret_key: str | None,
        secret_file: str | None,
        credentials: str | None,
        tls_certificate: str | None,
        **others: Any,
    ) -> T:
        secret = secret_of(secret_key, secret_file)
        cluster = Cluster(
            address, timeout_ms, tls_trusted, tls, access_key, secret, credentials, tls_certificate
        )
        return command(*arguments, cluster=cluster, **others)

    decorators = (
        click.option(
            flag,
            "address",
            metavar="HOST:PORT",
            envvar=variable,
            default=default,
            help=f"{what}; several are separated by ; ({variable}, {default}).",
        ),
        click.option(
            "--timeout",
            "timeout_ms",
            metavar="MS",
            type=NumberType(1, 600_000),
            default=3_000,
            help="How long one answer may take, in milliseconds (3000).",
        ),
        *ACCESS_OPTIONS,
        click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
    )
    return functools.reduce(lambda made, decorator: decorator(made), reversed(decorators), with_cluster)


@contextmanager
def reaching(*, is_signed: bool = True) -> Iterator[None]:
    """Say of a cluster that does not answer, or refuses, what to do about it."""
    try:
        yield
    except ConnectError as error:
        raise PenstockError(error.message, _as_options(error.hint)) from error
    except CallTimeoutError as error:
        raise PenstockError(
            error.message, f"try again, or allow more with --timeout; {SEE_STATUS}"
        ) from error
    except ResponseError as error:
        from penstock.protocol.codes import ResponseCode

        hint = error.hint
        if error.code == ResponseCode.NO_PERMISSION and not is_signed:
            hint = hint or "--access-key NAME --secret-file FILE, or --credentials FILE"
        raise PenstockError(f"refused: {error.remark or f'code {error.code}'}", hint) from error


def _as_options(hint: str) -> str:
    """What a client is to be given, as the options of a command."""
    from penstock.client.coordinators import START_COORDINATOR
    from penstock.client.name_servers import START_NAME_SERVER, TLS_ONLY
    from penstock.remoting.client import NOT_RUNNING, PLAINTEXT_ONLY, UNTRUSTED

    options = {
        START_NAME_SERVER: "start one (`penstock up`), or name another with --nameserver (PENSTOCK_NAMESERVER)",
        START_COORDINATOR: "start one (`penstock coordinator`), or name another with --coordinator",
        TLS_ONLY: "servers that take TLS only close other connections: add --tls or --tls-trusted FILE",
        PLAINTEXT_ONLY: "leave out --tls",
        UNTRUSTED: "name its certificate with --tls-trusted FILE; a server that created its own keeps it in "
        "tls/certificate.pem of its data directory",
        NOT_RUNNING: SEE_STATUS,
        "": SEE_STATUS,
    }
    return options.get(hint, hint)


@contextmanager
def administering(cluster: Cluster, missing: str = "") -> Iterator[Admin]:
    """An admin client of the cluster; a terminal shows what it waits for. `missing` is what to do about a topic that
    is not there, where creating it is no help."""
    from penstock.client.admin import Admin
    from penstock.client.routes import CREATE_FIRST

    class ShowingAdmin(Admin):
        def start(self) -> Self:
            with awaiting(waiting):
                return super().start()

        def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
            with awaiting(waiting):
                return super()._run(coroutine)

    waiting = f"waiting for {cluster.address}"
    signing: Any = cluster.signing()
    with (
        reaching(is_signed=bool(signing)),
        ShowingAdmin(
            cluster.address, tls=cluster.tls(), call_timeout_ms=cluster.timeout_ms, **signing
        ) as admin,
    ):
        try:
            yield admin
        except RouteNotFoundError as error:
            near = did_you_mean(error.topic, admin.list_topics()[:TOPICS_COMPARED]) if error.topic else ""
            advice = near or (missing if error.hint.startswith(CREATE_FIRST) else "")
            if advice:
                raise PenstockError(error.message, advice) from error
            raise


def require_group(admin: Admin, name: str) -> None:
    """An unknown group is an error, not an empty one."""
    known = admin.list_groups(internal=True)
    if name not in known:
        raise PenstockError(
            f"there is no group {name}",
            did_you_mean(name, known) or "`penstock group list` shows the groups",
        )


def check_brokers(admin: Admin) -> None:
    """Refuse an empty answer of a cluster whose brokers are all down: it says nothing about what there is."""
    brokers = admin.cluster_status().brokers
    if all(broker.error for broker in brokers):
        down = ", ".join(sorted({broker.name for broker in brokers}))
        raise PenstockError(
            f"no broker is up ({down or 'none is registered'})", f"start the brokers; {SEE_STATUS}"
        )


def ask_coordinators(cluster: Cluster, question: Callable[[Coordinators], Awaitable[T]]) -> T:
    """The answer of the coordinator that leads."""
    import asyncio

    from penstock.client.addresses import parse_coordinators
    from penstock.client.coordinators import Coordinators
    from penstock.client.options import ClientOptions
    from penstock.client.signing import signing_hook
    from penstock.errors import OptionError
    from penstock.remoting import RemotingClient
    from penstock.runtime import Runtime

    addresses = parse_coordinators(cluster.address)
    if not addresses:
        raise OptionError("no coordinator was named", "write --coordinator HOST:PORT")

    async def ask() -> T:
        runtime = Runtime.system()
        signing: dict[str, Any] = cluster.signing()
        hook = signing_hook(ClientOptions(**signing), runtime, None)
        remoting = RemotingClient(runtime=runtime, tls=cluster.tls(), hook=hook)
        try:
            return await question(Coordinators(addresses, remoting, cluster.timeout_ms))
        finally:
            await remoting.close()

    with (
        reaching(is_signed=bool(cluster.signing())),
        awaiting(f"waiting for the coordinator at {cluster.address}"),
    ):
        return asyncio.run(ask())


def echo_json(value: Any, *, lines: bool = False) -> None:
    """One document, or one of several lines; ASCII only, so that no terminal acts on what a message contains."""
    import json

    click.echo(json.dumps(value, indent=None if lines else 2, default=str))


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost; a script, which cannot be asked, has to say --yes."""
    import sys

    from penstock.cli.escaping import one_line

    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{one_line(question)} Add --yes to say so", click.get_current_context())
    if not _is_confirmed(one_line(question)):
        note("nothing was changed")
        click.get_current_context().exit(EXIT_NOT_FOUND)


def _is_confirmed(question: str) -> bool:
    import sys

    from penstock.cli.signals import read_line

    while True:
        click.echo(f"{question} [y/N]: ", nl=False, err=True)
        try:
            line = read_line(sys.stdin)
        except KeyboardInterrupt:
            line = ""
        if not line:
            raise click.Abort
        answer = line.strip().lower()
        if answer in ("y", "yes", "n", "no", ""):
            return answer in ("y", "yes")
        complain("answer y or n")
