"""Which member of a group gets which queues: one pure function.

Rules, the earlier ones first:
1. A queue has one owner, and only one who subscribes to its topic.
2. Of each topic, no subscriber has more than one queue more than another.
3. Over all topics, no member has two more than another who could take one of them. Where all members subscribe to the
   same topics, as they should, that is: nobody has more than one more than anybody.
4. What is held stays, as far as the first three allow. Of one topic that is the least movement there can be; over
   several, a topic's odd queues may move once more for rule 3.
5. Where nothing is held, the queues go out in blocks of neighbours, to members in the order of their names: TubeMQ's
   bulk division, apart from rule 3.

TubeMQ levels the sum alone (rule 3); a topic whose queues are all with one member would be level there. Retry topics,
which are mostly empty, would count as much as busy ones. No state, no I/O, no chance: the same input gives the same
division on every coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from penstock.protocol.bodies import MessageQueue

Topics = Mapping[str, Collection[str]]
Held = Mapping[str, Collection[MessageQueue]]


class Cause(Enum):
    """Why a queue is where it is."""

    KEPT = "kept"
    GIVEN = "given"
    MOVED = "moved"
    UNWANTED = "unwanted"


@dataclass(frozen=True, slots=True)
class Reason:
    """How a queue came to its owner: what the shares of its topic are, and who had it before."""

    cause: Cause
    owner: str = ""
    before: str = ""
    # Of the topic: queues, members that subscribe, and how many queues the owner has.
    queues: int = 0
    members: int = 0
    share: int = 0


@dataclass(slots=True)
class Division:
    """Who is to have what, and why."""

    shares: dict[str, set[MessageQueue]] = field(default_factory=dict)
    reasons: dict[MessageQueue, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class _Topic:
    """One topic while it is being divided."""

    name: str
    queues: Sequence[MessageQueue]
    members: list[str]
    kept: dict[str, list[MessageQueue]]
    before: Mapping[MessageQueue, str]
    base: int
    odd: int
    # Who has one queue more than the others.
    lucky: set[str] = field(default_factory=set)

    def keeps(self, member: str) -> bool:
        """Whether one more than the base is what the member has already."""
        return len(self.kept[member]) > self.base


def divide(topics: Topics, held: Held, queues: Mapping[str, Collection[MessageQueue]]) -> Division:
    """Divide `queues` (by topic) among the members in `topics` (topics by member), who hold `held`."""
    division = Division({member: set() for member in topics})
    found = []
    # Of two who say that they hold a queue, the first by name is believed.
    before: dict[MessageQueue, str] = {}
    for member in sorted(held):
        for queue in held[member]:
            before.setdefault(queue, member)
    for name in sorted(queues):
        topic = _look(name, sorted(set(queues[name])), topics, before)
        if topic.members:
            found.append(topic)
        for queue in topic.queues if not topic.members else ():
            division.reasons[queue] = Reason(Cause.UNWANTED, before=topic.before.get(queue, ""))
    loads = {member: sum(t.base for t in found if member in t.kept) for member in sorted(topics)}
    _give_odd_queues(found, loads)
    _level(found, loads)
    for topic in found:
        _hand_out(topic, division)
    return division


def _look(
    name: str, queues: Sequence[MessageQueue], topics: Topics, before: Mapping[MessageQueue, str]
) -> _Topic:
    """A topic as it is held now."""
    members = sorted(member for member, wanted in topics.items() if name in wanted)
    kept: dict[str, list[MessageQueue]] = {member: [] for member in members}
    for queue in queues:
        owner = before.get(queue)
        if owner in kept:
            kept[owner].append(queue)
    base, odd = divmod(len(queues), len(members)) if members else (0, 0)
    return _Topic(name, queues, members, kept, before, base, odd)


def _give_odd_queues(found: list[_Topic], loads: dict[str, int]) -> None:
    """Choose who gets one more: who has it already, and then who has least."""
    for having in (True, False):
        for topic in found:
            wanted = [m for m in topic.members if topic.keeps(m) == having and m not in topic.lucky]
            for member in sorted(wanted, key=lambda m: (loads[m], m)):
                if len(topic.lucky) == topic.odd:
                    break
                topic.lucky.add(member)
                loads[member] += 1


def _level(found: list[_Topic], loads: dict[str, int]) -> None:
    """Move odd queues from who has most to who has least until nobody has two more than one who could take one.

    Ends: each move makes the sum of the squares of the loads smaller.
    """
    while (move := _next_move(found, loads)) is not None:
        topic, giver, taker = move
        topic.lucky.remove(giver)
        topic.lucky.add(taker)
        loads[giver] -= 1
        loads[taker] += 1


def _next_move(found: list[_Topic], loads: dict[str, int]) -> tuple[_Topic, str, str] | None:
    order = sorted(loads, key=lambda m: (loads[m], m))
    for giver in reversed(order):
        for taker in order:
            if loads[giver] - loads[taker] < 2:
                break
            for topic in _movable(found, giver, taker):
                return topic, giver, taker
    return None


def _movable(found: list[_Topic], giver: str, taker: str) -> list[_Topic]:
    """Topics whose odd queue can go from one to the other, the one that costs least movement first."""
    able = [t for t in found if giver in t.lucky and taker in t.kept and taker not in t.lucky]
    return sorted(able, key=lambda t: t.keeps(giver) - t.keeps(taker))[:1]


def _hand_out(topic: _Topic, division: Division) -> None:
    """Everybody keeps what fits into the share; the rest goes round in blocks."""
    sizes = {member: topic.base + (member in topic.lucky) for member in topic.members}
    kept = {member: topic.kept[member][: sizes[member]] for member in topic.members}
    staying = {queue for queues in kept.values() for queue in queues}
    free = [queue for queue in topic.queues if queue not in staying]
    at = 0
    for member in topic.members:
        missing = sizes[member] - len(kept[member])
        share = [*kept[member], *free[at : at + missing]]
        at += missing
        division.shares[member].update(share)
        for queue in share:
            before = topic.before.get(queue, "")
            cause = Cause.KEPT if before == member else Cause.MOVED if before else Cause.GIVEN
            division.reasons[queue] = Reason(
                cause, member, before, len(topic.queues), len(topic.members), len(share)
            )
