"""A queue from one end to the other, a page at a time, without being a consumer.

Rules: the end is where the queue ended when reading began, so that reading ends. Offsets that retention took while
reading are passed over. Only requests that RocketMQ has; its brokers give 32 messages a page, ours more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.client.cluster_calls import ClusterCalls
from penstock.client.received import ReceivedMessage, decode_records
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PULL_BATCH,
    PULL_FIELD,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
)
from penstock.remoting import check

TOOLS_GROUP = "TOOLS_CONSUMER"
PAGE = 256


async def read_queue(
    calls: ClusterCalls, address: str, queue: MessageQueue, *, tags: str = "*"
) -> AsyncIterator[list[ReceivedMessage]]:
    """Pages of messages that any consumer could read now."""
    low = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    high = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    offset = _offset(await calls.ask(address, RequestCode.GET_MIN_OFFSET, low))
    end = _offset(await calls.ask(address, RequestCode.GET_MAX_OFFSET, high))
    while offset < end:
        header = PullMessageRequestHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(end - offset, PAGE),
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=tags,
            sub_version=0,
            expression_type="TAG",
        )
        command = Command(int(RequestCode.PULL_MESSAGE), {**header.encode(), PULL_FIELD: PULL_BATCH})
        answer = check(
            await calls.instance.remoting.call(address, command, calls.timeout_ms),
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return
        if answer.code == ResponseCode.SUCCESS:
            page = [message for message in decode_records(answer.body, queue) if message.queue_offset < end]
            if page:
                yield page
        following = PullMessageResponseHeader.decode(answer.fields).next_begin_offset
        if following <= offset:
            return  # the queue ends before it did when reading began, or leads nowhere
        offset = following


def _offset(answer: Command) -> int:
    return max(OffsetResponseHeader.decode(answer.fields).offset, 0)
