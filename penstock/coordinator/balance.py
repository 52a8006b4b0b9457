"""The balance of one group: beats, departures and rounds in, answers and nudges out.

    beat      the member's report replaces what was known of it; its result ends its event; the next event, if the
              barrier lets one through, goes back in the answer
    round     on a timer, and soon after members or queues changed: a group whose members are carrying out events is
              left alone, any other is divided anew, and the difference to what members report becomes events

Rules. Members hold what they say they hold, nothing else. Queues of a broker set that has not told its own yet are
left as they are. A group whose events are not finished after ten rounds of the timer loses them, and is divided anew
from the reports: one member that never finishes does not stop the others for ever. A member whose connection dropped
has a moment to come back, because its leases at the brokers outlive the connection and nobody could take over sooner
anyway.

Never two owners: the barrier keeps a queue from being given before it was let go; whatever goes past it (a lost
coordinator, a member that is thought dead) ends at the lease that the broker grants to one alone. Sans-I/O: time
comes with each event. Owned by the coordinator's event loop.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from penstock.coordinator.division import Cause, Division, Reason, divide
from penstock.coordinator.events import EventLines
from penstock.coordinator.ring import VIRTUAL_NODES
from penstock.coordinator.ring_division import divide_by_ring
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import (
    TERM_SHIFT,
    AssignmentEvent,
    Binding,
    ClientBeatBody,
    EventStatus,
    LeasedElsewhere,
    SubscriptionMode,
)

_LOG = logging.getLogger("penstock.coordinator")


@dataclass(frozen=True, slots=True)
class BalanceTimes:
    """How long things may take; see the coordinator's options."""

    # Between two rounds of a group in which nothing changes; unfinished events are counted by these.
    interval_ms: int = 30_000
    # From a change to the round that takes it into account, so that members who come together are divided together.
    gather_ms: int = 500
    # From a queue that could not be taken over to the next attempt.
    retry_ms: int = 1_000
    # How long a member without a connection may take to come back.
    return_ms: int = 3_000
    # Rounds of the timer after which unfinished events are dropped.
    unfinished_rounds_max: int = 10


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beat:
    """A member reports."""

    body: ClientBeatBody
    now_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    """A member said goodbye, or was silent for too long."""

    member: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection of a member is gone; it may come back."""

    member: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class QueuesSeen:
    """The queues of topics, and the broker sets that told theirs; of others nothing is known."""

    queues: Mapping[str, tuple[MessageQueue, ...]]
    brokers: frozenset[str]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes: rounds are held when they are due."""

    now_ms: int


Event = Beat | Left | Dropped | QueuesSeen | Tick


# -- instructions --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What the beat is answered with."""

    event: AssignmentEvent | None
    is_divided: bool


@dataclass(frozen=True, slots=True)
class Nudge:
    """Have the member beat now: there is an event for it."""

    member: str


Instruction = Answer | Nudge


@dataclass(slots=True)
class Member:
    """What is known of one member."""

    client_id: str
    mode: SubscriptionMode
    joined_ms: int
    beat_ms: int
    topics: frozenset[str] = frozenset()
    held: frozenset[MessageQueue] = frozenset()
    sequence: int = -1
    # Since when its connection is gone; None while it has one.
    dropped_ms: int | None = None
    # Whether a round has taken it into account as it is now.
    is_divided: bool = False
    # What brokers refused it lately, and who has it there.
    refused: dict[MessageQueue, LeasedElsewhere] = field(default_factory=dict)

    @property
    def reported(self) -> int:
        """Queues that are kept of its report."""
        return len(self.held) + len(self.refused)


