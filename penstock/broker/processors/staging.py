"""Staged publication for clients (Penstock's own codes 9010 to 9013): what Spark's sink writes through.

A stage is answered when its record is in the log, in memory: whatever a power loss takes of it, publishing finds
out. If it made a topic, the answer waits until that is saved. A publication is answered when it is on disk. Owned by
the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from penstock.broker.flow_control import refusal_fields
from penstock.broker.message_ids import born_host
from penstock.broker.options import BrokerOptions
from penstock.broker.publications import Publications
from penstock.broker.send_rules import SendRules
from penstock.broker.staging import Handle, Publisher, RowError, Staging
from penstock.broker.writing import MessageWriter, Written
from penstock.errors import PenstockError, RequestError
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PublishStagedRequestHeader,
    PublishStagedResponseHeader,
    StagedStatusRequestHeader,
    StagedStatusResponseHeader,
    StageMessagesRequestHeader,
    StageMessagesResponseHeader,
    TellHomeRequestHeader,
)
from penstock.protocol.topic_names import STAGED_TOPIC
from penstock.remoting import Connection, ProcessorTable
from penstock.runtime import Entropy
from penstock.security import Guard
from penstock.store import Durability

REMARK_MAX = 2048
# Of a handle: it cannot be guessed.
KEY_BYTES = 16


class StagingProcessor:
    """Codes 9010 to 9013."""

    def __init__(
        self,
        options: BrokerOptions,
        rules: SendRules,
        writer: MessageWriter,
        staging: Staging,
        publications: Publications,
        entropy: Entropy,
        guard: Guard | None = None,
    ) -> None:
        self._options = options
        self._rules = rules
        self._writer = writer
        self._staging = staging
        self._publications = publications
        self._entropy = entropy
        self._guard = guard

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.STAGE_MESSAGES, self.handle_stage_messages)
        table.register(RequestCode.PUBLISH_STAGED, self.handle_publish_staged)
        table.register(RequestCode.STAGED_STATUS, self.handle_staged_status)
        table.register(RequestCode.TELL_HOME, self.handle_tell_home)

    def handle_stage_messages(self, connection: Connection, command: Command) -> Command | None:
        try:
            self._rules.check_open()
            header = StageMessagesRequestHeader.decode(command.fields)
            key = self._entropy.secret_bytes(KEY_BYTES).hex().upper()
            request, messages, topics = self._staging.request(
                header, bytes(command.body), born_host(connection), key, self._publisher().name
            )

            def done(written: Written) -> None:
                handle = Handle(request.physical_offset, request.size, messages, key)
                fields = StageMessagesResponseHeader(handle=str(handle), messages=messages).encode()
                self._once_saved(topics, partial(connection.answer, command, command.answer(fields=fields)))

            self._writer.append(STAGED_TOPIC, (request,), Durability.MEMORY, done)
        except PenstockError as error:
            return self._refuse(command, error)
        return None

    def _once_saved(self, topics: list[str], answer: partial[None]) -> None:
        """Answer when every topic that the messages go to would survive a crash."""
        if topics:
            self._rules.once_saved(topics[0], partial(self._once_saved, topics[1:], answer))
        else:
            answer()

    def handle_publish_staged(self, connection: Connection, command: Command) -> Awaitable[Command]:
        self._rules.check_open()
        header = PublishStagedRequestHeader.decode(command.fields)
        try:
            handles = bytes(command.body).decode("ascii").split("\n") if command.body else []
        except UnicodeDecodeError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, "the handles are no text") from error
        return self._publish(command, header, handles, self._publisher())

    def _publisher(self) -> Publisher:
        """The user who sent the request that is being handled."""
        if self._guard is None:
            return Publisher()
        sender = self._guard.sender()
        if sender is None:  # an admin, or an address from which no signature is asked
            return Publisher(self._guard.sender_name)
        return Publisher(*sender, sees_all=False)

    async def _publish(
        self,
        command: Command,
        header: PublishStagedRequestHeader,
        handles: list[str],
        publisher: Publisher,
    ) -> Command:
        try:
            outcome = await self._publications.publish(header.query_id, header.batch_id, handles, publisher)
        except PenstockError as error:
            return self._refuse(command, error)
        answer = PublishStagedResponseHeader(messages=outcome.messages, already=outcome.already)
        return command.answer(fields=answer.encode())

    def handle_staged_status(self, connection: Connection, command: Command) -> Command:
        header = StagedStatusRequestHeader.decode(command.fields)
        owner, published = self._publisher().name, self._publications.published
        last = published.last(header.query_id, owner)
        status = StagedStatusResponseHeader(
            batch_id=last.batch if last is not None else None,
            messages=last.messages if last is not None else None,
            published_time=last.timestamp_ms if last is not None else None,
            stage_bytes_max=self._staging.bytes_max,
            publish_bytes_max=self._options.publish_bytes_max,
            publish_handles_max=self._options.publish_handles_max,
            home=published.home(header.query_id, owner),
        )
        return command.answer(fields=status.encode())

    def handle_tell_home(self, connection: Connection, command: Command) -> Awaitable[Command]:
        self._rules.check_open()
        return self._tell_home(command, TellHomeRequestHeader.decode(command.fields), self._publisher())

    async def _tell_home(
        self, command: Command, header: TellHomeRequestHeader, publisher: Publisher
    ) -> Command:
        try:
            await self._publications.tell_home(header.query_id, header.broker_name, publisher)
        except PenstockError as error:
            return self._refuse(command, error)
        return command.answer()

    def _refuse(self, command: Command, error: PenstockError) -> Command:
        fields = error.fields if isinstance(error, RowError) else refusal_fields(error)
        return command.answer(error.code, str(error)[:REMARK_MAX], fields)
