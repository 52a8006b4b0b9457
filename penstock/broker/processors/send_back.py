"""A consumer gives a message back (36): it comes again later, or goes to the dead letters.

    tries left      %RETRY%<group>, any of its queues, after delay level 3 + tries (or the level asked for)
    none left       %DLQ%<group>, queue 0, at once; also if the level asked for is negative

A group with a retry policy of its own waits as that says, rounded up to a delay level. The copy keeps body, born
time and host, flag and properties; it gets one more try counted, the first topic (RETRY_TOPIC), the first id
(ORIGIN_MESSAGE_ID) and notes of why, since when and from where (`message/failures.py`). Answered when the copy is
as safe as any other message: the consumer moves on after it. Owned by the event loop.
"""

from __future__ import annotations

import logging

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.flow_control import refusal_fields
from penstock.broker.groups import GroupConfig, Groups
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.send import REMARK_MAX, Place, delayed
from penstock.broker.record_gate import RecordGate, StoredRecord
from penstock.broker.retry_names import RetryNames
from penstock.broker.statistics import Statistics
from penstock.broker.topics import Topics, dead_letter_topic, may_be_delivered_to, retry_topic
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import PenstockError, PropertiesTooLargeError, RequestError
from penstock.message import StoredMessage
from penstock.message.failures import FIRST_FAILED, ORIGIN, REASON, bounded_reason
from penstock.metadata.topic_table import Permission
from penstock.protocol.codes import V3_4_9, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import ConsumerSendMsgBackRequestHeader
from penstock.protocol.topic_names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Runtime
from penstock.security import Guard
from penstock.security.policy import Action
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
FIRST_RETRY_LEVEL = 3
_BORN_AND_COMPRESSION = ~0x30
# Messages that will be delivered, if later: whoever may read their topic may ask for them as retries.
_DELAYED = (SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC)


