"""Timers, asked for: recall of a message that waits (370), how far a slave may come (60), what waits by topic (61).

A recall is itself a message: it waits in the slot of the one it recalls, and takes it out there before anything of
that second is delivered. So it is as safe as any other message, and works across restarts and failover. Whether the
other message was there nobody knows yet when it is answered. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from penstock._hot.records import AppendRequest
from penstock.broker import property_text as text
from penstock.broker import timer_times as times
from penstock.broker.flow_control import refusal_fields
from penstock.broker.message_ids import UniqueIds, born_host
from penstock.broker.send_rules import SendRules
from penstock.broker.timer import TimerService
from penstock.broker.topics import Topics
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import CodecError, PenstockError, RequestError
from penstock.message.hashing import java_string_hash
from penstock.message.properties import PropertyName
from penstock.metadata.config_files import DataVersion
from penstock.metadata.fastjson import JsonObject, dump_compact
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import RecallMessageRequestHeader, TimerMetricsRequestHeader
from penstock.protocol.recall import RecallHandle
from penstock.protocol.topic_names import WHEEL_TIMER_TOPIC
from penstock.remoting import Connection, ProcessorTable

REMARK_MAX = 2048
RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


class TimersProcessor:
    """Codes 60, 61 and 370."""

    def __init__(
        self,
        rules: SendRules,
        writer: MessageWriter,
        topics: Topics,
        timers: TimerService,
        unique_ids: UniqueIds,
    ) -> None:
        self._rules = rules
        self._writer = writer
        self._topics = topics
        self._timers = timers
        self._unique_ids = unique_ids
        self._ahead: asyncio.Future[dict[str, int]] | None = None

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.RECALL_MESSAGE, self.handle_recall)
        table.register(RequestCode.GET_TIMER_CHECK_POINT, self.handle_checkpoint)
        table.register(RequestCode.GET_TIMER_METRICS, self.handle_metrics)

    # -- recall ----------------------------------------------------------------------------------------------

    def handle_recall(self, connection: Connection, command: Command) -> Command | None:
        try:
            self._recall(connection, command)
        except PenstockError as error:
            return self._refuse(command, error)
        return None

    def _recall(self, connection: Connection, command: Command) -> None:
        header = RecallMessageRequestHeader.decode(command.fields)
        handle = self._check(header)
        pairs = {
            text.UNIQ_KEY: self._unique_ids.next(),
            PropertyName.TAGS: RECALL_TAG,
            times.RECALLS: times.recall_key(handle.topic, handle.unique),
            **times.waiting(handle.time_ms, handle.topic, 0),
            **self._rules.suffix,
        }
        request = AppendRequest(
            self._writer.queue(WHEEL_TIMER_TOPIC, 0),
            RECALL_BODY,
            text.encode("".join(text.pair(name, value) for name, value in pairs.items())),
            self._timers.now_ms(),
            born_host(connection),
        )

        def done(written: Written) -> None:
            if written.error is not None:
                connection.answer(command, self._refuse(command, written.error))
                return
            fields = {**self._region(), "msgId": handle.unique}
            connection.answer(command, command.answer(written.code, written.remark, fields))

        self._writer.append(WHEEL_TIMER_TOPIC, (request,), None, done)

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        options = self._rules.options
        if options.is_slave:
            raise RequestError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                f"{options.broker_name} with id {options.broker_id} is a slave",
                "recall at the master, which has id 0",
            )
        self._rules.check_open()
        if not options.recall or not options.timers:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"broker {options.broker_name} recalls no messages",
                "an operator has to turn recall on (recallMessageEnable)",
            )
        if self._topics.get(header.topic) is None or not self._topics.is_sendable(header.topic):
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:80]!r} does not exist", "check its name"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except CodecError as error:
            raise _illegal(error.message, error.hint) from error
        if handle.topic != header.topic:
            raise _illegal(f"the handle is for topic {handle.topic[:80]!r}", "name that topic")
        if handle.broker_name != options.broker_name:
            raise _illegal(f"the handle is for broker {handle.broker_name[:80]!r}", "ask that broker")
        ahead_ms = handle.time_ms - self._timers.now_ms()
        if ahead_ms <= 0:
            raise _illegal("the message is due already", "it is too late to recall it")
        if ahead_ms > options.timer_max_delay_s * 1_000:
            raise _illegal("the handle names a time further ahead than any message may wait")
        return handle

    def _refuse(self, command: Command, error: PenstockError) -> Command:
        fields = {**self._region(), **refusal_fields(error)}
        return command.answer(error.code, str(error)[:REMARK_MAX], fields)

    def _region(self) -> dict[str, str]:
        """On every answer; unlike a send's, these say nothing of the message trace."""
        return {text.REGION: self._rules.options.region_id}

    # -- for slaves and operators ----------------------------------------------------------------------------

    def handle_checkpoint(self, connection: Connection, command: Command) -> Command:
        return command.answer(body=self._timers.checkpoint().wire())

    def handle_metrics(self, connection: Connection, command: Command) -> Command | Awaitable[Command]:
        """As RocketMQ's `timermetrics`; the timer log knows topics by their hash only."""
        if TimerMetricsRequestHeader.decode(command.fields).penstock_ahead:
            return self._metrics_ahead(command)
        return command.answer(body=dump_compact(self._metrics()))

    async def _metrics_ahead(self, command: Command) -> Command:
        """With `timingAhead`, ours: how many records the wheel has for the next minute, hour and day. It takes a
        thread some milliseconds, so those who ask at once share an answer."""
        if self._ahead is None or self._ahead.done():
            self._ahead = asyncio.ensure_future(asyncio.to_thread(self._timers.ahead()))
        ahead = await asyncio.shield(self._ahead)
        return command.answer(body=dump_compact({**self._metrics(), "timingAhead": {**ahead}}))

    def _metrics(self) -> JsonObject:
        counts, now_ms = self._timers.counts, self._timers.now_ms()
        found: JsonObject = {}
        if counts:
            for name in self._topics.all():
                count = counts.get(java_string_hash(name))
                if count:
                    found[name] = {"count": count, "timeStamp": now_ms}
        return {"dataVersion": DataVersion(0, 0, now_ms).to_json(), "timingCount": found}


def _illegal(message: str, hint: str = "") -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, message, hint)
