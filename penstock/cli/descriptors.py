"""How many files a server process may have open, and what follows from it for connections and queues.

Rules: the limit is raised as far as the system lets it be, as a JVM does. Connections and queues that still do not
fit are not promised: a server that runs out of descriptors can neither accept clients nor write its queues.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.options import BrokerOptions
from penstock.remoting import RemotingOptions

# Log segments, index files, config files, sockets of its own, and some to spare.
RESERVED = 256
# A queue that has messages has its file open, and mapped, which takes another.
PER_QUEUE = 2
# More than any default needs; a system without a limit names a number too large to ask for.
ENOUGH = 1 << 20
# Nobody has to be told of a limit that leaves this many connections or queues.
MANY = 1_000


def raise_limit() -> int:
    """Have as many descriptors as may be had; how many that are."""
    try:
        import resource
    except ImportError:  # no such limit here
        return ENOUGH
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return int(soft)
        return int(wanted)
    return ENOUGH if soft == resource.RLIM_INFINITY else int(soft)


def fit(
    limit: int, remoting: RemotingOptions, broker: BrokerOptions | None
) -> tuple[RemotingOptions, BrokerOptions | None, list[str]]:
    """The options with no more connections and queues than there are descriptors for, and what to say about it."""
    room = max(limit - RESERVED, limit // 4, 4)
    connections = room if broker is None else room // 4
    said = []
    if remoting.connections_max > connections:
        said.append(f"{connections} connections")
        remoting = replace(remoting, connections_max=connections)
    queues = (room - connections) // PER_QUEUE
    if broker is not None and broker.queues_max > queues:
        said.append(f"{queues} queues with messages")
        broker = replace(broker, queues_max=max(queues, 1))
    if not said or min(connections, queues if broker is not None else connections) >= MANY:
        return remoting, broker, []
    return (
        remoting,
        broker,
        [
            f"this process may open only {limit} files, so it takes at most {' and '.join(said)}; raise the limit "
            "with ulimit -n (LimitNOFILE for systemd)"
        ],
    )
