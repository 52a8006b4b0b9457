"""Every setting of a coordinator, validated once when the options are made.

`docs/configuration.md` is generated from this file: the comment above a field is its documentation, and the name in
parentheses is the key of RocketMQ's controller or of TubeMQ's master.ini. What the times mean for safety is in
leases.py and docs/coordinator/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.coordinator.set_rules import SetPolicy
from penstock.errors import OptionError

_EVERYWHERE = ("0.0.0.0", "::", "[::]")
_ZERO_ALLOWED = ("port", "lease_margin_ms", "first_balance_ms")


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Where a coordinator listens and keeps its state, whom it believes for how long, and how much it keeps."""

    # Address to listen on. Without access control it is the loopback address unless told otherwise.
    host: str = "127.0.0.1"
    # Port to listen on; 0 takes any free one.
    port: int = 9877
    # The address, host:port, under which brokers, clients and other coordinators reach this one. Empty: where it
    # listens.
    advertised_address: str = ""
    # Where the state is kept: sqlite:PATH for a single coordinator, zookeeper:HOST:PORT,HOST:PORT[/ROOT] for several.
    # Empty: metadata.db in the data directory.
    metadata: str = ""
    # How long ZooKeeper keeps the session of a coordinator that it does not hear of. A leader that dies is replaced
    # after this time.
    session_timeout_ms: int = 6_000
    # A consumer that has not reported for this long is taken out of its group (consumerHeartbeatTimeoutMs).
    consumer_timeout_ms: int = 45_000
    # A producer that has not reported for this long is forgotten (producerHeartbeatTimeoutMs).
    producer_timeout_ms: int = 30_000
    # A broker that has not reported for this long is taken out of the registry (brokerHeartbeatTimeoutMs). Whether it
    # may still be master is decided sooner, by its lease.
    broker_timeout_ms: int = 25_000
    # How often consumers, producers and brokers are looked at for their timeouts.
    scan_interval_ms: int = 1_000
    # How long a master may acknowledge on its own after it sent a beat; one that dies is replaced after this time. At
    # least four times the interval of the brokers' beats, so that three may be lost.
    master_lease_ms: int = 2_000
    # Added to a lease before another master is elected, for clocks that run at different speeds.
    lease_margin_ms: int = 100
    # How often leases are looked at.
    lease_scan_ms: int = 50
    # A broker that has not reported for this long is not elected and not let into a sync-state set.
    broker_silent_ms: int = 2_000
    # How long a broker that was elected may take to act as master before another one is elected.
    promotion_timeout_ms: int = 10_000
    # Elect a replica outside the sync-state set when nobody inside is alive (enableElectUncleanMaster). It may lack
    # acknowledged messages, which are then lost.
    unclean_elections: bool = False
    # How old the copy may be from which a coordinator that does not lead answers questions.
    stale_max_ms: int = 3_000
    # How long a question waits for a copy that is not too old.
    stale_wait_ms: int = 3_000
    # How long a request may wait for the metadata store.
    request_timeout_ms: int = 5_000
    # How long a new leader lets consumers report what they hold before it assigns anything. They do as soon as they
    # have found it; what one that is late holds is safe by its lease at the broker (firstBalanceDelayAfterStartMs).
    first_balance_ms: int = 5_000
    # How often each group is looked at although nothing changed (consumerBalancePeriodMs).
    balance_interval_ms: int = 30_000
    # From a change of members or queues to the round that takes it into account: whoever comes within this time is
    # divided together.
    balance_gather_ms: int = 500
    # How soon a queue that could not be taken over is given out again.
    balance_retry_ms: int = 1_000
    # Rounds of `balance_interval_ms` after which events that a consumer does not finish are dropped.
    unfinished_rounds_max: int = 10
    # How long a consumer whose connection dropped may take to come back before its queues are given to others.
    consumer_return_ms: int = 3_000
    # Of a group with binding "ring": how often each consumer is on the consistent-hash ring; more make shares more
    # level. All coordinators of a cluster must have the same, or queues move when another one leads.
    ring_virtual_nodes: int = 64
    # Queues that a topic gets on demand, over all broker sets; operators may give it more.
    on_demand_queues_max: int = 10
    # Groups that may be balanced at once.
    groups_max: int = 10_000
    # Consumers that one group may have.
    group_members_max: int = 1_000
    # Topics that one consumer may subscribe to, or one producer report.
    client_topics_max: int = 1_024
    # Queues that consumers of all groups may report as held, or as refused by a broker; one group has at most 90
    # percent of what others leave.
    reported_queues_max: int = 200_000
    # Broker sets that may exist at once.
    sets_max: int = 1_024
    # Brokers that one set may have.
    replicas_max: int = 32
    # Entries of topic-partitions in the registry; those of further topics are left out.
    registry_partitions_max: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < (0 if field.name in _ZERO_ALLOWED else 1):
                least = 0 if field.name in _ZERO_ALLOWED else 1
                raise OptionError(f"{field.name} is {value}", f"use at least {least}")
        self._require(self.ring_virtual_nodes <= 1_024, "ring_virtual_nodes", "use 1 to 1024")
        self._require(bool(self.host), "host", "name an address, 127.0.0.1 for this machine only")
        self._require(self.port <= 65_535, "port", "use 0 (any free port) to 65535")
        self._require(
            bool(self.advertised_address) or self.host not in _EVERYWHERE,
            "host",
            "nobody can dial that: set coordinator.advertised_address to what others dial",
        )
        self._require(
            self.lease_scan_ms * 2 <= self.master_lease_ms,
            "lease_scan_ms",
            "master_lease_ms is too short for it",
        )
        self._require(
            not self.metadata or self.metadata.startswith(("sqlite:", "zookeeper:")),
            "metadata",
            "write sqlite:PATH or zookeeper:HOST:PORT,HOST:PORT[/ROOT]",
        )

    def _require(self, holds: bool, name: str, hint: str) -> None:
        if not holds:
            raise OptionError(f"{name} is {getattr(self, name)!r}", hint)

    @property
    def set_policy(self) -> SetPolicy:
        return SetPolicy(
            lease_ms=self.master_lease_ms,
            margin_ms=self.lease_margin_ms,
            silent_ms=self.broker_silent_ms,
            promotion_ms=self.promotion_timeout_ms,
            replicas_max=self.replicas_max,
            is_unclean_allowed=self.unclean_elections,
        )
