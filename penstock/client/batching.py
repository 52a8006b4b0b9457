"""Messages gathered into batches: which of them travel together, and how many batches at a time.

    record    size i32 | magic i32 = 0 | checksum i32 = 0 | flag i32 | body length i32, body
              | properties length i16, properties
    batch     records, one after the other

Rules: a batch has one topic, one queue and one demand for durability. Messages without a key share a lane per
topic, whose batches take turns through the queues, several under way at a time. Messages with a key, or with a
queue given, have a lane per queue with one batch under way, so that their order survives a retry. What arrives
while a lane is busy goes into its next batch. Messages that may not be in a batch (packed, delayed) travel
alone, in their lane's order.

Time plays no part here: who gathers messages for how long is decided in `inbox.py`. Owned by the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from penstock._hot.decode import encode_items as encode_batch
from penstock.client.outgoing import Outgoing
from penstock.protocol.bodies.queues import MessageQueue

# Topic, queue or None for any, durability.
LaneKey = tuple[str, MessageQueue | None, str]


class Parcel:
    """What one frame carries: one message or a batch of them. Whoever sent it as a whole waits for `future`."""

    __slots__ = ("_encoded", "began_ms", "future", "items", "lane", "sequence", "size", "when_done")

    def __init__(
        self, items: list[Outgoing], size: int, lane: Lane | None = None, future: Any = None
    ) -> None:
        self.items = items
        self.size = size
        self.lane = lane
        self.future = future
        self.when_done: list[Callable[[], object]] = []
        self._encoded: bytes | bytearray | None = None
        # When it was first sent, by a clock that only goes on.
        self.began_ms = 0
        # The number of its first message, of an idempotent producer; -1: none.
        self.sequence = -1

    @property
    def topic(self) -> str:
        return self.items[0].topic

    @property
    def queue(self) -> MessageQueue | None:
        """The queue of its lane, if that has one."""
        return self.lane.key[1] if self.lane is not None else None

    @property
    def is_batch(self) -> bool:
        return len(self.items) > 1

    def encode(self) -> bytes | bytearray:
        """The frame's body; kept, because it may be sent again."""
        if not self.is_batch:
            return self.items[0].body
        if self._encoded is None:
            self._encoded = encode_batch([(item.body, item.properties, item.flag) for item in self.items])
        return self._encoded


class Lane:
    """Messages that keep their order."""

    __slots__ = ("in_flight", "in_flight_max", "key", "open", "open_size", "sealed")

    def __init__(self, key: LaneKey, in_flight_max: int) -> None:
        self.key = key
        self.in_flight_max = in_flight_max
        self.open: list[Outgoing] = []
        self.open_size = 0
        self.sealed: deque[Parcel] = deque()
        self.in_flight: set[Parcel] = set()

    def seal(self) -> None:
        """Close the batch that is being filled."""
        if self.open:
            self.sealed.append(Parcel(self.open, self.open_size, self))
            self.open, self.open_size = [], 0

    @property
    def is_idle(self) -> bool:
        return not self.open and not self.sealed and not self.in_flight


class Accumulator:
    """The lanes of a producer. Messages in, parcels out."""

    def __init__(self, messages_max: int, bytes_max: int, in_flight_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._in_flight_max = in_flight_max
        self._lanes: dict[LaneKey, Lane] = {}
        # Lanes with messages that wait; a dict for its order.
        self._waiting: dict[Lane, None] = {}

    def add(self, items: Iterable[Outgoing], queue_of: Callable[[Outgoing], MessageQueue | None]) -> None:
        """Put messages into their lanes; `queue_of` says which queue a message with a key is bound to."""
        lane: Lane | None = None
        topic = durability = ""
        messages_max, bytes_max = self._messages_max, self._bytes_max
        for item in items:
            queue = queue_of(item) if item.queue_key else item.queue
            # Most messages go where the last one went.
            if lane is None or queue is not None or item.topic != topic or item.durability != durability:
                topic, durability = item.topic, item.durability
                lane = self._lane((topic, queue, durability))
                self._waiting[lane] = None
            size = item.size
            if item.is_solo:
                lane.seal()
                lane.sealed.append(Parcel([item], size, lane))
            else:
                if len(lane.open) >= messages_max or lane.open_size + size > bytes_max:
                    lane.seal()
                lane.open.append(item)
                lane.open_size += size
            if queue is not None:
                lane = None

    def _lane(self, key: LaneKey) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, self._in_flight_max if key[1] is None else 1)
        return lane

    def ready(self) -> list[Parcel]:
        """Parcels to be sent now; each is under way until `finished`."""
        parcels: list[Parcel] = []
        for lane in list(self._waiting):
            while len(lane.in_flight) < lane.in_flight_max:
                if not lane.sealed:
                    lane.seal()
                    if not lane.sealed:
                        break
                parcel = lane.sealed.popleft()
                lane.in_flight.add(parcel)
                parcels.append(parcel)
            if not lane.sealed and not lane.open:
                del self._waiting[lane]
        return parcels

    def finished(self, parcel: Parcel) -> None:
        """A parcel was answered or given up."""
        lane = parcel.lane
        if lane is not None:
            lane.in_flight.discard(parcel)
            if lane.is_idle:
                self._lanes.pop(lane.key, None)
        for call in parcel.when_done:
            call()

    def unfinished(self) -> list[Parcel]:
        """Every parcel not yet finished, with what was gathered so far closed into parcels."""
        parcels: list[Parcel] = []
        for lane in self._lanes.values():
            lane.seal()
            parcels += lane.sealed
            parcels += lane.in_flight
        return parcels
