"""The roles of one process, assembled: a name server, a broker, a coordinator, or several, in one event loop.

Rules: started in the order in which they need each other and stopped in the reverse one; a start that fails
takes down what it had started. A broker beside a name server registers with it and is ready only when it is
known there, so that whoever reads the ready line can send at once. A broker beside a coordinator is under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.broker.options import BrokerOptions
from penstock.cli.listening import advertised_host, is_loopback, is_wildcard, require_private
from penstock.cli.options import ProcessOptions
from penstock.coordinator.options import CoordinatorOptions
from penstock.errors import PenstockError
from penstock.nameserver.options import NameServerOptions
from penstock.nameserver.server import NameServer
from penstock.remoting import RemotingOptions, TlsMode, TlsOptions
from penstock.remoting.tls import is_certificate_name
from penstock.runtime import Runtime
from penstock.security import AccessOptions, NodeAccess
from penstock.store.options import StoreOptions

if TYPE_CHECKING:
    from penstock.cli.config import Configuration
    from penstock.coordinator.server import Coordinator

REGISTER_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Everything that a node is made of; a role without options is not there."""

    process: ProcessOptions
    nameserver: NameServerOptions | None
    broker: BrokerOptions | None
    store: StoreOptions
    remoting: RemotingOptions
    # None: plain connections only, also to name servers.
    tls: TlsOptions | None
    coordinator: CoordinatorOptions | None = None
    access: AccessOptions = field(default_factory=AccessOptions)

    @staticmethod
    def of(configuration: Configuration, roles: Sequence[str]) -> NodeOptions:
        """What was configured, with the checks that concern the process as a whole."""
        process = configuration.options("", ProcessOptions)
        if Path(process.data).exists() and not Path(process.data).is_dir():
            raise PenstockError(f"{process.data} is not a directory", "name one with --data")
        nameserver = configuration.options("nameserver", NameServerOptions) if "nameserver" in roles else None
        broker = configuration.options("broker", BrokerOptions) if "broker" in roles else None
        coordinator = None
        if "coordinator" in roles:
            coordinator = configuration.options("coordinator", CoordinatorOptions)
            if not coordinator.metadata:
                path = Path(process.data) / "coordinator" / "metadata.db"
                coordinator = replace(coordinator, metadata=f"sqlite:{path}")
        access = configuration.options("access", AccessOptions)
        sections = (("nameserver", nameserver), ("broker", broker), ("coordinator", coordinator))
        for section, options in sections:
            if options is not None:
                given = configuration.given(section, "host")
                origin = given.origin if given else section
                require_private(options.host, origin, allowed=process.listen_anywhere or access.enabled)
        if broker is not None:
            configuration.warnings += _doubts(broker, alone=nameserver is None)
        if nameserver is not None and not nameserver.kv_config_path:
            path = Path(process.data) / "namesrv" / "kvConfig.json"
            nameserver = replace(nameserver, kv_config_path=str(path))
        tls = _with_place(configuration.options("tls", TlsOptions), process, sections)
        configuration.warnings += _access_doubts(access, tls, sections)
        return NodeOptions(
            process,
            nameserver,
            broker,
            configuration.options("store", StoreOptions) if broker is not None else StoreOptions(),
            configuration.options("remoting", RemotingOptions),
            tls if tls.mode is not TlsMode.DISABLED else None,
            coordinator,
            access,
        )


def _with_place(
    tls: TlsOptions, process: ProcessOptions, sections: Sequence[tuple[str, object]]
) -> TlsOptions:
    """Where a certificate is kept that a server creates, and for which of its own names it is."""
    own = []
    for _, options in sections:
        advertised = str(getattr(options, "advertised_address", ""))
        own += [str(getattr(options, "host", "")), advertised_host(advertised)]
    hosts = [host.strip("[]") for host in own if host and not is_wildcard(host)]
    return replace(
        tls,
        certificate_directory=tls.certificate_directory or str(Path(process.data) / "tls"),
        certificate_names=(*tls.certificate_names, *filter(is_certificate_name, hosts)),
    )


def _doubts(broker: BrokerOptions, *, alone: bool) -> list[str]:
    """What is allowed but hardly meant."""
    found = []
    told = advertised_host(broker.advertised_address)
    if told and is_loopback(broker.host) and not is_loopback(told):
        found.append(
            f"clients are told {broker.advertised_address}, but the broker listens on {broker.host} only; to let "
            "other machines in, add --host 0.0.0.0 --listen-anywhere"
        )
    if alone and not broker.name_servers:
        found.append(
            "no name server is given, so clients cannot find this broker; add --nameserver HOST:PORT"
        )
    if alone and is_wildcard(broker.host) and not told:
        found.append("no address to tell clients: the broker listens everywhere; add --advertise ADDRESS")
    return found


