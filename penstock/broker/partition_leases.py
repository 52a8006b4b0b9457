"""Which consumer of a group may read a queue: one at a time, for as long as it keeps saying so.

                claim, free or run out            refresh by the holder
     (free) ------------------------------> HELD ------------------------> HELD, for another lease
        ^                                     |
        +----- released, or not refreshed ----+

Rules. A lease belongs to a client id and a queue within a group. The first claim after it ran out succeeds. The
holder counts from when it sent its request, the broker from when it got it: the holder stops first. A refresh by one
whose lease is not here any more is refused: somebody else may have read on meanwhile, and it has to begin anew with
a claim.

A broker that just started (or just became master) knows no leases, but their holders do. For one lease it grants
nothing of the topics that were there before, except to whoever says by a refresh that it holds it. Connections do not
matter: one that drops may be the network's doing, and its client may be reading on what it has. A master that cannot
be sure that it is still master grants nothing before all its replicas have answered it (`prove`): its successor
counts on what it granted being over.

While a queue is leased, others of the group can neither pull or pop it nor commit its offset (`check`); a commit by
one who slept through the end of its lease would set the group back. A queue that the group has popped is granted when
its offset says so: the holder would read again what somebody else has in hand. Groups without leases are not touched.
The number of leases is limited (A14). Time is monotonic. Owned by the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from penstock.broker.options import BrokerOptions
from penstock.errors import RequestError
from penstock.protocol.bodies import MessageQueue
from penstock.protocol.bodies.balance import LeasedElsewhere
from penstock.protocol.codes import ResponseCode
from penstock.runtime import Clock

# When to ask again for a queue that is popped: the broker looks as often.
_POPPED_MS = 100
# Topic and number: a broker has queues of one broker name only.
Place = tuple[str, int]


@dataclass(slots=True)
class _Lease:
    client_id: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """What became of a request."""

    granted: tuple[MessageQueue, ...] = ()
    refused: tuple[LeasedElsewhere, ...] = ()


class PartitionLeases:
    """Leases of all groups."""

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self._lease_ms = options.partition_lease_ms
        self._count_max = options.partition_leases_max
        self._clock = clock
        self._groups: dict[str, dict[Place, _Lease]] = {}
        self._count = 0
        # In a set: whether nobody else can be master at this moment, and how that is found out otherwise.
        self.is_sure: Callable[[], bool] = lambda: True
        self.prove: Callable[[], Awaitable[None]] | None = None
        # Whether a group has messages of a queue in hand that its offset does not tell of (POP).
        self.is_popped: Callable[[str, str, int], bool] = lambda group, topic, queue_id: False
        self._grace_topics: frozenset[str] = frozenset()
        self._grace_until_ms = 0

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    def __len__(self) -> int:
        return self._count

    def begin(self, topics: Iterable[str]) -> None:
        """Start, or become master: leases of these topics may exist that are not known here."""
        self._groups.clear()
        self._count = 0
        self._grace_topics = frozenset(topics)
        self._grace_until_ms = self._clock.monotonic_ms() + self._lease_ms

    # -- what consumers ask ----------------------------------------------------------------------------------

    def claim(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LeaseOutcome:
        """Take queues that are free."""
        return self._ask(group, client_id, queues, self._claim_one)

    def refresh(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> LeaseOutcome:
        """Go on holding queues."""
        return self._ask(group, client_id, queues, self._refresh_one)

    def release(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give queues back; those of others stay as they are."""
        leases = self._groups.get(group, {})
        for queue in queues:
            held = leases.get((queue.topic, queue.queue_id))
            if held is not None and held.client_id == client_id:
                del leases[queue.topic, queue.queue_id]
                self._count -= 1
        if not leases:
            self._groups.pop(group, None)

    def _ask(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        one: Callable[[str, str, MessageQueue, int], LeasedElsewhere | None],
    ) -> LeaseOutcome:
        now_ms = self._clock.monotonic_ms()
        granted: list[MessageQueue] = []
        refused: list[LeasedElsewhere] = []
        for queue in queues:
            elsewhere = one(group, client_id, queue, now_ms)
            if elsewhere is None:
                granted.append(queue)
            else:
                refused.append(elsewhere)
        return LeaseOutcome(tuple(granted), tuple(refused))

    def _claim_one(
        self, group: str, client_id: str, queue: MessageQueue, now_ms: int
    ) -> LeasedElsewhere | None:
        held = self._groups.get(group, {}).get((queue.topic, queue.queue_id))
        if held is None and self._is_in_grace(queue, now_ms):
            return LeasedElsewhere(queue, "", self._grace_until_ms - now_ms)
        if held is None and self.is_popped(group, queue.topic, queue.queue_id):
            return LeasedElsewhere(queue, "", _POPPED_MS)
        return self._take(group, client_id, queue, held, now_ms)

    def _refresh_one(
        self, group: str, client_id: str, queue: MessageQueue, now_ms: int
    ) -> LeasedElsewhere | None:
        held = self._groups.get(group, {}).get((queue.topic, queue.queue_id))
        if held is None and not self._is_in_grace(queue, now_ms):
            return LeasedElsewhere(queue)
        if held is not None and held.client_id != client_id:
            # Also if that lease is over by now: its holder may have read on.
            return LeasedElsewhere(queue, held.client_id, max(0, held.until_ms - now_ms))
        return self._take(group, client_id, queue, held, now_ms)

    def _take(
        self, group: str, client_id: str, queue: MessageQueue, held: _Lease | None, now_ms: int
    ) -> LeasedElsewhere | None:
        if held is None:
            if self._count >= self._count_max:
                self.scan()
                if self._count >= self._count_max:
                    raise RequestError(
                        ResponseCode.SYSTEM_BUSY,
                        f"{self._count} queues are leased, which is the limit",
                        "raise partition_leases_max",
                    )
            leases = self._groups.setdefault(group, {})
            leases[queue.topic, queue.queue_id] = _Lease(client_id, now_ms + self._lease_ms)
            self._count += 1
            return None
        if held.client_id != client_id and now_ms < held.until_ms:
            return LeasedElsewhere(queue, held.client_id, held.until_ms - now_ms)
        held.client_id = client_id
        held.until_ms = now_ms + self._lease_ms
        return None

    def _is_in_grace(self, queue: MessageQueue, now_ms: int) -> bool:
        return now_ms < self._grace_until_ms and queue.topic in self._grace_topics

    # -- what others may do ----------------------------------------------------------------------------------

    def holder(self, group: str, topic: str, queue_id: int) -> str | None:
        """Client id that holds a queue."""
        leases = self._groups.get(group)
        if leases is None:
            return None
        held = leases.get((topic, queue_id))
        if held is None or self._clock.monotonic_ms() >= held.until_ms:
            return None
        return held.client_id

    def has_any(self, group: str) -> bool:
        """Whether anything of a group is leased, or was until a moment ago."""
        return group in self._groups

    def check(self, group: str, topic: str, queue_id: int, client_id: str | None) -> None:
        """Refuse a pull, pop or commit of a queue that somebody else of the group holds."""
        if group not in self._groups:
            return
        holder = self.holder(group, topic, queue_id)
        if holder is not None and holder != client_id:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"queue {queue_id} of {topic} is leased to {holder[:200]} for group {group}",
                "all consumers of a group must be balanced the same way; a consumer that lost its lease claims anew",
            )

    def remove_group(self, group: str) -> None:
        """The group is gone."""
        self._count -= len(self._groups.pop(group, ()))

    def scan(self) -> None:
        """Forget leases that ran out."""
        now_ms = self._clock.monotonic_ms()
        for group, leases in [*self._groups.items()]:
            for place in [place for place, lease in leases.items() if now_ms >= lease.until_ms]:
                del leases[place]
                self._count -= 1
            if not leases:
                del self._groups[group]