class GroupBalance:
    """One group."""

    def __init__(
        self,
        name: str,
        term: int,
        times: BalanceTimes,
        first_round_ms: int,
        numbers: Iterator[int] | None = None,
        virtual_nodes: int = VIRTUAL_NODES,
    ) -> None:
        self.name = name
        # How queues are bound to members: as these wish, who all wish the same.
        self.binding = Binding.EVEN
        self._virtual_nodes = virtual_nodes
        # Of rounds, growing within the term; shared by all groups, because a group may end and begin again.
        self._numbers = numbers or itertools.count(1)
        self._term = term
        self._times = times
        self._members: dict[str, Member] = {}
        # Queues that are kept of its members' reports.
        self.reported = 0
        self._queues: Mapping[str, tuple[MessageQueue, ...]] = {}
        self._brokers: frozenset[str] = frozenset()
        self._lines = EventLines()
        # Who reports which queue; and who was nudged since its last beat.
        self._holders: dict[MessageQueue, set[str]] = {}
        self._nudged: set[str] = set()
        self._unfinished_rounds = 0
        self._round = 0
        self._first_round_ms = first_round_ms
        self._due_ms: int | None = None
        # Whether a round found unfinished events and is made up for when they are done.
        self._is_put_off = False
        self._timer_ms = first_round_ms + times.interval_ms
        # Why each queue is where it is to be, and since which round; when the last division was made.
        self.reasons: dict[MessageQueue, tuple[int, Reason]] = {}
        self.divided_ms = 0

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    @property
    def topics(self) -> set[str]:
        """All topics that a member subscribes to."""
        return {topic for member in self._members.values() for topic in member.topics}

    @property
    def queues(self) -> Mapping[str, tuple[MessageQueue, ...]]:
        return self._queues

    @property
    def mode(self) -> SubscriptionMode:
        """That of its members, who all have the same."""
        return next((one.mode for one in self._members.values()), SubscriptionMode.CLUSTERING)

    @property
    def round(self) -> int:
        """Divisions so far."""
        return self._round

    @property
    def unfinished_rounds(self) -> int:
        return self._unfinished_rounds

    @property
    def events(self) -> list[tuple[str, AssignmentEvent]]:
        return list(self._lines)

    @property
    def due_ms(self) -> int:
        """When the next round is to be held."""
        return self._timer_ms if self._due_ms is None else min(self._due_ms, self._timer_ms)

    def handle(self, event: Event) -> list[Instruction]:
        """What has to be done because of the event."""
        match event:
            case Beat(body, now_ms):
                return self._beat(body, now_ms)
            case Left(member, now_ms):
                return self._remove(member, now_ms)
            case Dropped(member, now_ms):
                return self._dropped(member, now_ms)
            case QueuesSeen(queues, brokers, now_ms):
                return self._seen(queues, brokers, now_ms)
            case Tick(now_ms):
                return self._tick(now_ms)

    # -- members ---------------------------------------------------------------------------------------------

    def _beat(self, body: ClientBeatBody, now_ms: int) -> list[Instruction]:
        member = self._members.get(body.client_id)
        if member is None:
            member = Member(body.client_id, body.mode, now_ms, now_ms)
            self._members[body.client_id] = member
            self._soon(now_ms, self._times.gather_ms)
        elif body.sequence <= member.sequence:
            return [Answer(None, False)]  # overtaken on its way by a later one
        member.sequence = body.sequence
        member.beat_ms = now_ms
        member.dropped_ms = None
        # Whether somebody else may have something to do because of this beat.
        may_free = self._report(member, body, now_ms) or body.result is not None
        if body.result is not None:
            self._finished(member, body.result, now_ms)
        elif self._lines.not_received(member.client_id, member.held) and self._is_put_off:
            self._soon(now_ms, 0)
        event = self._lines.deliver(member.client_id, self._is_taken)
        self._nudged.discard(member.client_id)
        is_settled = self._due_ms is None and not self._is_put_off
        is_divided = member.is_divided and is_settled and self._lines.of(member.client_id) is None
        return [Answer(event, is_divided), *(self._nudges() if may_free else [])]

    def _report(self, member: Member, body: ClientBeatBody, now_ms: int) -> bool:
        """What the member says of itself; whether it has let go of something."""
        topics, held = frozenset(body.topics), frozenset(body.queues)
        member.mode = body.mode
        if body.binding is not self.binding:
            self.binding = body.binding
            self._soon(now_ms, self._times.gather_ms)
        if topics != member.topics:
            member.topics = topics
            member.is_divided = False
            self._soon(now_ms, self._times.gather_ms)
        lost, before = member.held - held, member.reported
        if lost and body.result is None and self._lines.of(member.client_id) is None:
            # A lease went to somebody else, or ran out: nobody asked the member to let go.
            _LOG.info("%s of group %s lost %d queues", member.client_id, self.name, len(lost))
            self._soon(now_ms, self._times.retry_ms)
        self._hold(member, held)
        member.refused = {one.queue: one for one in body.refused}
        self.reported += member.reported - before
        return bool(lost)

    def _hold(self, member: Member, held: frozenset[MessageQueue]) -> None:
        for queue in member.held - held:
            holders = self._holders[queue]
            holders.discard(member.client_id)
            if not holders:
                del self._holders[queue]
        for queue in held - member.held:
            self._holders.setdefault(queue, set()).add(member.client_id)
        member.held = held

    def _finished(self, member: Member, result: AssignmentEvent, now_ms: int) -> None:
        event = self._lines.finish(member.client_id, result)
        if event is None:
            return
        if event.type.is_connect and not member.held.issuperset(event.queues):
            self._soon(now_ms, self._times.retry_ms)
        if result.status is EventStatus.FAILED:
            self._soon(now_ms, self._times.retry_ms)
        self._look_finished(now_ms)

    def _look_finished(self, now_ms: int) -> None:
        if len(self._lines):
            return
        self._unfinished_rounds = 0
        if self._is_put_off:
            self._is_put_off = False
            self._soon(now_ms, 0)

    def _remove(self, client_id: str, now_ms: int) -> list[Instruction]:
        member = self._members.pop(client_id, None)
        if member is None:
            return []
        self.reported -= member.reported
        self._hold(member, frozenset())
        self._lines.forget(client_id)
        self._nudged.discard(client_id)
        self._look_finished(now_ms)
        self._soon(now_ms, self._times.gather_ms)
        return self._nudges()

    def _dropped(self, client_id: str, now_ms: int) -> list[Instruction]:
        member = self._members.get(client_id)
        if member is not None and member.dropped_ms is None:
            member.dropped_ms = now_ms
            self._soon(now_ms, self._times.return_ms)
        return []

    # -- rounds ----------------------------------------------------------------------------------------------

    def _seen(
        self, queues: Mapping[str, tuple[MessageQueue, ...]], brokers: frozenset[str], now_ms: int
    ) -> list[Instruction]:
        if queues != self._queues or brokers != self._brokers:
            self._queues, self._brokers = dict(queues), brokers
            self._soon(now_ms, self._times.gather_ms)
        return []

    def _tick(self, now_ms: int) -> list[Instruction]:
        if now_ms < self.due_ms:
            return []
        is_timer = now_ms >= self._timer_ms
        if is_timer:
            self._timer_ms = now_ms + self._times.interval_ms
        self._due_ms = None
        nudges = self._drop_lost(now_ms)
        self._lines.withdraw()
        if len(self._lines) and not (is_timer and self._give_up_waiting()):
            self._is_put_off = True
            return nudges
        return nudges + self._divide(now_ms)

    def _drop_lost(self, now_ms: int) -> list[Instruction]:
        found: list[Instruction] = []
        for member in list(self._members.values()):
            if member.dropped_ms is None:
                continue
            if now_ms - member.dropped_ms >= self._times.return_ms:
                found += self._remove(member.client_id, now_ms)
            else:
                self._soon(member.dropped_ms, self._times.return_ms)
        return found

    def _give_up_waiting(self) -> bool:
        """Whether unfinished events have held up so many rounds that they are dropped."""
        self._unfinished_rounds += 1
        if self._unfinished_rounds < self._times.unfinished_rounds_max:
            return False
        late = sorted({member for member, _ in self._lines})
        _LOG.warning(
            "group %s: events of %s are not finished after %d rounds and are dropped",
            self.name,
            ", ".join(late)[:400],
            self._unfinished_rounds,
        )
        self._lines.clear()
        self._unfinished_rounds = 0
        return True

    def _divide(self, now_ms: int) -> list[Instruction]:
        members = self._members
        known = self._queues
        topics = {client_id: member.topics for client_id, member in members.items()}
        held = {client_id: member.held for client_id, member in members.items()}
        if self.binding is Binding.RING:
            division = divide_by_ring(topics, held, known, self._virtual_nodes)
        else:
            division = divide(topics, held, known)
        self._round += 1
        self._remember(division, now_ms)
        number = self._term << TERM_SHIFT | next(self._numbers)
        for client_id, member in members.items():
            share = division.shares[client_id]
            # Of a broker set that has said nothing yet, nobody knows that the queue is gone.
            kept = {q for q in member.held if q.topic in member.topics and q.broker_name not in self._brokers}
            drop, take = member.held - share - kept, share - member.held
            self._lines.put(client_id, number, drop, take)
            member.is_divided = member.topics <= known.keys()
            if drop or take:
                _LOG.info("group %s: %s gives up %d and takes %d", self.name, client_id, len(drop), len(take))
        self._nudged.clear()
        return self._nudges()

    def _remember(self, division: Division, now_ms: int) -> None:
        """Keep why queues went where they are, as long as they stay there."""
        before, self.reasons, self.divided_ms = self.reasons, {}, now_ms
        for queue, reason in division.reasons.items():
            known = before.get(queue)
            if reason.cause is not Cause.KEPT or known is None or known[1].owner != reason.owner:
                self.reasons[queue] = (self._round, reason)
            else:
                now = replace(known[1], queues=reason.queues, members=reason.members, share=reason.share)
                self.reasons[queue] = (known[0], now)

    def _soon(self, now_ms: int, after_ms: int) -> None:
        """Have a round after a while; the earliest wish counts, but none before the first round."""
        wish = max(now_ms + after_ms, self._first_round_ms)
        self._due_ms = wish if self._due_ms is None else min(self._due_ms, wish)

    # -- who waits -------------------------------------------------------------------------------------------

    def _is_taken(self, client_id: str, queues: Iterable[MessageQueue]) -> bool:
        """Whether somebody else has one of the queues, or is about to."""
        wanted = tuple(queues)
        return self._lines.given_to_others(client_id, wanted) or any(
            self._holders.get(queue, set()) - {client_id} for queue in wanted
        )

    def _nudges(self) -> list[Instruction]:
        """Nudge the members that could have their event now and do not know it. While a disconnect is left no
        connect is deliverable, and who has a disconnect was nudged when the round was held."""
        if self._lines.has_disconnects and self._nudged:
            return []
        new = {
            member
            for member, event in self._lines
            if event.status is EventStatus.TODO
            and member not in self._nudged
            and self._lines.of(member) is event
            and self._lines.is_deliverable(member, self._is_taken)
        }
        self._nudged |= new
        return [Nudge(member) for member in sorted(new)]
