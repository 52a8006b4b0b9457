"""How many files a server process may have open, and what follows from it for connections and queue files.

Rules: the limit is raised as far as the system allows, as a JVM does. Connections that still do not fit are not
promised: a server that runs out of descriptors can neither accept clients nor write its queues. Queues are not
limited by it: their files are opened when they are needed, and fewer of them are kept open.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.remoting import RemotingOptions
from penstock.store import StoreOptions

# Log segments, index files, config files, sockets of its own, and some to spare.
RESERVED = 256
# A queue file that is open may be mapped as well, which takes another one.
PER_QUEUE_FILE = 2
# More than any default needs; a system without a limit names a number too large to ask for.
ENOUGH = 1 << 20
# A limit that leaves this many connections is not worth a warning.
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
    limit: int, remoting: RemotingOptions, store: StoreOptions | None
) -> tuple[RemotingOptions, StoreOptions | None, list[str]]:
    """The options with no more connections and open queue files than there are descriptors for, and what to say about
    it. `store`: None for a process that has none."""
    room = max(limit - RESERVED, limit // 4, 4)
    if store is not None:
        files = max(min(store.queue_files_open_max, room // 2 // PER_QUEUE_FILE), 1)
        room -= files * PER_QUEUE_FILE
        if files < store.queue_files_open_max:
            store = replace(store, queue_files_open_max=files)
    connections = max(room, 1)
    if remoting.connections_max <= connections:
        return remoting, store, []
    remoting = replace(remoting, connections_max=connections)
    if connections >= MANY:
        return remoting, store, []
    said = (
        f"this process may open only {limit} files, so it takes at most {connections} connections; raise the limit "
        "with ulimit -n (LimitNOFILE for systemd)"
    )
    return remoting, store, [said]
