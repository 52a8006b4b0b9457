"""Replies to requests (324, 325): pushed to the client that asked (326), and stored as well if told so.

    requester  -- message with CORRELATION_ID, REPLY_TO_CLIENT -->  topic  -->  responder
    requester  <-- 326 with the reply --  broker  <-- 324 or 325 to <cluster>_REPLY_TOPIC --  responder

The responder's answer says whether the requester got the reply: 0, or 1 with the reason. Storing is a record of
it, not part of the promise: where it fails that is logged. Owned by the event loop; one task per reply.
"""

from __future__ import annotations

import logging

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker.flow_control import BusyError
from penstock.broker.message_ids import OffsetIds, born_host
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.relay import ClientCalls
from penstock.broker.processors.send import REMARK_MAX
from penstock.broker.producers import Producers
from penstock.broker.send_rules import SendRules
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import MessageTooLargeError, PenstockError, RequestError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader
from penstock.protocol.topic_names import REPLY_SUFFIX
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock
from penstock.store import Durability

_LOG = logging.getLogger("penstock.broker")


class ReplyProcessor:
    """Codes 324 and 325."""

    def __init__(
        self,
        options: BrokerOptions,
        rules: SendRules,
        writer: MessageWriter,
        producers: Producers,
        calls: ClientCalls,
        offset_ids: OffsetIds,
        clock: Clock,
        *,
        body_bytes_max: int,
    ) -> None:
        self.options = options
        self._rules = rules
        self._writer = writer
        self._producers = producers
        self._calls = calls
        self._offset_ids = offset_ids
        self._clock = clock
        self._body_bytes_max = body_bytes_max

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.SEND_REPLY_MESSAGE, self.handle_reply)
        table.register(RequestCode.SEND_REPLY_MESSAGE_V2, self.handle_reply)

    async def handle_reply(self, connection: Connection, command: Command) -> Command:
        try:
            fields = await self._reply(connection, command)
        except PenstockError as error:
            return command.answer(error.code, str(error)[:REMARK_MAX], dict(self._rules.answer_fields))
        return command.answer(fields={**fields, **self._rules.answer_fields})

    async def _reply(self, connection: Connection, command: Command) -> dict[str, str]:
        self._rules.check_open()
        if command.code == RequestCode.SEND_REPLY_MESSAGE:
            header = SendMessageRequestHeader.decode_v1(command.fields)
        else:
            header = SendMessageRequestHeader.decode_v2(command.fields)
        reply_topic = f"{self.options.cluster_name}{REPLY_SUFFIX}"
        if header.topic != reply_topic:
            # The right to this topic is the right to reply: a topic of an own name would give it to anyone.
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"a reply cannot be sent to topic {header.topic[:80]!r}",
                f"send it to {reply_topic}",
            )
        config = self._rules.topic(header)
        queue_id = self._rules.queue(config, header.queue_id)
        if len(command.body) > self._body_bytes_max:
            raise MessageTooLargeError(
                f"body has {len(command.body)} bytes, the limit is {self._body_bytes_max}", "send it in parts"
            )
        pairs = text.parse(header.properties or "")
        fields = {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if self.options.store_replies:
            stored = self._store(connection, command, header, pairs, queue_id)
            if stored is not None:
                fields["msgId"] = self._offset_ids.of(connection, stored.physical_offset)
                fields["queueOffset"] = str(stored.queue_offset)
        await self._push(connection, command, header, pairs, queue_id)
        return fields

    async def _push(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageRequestHeader,
        pairs: dict[str, str],
        queue_id: int,
    ) -> None:
        requester = pairs.get(text.REPLY_TO_CLIENT, "")
        channel = self._producers.by_client_id(requester) if requester else None
        if channel is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the requester {requester[:80]!r} is not connected to this broker",
                "it may have given up waiting",
            )
        now_ms = self._clock.now_ms()
        put = {**self._rules.suffix, text.PUSH_REPLY_TIME: str(now_ms)}
        pushed = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=text.changed(header.properties or "", pairs, text.BROKERS_OWN, put),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=str(connection.peer),
            store_host=str(self._offset_ids.reachable(connection)),
            store_timestamp=now_ms,
        )
        request = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.encode(), command.body)
        try:
            answer = await self._calls.call(channel, request)
        except BusyError:
            raise
        except RequestError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, error.message, error.hint) from error
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the requester {requester} answered {answer.code}: {answer.remark or 'no reason given'}",
            )

    def _store(
        self,
        connection: Connection,
        command: Command,
        header: SendMessageRequestHeader,
        pairs: dict[str, str],
        queue_id: int,
    ) -> AppendRequest | None:
        try:
            request = AppendRequest(
                self._writer.queue(header.topic, queue_id),
                bytes(command.body),
                text.encode(
                    text.changed(header.properties or "", pairs, text.BROKERS_OWN, self._rules.suffix)
                ),
                header.born_timestamp,
                born_host(connection),
                header.flag,
                header.sys_flag & 0x701,
                header.reconsume_times,
            )
            self._writer.append(header.topic, (request,), Durability.MEMORY, _ignore)
        except PenstockError as error:
            _LOG.warning("a reply is not stored: %s", error)
            return None
        return request


def _ignore(written: Written) -> None:
    """The answer speaks of the push, not of the record."""
