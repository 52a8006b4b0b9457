"""Brokers that died: their connection broke or they fell silent, and they have not registered again.

Routes forget such a broker at once (S3-33). This table remembers it for a day: `penstock status` reports it
as down. A broker that says that it leaves is not lost. Owned by the server's loop.
"""

from __future__ import annotations

from penstock.nameserver.route_table import Place, Registration, Removed
from penstock.protocol.bodies.route import LostBroker
from penstock.runtime import Clock

KEPT_MS = 24 * 3_600_000
COUNT_MAX = 1_000


class LostBrokers:
    """See the module's text."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In the order in which they were lost, with the monotonic time of it.
        self._lost: dict[Place, tuple[int, LostBroker]] = {}

    def add(self, removed: Removed) -> None:
        """A broker was removed that did not say that it leaves."""
        if removed.broker_id is None:
            return
        place = removed.place
        lost = LostBroker(
            place.cluster, removed.broker, removed.broker_id, place.address, self._clock.now_ms()
        )
        self._lost.pop(place, None)
        self._lost[place] = self._clock.monotonic_ms(), lost
        while len(self._lost) > COUNT_MAX:
            del self._lost[next(iter(self._lost))]

    def registered(self, new: Registration, *, was_live: bool) -> None:
        """A broker registered. At the address of a lost one it is that one. A new process with the id of a lost one
        takes its place; a live one that takes over its id, as a new master does, does not."""
        self._lost.pop(new.place, None)
        if was_live:
            return
        for place, (_, lost) in self._lost.items():
            if (lost.cluster, lost.broker_name, lost.broker_id) == (new.cluster, new.broker, new.broker_id):
                del self._lost[place]
                return

    def left(self, cluster: str, address: str) -> None:
        """A broker said that it leaves."""
        self._lost.pop(Place(cluster, address), None)

    def all(self) -> tuple[LostBroker, ...]:
        """Those lost within the last day, by name and id."""
        since_ms = self._clock.monotonic_ms() - KEPT_MS
        self._lost = {place: item for place, item in self._lost.items() if item[0] > since_ms}
        return tuple(
            sorted(
                (lost for _, lost in self._lost.values()),
                key=lambda one: (one.cluster, one.broker_name, one.broker_id, one.address),
            )
        )
