"""Which metadata store an address means.

    sqlite:/var/lib/penstock/metadata.db        a file of this node
    zookeeper:zk1:2181,zk2:2181,zk3:2181        an ensemble; its root is the default one
    zookeeper:zk1:2181,zk2:2181/tubemq          with a root of its own

Rule: a backend is imported when it is asked for, so that ZooKeeper stays an optional extra.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.coordinator.metadata.port import MetadataStore
from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.errors import OptionError, install_hint
from penstock.runtime import Runtime

_HINT = "write sqlite:PATH or zookeeper:HOST:PORT,HOST:PORT[/ROOT]"


def metadata_store(
    address: str, runtime: Runtime | None = None, *, session_timeout_ms: int | None = None
) -> MetadataStore:
    """The store, not started yet. OptionError if the address is none, or its backend is not installed."""
    kind, _, place = address.partition(":")
    if kind == "sqlite" and place:
        from penstock.coordinator.metadata.embedded import EmbeddedMetadata

        return EmbeddedMetadata(place, runtime)
    if kind == "zookeeper" and place:
        options = zookeeper_options(place)
        if session_timeout_ms is not None:
            options = replace(options, session_timeout_ms=session_timeout_ms)
        try:
            from penstock.coordinator.metadata.zookeeper import ZooKeeperMetadata
        except ModuleNotFoundError as error:
            raise OptionError(
                f"{address} needs the package {error.name}", install_hint("zookeeper")
            ) from error
        return ZooKeeperMetadata(options, runtime)
    raise OptionError(f"{address!r} is no address of a metadata store", _HINT)


def zookeeper_options(place: str) -> ZooKeeperOptions:
    """Of `HOSTS[/ROOT]`."""
    hosts, slash, root = place.partition("/")
    return ZooKeeperOptions(hosts, slash + root) if root else ZooKeeperOptions(hosts)
