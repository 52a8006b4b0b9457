"""Sends: one message (10, 310) or a batch (310, 320).

The handler checks, stores and answers; the answer comes at once or, where the message has to be on disk first,
when it is (`writing.py`); the first answers of a topic that a send has made wait until the topic is saved, too.
Every answer, also a refusal, carries region and trace switch; one-way sends get none. A message that nobody has
given a unique key gets one. An idempotent send that was stored before is answered with where that is, when it is as
safe as the first one had to be (`idempotence.py`).

Owned by the event loop. Delayed messages are stored in the schedule topic and are `delay.py`'s from then on; those
that name their time in the timer topic, and are `timer.py`'s; the half of a transaction is stored in the half topic,
and is in the table of open ones until somebody ends it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.flow_control import refusal_fields
from penstock.broker.half_messages import COUNTED_BY_BROKER, HALF_QUEUE, prepared
from penstock.broker.idempotence import Idempotence, Numbered
from penstock.broker.message_ids import OffsetIds, UniqueIds, born_host
from penstock.broker.open_transactions import OpenTransactions
from penstock.broker.send_rules import PREPARED_OR_MORE, SendRules
from penstock.broker.timer_sends import TimerSends
from penstock.broker.timer_times import handle_for
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import MessageTooLargeError, PenstockError, RequestError
from penstock.message import StoredMessage
from penstock.message.failures import UNPROVEN
from penstock.metadata.topic_table import TopicConfig
from penstock.protocol.bodies import decode_batch, encode_batch_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import DURABILITY_FIELD, REPEATED_FIELD, SendMessageRequestHeader
from penstock.protocol.topic_names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from penstock.remoting import Connection, ProcessorTable
from penstock.security import Guard
from penstock.security.policy import Action
from penstock.store import Durability
from penstock.store.results import BatchResult

TOPIC_SIZE_MAX = 127
REMARK_MAX = 2048
_ITEM = struct.Struct(">iiiii")  # size, magic, checksum, flag, body length
_ITEM_SIZE_MIN = 22
# What no message of a batch may ask for; looked for in the whole batch first, because mostly none is there.
_NOT_IN_BATCHES = (text.DELAY, text.TRANSACTION, *text.TIMERS)
_OWN_BUT_WAIT = text.BROKERS_OWN - {text.WAIT}
_SIGNS = tuple(f"{name}\x01".encode() for name in _NOT_IN_BATCHES)
_DEMANDS = {
    "memory": Durability.MEMORY,
    "flushed": Durability.FLUSHED,
    "replicated": Durability.REPLICATED,
    "default": None,
}


@dataclass(slots=True)
class Place:
    """Where a message goes: the topic and queue to store it in, and those that the answer speaks of."""

    topic: str
    queue_id: int
    real_queue_id: int


class SendProcessor:
    """Codes 10, 310 and 320."""

    def __init__(
        self,
        rules: SendRules,
        writer: MessageWriter,
        timers: TimerSends,
        unique_ids: UniqueIds,
        offset_ids: OffsetIds,
        opened: OpenTransactions,
        *,
        sequences: Idempotence,
        body_bytes_max: int,
        batch_count_max: int,
        learn: Callable[[str, int], None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._rules = rules
        self._writer = writer
        self._timers = timers
        self._unique_ids = unique_ids
        self._offset_ids = offset_ids
        self._open = opened
        self._sequences = sequences
        self._body_bytes_max = body_bytes_max
        self._batch_count_max = batch_count_max
        # Told where plain messages go, so that the compiled way can take the next ones.
        self.learn = learn
        self._guard = guard

    def register(self, table: ProcessorTable) -> None:
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            table.register(code, self.handle_send)

    def handle_send(self, connection: Connection, command: Command) -> Command | None:
        try:
            self._rules.check_open()
            if command.code == RequestCode.SEND_MESSAGE:
                header = SendMessageRequestHeader.decode_v1(command.fields)
            else:
                header = SendMessageRequestHeader.decode_v2(command.fields)
            demand = self._demand(header)
            config = self._rules.topic(header)
            queue_id = self._rules.queue(config, header.queue_id)
            if header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
                self._send_batch(connection, command, header, config, queue_id, demand)
            else:
                self._send_one(connection, command, header, config, queue_id, demand)
        except PenstockError as error:
            return self.refuse(command, error)
        return None

    def refuse(self, command: Command, error: PenstockError) -> Command:
        """The answer to a send that was not stored, or not known to be."""
        fields = {**self._rules.answer_fields, **refusal_fields(error)}
        return command.answer(error.code, str(error)[:REMARK_MAX], fields)

    # -- one message -----------------------------------------------------------------------------------------

    def _send_one(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageRequestHeader,
        config: TopicConfig,
        queue_id: int,
        demand: Durability | None,
    ) -> None:
        properties = header.properties or ""
        pairs = text.parse(properties)
        put: dict[str, str] = {}
        drop = text.BROKERS_OWN
        dead = self._rules.dead_letter(header, command.version)
        if dead is None:
            level = self._rules.delay_level(pairs)
            place = Place(config.name, queue_id, queue_id)
        else:
            level = 0
            put[text.DELAY] = "-1"  # RocketMQ's mark on what was given up
            place = Place(dead.name, 0, queue_id)
        if config.name.startswith(RETRY_PREFIX):
            drop = drop | {*text.DEAD_LETTER_ORIGINS, UNPROVEN}
            if self._guard is not None and pairs.get(text.RETRY_TOPIC):
                # Consumers are shown this topic; a redrive sends to it, with the rights of the one who redrives.
                self._guard.require_topic(pairs[text.RETRY_TOPIC], Action.SUB)
                if not self._guard.allows_topic(pairs[text.RETRY_TOPIC], Action.PUB):
                    put[UNPROVEN] = "true"
        is_retry = header.reconsume_times > 0 and (level > 0 or dead is not None)
        is_half = self._rules.check_kind(config, header, pairs, is_retry)
        self._check_size(command)
        if pairs.get(text.WAIT, "true").lower() == "false" and demand is None and not is_half:
            demand = Durability.MEMORY
        numbered = self._sequences.read(command.fields, config.name, header.queue_id, self._user())
        if numbered is not None:
            known = self._sequences.known(numbered, (command.body,))
            if known:
                self._answer_again(connection, command, config, queue_id, known, demand)
                return
            put |= numbered.properties()
        unique = pairs.get(text.UNIQ_KEY)
        if not unique:
            unique = put[text.UNIQ_KEY] = self._unique_ids.next()
        timed: dict[str, str] = {}
        if is_half:
            # A delay is not looked at before it is committed.
            self._open.check_room()
            put |= prepared(place.topic, place.queue_id, unique, header.producer_group, pairs)
            place.topic, place.queue_id = HALF_TOPIC, HALF_QUEUE
            drop = drop | {*COUNTED_BY_BROKER}
        elif dead is None:
            timed = self._timers.waiting(pairs, level, place.topic, place.queue_id)
        if timed:
            put |= timed
            place.topic, place.queue_id = WHEEL_TIMER_TOPIC, 0
        if level and not is_half:
            put |= delayed(place, level)
        put |= self._rules.suffix
        stored = text.encode(text.changed(properties, pairs, drop, put))
        request = AppendRequest(
            self._writer.queue(place.topic, place.queue_id),
            bytes(command.body),
            stored,
            header.born_timestamp,
            born_host(connection),
            header.flag,
            self._rules.system_flag(config, header.sys_flag),
            header.reconsume_times,
        )
        repeated = "" if numbered is None else "false"

        def done(written: Written) -> None:
            queue, handle = place.real_queue_id, handle_for(timed, self._rules.options.broker_name, unique)
            fields = self.place_fields(connection, request, queue, unique, handle, repeated)
            self._rules.once_saved(config.name, partial(self._answer, connection, command, fields, written))

        self._writer.append(place.topic, (request,), demand, done)
        if numbered is not None:
            self._sequences.stored(numbered, (request.physical_offset,))
        if is_half:
            self._open.opened(request.queue_offset, request.physical_offset)
        elif self.learn is not None and not level and not timed and dead is None:
            self._rules.once_saved(config.name, partial(self.learn, config.name, queue_id))

    def _user(self) -> str | None:
        """Who sends; empty for a trusted address, None without access control."""
        return None if self._guard is None else self._guard.sender_name

    def _check_size(self, command: Command) -> None:
        if len(command.body) > self._body_bytes_max:
            raise MessageTooLargeError(
                f"body has {len(command.body)} bytes, the limit is {self._body_bytes_max}", "send it in parts"
            )

    def place_fields(
        self,
        connection: Connection,
        stored: AppendRequest | StoredMessage,
        queue_id: int,
        unique: str,
        recall_handle: str = "",
        repeated: str = "",
    ) -> dict[str, str]:
        """What an answer says of where a message is, and how it can be recalled."""
        fields = {
            "msgId": self._offset_ids.of(connection, stored.physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(stored.queue_offset),
            "transactionId": unique,
        }
        if recall_handle:
            fields["recallHandle"] = recall_handle
        if repeated:
            fields[REPEATED_FIELD] = repeated
        return fields

    def _answer_again(
        self,
        connection: Connection,
        command: Command,
        config: TopicConfig,
        queue_id: int,
        known: list[StoredMessage],
        demand: Durability | None,
        batch_key: str | None = None,
    ) -> None:
        """A send was stored before: the first one's answer, when it is as safe. `batch_key` is None for one message,
        else what a batch is named by in its answer."""
        first, last = known[0], known[-1]
        if batch_key is None:
            unique = first.properties.get(text.UNIQ_KEY, "")
            timed = first.properties if first.topic == WHEEL_TIMER_TOPIC else {}
            handle = handle_for(timed, self._rules.options.broker_name, unique)
            fields = self.place_fields(connection, first, queue_id, unique, handle, "true")
        else:
            ids = [self._offset_ids.of(connection, message.physical_offset) for message in known]
            fields = self._batch_fields(ids, queue_id, first.queue_offset, batch_key, "true")

        def done(written: Written) -> None:
            self._rules.once_saved(config.name, partial(self._answer, connection, command, fields, written))

        self._writer.wait_again(last.physical_offset + last.size, demand, done)

    def _answer(
        self, connection: Connection, command: Command, fields: dict[str, str], written: Written
    ) -> None:
        if written.error is not None:
            connection.answer(command, self.refuse(command, written.error))
            return
        fields |= self._rules.answer_fields
        fields[DURABILITY_FIELD] = written.durability.name.lower()
        connection.answer(command, command.answer(written.code, written.remark, fields))

    def _demand(self, header: SendMessageRequestHeader) -> Durability | None:
        """What our own clients may ask for; None is the broker's own setting."""
        if header.durability is None:
            return None
        try:
            return _DEMANDS[header.durability]
        except KeyError:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"durability {header.durability[:40]!r} cannot be had from this broker",
                "ask for memory, flushed or replicated",
            ) from None

    # -- batches ---------------------------------------------------------------------------------------------

    def _send_batch(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageRequestHeader,
        config: TopicConfig,
        queue_id: int,
        demand: Durability | None,
    ) -> None:
        self._check_batch(header, config, command.body)
        pairs = text.parse(header.properties or "")
        if pairs.get(text.WAIT, "true").lower() == "false" and demand is None:
            demand = Durability.MEMORY
        batch_key = pairs.get(text.UNIQ_KEY, "")
        numbered = self._sequences.read(command.fields, config.name, header.queue_id, self._user())
        if numbered is not None:
            bodies = [item.body for item in decode_batch(command.body)]
            numbered = self._sequences.batch(numbered, len(bodies))
            known = self._sequences.known(numbered, bodies)
            if known:
                self._answer_again(connection, command, config, queue_id, known, demand, batch_key)
                return
        repeated = "" if numbered is None else "false"

        def done(result: BatchResult, written: Written) -> None:
            prefix = self._offset_ids.prefix(connection)
            ids = [prefix + message_id[-16:] for message_id in result.message_ids]
            fields = self._batch_fields(ids, queue_id, result.first_queue_offset, batch_key, repeated)
            self._rules.once_saved(config.name, partial(self._answer, connection, command, fields, written))

        stored = self._writer.append_batch(
            config.name,
            queue_id,
            _with_suffix(bytes(command.body), self._rules.suffix, numbered),
            self._rules.system_flag(config, header.sys_flag),
            header.born_timestamp,
            connection.peer,
            demand,
            done,
        )
        if numbered is not None:
            self._sequences.stored(numbered, [int(one[-16:], 16) for one in stored.message_ids])
        if self.learn is not None:
            self._rules.once_saved(config.name, partial(self.learn, config.name, queue_id))

    @staticmethod
    def _batch_fields(
        ids: list[str], queue_id: int, queue_offset: int, key: str, repeated: str
    ) -> dict[str, str]:
        fields = {"msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        if key:
            fields["transactionId"] = key
        if repeated:
            fields[REPEATED_FIELD] = repeated
        return fields

    def _check_batch(
        self, header: SendMessageRequestHeader, config: TopicConfig, body: bytes | bytearray
    ) -> None:
        """What a batch may not be; that its lengths add up is the store's to check, before it writes."""
        if len(config.name) > TOPIC_SIZE_MAX:
            raise _illegal(f"topic {config.name[:80]} is too long for a batch")
        if config.name.startswith(RETRY_PREFIX):
            raise _illegal(f"a batch cannot be sent to the retry topic {config.name}")
        if header.sys_flag & PREPARED_OR_MORE:
            raise _illegal("a batch cannot be transactional")
        if len(body) > self._body_bytes_max:
            raise MessageTooLargeError(
                f"batch has {len(body)} bytes, the limit is {self._body_bytes_max}", "send smaller batches"
            )
        is_suspect = any(sign in body for sign in _SIGNS)
        if is_suspect or len(body) // _ITEM_SIZE_MIN > self._batch_count_max:
            count = _walk_batch(body, _refuse_kind if is_suspect else None)
            if count > self._batch_count_max:
                raise _illegal(f"a batch of {count} messages; the limit is {self._batch_count_max}")


def delayed(place: Place, level: int) -> dict[str, str]:
    """Send a message to the schedule topic instead, with what is needed to bring it back."""
    real = {
        text.DELAY: str(level),
        text.REAL_TOPIC: place.topic,
        text.REAL_QUEUE_ID: str(place.queue_id),
    }
    place.topic, place.queue_id = SCHEDULE_TOPIC, level - 1
    return real


def _illegal(message: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, message, "send the messages one by one")


def _refuse_kind(properties: bytes) -> None:
    pairs = text.parse(text.decode(properties))
    for name in _NOT_IN_BATCHES:
        value = pairs.get(name)
        if value is not None and value.lower() not in ("0", "false"):
            raise _illegal(f"a message of the batch has {name}, which a batch cannot have")


def _with_suffix(batch: bytes, suffix: dict[str, str], numbered: Numbered | None) -> bytes:
    """The batch with what the broker adds to every message of it; CodecError if its lengths lie.

    RocketMQ keeps the items of a batch as the producer encoded them, so consumers see WAIT=false; only WAIT=true, the
    default, is left out to save its bytes.
    """
    items: list[bytes] = []
    for number, record in enumerate(decode_batch(batch)):
        found = text.decode(record.properties)
        pairs = text.parse(found)
        put = suffix if numbered is None else {**numbered.properties(number), **suffix}
        drop = text.BROKERS_OWN if pairs.get(text.WAIT) == "true" else _OWN_BUT_WAIT
        stored = text.changed(found, pairs, drop, put)
        items.append(encode_batch_record(record.body, text.encode(stored), record.flag))
    return b"".join(items)


def _walk_batch(body: bytes | bytearray, look: Callable[[bytes], None] | None) -> int:
    """How many messages a batch has; stops where its lengths stop making sense, which the store will refuse."""
    at = count = 0
    while len(body) - at >= _ITEM_SIZE_MIN:
        size, _, _, _, body_size = _ITEM.unpack_from(body, at)
        if size < _ITEM_SIZE_MIN or size > len(body) - at or not 0 <= body_size <= size - _ITEM_SIZE_MIN:
            break
        if look is not None:
            look(bytes(body[at + _ITEM_SIZE_MIN + body_size : at + size]))
        count += 1
        at += size
    return count
