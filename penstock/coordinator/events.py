"""The events of one group on their way: two lines per member, and the barrier between them.

                    round            delivered, again with every beat        result came back
        (nothing) --------> TODO ---------------------------------> PROCESSING ---------------> (nothing)

Rules. A member has at most one DISCONNECT and one CONNECT at a time and is given the first alone, first the
disconnect. Barrier: while any member of the group has a disconnect left, no connect is delivered to anybody; nor is
one whose queues another member still has, by its own report. So a queue is let go before it is given to somebody.

Unlike TubeMQ's, an event is delivered with every answer until its result is there: a lost answer costs one beat, not
ten rounds. And what nobody was told yet is taken back by the next round, which decides anew: a connect may wait for
somebody who was never told to let go. Owned by the group's balance; knows no time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.errors import invariant
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import AssignmentEvent, EventStatus, EventType

# Whether somebody other than the member has one of the queues.
IsTaken = Callable[[str, Iterable[MessageQueue]], bool]


@dataclass(slots=True)
class _Line:
    disconnect: AssignmentEvent | None = None
    connect: AssignmentEvent | None = None


class EventLines:
    """Events of all members of a group."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._disconnects = 0
        # Queues that a member was told to take over: who.
        self._given: dict[MessageQueue, str] = {}

    def __len__(self) -> int:
        """Members with events without a result."""
        return len(self._lines)

    def __iter__(self) -> Iterator[tuple[str, AssignmentEvent]]:
        for member, line in self._lines.items():
            for event in (line.disconnect, line.connect):
                if event is not None:
                    yield member, event

    def put(
        self, member: str, rebalance_id: int, drop: Iterable[MessageQueue], take: Iterable[MessageQueue]
    ) -> None:
        """What a round wants of a member that has nothing left to do."""
        invariant(member not in self._lines, f"{member} gets an event before its last one is done")
        gone, new = tuple(sorted(drop)), tuple(sorted(take))
        line = _Line()
        if gone:
            kind = EventType.DISCONNECT if new else EventType.ONLY_DISCONNECT
            line.disconnect = AssignmentEvent(rebalance_id, kind, gone)
            self._disconnects += 1
        if new:
            kind = EventType.CONNECT if gone else EventType.ONLY_CONNECT
            line.connect = AssignmentEvent(rebalance_id, kind, new)
        if gone or new:
            self._lines[member] = line

    def of(self, member: str) -> AssignmentEvent | None:
        """The event that the member has to work on first, deliverable or not."""
        line = self._lines.get(member)
        return None if line is None else line.disconnect or line.connect

    def deliver(self, member: str, is_taken: IsTaken) -> AssignmentEvent | None:
        """The event for a member's answer; it is PROCESSING from now on."""
        event = self.of(member)
        if event is None or not self.is_deliverable(member, is_taken):
            return None
        line = self._lines[member]
        event = replace(event, status=EventStatus.PROCESSING)
        if event.type.is_connect:
            line.connect = event
            self._given.update(dict.fromkeys(event.queues, member))
        else:
            line.disconnect = event
        return event

    def not_received(self, member: str, held: Collection[MessageQueue]) -> bool:
        """A member reports, without a result: one that has none of the queues it was told to take over was not told,
        because the answer was lost. Whether that is so; the event waits for the barrier again."""
        event = self.of(member)
        if event is None or not event.type.is_connect or event.status is not EventStatus.PROCESSING:
            return False
        if any(queue in held for queue in event.queues):
            return False
        self._lines[member].connect = replace(event, status=EventStatus.TODO)
        for queue in event.queues:
            self._given.pop(queue, None)
        return True

    def is_deliverable(self, member: str, is_taken: IsTaken) -> bool:
        """Whether the member has an event and the barrier lets it through."""
        event = self.of(member)
        if event is None or not event.type.is_connect:
            return event is not None
        return not self.has_disconnects and not is_taken(member, event.queues)

    @property
    def has_disconnects(self) -> bool:
        return self._disconnects > 0

    def finish(self, member: str, result: AssignmentEvent) -> AssignmentEvent | None:
        """A result came: the event that it ends, or None if it is about an event that is not there any more."""
        event = self.of(member)
        if event is None or (event.rebalance_id, event.type) != (result.rebalance_id, result.type):
            return None
        line = self._lines[member]
        if event.type.is_connect:
            self.forget(member)
        else:
            line.disconnect = None
            self._disconnects -= 1
            if line.connect is None:
                del self._lines[member]
        return event

    def given_to_others(self, member: str, queues: Iterable[MessageQueue]) -> bool:
        """Whether another member was told to take one of the queues over and may be doing so."""
        return any(self._given.get(queue, member) != member for queue in queues)

    def withdraw(self) -> None:
        """Take back what nobody was told yet."""
        for member, line in list(self._lines.items()):
            if line.connect is not None and line.connect.status is EventStatus.TODO:
                line.connect = None
            if line.disconnect is not None and line.disconnect.status is EventStatus.TODO:
                line.disconnect = None
                self._disconnects -= 1
            if line.connect is None and line.disconnect is None:
                del self._lines[member]

    def forget(self, member: str) -> None:
        """The member is gone, and with it what it had to do."""
        line = self._lines.pop(member, None)
        if line is None:
            return
        if line.disconnect is not None:
            self._disconnects -= 1
        for queue in line.connect.queues if line.connect is not None else ():
            if self._given.get(queue) == member:
                del self._given[queue]

    def clear(self) -> None:
        """Nothing that was said counts any more."""
        self._lines.clear()
        self._given.clear()
        self._disconnects = 0
