"""One queue that its broker pushes: subscribe, take what comes, answer how far we are, begin anew when it ends.

    delivery    taken in and answered with the offset up to which the queue is here, and the one that is done with
       no room  answered with `hold`; the broker waits until there is room and we say `resume`
       too far  behind what we have: something before it was not taken; not taken either, the broker goes back
       again    what is here already is not taken twice
       damaged  taken up to the damage, which stops the queue and says so (I12); tried again after a second
    last word   the subscription is over: begin anew, elsewhere if the broker says so
    lost        the connection is gone: register, subscribe and go on behind what is here

One task per queue, in the consumer's event loop.
"""

from __future__ import annotations

import asyncio

from penstock.client.process_queue import ProcessQueue
from penstock.client.pull_loop import PullLoop
from penstock.client.queue_loop import QueueContext
from penstock.client.received import ReceivedMessage
from penstock.client.subscription import wants
from penstock.errors import ConnectionLostError, CorruptRecordError, ResponseError
from penstock.protocol.bodies.push import PushResumedBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.push import (
    PushDeliverRequestHeader,
    PushDeliverResponseHeader,
    PushQueueRequestHeader,
    PushResumeRequestHeader,
)
from penstock.remoting import Connection, check

_INT32_MAX = 2**31 - 1
_UNKNOWN_TO_BROKER = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)


class PushLoop(PullLoop):
    """As `PullLoop`, for a queue that comes by itself."""

    def __init__(self, context: QueueContext, owner: ProcessQueue) -> None:
        super().__init__(context, owner)
        self._sessions = context.instance.push
        self._signal = asyncio.Event()
        # Why the subscription is over, and why the last delivery was not taken whole.
        self._over: Exception | None = None
        self._trouble: Exception | None = None

    async def _turn(self) -> None:
        await self._subscribed(await self._context.instance.remoting.connection(self._address()))

    def _known_address(self) -> str | None:
        """The master's: nobody else pushes."""
        return self._context.instance.broker_address(self._queue.broker_name) or self._last_address

    # -- a subscription --------------------------------------------------------------------------------------

    async def _subscribed(self, connection: Connection) -> None:
        group, queue = self._context.options.group, self._queue
        await self._sessions.register(connection)
        self._last_address = self._context.instance.broker_address(queue.broker_name) or self._last_address
        self._signal.clear()
        self._over = self._trouble = None
        self._sessions.attach(connection, group, queue, self)
        try:
            await self._subscribe(connection)
            while not self._owner.is_retired:
                await self._signal.wait()
                self._signal.clear()
                await self._go_on(connection)
        finally:
            # Whoever has the queue by now has subscribed in our place.
            if self._sessions.detach(connection, group, queue, self):
                header = PushQueueRequestHeader(
                    consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
                )
                connection.send(Command(RequestCode.PUSH_UNSUBSCRIBE, header.encode()))

    async def _subscribe(self, connection: Connection) -> None:
        options = self._context.options
        fields = self._header(self._owner.next_offset)
        fields["windowMessages"] = str(options.queue_messages_max)
        fields["windowBytes"] = str(min(options.queue_bytes_max, _INT32_MAX))
        answer = await self._call(connection, Command(RequestCode.PUSH_SUBSCRIBE, fields))
        self._owner.pulled_ms = self._clock.monotonic_ms()
        if answer.code in _UNKNOWN_TO_BROKER:
            await self._context.instance.heartbeat()
        elif answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            self._sessions.forget(connection)
        check(answer)

    async def _go_on(self, connection: Connection) -> None:
        """Woken: the subscription is over, or the broker waits until we have room."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            await self._failed(trouble)
        if (
            self._over is None
            and not self._owner.is_retired
            and (self._owner.is_full or self._owner.is_paused)
        ):
            await self._room()
        if self._over is not None:
            raise self._over
        if self._owner.is_retired:
            return
        header = PushResumeRequestHeader(
            consumer_group=self._context.options.group,
            client_id=self._context.instance.client_id,
            topic=self._queue.topic,
            queue_id=self._queue.queue_id,
        )
        answer = check(await self._call(connection, Command(RequestCode.PUSH_RESUME, header.encode())))
        if not any(task.goes_on for task in PushResumedBody.decode(answer.body).tasks):
            why = "the broker pushes this queue no more"
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, why, "it is subscribed to anew")

    async def _call(self, connection: Connection, command: Command) -> Command:
        return await connection.call(command, self._context.instance.options.call_timeout_ms)

    # -- what the broker says --------------------------------------------------------------------------------

    def deliver(self, command: Command) -> Command | None:
        header = PushDeliverRequestHeader.decode(command.fields)
        if header.status:
            self._ends(header)
            return None
        owner = self._owner
        if owner.is_retired:
            return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, "this queue is being given up")
        self.pinged()
        if header.queue_offset <= owner.next_offset < header.next_begin_offset:
            self._take(command.body, header.next_begin_offset)
        hold = owner.is_full or owner.is_paused or self._trouble is not None
        if hold:
            self._signal.set()
        done = self._context.offsets.get(self._queue)
        answer = PushDeliverResponseHeader(
            next_offset=owner.next_offset, commit_offset=-1 if done is None else done, hold=hold
        )
        return command.answer(fields=answer.encode())

    def _take(self, body: bytes | bytearray, next_offset: int) -> None:
        try:
            messages = self._decode(body)
        except Exception as error:
            self._trouble = error
            good = error.position if isinstance(error, CorruptRecordError) else 0
            messages = self._decode(memoryview(body)[:good]) if good else []
            if not messages:
                return
            next_offset = messages[-1].queue_offset + 1
        self._context.meters.pulled(self._queue.topic, len(messages), 0)
        self._accept_new(messages, next_offset)

    def _accept_new(self, messages: list[ReceivedMessage], next_offset: int) -> None:
        owner, subscription = self._owner, self._context.subscription(self._queue.topic)
        first = owner.next_offset
        if messages and messages[0].queue_offset < first:
            messages = [message for message in messages if message.queue_offset >= first]
        if subscription is not None and subscription.tags_set:
            messages = [message for message in messages if wants(subscription, message.tag)]
        elif subscription is not None and (keys := subscription.keys):
            messages = [message for message in messages if not keys.isdisjoint(message.keys)]
        new = owner.put(messages, next_offset)
        if new:
            self._context.accept(owner, new)
        elif not len(owner):
            self._context.offsets.advance(self._queue, owner.next_offset)

    def _ends(self, header: PushDeliverRequestHeader) -> None:
        owner = self._owner
        is_moved = header.status == ResponseCode.PULL_OFFSET_MOVED and header.next_begin_offset >= 0
        if is_moved and not owner.is_dropped:
            owner.retire()
            self._context.moved(owner, header.next_begin_offset)
        self._over = ResponseError(header.status, header.reason or "no reason given")
        self._wake()

    def pinged(self) -> None:
        self._owner.pulled_ms = self._clock.monotonic_ms()
        self._owner.pulled_wall_ms = self._clock.now_ms()

    def lost(self) -> None:
        self._over = ConnectionLostError("the connection to the broker was lost", "it is subscribed to anew")
        self._wake()

    def _wake(self) -> None:
        """Also where it waits for room: what is over is over."""
        self._signal.set()
        self._owner.woken()
