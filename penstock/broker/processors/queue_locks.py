"""Queue locks for ordered consumption (41, 42). Queues that the broker does not have are never granted."""

from __future__ import annotations

from penstock.broker.groups import Groups
from penstock.broker.locks import QueueLocks
from penstock.broker.options import BrokerOptions
from penstock.broker.processors.heartbeat import check_client_id
from penstock.broker.processors.reading import read_body
from penstock.broker.topics import Topics
from penstock.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
)
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting import Connection, ProcessorTable


class QueueLocksProcessor:
    """Grants and frees locks for clients."""

    def __init__(self, options: BrokerOptions, topics: Topics, groups: Groups, locks: QueueLocks) -> None:
        self._options = options
        self._topics = topics
        self._groups = groups
        self._locks = locks

    def reconfigure(self, options: BrokerOptions) -> None:
        """Take new options."""
        self._options = options

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.LOCK_BATCH_MQ, self.handle_lock_batch_mq)
        table.register(RequestCode.UNLOCK_BATCH_MQ, self.handle_unlock_batch_mq)

    def handle_lock_batch_mq(self, connection: Connection, command: Command) -> Command:
        request = read_body(command, LockBatchRequestBody.decode)
        check_client_id(request.client_id)
        self._groups.require(request.consumer_group)
        wanted = [queue for queue in request.queues if self._has(queue)]
        granted = self._locks.lock(request.consumer_group, request.client_id, wanted)
        return command.answer(body=LockBatchResponseBody(tuple(granted)).encode())

    def handle_unlock_batch_mq(self, connection: Connection, command: Command) -> Command:
        request = read_body(command, UnlockBatchRequestBody.decode)
        self._locks.unlock(request.consumer_group, request.client_id, request.queues)
        return command.answer()

    def _has(self, queue: MessageQueue) -> bool:
        config = self._topics.get(queue.topic)
        if config is None or queue.broker_name != self._options.broker_name:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)
