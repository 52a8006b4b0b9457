"""Popping all queues of a topic at one broker: ask for what there is, hand it out, ask again.

    answer    0  found          hand out, each with its handle
      210, 19    nothing        the broker has waited for us; ask again
        other    trouble        ask again after a second

Rules: while too many messages of the broker are here nothing is asked for: what waits here is invisible to others,
and nearer to coming again. Messages of several queues come together, so there is no order and no offset to keep: the
broker knows what it gave to whom. One task for each topic and broker, in the consumer's event loop.

In order it is one task for each queue, which asks for the next lot when the last one is done with. An attempt whose
answer was lost is made again under the same name: the broker gives the same lot, and does not wait for its time to be
over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.client.pop_messages import pop_request, read_pop
from penstock.client.process_queue import ProcessQueue, Run
from penstock.client.queue_loop import QueueContext, QueueLoop
from penstock.client.received import ReceivedMessage
from penstock.client.subscription import wants
from penstock.errors import ResponseError
from penstock.protocol.bodies import SubscriptionData
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command

logger = logging.getLogger(__name__)
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.POLLING_FULL)
BUSY_MS = 200


class PopQueue(ProcessQueue):
    """What was popped of a topic at one broker and is not done with. Offsets of several queues are in it, so none of
    them says anything about the others."""

    _due_ms: int | None = None

    def put(self, messages: Sequence[ReceivedMessage], next_offset: int = 0) -> list[ReceivedMessage]:
        if self.is_dropped or not messages:
            return []
        run = Run(self, list(messages))
        for message in messages:
            message.run = run
            run.bytes += message.size
        self._runs.append(run)
        self._count += len(messages)
        self.bytes += run.bytes
        if self._orderly and messages[-1].popped is not None:
            self._due_ms = messages[-1].popped.due_ms
        return list(messages)

    @property
    def is_full(self) -> bool:
        """In order, as long as anything of the last lot is here."""
        if self._orderly:
            return self._count > 0
        return self._count >= self._limits.messages or self.bytes >= self._limits.bytes

    @property
    def due_ms(self) -> int | None:
        """In order: until when the lot that is here is ours, by the monotonic clock. Read in any thread."""
        return self._due_ms

    def held_until(self, due_ms: int) -> None:
        self._due_ms = due_ms

    def here(self) -> list[ReceivedMessage]:
        """All that is not done with."""
        return [message for run in self._runs for message in run.messages if message.run is run]


class PopLoop(QueueLoop):
    """Pops until the queue is retired."""

    def __init__(self, context: QueueContext, owner: ProcessQueue) -> None:
        super().__init__(context, owner)
        self._attempt = ""

    async def _turn(self) -> None:
        context, options, queue = self._context, self._context.options, self._queue
        subscription = context.subscription(queue.topic)
        if options.orderly and not self._attempt:
            self._attempt = context.instance.runtime.entropy.bytes(16).hex()
        command = pop_request(
            options.group,
            queue,
            subscription,
            count=options.pop_batch,
            invisible_ms=options.invisible_ms,
            wait_ms=options.suspend_ms,
            now_ms=self._clock.now_ms(),
            from_first=options.start_from == "first",
            attempt=self._attempt,
        )
        connection = await context.instance.remoting.connection(self._address())
        asked_ms = self._clock.monotonic_ms()
        answer = await connection.call(command, max(options.pull_timeout_ms, options.suspend_ms + 5_000))
        if answer.code == ResponseCode.SUCCESS or answer.code in _NOTHING:
            self._attempt = ""  # an error may have come after the lot was kept: the same attempt gets it
        self._owner.pulled_ms = self._clock.monotonic_ms()
        self._owner.pulled_wall_ms = self._clock.now_ms()
        if answer.code == ResponseCode.SUCCESS:
            messages = read_pop(answer, queue, asked_ms, options.body_bytes_max)
            context.meters.pulled(queue.topic, len(messages), self._owner.pulled_ms - asked_ms)
            if subscription is not None and (subscription.tags_set or subscription.keys):
                messages = self._wanted(subscription, messages)
            context.accept(self._owner, self._owner.put(messages, 0))
        else:
            await self._not_found(answer)

    def _wanted(
        self, subscription: SubscriptionData, messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Tags and keys are compared again. What only looked alike is done with, or it would come for ever."""
        keys = subscription.keys
        wanted: list[ReceivedMessage] = []
        unwanted: list[ReceivedMessage] = []
        for message in messages:
            is_wanted = not keys.isdisjoint(message.keys) if keys else wants(subscription, message.tag)
            (wanted if is_wanted else unwanted).append(message)
        if unwanted:
            self._context.skip(self._owner, unwanted)
        return wanted

    async def _not_found(self, answer: Command) -> None:
        if answer.code in _BUSY:
            await asyncio.sleep(BUSY_MS / 1000)
        elif answer.code not in _NOTHING:
            raise ResponseError(answer.code, answer.remark or "no reason given")
        elif not self._context.options.suspend_ms:
            await asyncio.sleep(self._context.options.pull_retry_ms / 1000)
