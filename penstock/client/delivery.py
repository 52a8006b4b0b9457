"""The way of a producer's messages inside the process: inbox, lanes, sender, answers.

    program -> Room -> Composer -> Inbox -> Accumulator -> Sender -> broker
    broker  -> Sender -> futures and callbacks of the program

Rules: room and inbox are the only things that other threads touch. A message is sent in the caller's stack if
nothing is in its way. Messages of a topic whose route is not known yet wait for it, in order. A batch that a broker
refuses as illegal is sent again in halves, so that no message fails because of another. A message's timeouts begin
when it leaves its lane for a broker. If no broker answers a lane for as long as all attempts of a send may take,
what has waited there as long fails unsent. A failure that nobody waits for is kept for the next `flush`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.client.batching import GATHER_MS, Accumulator, Lane, Parcel, when_all
from penstock.client.inbox import Inbox
from penstock.client.instance import ClientInstance
from penstock.client.options import ProducerOptions
from penstock.client.outgoing import Composer, Outgoing
from penstock.client.results import SendResult
from penstock.client.room import Room
from penstock.client.sender import Sender, complete
from penstock.client.tracing import Tracing
from penstock.errors import ClientClosedError, ConnectError, PenstockError, SendFailedError
from penstock.protocol.codes import ResponseCode

logger = logging.getLogger(__name__)


class Delivery:
    """Made in the event loop, for one producer."""

    def __init__(
        self,
        instance: ClientInstance,
        options: ProducerOptions,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.composer = Composer(options, instance.unique_ids)
        self.clock = instance.runtime.clock
        self._options = options
        messages_max = options.batch_messages_max if options.batching else 1
        in_flight_max = options.sends_in_flight
        if options.batching:
            in_flight_max = min(in_flight_max, options.batches_in_flight)
        # Up to so many parcels under way, messages need not be gathered.
        self._at_once_max = 0 if options.linger_ms and options.batching else in_flight_max
        loop = asyncio.get_running_loop()
        self.room = Room(options, loop, call_soon)
        self.inbox = Inbox(
            self._take,
            self.room,
            loop=loop,
            call_soon=call_soon,
            linger_ms=options.linger_ms if options.batching else 0,
            messages_max=messages_max,
            bytes_max=options.batch_bytes,
        )
        self.sender = Sender(instance, options, self._finished)
        self._lanes = Accumulator(
            messages_max,
            options.batch_bytes,
            in_flight_max,
            sends_in_flight_max=options.sends_in_flight,
            whole_in_flight_max=options.sends_in_flight,
        )
        # As long as every attempt of a send may take.
        self._silence_ms = options.send_timeout_ms * (1 + options.retries)
        self._routeless: dict[str, list[Outgoing]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._untold: PenstockError | None = None
        self._untold_count = 0
        self._is_pumping = False
        self._is_closed = False
        self._loop = loop
        self._gathered: asyncio.TimerHandle | None = None
        # Told of every message that was sent, if the producer is traced.
        self.tracing: Tracing | None = None

    # -- in --------------------------------------------------------------------------------------------------

    def accept(self, item: Outgoing) -> bool:
        """Send a message, past the inbox if nothing is in its way; False if there is no room for it."""
        if self.inbox.has_items or self._lanes.in_flight >= self._at_once_max:
            return self.inbox.put(item)
        if not self.inbox.reserve(item.size):
            return False
        self._take([item])
        return True

    def enter(self, item: Outgoing) -> None:
        """Send a message whose room is taken."""
        if self._options.batching:
            self.inbox.leave(item)
        else:
            self._take([item])

    def _take(self, items: list[Outgoing]) -> int:
        """Messages from the inbox; how many parcels they became."""
        knows = self.sender.knows_route
        if any(item.queue_key for item in items) or not all(map(knows, {item.topic for item in items})):
            items = self._set_aside(items)
        self._lanes.add(items, self.sender.known_queue, self.clock.monotonic_ms())
        return self._pump()

    def _set_aside(self, items: list[Outgoing]) -> list[Outgoing]:
        """Keep back what has no route yet, or none that leads to its queue, and everything behind it."""
        going: list[Outgoing] = []
        for item in items:
            waiting = self._routeless.get(item.topic)
            if waiting is not None:
                waiting.append(item)
            elif self._needs_route(item):
                self._routeless[item.topic] = [item]
                task = asyncio.ensure_future(self._find_route(item.topic))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                going.append(item)
        return going

    def _needs_route(self, item: Outgoing) -> bool:
        if not item.queue_key or item.queue is not None:
            return not self.sender.knows_route(item.topic)
        return self.sender.known_queue(item) is None

    async def _find_route(self, topic: str) -> None:
        failure: PenstockError | None = None  # of every message
        absence: PenstockError | None = None  # of those whose key has to find a queue
        try:
            if not (await self.sender.route(topic)).publish_queues:
                absence = ConnectError(f"no queue of topic {topic!r} can be written to")
        except PenstockError as caught:
            failure = caught
        except asyncio.CancelledError:
            failure = ClientClosedError("the producer was closed", "flush it first")
        going: list[Outgoing] = []
        for item in self._routeless.pop(topic):
            error = failure or (absence if item.queue_key and item.queue is None else None)
            if error is None:
                going.append(item)
            else:
                self._finished(Parcel([item], item.size), None, error)
        self._lanes.add(going, self.sender.known_queue, self.clock.monotonic_ms())
        self._pump()

    def _pump(self) -> int:
        """Send what may be sent. A send may end at once and free its lane again: no recursion, one more turn."""
        if self._is_pumping:
            return 0
        self._is_pumping = True
        count = 0
        try:
            while not self._is_closed and (parcels := self._lanes.ready()):
                count += len(parcels)
                for parcel in parcels:
                    try:
                        self.sender.post(parcel)
                    except Exception as error:  # a parcel that ends in no way would block its lane
                        logger.exception("a message could not be sent")
                        failure = SendFailedError(f"the message was not sent: {error!r}")
                        self._finished(parcel, None, failure)
        finally:
            self._is_pumping = False
        if self._lanes.is_gathering and self._gathered is None and not self._is_closed:
            self._gathered = self._loop.call_later(GATHER_MS / 1000, self._send_gathered)
        return count

    def _send_gathered(self) -> None:
        self._gathered = None
        self._lanes.seal_gathered(self.clock.monotonic_ms())
        self._pump()

    def post_together(self, items: list[Outgoing]) -> asyncio.Future[Sequence[SendResult]]:
        """Send messages that may share a frame, apart from those of the inbox. Their room is reserved."""
        future: asyncio.Future[Sequence[SendResult]] = asyncio.get_running_loop().create_future()
        size = sum([item.size for item in items])
        self._lanes.add_whole(Parcel(items, size, future=future, left_ms=self.clock.monotonic_ms()))
        self._pump()
        return future

    # -- out -------------------------------------------------------------------------------------------------

    def _finished(self, parcel: Parcel, result: SendResult | None, error: PenstockError | None) -> None:
        if error is not None and self._may_halve(parcel, error):
            self._lanes.halve(parcel)
        else:
            self._end(parcel, result, error)
            if error is not None and parcel.lane is not None:
                self._end_unanswered(parcel.lane)
        self._pump()

    def _may_halve(self, parcel: Parcel, error: PenstockError) -> bool:
        """Whether a batch was gathered here and a broker refused something in it, or its size: nothing is stored."""
        return (
            parcel.is_batch
            and parcel.future is None
            and not self._is_closed
            and isinstance(error, SendFailedError)
            and error.code == ResponseCode.MESSAGE_ILLEGAL
        )

    def _end(self, parcel: Parcel, result: SendResult | None, error: PenstockError | None) -> None:
        self.room.release(parcel.size, len(parcel.items))
        if self.tracing is not None:
            now_ms = self.clock.monotonic_ms()
            self.tracing.sent(parcel, result, error, now_ms - (parcel.began_ms or now_ms))
        untold = complete(parcel, result, error)
        if untold:
            self._untold = self._untold or error
            self._untold_count += untold
        self._lanes.finished(parcel)

    def _end_unanswered(self, lane: Lane) -> None:
        """Fail what waits behind sends that no broker answers: it would wait for one round of timeouts after another,
        and nothing of it is stored."""
        now_ms = self.clock.monotonic_ms()
        silence_ms = now_ms - lane.heard_ms
        if silence_ms < self._silence_ms:
            return
        for parcel in self._lanes.take_back(lane, now_ms - self._silence_ms):
            error = SendFailedError(
                f"the message was not sent: no broker of topic {lane.key[0]!r} answered for {silence_ms} ms",
                "nothing of it is stored; send it again when the brokers answer",
            )
            self._end(parcel, None, error)

    async def flush(self) -> None:
        """Send everything that waits, and wait for its answers. Raises the first failure nobody was told of."""
        self.inbox.drain()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        parcels = self._lanes.unfinished()
        if parcels:
            done = asyncio.Event()
            when_all(parcels, [done.set])
            self._pump()
            await done.wait()
        error, self._untold = self._untold, None
        count, self._untold_count = self._untold_count, 0
        if error is not None:
            if count > 1:
                error.add_note(f"{count} messages failed; this is the first error")
            raise error

    async def close(self) -> None:
        """Give up what still waits; `flush` first to avoid that."""
        self.inbox.close()
        self.inbox.drain()
        self._is_closed = True
        if self._gathered is not None:
            self._gathered.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.lanes():
            for parcel in self._lanes.take_back(lane):
                self._end(parcel, None, closing_error())
        await self.sender.close()


def closing_error() -> ClientClosedError:
    return ClientClosedError("the producer was closed, and the message was not sent", "flush it first")


def partition(items: Sequence[Outgoing], bytes_max: int) -> list[list[int]]:
    """Which messages travel together, by their numbers: those of one topic, queue, key and demand, up to a size.

    Within a part the order is that of the messages.
    """
    parts: list[list[int]] = []
    filling: dict[tuple[object, ...], tuple[list[int], int]] = {}
    for number, item in enumerate(items):
        if item.is_solo:
            parts.append([number])
            continue
        key = (item.topic, item.durability, item.queue_key, item.queue)
        size = item.size
        numbers, filled = filling.get(key, ([], 0))
        if not numbers or filled + size > bytes_max:
            numbers, filled = [], 0
            parts.append(numbers)
        numbers.append(number)
        filling[key] = (numbers, filled + size)
    return parts
