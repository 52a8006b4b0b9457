"""A producer's side of transactions: half messages out, their ends out, questions in.

Rules. A half message is sent at most once: a second one would be another transaction. An end is sent until a broker
says that it is done or cannot be; a Penstock broker that hears it twice stores it once. What this producer has
decided it answers itself when asked, also while it is still deciding (then: not yet); anything else, from before it
was started or of another process of its group, its listener is asked about, in a thread if it is no coroutine.
Whoever has no answer says nothing: the broker asks again, or asks another. Belongs to the client's event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from enum import IntEnum
from typing import Protocol

from penstock.client.delivery import Delivery
from penstock.client.instance import ClientInstance
from penstock.client.options import ProducerOptions
from penstock.client.outgoing import Outgoing
from penstock.client.received import ReceivedMessage
from penstock.client.results import SendResult
from penstock.client.tracing import REGION, TRACE_ON, Tracing, TransactionEnd
from penstock.errors import PenstockError, SendFailedError, SendUnknownError
from penstock.message import PropertyName, TransactionKind, decode_properties, parse_message_id
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from penstock.remoting import Connection

logger = logging.getLogger(__name__)
# Decisions that a broker may not have heard of; the oldest go first.
DECISIONS_MAX = 10_000
# Questions that may wait for the listener; more are left to the broker's next round.
QUESTIONS_MAX = 1_000
_BACKOFF_FIRST_MS = 50
_BACKOFF_MAX_MS = 1_000
# Stored, if not as safely as the broker is configured to: it is over all the same.
_DONE = (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)
# Not here, or not now.
_AGAIN = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.GO_AWAY,
)


class TransactionState(IntEnum):
    """How a transaction ended; the values are RocketMQ's."""

    COMMIT = int(TransactionKind.COMMIT)
    ROLLBACK = int(TransactionKind.ROLLBACK)
    UNKNOWN = int(TransactionKind.NONE)


# What traces call them: the names of RocketMQ's states.
TRACE_STATES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class TransactionListener(Protocol):
    """Knows how transactions of a producer group ended, by looking at what they were about."""

    def check(self, message: ReceivedMessage) -> TransactionState | Awaitable[TransactionState]:
        """How the transaction of this message ended; UNKNOWN if that is not certain yet. A coroutine runs in the
        producer's event loop, anything else in a thread."""


