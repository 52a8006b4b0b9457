"""Which queues of a topic belong to which member of a group: one pure function per rule.

Rule: every member computes its own share from the same list of queues and the same list of members, and nobody
compares notes. So the rules are RocketMQ's to the letter, order of sorting included: a Java member and a
Penstock member of one group must come to the same division. Queues are sorted by topic, broker and number, ids
of members by their UTF-16 units, as Java sorts them.

A strategy takes sorted lists and gives the share of one member. It may leave queues to nobody (a room nobody
was configured for), but never gives one queue to two members. No state, no I/O, any thread.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import OptionError
from penstock.protocol.bodies import MessageQueue

Queues = Sequence[MessageQueue]
Members = Sequence[str]
VIRTUAL_NODES = 10


class Strategy(Protocol):
    """A rule that all members of a group must share. `name` is RocketMQ's name for it."""

    @property
    def name(self) -> str: ...

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Queues of `member`, which is one of `members`; both lists are sorted and without repetition."""


def allocate(
    strategy: Strategy, member: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> list[MessageQueue]:
    """The share of `member`; nothing if it is no member, because then others have its queues."""
    ids = sorted(set(members), key=_utf16)
    if member not in ids:
        return []
    return strategy.share(member, sorted(set(queues)), ids)


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Averagely:
    """Consecutive blocks; the first `n mod m` members have one queue more."""

    name: str = field(default="AVG", init=False)

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        at, count = members.index(member), len(members)
        size, more = divmod(len(queues), count)
        start = at * size + min(at, more)
        return list(queues[start : start + size + (at < more)])


@dataclass(frozen=True, slots=True)
class Circle:
    """Dealt out like cards: member i has the queues i, i + m, i + 2m …"""

    name: str = field(default="AVG_BY_CIRCLE", init=False)

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        return list(queues[members.index(member) :: len(members)])


def ring_hash(text: str) -> int:
    """Place on the ring: the first four bytes of the MD5, unsigned."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """A queue belongs to the next node on a ring, so that a member who comes or goes moves few queues."""

    virtual_nodes: int = VIRTUAL_NODES
    name: str = field(default="CONSISTENT_HASH", init=False)

    def __post_init__(self) -> None:
        given: object = self.virtual_nodes
        if not isinstance(given, int) or not 1 <= given <= 10_000:
            raise OptionError(f"virtual_nodes is {given!r}", "use 1 to 10000, the same in all members")

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        owners = {ring_hash(f"{one}-{n}"): one for one in members for n in range(self.virtual_nodes)}
        ring = sorted(owners)
        mine = []
        for queue in queues:
            key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            at = bisect_left(ring, ring_hash(key))
            if owners[ring[at % len(ring)]] == member:
                mine.append(queue)
        return mine


@dataclass(frozen=True, slots=True)
class MachineRoom:
    """Only brokers named `room@name` of the given rooms count; their queues are divided into equal blocks, and
    what is left over goes one by one to the first members."""

    rooms: frozenset[str]
    name: str = field(default="MACHINE_ROOM", init=False)

    def __init__(self, rooms: Iterable[str]) -> None:
        object.__setattr__(self, "rooms", frozenset([rooms] if isinstance(rooms, str) else rooms))
        object.__setattr__(self, "name", "MACHINE_ROOM")
        if not self.rooms:
            raise OptionError("no room was given", "name the rooms whose brokers this group reads")

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        within = [queue for queue in queues if self._is_within(queue.broker_name)]
        at, count = members.index(member), len(members)
        size, more = divmod(len(within), count)
        mine = within[at * size : (at + 1) * size]
        return mine + within[count * size + at : count * size + at + 1] if at < more else mine

    def _is_within(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self.rooms


def room_of_broker(queue: MessageQueue) -> str:
    """The room in a broker name `room@name`, or an empty text."""
    room, at, _ = queue.broker_name.partition("@")
    return room if at else ""


def room_of_client(client_id: str) -> str:
    """The unit name, third part of the client id, or an empty text."""
    parts = client_id.split("@")
    return parts[2] if len(parts) > 2 else ""


@dataclass(frozen=True, slots=True)
class RoomNearby:
    """Queues go to members of their own room, by `inner`; rooms without members are shared by all of them.

    Where a queue and a member stand is told by two functions, the same in all members. The default reads the
    room of a broker from its name (`room@name`) and that of a member from the unit name of its client id.
    """

    inner: Strategy = field(default_factory=Averagely)
    broker_room: Callable[[MessageQueue], str] = room_of_broker
    client_room: Callable[[str], str] = room_of_client

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(self.broker_room(queue), []).append(queue)
        members_by_room: dict[str, list[str]] = {}
        for one in members:
            members_by_room.setdefault(self.client_room(one), []).append(one)
        own_room = self.client_room(member)
        mine: list[MessageQueue] = []
        for room in sorted(queues_by_room):
            if room == own_room:
                mine += self.inner.share(member, queues_by_room[room], members_by_room[room])
            elif room not in members_by_room:
                mine += self.inner.share(member, queues_by_room[room], members)
        return sorted(mine)


@dataclass(frozen=True, slots=True)
class FixedQueues:
    """A fixed list of queues, whoever else is in the group: the one rule by which a queue can have two owners,
    if two members were given the same one."""

    queues: tuple[MessageQueue, ...]
    name: str = field(default="CONFIG", init=False)

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        given = tuple(queues)
        if not all(isinstance(queue, MessageQueue) for queue in given):
            raise OptionError(
                f"queues are {given!r}", "use a list of MessageQueue, as those of queues(topic)"
            )
        object.__setattr__(self, "queues", given)
        object.__setattr__(self, "name", "CONFIG")

    def share(self, member: str, queues: Queues, members: Members) -> list[MessageQueue]:
        topics = {queue.topic for queue in queues}
        return [queue for queue in self.queues if queue.topic in topics]


STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "averagely": Averagely,
    "circle": Circle,
    "consistent_hash": ConsistentHash,
    "room_nearby": RoomNearby,
}


def find_strategy(strategy: str | Strategy) -> Strategy:
    """By name, or the strategy itself: `MachineRoom` and `FixedQueues` have to be made, with what they need."""
    if not isinstance(strategy, str):
        return strategy
    if strategy not in STRATEGIES:
        raise OptionError(
            f"there is no rebalance strategy {strategy!r}",
            f"use one of {', '.join(STRATEGIES)}, or an object such as MachineRoom([...]) or FixedQueues([...])",
        )
    return STRATEGIES[strategy]()
