"""Messages found by id, by key, or by their place in a queue.

    offset id    says at which broker and where in its log a message lies; one question
    unique id    was made by the producer and is indexed by topic; asked of the topic's brokers

Rules: the two kinds of ids look alike, so both are tried. An id comes from anywhere, therefore only brokers of
this cluster are asked about it, never an address that it names; what comes back is believed only if it has the
id that was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.client.cluster_calls import ClusterCalls
from penstock.client.received import ReceivedMessage, decode_records
from penstock.client.trace_records import TraceRecord, completed
from penstock.client.trace_records import decode as decode_trace
from penstock.errors import ClientError, CodecError, OptionError, ResponseError, RouteNotFoundError
from penstock.message import parse_message_id
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    PullSysFlag,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from penstock.remoting import check

TOOLS_GROUP = "TOOLS_CONSUMER"
_UNIQUE_KEY_MAX = 32
_TOPICS_AT_ONCE = 16
_INT64_MAX = 2**63 - 1
_NOTHING = (ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)


class MessageAdmin:
    """Questions about single messages."""

    def __init__(
        self, calls: ClusterCalls, list_topics: Callable[[], Awaitable[list[str]]] | None = None
    ) -> None:
        self._calls = calls
        self._list_topics = list_topics

    async def get(self, msg_id: str, topic: str) -> ReceivedMessage:
        """By either kind of id. Without a topic, a unique id is looked for in every topic."""
        if topic:
            found = await self.by_unique_id(msg_id, topic) or await self._by_offset_id(msg_id)
        else:
            found = await self._by_offset_id(msg_id) or await self._in_any_topic(msg_id)
        if found is None:
            raise ClientError(
                f"no message has the id {msg_id[:80]!r}",
                "it may have been deleted with its file, or not be indexed yet"
                if topic
                else "name its topic",
            )
        return found

    async def _by_offset_id(self, msg_id: str) -> ReceivedMessage | None:
        try:
            host, offset = parse_message_id(msg_id)
        except CodecError:
            return None
        if offset < 0:
            return None
        masters = await self._calls.masters()
        # The broker that the id names first, then the others: its address may be known by another name here.
        brokers = sorted(masters.items(), key=lambda broker: broker[1] != str(host))
        header = ViewMessageRequestHeader(offset=offset)
        for name, address in brokers:
            try:
                answer = await self._calls.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
            except ResponseError:
                continue  # nothing there
            for message in _messages(answer, name):
                if message.offset_msg_id == msg_id.upper():
                    return message
        return None

    async def by_unique_id(self, msg_id: str, topic: str) -> ReceivedMessage | None:
        """The message of a topic with this id of a producer, or None."""
        messages = await self._search(topic, msg_id, _UNIQUE_KEY_MAX, 0, _INT64_MAX, is_unique=True)
        return next((message for message in messages if message.msg_id == msg_id), None)

    async def _in_any_topic(self, msg_id: str) -> ReceivedMessage | None:
        topics = await self._list_topics() if self._list_topics is not None else []
        for start in range(0, len(topics), _TOPICS_AT_ONCE):
            some = topics[start : start + _TOPICS_AT_ONCE]
            for found in await asyncio.gather(*(self.by_unique_id(msg_id, topic) for topic in some)):
                if found is not None:
                    return found
        return None

    async def query(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
    ) -> list[ReceivedMessage]:
        """Messages with a key, by store time."""
        if not key:
            raise OptionError("key is empty", "use a key that messages were sent with")
        messages = await self._search(topic, key, limit, begin_ms, end_ms, is_unique=False)
        # The index goes by a hash; other keys with the same hash are sorted out here.
        matching = [message for message in messages if key in message.keys]
        matching.sort(key=lambda message: (message.store_timestamp, message.log_offset))
        return matching[:limit]

    async def _search(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int, *, is_unique: bool
    ) -> list[ReceivedMessage]:
        try:
            route = await self._calls.instance.routes.get(topic)
        except RouteNotFoundError:
            if is_unique:
                return []
            raise
        masters = {name: broker.master for name, broker in route.brokers.items() if broker.master is not None}
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=limit,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            is_unique_key=is_unique,
        )
        answers = await self._calls.ask_each(masters, RequestCode.QUERY_MESSAGE, header, also=_NOTHING)
        return [message for name, answer in answers.items() for message in _messages(answer, name)]

    async def trace(self, msg_id: str, trace_topic: str, limit: int) -> list[TraceRecord]:
        """What clients wrote about a message, in the order of time."""
        try:
            found = await self.query(trace_topic, msg_id, limit, 0, _INT64_MAX)
        except RouteNotFoundError:
            return []  # nobody has written a trace yet
        records = [
            record
            for message in found
            for record in decode_trace(message.body.decode("utf-8", "replace"))
            if record.msg_id == msg_id
        ]
        return completed(records)

    async def read(self, queue: MessageQueue, offset: int, limit: int) -> list[ReceivedMessage]:
        """Messages from an offset on; fewer where the queue ends. OptionError outside of the queue."""
        route = await self._calls.instance.routes.get(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            raise RouteNotFoundError(f"broker {queue.broker_name!r} is not there now")
        messages: list[ReceivedMessage] = []
        while len(messages) < limit:
            answer = await self._pull(address, queue, offset, limit - len(messages))
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                break
            position = PullMessageResponseHeader.decode(answer.fields)
            if answer.code == ResponseCode.PULL_OFFSET_MOVED:
                raise OptionError(
                    f"{queue} has no offset {offset}", f"use {position.min_offset} to {position.max_offset}"
                )
            if answer.code == ResponseCode.SUCCESS:
                messages += decode_records(answer.body, queue)
            if position.next_begin_offset <= offset:
                break
            offset = position.next_begin_offset
        return messages[:limit]

    async def _pull(self, address: str, queue: MessageQueue, offset: int, limit: int) -> Command:
        header = PullMessageRequestHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(limit, 32),
            sys_flag=int(PullSysFlag.SUBSCRIPTION),
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        command = Command(int(RequestCode.PULL_MESSAGE), header.encode())
        return check(
            await self._calls.instance.call(address, command, self._calls.timeout_ms),
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        )


def _messages(answer: Command, broker_name: str) -> list[ReceivedMessage]:
    """The messages of an answer; a record does not say by which name its broker goes."""
    messages = decode_records(answer.body)
    for message in messages:
        message.queue = message.queue._replace(broker_name=broker_name)
    return messages
