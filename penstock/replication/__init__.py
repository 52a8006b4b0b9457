"""The log on more than one machine: the classic stream of a master and its slaves, and the one of a coordinated set.

Rule: this room knows the log and never the broker. Cores (`sender`, `receiver`, `acks`, `handshake`) decide without
any I/O and are driven by servers and simulations alike; `leader` and `follower` put them on sockets and a store.
"""

from penstock.replication.acks import ALL_IN_SYNC, AckTracker, Proposal, copies_needed
from penstock.replication.follower import HaClient
from penstock.replication.leader import HaServer
from penstock.replication.options import ReplicationOptions
from penstock.replication.waiting import Outcome

__all__ = [
    "ALL_IN_SYNC",
    "AckTracker",
    "HaClient",
    "HaServer",
    "Outcome",
    "Proposal",
    "ReplicationOptions",
    "copies_needed",
]
