"""Acknowledgements of popped messages (200051, 200151), and more or less time for one (200053).

Rule: a handle counts only if the broker itself knows of a pop of this group, from this topic and queue, at that time,
that handed out that message and still waits for it (A20). A handle that was made up, of another group, of a message
that was acknowledged or has gone back already changes nothing. It is answered as RocketMQ answers it, with success:
clients of RocketMQ 5 repeat an acknowledgement until it succeeds. `UNKNOWN_POP_FIELD` in the answer tells such an
answer from an effective one. An offset that the queue does not have is answered with 208. Topics of handles are their
real ones: retries of a topic are acknowledged under the name of the retry topic, or with the kind that says so. Owned
by the event loop."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.flow_control import refusal_fields
from penstock.broker.options import BrokerOptions
from penstock.broker.pop_order import ORDERED_QUEUE
from penstock.broker.pop_records import CheckKey, CheckPoint, QueueKey
from penstock.broker.pop_service import PopService
from penstock.broker.processors.pop import REMARK_MAX, invisible_time
from penstock.broker.processors.reading import read_body
from penstock.broker.topics import Topics
from penstock.broker.writing import Written
from penstock.errors import CodecError, PenstockError, RequestError
from penstock.protocol.bodies.pop import BatchAckMessageRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.pop import (
    UNKNOWN_POP_FIELD,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from penstock.protocol.pop_handles import NORMAL, PopHandle, real_topic, topic_kind
from penstock.remoting import Connection, ProcessorTable

Ack = tuple[CheckKey, list[int]]


class PopAckProcessor:
    """Codes 200051, 200151 and 200053."""

    def __init__(self, options: BrokerOptions, topics: Topics, service: PopService) -> None:
        self.options = options
        self._topics = topics
        self._service = service

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.ACK_MESSAGE, self.handle_ack)
        table.register(RequestCode.BATCH_ACK_MESSAGE, self.handle_batch_ack)
        table.register(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.handle_change_invisible_time)

    def handle_ack(self, connection: Connection, command: Command) -> Command | None:
        header = AckMessageRequestHeader.decode(command.fields)
        self._service.check_ready()
        key, in_order = self._key(header, beyond=1)
        if in_order and self._service.ordered.is_foreign(key, header.offset):
            return command.answer(
                ResponseCode.MESSAGE_ILLEGAL, f"the pop of this handle did not return message {header.offset}"
            )
        ack = (key, [header.offset])
        return self._acknowledge(connection, command, [] if in_order else [ack], [ack] if in_order else [])

    def handle_batch_ack(self, connection: Connection, command: Command) -> Command | None:
        request = read_body(command, BatchAckMessageRequestBody.decode)
        self._service.check_ready()
        if not request.acks:
            return command.answer(ResponseCode.NO_MESSAGE, "a batch without acknowledgements")
        acks: list[Ack] = []
        ordered: list[Ack] = []
        for ack in request.acks:
            topic = real_topic(ack.group, ack.topic, ack.kind)
            key = CheckKey(QueueKey(topic, ack.group, ack.queue_id), ack.start_offset, ack.pop_time)
            kept = ordered if ack.revive_queue == ORDERED_QUEUE else acks
            kept.append((key, [ack.start_offset + place for place in ack.places]))
        return self._acknowledge(connection, command, acks, ordered)

    def _acknowledge(
        self, connection: Connection, command: Command, acks: list[Ack], ordered: list[Ack]
    ) -> Command | None:
        try:
            count = self._service.ack(acks, _answering(connection, command), ordered)
        except PenstockError as error:
            return command.answer(error.code, str(error)[:REMARK_MAX], refusal_fields(error))
        return command.answer(fields={UNKNOWN_POP_FIELD: "true"}) if not count else None

    def handle_change_invisible_time(self, connection: Connection, command: Command) -> Command | None:
        header = ChangeInvisibleTimeRequestHeader.decode(command.fields)
        invisible_ms = invisible_time(self.options, header.invisible_time)
        self._service.check_ready()
        key, in_order = self._key(header)
        offset = header.offset

        def done(written: Written, check: CheckPoint) -> None:
            answered = ChangeInvisibleTimeResponseHeader(
                pop_time=check.key.pop_time,
                invisible_time=check.invisible_ms,
                revive_qid=check.revive_queue,
            )
            _answering(connection, command, answered.encode())(written)

        def done_in_order(written: Written, span_ms: int) -> None:
            """It stays the same pop, with a time that counts from it."""
            answered = ChangeInvisibleTimeResponseHeader(
                pop_time=key.pop_time, invisible_time=span_ms, revive_qid=ORDERED_QUEUE
            )
            _answering(connection, command, answered.encode())(written)

        try:
            if in_order:
                is_known = self._service.ordered.change(key, offset, invisible_ms, done_in_order)
            else:
                is_known = self._service.change(key, offset, invisible_ms, done)
        except PenstockError as error:
            return command.answer(error.code, str(error)[:REMARK_MAX], refusal_fields(error))
        return None if is_known else self._unchanged(command, key, in_order, invisible_ms)

    def _unchanged(self, command: Command, key: CheckKey, in_order: bool, invisible_ms: int) -> Command:
        """RocketMQ's answer to a change of a message that nobody waits for."""
        now_ms = self._service.now_ms()
        answered = ChangeInvisibleTimeResponseHeader(
            pop_time=key.pop_time if in_order else now_ms,
            invisible_time=now_ms - key.pop_time + invisible_ms if in_order else invisible_ms,
            revive_qid=ORDERED_QUEUE if in_order else 0,
        )
        return command.answer(fields={**answered.encode(), UNKNOWN_POP_FIELD: "true"})

    def _key(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, beyond: int = 0
    ) -> tuple[CheckKey, bool]:
        """What a handle names, if it fits the rest of the request; and whether that was popped in order. Offsets may
        be so far beyond the last message."""
        handle = _parse(header.extra_info)
        group, topic = header.consumer_group, header.topic
        if isinstance(handle, PopHandle) and handle.kind != NORMAL:
            # Clients that know one name of retry topics only name the topic itself for the other.
            topic = real_topic(group, topic_kind(group, topic)[1], handle.kind)
        config = self._topics.get(topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {topic[:80]!r} does not exist", "create it first"
            )
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queue {header.queue_id} is illegal: topic {config.name} has {config.read_queue_nums} to read",
            )
        queue = QueueKey(config.name, group, header.queue_id)
        low, high = self._service.bounds(queue)
        if not low <= header.offset < high + beyond:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset {header.offset} is illegal: queue {queue.queue_id} of {config.name} has {low} to {high}",
            )
        if isinstance(handle, CodecError):
            raise RequestError(ResponseCode.INVALID_PARAMETER, handle.message, handle.hint) from handle
        if handle.queue_id != header.queue_id or handle.offset != header.offset:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "the handle is one of another message",
                "send the handle of the message that is meant",
            )
        key = CheckKey(queue, handle.start_offset, handle.pop_time)
        return key, handle.revive_queue == ORDERED_QUEUE


def _parse(text: str) -> PopHandle | CodecError:
    """A handle, or why it is none: RocketMQ looks at topic, queue and offset first."""
    try:
        return PopHandle.parse(text)
    except CodecError as error:
        return error


def _answering(
    connection: Connection, command: Command, fields: dict[str, str] | None = None
) -> Callable[[Written], None]:
    def done(written: Written) -> None:
        if written.error is None:
            answer = command.answer(fields=fields)
        else:
            remark = str(written.error)[:REMARK_MAX]
            answer = command.answer(written.code, remark, refusal_fields(written.error))
        connection.answer(command, answer)

    return done
