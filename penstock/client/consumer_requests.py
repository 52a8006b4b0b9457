"""What brokers ask of a consumer, mostly because an administrator asked them.

     40  the members of the group changed          rebalance at once
    220  go to these offsets                       every queue named that is held begins anew there
    221  which offsets do you have                 those in memory
    307  how are you                               settings, subscriptions, queues, rates, maybe the stacks
    309  work on this message, now                 the listener is called beside everything else

Rules: one-way requests are never answered. What is asked of a consumer without a listener, or about a message that
cannot be read, is answered with an error that says so. Called in the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.client.consumer_core import ConsumerCore
from penstock.client.process_queue import ProcessQueue
from penstock.client.received import ReceivedMessage, Retry, decode_records
from penstock.client.workers import verdict_of
from penstock.errors import RequestError
from penstock.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageQueue,
    ProcessQueueInfo,
    ResetOffsetBody,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from penstock.remoting import Connection

MIB = 1024 * 1024
# Awaits the listener, in a thread if it is an ordinary function.
CallListener = Callable[[ReceivedMessage], Awaitable[Any]]


class ConsumerRequests:
    """Answers for one consumer; `listener` is None if the user takes messages out by hand."""

    def __init__(self, core: ConsumerCore, listener: CallListener | None) -> None:
        self._core = core
        self._listener = listener
        core.on_request = self.handle

    def handle(self, connection: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
        match command.code:
            case RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self._core.rebalancing.soon()
                return None
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                self._reset(command)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return self._status(command)
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return self._running_info(command)
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return self._consume_directly(command)
        return None

    def _reset(self, command: Command) -> None:
        header = ResetOffsetRequestHeader.decode(command.fields)
        offsets = ResetOffsetBody.decode(command.body).offsets
        self._core.spawn(
            self._core.reset({q: o for q, o in offsets.items() if q.topic == header.topic and o >= 0})
        )

    def _status(self, command: Command) -> Command:
        header = GetConsumerStatusRequestHeader.decode(command.fields)
        offsets = self._core.offsets.offsets
        found = {queue: offset for queue, offset in offsets.items() if queue.topic == header.topic}
        return command.answer(body=GetConsumerStatusBody(queues=found).encode())

    # -- running info ----------------------------------------------------------------------------------------

    def _running_info(self, command: Command) -> Command:
        header = GetConsumerRunningInfoRequestHeader.decode(command.fields)
        core = self._core
        info = ConsumerRunningInfo(
            properties=self._properties(),
            subscriptions=tuple(core.subscriptions),
            queues={owner.queue: self._queue_info(owner) for owner in core.holdings.owners},
            statuses={topic: core.meters.status(topic) for topic in core.subscriptions.topics},
            jstack=_stacks() if header.jstack_enable else None,
        )
        return command.answer(body=info.encode())

    def _properties(self) -> dict[str, str]:
        core, options = self._core, self._core.options
        return {
            "PROP_CLIENT_VERSION": "V5_3_3",
            "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(core.started_wall_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(core.instance.options.name_servers),
            "PROP_THREADPOOL_CORE_SIZE": str(options.threads),
            "allocateMessageQueueStrategy": str(options.strategy),
            "consumeThreadMax": str(options.threads),
            "consumerGroup": options.group,
            "messageModel": options.model.upper(),
            "pullBatchSize": str(options.pull_batch),
            "pullThresholdForQueue": str(options.queue_messages_max),
        }

    def _queue_info(self, owner: ProcessQueue) -> ProcessQueueInfo:
        lowest = owner.lowest
        return ProcessQueueInfo(
            commit_offset=self._core.offsets.get(owner.queue) or owner.committed,
            cached_msg_min_offset=lowest.queue_offset if lowest is not None else 0,
            cached_msg_max_offset=owner.highest_offset,
            cached_msg_count=len(owner),
            cached_msg_size_in_mib=owner.bytes // MIB,
            locked=owner.is_locked and self._core.options.orderly,
            last_lock_timestamp=owner.locked_wall_ms,
            dropped=owner.is_retired,
            last_pull_timestamp=owner.pulled_wall_ms,
            last_consume_timestamp=owner.consumed_wall_ms,
        )

    # -- one message, now ------------------------------------------------------------------------------------

    async def _consume_directly(self, command: Command) -> Command:
        header = ConsumeMessageDirectlyResultRequestHeader.decode(command.fields)
        if self._listener is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "this consumer has no listener",
                "ask one that was given a listener",
            )
        messages = decode_records(command.body)
        if len(messages) != 1:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{len(messages)} messages came with the request")
        message = messages[0]
        stored = message.stored
        message.queue = MessageQueue(stored.topic, header.broker_name or "", stored.queue_id)
        result = await self._call(message)
        return command.answer(body=result.encode())

    async def _call(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult:
        assert self._listener is not None
        clock = self._core.clock
        began = clock.monotonic_ms()
        orderly = self._core.options.orderly
        remark = None
        try:
            verdict: Retry | None = verdict_of(await self._listener(message), message)
        except Exception as error:
            outcome = ConsumeResult.CR_THROW_EXCEPTION
            remark = f"{type(error).__name__}: {error}"[:1024]
        else:
            outcome = ConsumeResult.CR_SUCCESS if verdict is None else ConsumeResult.CR_LATER
        return ConsumeMessageDirectlyResult(
            consume_result=outcome,
            remark=remark,
            order=orderly,
            spent_time_mills=clock.monotonic_ms() - began,
        )


def _stacks() -> str:
    """What every thread and every task is doing, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks():
        frames = task.get_stack(limit=8)
        where = "".join(f"  {frame.f_code.co_filename}:{frame.f_lineno}\n" for frame in frames)
        parts.append(f"task {task.get_name()}\n{where}")
    return "\n".join(parts)