class SendBackProcessor:
    """Code 36."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        topics: Topics,
        groups: Groups,
        names: RetryNames,
        statistics: Statistics,
        runtime: Runtime,
        *,
        guard: Guard | None = None,
    ) -> None:
        self._gate = RecordGate(store, guard)
        self.options = options
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._names = names
        self._statistics = statistics
        self._entropy = runtime.entropy
        self._clock = runtime.clock
        self._delays_ms = store.options.delays_ms
        self._levels = len(self._delays_ms)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.CONSUMER_SEND_MSG_BACK, self.handle_send_back)

    def handle_send_back(self, connection: Connection, command: Command) -> Command | None:
        header = ConsumerSendMsgBackRequestHeader.decode(command.fields)
        if self.options.is_slave:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]{self.options.broker_name} with id {self.options.broker_id} is a slave",
                "send it back to the master, which has id 0",
            )
        group = self._groups.require(header.group)
        if not self.options.permission & Permission.WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"broker {self.options.broker_name} accepts no messages"
            )
        if group.retry_queue_nums <= 0:
            return command.answer()  # the group wants no retries
        hint = "it may have expired; commit the offset behind it"
        record = self._gate.find(header.offset)
        if record is not None:
            # A position says nothing of a topic: without this a group could be sent what it may not read.
            self._gate.permit(record, Action.SUB, topic=self._origin(group.name, record.message.topic))
        # Before a missing message is reported, as in RocketMQ: clients without members make a group's topic so.
        config = self._topics.ensure(
            retry_topic(group.name), group.retry_queue_nums, unit_mode=header.unit_mode
        )
        record = record or self._gate.at(header.offset, hint)
        if record.message.topic not in _DELAYED and not may_be_delivered_to(record.message.topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"messages of topic {record.message.topic} are the broker's own and consumed by no group",
                "send back messages that the group consumed",
            )
        if not config.perm & Permission.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {config.name} accepts no messages")
        try:
            self._store_copy(connection, command, header, group, record)
        except PenstockError as error:
            return command.answer(error.code, str(error)[:REMARK_MAX], refusal_fields(error))
        return None

    def _origin(self, group: str, topic: str) -> str:
        """The topic that a popped message was in before its retries, unless that is another group's retry topic."""
        return self._names.origin(group, topic)

    def _first(self, group: str, message: StoredMessage) -> dict[str, str]:
        """Topic and id of the message at its first try. What its properties say counts only where they were set when
        it was tried before: in an ordinary topic a sender may have set them, and a redrive goes where they lead."""
        found, source = message.properties, message.topic
        if source in _DELAYED:
            source = found.get(text.REAL_TOPIC, source)
        topic, was_tried = self._origin(group, source), source.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
        noted = found.get(text.RETRY_TOPIC) if was_tried and topic == source else None
        origin_id = found.get(text.ORIGIN_MESSAGE_ID) if was_tried else None
        return {text.RETRY_TOPIC: noted or topic, text.ORIGIN_MESSAGE_ID: origin_id or message.message_id}

    def _store_copy(
        self,
        connection: Connection,
        command: Command,
        header: ConsumerSendMsgBackRequestHeader,
        group: GroupConfig,
        record: StoredRecord,
    ) -> None:
        message = record.message
        most = group.retry_max_times
        if command.version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        is_dead = message.tries >= most or header.delay_level < 0
        put = self._first(group.name, message)
        if is_dead:
            config = self._topics.ensure(dead_letter_topic(group.name), 1)
            place = Place(config.name, 0, 0)
            put[text.DELAY] = "0"
        else:
            place = Place(retry_topic(group.name), self._entropy.below(group.retry_queue_nums), 0)
            level = header.delay_level or self._next_level(group, message.tries)
            put |= delayed(place, min(level, self._levels))
        request = AppendRequest(
            self._writer.queue(place.topic, place.queue_id),
            message.body,
            _with_notes(record, put, self._notes(header, message)),
            message.born_timestamp,
            message.born_host.encode(),
            message.flag,
            message.sys_flag & _BORN_AND_COMPRESSION,
            message.tries + 1,
        )

        def done(written: Written) -> None:
            if written.error is None:
                self._statistics.sent_back(group.name, put[text.RETRY_TOPIC], is_dead=is_dead)
                if is_dead:
                    _LOG.info("message %s is a dead letter of group %s", message.message_id, group.name)
                connection.answer(command, command.answer())
            else:
                remark = str(written.error)[:REMARK_MAX]
                connection.answer(
                    command, command.answer(written.code, remark, refusal_fields(written.error))
                )

        self._writer.append(place.topic, (request,), None, done)

    def _next_level(self, group: GroupConfig, tries: int) -> int:
        """The delay level of the next try: 3 and up, or the first that waits as long as the group's own policy."""
        if not group.retry_policy.is_own:
            return FIRST_RETRY_LEVEL + tries
        wait_ms = group.retry_policy.wait_ms(tries)
        waits = enumerate(self._delays_ms, 1)
        return next((level for level, delay_ms in waits if delay_ms >= wait_ms), self._levels)

    def _notes(self, header: ConsumerSendMsgBackRequestHeader, message: StoredMessage) -> dict[str, str]:
        """What is put on a message beside RocketMQ's own marks."""
        notes = {}
        if REASON not in message.properties or header.reason:
            notes[REASON] = bounded_reason(header.reason or "")
        if FIRST_FAILED not in message.properties:
            notes[FIRST_FAILED] = str(self._clock.now_ms())
            notes[ORIGIN] = f"{self.options.broker_name}/{message.queue_id}/{message.queue_offset}"
        return {name: value for name, value in notes.items() if value}


def _with_notes(record: StoredRecord, put: dict[str, str], notes: dict[str, str]) -> bytes:
    """The properties of the copy; where the notes do not fit they are left out, never the message."""
    properties, pairs = text.decode(record.properties), dict(record.message.properties)
    drop = (text.WAIT, text.SEAL, *text.DEAD_LETTER_ORIGINS)
    try:
        return text.encode(text.changed(properties, pairs, drop, {**put, **notes}))
    except PropertiesTooLargeError:
        return text.encode(text.changed(properties, pairs, drop, put))
