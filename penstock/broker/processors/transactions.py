"""A producer ends its transaction (37); an operator has a parked one asked about again (323).

    found by its log position, in the half queue        else 1
    at the offset that the request names                else 1
    of this producer group, with this message id        else 16 (A19)
    not too late for one with an immunity time          else 604
    still open: committed or rolled back                0 when that is safe
    over already: nothing is stored                     0 if it ended this way, 1 if it did not

"Unknown" (0) is answered and changes nothing: the producer will be asked later. RocketMQ's clients send this request
one-way and get no answer. Owned by the event loop; what is over is looked up in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from penstock.broker import half_messages as halves
from penstock.broker.delay import SteadyTime
from penstock.broker.flow_control import refusal_fields
from penstock.broker.half_messages import HALF_QUEUE, Half, read_half
from penstock.broker.open_transactions import OpenTransactions
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.send import REMARK_MAX
from penstock.broker.record_gate import RecordGate, StoredRecord
from penstock.broker.transaction_ends import TransactionEnds
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import PenstockError, RequestError
from penstock.message import TransactionKind
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import EndTransactionRequestHeader, ResumeCheckHalfMessageRequestHeader
from penstock.protocol.topic_names import CHECK_MAX_TOPIC, HALF_TOPIC
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Clock
from penstock.security import Guard
from penstock.security.policy import Action
from penstock.store import MessageStore

_LOG = logging.getLogger("penstock.broker")
_KINDS = (TransactionKind.NONE, TransactionKind.COMMIT, TransactionKind.ROLLBACK)


class TransactionsProcessor:
    """Codes 37 and 323."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        writer: MessageWriter,
        opened: OpenTransactions,
        ends: TransactionEnds,
        clock: Clock,
        guard: Guard | None = None,
    ) -> None:
        self.options = options
        self._guard = guard
        self._gate = RecordGate(store, guard)
        self._writer = writer
        self._open = opened
        self._ends = ends
        self._time = SteadyTime(clock)

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self.options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.END_TRANSACTION, self.handle_end_transaction)
        table.register(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.handle_resume_check)

    def _check_master(self) -> None:
        if self.options.is_slave:
            raise RequestError(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                f"{self.options.broker_name} with id {self.options.broker_id} is a slave",
                "end transactions at the master, which has id 0",
            )

    # -- 37 --------------------------------------------------------------------------------------------------

    def handle_end_transaction(
        self, connection: Connection, command: Command
    ) -> Command | Coroutine[Any, Any, Command] | None:
        header = EndTransactionRequestHeader.decode(command.fields)
        self._check_master()
        if header.commit_or_rollback not in _KINDS:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{header.commit_or_rollback} is no end of a transaction",
                "use 8 for commit, 12 for rollback, 0 for not known yet",
            )
        half = self._half(header)
        if header.commit_or_rollback == TransactionKind.NONE:
            return command.answer(remark="the producer will be asked")
        is_commit = header.commit_or_rollback == TransactionKind.COMMIT
        newest = self._open.newest(half)
        if newest is None:
            unseen = self._ends.unseen(half)
            if unseen is not None:
                # What the first one waits for, this one does: an end is not told before it is safe.
                was_committed, log_end = unseen

                def safe(written: Written) -> None:
                    is_safe = written.error is None and written.code == ResponseCode.SUCCESS
                    answer = (
                        _ended_before(command, was_committed, is_commit)
                        if is_safe
                        else _answer(command, written)
                    )
                    connection.answer(command, answer)

                self._writer.wait_again(log_end, None, safe)
                return None
            return self._over(connection, command, half, is_commit)

        def ended(outcome: Written | PenstockError) -> None:
            connection.answer(command, _answer(command, outcome))

        try:
            self._ends.end(half, newest, is_commit=is_commit, ended=ended)
        except PenstockError as error:
            return _answer(command, error)
        return None

    def _half(self, header: EndTransactionRequestHeader) -> Half:
        """The half message that a request is about. Raises RequestError if it is not this producer's to end."""
        record = self._open.record_at(header.commit_log_offset, header.tran_state_table_offset)
        half = None if record is None else read_half(record)
        if half is None or half.offset != header.tran_state_table_offset:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"there is no half message {header.tran_state_table_offset} at log position "
                f"{header.commit_log_offset}",
                "it may have expired, or is of another broker",
            )
        if half.group != header.producer_group or (header.msg_id and header.msg_id != half.unique):
            _LOG.warning(
                "group %s wants to end transaction %s of group %s",
                *(header.producer_group[:80], half.unique, half.group),
            )
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"that half message is not one of group {header.producer_group[:80]!r} with id "
                f"{(header.msg_id or '')[:80]!r}",
                "a transaction is ended by the group that began it",
            )
        if self._guard is not None:
            # The request need not name the topic that it is about.
            self._guard.require_topic(half.topic, Action.PUB, record="this transaction")
        if half.has_immunity and not header.from_transaction_check:
            age_ms = self._time.now_ms() - half.first_stored_ms
            if age_ms > half.immunity_ms(self.options.transaction_timeout_ms):
                raise RequestError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the transaction is {age_ms} ms old, longer than it was to be left alone",
                    "answer when the broker asks",
                )
        return half

    async def _over(self, connection: Connection, command: Command, half: Half, is_commit: bool) -> Command:
        """It is over: say whether it ended as this request wants it. Nothing is stored."""
        find = partial(self._ends.find_committed, half)
        is_committed = await connection.in_thread(lambda: find)
        return _ended_before(command, is_committed, is_commit)

    # -- 323 -------------------------------------------------------------------------------------------------

    def handle_resume_check(self, connection: Connection, command: Command) -> Command | None:
        header = ResumeCheckHalfMessageRequestHeader.decode(command.fields)
        self._check_master()
        record = self._parked(header.msg_id)
        self._open.check_room()
        request = halves.resumed(record, self._writer.queue(HALF_TOPIC, HALF_QUEUE))

        def done(written: Written) -> None:
            connection.answer(command, _answer(command, written))

        try:
            self._writer.append(HALF_TOPIC, (request,), None, done)
        except PenstockError as error:
            return _answer(command, error)
        self._open.opened(request.queue_offset, request.physical_offset)
        return None

    def _parked(self, message_id: str) -> StoredRecord:
        hint = f"take the id of a message of {CHECK_MAX_TOPIC}"
        record = self._gate.by_id(message_id, hint)
        if record.message.topic != CHECK_MAX_TOPIC:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"there is no parked half message {message_id[:80]}", hint
            )
        return record


def _ended_before(command: Command, was_committed: bool, is_commit: bool) -> Command:
    if was_committed == is_commit:
        return command.answer(remark="it had ended so before")
    was = "committed" if was_committed else "rolled back, or parked after too many checks"
    return command.answer(ResponseCode.SYSTEM_ERROR, f"the transaction was {was} before; nothing is changed")


def _answer(command: Command, outcome: Written | PenstockError) -> Command:
    error = outcome if isinstance(outcome, PenstockError) else outcome.error
    if error is not None:
        return command.answer(error.code, str(error)[:REMARK_MAX], refusal_fields(error))
    assert isinstance(outcome, Written)
    return command.answer(outcome.code, outcome.remark)
