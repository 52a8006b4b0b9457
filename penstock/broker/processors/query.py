"""Looking messages up: by key (12), by place in the log (33), and a queue's entries (321).

A search by key reads the index and as many records as match, from anywhere on disk, and the entries of a queue are
shown with a property of their records; so both run in a thread. A view is one read. Answers hold the stored records
as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from itertools import islice

from penstock.broker.consumers import Consumers
from penstock.broker.record_gate import RecordGate
from penstock.errors import RequestError
from penstock.message import PropertyName
from penstock.protocol.bodies import ConsumeQueueData, QueryConsumeQueueResponseBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from penstock.remoting import Connection, ProcessorTable
from penstock.security import Guard
from penstock.security.policy import Action
from penstock.store import MessageStore
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.key_index import QUERY_MAX

UNIQUE_KEY_MAX = 32
ENTRIES_MAX = 1_024
# Records of one answer together; a client that wants more asks for a shorter time.
ANSWER_BYTES_MAX = 8 * 1024 * 1024


class QueryProcessor:
    """Codes 12, 33 and 321."""

    def __init__(self, store: MessageStore, consumers: Consumers, guard: Guard | None = None) -> None:
        self._store = store
        self._gate = RecordGate(store, guard)
        self._consumers = consumers

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.QUERY_MESSAGE, self.handle_query_message)
        table.register(RequestCode.VIEW_MESSAGE_BY_ID, self.handle_view_message)
        table.register(RequestCode.QUERY_CONSUME_QUEUE, self.handle_query_consume_queue)

    def handle_query_message(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = QueryMessageRequestHeader.decode(command.fields)
        self._gate.check_search(header.topic)
        return self._query(connection, command, header)

    async def _query(
        self, connection: Connection, command: Command, header: QueryMessageRequestHeader
    ) -> Command:
        limit = UNIQUE_KEY_MAX if header.is_unique_key else header.max_num
        find = partial(
            self._find, header.topic, header.key, limit, header.begin_timestamp, header.end_timestamp
        )
        found = await connection.in_thread(lambda: find)
        fields = QueryMessageResponseHeader(
            index_last_update_timestamp=self._store.dispatcher.last_timestamp,
            index_last_update_phyoffset=max(self._store.index.end_phy, 0),
        ).encode()
        if not found:
            remark = f"no message of topic {header.topic[:80]} has the key {header.key[:80]} in that time"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return command.answer(fields=fields, body=found)

    def _find(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> bytes:
        """In a thread: the records of the newest messages with the key, in the order of the log."""
        records: list[bytes] = []
        size = 0
        found = self._gate.by_key(topic, key, max(begin_ms, 0), max(end_ms, 0))
        for record in islice(found, min(max(limit, 1), QUERY_MAX)):
            size += len(record.data)
            if records and size > ANSWER_BYTES_MAX:
                break
            records.append(record.data)
        return b"".join(reversed(records))

    def handle_view_message(self, connection: Connection, command: Command) -> Command:
        header = ViewMessageRequestHeader.decode(command.fields)
        record = self._gate.at(header.offset, "it may have expired, or the id is of another broker")
        self._gate.permit(record, Action.SUB, Action.GET)
        return command.answer(body=record.data)

    def handle_query_consume_queue(self, connection: Connection, command: Command) -> Awaitable[Command]:
        header = QueryConsumeQueueRequestHeader.decode(command.fields)
        queue = self._store.queues.get(header.topic, header.queue_id)
        if queue is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queue {header.queue_id} of topic {header.topic[:80]!r} does not exist",
            )
        return self._queue_entries(connection, command, header, queue)

    async def _queue_entries(
        self,
        connection: Connection,
        command: Command,
        header: QueryConsumeQueueRequestHeader,
        queue: ConsumeQueue,
    ) -> Command:
        low, high = queue.min_offset, queue.max_offset
        count = min(max(header.count, 0), ENTRIES_MAX)
        show = partial(self._shown, header.topic, header.queue_id, max(header.index, low), count)
        entries = await connection.in_thread(lambda: show)
        group = self._consumers.group(header.consumer_group or "")
        body = QueryConsumeQueueResponseBody(
            entries=entries,
            min_queue_index=low,
            max_queue_index=high,
            subscription=None if group is None else group.subscription(header.topic),
        )
        return command.answer(body=body.encode())

    def _shown(self, topic: str, queue_id: int, index: int, count: int) -> tuple[ConsumeQueueData, ...]:
        """In a thread: entries as an operator sees them: what the queue holds, and whose message that is."""
        return tuple(
            ConsumeQueueData(
                entry.position,
                entry.size,
                entry.tags_code,
                msg=self._gate.property_of_entry(entry, topic, queue_id, PropertyName.UNIQ_KEY),
            )
            for entry in self._store.reader.entries(topic, queue_id, index, count)
        )