class TransactionCalls:
    """One for a producer."""

    def __init__(
        self, instance: ClientInstance, options: ProducerOptions, listener: TransactionListener | None
    ) -> None:
        self._instance = instance
        self._options = options
        self._listener = listener
        # What is decided or being decided here, by message id; None is not yet.
        self._decisions: dict[str, TransactionState | None] = {}
        self._questions: set[asyncio.Task[None]] = set()
        # Set if the producer is traced; then what a trace says of each message is kept until its end.
        self.tracing: Tracing | None = None
        self._traced: dict[str, TransactionEnd] = {}

    # -- ours ------------------------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery, item: Outgoing) -> SendResult:
        """Store a half message. Raises as a send does; then there is no transaction, or none that is worth ending."""
        item.sys_flag |= TransactionKind.PREPARED
        item.is_solo = item.is_half = True
        future = delivery.post_together([item])
        self._decisions[item.msg_id] = None
        try:
            (result,) = await future
        except BaseException:
            self._decisions[item.msg_id] = (
                TransactionState.ROLLBACK
            )  # it may be stored, and then it is asked about
            self._trim()
            raise
        if self.tracing is not None and result.trace_on:
            self._traced[item.msg_id] = _traced(item, result)
        if not result.is_ok:
            await self._give_up(result)
        return result

    async def _give_up(self, result: SendResult) -> None:
        """It is less safe than the broker is configured for: the work that it stands for must not begin."""
        try:
            await self.end(result, TransactionState.ROLLBACK)
        except PenstockError as error:
            logger.info("transaction %s is rolled back when it is asked about: %s", result.msg_id, error)
        raise SendFailedError(
            f"the half message was stored as {result.status.value} only; the transaction is rolled back",
            "try again; look at the broker's disk and replicas if it repeats",
            result=result,
        )

    async def end(self, result: SendResult, state: TransactionState, reason: str = "") -> None:
        """Have a transaction end. SendUnknownError if no broker said that it did: it will ask. SendFailedError if it
        has ended otherwise."""
        self._decisions[result.msg_id] = state
        self._trim()
        traced = self._traced.pop(result.msg_id, None)
        if traced is not None and self.tracing is not None:
            self.tracing.transaction_ended(traced, result.queue.broker_name, TRACE_STATES[state])
        if state is TransactionState.UNKNOWN:
            del self._decisions[result.msg_id]  # the listener's to say, from now on
            return
        _, position = parse_message_id(result.offset_msg_id)
        header = EndTransactionRequestHeader(
            topic=result.queue.topic,
            producer_group=self._options.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=position,
            commit_or_rollback=int(state),
            msg_id=result.msg_id,
            transaction_id=result.transaction_id or None,
            broker_name=result.queue.broker_name,
        )
        history: list[str] = []
        for attempt in range(1 + self._options.retries):
            if attempt:
                await asyncio.sleep(min(_BACKOFF_FIRST_MS * 4 ** (attempt - 1), _BACKOFF_MAX_MS) / 1000)
                await self._refresh(result.queue.topic)
            command = Command(RequestCode.END_TRANSACTION, header.encode(), remark=reason[:200] or None)
            try:
                answer = await self._instance.call_broker(
                    result.queue.broker_name, command, self._options.send_timeout_ms
                )
            except PenstockError as error:
                history.append(error.message)
                continue
            if answer.code in _DONE:
                self._decisions.pop(result.msg_id, None)
                return
            history.append(f"answered {answer.code}: {(answer.remark or 'no reason given')[:300]}")
            if answer.code not in _AGAIN:
                self._decisions.pop(result.msg_id, None)
                raise SendFailedError(
                    f"the transaction could not be ended with {state.name} ({'; '.join(history)})",
                    "it may have ended before: look whether the message is in its topic",
                    code=answer.code,
                    attempts=tuple(history),
                    result=result,
                )
        raise SendUnknownError(
            f"not known whether the transaction has ended with {state.name} ({'; '.join(history)})",
            "the broker will ask this producer, or another of its group that has a transaction listener",
            attempts=tuple(history),
            result=result,
        )

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except PenstockError as error:
            logger.info("the route of %s is not refreshed: %s", topic, error)

    def _trim(self) -> None:
        while len(self._decisions) > DECISIONS_MAX:
            oldest = next(iter(self._decisions))
            del self._decisions[oldest]
            self._traced.pop(oldest, None)

    # -- questions -------------------------------------------------------------------------------------------

    def is_known(self, msg_id: str) -> bool:
        """Whether this producer has begun the transaction itself."""
        return msg_id in self._decisions

    @property
    def has_listener(self) -> bool:
        return self._listener is not None

    def asked(self, connection: Connection, command: Command, message: ReceivedMessage) -> None:
        """A broker asks how a transaction ended."""
        header = CheckTransactionStateRequestHeader.decode(command.fields)
        if message.msg_id in self._decisions:
            self._say(connection, header, message, self._decisions[message.msg_id])
        elif len(self._questions) < QUESTIONS_MAX and self._listener is not None:
            task = asyncio.ensure_future(self._ask(self._listener, connection, header, message))
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)

    async def _ask(
        self,
        listener: TransactionListener,
        connection: Connection,
        header: CheckTransactionStateRequestHeader,
        message: ReceivedMessage,
    ) -> None:
        try:
            if inspect.iscoroutinefunction(listener.check):
                found = await listener.check(message)
            else:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(None, listener.check, message)
            state = TransactionState(found)
        except Exception:
            logger.exception("the transaction listener failed for message %s", message.msg_id)
            return
        self._say(connection, header, message, state)

    def _say(
        self,
        connection: Connection,
        header: CheckTransactionStateRequestHeader,
        message: ReceivedMessage,
        state: TransactionState | None,
    ) -> None:
        if not state:  # not yet, or unknown
            return
        answer = EndTransactionRequestHeader(
            topic=message.topic,
            producer_group=self._options.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=int(state),
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=header.transaction_id,
            broker_name=header.broker_name,
        )
        if self.tracing is not None and message.properties.get(TRACE_ON) != "false":
            asked = TransactionEnd(
                message.msg_id,
                message.topic,
                message.tag,
                message.properties.get(PropertyName.KEYS, ""),
                message.properties.get(REGION, ""),
                header.transaction_id or "",
                from_check=True,
            )
            self.tracing.transaction_ended(asked, header.broker_name or "", TRACE_STATES[state])
        connection.send(Command(RequestCode.END_TRANSACTION, answer.encode()))

    async def close(self) -> None:
        """Answer nothing any more."""
        for task in list(self._questions):
            task.cancel()
        await asyncio.gather(*self._questions, return_exceptions=True)


def _traced(item: Outgoing, result: SendResult) -> TransactionEnd:
    properties = decode_properties(item.properties)
    return TransactionEnd(
        item.msg_id,
        item.topic,
        properties.get(PropertyName.TAGS, ""),
        properties.get(PropertyName.KEYS, ""),
        result.region_id,
        result.transaction_id,
    )
