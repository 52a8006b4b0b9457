"""Where new queues go: to the live broker set that has the fewest, one after the other.

Rules. A topic may have `limit` queues that came into being on demand (10); an operator may give it more, and then
nothing is added on demand. A request says how many queues the topic is to have at least; what is there already
counts, so asking twice makes nothing twice. Of sets with equally many queues the one with fewest of this topic is
taken, then the first by name. Queues are never moved: messages stay where they were stored. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode

ON_DEMAND_MAX = 10


@dataclass(frozen=True, slots=True)
class Placement:
    """Queues of one topic on each broker set: all of them, and those to be created."""

    queues: dict[str, int]
    created: dict[str, int]


def place(
    topic: str,
    wanted: int,
    loads: Mapping[str, int],
    existing: Mapping[str, int],
    limit: int = ON_DEMAND_MAX,
) -> Placement:
    """Have `wanted` queues of a topic: `loads` are the queues of all topics on each live set, `existing` those of the
    topic, dead sets included."""
    have = sum(existing.values())
    if wanted < 1:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{wanted} queues are none", "ask for at least 1")
    if wanted > max(limit, have):
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"topic {topic} would have {wanted} queues, and at most {limit} are created on demand",
            f"it has {have}; an operator can give it more (`penstock topic create --queues`)",
        )
    if wanted > have and not loads:
        raise RequestError(
            ResponseCode.BROKER_NOT_EXIST, f"no broker set is alive to take topic {topic}", "start a broker"
        )
    queues = dict(existing)
    totals = dict(loads)
    created: dict[str, int] = {}
    for _ in range(wanted - have):
        least = min(totals, key=lambda name: (totals[name], queues.get(name, 0), name))
        totals[least] += 1
        queues[least] = queues.get(least, 0) + 1
        created[least] = created.get(least, 0) + 1
    return Placement(queues, created)
