"""What a coordinator has told a consumer to hold, and how far it is with that: events in, wishes and results out.

       told: disconnect / connect            everything given up / taken over, or refused
    IDLE ---------------------------> WORKING -----------------------------------------> DONE, until a beat said so
      ^                                  ^  told something newer: that counts               |
      +----------------------------------+--------------------------------------------------+

Rules. One event at a time. The same event told again is not begun again; an older one is not listened to. A
disconnect is done when none of its queues is held, offsets stored and leases given back; a connect when each of its
queues is held or given up on. A queue that another consumer holds at its broker is dropped at once and said to be:
the coordinator decides anew. What is reported is all that is held, is wanted, or is not quite given up, so nobody is
told to take what may still be here. Without a coordinator nothing changes: what is held stays held.

Knows no network and no clock. Belongs to the consumer's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import AssignmentEvent, EventStatus, LeasedElsewhere


class Assignment:
    """The side of one consumer."""

    def __init__(self) -> None:
        self._wanted: set[MessageQueue] = set()
        self._working: AssignmentEvent | None = None
        self._result: AssignmentEvent | None = None
        self._newest = (-1, False)
        self._term = -1
        self.refused: dict[MessageQueue, LeasedElsewhere] = {}

    @property
    def wanted(self) -> tuple[MessageQueue, ...]:
        """What this consumer is to hold."""
        return tuple(sorted(self._wanted))

    @property
    def working(self) -> AssignmentEvent | None:
        """The event that is being carried out."""
        return self._working

    @property
    def result(self) -> AssignmentEvent | None:
        """What the next beat says of the last event."""
        return self._result

    def report(self, held: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
        """The queues to name in a beat."""
        return tuple(sorted(self._wanted | set(held)))

    # -- what happens ----------------------------------------------------------------------------------------

    def is_news(self, term: int) -> bool:
        """Whether an answer of this term counts: not if a later leader was heard already."""
        if term < self._term:
            return False
        self._term = term
        return True

    def heard(self, result: AssignmentEvent | None) -> None:
        """A beat with this result was answered."""
        if result is not None and self._result == result:
            self._result = None

    def told(self, event: AssignmentEvent) -> bool:
        """An answer brought an event; whether it is one to begin with now."""
        number = (event.rebalance_id, event.type.is_connect)
        if number <= self._newest:
            return False
        self._newest = number
        self._working, self._result = event, None
        if event.type.is_connect:
            self._wanted.update(event.queues)
            for queue in event.queues:
                self.refused.pop(queue, None)
        else:
            self._wanted.difference_update(event.queues)
        return True

    def dropped(self, queues: Iterable[MessageQueue], refused: Iterable[LeasedElsewhere] = ()) -> None:
        """Give up on queues: somebody else has them, or their broker does not answer."""
        self._wanted.difference_update(queues)
        self.refused.update({one.queue: one for one in refused})

    def keep_topics(self, topics: Iterable[str]) -> None:
        """Only these topics are subscribed to."""
        known = set(topics)
        self._wanted = {queue for queue in self._wanted if queue.topic in known}

    def look(self, states: Iterable[MessageQueue], held: Iterable[MessageQueue]) -> bool:
        """Whether the event is done now: `states` are queues in any state, `held` those that are being read."""
        event = self._working
        if event is None:
            return False
        if event.type.is_connect:
            is_done = set(event.queues) & self._wanted <= set(held)
        else:
            is_done = set(event.queues).isdisjoint(states)
        if is_done:
            self._working = None
            self._result = replace(event, queues=(), status=EventStatus.DONE)
        return is_done
