"""Where ZooKeeper is, and how long it is waited for.

Rule: validated once, when the options are made. Nothing of kazoo is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.metadata.paths import ROOT_BYTES_MAX, check_path
from penstock.errors import MetadataError, OptionError


@dataclass(frozen=True, slots=True)
class ZooKeeperOptions:
    """One ensemble, seen by one process."""

    # Addresses of the servers, host:port, with commas between them.
    hosts: str
    # Below which entry everything is kept.
    root: str = "/penstock"
    # How long the servers keep a session they hear nothing of. They may grant another time: between 2 and 20 of
    # their ticks, usually 4 to 40 s.
    session_timeout_ms: int = 6_000
    # How long the start waits for a server before it gives up.
    connect_timeout_ms: int = 10_000
    # How long one operation waits for a connection and for its answer.
    operation_timeout_ms: int = 6_000

    def __post_init__(self) -> None:
        for name in ("session_timeout_ms", "connect_timeout_ms", "operation_timeout_ms"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}", "it must be at least 1")
        try:
            check_path(self.root)
        except MetadataError as error:
            raise OptionError(f"root: {error.message}", error.hint) from None
        if len(self.root.encode()) > ROOT_BYTES_MAX:
            raise OptionError(f"root {self.root!r} is too long", f"it may have {ROOT_BYTES_MAX} bytes")
        for address in self.hosts.split(","):
            host, colon, port = address.rpartition(":")
            if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536) or "/" in host:
                raise OptionError(
                    f"{address!r} is no address of a ZooKeeper server",
                    "write host:port, with commas between several",
                )
