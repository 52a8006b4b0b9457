"""Small parts of which a broker is assembled: what processors have in common, timers, its address in records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock.broker.options import BrokerOptions, BrokerRole
from penstock.errors import CodecError
from penstock.message import HostAddress
from penstock.remoting import Connection, FastPath, ProcessorTable, TlsOptions
from penstock.runtime import Runtime
from penstock.security import NodeAccess, cluster_runtime

_EVERYWHERE = ("", "0.0.0.0", "::")


class Processor(Protocol):
    """What answers requests."""

    def register(self, table: ProcessorTable) -> None: ...


class Reconfigurable(Protocol):
    """What follows settings that change while the broker runs."""

    def reconfigure(self, options: BrokerOptions) -> None: ...


class FastPathSlot:
    """Stands in for the compiled way until there is one: a server is made before the store is open."""

    def __init__(self) -> None:
        self.path: FastPath | None = None

    def process(self, connection: Connection, data: bytes, start: int) -> int:
        return start if self.path is None else self.path.process(connection, data, start)


class Timers:
    """Functions called at an interval, until stopped."""

    def __init__(self) -> None:
        self._handles: dict[int, asyncio.TimerHandle] = {}

    def every(self, interval_ms: int, action: Callable[[], None]) -> None:
        self._plan(len(self._handles), interval_ms, action)

    def _plan(self, number: int, interval_ms: int, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._handles[number] = loop.call_later(interval_ms / 1000, self._run, number, interval_ms, action)

    def _run(self, number: int, interval_ms: int, action: Callable[[], None]) -> None:
        self._plan(number, interval_ms, action)
        action()

    def stop(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()


def check_replication(options: BrokerOptions, access: NodeAccess) -> None:
    """OptionError if this broker needs replication and access control forbids it without a cluster secret."""
    if options.coordinators:
        access.require_cluster_secret("this broker is under a coordinator")
    elif options.is_slave or options.role is BrokerRole.SLAVE:
        access.require_cluster_secret("this broker is a slave")
    elif (
        options.role is BrokerRole.SYNC_MASTER
        or max(options.in_sync_replicas, options.min_in_sync_replicas) > 1
    ):
        access.require_cluster_secret("this broker waits for replicas")
    elif options.ha_port:
        access.require_cluster_secret(
            f"a replication port is asked for (broker.ha_port is {options.ha_port})"
        )


def ha_runtime(runtime: Runtime, access: NodeAccess, tls: TlsOptions | None) -> Runtime:
    """The runtime of replication: with a cluster secret only members that prove it connect, over TLS if it is on.
    Without one the port is RocketMQ's own, unencrypted; `NodeAccess.replicates` says whether it may be opened."""
    if not access.cluster_secret:
        return runtime
    server, client = (None, None) if tls is None else (tls.server_context(), tls.client_context())
    return cluster_runtime(runtime, access.cluster_secret, server, client)


def record_host(options: BrokerOptions, listening: HostAddress) -> HostAddress:
    """The address in stored records. It has to be numeric; a name that clients are told cannot be in it."""
    for text in (options.advertise(listening.ip, listening.port), f"{listening.ip}:{listening.port}"):
        try:
            address = HostAddress.parse(text)
        except CodecError:
            continue
        if address.ip not in _EVERYWHERE:
            return address
    return HostAddress("::1" if ":" in listening.ip else "127.0.0.1", listening.port)