def _access_doubts(
    access: AccessOptions, tls: TlsOptions, sections: Sequence[tuple[str, object]]
) -> list[str]:
    """Signatures keep strangers from acting, not from listening or from sending again what they heard (A10)."""
    hosts = [str(getattr(options, "host", "")) for _, options in sections if options is not None]
    found = []
    if access.enabled and tls.mode is not TlsMode.ENFORCING and not all(map(is_loopback, hosts)):
        found.append("access control without TLS: messages can be read on their way; set tls.mode=enforcing")
    return found


class Node:
    """`start` and `stop` belong to one event loop and are called once each."""

    def __init__(self, options: NodeOptions, runtime: Runtime | None = None) -> None:
        self.options = options
        self._runtime = runtime or Runtime.system()
        self._access = NodeAccess.of(options.access, Path(options.process.data), self._runtime)
        self.nameserver: NameServer | None = None
        self.broker: Broker | None = None
        self.coordinator: Coordinator | None = None

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options = self.options
        if options.coordinator is not None:
            self.coordinator = await self._start_coordinator(options.coordinator)
        if options.nameserver is not None:
            nameserver = NameServer(
                options.nameserver,
                runtime=self._runtime,
                remoting_options=options.remoting,
                tls=options.tls,
                access=self._access,
            )
            await nameserver.start()
            self.nameserver = nameserver
        if options.broker is not None:
            broker_options = options.broker
            if self.nameserver is not None:
                # Its own first: that is the one whose registration the ready line waits for.
                own = _reachable(self.nameserver.address)
                others = [address for address in broker_options.name_servers if address != own]
                broker_options = replace(broker_options, name_servers=(own, *others))
            if self.coordinator is not None:
                own = _reachable(self.coordinator.address)
                others = [address for address in broker_options.coordinators if address != own]
                broker_options = replace(broker_options, coordinators=(own, *others))
            self.broker = Broker(
                broker_options,
                options.store,
                options.process.data,
                runtime=self._runtime,
                remoting_options=options.remoting,
                tls=options.tls,
                access=self._access,
            )
            await self.broker.start()
            if self.nameserver is not None:
                await self._until_registered(self.broker)

    async def _start_coordinator(self, options: CoordinatorOptions) -> Coordinator:
        # Imported here: nobody else needs it, and the command line is to start quickly.
        from penstock.coordinator.balancing_part import BalancingPart
        from penstock.coordinator.metadata.addresses import metadata_store
        from penstock.coordinator.server import Coordinator

        store = metadata_store(options.metadata, self._runtime, session_timeout_ms=options.session_timeout_ms)
        coordinator = Coordinator(
            options,
            store,
            runtime=self._runtime,
            remoting_options=self.options.remoting,
            tls=self.options.tls,
            access=self._access,
            parts=(BalancingPart,),
        )
        await coordinator.start()
        return coordinator

    async def _until_registered(self, broker: Broker) -> None:
        """Only with its own name server: another one may be down, which is no reason to wait. A coordinated broker
        registers when it is told to be master."""
        own = None
        for _ in range(REGISTER_WAIT_MS // 2):
            own = next(iter(broker.registration.links), None)
            if own is not None and own.is_registered:
                return
            await asyncio.sleep(0.002)
        trouble = "it has no master" if own is None else own.trouble or "no answer"
        raise PenstockError(
            f"the broker could not register with its own name server: {trouble}",
            "set tls.trusted to who signed its certificate"
            if self.options.tls and self.options.tls.of_calls()
            else "see the log lines above",
        )

    async def stop(self) -> None:
        broker, self.broker = self.broker, None
        nameserver, self.nameserver = self.nameserver, None
        coordinator, self.coordinator = self.coordinator, None
        try:
            if broker is not None:
                await broker.stop()
        finally:
            try:
                if nameserver is not None:
                    await nameserver.stop()
            finally:
                if coordinator is not None:
                    await coordinator.stop()

    def facts(self) -> dict[str, str]:
        """Where it can be reached and where it keeps its data."""
        found = {}
        if self.nameserver is not None:
            found["nameserver"] = self.nameserver.address
        if self.broker is not None and self.options.broker is not None:
            found["broker"] = self.broker.address
            found["broker_name"] = self.options.broker.broker_name
            found["cluster"] = self.options.broker.cluster_name
            found["data"] = str(Path(self.options.process.data).absolute())
        if self.coordinator is not None:
            found["coordinator"] = self.coordinator.address
            found["metadata"] = self.coordinator.store.address
        return found


def _reachable(address: str) -> str:
    """An address that this machine can dial: a wildcard is not one."""
    host, _, port = address.rpartition(":")
    if not is_wildcard(host):
        return address
    return f"[::1]:{port}" if ":" in host else f"127.0.0.1:{port}"
