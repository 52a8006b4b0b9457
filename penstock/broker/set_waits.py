"""What a member of a coordinated set says to whoever stores messages (`replica_waits.py`).

    not master                          nothing is stored
    fewer in sync than wanted           nothing is stored
    every member of the set has it      acknowledged: whoever is elected has it
    this broker is the whole set        acknowledged: nobody else can be elected
    memory or disk of this broker       acknowledged while it holds its lease, because nobody is elected before that
                                        has run out; without it nothing of the kind is stored or acknowledged

So a set goes on while no coordinator can be reached: its messages then wait for all members, as they do anyway unless
a sender asked for less. Owned by the event loop; the clock is read for every question.
"""

from __future__ import annotations

from penstock.broker.membership import Membership
from penstock.broker.replica_waits import NOT_ENOUGH, Replicated
from penstock.errors import RequestError
from penstock.protocol.codes import ResponseCode
from penstock.replication import ALL_IN_SYNC, AckTracker, HaServer, Outcome
from penstock.runtime import Clock
from penstock.store import Durability

# What RocketMQ's slaves say before their reason.
NOT_HERE = "[REJECTREQUEST]"
_ASK_AGAIN = "ask for the route again and send once more; another broker may be master by then"


class SetReplicas:
    """A `ReplicaWait`. `server` and `membership` are there once the broker knows who it is."""

    def __init__(self, broker_name: str, min_in_sync: int, clock: Clock) -> None:
        self._broker_name = broker_name
        self._min_in_sync = min_in_sync
        self._clock = clock
        self.server: HaServer | None = None
        self.membership: Membership | None = None

    @property
    def _tracker(self) -> AckTracker | None:
        if self.membership is None or not self.membership.is_master or self.server is None:
            return None
        return self.server.tracker

    @property
    def waits(self) -> bool:
        tracker = self._tracker
        return tracker is not None and not tracker.is_alone

    def refusal(self, demand: Durability | None) -> RequestError | None:
        tracker = self._tracker
        if tracker is None:
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{NOT_HERE}this broker of {self._broker_name} is not master now; nothing is stored",
                _ASK_AGAIN,
            )
        needed = max(2, self._min_in_sync) if demand is Durability.REPLICATED else self._min_in_sync
        if len(tracker.members) < needed:
            return RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{NOT_ENOUGH}{needed} copies are wanted, and {len(tracker.members)} brokers of the set are in sync, "
                "this one included; nothing is stored",
                "start its replicas, wait until they have caught up, or demand less",
            )
        if demand is None or demand is Durability.REPLICATED or tracker.is_alone:
            return None
        return self._without_lease("nothing is stored")

    def appended(self) -> None:
        if self.server is not None:
            self.server.appended()

    def when_replicated(self, end: int, demand: Durability | None, callback: Replicated) -> None:
        if self.server is None or self._tracker is None:
            callback(Outcome.SUPERSEDED)
        else:
            self.server.when_replicated(end, ALL_IN_SYNC, callback)

    def lapsed(self) -> RequestError | None:
        tracker = self._tracker
        if tracker is not None and tracker.is_alone:
            return None
        return self._without_lease("whether what was stored stays is not known")

    def _without_lease(self, consequence: str) -> RequestError | None:
        if self.membership is not None and self.membership.has_lease(self._clock.monotonic_ms()):
            return None
        return RequestError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{NOT_HERE}this broker of {self._broker_name} cannot be sure that it still is master; {consequence}",
            _ASK_AGAIN,
        )
