"""Popped messages on the client's side: their handles, how long they are ours, and what is asked of brokers about
them.

    pop        messages of all queues of a topic at one broker, and of what came back to the group
    ack        done, one or many at once
    change     ours for longer, or for less: the handle is a new one afterwards

Rule: a handle is made of the answer's header as RocketMQ's clients do, unless the broker put one among the message's
properties. No state; belongs to the client's event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.client.instance import ClientInstance
from penstock.client.received import ReceivedMessage, decode_records
from penstock.errors import CodecError, PenstockError
from penstock.protocol.bodies import MessageQueue, SubscriptionData
from penstock.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pop import (
    UNKNOWN_POP_FIELD,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from penstock.protocol.pop_handles import (
    NORMAL,
    PopHandle,
    Source,
    parse_message_offset_info,
    parse_order_count_info,
    parse_start_offset_info,
    real_topic,
)
from penstock.remoting import check

ALL_QUEUES = -1
FROM_FIRST, FROM_LAST = 0, 1
CALL_TIMEOUT_MS = 5_000
_HANDLE = "POP_CK"
# Levels of delay in seconds, as brokers have them unless told otherwise.
_LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_FIRST_RETRY_LEVEL = 3


@dataclass(slots=True)
class Popped:
    """What a consumer notes of a message: its handle, when it was first ours, and until when it is."""

    handle: PopHandle
    since_ms: int
    due_ms: int

    def topic(self, group: str, message: ReceivedMessage) -> str:
        return real_topic(group, message.topic, self.handle.kind)


def retry_delay_ms(level: int, tries: int) -> int:
    """How long a message rests that is to be tried again: as if it had been handed back to be pulled."""
    number = min(level or _FIRST_RETRY_LEVEL + tries, len(_LEVELS_S))
    return _LEVELS_S[max(number, 1) - 1] * 1_000


def pop_request(
    group: str,
    queue: MessageQueue,
    subscription: SubscriptionData | None,
    *,
    count: int,
    invisible_ms: int,
    wait_ms: int,
    now_ms: int,
    from_first: bool,
    attempt: str = "",
) -> Command:
    """`attempt`: what this one is called, if it pops in order."""
    header = PopMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        max_msg_nums=count,
        invisible_time=invisible_ms,
        poll_time=wait_ms,
        born_time=now_ms,
        init_mode=FROM_FIRST if from_first else FROM_LAST,
        exp_type=subscription.expression_type if subscription is not None else "TAG",
        exp=subscription.sub_string if subscription is not None else "*",
        order=bool(attempt),
        attempt_id=attempt or None,
    )
    return Command(RequestCode.POP_MESSAGE, header.encode())


def read_pop(
    answer: Command, queue: MessageQueue, asked_ms: int, body_bytes_max: int
) -> list[ReceivedMessage]:
    """The messages of an answer, with their handles. `asked_ms` is when it was asked for, by the monotonic clock: the
    broker cannot have begun to count before. Raises CodecError if a message has no handle."""
    header = PopMessageResponseHeader.decode(answer.fields)
    starts = parse_start_offset_info(header.start_offset_info or "")
    offsets = parse_message_offset_info(header.msg_offset_info or "")
    tries = parse_order_count_info(header.order_count_info or "")
    messages = decode_records(answer.body, queue, body_bytes_max)
    for message in messages:
        message.queue = MessageQueue(queue.topic, queue.broker_name, message.stored.queue_id)
        handle = _handle(message, header, starts, offsets)
        message.popped = Popped(handle, asked_ms, asked_ms + handle.invisible_time)
        # In order a message stays where it is: only the answer knows how often it was popped before.
        message.tries += tries.get((message.queue.queue_id, message.queue_offset), 0)
    return messages


def _handle(
    message: ReceivedMessage,
    header: PopMessageResponseHeader,
    starts: dict[Source, int],
    offsets: dict[Source, list[int]],
) -> PopHandle:
    text = message.properties.get(_HANDLE)
    if text is not None:
        return PopHandle.parse(text)
    queue = message.queue
    source = (NORMAL, queue.queue_id)
    if source not in starts or message.queue_offset not in offsets.get(source, ()):
        raise CodecError(f"the broker's answer does not say where {message!r} was popped")
    return PopHandle(
        starts[source],
        header.pop_time,
        header.invisible_time,
        header.revive_qid,
        NORMAL,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
    )


class PopCalls:
    """What one group asks about messages that it has popped."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def ack(self, broker: str, messages: Sequence[ReceivedMessage]) -> bool:
        """Messages of one broker are done; False if it did not wait for any of them: they come again, or have. Raises
        PenstockError if it did not answer, or not so."""
        if len(messages) == 1:
            command = self._ack_one(messages[0])
        else:
            command = self._ack_many(broker, messages)
        answer = await self._call(messages[0], command)
        return _is_effective(answer)

    async def _call(self, message: ReceivedMessage, command: Command) -> Command:
        """Ask the broker that a message was popped from; if it is not there, look where it is now before raising."""
        try:
            return await self._instance.call_broker(message.queue.broker_name, command, CALL_TIMEOUT_MS)
        except PenstockError as error:
            if error.route_stale:
                await self._instance.routes.refresh(message.topic)
            raise

    def _ack_one(self, message: ReceivedMessage) -> Command:
        popped = _noted(message)
        header = AckMessageRequestHeader(
            consumer_group=self._group,
            topic=popped.topic(self._group, message),
            queue_id=popped.handle.queue_id,
            extra_info=str(popped.handle),
            offset=popped.handle.offset,
        )
        return Command(RequestCode.ACK_MESSAGE, header.encode())

    def _ack_many(self, broker: str, messages: Sequence[ReceivedMessage]) -> Command:
        together: dict[tuple[str, PopHandle], list[int]] = {}
        for message in messages:
            handle = _noted(message).handle
            pop = replace(handle, offset=handle.start_offset)
            together.setdefault((message.topic, pop), []).append(handle.offset - handle.start_offset)
        acks = tuple(
            BatchAck(
                self._group,
                topic,
                pop.kind,
                pop.start_offset,
                pop.queue_id,
                pop.revive_queue,
                pop.pop_time,
                pop.invisible_time,
                tuple(sorted(places)),
            )
            for (topic, pop), places in together.items()
        )
        return Command(RequestCode.BATCH_ACK_MESSAGE, {}, BatchAckMessageRequestBody(broker, acks).encode())

    async def change(self, message: ReceivedMessage, invisible_ms: int, now_ms: int) -> bool:
        """Have a message invisible to others for so long from now on; False if it is not ours any more. `now_ms` is
        the monotonic clock's. Raises PenstockError if the broker did not answer, or not so."""
        popped = _noted(message)
        handle = popped.handle
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self._group,
            topic=popped.topic(self._group, message),
            queue_id=handle.queue_id,
            extra_info=str(handle),
            offset=handle.offset,
            invisible_time=invisible_ms,
        )
        command = Command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())
        answer = await self._call(message, command)
        if not _is_effective(answer):
            return False
        changed = ChangeInvisibleTimeResponseHeader.decode(answer.fields)
        popped.handle = PopHandle(
            handle.offset,
            changed.pop_time,
            changed.invisible_time,
            changed.revive_qid,
            handle.kind,
            handle.broker_name,
            handle.queue_id,
            handle.offset,
        )
        # In order the broker answers with the time since the pop.
        popped.due_ms = now_ms + min(changed.invisible_time, invisible_ms)
        return True


def _is_effective(answer: Command) -> bool:
    """Whether the broker waited for an acknowledgement or a change. RocketMQ answers NO_MESSAGE for an
    offset that the queue does not have; earlier versions of Penstock also for a pop that they did not know."""
    code = check(answer, ResponseCode.NO_MESSAGE).code
    return code == ResponseCode.SUCCESS and UNKNOWN_POP_FIELD not in answer.fields


def _noted(message: ReceivedMessage) -> Popped:
    if message.popped is None:
        raise CodecError(f"{message!r} was not popped")
    return message.popped
