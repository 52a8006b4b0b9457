"""Where offsets are kept in ZooKeeper, and how often they are written. TubeMQ's key is in parentheses.

Rule: validated once, when the options are made.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.coordinator.metadata.zookeeper_options import ZooKeeperOptions
from penstock.coordinator.offsets.layout import normalised_root
from penstock.errors import OptionError


@dataclass(frozen=True, slots=True)
class OffsetStorageOptions:
    """The ZooKeeper part of a broker's configuration."""

    # Addresses of the servers, host:port, with commas between them (zkServerAddr).
    hosts: str = "localhost:2181"
    # Below which entry TubeMQ keeps everything (zkNodeRoot).
    root: str = "/tubemq"
    # How long the servers keep a session they hear nothing of (zkSessionTimeoutMs).
    session_timeout_ms: int = 30_000
    # How long the start waits for a server (zkConnectionTimeoutMs).
    connect_timeout_ms: int = 30_000
    # Offsets that have changed are written this often (zkCommitPeriodMs).
    commit_interval_ms: int = 5_000
    # How often writing is tried when the broker stops (zkCommitFailRetries), and the pause in between (zkSyncTimeMs).
    stop_tries: int = 10
    retry_wait_ms: int = 1_000
    # How many entries are written at the same time.
    parallel_writes: int = 64

    def __post_init__(self) -> None:
        for name in ("commit_interval_ms", "stop_tries", "retry_wait_ms", "parallel_writes"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}", "it must be at least 1")
        # The rest has the rules of ZooKeeper's own options.
        self.zookeeper()

    def zookeeper(self) -> ZooKeeperOptions:
        return ZooKeeperOptions(
            self.hosts,
            root=normalised_root(self.root),
            session_timeout_ms=self.session_timeout_ms,
            connect_timeout_ms=self.connect_timeout_ms,
        )
