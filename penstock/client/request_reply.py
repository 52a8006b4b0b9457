"""Requests that wait for a reply, and replies on their way back.

    requester -- message with CORRELATION_ID, REPLY_TO_CLIENT, TTL --> topic --> replier
    requester <-- 326 -- the broker that has the reply <-- 325 to <cluster>_REPLY_TOPIC -- replier

Rules: a reply is pushed over a connection, so before a request leaves every broker that could be given the reply has
heard of this client, also those that do not have the topic. Nothing is promised for a request but that its message
is stored: a reply that does not come in time is an error, and one that comes later is refused, so that the
replier hears that nobody waits. A replier prefers the broker that it has the request from. `Replies` belongs to a
client and its event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.compression import UNPACKED_BYTES_MAX, unpack
from penstock.client.outgoing import Composer
from penstock.client.received import ReceivedMessage
from penstock.errors import (
    ClientClosedError,
    CodecError,
    MessageError,
    PenstockError,
    ReplyTimeoutError,
    RouteNotFoundError,
)
from penstock.message import SystemFlag, decode_properties
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader
from penstock.remoting import Connection, check

if TYPE_CHECKING:
    from penstock.client.instance import ClientInstance

logger = logging.getLogger(__name__)
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
CLUSTER = "CLUSTER"
REPLY_TYPE = "reply"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
TIMEOUT_MS_MAX = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a request."""

    body: bytes
    properties: Mapping[str, str]
    # When it left the replier and where that was, by its broker.
    born_timestamp: int
    born_host: str


class Replies:
    """The requests of one client that wait. Handles code 326."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def handle(self, connection: Connection, command: Command) -> Command:
        """A broker has a reply for somebody here."""
        header = ReplyMessageRequestHeader.decode(command.fields)
        properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
        waiting = self._waiting.pop(properties.get(CORRELATION_ID, ""), None)
        if waiting is None or waiting.done():
            logger.info("a reply from %s came too late, or for nobody", header.born_host)
            return command.answer(ResponseCode.SYSTEM_ERROR, "nobody waits for this reply any more")
        body = bytes(command.body)
        try:
            if header.sys_flag & SystemFlag.COMPRESSED:
                body = unpack(body, header.sys_flag, UNPACKED_BYTES_MAX)
        except CodecError as error:
            waiting.set_exception(error)
            return command.answer(ResponseCode.SYSTEM_ERROR, error.message)
        waiting.set_result(Reply(body, properties, header.born_timestamp, header.born_host))
        return command.answer()


class Request:
    """One request: properties to send it with, and the wait for its reply."""

    def __init__(self, instance: ClientInstance, timeout_ms: int) -> None:
        given: object = timeout_ms
        if not isinstance(given, int) or not 0 < given <= TIMEOUT_MS_MAX:
            raise MessageError(f"timeout_ms is {given!r}", f"use 1 to {TIMEOUT_MS_MAX}")
        self._instance = instance
        self._timeout_ms = timeout_ms
        self._deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        self._id = str(uuid.UUID(bytes=instance.runtime.entropy.bytes(16), version=4))
        self.properties = {
            CORRELATION_ID: self._id,
            REPLY_TO_CLIENT: instance.client_id,
            TTL: str(timeout_ms),
        }
        self._reply = instance.replies.expect(self._id)

    async def prepare(self, topic: str) -> None:
        """Have every broker that may be given the reply know this client."""
        instance = self._instance
        route = instance.routes.cache.get(topic)
        clusters = {broker.cluster for broker in route.brokers.values()} if route is not None else set()
        for cluster in clusters:
            try:
                await instance.routes.get(cluster + REPLY_TOPIC_SUFFIX)
            except RouteNotFoundError:
                logger.info("cluster %s has no topic for replies", cluster)
        await instance.introduce()

    async def reply(self) -> Reply:
        """Wait for it, from the moment the request was made."""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._reply
        except TimeoutError:
            raise ReplyTimeoutError(
                f"no reply within {self._timeout_ms} ms",
                "the request is stored and may still be worked on; is a consumer of the topic replying?",
            ) from None

    def give_up(self) -> None:
        """The producer closes."""
        if not self._reply.done():
            self._reply.set_exception(ClientClosedError("the producer was closed", "wait for replies first"))

    def end(self) -> None:
        """Nobody waits any more."""
        self._instance.replies.forget(self._id)
        self._reply.cancel()


async def send_reply(
    instance: ClientInstance,
    composer: Composer,
    group: str,
    request: ReceivedMessage,
    body: bytes,
    properties: Mapping[str, str] | None,
    timeout_ms: int,
) -> None:
    """Send a reply; returns when the requester has it. ResponseError says why it does not."""
    asked = request.properties
    cluster, correlation_id, requester = (
        asked.get(name, "") for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT)
    )
    if not cluster or not correlation_id or not requester:
        raise MessageError(
            f"{request!r} asks for no reply", "reply to messages that were sent with `request`"
        )
    topic = cluster + REPLY_TOPIC_SUFFIX
    pairs = {
        **(properties or {}),
        MESSAGE_TYPE: REPLY_TYPE,
        CORRELATION_ID: correlation_id,
        REPLY_TO_CLIENT: requester,
    }
    if asked.get(TTL):
        pairs[TTL] = asked[TTL]
    item = composer.compose(topic, body, properties=pairs)
    route = await instance.routes.get(topic)
    queues = [queue for queue in route.publish_queues if queue.broker_name == request.queue.broker_name]
    queues = queues or list(route.publish_queues)
    if not queues:
        raise RouteNotFoundError(f"topic {topic} has no queue that takes messages")
    queue = queues[0]
    header = SendMessageRequestHeader(
        producer_group=group,
        topic=topic,
        queue_id=queue.queue_id,
        sys_flag=item.sys_flag,
        born_timestamp=instance.runtime.clock.now_ms(),
        flag=item.flag,
        properties=item.properties.decode(),
        reconsume_times=0,
        broker_name=queue.broker_name,
    )
    command = Command(RequestCode.SEND_REPLY_MESSAGE_V2, header.encode(), item.body)
    try:
        check(await instance.call_broker(queue.broker_name, command, timeout_ms))
    except PenstockError as error:
        logger.info("the reply to %r: %s", request, error)
        raise
