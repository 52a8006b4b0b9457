"""Which member of a group gets which queues, by a consistent-hash ring: one pure function, beside `division.divide`.

Rules. A queue goes to the member that its name `topic/broker/number` falls to on the ring of those who subscribe to
its topic. So it depends on names alone: who holds what now changes nothing, and the same members have the same
queues after any history, also under another coordinator with as many virtual nodes. A member that joins takes
queues and none move between others; one that leaves gives its own and none else move. The price is that shares are
level only on average, and a member may have none. No state, no I/O, no chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.coordinator.division import Cause, Division, Held, Reason, Topics
from penstock.coordinator.ring import VIRTUAL_NODES, HashRing
from penstock.protocol.bodies import MessageQueue


def divide_by_ring(
    topics: Topics,
    held: Held,
    queues: Mapping[str, Collection[MessageQueue]],
    virtual_nodes: int = VIRTUAL_NODES,
) -> Division:
    """Divide `queues` (by topic) among the members in `topics` (topics by member), who hold `held`."""
    division = Division({member: set() for member in topics})
    before: dict[MessageQueue, str] = {}
    for member in sorted(held):
        for queue in held[member]:
            before.setdefault(queue, member)
    # Mostly all members subscribe to the same topics: one ring serves them all.
    rings: dict[frozenset[str], HashRing] = {}
    for topic in sorted(queues):
        members = frozenset(member for member, wanted in topics.items() if topic in wanted)
        if members not in rings:
            rings[members] = HashRing(members, virtual_nodes)
        _hand_out(rings[members], sorted(set(queues[topic])), before, division)
    return division


def queue_key(queue: MessageQueue) -> str:
    """What of a queue is hashed."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def _hand_out(
    ring: HashRing, queues: list[MessageQueue], before: Mapping[MessageQueue, str], division: Division
) -> None:
    owners = {queue: ring.bind(queue_key(queue)) for queue in queues}
    sizes: dict[str, int] = {}
    for owner in owners.values():
        if owner is not None:
            sizes[owner] = sizes.get(owner, 0) + 1
    for queue, owner in owners.items():
        holder = before.get(queue, "")
        if owner is None:
            division.reasons[queue] = Reason(Cause.UNWANTED, before=holder)
            continue
        cause = Cause.KEPT if holder == owner else Cause.MOVED if holder else Cause.GIVEN
        division.shares[owner].add(queue)
        division.reasons[queue] = Reason(cause, owner, holder, len(queues), len(ring), sizes[owner])
