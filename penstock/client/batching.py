"""Messages gathered into batches: which of them travel together, and how many batches at a time.

    record    size i32 | magic i32 = 0 | checksum i32 = 0 | flag i32 | body length i32, body
              | properties length i16, properties
    batch     records, one after the other

Rules: a batch has one topic, one queue and one demand for durability. Messages without a key share a lane per
topic, whose parcels take turns through the queues, several under way at a time. Messages with a key, or with a
queue given, have a lane per queue with one parcel under way, so that their order survives a retry. Messages that
may not be in a batch (packed, delayed) travel alone, in their lane's order.

A message leaves at once while its lane has few parcels under way. What arrives while more are under way is
gathered, as in Nagle's algorithm, into an open batch. That leaves with the next answer, or seals itself: when it is
full, or was open for `GATHER_MS`. Sealed parcels leave while few messages of the lane are under way, so that a
broker that does not answer holds up no message that another broker could store.

Lanes take turns, and no more parcels are under way than brokers can answer in time: the rest waits here, where
no timeout runs. How long messages linger before that is decided in `inbox.py`. Owned by the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock._hot.decode import encode_items as encode_batch
from penstock.client.outgoing import Outgoing
from penstock.protocol.bodies.queues import MessageQueue

# Topic, queue or None for any, durability, and whether parcels come whole, as those of `send_batch` do.
LaneKey = tuple[str, MessageQueue | None, str, bool]
# Parcels of one producer that are under way at most, whatever their lanes. A broker has to answer so many within
# the timeout of the last one, or that fails though nothing is wrong.
_IN_FLIGHT_MAX = 1024
# The same in bytes; one parcel is under way whatever its size. Two of the largest messages fit.
_IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024
# For so long at most an open batch waits for an answer, while few messages of its lane are under way.
GATHER_MS = 1


class Parcel:
    """What one frame carries: one message or a batch of them. Whoever sent it as a whole waits for `future`."""

    __slots__ = (
        "_encoded",
        "began_ms",
        "future",
        "items",
        "lane",
        "left_ms",
        "sequence",
        "size",
        "when_done",
    )

    def __init__(
        self,
        items: list[Outgoing],
        size: int,
        lane: Lane | None = None,
        future: Any = None,
        left_ms: int = 0,
    ) -> None:
        self.items = items
        self.size = size
        self.lane = lane
        self.future = future
        self.when_done: list[Callable[[], object]] = []
        self._encoded: bytes | bytearray | None = None
        # When its first message was left here and when it was first sent, by a clock that only goes on.
        self.left_ms = left_ms
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

    __slots__ = (
        "heard_ms",
        "in_flight",
        "in_flight_max",
        "is_listed",
        "key",
        "messages",
        "messages_max",
        "open",
        "open_ms",
        "open_size",
        "sealed",
    )

    def __init__(self, key: LaneKey, in_flight_max: int, messages_max: int = 0) -> None:
        self.key = key
        # Parcels under way up to which anything may leave, and messages up to which sealed parcels may.
        self.in_flight_max = in_flight_max
        self.messages_max = messages_max
        # Messages under way.
        self.messages = 0
        self.open: list[Outgoing] = []
        self.open_size = 0
        # When the first message of the open batch was left.
        self.open_ms = 0
        self.sealed: deque[Parcel] = deque()
        # A dict for its order: that in which they were sent.
        self.in_flight: dict[Parcel, None] = {}
        # When a broker last answered one of its parcels, or when one was sent while none was under way.
        self.heard_ms = 0
        # Whether it is among those that may send.
        self.is_listed = False

    def seal(self) -> None:
        """Close the batch that is being filled."""
        if self.open:
            self.sealed.append(Parcel(self.open, self.open_size, self, left_ms=self.open_ms))
            self.open, self.open_size = [], 0

    @property
    def may_send(self) -> bool:
        if len(self.in_flight) < self.in_flight_max:
            return bool(self.sealed or self.open)
        return bool(self.sealed) and self.messages < self.messages_max

    @property
    def is_gathering(self) -> bool:
        """Whether an open batch could leave if it were sealed."""
        return bool(self.open) and not self.sealed and self.messages < self.messages_max

    @property
    def is_idle(self) -> bool:
        return not self.open and not self.sealed and not self.in_flight


def when_all(parcels: list[Parcel], calls: Sequence[Callable[[], object]]) -> None:
    """Make calls when all of these parcels are finished."""
    left = len(parcels)

    def one_done() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            for call in calls:
                call()

    for parcel in parcels:
        parcel.when_done.append(one_done)


class Accumulator:
    """The lanes of a producer. Messages in, parcels out."""

    def __init__(
        self,
        messages_max: int,
        bytes_max: int,
        in_flight_max: int,
        *,
        sends_in_flight_max: int = 0,
        whole_in_flight_max: int = 256,
        total_max: int = _IN_FLIGHT_MAX,
        total_bytes_max: int = _IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._in_flight_max = in_flight_max
        self._sends_in_flight_max = sends_in_flight_max
        self._whole_in_flight_max = whole_in_flight_max
        self._total_max = total_max
        self._total_bytes_max = total_bytes_max
        # Under way, of all lanes.
        self.in_flight = 0
        self.in_flight_bytes = 0
        self._lanes: dict[LaneKey, Lane] = {}
        # Lanes that have something to send and may; each sends one parcel, then the next has its turn.
        self._listed: deque[Lane] = deque()
        # Lanes whose open batch waits for an answer, and need not wait for long.
        self._gathering: dict[Lane, None] = {}

    def add(
        self,
        items: Iterable[Outgoing],
        queue_of: Callable[[Outgoing], MessageQueue | None],
        now_ms: int = 0,
    ) -> None:
        """Put messages into their lanes; `queue_of` says which queue a message with a key is bound to."""
        lane: Lane | None = None
        topic = durability = ""
        messages_max, bytes_max = self._messages_max, self._bytes_max
        for item in items:
            queue = queue_of(item) if item.queue_key else item.queue
            # Most messages go where the last one went.
            if lane is None or queue is not None or item.topic != topic or item.durability != durability:
                topic, durability = item.topic, item.durability
                lane = self._lane((topic, queue, durability, False))
            size = item.size
            if item.is_solo or messages_max == 1:
                lane.seal()
                lane.sealed.append(Parcel([item], size, lane, left_ms=now_ms))
            else:
                if len(lane.open) >= messages_max or lane.open_size + size > bytes_max:
                    lane.seal()
                if not lane.open:
                    lane.open_ms = now_ms
                lane.open.append(item)
                lane.open_size += size
            if not lane.is_listed:
                self._list(lane)
            if queue is not None:
                lane = None

    def add_whole(self, parcel: Parcel) -> None:
        """Put a parcel into the lane of its topic for those that come whole."""
        first = parcel.items[0]
        parcel.lane = lane = self._lane((first.topic, None, first.durability, True))
        lane.sealed.append(parcel)
        self._list(lane)

    def _lane(self, key: LaneKey) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            if key[1] is not None:
                lane = Lane(key, 1)
            elif key[3]:
                lane = Lane(key, self._whole_in_flight_max)
            else:
                lane = Lane(key, self._in_flight_max, self._sends_in_flight_max)
            self._lanes[key] = lane
        return lane

    def _list(self, lane: Lane) -> None:
        if lane.is_listed:
            return
        if lane.may_send:
            lane.is_listed = True
            self._listed.append(lane)
        elif lane.is_gathering:
            self._gathering[lane] = None

    def ready(self) -> list[Parcel]:
        """Parcels to be sent now; each is under way until `finished`."""
        parcels: list[Parcel] = []
        listed = self._listed
        while listed and self.in_flight < self._total_max:
            lane = listed[0]
            if not lane.sealed:
                lane.seal()
            if lane.sealed:
                size = lane.sealed[0].size
                if self.in_flight and self.in_flight_bytes + size > self._total_bytes_max:
                    break
                parcel = lane.sealed.popleft()
                lane.in_flight[parcel] = None
                lane.messages += len(parcel.items)
                self.in_flight += 1
                self.in_flight_bytes += size
                parcels.append(parcel)
            listed.popleft()
            lane.is_listed = False
            self._list(lane)
        return parcels

    def finished(self, parcel: Parcel) -> None:
        """A parcel was answered or given up, whether it was under way or not."""
        lane = parcel.lane
        if lane is not None:
            if parcel in lane.in_flight:
                del lane.in_flight[parcel]
                lane.messages -= len(parcel.items)
                self.in_flight -= 1
                self.in_flight_bytes -= parcel.size
            if lane.is_idle:
                self._lanes.pop(lane.key, None)
            else:
                self._list(lane)
        for call in parcel.when_done:
            call()

    @property
    def is_gathering(self) -> bool:
        """Whether `seal_gathered` has to be called in a moment."""
        return bool(self._gathering)

    def seal_gathered(self, now_ms: int) -> None:
        """Have batches leave that were open for long enough."""
        lanes, self._gathering = self._gathering, {}
        for lane in lanes:
            if lane.is_gathering and now_ms - lane.open_ms >= GATHER_MS:
                lane.seal()
            self._list(lane)

    def halve(self, parcel: Parcel) -> None:
        """Put the messages of a batch back where it was, as two parcels: a broker refused them together."""
        lane = parcel.lane
        assert lane is not None
        middle = len(parcel.items) // 2
        halves = []
        for first, items in ((0, parcel.items[:middle]), (middle, parcel.items[middle:])):
            half = Parcel(items, sum([item.size for item in items]), lane, left_ms=parcel.left_ms)
            if parcel.sequence >= 0:
                half.sequence = parcel.sequence + first
            halves.append(half)
        when_all(halves, parcel.when_done)
        parcel.when_done = []
        lane.sealed.extendleft(reversed(halves))
        self.finished(parcel)

    def take_back(self, lane: Lane, left_until_ms: int | None = None) -> list[Parcel]:
        """Parcels of a lane that were not sent, and now never are: all, or those left up to a time."""
        lane.seal()
        taken: list[Parcel] = []
        while lane.sealed and (left_until_ms is None or lane.sealed[0].left_ms <= left_until_ms):
            taken.append(lane.sealed.popleft())
        return taken

    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    def unfinished(self) -> list[Parcel]:
        """Every parcel not yet finished, with what was gathered so far closed into parcels."""
        parcels: list[Parcel] = []
        for lane in self._lanes.values():
            lane.seal()
            parcels += lane.sealed
            parcels += lane.in_flight
        return parcels
